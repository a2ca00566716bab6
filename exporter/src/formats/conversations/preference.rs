//! `preference`: a better and a worse answer to one prompt, as TRL's DPOTrainer reads them.

use crate::formats::table::{Getter, RecordColumn};
use crate::rows::messages::RowMessage;
use crate::rows::row::TurnRow;

/// A better and a worse answer.
#[derive(Debug, Clone)]
pub(crate) struct PreferencePair {
    pub(crate) prompt: Vec<RowMessage>,
    pub(crate) chosen: PairSide,
    pub(crate) rejected: PairSide,
    pub(crate) tools: Vec<String>,
    /// Permission to make several calls in one answer, where the agent gave or denied it.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// `group` or `choices`: the comparison that the pair comes from.
    pub(crate) source: &'static str,
    pub(crate) group_id: Option<String>,
    pub(crate) model: String,
    /// The turns that its two sides hold.
    pub(crate) turns: Vec<TurnKey>,
}

/// One side of a pair.
#[derive(Debug, Clone)]
pub(crate) struct PairSide {
    pub(crate) messages: Vec<RowMessage>,
    pub(crate) score: Option<f64>,
    pub(crate) trajectory_id: String,
}

impl PairSide {
    /// Returns true for one message of the assistant.
    pub(crate) fn is_one_answer(&self) -> bool {
        matches!(self.messages.as_slice(), [only] if only.role == "assistant")
    }
}

/// Identity of a turn: a choice of a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnKey {
    call_id: String,
    choice: i32,
}

impl TurnKey {
    pub(crate) fn of(turn: &TurnRow) -> Self {
        Self { call_id: turn.call_id.clone(), choice: turn.choice }
    }
}

pub(crate) const COLUMNS: &[RecordColumn<PreferencePair>] = &[
    RecordColumn::new("prompt", Getter::Messages(|p| Some(p.prompt.clone()))),
    RecordColumn::new("chosen", Getter::Messages(|p| Some(p.chosen.messages.clone()))),
    RecordColumn::new("rejected", Getter::Messages(|p| Some(p.rejected.messages.clone()))),
    RecordColumn::new("tools", Getter::Jsons(|p| Some(p.tools.clone()))),
    RecordColumn::optional("score_chosen", Getter::Float(|p| p.chosen.score)),
    RecordColumn::optional("score_rejected", Getter::Float(|p| p.rejected.score)),
    RecordColumn::new("source", Getter::Text(|p| Some(p.source.to_owned()))),
    RecordColumn::optional("group_id", Getter::Text(|p| p.group_id.clone())),
    RecordColumn::new("model", Getter::Text(|p| Some(p.model.clone()))),
    RecordColumn::new(
        "chosen_trajectory_id",
        Getter::Text(|p| Some(p.chosen.trajectory_id.clone())),
    ),
    RecordColumn::new(
        "rejected_trajectory_id",
        Getter::Text(|p| Some(p.rejected.trajectory_id.clone())),
    ),
];
