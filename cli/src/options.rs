//! Options that several subcommands share, and the parsers of their values.
//!
//! A struct of options is a topic of `--help`, and has its heading. [`store`] and [`episodes`] say
//! what a command reads, [`segments`] where it reads files of sealed episodes. [`proxy`] has what
//! `serve` and `run` share: [`upstream`], [`fleet`], [`agents`], [`limits`], [`control`], [`tls`]
//! and [`telemetry`]. [`engine`] and [`device`] say how the engine computes, [`token`] who may call
//! it. [`tokenizer`] takes a file or its folder, [`secret_file`] keeps tokens.
//! [`defaults`] are those of a server that runs here, which left a [`mod@pointer`].
//! [`help`] arranges what `--help` and `-h` print.

pub(crate) mod address;
pub(crate) mod agents;
pub(crate) mod control;
pub(crate) mod defaults;
pub(crate) mod device;
pub(crate) mod engine;
pub(crate) mod episodes;
mod fleet;
pub(crate) mod help;
mod limits;
mod memory;
pub(crate) mod parse;
pub(crate) mod pointer;
pub(crate) mod proxy;
pub(crate) mod secret_file;
pub(crate) mod segments;
mod signing;
pub(crate) mod store;
pub(crate) mod telemetry;
pub(crate) mod tls;
pub(crate) mod token;
pub(crate) mod tokenizer;
pub(crate) mod upstream;
