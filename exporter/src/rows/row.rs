//! One row: the values of its columns, before they are arrays.

use std::collections::BTreeSet;
use std::ops::Range;

use episode::Micros;

use crate::notes::Reason;
use crate::rewards::groups::GroupSummary;
use crate::rows::annotations::TokenStream;
use crate::rows::dialogue::Dialogue;
use crate::rows::messages::RowMessage;
use crate::rows::scores::RowScores;
use crate::rows::token_data::TokenData;

/// Bytes of one token over all token columns.
const TOKEN_BYTES: usize = 4 + 1 + 4 + 4;
/// Bytes of the reward of one token.
const REWARD_BYTES: usize = 16;
/// Approximate bytes of one message or turn, without its texts.
const MESSAGE_BYTES: usize = 128;
/// Approximate bytes of one row, without its lists.
const ROW_BYTES: usize = 512;

/// One row of the `trajectories` file. The fields are described with its columns
/// ([`crate::COLUMNS`]).
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
    pub(crate) kv_cache: Option<String>,
    pub(crate) prompt_len: i32,
    pub(crate) turns: Vec<TurnRow>,
    pub(crate) mixed_versions: Option<bool>,
    pub(crate) staleness: Option<i64>,
    pub(crate) reward: Option<f64>,
    pub(crate) trajectory_reward: Option<f64>,
    pub(crate) token_rewards: Option<Vec<Option<f64>>>,
    /// True where the path, or the episode of a path without a reward of its own, was given null.
    pub(crate) is_unscorable: bool,
    pub(crate) advantage: Option<f64>,
    pub(crate) group: Option<GroupSummary>,
    pub(crate) rewards: String,
    pub(crate) row_weight: f64,
    pub(crate) fidelity: Option<&'static str>,
    pub(crate) verdict: &'static str,
    pub(crate) episode_verdict: &'static str,
    pub(crate) reasons: BTreeSet<Reason>,
    pub(crate) status: String,
    /// Time at which the attempt was closed.
    pub(crate) closed_at: Option<Micros>,
    pub(crate) dialogue: Dialogue,
    pub(crate) metadata: String,
    pub(crate) token_data: TokenData,
    pub(crate) annotations: Vec<TokenStream>,
    /// Scores under other models, in the order in which their folders were named.
    pub(crate) scores: Vec<RowScores>,
}

/// The token columns of a row. All have one length.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tokens {
    pub(crate) input_ids: Vec<i32>,
    pub(crate) loss_mask: Vec<i8>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) versions: Vec<i32>,
    /// Versions before and after version changes during trained turns, whose tokens have no version
    /// of their own.
    pub(crate) changed: Vec<i64>,
}

impl Tokens {
    /// Returns the known policy versions of trained tokens. Of a token during a version change it
    /// gives the versions before and after.
    pub(crate) fn trained_versions(&self) -> impl Iterator<Item = i64> + '_ {
        let both = self.loss_mask.iter().zip(&self.versions);
        let known = both.filter(|(mask, version)| **mask == 1 && **version >= 0);
        known.map(|(_, version)| i64::from(*version)).chain(self.changed.iter().copied())
    }

    /// Returns the lowest and the highest of [`Self::trained_versions`].
    pub(crate) fn trained_version_bounds(&self) -> Option<(i64, i64)> {
        // Without a branch, so that it compiles to vector instructions.
        let both = self.loss_mask.iter().zip(&self.versions);
        let of_tokens = both.fold((i32::MAX, -1), |(least, most), (mask, version)| {
            let known = if *mask == 1 { *version } else { -1 };
            (least.min(if known < 0 { i32::MAX } else { known }), most.max(known))
        });
        let (least, most) = (i64::from(of_tokens.0), i64::from(of_tokens.1));
        let known = (most >= 0).then_some([least, most]).into_iter().flatten();
        let all = known.chain(self.changed.iter().copied());
        all.clone().min().zip(all.max())
    }

    /// Counts the trained tokens.
    pub(crate) fn trained(&self) -> usize {
        self.loss_mask.iter().filter(|mask| **mask == 1).count()
    }
}

/// One element of the column `turns`, with values that formats of messages read beside it.
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
    /// True where its trainable tokens are trained in this row and in no other.
    pub(crate) own: bool,
    /// True where the reply ended as it should.
    pub(crate) complete: bool,
    /// Position of its message in the prompt followed by the completion; none where it is no
    /// message there by itself.
    pub(crate) message: Option<usize>,
}

/// Finish reasons of replies that ended at a limit, in the words of all wires.
const LIMITS: [&str; 4] =
    ["length", "max_output_tokens", "max_tokens", "model_context_window_exceeded"];

/// Returns true where a reply with this finish reason ended at a limit.
pub(crate) fn is_limit(finish_reason: Option<&str>) -> bool {
    finish_reason.is_some_and(|reason| LIMITS.contains(&reason))
}

impl TurnRow {
    /// Returns the positions of its sampled tokens in the row.
    pub(crate) fn span(&self) -> Range<usize> {
        self.start.max(0) as usize..self.end.max(0) as usize
    }
}

impl Row {
    /// Returns the messages of the prompt followed by the completion.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &RowMessage> {
        self.dialogue.prompt.iter().chain(&self.dialogue.completion)
    }

    /// Returns the positions of the assistant's messages in the prompt followed by the completion.
    pub(crate) fn answers(&self) -> Vec<usize> {
        let answers = self.messages().enumerate().filter(|(_, m)| m.role == "assistant");
        answers.map(|(at, _)| at).collect()
    }

    /// Returns true where the server aborted the last reply.
    pub(crate) fn is_aborted(&self) -> bool {
        self.turns.last().is_some_and(|turn| turn.finish_reason.as_deref() == Some("abort"))
    }

    /// Returns the reward of the path: its own, else the episode's, else the sum of those that fall
    /// on its calls and tokens. A null that was given is none of these.
    pub(crate) fn score(&self) -> Option<f64> {
        if self.is_unscorable {
            return None;
        }
        let of_tokens = || {
            let mut known = self.token_rewards.iter().flatten().flatten().peekable();
            known.peek().is_some().then(|| known.sum())
        };
        self.trajectory_reward.or(self.reward).or_else(of_tokens)
    }

    /// Counts the tokens of a turn that are trained in this row.
    pub(crate) fn trained_of(&self, turn: &TurnRow) -> usize {
        let masks = self.tokens.loss_mask.get(turn.span()).unwrap_or_default();
        masks.iter().filter(|mask| **mask == 1).count()
    }

    /// Estimates the bytes that the row takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let messages: usize = self.messages().map(message_bytes).sum();
        let texts = self.dialogue.tools.iter().chain([&self.rewards, &self.metadata]);
        ROW_BYTES
            + self.tokens.input_ids.len() * TOKEN_BYTES
            + self.turns.len() * MESSAGE_BYTES
            + messages
            + texts.map(String::len).sum::<usize>()
            + self.token_rewards.as_ref().map_or(0, |rewards| rewards.len() * REWARD_BYTES)
            + self.token_data.bytes()
            + self.scores.iter().map(RowScores::bytes).sum::<usize>()
    }
}

fn message_bytes(message: &RowMessage) -> usize {
    let RowMessage { content, name, tool_call_id, reasoning, tool_calls, .. } = message;
    let texts = [content, name, tool_call_id, reasoning].into_iter().flatten();
    MESSAGE_BYTES + texts.chain(tool_calls.iter().flatten()).map(String::len).sum::<usize>()
}
