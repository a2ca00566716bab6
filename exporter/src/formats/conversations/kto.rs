//! `kto`: conversations with a label, good or bad, as TRL's KTOTrainer reads them.

use crate::formats::sample::Sample;
use crate::formats::table::{Column, Getter};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("prompt", Getter::Messages(|s| Some(s.prompt_messages()))),
    Column::new("completion", Getter::Messages(|s| Some(s.completion_messages()))),
    Column::new("label", Getter::Bool(|s| Some(s.is_good))),
    Column::new("tools", Getter::Jsons(|s| Some(s.row.dialogue.tools.clone()))),
    Column::new("trajectory_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
    Column::optional("group_id", Getter::Text(|s| s.row.group_id.clone())),
    Column::new("model", Getter::Text(|s| Some(s.row.model.clone()))),
    Column::optional("reward", Getter::Float(|s| s.row.reward)),
];
