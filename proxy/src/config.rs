//! Settings of a proxy, validated.
//!
//! - `address`: an inference server. `spec`: one of several, as a user names it.
//! - `continue_mode`: whether prompts are sent as ids. `episode_prefix`: what begins their names.
//! - `allowed`: paths that agents may use. `tag_segments`: the part of a path that tags a call.
//! - `signing_secrets`: the place of what signs API keys.

pub(crate) mod address;
pub(crate) mod allowed;
pub(crate) mod continue_mode;
pub(crate) mod episode_prefix;
pub(crate) mod signing_secrets;
pub(crate) mod spec;
pub(crate) mod tag_segments;

use std::sync::Arc;
use std::time::Duration;

use episode::Replay;
use http::body::request_body::RequestLimits;
use http::bounds::{BODY_WAIT, HEAD_WAIT, IDLE_WAIT, PEER_PART};
use http::server::activity::AgentWaits;
use http::server::listen::{ConnectionBounds, descriptors_kept};
use http::tls::{InvalidTls, server_config};
use store::Budget;
use thiserror::Error;
use wire::{Dialect, ForcedSampling, Vocabulary};

use crate::bounds::{CONNECTIONS_MAX, STALL_WAIT};
use crate::config::address::Upstream;
use crate::config::allowed::AllowedPath;
use crate::config::continue_mode::ContinueMode;
use crate::config::episode_prefix::EpisodePrefix;
use crate::config::signing_secrets::SigningSecretPlace;
use crate::config::spec::FleetSettings;

/// A setting that cannot be used.
#[derive(Debug, Clone, Error)]
pub enum InvalidSetting {
    /// A certificate to trust.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
    /// An upstream's address with more than an address.
    #[error(
        "the upstream's address holds a user or a password; give the address without them, and \
         name the variable that holds its key with --upstream-key-env"
    )]
    Credentials,
    /// A key that cannot be sent.
    #[error("the upstream's key is not a valid header value")]
    Key,
}

/// Settings of a proxy.
#[derive(Debug, Clone)]
pub struct Config {
    /// The inference server.
    pub upstream: Upstream,
    /// Its dialect; probed if `None`.
    pub dialect: Option<Dialect>,
    /// False if there is no upstream: a recording answers every call, or it is refused.
    pub has_upstream: bool,
    /// The recording that answers the calls of attempts that were announced without one.
    pub replay: Option<Replay>,
    /// Several upstreams in place of that one, and what holds for all.
    pub fleet: FleetSettings,
    /// The kind of its logprobs (`processed`, `temperature`, `raw`), if the user knows it.
    pub logprob_kind: Option<String>,
    /// The rule by which Responses and Messages calls go to the upstream's chat route.
    pub translate: TranslateMode,
    /// The answers with whose ids the prompts of chats begin.
    pub continues: ContinueMode,
    /// Token data to record beside ids and logprobs.
    pub extras: TokenExtras,
    /// The upstream's vocabulary, for servers that report the bytes of tokens and no ids.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// Sampling parameters for every request whose episode has none of its own.
    pub force: ForcedSampling,
    /// The API key for the upstream, in place of the agent's.
    pub upstream_key: Option<String>,
    /// PEM certificates to trust in addition to the system's.
    pub upstream_ca: Vec<u8>,
    /// True to speak HTTP/2 to an `http://` upstream without negotiation.
    pub upstream_http2: bool,
    /// True if all calls may share prefixes in rolltape's own engine. Otherwise those of one group
    /// do, or of one episode without a group.
    pub share_prefixes: bool,
    /// True to let calls pass that sample tokens on routes that report none.
    pub allow_unrecorded_sampling: bool,
    /// True to let requests name responses, conversations and items that their attempt did not get
    /// here.
    pub allow_foreign_state: bool,
    /// The methods and paths that agents may use beside those on the list.
    pub allowed_paths: Vec<AllowedPath>,
    /// True to let agents' requests name their place in the upstream's queue.
    pub allow_priority: bool,
    /// The origins whose web pages may use the data listener, such as `https://example.com` or
    /// `null`; `*` for all.
    pub allowed_origins: Vec<String>,
    /// Certificate and key of the data listener, if it speaks TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// True to refuse every call without an API key that the control listener made.
    pub require_key: bool,
    /// The place of the secrets that sign API keys. Without one, keys end with the process.
    pub signing_secrets: Option<Arc<dyn SigningSecretPlace>>,
    /// The budget of every attempt that was announced without one.
    pub budget: Budget,
    /// The prefix of every episode that a client names.
    pub episode_prefix: EpisodePrefix,
    /// True if replies name their call in the header `x-rolltape-call-id`.
    pub call_id_header: bool,
    /// Maximum number of calls in flight, each until its reply has ended. Further calls wait.
    pub calls_max: usize,
    /// Longest request body that is held and recorded whole, in bytes. Of a longer one the
    /// beginning is recorded, and the request is forwarded unchanged.
    pub request_bytes_kept: usize,
    /// Longest request body, in bytes.
    pub request_bytes_max: u64,
    /// Longest reply that is recorded, in bytes.
    pub reply_bytes_max: usize,
    /// Most memory that the requests and replies of all calls take, in bytes. New calls are refused
    /// before, and replies are read more slowly.
    pub memory_bytes_max: u64,
    /// Time that calls in flight have to end after a shutdown request.
    pub drain_wait: Duration,
    /// Longest silence of a reply before its agent gets a heartbeat; `None` for no heartbeats.
    pub heartbeat: Option<Duration>,
    /// Time that an agent or a trainer has for the head of a request.
    pub head_wait: Duration,
    /// The time that each has for a piece of a request body, and for a small body.
    pub body_wait: Duration,
    /// The time that each may keep a connection without a request.
    pub idle_wait: Duration,
    /// File descriptors that the process may have, if that is known.
    pub descriptors_max: Option<usize>,
}

