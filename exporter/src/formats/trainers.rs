//! Formats of trainers, each under the names of the trainer that reads it.
//!
//! [`replay`] is what several of them reuse of the sampling.

pub(crate) mod areal;
pub(crate) mod art;
pub(crate) mod atif;
mod call_time;
pub(crate) mod nemo_gym;
pub(crate) mod prime_rl;
pub(super) mod replay;
pub(crate) mod rllm;
pub(crate) mod skyrl;
pub(crate) mod slime;
pub(crate) mod tinker;
pub(crate) mod trl;
pub(crate) mod verifiers;
pub(crate) mod verifiers_traces;
pub(crate) mod verl;
