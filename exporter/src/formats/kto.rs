//! `kto`: conversations and whether they are good, as TRL's KTOTrainer reads them.

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("prompt", Of::Messages(|s| Some(s.given()))),
    Column::new("completion", Of::Messages(|s| Some(s.said()))),
    Column::new("label", Of::Bool(|s| Some(s.good))),
    Column::new("tools", Of::Jsons(|s| Some(s.row.dialogue.tools.clone()))),
    Column::new("trajectory_id", Of::Text(|s| Some(s.row.trajectory_id.clone()))),
    Column::optional("group_id", Of::Text(|s| s.row.group_id.clone())),
    Column::new("model", Of::Text(|s| Some(s.row.model.clone()))),
    Column::optional("reward", Of::Float(|s| s.row.reward)),
];
