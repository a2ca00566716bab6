//! Two conversations, aligned: what both have, and what differs between.

use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, TextDiff, capture_diff_slices_deadline};

/// Time after which a rough alignment is good enough.
const ALIGN_TIME: Duration = Duration::from_secs(2);
/// Least likeness of two texts that are shown as one message that changed; 1 is the same text.
const ALIKE: f32 = 0.4;
/// Messages among which the other form of one is looked for.
const LOOKED_AHEAD: usize = 8;
/// Characters of a text by which its likeness is judged.
const JUDGED_CHARS: usize = 2000;

/// A stretch of two conversations. Numbers count messages of each from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stretch {
    /// Both have these messages.
    Same { a: usize, b: usize, len: usize },
    /// One message in two forms.
    Changed { a: usize, b: usize },
    /// Only the first has it.
    OnlyA(usize),
    /// Only the second has it.
    OnlyB(usize),
}

/// The part of a message that is compared: its speaker and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Said<'a> {
    pub(super) is_answer: bool,
    pub(super) text: &'a str,
}

/// Aligns two conversations by the messages that are the same in both.
pub(super) fn aligned(a: &[Said<'_>], b: &[Said<'_>]) -> Vec<Stretch> {
    let deadline = Some(Instant::now() + ALIGN_TIME);
    let mut found = Vec::new();

    for op in capture_diff_slices_deadline(Algorithm::Patience, a, b, deadline) {
        match op {
            DiffOp::Equal { old_index, new_index, len } => {
                found.push(Stretch::Same { a: old_index, b: new_index, len });
            }
            DiffOp::Delete { old_index, old_len, .. } => {
                found.extend((old_index..old_index + old_len).map(Stretch::OnlyA));
            }
            DiffOp::Insert { new_index, new_len, .. } => {
                found.extend((new_index..new_index + new_len).map(Stretch::OnlyB));
            }
            DiffOp::Replace { old_index, old_len, new_index, new_len } => {
                let (a, b) = (&a[old_index..old_index + old_len], &b[new_index..]);
                replaced((a, old_index), (&b[..new_len], new_index), &mut found);
            }
        }
    }
    found
}

/// Pairs the messages of two stretches that took each other's place: each with the next one that is
/// like it, or that stands opposite with the same speaker.
fn replaced(
    (a, a_from): (&[Said<'_>], usize),
    (b, b_from): (&[Said<'_>], usize),
    found: &mut Vec<Stretch>,
) {
    let mut next = 0;
    for (index, one) in a.iter().enumerate() {
        let alike = |at: &usize| is_alike(one, &b[*at]);
        let pair = (next..b.len()).take(LOOKED_AHEAD).find(alike).or_else(|| {
            let opposite = next < b.len() && a.len() - index <= b.len() - next;
            (opposite && b[next].is_answer == one.is_answer).then_some(next)
        });
        match pair {
            Some(at) => {
                found.extend((next..at).map(|skipped| Stretch::OnlyB(b_from + skipped)));
                found.push(Stretch::Changed { a: a_from + index, b: b_from + at });
                next = at + 1;
            }
            None => found.push(Stretch::OnlyA(a_from + index)),
        }
    }
    found.extend((next..b.len()).map(|left| Stretch::OnlyB(b_from + left)));
}

/// True if two messages are forms of one.
fn is_alike(one: &Said<'_>, other: &Said<'_>) -> bool {
    let beginning = |text: &str| text.chars().take(JUDGED_CHARS).collect::<String>();
    one.is_answer == other.is_answer && {
        let (one, other) = (beginning(one.text), beginning(other.text));
        TextDiff::from_words(&one, &other).ratio() >= ALIKE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Said<'_> {
        Said { is_answer: false, text }
    }

    fn answer(text: &str) -> Said<'_> {
        Said { is_answer: true, text }
    }

    #[test]
    fn what_is_the_same_behind_a_difference_is_found() {
        let a = [told("Seed 1. Guess a number."), answer("50"), told("lower"), answer("25")];
        let b = [told("Seed 2. Guess a number."), answer("50"), told("lower"), answer("30")];
        assert_eq!(
            aligned(&a, &b),
            [
                Stretch::Changed { a: 0, b: 0 },
                Stretch::Same { a: 1, b: 1, len: 2 },
                Stretch::Changed { a: 3, b: 3 },
            ]
        );
    }

    #[test]
    fn a_message_more_moves_the_others() {
        let a = [told("go"), answer("ls"), told("a.rs"), answer("done")];
        let b =
            [told("go"), answer("pwd"), told("/work"), answer("ls"), told("a.rs"), answer("done")];
        let found = aligned(&a, &b);
        assert_eq!(
            found,
            [
                Stretch::Same { a: 0, b: 0, len: 1 },
                Stretch::OnlyB(1),
                Stretch::OnlyB(2),
                Stretch::Same { a: 1, b: 3, len: 3 },
            ]
        );
        assert_eq!(aligned(&[], &[told("go")]), [Stretch::OnlyB(0)]);
    }

    /// Every message is told once, in its order.
    #[test]
    fn no_message_is_lost() {
        let texts = ["a b c", "a b d", "x", "y z", "a b c"];
        let mut state = 7_u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        for _ in 0..500 {
            let mut side = || -> Vec<Said<'_>> {
                let count = draw() % 7;
                (0..count)
                    .map(|_| Said { is_answer: draw() % 2 == 0, text: texts[draw() % 5] })
                    .collect()
            };
            let (a, b) = (side(), side());
            let (mut in_a, mut in_b) = (Vec::new(), Vec::new());
            for stretch in aligned(&a, &b) {
                match stretch {
                    Stretch::Same { a: from, b: other, len } => {
                        assert_eq!(a[from..from + len], b[other..other + len]);
                        in_a.extend(from..from + len);
                        in_b.extend(other..other + len);
                    }
                    Stretch::Changed { a, b } => {
                        in_a.push(a);
                        in_b.push(b);
                    }
                    Stretch::OnlyA(at) => in_a.push(at),
                    Stretch::OnlyB(at) => in_b.push(at),
                }
            }
            assert_eq!(in_a, (0..a.len()).collect::<Vec<_>>());
            assert_eq!(in_b, (0..b.len()).collect::<Vec<_>>());
        }
    }
}