/// The rule by which calls are translated to chat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TranslateMode {
    /// Calls on routes on which the upstream does not report sampled tokens.
    #[default]
    Auto,
    /// Never. Such calls are recorded as text.
    Never,
    /// Every Responses and Messages call.
    Always,
}

/// Token data to record beside ids and logprobs, if the upstream reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenExtras {
    /// Number of alternatives to each token.
    pub top_logprobs: u32,
    /// The experts that each token was routed to.
    pub routed_experts: bool,
    /// The tokens that truncated sampling left to choose from.
    pub sampling_mask: bool,
}

impl Config {
    /// The defaults for `upstream`.
    pub fn new(upstream: Upstream) -> Self {
        Self {
            upstream,
            dialect: None,
            has_upstream: true,
            replay: None,
            fleet: FleetSettings::default(),
            logprob_kind: None,
            translate: TranslateMode::default(),
            continues: ContinueMode::default(),
            extras: TokenExtras::default(),
            vocabulary: None,
            force: ForcedSampling::default(),
            upstream_key: None,
            upstream_ca: Vec::new(),
            upstream_http2: false,
            share_prefixes: false,
            allow_unrecorded_sampling: false,
            allow_foreign_state: false,
            allowed_paths: Vec::new(),
            allow_priority: false,
            allowed_origins: Vec::new(),
            tls: None,
            require_key: false,
            signing_secrets: None,
            budget: Budget::default(),
            episode_prefix: EpisodePrefix::default(),
            call_id_header: false,

            // Bounds. A request beyond what is kept is forwarded, and recorded in part.
            calls_max: 10_000,
            request_bytes_kept: 64 << 20,
            request_bytes_max: 1 << 30,
            reply_bytes_max: 256 << 20,
            memory_bytes_max: 4 << 30,
            drain_wait: Duration::from_secs(20),
            heartbeat: None,
            head_wait: HEAD_WAIT,
            body_wait: BODY_WAIT,
            idle_wait: IDLE_WAIT,
            descriptors_max: None,
        }
    }

    /// Sets the TLS of the data listener, from a certificate chain and its key in PEM.
    ///
    /// # Errors
    /// [`InvalidSetting`] if they are not PEM or do not belong together.
    pub fn set_tls(&mut self, chain: &[u8], key: &[u8]) -> Result<(), InvalidSetting> {
        self.tls = Some(server_config(chain, key)?);
        Ok(())
    }

    /// The kind of logprobs of an upstream that speaks `dialect`, or `unknown`.
    pub fn logprob_kind_of(&self, dialect: Dialect) -> &str {
        self.logprob_kind.as_deref().unwrap_or_else(|| dialect.logprob_kind())
    }

    /// The bounds of a request body.
    pub(crate) fn request_limits(&self) -> RequestLimits {
        RequestLimits { kept: self.request_bytes_kept, max: self.request_bytes_max }
    }

    /// Calls for which there are descriptors: each needs one to its agent and one to the upstream,
    /// unless all share a connection there.
    fn calls_with_descriptors(&self) -> usize {
        let Some(max) = self.descriptors_max else { return usize::MAX };
        let for_calls = max.saturating_sub(descriptors_kept(Some(max)));
        let per_call = if self.upstream_http2 { 1 } else { 2 };
        (for_calls / per_call).max(1)
    }

    /// Calls that may be in flight at a time.
    pub(crate) fn calls_at_once(&self) -> usize {
        self.calls_max.min(self.calls_with_descriptors())
    }

    /// The bounds of agents' connections.
    pub(crate) fn data_bounds(&self) -> ConnectionBounds {
        let connections_max = CONNECTIONS_MAX.min(self.calls_with_descriptors());
        ConnectionBounds {
            connections_max,
            per_peer_max: connections_max.div_ceil(PEER_PART),
            waits: AgentWaits { head: self.head_wait, idle: self.idle_wait, stall: STALL_WAIT },
        }
    }
}
