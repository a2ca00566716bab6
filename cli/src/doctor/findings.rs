//! The findings about an upstream, which advice, notes and the report are made from.

use wire::{Dialect, ServerInfo, ServerSampling};

use super::prompt_ids::PromptIdsFinding;
use super::row::ProbeRow;

/// Everything that was found out about an upstream.
pub(super) struct Findings {
    /// The upstream's URL.
    pub(super) upstream: String,
    pub(super) dialect: Dialect,
    pub(super) server: ServerInfo,
    pub(super) sampler: ServerSampling,
    pub(super) model: String,
    /// The kind of the upstream's logprobs.
    pub(super) logprob_kind: String,
    pub(super) rows: Vec<ProbeRow>,
    /// The treatment of a chat whose prompt is sent as ids.
    pub(super) prompt_ids: PromptIdsFinding,
    /// The options of the user that say more about the upstream.
    pub(super) given: GivenOptions,
}

/// Options that say what the upstream does not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GivenOptions {
    /// `--logprobs-mode` was given.
    pub(super) logprobs_mode: bool,
    /// `--logprobs-mode processed_logprobs` was given.
    pub(super) processed: bool,
    /// `--tokenizer` was given.
    pub(super) tokenizer: bool,
    /// `--continue exact` was given.
    pub(super) continues: bool,
}

impl Findings {
    /// The rows with a complete reply.
    pub(super) fn answered(&self) -> impl Iterator<Item = &ProbeRow> {
        self.rows.iter().filter(|row| row.answered())
    }
}
