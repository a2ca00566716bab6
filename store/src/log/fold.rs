//! Folded streams of events. An event mostly repeats the one before it, but for a few bytes in the
//! middle. Only the middles are kept, one after the other, which in a stream of text deltas is the
//! text itself. So a streamed reply takes little more than its words. The events are not parsed.
//!
//! A folded body is the length of its steps as a varint, the steps, then the middles. A step is a
//! varint: the length of the middle, shifted left by one, plus 1 where the shared head and tail
//! change; then their two lengths follow.

use crate::encoding::varint::{push, take};

/// The end of an event.
const END: &[u8] = b"\n\n";
/// Bytes that two events may have in common by chance.
const CHANCE_BYTES: usize = 8;
/// The capacity that is allocated before the first event: a damaged length may say anything.
const CAPACITY_BYTES: usize = 1 << 20;

/// The bytes that an event shares with the one before, at its beginning and at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SharedEnds {
    head: usize,
    tail: usize,
}

impl SharedEnds {
    /// The longest that fit.
    fn longest(before: &[u8], event: &[u8]) -> Self {
        let head = before.iter().zip(event).take_while(|(a, b)| a == b).count();
        let (before, event) = (&before[head..], &event[head..]);
        let tail = before.iter().rev().zip(event.iter().rev()).take_while(|(a, b)| a == b).count();
        Self { head, tail }
    }

    fn fits(self, before: &[u8], event: &[u8]) -> bool {
        let short = before.len().min(event.len());
        self.head + self.tail <= short
            && before[..self.head] == event[..self.head]
            && before[before.len() - self.tail..] == event[event.len() - self.tail..]
    }

    /// The ends for the next event. They stay the same as long as they fit: longer ones, by a few
    /// bytes, would only take letters out of the text.
    fn next(self, before: &[u8], event: &[u8]) -> Self {
        let longest = Self::longest(before, event);
        let is_close = longest.head + longest.tail < self.head + self.tail + CHANCE_BYTES;
        if is_close && self.fits(before, event) { self } else { longest }
    }
}

/// Folds `body`; `None` where that would not make it shorter by a quarter.
pub(crate) fn fold(body: &[u8]) -> Option<Vec<u8>> {
    let (mut steps, mut middles) = (Vec::new(), Vec::new());
    let (mut ends, mut before) = (SharedEnds::default(), &[][..]);
    for event in events(body) {
        let next = ends.next(before, event);
        let middle = &event[next.head..event.len() - next.tail];
        push(&mut steps, (middle.len() as u64) << 1 | u64::from(next != ends));
        if next != ends {
            push(&mut steps, next.head as u64);
            push(&mut steps, next.tail as u64);
        }
        middles.extend_from_slice(middle);
        (ends, before) = (next, event);
    }

    let mut folded = Vec::with_capacity(steps.len() + middles.len() + 4);
    push(&mut folded, steps.len() as u64);
    folded.extend(steps);
    folded.extend(middles);
    (folded.len() < body.len() / 4 * 3).then_some(folded)
}

/// The inverse of [`fold`]; `None` when `folded` is damaged, or the body is longer than `length`.
pub(crate) fn unfold(mut folded: &[u8], length: usize) -> Option<Vec<u8>> {
    let steps_length = usize::try_from(take(&mut folded)?).ok()?;
    let (mut steps, mut middles) = folded.split_at_checked(steps_length)?;
    let mut body: Vec<u8> = Vec::with_capacity(length.min(CAPACITY_BYTES));
    let (mut ends, mut before) = (SharedEnds::default(), 0..0);

    while !steps.is_empty() {
        let step = take(&mut steps)?;
        if step & 1 == 1 {
            let (head, tail) = (take(&mut steps)?, take(&mut steps)?);
            ends =
                SharedEnds { head: usize::try_from(head).ok()?, tail: usize::try_from(tail).ok()? };
        }
        let (middle, rest) = middles.split_at_checked(usize::try_from(step >> 1).ok()?)?;
        middles = rest;

        // Checked before anything is copied, so that damage cannot make the body too long.
        let shared = ends.head.checked_add(ends.tail)?;
        let start = body.len();
        if shared > before.len() || start + shared + middle.len() > length {
            return None;
        }
        body.extend_from_within(before.start..before.start + ends.head);
        body.extend_from_slice(middle);
        body.extend_from_within(before.end - ends.tail..before.end);
        before = start..body.len();
    }
    middles.is_empty().then_some(body)
}

/// The events of `body`, each with its end. Bytes after the last end are an event, too.
fn events(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memmem::find(rest, END).map_or(rest.len(), |at| at + END.len());
        let (event, after) = rest.split_at(end);
        rest = after;
        Some(event)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(words: &[&str]) -> String {
        let head = r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":""#;
        let event = |word| format!("{head}{word}\"}},\"finish_reason\":null}}]}}\n\n");
        words.iter().map(event).collect::<String>() + "data: [DONE]\n\n"
    }

    #[test]
    fn a_stream_takes_little_more_than_its_words() {
        let words: Vec<_> =
            "the quick brown fox jumps over the lazy dog and on".split(' ').collect();
        let words: Vec<_> = words.iter().copied().cycle().take(200).collect();
        let body = stream(&words);
        let folded = fold(body.as_bytes()).unwrap();
        let text: usize = words.iter().map(|word| word.len()).sum();
        assert!(folded.len() < text + words.len() + 200, "{} for {text}", folded.len());
        assert_eq!(unfold(&folded, body.len()).unwrap(), body.as_bytes());
        let said: String = words[20..].concat();
        assert!(String::from_utf8_lossy(&folded).contains(&said), "the text is in one piece");
    }

    #[test]
    fn what_is_no_stream_is_left_alone() {
        for body in ["", "{}", "a long text that is not a stream of events at all", "a\n\nb\n\n"] {
            assert_eq!(fold(body.as_bytes()), None);
        }
    }

    proptest! {
        #[test]
        fn streams_come_back(words in proptest::collection::vec("[a-c\n]{0,6}", 0..40)) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let body = stream(&words);
            if let Some(folded) = fold(body.as_bytes()) {
                prop_assert_eq!(unfold(&folded, body.len()), Some(body.clone().into_bytes()));
                prop_assert_eq!(unfold(&folded, body.len() - 1), None);
            }
        }

        #[test]
        fn any_bytes_unfold_or_not(bytes: Vec<u8>, length in 0usize..10_000) {
            if let Some(body) = unfold(&bytes, length) {
                prop_assert!(body.len() <= length);
            }
        }
    }
}
