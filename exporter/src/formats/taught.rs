//! Taught: which turns of a row a format of messages trains, and how the others are counted.
//!
//! The loss mask decides. A message stands for a turn as a whole, so that a turn whose message is
//! not known, whose answer was cut off, or of which only some tokens are trained may be one that
//! the format cannot say.

use crate::notes::{Left, Lefts};
use crate::rows::{Row, TurnRow};

/// Ends of a reply that left its answer unfinished, in the words of all wires.
const CUT_OFF: [&str; 8] = [
    "abort",
    "content_filter",
    "error",
    "incomplete",
    "length",
    "max_output_tokens",
    "max_tokens",
    "model_context_window_exceeded",
];

/// What a format makes of the turns of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Teaching {
    /// It has their tokens, and the mask.
    Tokens,
    /// It shows their messages, each with its own tokens.
    Shown,
    /// Their texts are trained, each message with a mark of its own. An answer that was cut off is
    /// none to learn: a trainer would end it as if it were finished.
    Texts,
    /// The same, but all answers behind the first are trained: a row becomes a record for each
    /// stretch of answers that are.
    Stretches,
    /// All their tokens are trained.
    Choices,
}

/// The messages that a row trains, in order, and what of its trained tokens they do not hold.
pub(crate) fn taught(teaching: Teaching, row: &Row) -> (Vec<usize>, Lefts) {
    let (mut messages, mut left) = (Vec::new(), Lefts::new());
    if teaching == Teaching::Tokens {
        return (messages, left);
    }
    for turn in &row.turns {
        let tokens = row.trained_of(turn);
        match fate(teaching, row, turn, tokens) {
            Ok(message) => messages.extend(message),
            Err(why) => {
                let one = Left { count: 1, trained_tokens: tokens as u64 };
                left.entry(why).or_default().add(one);
            }
        }
    }
    (messages, left)
}

/// The message of a turn that is trained, nothing for one that is not to be, or why one that is
/// cannot be.
fn fate(
    teaching: Teaching,
    row: &Row,
    turn: &TurnRow,
    tokens: usize,
) -> Result<Option<usize>, &'static str> {
    // Without ids nothing is masked: what was answered whole is all that is known.
    let is_known = row.fidelity.is_none() && turn.complete && teaching != Teaching::Choices;
    let is_trained = tokens > 0 || is_known;
    if !turn.own || !is_trained {
        return Ok(None);
    }
    let sampled = (turn.end - turn.start).max(0) as usize;
    let of_texts = matches!(teaching, Teaching::Texts | Teaching::Stretches);
    if turn.message.is_none() {
        return Err("turns_without_a_message");
    }
    if of_texts && is_cut_off(turn) {
        return Err("turns_cut_off");
    }
    if teaching == Teaching::Choices && tokens < sampled {
        return Err("turns_trained_in_part");
    }
    Ok(turn.message)
}

/// Whether the answer of a turn ended before it was finished.
pub(crate) fn is_cut_off(turn: &TurnRow) -> bool {
    turn.finish_reason.as_deref().is_some_and(|why| CUT_OFF.contains(&why)) || !turn.complete
}

/// The stretches of a conversation whose answers are all trained: for each the first message that
/// is, and the end of the last. `answers` are all messages of the assistant.
pub(crate) fn stretches(answers: &[usize], taught: &[usize]) -> Vec<(usize, usize)> {
    let mut stretches: Vec<(usize, usize)> = Vec::new();
    let mut goes_on = false;
    for answer in answers {
        let is_taught = taught.contains(answer);
        match stretches.last_mut() {
            Some(last) if is_taught && goes_on => last.1 = answer + 1,
            _ if is_taught => stretches.push((*answer, answer + 1)),
            _ => {}
        }
        goes_on = is_taught;
    }
    stretches
}

#[cfg(test)]
mod tests {
    use episode::{Call, Outcome};
    use serde_json::json;

    use super::*;
    use crate::fixture::{call, episode, reply, rows_of, with_bodies};

    /// Three turns of two tokens each, changed before they are made into rows.
    fn row(change: impl Fn(&mut [Call; 3])) -> Row {
        let word = |role: &str, text: &str| json!({ "role": role, "content": text });
        let talk = ["a", "b", "c", "d", "e"].into_iter().zip(["user", "assistant"].iter().cycle());
        let talk: Vec<_> = talk.map(|(text, role)| word(role, text)).collect();
        let mut calls = [
            with_bodies(call(1, &[1], &[&[2, 2]]), &talk[..1], "b"),
            with_bodies(call(2, &[1, 2, 2, 3], &[&[4, 4]]), &talk[..3], "d"),
            with_bodies(call(3, &[1, 2, 2, 3, 4, 4, 5], &[&[6, 6]]), &talk, "f"),
        ];
        change(&mut calls);
        let mut rows = rows_of(&episode(calls.to_vec()));
        assert_eq!(rows.len(), 1);
        rows.remove(0)
    }

    fn of(teaching: Teaching, row: &Row) -> (Vec<usize>, Vec<(&'static str, u64)>) {
        let (messages, left) = taught(teaching, row);
        (messages, left.into_iter().map(|(why, left)| (why, left.trained_tokens)).collect())
    }

    #[test]
    fn a_whole_row_is_taught_whole() {
        let row = row(|_| {});
        for teaching in [Teaching::Shown, Teaching::Texts, Teaching::Stretches, Teaching::Choices] {
            assert_eq!(of(teaching, &row), (vec![1, 3, 5], vec![]));
        }
        assert_eq!(of(Teaching::Tokens, &row), (vec![], vec![]));
    }

    #[test]
    fn what_is_not_trained_is_not_taught_and_not_counted() {
        let row = row(|calls| reply(&mut calls[1]).outcome = Outcome::ClientGone);
        assert_eq!(of(Teaching::Texts, &row), (vec![1, 5], vec![]));
        assert_eq!(of(Teaching::Choices, &row), (vec![1, 5], vec![]));
    }

    #[test]
    fn an_answer_that_was_cut_off_is_no_text_to_learn() {
        let row = row(|calls| {
            reply(&mut calls[2]).choices[0].finish_reason = Some("length".to_owned());
        });
        assert_eq!(of(Teaching::Texts, &row), (vec![1, 3], vec![("turns_cut_off", 2)]));
        assert_eq!(of(Teaching::Choices, &row), (vec![1, 3, 5], vec![]));
    }

    #[test]
    fn a_choice_of_which_a_token_has_no_logprob_is_not_trained_whole() {
        let row = row(|calls| reply(&mut calls[0]).choices[0].logprobs[1] = f32::NAN);
        assert_eq!(of(Teaching::Choices, &row), (vec![3, 5], vec![("turns_trained_in_part", 1)]));
        assert_eq!(of(Teaching::Texts, &row), (vec![1, 3, 5], vec![]));
    }

    #[test]
    fn a_turn_that_is_no_message_is_counted() {
        let row = row(|calls| calls[2].begun.request = b"{}"[..].into());
        let (messages, left) = of(Teaching::Texts, &row);
        assert_eq!((messages.len(), left), (1, vec![("turns_without_a_message", 4)]));
    }

    #[test]
    fn a_message_that_the_agent_wrote_is_between_two_stretches() {
        assert_eq!(stretches(&[1, 3, 5], &[1, 3, 5]), [(1, 6)]);
        assert_eq!(stretches(&[1, 3, 5], &[1, 5]), [(1, 2), (5, 6)]);
        assert_eq!(stretches(&[1, 2, 4], &[2, 4]), [(2, 5)]);
        assert_eq!(stretches(&[1], &[]), []);
    }
}
