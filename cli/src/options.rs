//! Options that several subcommands share, and the parsers of their values.
//!
//! [`store`] and [`episodes`] say what a command reads, [`upstream`] and [`proxy`] how `serve` and
//! `run` record, [`engine`] and [`device`] how the engine computes.

pub(crate) mod device;
pub(crate) mod engine;
pub(crate) mod episodes;
pub(crate) mod parse;
pub(crate) mod proxy;
pub(crate) mod store;
pub(crate) mod upstream;
