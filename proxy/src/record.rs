//! The recording of a call: collected while it passes, and brought to the store however it ends.

pub(crate) mod admission;
pub(crate) mod attempts;
pub(crate) mod end_lookups;
pub(crate) mod engine_stamp;
pub(crate) mod experts;
pub(crate) mod mask;
pub(crate) mod open_call;
pub(crate) mod paths;
pub(crate) mod recording;
pub(crate) mod services;
pub(crate) mod tracker;
pub(crate) mod versions;
