//! The sampling of a call: the request's parameters, forced ones, and the server's defaults.
//!
//! - [`ForcedSampling`]: parameters that the user sets in the agent's place.
//! - [`ServerSampling`]: the defaults that a server uses, as far as it reports them.
//! - [`EffectiveSampling`]: the parameters that a call was in fact sampled with.

mod effective;
mod forced;
mod server;

pub use effective::{EffectiveSampling, LogprobFit};
pub use forced::{ForcedSampling, ForcedSamplingError};
pub use server::ServerSampling;
