//! The upstream: a pool of connections, its dialect, and what it would not be asked.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use episode::Route;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::sync::OnceCell;
use wire::{Dialect, REFUSAL_BYTES_MAX, Refused};

use crate::accept::Taken;
use crate::config::{Config, Upstream};
use crate::connect::{self, BadSetting, Connections};
use crate::fault::Fault;
use crate::learn::Samplers;
use crate::models::Models;
use crate::outgoing::Outgoing;
use crate::rewrite::{self, Plan, Rewrite};
use crate::stray::Strays;

const PROBE_WAIT: Duration = Duration::from_secs(10);
const PROBE_BYTES_MAX: usize = 16 << 20;
/// How long a refusal may take to be read.
const REFUSAL_WAIT: Duration = Duration::from_secs(5);
/// Kinds of call that the upstream refused with our fields and took with fewer.
const REFUSED_KINDS_MAX: usize = 1024;

/// The client side of the proxy.
#[derive(Debug)]
pub(crate) struct Forward {
    upstream: Upstream,
    key: Option<HeaderValue>,
    client: Connections,
    /// HTTP/2 has no upgrades of the kind that agents ask for.
    upgrades: Connections,
    request_bytes_max: u64,
    dialect: OnceCell<Dialect>,
    /// How long a call waits for the dialect.
    probe_wait: Duration,
    refused: Mutex<HashMap<Kind, Refused>>,
    pub(crate) samplers: Samplers,
    pub(crate) models: Models,
    strays: Strays,
}

/// Calls that are refused alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) route: Route,
    pub(crate) model: Option<String>,
    pub(crate) streams: bool,
    pub(crate) has_tools: bool,
}

impl Kind {
    /// The kind of a request to `route`.
    pub(crate) fn of(route: Route, model: Option<String>, sent: Option<&wire::Request>) -> Self {
        let has = |what: fn(&wire::Request) -> bool| sent.is_some_and(what);
        let (streams, has_tools) = (has(wire::Request::streams), has(wire::Request::has_tools));
        Self { route, model, streams, has_tools }
    }
}

/// Why the dialect is not known yet.
enum Untold {
    Fault(Fault),
    Silent,
}

/// A request of an agent.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) head: Parts,
    pub(crate) path: &'a str,
    pub(crate) body: Taken,
    pub(crate) kind: Kind,
}

