//! The inference backend: a Hugging Face model folder behind an OpenAI-compatible server.
//!
//! - [`Engine::load`] reads and checks a folder; nothing listens before it has succeeded.
//! - [`serve()`] answers HTTP until it is told to stop, with the model on a thread of its own.
//!
//! A request is parsed in `serve`, waits in `schedule::queue`, runs as a `schedule::sequence`
//! through `model` and `sample`, and its tokens return to `serve`. `core` is the thread that drives
//! this. Field names, limits and defaults are those of vLLM.
//!
//! | room | contents |
//! | --- | --- |
//! | `engine`, `options`, `device`, `info` | building an engine |
//! | `bounds` | what a caller may cost |
//! | `core` | the engine thread: steps, commands, status |
//! | `schedule` | requests, the queue, sequences, pages |
//! | `model` | the folder, the parameters, the forward pass |
//! | `weights`, `update` | files of weights, and new weights while serving |
//! | `lora` | adapters |
//! | `sample`, `grammar` | from logits to tokens |
//! | `serve` | HTTP |
//! | [`gpu`] | checks and profiles of a GPU |

#![forbid(unsafe_code)]

mod bounds;
mod config;
mod core;
mod device;
#[cfg(all(test, feature = "emulated"))]
mod emulated;
mod engine;
mod error;
pub mod gpu;
mod grammar;
mod info;
mod lora;
mod memory;
mod model;
mod options;
mod room;
mod sample;
mod schedule;
mod serve;
mod stats;
mod update;
mod weights;

pub use engine::Engine;
pub use error::{ConfigError, LoadError};
pub use kernels::Numerics;
pub use options::parsers::{ReasoningParser, ToolCallParser};
pub use options::{DeviceChoice, EngineOptions};
pub use sample::LogprobsMode;
pub use serve::{Access, serve};
