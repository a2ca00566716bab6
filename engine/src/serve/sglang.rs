//! The routes that trainers call on a server of SGLang, under its names.
//!
//! Each is translated to the engine's own fields and commands. Fields without a counterpart are
//! refused by name. `/update_weight_version` has the same form in vLLM and is in `trainer`.

mod control;
mod generate;
mod params;
mod reply;

pub(super) use control::{
    ABORT_FIELDS, PAUSE_FIELDS, UPDATE_FIELDS, abort, flush_cache, load_adapter, model_info, pause,
    resume, unload_adapter, update_from_disk,
};
pub(super) use generate::{GENERATE_FIELDS, answer as generate, probe};
