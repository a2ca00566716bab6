//! What the proxy needs to know, already checked.

use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};
use thiserror::Error;
use wire::{Dialect, Force, Vocabulary};

use crate::feed::RowSource;

/// Bounds and choices of a proxy.
#[derive(Debug, Clone)]
pub struct Config {
    /// The inference server.
    pub upstream: Upstream,
    /// How it speaks; probed when not named.
    pub dialect: Option<Dialect>,
    /// What its logprobs are (`processed`, `temperature`, `raw`), when the user knows.
    pub logprob_kind: Option<String>,
    /// When calls on the Responses and Messages routes go to the upstream's chat route.
    pub translate: Translate,
    /// What to record beside ids and logprobs.
    pub beside: Beside,
    /// The upstream's tokens by their bytes, for servers that report no ids.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// Sampling parameters that every request gets, unless its episode has its own.
    pub force: Force,
    /// The API key for the upstream, in place of the agent's.
    pub upstream_key: Option<String>,
    /// PEM certificates to trust beside the system's.
    pub upstream_ca: Vec<u8>,
    /// Whether a plain upstream is spoken to in HTTP/2 from the first byte.
    pub upstream_http2: bool,
    /// Whether calls pass that sample where nothing tells the tokens.
    pub allow_unrecorded_sampling: bool,
    /// Certificate and key of the data listener, where it speaks TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// What the control listener asks for, where it asks.
    pub control_token: Option<String>,
    /// Makes the rows of the feed.
    pub rows: Option<Arc<dyn RowSource>>,
    /// Calls in flight at once, each until its reply has ended; more wait.
    pub calls_max: usize,
    /// Longest request body that is held and recorded whole, in bytes. Of a longer one the
    /// beginning is recorded, and the upstream is asked for nothing.
    pub request_bytes_kept: usize,
    /// Longest request body, in bytes.
    pub request_bytes_max: u64,
    /// Longest reply that is kept, in bytes.
    pub reply_bytes_max: usize,
    /// How long calls in flight may take to end once a shutdown was asked for.
    pub drain_wait: Duration,
}

/// When calls are translated to chat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Translate {
    /// Where the upstream would not say which tokens it sampled.
    #[default]
    Auto,
    /// Never: such calls are recorded as text.
    Never,
    /// On every Responses and Messages call.
    Always,
}

/// Arrays to record beside ids and logprobs, where the upstream gives them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Beside {
    /// Alternatives to each token; 0 for none.
    pub top_logprobs: u32,
    /// Which experts each token was routed to.
    pub routed_experts: bool,
    /// Which tokens truncated sampling left to choose from.
    pub sampling_mask: bool,
}

impl Config {
    /// The defaults for `upstream`.
    pub fn new(upstream: Upstream) -> Self {
        Self {
            upstream,
            dialect: None,
            logprob_kind: None,
            translate: Translate::default(),
            beside: Beside::default(),
            vocabulary: None,
            force: Force::default(),
            upstream_key: None,
            upstream_ca: Vec::new(),
            upstream_http2: false,
            allow_unrecorded_sampling: false,
            tls: None,
            control_token: None,
            rows: None,
            calls_max: 10_000,
            request_bytes_kept: 64 << 20,
            request_bytes_max: 1 << 30,
            reply_bytes_max: 256 << 20,
            drain_wait: Duration::from_secs(20),
        }
    }

    /// What the logprobs of an upstream that speaks `dialect` are, as far as it is known.
    pub fn logprob_kind_of(&self, dialect: Dialect) -> &str {
        self.logprob_kind.as_deref().unwrap_or_else(|| dialect.logprob_kind())
    }

    /// How much of a request is held, and how long it may be, in bytes.
    pub(crate) fn request_bytes(&self) -> (usize, u64) {
        (self.request_bytes_kept, self.request_bytes_max)
    }
}

/// Where an inference server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    scheme: Scheme,
    pub(crate) authority: Authority,
    /// Path in front of `/v1`, without a slash at its end.
    prefix: String,
}

/// An upstream address that cannot be used.
#[derive(Debug, Clone, Error)]
pub enum BadUpstream {
    /// It is no address of a server.
    #[error("`{0}` is not an upstream; give http://HOST:PORT or https://HOST, with or without /v1")]
    NoServer(String),
    /// It is the address of one of a server's routes.
    #[error("`{0}` is a route of a server; give the server, without `{1}`")]
    Route(String, &'static str),
}

/// What follows `/v1` where a route was taken for a server.
const ROUTES: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];

impl std::str::FromStr for Upstream {
    type Err = BadUpstream;

    fn from_str(text: &str) -> Result<Self, BadUpstream> {
        let bad = || BadUpstream::NoServer(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let scheme = uri.scheme().cloned().ok_or_else(bad)?;
        if (scheme != Scheme::HTTP && scheme != Scheme::HTTPS) || uri.query().is_some() {
            return Err(bad());
        }
        let path = uri.path().trim_end_matches('/');
        if let Some(route) = ROUTES.into_iter().find(|route| path.ends_with(route)) {
            return Err(BadUpstream::Route(text.to_owned(), route));
        }
        let prefix = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        Ok(Self { scheme, authority: uri.authority().cloned().ok_or_else(bad)?, prefix })
    }
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
