//! `sft`: conversations, as TRL's SFTTrainer and others read them.
//!
//! `prompt` and `completion` together are `messages`; every answer of the completion is trained.

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("messages", Of::Messages(|s| Some(s.messages()))),
    Column::new("prompt", Of::Messages(|s| Some(s.given()))),
    Column::new("completion", Of::Messages(|s| Some(s.said()))),
    Column::new("tools", Of::Jsons(|s| Some(s.row.dialogue.tools.clone()))),
    Column::new("trajectory_id", Of::Text(|s| Some(s.row.trajectory_id.clone()))),
    Column::optional("group_id", Of::Text(|s| s.row.group_id.clone())),
    Column::optional("task_id", Of::Text(|s| s.row.task_id.clone())),
    Column::new("model", Of::Text(|s| Some(s.row.model.clone()))),
    Column::optional("reward", Of::Float(|s| s.row.reward)),
    Column::new("status", Of::Text(|s| Some(s.row.status.clone()))),
];
