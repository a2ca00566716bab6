//! Settings of a proxy, validated.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};
use store::Budget;
use thiserror::Error;
use wire::{Dialect, ForcedSampling, Vocabulary};

use crate::agent::activity::AgentWaits;
use crate::agent::allowed::AllowedPath;
use crate::agent::listen::ConnectionBounds;
use crate::agent::request_body::RequestLimits;
use crate::agent::target::normal_path;
use crate::bounds::{
    BODY_WAIT, CONNECTIONS_MAX, CONTROL_CONNECTIONS_MAX, CONTROL_STALL_WAIT, DESCRIPTORS_KEPT,
    HEAD_WAIT, IDLE_WAIT, PEER_PART, STALL_WAIT,
};
use crate::feed::rows::RowSource;
use crate::reading::Reader;
use crate::tag::api_key::SigningSecretPlace;

/// Settings of a proxy.
#[derive(Debug, Clone)]
pub struct Config {
    /// The inference server.
    pub upstream: Upstream,
    /// Its dialect; probed if `None`.
    pub dialect: Option<Dialect>,
    /// The kind of its logprobs (`processed`, `temperature`, `raw`), if the user knows it.
    pub logprob_kind: Option<String>,
    /// The rule by which Responses and Messages calls go to the upstream's chat route.
    pub translate: TranslateMode,
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
    /// The token that the control listener requires, if any.
    pub control_token: Option<String>,
    /// Names by which the control listener may be addressed, besides loopback and its own address.
    pub control_hosts: Vec<String>,
    /// True if replies name their call in the header `x-rolltape-call-id`.
    pub call_id_header: bool,
    /// The source of the feed's rows.
    pub rows: Option<Arc<dyn RowSource>>,
    /// The source of what people read of the recording.
    pub reader: Option<Arc<dyn Reader>>,
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
            logprob_kind: None,
            translate: TranslateMode::default(),
            extras: TokenExtras::default(),
            vocabulary: None,
            force: ForcedSampling::default(),
            upstream_key: None,
            upstream_ca: Vec::new(),
            upstream_http2: false,
            share_prefixes: false,
            allow_unrecorded_sampling: false,
            allowed_paths: Vec::new(),
            allow_priority: false,
            allowed_origins: Vec::new(),
            tls: None,
            require_key: false,
            signing_secrets: None,
            budget: Budget::default(),
            control_token: None,
            control_hosts: Vec::new(),
            call_id_header: false,
            rows: None,
            reader: None,

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

    /// The kind of logprobs of an upstream that speaks `dialect`, or `unknown`.
    pub fn logprob_kind_of(&self, dialect: Dialect) -> &str {
        self.logprob_kind.as_deref().unwrap_or_else(|| dialect.logprob_kind())
    }

    /// The bounds of a request body.
    pub(crate) fn request_limits(&self) -> RequestLimits {
        RequestLimits { kept: self.request_bytes_kept, max: self.request_bytes_max }
    }

    /// Descriptors that are not for calls; more than the process needs if its limit is not known.
    fn descriptors_kept(&self) -> usize {
        let part = self.descriptors_max.map_or(usize::MAX, |max| max / 8);
        part.clamp(*DESCRIPTORS_KEPT.start(), *DESCRIPTORS_KEPT.end())
    }

    /// Calls for which there are descriptors: each needs one to its agent and one to the upstream,
    /// unless all share a connection there.
    fn calls_with_descriptors(&self) -> usize {
        let Some(max) = self.descriptors_max else { return usize::MAX };
        let for_calls = max.saturating_sub(self.descriptors_kept());
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

    /// The bounds of connections to the control listener: half of the descriptors that are kept.
    pub(crate) fn control_bounds(&self) -> ConnectionBounds {
        let connections_max = CONTROL_CONNECTIONS_MAX.min(self.descriptors_kept() / 2);
        ConnectionBounds {
            connections_max,
            per_peer_max: connections_max.div_ceil(PEER_PART),
            waits: AgentWaits {
                head: self.head_wait,
                idle: self.idle_wait,
                stall: CONTROL_STALL_WAIT,
            },
        }
    }
}

/// The address of an inference server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    scheme: Scheme,
    pub(crate) authority: Authority,
    /// Path before `/v1`, without a trailing slash.
    prefix: String,
    /// True if the address had a user or a password, which are kept nowhere.
    has_credentials: bool,
}

