//! Samples: rows with their numbers in the export, as the formats of trainers read them.

use std::ops::Range;

use serde_json::{Value, json};

use crate::input::plan::{AttemptNumbers, comparison_key, key_of_set};
use crate::rows::messages::RowMessage;
use crate::rows::row::{Row, TurnRow};
use crate::rows::scores::RowScores;

/// One training sample: a row, or the part of a row that trains some of its messages.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) row: Row,
    pub(crate) numbers: AttemptNumbers,
    /// Number of the sample in its export. No two have the same.
    pub(crate) index: i64,
    /// Number of the sample in its attempt, from 0.
    pub(crate) index_in_attempt: i64,
    /// True where its reward is above the limit of good ones.
    pub(crate) is_good: bool,
    /// True for the last sample of its attempt.
    pub(crate) is_last: bool,
    /// Messages that it trains, by their positions in the whole conversation.
    pub(crate) trained_messages: Vec<usize>,
    pub(super) span: MessageSpan,
}

/// The messages of a row that a sample is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageSpan {
    /// Position of the first message that it may train.
    pub(crate) first_trained: usize,
    /// End of its conversation, exclusive.
    pub(crate) end: usize,
}

impl MessageSpan {
    /// Returns the span of all messages of a row.
    pub(crate) fn whole(row: &Row) -> Self {
        Self { first_trained: 0, end: row.messages().count() }
    }
}

impl Sample {
    /// Makes the part of a row that trains these messages. Its indices, and whether it is good and
    /// the last one, are set later.
    pub(crate) fn new(
        row: Row,
        numbers: AttemptNumbers,
        span: MessageSpan,
        trained_messages: Vec<usize>,
    ) -> Self {
        Self {
            row,
            numbers,
            index: 0,
            index_in_attempt: 0,
            is_good: false,
            is_last: false,
            trained_messages,
            span,
        }
    }

    /// Returns the conversation, up to the last message that it may train.
    pub(crate) fn messages(&self) -> Vec<RowMessage> {
        self.row.messages().take(self.span.end).cloned().collect()
    }

    /// Returns the messages before the first that it may train.
    pub(crate) fn prompt_messages(&self) -> Vec<RowMessage> {
        self.row.messages().take(self.span.first_trained).cloned().collect()
    }

    /// Returns the messages from the first that it may train on.
    pub(crate) fn completion_messages(&self) -> Vec<RowMessage> {
        self.messages().drain(self.span.first_trained..).collect()
    }

    /// Returns the scores of the model that it is trained towards: those of the first folder that
    /// has some.
    pub(crate) fn teacher(&self) -> Option<&RowScores> {
        self.row.scores.first()
    }

