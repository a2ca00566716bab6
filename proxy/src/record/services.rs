//! The parts of a proxy that the recording of a call uses.

use std::sync::Arc;

use http::memory::MemoryAccount;
use store::Store;

use crate::reading_room::ReadBack;
use crate::record::experts::ExpertPrompts;
use crate::record::mask::KeyMask;
use crate::record::paths::PathMemory;
use crate::record::tracker::CallTracker;
use crate::tag::TagContext;

/// The services of a recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordingServices<'a> {
    pub(crate) store: &'a Store,
    pub(crate) read_back: &'a ReadBack,
    pub(crate) tags: &'a Arc<TagContext>,
    pub(crate) tracker: &'a Arc<CallTracker>,
    pub(crate) expert_prompts: &'a Arc<ExpertPrompts>,
    pub(crate) paths: &'a PathMemory,
    pub(crate) mask: &'a KeyMask,
    pub(crate) memory: &'a Arc<MemoryAccount>,
    /// Longest reply that is recorded, in bytes.
    pub(crate) reply_bytes_max: usize,
    /// True if the reply's head names the call.
    pub(crate) names_call: bool,
}
