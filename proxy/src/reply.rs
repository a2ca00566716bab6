//! The reply on its way to the agent: transformed, recorded, and ended once the call is on disk.

pub(crate) mod document;
mod drain;
pub(crate) mod late;
pub(crate) mod masked;
pub(crate) mod opening;
pub(crate) mod relay;
mod tee;
pub(crate) mod transform;
mod whole;
