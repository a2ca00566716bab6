//! `sft`: conversations, as TRL's SFTTrainer and others read them.
//!
//! `prompt` and `completion` together are `messages`. Every answer of the completion is trained.

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("messages", Getter::Messages(|s| Some(s.messages()))),
    RecordColumn::new("prompt", Getter::Messages(|s| Some(s.prompt_messages()))),
    RecordColumn::new("completion", Getter::Messages(|s| Some(s.completion_messages()))),
    RecordColumn::new("tools", Getter::Jsons(|s| Some(s.row.dialogue.tools.clone()))),
    RecordColumn::new("trajectory_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
    RecordColumn::optional("group_id", Getter::Text(|s| s.row.group_id.clone())),
    RecordColumn::optional("task_id", Getter::Text(|s| s.row.task_id.clone())),
    RecordColumn::new("model", Getter::Text(|s| Some(s.row.model.clone()))),
    RecordColumn::optional("reward", Getter::Float(|s| s.row.score())),
    RecordColumn::new("status", Getter::Text(|s| Some(s.row.status.clone()))),
];
