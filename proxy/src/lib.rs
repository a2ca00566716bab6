//! The transparent recording proxy.
//!
//! The walk of a call is one function, `call` in `serve.rs`. It meets these rooms in this order:
//! - `accept`: whole requests, within bounds; the paths that agents may use; requests for other
//!   protocols.
//! - `tag`: the episode of a call, from its path, headers, API key, session or conversation.
//! - `record`: the recording of a call, which reaches the store however the call ends.
//! - `fleet`: which of several upstreams gets the call.
//! - `upstream`: the plan of the request, its exchange, and what the upstream is asked besides.
//! - `reply`: the reply on its way to the agent. Its end waits for the disk.
//!
//! `bounds` names what anybody may cost the proxy. `error` is the one place where an error becomes
//! an HTTP response. `body`, `outgoing`, `coding` and `headers` handle the parts of HTTP messages.
//!
//! `control` is the other listener: episodes, rewards, versions and engine control. It serves the
//! `feed`, which hands finished episodes out to trainers, and what people read of a recording
//! (`reading`). `client` sends calls of rolltape itself.
#![forbid(unsafe_code)]

mod accept;
mod bounds;
mod client;
mod config;
mod control;
mod error;
mod feed;
mod fleet;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod proxy;
mod reading;
mod record;
mod reply;
mod serve;
mod tag;
mod upstream;

pub use client::{Client, ClientError, ClientReply, ClientRequest};
pub use config::address::{InvalidUpstream, Upstream};
pub use config::allowed::{AllowedPath, InvalidAllowedPath};
pub use config::signing_secrets::{SecretChange, SigningSecretPlace};
pub use config::spec::{EngineSpec, FleetSettings, InvalidEngine};
pub use config::{Config, TokenExtras, TranslateMode};
pub use control::{serve_control, serve_reading};
pub use feed::rows::{ItemRows, RowSource, RowStream};
pub use proxy::{Proxy, StartError, watch_upstream};
pub use reading::{ChangeReader, PageFile, ReadError, ReadReply, ReadView, Reader};
pub use serve::serve_data;
pub use upstream::connect::{InvalidSetting, client_tls, server_tls};
