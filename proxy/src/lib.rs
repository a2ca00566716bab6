//! The transparent recording proxy.
//!
//! The walk of a call is one function, `call` in `serve.rs`. Its stages are files, in the order in
//! which a call meets them:
//! - `accept`: a connection, then a whole request, each within its bounds.
//! - `tag`: which episode the call belongs to.
//! - `rewrite`: what is added so that the upstream reports its tokens, and what is hidden again.
//! - `learn`: what the upstream says of how it samples, beside the call.
//! - `forward`: the upstream, its dialect, and the agent's own body once more if ours was refused.
//! - `tee` and `lens`: the reply, to the agent as it arrives and to the recording; its end waits
//!   for the disk.
//! - `record`: what was seen, as a value; `open_call` brings it to the store, whatever happens.
//! - `fault`: the one place where an error becomes an HTTP response.
//!
//! `stray` warns of calls that almost name a generating route.
//! `admitted` remembers which episodes take calls, `conversations` which conversations are under
//! way, `key` makes and reads API keys that name an episode.
//! `coding` undoes compression, `headers` says which go on, `outgoing` is a body on its way,
//! `connect` the pool of connections to the upstream, `upgrade` relays what becomes something else
//! than HTTP. `client` takes the same walk for calls of rolltape's own, without a store.
//! `watch` counts the calls and knows the versions of the weights that answer them.
//! `control` is the other listener: rewards, closing, looking, weights; `feed` hands finished
//! episodes out to trainers there (`hand_out`, on their way).
#![forbid(unsafe_code)]

mod accept;
mod admitted;
mod chains;
mod client;
mod coding;
mod config;
mod connect;
mod control;
mod conversations;
mod fault;
mod feed;
mod forward;
mod hand_out;
mod headers;
mod key;
mod learn;
mod lens;
mod models;
mod open_call;
mod outgoing;
mod overheard;
mod prompts;
mod proxy;
mod record;
mod rewrite;
mod serve;
mod stray;
mod tag;
mod tee;
mod upgrade;
mod watch;

pub use accept::serve_data;
pub use client::{Client, NoReply, Question, Reply};
pub use config::{BadUpstream, Beside, Config, Translate, Upstream};
pub use connect::{BadSetting, server_tls};
pub use control::serve_control;
pub use feed::{ItemRows, RowSource, RowStream};
pub use proxy::{Proxy, StartError};
