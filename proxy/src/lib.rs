//! The transparent recording proxy.
//!
//! The walk of a call is one function, `call` in `serve.rs`. It meets these rooms in this order:
//! - `accept`: whole requests, within bounds; the paths that agents may use; requests for other
//!   protocols.
//! - `tag`: the episode of a call, from its path, headers, API key, session or conversation.
//! - `record`: the recording of a call, which reaches the store however the call ends.
//! - `replay`: a recorded reply in place of the upstream's, where the attempt is a replay.
//! - `fleet`: which of several upstreams gets the call.
//! - `upstream`: the plan of the request, its exchange, and what the upstream is asked besides.
//! - `reply`: the reply on its way to the agent. Its end waits for the disk.
//!
//! `bounds` names what anybody may cost the proxy. `error` is the one place where an error becomes
//! an HTTP response.
//!
//! `recorder` is the handle of whoever stands above: episodes, rewards, keys, versions, upstreams.
//! `client` sends calls of rolltape itself.
#![forbid(unsafe_code)]

mod accept;
mod bounds;
mod client;
mod config;
mod error;
mod fleet;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod proxy;
mod reading_room;
mod record;
mod recorder;
mod replay;
mod reply;
mod serve;
mod tag;
mod upstream;

pub use bounds::{LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX};
pub use client::{Client, ClientError, ClientReply, ClientRequest};
pub use config::address::{InvalidUpstream, Upstream};
pub use config::allowed::{AllowedPath, InvalidAllowedPath};
pub use config::continue_mode::{ContinueMode, InvalidContinueMode};
pub use config::episode_prefix::EpisodePrefix;
pub use config::signing_secrets::{SecretChange, SigningSecretPlace};
pub use config::spec::{EngineSpec, FleetSettings, InvalidEngine};
pub use config::{Config, InvalidSetting, TokenExtras, TranslateMode};
pub use error::RequestError;
pub use fleet::engine::EngineState;
pub use fleet::members::ChangeError;
pub use proxy::{Proxy, StartError, watch_upstream};
pub use record::admission::AdmissionStatus;
pub use record::tracker::CallCounts;
pub use recorder::{EngineAnswer, Recorder, SignedKey, UpstreamStatus, Upstreams};
pub use replay::decks::ReplayState;
pub use serve::serve_data;
