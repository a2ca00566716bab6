//! One row: what stands in its columns, before it is an array.

use std::collections::BTreeSet;

use crate::notes::Reason;
use crate::rewards::groups::GroupSummary;
use crate::rows::messages::{Dialogue, Message};
use crate::rows::sides::Sides;

/// Bytes of one token over all token columns.
const TOKEN_BYTES: usize = 4 + 1 + 4 + 4;
/// Bytes of the reward of one token.
const REWARD_BYTES: usize = 16;
/// Bytes of one message or turn beside its texts, roughly.
const MESSAGE_BYTES: usize = 128;
/// Bytes of one row beside its lists, roughly.
const ROW_BYTES: usize = 512;

/// One row of the `trajectories` file, a field a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) episode_id: String,
    pub(crate) attempt: i32,
    pub(crate) trajectory_id: String,
    pub(crate) trajectory_index: i32,
    pub(crate) num_trajectories: i32,
    pub(crate) parent_trajectory_id: Option<String>,
    pub(crate) fork_position: Option<i32>,
    pub(crate) kind: &'static str,
    pub(crate) kind_reason: &'static str,
    pub(crate) group_id: Option<String>,
    pub(crate) task_id: Option<String>,
    pub(crate) model: String,
    pub(crate) tokenizer_fingerprint: String,
    pub(crate) tokens: Tokens,
    pub(crate) logprob_kind: String,
    pub(crate) prompt_len: i32,
    pub(crate) turns: Vec<TurnRow>,
    pub(crate) mixed_versions: Option<bool>,
    pub(crate) staleness: Option<i64>,
    pub(crate) reward: Option<f64>,
    pub(crate) trajectory_reward: Option<f64>,
    pub(crate) token_rewards: Option<Vec<Option<f64>>>,
    pub(crate) advantage: Option<f64>,
    pub(crate) group: Option<GroupSummary>,
    pub(crate) rewards: String,
    pub(crate) row_weight: f64,
    pub(crate) fidelity: Option<&'static str>,
    pub(crate) verdict: &'static str,
    pub(crate) episode_verdict: &'static str,
    pub(crate) reasons: BTreeSet<Reason>,
    pub(crate) status: String,
    pub(crate) dialogue: Dialogue,
    pub(crate) metadata: String,
    pub(crate) sides: Sides,
}

/// The token columns of a row; all of one length.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tokens {
    pub(crate) input_ids: Vec<i32>,
    pub(crate) loss_mask: Vec<i8>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) versions: Vec<i32>,
    /// Versions between which trained tokens lie whose own are not known.
    pub(crate) changed: Vec<i64>,
}

impl Tokens {
    /// Known policy versions of trained tokens; where only two are known between which they lie,
    /// both.
    pub(crate) fn trained_versions(&self) -> impl Iterator<Item = i64> + '_ {
        let both = self.loss_mask.iter().zip(&self.versions);
        let known = both.filter(|(mask, version)| **mask == 1 && **version >= 0);
        known.map(|(_, version)| i64::from(*version)).chain(self.changed.iter().copied())
    }

    /// Number of trained tokens.
    pub(crate) fn trained(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m == 1).count()
    }
}

/// One element of the column `turns`, and what formats of messages read beside it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TurnRow {
    pub(crate) call_id: String,
    pub(crate) choice: i32,
    pub(crate) start: i32,
    pub(crate) end: i32,
    pub(crate) finish_reason: Option<String>,
    pub(crate) version_start: Option<i64>,
    pub(crate) version_end: Option<i64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) reward: Option<f64>,
    pub(crate) continued: Option<bool>,
    pub(crate) mc_return: Option<f64>,
    pub(crate) model: String,
    /// Whether its tokens are trained in this row and in no other, as far as they may be trained.
    pub(crate) own: bool,
    /// Whether the reply was whole.
    pub(crate) complete: bool,
    /// Its message in the prompt and, behind that, the completion; none where it is no message
    /// there, or nobody asked.
    pub(crate) message: Option<usize>,
}

impl Row {
    /// The assistant's messages, by their places in the prompt and, behind that, the completion.
    pub(crate) fn answers(&self) -> Vec<usize> {
        let messages = self.dialogue.prompt.iter().chain(&self.dialogue.completion);
        let answers = messages.enumerate().filter(|(_, message)| message.role == "assistant");
        answers.map(|(at, _)| at).collect()
    }

    /// Number of tokens of a turn that are trained in this row.
    pub(crate) fn trained_of(&self, turn: &TurnRow) -> usize {
        let span = turn.start.max(0) as usize..turn.end.max(0) as usize;
        let mask = self.tokens.loss_mask.get(span).unwrap_or_default();
        mask.iter().filter(|mask| **mask == 1).count()
    }

    /// About how many bytes the row takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let message = |m: &Message| {
            let texts = [&m.content, &m.name, &m.tool_call_id, &m.reasoning];
            let texts =
                texts.into_iter().flatten().chain(m.tool_calls.iter().flatten()).map(String::len);
            MESSAGE_BYTES + texts.sum::<usize>()
        };
        let dialogue = self.dialogue.prompt.iter().chain(&self.dialogue.completion);
        let texts = self.dialogue.tools.iter().chain([&self.rewards, &self.metadata]);
        ROW_BYTES
            + self.tokens.input_ids.len() * TOKEN_BYTES
            + self.turns.len() * MESSAGE_BYTES
            + dialogue.map(message).sum::<usize>()
            + texts.map(String::len).sum::<usize>()
            + self.token_rewards.as_ref().map_or(0, |rewards| rewards.len() * REWARD_BYTES)
            + self.sides.bytes()
    }
}
