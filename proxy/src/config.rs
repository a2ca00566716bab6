//! Settings of a proxy, validated.

use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};
use thiserror::Error;
use wire::{Dialect, ForcedSampling, Vocabulary};

use crate::body::RequestLimits;
use crate::feed::rows::RowSource;

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
    /// True to let calls pass that sample tokens on routes that report none.
    pub allow_unrecorded_sampling: bool,
    /// Certificate and key of the data listener, if it speaks TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The token that the control listener requires, if any.
    pub control_token: Option<String>,
    /// The source of the feed's rows.
    pub rows: Option<Arc<dyn RowSource>>,
    /// Maximum number of calls in flight, each until its reply has ended. Further calls wait.
    pub calls_max: usize,
    /// Longest request body that is held and recorded whole, in bytes. Of a longer one the
    /// beginning is recorded, and the request is forwarded unchanged.
    pub request_bytes_kept: usize,
    /// Longest request body, in bytes.
    pub request_bytes_max: u64,
    /// Longest reply that is recorded, in bytes.
    pub reply_bytes_max: usize,
    /// Time that calls in flight have to end after a shutdown request.
    pub drain_wait: Duration,
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
            allow_unrecorded_sampling: false,
            tls: None,
            control_token: None,
            rows: None,

            // Bounds. A request beyond what is kept is forwarded, and recorded in part.
            calls_max: 10_000,
            request_bytes_kept: 64 << 20,
            request_bytes_max: 1 << 30,
            reply_bytes_max: 256 << 20,
            drain_wait: Duration::from_secs(20),
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
}

/// The address of an inference server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    scheme: Scheme,
    pub(crate) authority: Authority,
    /// Path before `/v1`, without a trailing slash.
    prefix: String,
}

/// An upstream address that cannot be used.
#[derive(Debug, Clone, Error)]
pub enum InvalidUpstream {
    /// The text is not the address of a server.
    #[error("`{0}` is not an upstream; give http://HOST:PORT or https://HOST, with or without /v1")]
    NotServer(String),
    /// The text is the address of a route of a server.
    #[error("`{0}` is a route of a server; give the server, without `{1}`")]
    Route(String, &'static str),
}

/// Path endings of an address that names a route in place of a server.
const ROUTES: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];

impl std::str::FromStr for Upstream {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let uri: Uri = text.parse().map_err(|_| not_server(text))?;
        let scheme = uri.scheme().cloned().ok_or_else(|| not_server(text))?;
        if (scheme != Scheme::HTTP && scheme != Scheme::HTTPS) || uri.query().is_some() {
            return Err(not_server(text));
        }

        let path = uri.path().trim_end_matches('/');
        if let Some(route) = ROUTES.into_iter().find(|route| path.ends_with(route)) {
            return Err(InvalidUpstream::Route(text.to_owned(), route));
        }
        let prefix = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        Ok(Self {
            scheme,
            authority: uri.authority().cloned().ok_or_else(|| not_server(text))?,
            prefix,
        })
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
        let route = "http://h/v1/chat/completions".parse::<Upstream>().unwrap_err().to_string();
        assert!(route.ends_with("give the server, without `/chat/completions`"), "{route}");
    }
}
