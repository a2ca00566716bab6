//! The outline of a document: where each of its objects and arrays ends.
//!
//! Walking into a document looks at what lies deep in it once for each level above. With an outline
//! it is looked at once.

use crate::bounds::DEPTH_MAX;
use crate::json::blocks::each_bracket;
use crate::json::{Ends, Malformed, scalar, string};

/// Bytes of a document for which room for one pair of brackets is made ahead. A list of logprobs
/// has a pair in some 40.
const BYTES_A_PAIR: usize = 32;
/// Pairs for which room is made ahead at most: a long prompt has few.
const PAIRS_ROOM_MAX: usize = 4096;
/// Levels for which room is made ahead.
const OPEN_ROOM: usize = 16;

/// The start and the end of each object and array of a document, in the order of the starts.
#[derive(Debug)]
pub(crate) struct Brackets(Vec<(usize, usize)>);

/// A document with its brackets.
#[derive(Clone, Copy)]
pub(crate) struct Outline<'a> {
    doc: &'a [u8],
    brackets: &'a [(usize, usize)],
}

impl Brackets {
    /// Finds the brackets of a document in one pass. All of them must match.
    pub(crate) fn of(doc: &[u8]) -> Result<Self, Malformed> {
        let room = (doc.len() / BYTES_A_PAIR).min(PAIRS_ROOM_MAX);
        let mut brackets: Vec<(usize, usize)> = Vec::with_capacity(room);
        // The places in `brackets` of those that must still close.
        let mut open = Vec::with_capacity(OPEN_ROOM);

        each_bracket(doc, |at, bracket| {
            match bracket {
                b'{' | b'[' if open.len() == DEPTH_MAX => return Err(Malformed),
                b'{' | b'[' => {
                    open.push(brackets.len());
                    brackets.push((at, at));
                }
                close => {
                    let (start, end) = &mut brackets[open.pop().ok_or(Malformed)?];
                    if (doc[*start] == b'{') != (close == b'}') {
                        return Err(Malformed);
                    }
                    *end = at + 1;
                }
            }
            Ok(())
        })?;
        if open.is_empty() { Ok(Self(brackets)) } else { Err(Malformed) }
    }

    /// The outline of the document that they were found in.
    pub(crate) fn outline<'a>(&'a self, doc: &'a [u8]) -> Outline<'a> {
        Outline { doc, brackets: &self.0 }
    }
}

impl Ends for Outline<'_> {
    fn bytes(&self) -> &[u8] {
        self.doc
    }

    fn end_of(&self, start: usize) -> Result<usize, Malformed> {
        match self.doc.get(start).ok_or(Malformed)? {
            b'"' => string(self.doc, start),
            b'{' | b'[' => {
                let found = self.brackets.binary_search_by_key(&start, |(start, _)| *start);
                found.map(|place| self.brackets[place].1).map_err(|_| Malformed)
            }
            b'}' | b']' | b',' | b':' => Err(Malformed),
            _ => Ok(scalar(self.doc, start)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::{each_element, members, root};

    proptest! {
        #[test]
        fn an_outline_says_what_a_scan_says(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\\"]\"", "1.5", " ", "null", "\"",
                ]),
                0..24,
            ),
            is_wrapped in any::<bool>(),
        ) {
            let text = parts.concat();
            let text = if is_wrapped { format!("[{{\"k\":[{text}]}}]") } else { format!("[{text}") };
            let doc = text.as_bytes();
            let scanned = root(doc);
            let brackets = Brackets::of(doc);
            let outlined = brackets.as_ref().map_err(|error| *error);
            let outlined = outlined.and_then(|brackets| root(&brackets.outline(doc)));
            prop_assert_eq!(&scanned, &outlined);
            if let Ok(place) = scanned {
                let outline = brackets.as_ref().unwrap().outline(doc);
                prop_assert_eq!(members(doc, &place), members(&outline, &place));
                let (mut one, mut other) = (Vec::new(), Vec::new());
                let scanned = each_element(doc, &place, |element| {
                    one.push((element.clone(), members(doc, &element)));
                    Ok(())
                });
                let outlined = each_element(&outline, &place, |element| {
                    other.push((element.clone(), members(&outline, &element)));
                    Ok(())
                });
                prop_assert_eq!((scanned, one), (outlined, other));
            }
        }
    }
}