    /// Returns the number of tokens of the first prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        usize::try_from(self.row.prompt_len).unwrap_or(0).min(self.row.tokens.input_ids.len())
    }

    pub(crate) fn prompt_ids(&self) -> Vec<i32> {
        self.row.tokens.input_ids[..self.prompt_len()].to_vec()
    }

    /// Returns all ids behind the first prompt, tool results included.
    pub(crate) fn completion_ids(&self) -> Vec<i32> {
        self.row.tokens.input_ids[self.prompt_len()..].to_vec()
    }

    pub(crate) fn completion_mask(&self) -> Vec<i8> {
        self.row.tokens.loss_mask[self.prompt_len()..].to_vec()
    }

    pub(crate) fn completion_logprobs(&self) -> Vec<f32> {
        self.row.tokens.logprobs[self.prompt_len()..].to_vec()
    }

    /// Returns `trained` for each token that is trained and `other` for all others.
    pub(crate) fn by_mask(&self, trained: f32, other: f32) -> Vec<f32> {
        let masks = self.row.tokens.loss_mask.iter();
        masks.map(|mask| if *mask == 1 { trained } else { other }).collect()
    }

    /// Returns the advantage on trained tokens, and 0 on all others; none unless it was asked for.
    pub(crate) fn token_advantages(&self) -> Option<Vec<f32>> {
        self.row.advantage.map(|advantage| self.by_mask(advantage as f32, 0.0))
    }

    /// Returns a reward for each token behind the first prompt: those of calls and tokens where
    /// they fall, and that of the path, or the episode's, on the last one. Gives none where no
    /// reward falls on a call or a token.
    pub(crate) fn completion_rewards(&self) -> Option<Vec<f32>> {
        let given = self.row.token_rewards.as_ref()?;
        let mut rewards: Vec<f64> =
            given[self.prompt_len()..].iter().map(|reward| reward.unwrap_or_default()).collect();
        if let Some(last) = rewards.last_mut() {
            *last += self.row.trajectory_reward.or(self.row.reward).unwrap_or_default();
        }
        Some(rewards.into_iter().map(|reward| reward as f32).collect())
    }

    /// Returns the trained parts of the turns, in order. The tokens of a part are neighbors.
    pub(crate) fn trained_runs(&self) -> impl Iterator<Item = (&TurnRow, Range<usize>)> {
        self.row.turns.iter().flat_map(move |turn| {
            let masks = self.row.tokens.loss_mask.get(turn.span()).unwrap_or_default();
            let mut start = turn.span().start;
            masks.chunk_by(|a, b| a == b).filter_map(move |part| {
                let run = start..start + part.len();
                start = run.end;
                (part[0] == 1).then_some((turn, run))
            })
        })
    }

    /// Returns the temperature that each token was sampled with; 1 where none was sampled or named.
    pub(crate) fn temperatures(&self) -> Vec<f32> {
        let mut temperatures = vec![1.0; self.row.tokens.input_ids.len()];
        for turn in &self.row.turns {
            let part = temperatures.get_mut(turn.span());
            if let Some((temperature, part)) = turn.temperature.zip(part) {
                part.fill(temperature as f32);
            }
        }
        temperatures
    }

    /// Returns for each message of the conversation the turn that sampled it, if one did.
    pub(crate) fn turns_of_messages(&self) -> Vec<Option<&TurnRow>> {
        let mut turns = vec![None; self.span.end];
        for turn in &self.row.turns {
            if let Some(entry) = turn.message.and_then(|at| turns.get_mut(at)) {
                *entry = Some(turn);
            }
        }
        turns
    }

    /// Returns for each message of the completion the turn that sampled it, if one did.
    pub(crate) fn turns_of_completion(&self) -> Vec<Option<&TurnRow>> {
        self.turns_of_messages().drain(self.row.dialogue.prompt.len()..).collect()
    }

    /// Returns the messages before a turn's answer, and the answer; nothing where that is not
    /// known.
    pub(crate) fn messages_of_turn(
        &self,
        turn: &TurnRow,
    ) -> (Vec<&RowMessage>, Option<&RowMessage>) {
        let dialogue = &self.row.dialogue;
        let turns = self.turns_of_completion();
        let Some(at) = turns.iter().position(|of_message| *of_message == Some(turn)) else {
            return (Vec::new(), None);
        };
        let before = dialogue.prompt.iter().chain(&dialogue.completion[..at]);
        (before.collect(), Some(&dialogue.completion[at]))
    }

    /// Returns the server's finish reason of the last reply.
    pub(crate) fn finish_reason(&self) -> Option<String> {
        self.row.turns.last().and_then(|turn| turn.finish_reason.clone())
    }

    /// Returns the name of what its reward is compared with: `g/` and the group (with the number of
    /// the set, where its name was used again), or `e/` and the episode where it has none.
    pub(crate) fn comparison_key(&self) -> String {
        let key = comparison_key(self.row.group_id.as_deref(), &self.row.episode_id);
        key_of_set(key, self.numbers.set)
    }

    /// Returns what a trainer may want to know of a row and has no field for.
    pub(crate) fn metadata(&self) -> Value {
        let row = &self.row;
        json!({
            "episode_id": row.episode_id,
            "attempt": row.attempt,
            "trajectory_id": row.trajectory_id,
            "kind": row.kind,
            "group_id": row.group_id,
            "task_id": row.task_id,
            "model": row.model,
            "row_weight": row.row_weight,
            "policy_version_min": row.tokens.trained_versions().min(),
            "policy_version_max": row.tokens.trained_versions().max(),
            "verdict": row.verdict,
        })
    }
}
