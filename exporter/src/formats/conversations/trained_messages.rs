//! Finds the turns of a row that a format of messages trains, and counts the others.
//!
//! The loss mask decides. A message stands for a whole turn, so some trained turns cannot be
//! expressed: those whose message is not known, whose answer was cut off, or of which only some
//! tokens are trained.

use crate::formats::sample::MessageSpan;
use crate::notes::{Omission, Omissions};
use crate::options::format::MessageTraining;
use crate::rows::row::{Row, TurnRow};

/// Finish reasons of replies that left their answer unfinished, in the words of all wires.
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

/// The messages that a row trains.
pub(crate) struct TrainedMessages {
    /// Positions of the messages, in order.
    pub(crate) messages: Vec<usize>,
    /// Trained turns that these messages do not express.
    pub(crate) omissions: Omissions,
}

/// Finds the messages that a row trains.
pub(crate) fn trained_messages(training: MessageTraining, row: &Row) -> TrainedMessages {
    let mut found = TrainedMessages { messages: Vec::new(), omissions: Omissions::new() };
    if training == MessageTraining::Tokens {
        return found;
    }
    for turn in &row.turns {
        match trained_message(training, row, turn) {
            Ok(message) => found.messages.extend(message),
            Err(reason) => {
                let trained_tokens = row.trained_of(turn) as u64;
                let omission = Omission { count: 1, trained_tokens };
                found.omissions.entry(reason).or_default().add(omission);
            }
        }
    }
    found
}

/// Returns the message of a trained turn, none for a turn that is not trained, or the reason why
/// the message of a trained turn cannot be.
fn trained_message(
    training: MessageTraining,
    row: &Row,
    turn: &TurnRow,
) -> Result<Option<usize>, &'static str> {
    let tokens = row.trained_of(turn);
    // Without ids there is no mask. A complete answer is all that is known.
    let is_whole_text =
        row.fidelity.is_none() && turn.complete && training != MessageTraining::Choices;
    if !turn.own || !(tokens > 0 || is_whole_text) {
        return Ok(None);
    }

    let is_by_text = matches!(training, MessageTraining::Texts | MessageTraining::Stretches);
    if turn.message.is_none() {
        return Err("turns_without_a_message");
    }
    if is_by_text && is_cut_off(turn) {
        return Err("turns_cut_off");
    }
    let sampled = (turn.end - turn.start).max(0) as usize;
    if training == MessageTraining::Choices && tokens < sampled {
        return Err("turns_trained_in_part");
    }
    Ok(turn.message)
}

/// Returns true where the answer of a turn ended before it was finished.
pub(crate) fn is_cut_off(turn: &TurnRow) -> bool {
    turn.finish_reason.as_deref().is_some_and(|reason| CUT_OFF.contains(&reason)) || !turn.complete
}

/// Returns the stretches of a conversation whose answers are all trained. `answers` are the
/// positions of all messages of the assistant.
pub(crate) fn stretches(answers: &[usize], trained: &[usize]) -> Vec<MessageSpan> {
    let runs = answers.chunk_by(|a, b| trained.contains(a) == trained.contains(b));
    let trained_runs = runs.filter(|run| trained.contains(&run[0]));
    trained_runs
        .map(|run| MessageSpan { first_trained: run[0], end: run[run.len() - 1] + 1 })
        .collect()
}

#[cfg(test)]
mod tests {
    use episode::{Call, Outcome};
    use serde_json::json;

    use super::*;
    use crate::tests::fixture::{call, episode, reply, rows_of, with_bodies};

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

    fn of(training: MessageTraining, row: &Row) -> (Vec<usize>, Vec<(&'static str, u64)>) {
        let TrainedMessages { messages, omissions } = trained_messages(training, row);
        let omitted = omissions.into_iter().map(|(reason, one)| (reason, one.trained_tokens));
        (messages, omitted.collect())
    }

    #[test]
    fn a_whole_row_is_taught_whole() {
        let row = row(|_| {});
        for teaching in [
            MessageTraining::Shown,
            MessageTraining::Texts,
            MessageTraining::Stretches,
            MessageTraining::Choices,
        ] {
            assert_eq!(of(teaching, &row), (vec![1, 3, 5], vec![]));
        }
        assert_eq!(of(MessageTraining::Tokens, &row), (vec![], vec![]));
    }

    #[test]
    fn what_is_not_trained_is_not_taught_and_not_counted() {
        let row = row(|calls| reply(&mut calls[1]).outcome = Outcome::ClientGone);
        assert_eq!(of(MessageTraining::Texts, &row), (vec![1, 5], vec![]));
        assert_eq!(of(MessageTraining::Choices, &row), (vec![1, 5], vec![]));
    }

    #[test]
    fn a_text_that_a_recording_gave_is_taught_where_it_was_recorded() {
        let text_only = |given: bool| {
            row(move |calls| {
                for call in calls.iter_mut() {
                    let ended = reply(call);
                    ended.prompts.clear();
                    (ended.choices[0].token_ids, ended.choices[0].logprobs) = (None, Vec::new());
                }
                reply(&mut calls[0]).replayed = given.then_some(calls[0].begun.call_id);
            })
        };
        assert_eq!(of(MessageTraining::Texts, &text_only(false)).0, [1, 3, 5]);
        assert_eq!(of(MessageTraining::Texts, &text_only(true)).0, [3, 5]);
    }

    #[test]
    fn an_answer_that_was_cut_off_is_no_text_to_learn() {
        let row = row(|calls| {
            reply(&mut calls[2]).choices[0].finish_reason = Some("length".to_owned());
        });
        assert_eq!(of(MessageTraining::Texts, &row), (vec![1, 3], vec![("turns_cut_off", 2)]));
        assert_eq!(of(MessageTraining::Choices, &row), (vec![1, 3, 5], vec![]));
    }

    #[test]
    fn a_choice_that_lacks_a_logprob_is_not_trained_whole() {
        let row = row(|calls| reply(&mut calls[0]).choices[0].logprobs[1] = f32::NAN);
        assert_eq!(
            of(MessageTraining::Choices, &row),
            (vec![3, 5], vec![("turns_trained_in_part", 1)])
        );
        assert_eq!(of(MessageTraining::Texts, &row), (vec![1, 3, 5], vec![]));
    }

    #[test]
    fn a_turn_that_is_no_message_is_counted() {
        let row = row(|calls| calls[2].begun.request = b"{}"[..].into());
        let (messages, left) = of(MessageTraining::Texts, &row);
        assert_eq!((messages.len(), left), (1, vec![("turns_without_a_message", 4)]));
    }

    fn spans(answers: &[usize], trained: &[usize]) -> Vec<(usize, usize)> {
        let stretches = stretches(answers, trained).into_iter();
        stretches.map(|span| (span.first_trained, span.end)).collect()
    }

    #[test]
    fn a_message_that_the_agent_wrote_is_between_two_stretches() {
        assert_eq!(spans(&[1, 3, 5], &[1, 3, 5]), [(1, 6)]);
        assert_eq!(spans(&[1, 3, 5], &[1, 5]), [(1, 2), (5, 6)]);
        assert_eq!(spans(&[1, 2, 4], &[2, 4]), [(2, 5)]);
        assert_eq!(spans(&[1], &[]), []);
    }
}
