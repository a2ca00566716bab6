//! The inference backend: a Hugging Face model folder behind an OpenAI-compatible server.
//!
//! - [`Engine::load`] reads and checks a folder; nothing listens before it has succeeded.
//! - [`serve()`] answers HTTP until it is told to stop, with the model on a thread of its own.
//!
//! A request is parsed in `serve`, waits in `schedule::queue`, runs as a `schedule::sequence`
//! through `model` and `sample`, and its tokens return to `serve`. `core` is the thread that drives
//! this. Field names, limits and defaults are those of vLLM.
//!
//! Rooms from the top; each uses rooms below it only.
//!
//! | room | contents |
//! | --- | --- |
//! | `serve` | HTTP |
//! | `engine` | loading a model, and the handle to the engine thread |
//! | [`gpu`] | checks and profiles of a GPU |
//! | `core` | the engine thread: steps, commands, status |
//! | `schedule` | requests, the queue, sequences, pages |
//! | `update` | new weights while serving |
//! | `device` | the choice of a device |
//! | `model` | the folder, the parameters, the forward pass |
//! | `options`, `info` | what the user wants, and what callers may know |
//! | `lora` | adapters |
//! | `weights` | tensors by name, and their files |
//! | `sample`, `grammar` | from logits to tokens |
//! | `config` | the shape of a model, from its `config.json` |
//! | `bounds`, `work_limit` | what a caller may cost |
//! | `error`, `memory`, `stats` | errors of loading, the machine's memory, counters |

#![forbid(unsafe_code)]

mod bounds;
mod config;
mod core;
mod device;
#[cfg(feature = "emulated")]
#[cfg(test)]
mod emulated;
mod engine;
mod error;
pub mod gpu;
mod grammar;
mod id_set;
mod info;
mod lora;
mod memory;
mod model;
mod options;
mod sample;
mod schedule;
mod serve;
mod stats;
mod update;
mod weights;
mod work_limit;

pub use engine::Engine;
pub use error::{ConfigError, LoadError};
pub use kernels::{KvFormat, Numerics};
pub use model::folder::refuse_gguf;
pub use options::parsers::{ReasoningParser, ToolCallParser};
pub use options::{DeviceChoice, EngineOptions, UpdateMode};
pub use sample::LogprobsMode;
pub use serve::{Access, serve};
