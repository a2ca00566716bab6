//! The transparent recording proxy.
//!
//! The walk of a call is one function, `call` in `serve.rs`. It meets these rooms in this order:
//! - `agent`: connections and whole requests, each within bounds; the paths that agents may use;
//!   requests for other protocols.
//! - `tag`: the episode of a call, from its path, headers, API key, session or conversation.
//! - `record`: the recording of a call, which reaches the store however the call ends.
//! - `upstream`: the rewritten request, the connections, and what the upstream is asked besides.
//! - `fleet`: which of several upstreams gets the call.
//! - `reply`: the reply on its way to the agent. Its end waits for the disk.
//!
//! `bounds` names what anybody may cost the proxy. `error` is the one place where an error becomes
//! an HTTP response.
//!
//! `recorder` is the handle of whoever stands above: episodes, rewards, keys, versions, upstreams.
//! `client` sends calls of rolltape itself.
#![forbid(unsafe_code)]

mod agent;
mod bounds;
mod client;
mod config;
mod error;
mod fleet;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod proxy;
mod record;
mod recorder;
mod reply;
mod serve;
mod tag;
mod upstream;

pub use agent::allowed::{AllowedPath, InvalidAllowedPath};
pub use bounds::{LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX};
pub use client::{Client, ClientError, ClientReply, ClientRequest};
pub use config::{Config, TokenExtras, TranslateMode};
pub use error::RequestError;
pub use fleet::engine::EngineState;
pub use fleet::health::watch_upstream;
pub use fleet::members::ChangeError;
pub use fleet::spec::{EngineSpec, FleetSettings, InvalidEngine};
pub use proxy::{Proxy, StartError};
pub use record::admission::AdmissionStatus;
pub use record::tracker::CallCounts;
pub use recorder::{EngineAnswer, Recorder, SignedKey, UpstreamStatus, Upstreams};
pub use serve::serve_data;
pub use tag::api_key::{SecretChange, SigningSecretPlace};
pub use upstream::address::{InvalidUpstream, Upstream};
pub use upstream::connect::{InvalidSetting, client_tls, server_tls};
