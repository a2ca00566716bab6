//! Streams of events, folded: an event mostly repeats the one before it, but for a few bytes in
//! the middle. The middles are kept, one behind the other, which in a stream of text deltas is the
//! text; so a reply that streamed takes little more than its words. No event is understood here.

use crate::varint::{push, take};

/// Where one event ends.
const END: &[u8] = b"\n\n";
/// So many bytes that two events have in common by chance.
const LETTERS: usize = 8;
/// What is asked for before the first event, because a damaged length may say anything.
const CAPACITY_BYTES: usize = 1 << 20;

/// How an event is like the one before: so many bytes at its beginning and at its end are equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Frame {
    head: usize,
    tail: usize,
}

impl Frame {
    fn fits(self, before: &[u8], event: &[u8]) -> bool {
        let short = before.len().min(event.len());
        self.head + self.tail <= short
            && before[..self.head] == event[..self.head]
            && before[before.len() - self.tail..] == event[event.len() - self.tail..]
    }

    /// The same one as long as it fits, because one that is larger by a few bytes would take
    /// letters out of the text.
    fn next(self, before: &[u8], event: &[u8]) -> Self {
        let best = Self::of(before, event);
        let is_good = best.head + best.tail < self.head + self.tail + LETTERS;
        if is_good && self.fits(before, event) { self } else { best }
    }

    /// The largest that fits.
    fn of(before: &[u8], event: &[u8]) -> Self {
        let head = before.iter().zip(event).take_while(|(a, b)| a == b).count();
        let (before, event) = (&before[head..], &event[head..]);
        let tail = before.iter().rev().zip(event.iter().rev()).take_while(|(a, b)| a == b).count();
        Self { head, tail }
    }
}

/// `body` folded; `None` where that would not make it shorter by a quarter.
pub(crate) fn fold(body: &[u8]) -> Option<Vec<u8>> {
    let (mut frames, mut middles) = (Vec::new(), Vec::new());
    let (mut frame, mut before) = (Frame::default(), &[][..]);
    for event in split(body) {
        let next = frame.next(before, event);
        let middle = &event[next.head..event.len() - next.tail];
        push(&mut frames, (middle.len() as u64) << 1 | u64::from(next != frame));
        if next != frame {
            push(&mut frames, next.head as u64);
            push(&mut frames, next.tail as u64);
        }
        frame = next;
        middles.extend_from_slice(middle);
        before = event;
    }
    let mut folded = Vec::with_capacity(frames.len() + middles.len() + 4);
    push(&mut folded, frames.len() as u64);
    folded.extend(frames);
    folded.extend(middles);
    (folded.len() < body.len() / 4 * 3).then_some(folded)
}

/// The way back from [`fold`]; `None` when `folded` is not what it gives, or is longer than
/// `length`.
pub(crate) fn unfold(mut folded: &[u8], length: usize) -> Option<Vec<u8>> {
    let frames = usize::try_from(take(&mut folded)?).ok()?;
    let (mut frames, mut middles) = folded.split_at_checked(frames)?;
    let mut body: Vec<u8> = Vec::with_capacity(length.min(CAPACITY_BYTES));
    let (mut frame, mut before) = (Frame::default(), 0..0);
    while !frames.is_empty() {
        let word = take(&mut frames)?;
        if word & 1 == 1 {
            let (head, tail) = (take(&mut frames)?, take(&mut frames)?);
            frame = Frame { head: usize::try_from(head).ok()?, tail: usize::try_from(tail).ok()? };
        }
        let (middle, rest) = middles.split_at_checked(usize::try_from(word >> 1).ok()?)?;
        middles = rest;
        let start = body.len();
        let kept = before.len().checked_sub(frame.head.checked_add(frame.tail)?)?;
        if start + before.len() - kept + middle.len() > length {
            return None;
        }
        body.extend_from_within(before.start..before.start + frame.head);
        body.extend_from_slice(middle);
        body.extend_from_within(before.end - frame.tail..before.end);
        before = start..body.len();
    }
    middles.is_empty().then_some(body)
}

/// The events of `body`, each with its end; what follows the last end is one, too.
fn split(body: &[u8]) -> impl Iterator<Item = &[u8]> {
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
