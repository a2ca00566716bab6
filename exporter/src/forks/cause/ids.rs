//! Rules over the ids of two prompts, for where the messages are the same.

use std::ops::Range;

use super::passing::differ_in_passing;
use crate::forks::texts::Texts;

/// Tokens that the end of a turn, or the header of the next one, takes at most.
const SEAM_TOKENS: usize = 4;
/// Tokens at the end of what was sampled that belong to the seam.
const END_TOKENS: usize = 2;
/// Tokens that must agree before two prompts are taken to go on alike.
const AGREE_TOKENS: usize = 8;
/// Tokens within which the same text may be cut in another way.
const RECUT_TOKENS: usize = 24;

/// The ids of a path and of the prompt that left it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids<'a> {
    pub(crate) known: &'a [u32],
    pub(crate) sent: &'a [u32],
    /// The first place where they differ.
    pub(crate) at: usize,
    /// What was sampled along the path.
    pub(crate) spans: &'a [Span],
}

/// What one turn of a path sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) tokens: Range<usize>,
    /// Which message of the history it is.
    pub(crate) message: usize,
    pub(crate) thinks: bool,
    pub(crate) calls: bool,
}

/// Whether a place lies in what was sampled, or in the header before it.
pub(crate) fn is_near(sampled: &Range<usize>, at: usize) -> bool {
    sampled.start <= at + SEAM_TOKENS && at < sampled.end
}

impl Ids<'_> {
    /// The messages, first to last, in which the place lies.
    pub(super) fn place(&self) -> (usize, usize) {
        let reached = self.spans.iter().take_while(|s| s.tokens.start <= self.at + SEAM_TOKENS);
        let Some(last) = reached.last() else {
            return (0, self.spans.first().map_or(usize::MAX, |s| s.message));
        };
        if self.at < last.tokens.end {
            let before = self.spans.iter().take_while(|s| s.tokens.end <= self.at).last();
            let in_prompt = self.at < last.tokens.start;
            let first = if in_prompt { before.map_or(0, |s| s.message) } else { last.message };
            return (first, last.message);
        }
        let next = self.spans.iter().find(|s| s.tokens.start > self.at);
        (last.message, next.map_or(usize::MAX, |s| s.message))
    }

    fn known_rest(&self) -> &[u32] {
        &self.known[self.at..]
    }

    fn sent_rest(&self) -> &[u32] {
        &self.sent[self.at..]
    }

    /// The span that the place lies in, or just before.
    fn span(&self) -> Option<&Span> {
        self.spans.iter().find(|span| is_near(&span.tokens, self.at))
    }

    /// Whether after so many tokens of both they go on alike; to the end of the path if that comes
    /// first.
    fn agree(&self, dropped: usize, added: usize) -> bool {
        let Some(known) = self.known_rest().get(dropped..) else { return false };
        let Some(sent) = self.sent_rest().get(added..) else { return false };
        let count = known.len().min(AGREE_TOKENS);
        sent.len() >= count && known[..count] == sent[..count]
    }

    fn is_end(&self, dropped: usize) -> bool {
        dropped >= self.known_rest().len()
    }
}

/// Whether the reasoning of a turn is left out of the prompt and the rest of that turn follows.
pub(super) fn thinking_is_cut(ids: &Ids<'_>) -> bool {
    let Some(span) = ids.span().filter(|span| span.thinks) else { return false };
    let left = span.tokens.end - ids.at;
    let goes_on = |known: &[u32], added: usize| {
        let count = known.len().min(AGREE_TOKENS);
        let sent = ids.sent_rest().get(added..added + count);
        // One token, such as the end of the turn, stands everywhere.
        count > 1 && sent.is_some_and(|sent| *sent == known[..count])
    };
    // A template may leave an empty pair of marks behind.
    (0..=SEAM_TOKENS).any(|added| {
        (added + 1..left).any(|dropped| goes_on(&ids.known_rest()[dropped..left], added))
    })
}

/// Whether only tokens around the end of a turn, or around the header of the next, differ.
pub(super) fn is_seam(ids: &Ids<'_>) -> bool {
    let at = ids.at;
    let at_end = |s: &Span| {
        at > s.tokens.start && at + END_TOKENS >= s.tokens.end && at <= s.tokens.end + SEAM_TOKENS
    };
    let at_start = |s: &Span| at <= s.tokens.start && at + SEAM_TOKENS >= s.tokens.start;
    let rejoins = |to_the_end: bool| {
        let few = 0..=SEAM_TOKENS;
        few.clone().any(|dropped| {
            (to_the_end || !ids.is_end(dropped)) && few.clone().any(|a| ids.agree(dropped, a))
        })
    };
    (ids.spans.iter().any(at_end) && rejoins(true))
        || (ids.spans.iter().any(at_start) && rejoins(false))
}

/// Whether the same text was cut into other tokens in what was sampled; none where the texts of
/// these tokens are not known.
pub(super) fn is_same_text(ids: &Ids<'_>, texts: &Texts) -> Option<bool> {
    ids.span().filter(|span| span.tokens.contains(&ids.at))?;
    let [known, sent] = [ids.known_rest(), ids.sent_rest()].map(few);
    texts.of(known.get(..1)?)?;
    texts.of(sent.get(..1)?)?;
    let pieces: Vec<String> = (1..=sent.len()).filter_map(|n| texts.of(&sent[..n])).collect();
    let mut heads = (1..=known.len()).filter_map(|n| texts.of(&known[..n]));
    Some(heads.any(|head| pieces.contains(&head)))
}

/// Whether the ids part for a while in what was sampled and then go on alike, or end. Where no text
/// is known that is taken for the same text in other tokens, unless a template may have written the
/// arguments of a tool call in its own way.
pub(super) fn looks_retokenized(ids: &Ids<'_>) -> bool {
    let span = ids.span().filter(|span| span.tokens.contains(&ids.at) && !span.calls);
    let Some(span) = span else { return false };
    let [known, sent] = [ids.known_rest(), ids.sent_rest()].map(few);
    let rejoins = |dropped: usize| (1..=sent.len()).any(|added| ids.agree(dropped, added));
    let is_last_word = span.tokens.end == ids.known.len() && known.len() <= END_TOKENS;
    is_last_word || (1..known.len()).any(rejoins)
}

fn few(rest: &[u32]) -> &[u32] {
    &rest[..rest.len().min(RECUT_TOKENS)]
}

/// Whether the prompts, as text, differ in passing things from the place on.
pub(super) fn passes_as_text(ids: &Ids<'_>, texts: &Texts) -> bool {
    let both = texts.of(few(ids.known_rest())).zip(texts.of(few(ids.sent_rest())));
    both.is_some_and(|(known, sent)| {
        // Both windows hold as many tokens, not as much text: the shorter one counts.
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (known, sent) = (words(&known), words(&sent));
        let count = known.len().min(sent.len()).saturating_sub(1).max(1);
        let cut = |words: &[String]| words[..count.min(words.len())].join(" ");
        differ_in_passing(&cut(&known), &cut(&sent))
    })
}