impl Forward {
    /// # Errors
    /// [`BadSetting`] when a certificate or the key cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Self, BadSetting> {
        let key = config.upstream_key.as_deref().map(HeaderValue::from_str).transpose();
        Ok(Self {
            upstream: config.upstream.clone(),
            key: key.map_err(|_| BadSetting("the key for the upstream is no header value"))?,
            client: connect::client(config)?,
            upgrades: connect::http1_client(config)?,
            request_bytes_max: config.request_bytes_max,
            dialect: config.dialect.map_or_else(OnceCell::new, OnceCell::from),
            probe_wait: PROBE_WAIT,
            refused: Mutex::default(),
            samplers: Samplers::default(),
            models: Models::default(),
            strays: Strays::default(),
        })
    }

    /// How the upstream speaks; asked of it with the first agent's own credentials. An upstream
    /// that will not say is spoken to plainly, and asked again by the next call.
    pub(crate) async fn dialect(&self, agent: &HeaderMap) -> Result<Dialect, Fault> {
        let probe =
            || async { self.probe(agent).await.map_err(Untold::Fault)?.ok_or(Untold::Silent) };
        // The wait holds for the calls that asked before, too: they take turns.
        let told = tokio::time::timeout(self.probe_wait, self.dialect.get_or_try_init(probe));
        match told.await {
            Ok(Ok(dialect)) => Ok(*dialect),
            Ok(Err(Untold::Silent)) => Ok(Dialect::OpenAi),
            Ok(Err(Untold::Fault(fault))) => Err(fault),
            Err(_) => Err(Fault::Unreachable(self.upstream.to_string(), "no answer".to_owned())),
        }
    }

    /// The owner of the listed models tells the server.
    async fn probe(&self, agent: &HeaderMap) -> Result<Option<Dialect>, Fault> {
        let (status, models) = self.fetch("/v1/models", agent).await?;
        if !status.is_success() {
            return Ok(None);
        }
        let dialect = wire::dialect_of_models(&models);
        tracing::info!(upstream = %self.upstream, dialect = dialect.as_str(), "upstream found");
        Ok(Some(dialect))
    }

    /// Sends a call. After a 400 that our own fields may have caused it is sent again with fewer of
    /// them, at last with none; with what it was taken is remembered. The [`Rewrite`] is what holds
    /// for the reply.
    pub(crate) async fn exchange(
        &self,
        mut sent: Sent<'_>,
        plan: &Plan<'_>,
    ) -> Result<(Response<Incoming>, Rewrite), Fault> {
        if let Some(refusal) = plan.refusal() {
            return Err(refusal);
        }
        if let Some(rest) = sent.body.rest.take() {
            let rewrite = plan.too_long();
            let body = Outgoing::long(sent.body.raw.clone(), rest, self.request_bytes_max);
            return Ok((self.send(&sent, &rewrite, body).await?, rewrite));
        }
        let known = self.refused_by(&sent.kind);
        let mut refused = known;
        loop {
            let rewrite = plan.rewrite(refused, &sent.head.headers);
            let body = rewrite.body.clone().unwrap_or_else(|| sent.body.raw.clone());
            let body = Outgoing::whole(body, sent.body.trailers.clone());
            let reply = self.send(&sent, &rewrite, body).await?;
            if reply.status() == StatusCode::BAD_REQUEST && rewrite.asks {
                refused = refused.after(&rewrite.added, &read_refusal(reply).await);
                continue;
            }
            // Anything else, a 429 say, tells nothing of our fields.
            if reply.status().is_success() && refused != known {
                self.remember_refused(&sent.kind, refused);
            }
            return Ok((reply, rewrite));
        }
    }

    /// Sends a request for another protocol.
    pub(crate) async fn upgrade(
        &self,
        head: &Parts,
        path: &str,
    ) -> Result<Response<Incoming>, Fault> {
        let mut request = self.request(head.method.clone(), path, Outgoing::default())?;
        *request.extensions_mut() = head.extensions.clone();
        *request.headers_mut() = head.headers.clone();
        rewrite::credentials(self.key.as_ref(), request.headers_mut());
        self.upgrades.request(request).await.map_err(|e| self.unreachable(&e))
    }

    /// Passes a request to a control route on, however long it and its reply are.
    pub(crate) async fn control(
        &self,
        head: Parts,
        body: Incoming,
    ) -> Result<Response<Incoming>, Fault> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let body = Outgoing::long(Bytes::new(), body, u64::MAX);
        let mut request = self.request(head.method, path, body)?;
        *request.headers_mut() = head.headers;
        rewrite::credentials(self.key.as_ref(), request.headers_mut());
        self.client.request(request).await.map_err(|e| self.unreachable(&e))
    }

    /// How the upstream speaks, as far as it was asked.
    pub(crate) fn known_dialect(&self) -> Option<Dialect> {
        self.dialect.get().copied()
    }

    async fn send(
        &self,
        sent: &Sent<'_>,
        rewrite: &Rewrite,
        body: Outgoing,
    ) -> Result<Response<Incoming>, Fault> {
        let path = rewrite.path.unwrap_or(sent.path);
        let mut request = self.request(sent.head.method.clone(), path, body)?;
        // The spelling of the agent's header names travels with its extensions.
        *request.extensions_mut() = sent.head.extensions.clone();
        *request.headers_mut() = sent.head.headers.clone();
        rewrite::headers_for(rewrite, self.key.as_ref(), request.headers_mut());
        let reply = self.client.request(request).await;
        if reply.as_ref().map_or(true, |reply| reply.status().is_server_error()) {
            self.samplers.forget();
        }
        let reply = reply.map_err(|e| self.unreachable(&e))?;
        self.strays.look((&sent.head.method, sent.path, sent.kind.route), reply.status());
        Ok(reply)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Outgoing,
    ) -> Result<Request<Outgoing>, Fault> {
        let bad = |_| Fault::BadTag("the path", path.to_owned(), "a path and query");
        let uri = self.upstream.uri(path).map_err(bad)?;
        Request::builder().method(method).uri(uri).body(body).map_err(bad)
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> Fault {
        let mut cause = error;
        while let Some(source) = cause.source() {
            cause = source;
            if let Some(Fault::TooLong(bytes_max)) = cause.downcast_ref() {
                return Fault::TooLong(*bytes_max);
            }
        }
        Fault::Unreachable(self.upstream.to_string(), cause.to_string())
    }

    /// Fetches a document of at most a few MiB, with our own key.
    pub(crate) async fn get(&self, path: &str) -> Result<(StatusCode, Bytes), Fault> {
        self.fetch(path, &HeaderMap::new()).await
    }

    /// Fetches a document with our own key, or with the agent's.
    pub(crate) async fn fetch(
        &self,
        path: &str,
        agent: &HeaderMap,
    ) -> Result<(StatusCode, Bytes), Fault> {
        self.ask(self.request(Method::GET, path, Outgoing::default())?, agent).await
    }

    /// Sends a document of JSON and fetches the answer, with our own key, or with the agent's.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: Bytes,
        agent: &HeaderMap,
    ) -> Result<(StatusCode, Bytes), Fault> {
        let mut request = self.request(Method::POST, path, Outgoing::whole(body, None))?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.ask(request, agent).await
    }

    async fn ask(
        &self,
        mut request: Request<Outgoing>,
        agent: &HeaderMap,
    ) -> Result<(StatusCode, Bytes), Fault> {
        let agents = agent.get(AUTHORIZATION).cloned();
        let own = self.key.as_ref().and_then(|key| rewrite::bearer(key).ok());
        if let Some(key) = own.or(agents) {
            request.headers_mut().insert(AUTHORIZATION, key);
        }
        let reply = self.client.request(request).await.map_err(|e| self.unreachable(&e))?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), PROBE_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|e| Fault::Broken(e.to_string()))?.to_bytes()))
    }

    /// Forgets what the upstream would not be asked.
    pub(crate) fn forget_refused(&self) {
        if let Ok(mut kinds) = self.refused.lock() {
            kinds.clear();
        }
    }

    fn refused_by(&self, kind: &Kind) -> Refused {
        let kinds = self.refused.lock();
        kinds.ok().and_then(|kinds| kinds.get(kind).copied()).unwrap_or_default()
    }

    fn remember_refused(&self, kind: &Kind, refused: Refused) {
        let fields: Vec<&str> = refused.names().collect();
        tracing::warn!(?kind, ?fields, "the upstream refuses to be asked with these fields");
        if let Ok(mut kinds) = self.refused.lock()
            && (kinds.len() < REFUSED_KINDS_MAX || kinds.contains_key(kind))
        {
            kinds.insert(kind.clone(), refused);
        }
    }
}

/// What a refusal says; nothing where that cannot be read.
async fn read_refusal(reply: Response<Incoming>) -> Bytes {
    let body = Limited::new(reply.into_body(), REFUSAL_BYTES_MAX).collect();
    match tokio::time::timeout(REFUSAL_WAIT, body).await {
        Ok(Ok(read)) => read.to_bytes(),
        _ => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_upstream_keeps_no_call_waiting_behind_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap());
        let mut forward = Forward::new(&Config::new(upstream.parse().unwrap())).unwrap();
        forward.probe_wait = Duration::from_secs(5);
        let (asked, agent) = (Instant::now(), HeaderMap::new());
        let (a, b, c, d, e) = tokio::join!(
            forward.dialect(&agent),
            forward.dialect(&agent),
            forward.dialect(&agent),
            forward.dialect(&agent),
            forward.dialect(&agent),
        );
        assert!([a, b, c, d, e].iter().all(|told| matches!(told, Err(Fault::Unreachable(..)))));
        assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    }
}
