//! Token ids that say a secret.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use template::{TokenStrings, Tokenizer};

use crate::exit::Failure;
use crate::upkeep::secrets::{FILLERS, SecretFinder, SecretSpan, joined};

/// The last character of a token that ends inside one.
const REPLACEMENT: char = '\u{FFFD}';

/// Reads ids, and names the one that takes the place of others.
pub(in crate::upkeep) struct IdReader {
    tokenizer: Tokenizer,
    filler: u32,
    /// The texts of tokens that are whole by themselves; `None` for others.
    alone: RefCell<HashMap<u32, Option<String>>>,
}

impl IdReader {
    /// Reads a tokenizer.json, or that of a model's folder.
    ///
    /// # Errors
    /// [`Failure`] when there is none.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let tokenizer =
            Tokenizer::from_file(&file).map_err(|e| Failure::of(&e).context("--tokenizer"))?;
        let one = |text: &&str| match tokenizer.encode_after(text).as_deref() {
            Ok([id]) => Some(*id),
            _ => None,
        };
        let filler = FILLERS.iter().find_map(one).unwrap_or_default();
        Ok(Self { tokenizer, filler, alone: RefCell::default() })
    }

    /// The id that takes the place of others.
    pub(super) fn filler(&self) -> u32 {
        self.filler
    }

    /// The text of ids, and where in it the text of each ends.
    pub(super) fn text(&self, ids: &[u32]) -> (String, Vec<usize>) {
        let (mut text, mut ends) = (String::new(), Vec::with_capacity(ids.len()));
        let mut strings = TokenStrings::default();
        let mut alone = self.alone.borrow_mut();
        for id in ids {
            let known = alone.entry(*id).or_insert_with(|| {
                let alone = self.tokenizer.decode(&[*id], false);
                (!alone.contains(REPLACEMENT)).then_some(alone)
            });
            match known {
                Some(known) => {
                    strings = TokenStrings::default();
                    text.push_str(known);
                }
                None => text.push_str(&strings.push(&self.tokenizer, *id)),
            }
            ends.push(text.len());
        }
        (text, ends)
    }

    /// The spans of `ids` that say a secret, or a part of one, where `before` stands in front of
    /// them; in tokens, in order, none in another.
    pub(super) fn spans(
        &self,
        finder: &SecretFinder,
        before: &[u32],
        ids: &[u32],
    ) -> Vec<SecretSpan> {
        let (text, ends) = self.text(&[before, ids].concat());
        let within = |at: usize| at.saturating_sub(before.len());
        let spans = finder.spans(text.as_bytes()).into_iter().map(|span| {
            let tokens = tokens_of(&ends, &span.range);
            SecretSpan { range: within(tokens.start)..within(tokens.end), ..span }
        });
        joined(spans.filter(|span| !span.range.is_empty()).collect())
    }
}

/// The tokens of which a part of the text lies in `bytes`, and those before the first that end
/// inside its first character.
fn tokens_of(ends: &[usize], bytes: &Range<usize>) -> Range<usize> {
    let first = ends.partition_point(|end| *end <= bytes.start);
    let last = ends.partition_point(|end| *end < bytes.end);
    let begins = |token: usize| token.checked_sub(1).map_or(0, |before| ends[before]);
    let is_open = |token: &usize| ends[*token] == begins(*token);
    let open = (0..first).rev().take_while(is_open).count();
    first - open..(last + 1).min(ends.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_holds_any_byte_of_a_secret_is_of_it() {
        // "ab", "cde", "", "fg": the third ends inside a character.
        let ends = [2, 5, 5, 7];
        assert_eq!(tokens_of(&ends, &(0..2)), 0..1);
        assert_eq!(tokens_of(&ends, &(1..3)), 0..2);
        assert_eq!(tokens_of(&ends, &(2..5)), 1..2);
        assert_eq!(tokens_of(&ends, &(5..6)), 2..4);
        assert_eq!(tokens_of(&ends, &(4..7)), 1..4);
    }
}
