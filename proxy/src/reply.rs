//! The reply on its way to the agent: transformed, recorded, and ended once the call is on disk.

mod drain;
pub(crate) mod late;
pub(crate) mod tee;
pub(crate) mod transform;
