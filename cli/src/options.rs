//! Options that several subcommands share, and the parsers of their values.
//!
//! [`store`] and [`episodes`] say what a command reads, [`upstream`] and [`proxy`] how `serve` and
//! `run` record, [`telemetry`] where their spans go, [`control`] who may steer them, [`engine`] and
//! [`device`] how the engine computes, [`token`] who may call it.

pub(crate) mod address;
pub(crate) mod control;
pub(crate) mod device;
pub(crate) mod engine;
pub(crate) mod episodes;
mod memory;
pub(crate) mod parse;
pub(crate) mod proxy;
mod signing;
pub(crate) mod store;
pub(crate) mod telemetry;
pub(crate) mod token;
pub(crate) mod upstream;
