//! `kto`: conversations with a label, good or bad, as TRL's KTOTrainer reads them.

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("prompt", Getter::Messages(|s| Some(s.prompt_messages()))),
    RecordColumn::new("completion", Getter::Messages(|s| Some(s.completion_messages()))),
    RecordColumn::new("label", Getter::Bool(|s| Some(s.is_good))),
    RecordColumn::new("tools", Getter::Jsons(|s| Some(s.row.dialogue.tools.clone()))),
    RecordColumn::new("trajectory_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
    RecordColumn::optional("group_id", Getter::Text(|s| s.row.group_id.clone())),
    RecordColumn::new("model", Getter::Text(|s| Some(s.row.model.clone()))),
    RecordColumn::optional("reward", Getter::Float(|s| s.row.score())),
];
