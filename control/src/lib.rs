//! The control listener: requests that an agent must not be able to make.
//!
//! It stands above the recorder: what it may do to one is the handle [`proxy::Recorder`]. Nothing
//! below can name this crate, so no route of it is within reach of an agent.
//!
//! - `serve`: the listener and the walk of a request; `door`, `settings`: who is let in.
//! - `routes`: all routes in one table; `openapi`: the table as a document; `requests`: the bodies.
//! - `episodes`, `keys`, `versions`, `admission`, `upstreams`: what is announced, changed, listed.
//! - `prune`: episodes are deleted, between the calls that are recorded.
//! - `engines`: requests that are forwarded to the control routes of engines.
//! - `annotations`: numbers that a trainer computed for the tokens that it trained on; `comments`:
//!   what people say.
//! - `feed`: finished attempts for trainers, as rows of the exporter.
//! - `reading`: what people read of a recording, as documents of the viewer.
//! - `metrics`: numbers for Prometheus, and as values for what is sent by OTLP.
#![forbid(unsafe_code)]

mod admission;
mod annotations;
mod bounds;
mod comments;
mod door;
mod engines;
mod episodes;
mod error;
mod feed;
mod keys;
mod metrics;
mod openapi;
mod prune;
mod reading;
mod replays;
mod requests;
mod rewards;
mod routes;
mod serve;
mod settings;
mod upstreams;
mod versions;

pub use metrics::values::{Metric, MetricKind, MetricPoint, MetricsReader};
pub use metrics::{ExportCounts, MetricsError};
pub use prune::{KeptAttempt, PruneDocument, PrunedAttempt, PrunedSpace};
pub use serve::{serve_control, serve_reading};
pub use settings::Settings;
