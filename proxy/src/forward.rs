//! The upstream: a pool of connections, its dialect, and what it would not be asked.

use std::collections::HashSet;
use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use episode::Route;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::OnceCell;
use wire::{Dialect, Hide};

use crate::config::{Config, Upstream};
use crate::fault::Fault;
use crate::rewrite::Rewrite;

const CONNECT_WAIT: Duration = Duration::from_secs(10);
const PROBE_WAIT: Duration = Duration::from_secs(10);
const PROBE_BYTES_MAX: usize = 16 << 20;
/// Kinds of call that the upstream refused with our fields and took without.
const UNASKED_KINDS_MAX: usize = 1024;

/// The client side of the proxy.
#[derive(Debug)]
pub(crate) struct Forward {
    upstream: Upstream,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    dialect: OnceCell<Dialect>,
    unasked: Mutex<HashSet<Kind>>,
}

/// Calls that are refused alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) route: Route,
    pub(crate) model: Option<String>,
    pub(crate) streams: bool,
}

/// Why the dialect is not known yet.
enum Untold {
    Fault(Fault),
    Silent,
}

/// What goes out.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: HeaderMap,
    pub(crate) kind: Kind,
}

impl Forward {
    pub(crate) fn new(config: &Config) -> Self {
        let mut tcp = HttpConnector::new();
        // Without it the second small write of a request waits for the peer's delayed ACK: 40 ms.
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_WAIT));
        tcp.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_webpki_roots().https_or_http().enable_http1();
        Self {
            upstream: config.upstream.clone(),
            client: Client::builder(TokioExecutor::new()).build(https.wrap_connector(tcp)),
            dialect: config.dialect.map_or_else(OnceCell::new, OnceCell::from),
            unasked: Mutex::new(HashSet::new()),
        }
    }

    /// How the upstream speaks; asked of it with the first agent's own credentials. An upstream
    /// that will not say is spoken to plainly, and asked again by the next call.
    pub(crate) async fn dialect(&self, agent: &HeaderMap) -> Result<Dialect, Fault> {
        let probe = || async {
            let late = |_| Fault::Unreachable(self.upstream.to_string(), "no answer".to_owned());
            let told = tokio::time::timeout(PROBE_WAIT, self.probe(agent)).await.map_err(late);
            told.and_then(|told| told).map_err(Untold::Fault)?.ok_or(Untold::Silent)
        };
        match self.dialect.get_or_try_init(probe).await {
            Ok(dialect) => Ok(*dialect),
            Err(Untold::Silent) => Ok(Dialect::OpenAi),
            Err(Untold::Fault(fault)) => Err(fault),
        }
    }

    /// The owner of the listed models tells the server.
    async fn probe(&self, agent: &HeaderMap) -> Result<Option<Dialect>, Fault> {
        let mut request = self.request(Method::GET, "/v1/models", Bytes::new())?;
        if let Some(key) = agent.get(AUTHORIZATION) {
            request.headers_mut().insert(AUTHORIZATION, key.clone());
        }
        let reply = self.client.request(request).await.map_err(|e| self.unreachable(&e))?;
        if !reply.status().is_success() {
            return Ok(None);
        }
        let body = Limited::new(reply.into_body(), PROBE_BYTES_MAX).collect().await;
        let models = body.map_err(|e| Fault::Broken(e.to_string()))?.to_bytes();
        let dialect = wire::dialect_of_models(&models);
        tracing::info!(upstream = %self.upstream, dialect = dialect.as_str(), "upstream found");
        Ok(Some(dialect))
    }

    /// Sends a call. A 400 that our own fields may have caused is answered by sending the agent's
    /// own body once, and remembered when that was it. The `Hide` is what holds for the reply.
    pub(crate) async fn exchange(
        &self,
        out: &Outgoing<'_>,
        rewrite: Rewrite,
        own: &Bytes,
    ) -> Result<(Response<Incoming>, Hide), Fault> {
        if rewrite.hide.nothing() || self.is_unasked(&out.kind) {
            return Ok((self.send(out, own.clone()).await?, Hide::default()));
        }
        let reply = self.send(out, rewrite.body).await?;
        if reply.status() != StatusCode::BAD_REQUEST {
            return Ok((reply, rewrite.hide));
        }
        let plain = self.send(out, own.clone()).await?;
        if plain.status() != StatusCode::BAD_REQUEST {
            self.remember_unasked(&out.kind);
        }
        Ok((plain, Hide::default()))
    }

    async fn send(&self, out: &Outgoing<'_>, body: Bytes) -> Result<Response<Incoming>, Fault> {
        let mut request = self.request(out.method.clone(), out.path, body)?;
        *request.headers_mut() = out.headers.clone();
        self.client.request(request).await.map_err(|e| self.unreachable(&e))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Fault> {
        let bad = |_| Fault::BadTag("the path", path.to_owned(), "a path and query");
        let uri = self.upstream.uri(path).map_err(bad)?;
        Request::builder().method(method).uri(uri).body(Full::new(body)).map_err(bad)
    }

    fn unreachable(&self, error: &dyn Error) -> Fault {
        let mut cause = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        Fault::Unreachable(self.upstream.to_string(), cause.to_string())
    }

    fn is_unasked(&self, kind: &Kind) -> bool {
        self.unasked.lock().is_ok_and(|kinds| kinds.contains(kind))
    }

    fn remember_unasked(&self, kind: &Kind) {
        tracing::warn!(?kind, "the upstream refuses to report tokens for this kind of call");
        if let Ok(mut kinds) = self.unasked.lock()
            && kinds.len() < UNASKED_KINDS_MAX
        {
            kinds.insert(kind.clone());
        }
    }
}