/// An upstream address that cannot be used.
#[derive(Debug, Clone, Error)]
pub enum InvalidUpstream {
    /// The text is not the address of a server.
    #[error("`{0}` is not an upstream; give http://HOST:PORT or https://HOST, with or without /v1")]
    NotServer(String),
    /// The path of the address can be read in different ways.
    #[error("the path of `{0}` is ambiguous; give it without escapes, dots and empty parts")]
    AmbiguousPath(String),
    /// The text is the address of a route of a server.
    #[error("`{0}` is a route of a server; give the server, without `{1}`")]
    Route(String, &'static str),
}

/// Path endings of an address that names a route in place of a server.
const ROUTES: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];

impl std::str::FromStr for Upstream {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let (text, has_credentials) = without_credentials(text);
        let text = text.as_str();
        let uri: Uri = text.parse().map_err(|_| not_server(text))?;
        let scheme = uri.scheme().cloned().ok_or_else(|| not_server(text))?;
        if (scheme != Scheme::HTTP && scheme != Scheme::HTTPS) || uri.query().is_some() {
            return Err(not_server(text));
        }

        let path = uri.path().trim_end_matches('/');
        if let Some(route) = ROUTES.into_iter().find(|route| path.ends_with(route)) {
            return Err(InvalidUpstream::Route(text.to_owned(), route));
        }
        if !path.is_empty() && !matches!(normal_path(path), Ok(Cow::Borrowed(_))) {
            return Err(InvalidUpstream::AmbiguousPath(text.to_owned()));
        }
        let prefix = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        let authority = uri.authority().cloned().ok_or_else(|| not_server(text))?;
        Ok(Self { scheme, authority, prefix, has_credentials })
    }
}

/// The address without a user and a password, and whether it had any.
fn without_credentials(text: &str) -> (String, bool) {
    let Some((scheme, rest)) = text.split_once("://") else { return (text.to_owned(), false) };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => (format!("{scheme}://{host}{path}"), true),
        None => (text.to_owned(), false),
    }
}

fn not_server(text: &str) -> InvalidUpstream {
    InvalidUpstream::NotServer(text.to_owned())
}

impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

impl Upstream {
    /// Returns true if the address had a user or a password. Such an address is not used: it stands
    /// where secrets do not belong.
    pub fn has_credentials(&self) -> bool {
        self.has_credentials
    }

    /// Host and port, to connect to.
    pub(crate) fn host(&self) -> (&str, u16) {
        let port = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        (host, self.authority.port_u16().unwrap_or(port))
    }

    /// The address of `path_and_query` on this server.
    pub(crate) fn uri(&self, path_and_query: &str) -> Result<Uri, hyper::http::Error> {
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path_and_query}", self.prefix))
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_may_carry_v1_or_not() {
        for text in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            let upstream: Upstream = text.parse().unwrap();
            assert_eq!(upstream.uri("/v1/models?a=b").unwrap(), "http://h:1/v1/models?a=b");
        }
        let deep: Upstream = "https://h/llm/v1".parse().unwrap();
        assert_eq!(deep.uri("/v1/models").unwrap(), "https://h/llm/v1/models");
        for bad in ["", "h:1", "localhost", "ftp://h", "http://", "http://h/?q"] {
            assert!(bad.parse::<Upstream>().is_err(), "{bad}");
        }
        for bad in ["http://h/a/../b", "http://h/%2e%2e", "http://h//a/v1", "http://h/a%2fb"] {
            let why = bad.parse::<Upstream>().unwrap_err();
            assert!(matches!(why, InvalidUpstream::AmbiguousPath(_)), "{bad}: {why}");
        }
        let route = "http://h/v1/chat/completions".parse::<Upstream>().unwrap_err().to_string();
        assert!(route.ends_with("give the server, without `/chat/completions`"), "{route}");
    }

    #[test]
    fn the_port_follows_from_the_scheme() {
        let host = |text: &str| {
            let upstream: Upstream = text.parse().unwrap();
            let (host, port) = upstream.host();
            format!("{host} {port}")
        };
        assert_eq!(host("http://h:1/v1"), "h 1");
        assert_eq!(host("https://h"), "h 443");
        assert_eq!(host("http://[::1]/a"), "::1 80");
    }

    #[test]
    fn a_user_and_a_password_of_an_address_are_kept_nowhere() {
        for text in ["http://u:s3cret@h:1/a/v1", "http://s3cret@h:1/a", "http://u:s3@cret@h:1/a/"] {
            let upstream: Upstream = text.parse().unwrap();
            assert!(upstream.has_credentials());
            assert_eq!(upstream.to_string(), "http://h:1/a");
            assert!(!format!("{upstream:?}").contains("s3"), "{upstream:?}");
        }
        let broken = "http://u:s3cret@/v1".parse::<Upstream>().unwrap_err();
        assert!(!broken.to_string().contains("s3cret"), "{broken}");
        assert!(!"http://h/@x".parse::<Upstream>().unwrap().has_credentials());
    }
}
