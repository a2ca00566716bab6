//! The client of the upstream: its connections, its dialect, and the fields that it refuses.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::body::BodyError;
use http::body::outgoing::OutgoingBody;
use http::body::request_body::RequestBody;
use http::path::target::redacted;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Error as ClientFailure;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use wire::{Dialect, REFUSAL_BYTES_MAX};

use crate::bounds::{DOCUMENT_BYTES_MAX, PROBE_WAIT, READY_PROBE_WAIT, REFUSAL_WAIT};
use crate::config::Config;
use crate::config::address::Upstream;
use crate::error::CallError;
use crate::upstream::connect::{self, Connections, InvalidSetting};
use crate::upstream::models::ModelList;
use crate::upstream::reachability::Reachability;
use crate::upstream::refusals::{Refusals, RequestClass};
use crate::upstream::rewrite::{self, Plan, Rewrite};
use crate::upstream::sampler_cache::SamplerCache;
use crate::upstream::stray::{SentRequest, StrayWarnings};
use crate::upstream::trailers;

/// The client of the upstream.
#[derive(Debug)]
pub(crate) struct Forward {
    upstream: Upstream,
    /// The one of the host's addresses that is called, if the host has several.
    address: Option<IpAddr>,
    /// The API key that replaces the agent's.
    key: Option<HeaderValue>,
    client: Connections,
    request_bytes_max: u64,
    dialect: OnceCell<Dialect>,
    probe_wait: Duration,
    pub(crate) refusals: Refusals,
    pub(super) samplers: SamplerCache,
    models: ModelList,
    stray_warnings: StrayWarnings,
    reachability: Reachability,
}

/// A server, as it is known before it is asked.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) upstream: Upstream,
    pub(crate) dialect: Option<Dialect>,
    /// The one of the host's addresses that is called, if the host has several.
    pub(crate) address: Option<IpAddr>,
}

/// The reason for which a probe does not tell the dialect.
enum DialectError {
    Failed(CallError),
    /// The upstream answered with an error status.
    Declined,
}

/// A request of an agent, its headers prepared for the upstream.
#[derive(Debug)]
pub(crate) struct AgentRequest<'a> {
    pub(crate) head: Parts,
    /// Path and query, without a tag.
    pub(crate) path: &'a str,
    pub(crate) body: RequestBody,
    pub(crate) class: RequestClass,
}

impl Forward {
    /// A client of the one upstream, without connections yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] if a certificate or the key cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Self, InvalidSetting> {
        let upstream = config.upstream.clone();
        let server = Server { upstream, dialect: config.dialect, address: None };
        Self::to(config, server, &connect::client_tls(&config.upstream_ca)?)
    }

    /// A client of `server`, without connections yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] if its address or the key cannot be used.
    pub(crate) fn to(
        config: &Config,
        server: Server,
        tls: &ClientConfig,
    ) -> Result<Self, InvalidSetting> {
        let Server { upstream, dialect, address } = server;
        if upstream.has_credentials() {
            return Err(InvalidSetting(
                "the upstream's address holds a user or a password; give the address without \
                 them, and name the variable that holds its key with --upstream-key-env",
            ));
        }
        let key = config.upstream_key.as_deref().map(HeaderValue::from_str).transpose();
        Ok(Self {
            upstream,
            address,
            key: key
                .map_err(|_| InvalidSetting("the upstream's key is not a valid header value"))?,
            client: connect::client(tls, address, config.upstream_http2),
            request_bytes_max: config.request_bytes_max,
            dialect: dialect.map_or_else(OnceCell::new, OnceCell::from),
            probe_wait: PROBE_WAIT,
            refusals: Refusals::default(),
            samplers: SamplerCache::default(),
            models: ModelList::default(),
            stray_warnings: StrayWarnings::default(),
            reachability: Reachability::default(),
        })
    }

    /// The upstream's dialect; probed once, with the credentials of the first agent. An upstream
    /// that declines the probe is treated as `openai`, and probed again by the next call.
    pub(crate) async fn dialect(&self, agent: &HeaderMap) -> Result<Dialect, CallError> {
        // The timeout includes the wait for earlier callers, who probe one after another.
        let probe = self.dialect.get_or_try_init(|| self.probe(agent));
        match timeout(self.probe_wait, probe).await {
            Ok(Ok(dialect)) => Ok(*dialect),
            Ok(Err(DialectError::Declined)) => Ok(Dialect::OpenAi),
            Ok(Err(DialectError::Failed(error))) => Err(error),
            Err(_) => Err(self.unreachable_because("no answer", "no answer")),
        }
    }

    /// Reads the dialect from the list of models, whose owner names the server.
    async fn probe(&self, agent: &HeaderMap) -> Result<Dialect, DialectError> {
        let (status, models) =
            self.fetch("/v1/models", agent).await.map_err(DialectError::Failed)?;
        if !status.is_success() {
            return Err(DialectError::Declined);
        }
        let dialect = wire::dialect_of_models(&models);
        tracing::info!(upstream = %self.upstream, dialect = dialect.as_str(), "upstream found");
        Ok(dialect)
    }

    /// The dialect, if it was probed or set.
    pub(crate) fn known_dialect(&self) -> Option<Dialect> {
        self.dialect.get().copied()
    }

    /// Sends a call. After a 400 that rolltape's own fields may have caused, it is sent again with
    /// fewer of them, at last with none. The fields that the upstream accepted are remembered. The
    /// returned [`Rewrite`] is that of the reply.
    pub(crate) async fn exchange(
        &self,
        request: &mut AgentRequest<'_>,
        plan: &Plan<'_>,
    ) -> Result<(Response<Incoming>, Rewrite), CallError> {
        if let Some(refusal) = plan.refusal() {
            return Err(refusal);
        }
        if let Some(rest) = request.body.rest.take() {
            let rewrite = plan.too_long();
            // The beginning is held until it is sent, and its memory given back then.
            let RequestBody { raw: beginning, memory, .. } = std::mem::take(&mut request.body);
            let body =
                OutgoingBody::streamed(beginning, trailers::cleaned(rest), self.request_bytes_max)
                    .charged_to(memory);
            return Ok((self.send(request, &rewrite, body).await?, rewrite));
        }

        // Start with the fields that requests of this class are known to be accepted with.
        let known = self.refusals.of(&request.class);
        let mut refused = known;
        loop {
            let rewrite = plan.rewrite(refused, &request.head.headers);
            let bytes = rewrite.body.clone().unwrap_or_else(|| request.body.raw.clone());
            let body = OutgoingBody::whole(bytes, request.body.trailers.clone());
            let reply = self.send(request, &rewrite, body).await?;
            if reply.status() == StatusCode::BAD_REQUEST && rewrite.asks {
                refused = refused.after(&rewrite.added, &read_refusal(reply).await);
                continue;
            }
            // Another error status, such as 429, has nothing to do with our fields.
            if reply.status().is_success() {
                match refused {
                    _ if refused != known => self.refusals.remember(&request.class, refused),
                    _ if refused.is_none() && rewrite.asks => {
                        self.refusals.note_accepted(&request.class);
                    }
                    _ => {}
                }
            }
            return Ok((reply, rewrite));
        }
    }

    async fn send(
        &self,
        agent: &AgentRequest<'_>,
        rewrite: &Rewrite,
        body: OutgoingBody,
    ) -> Result<Response<Incoming>, CallError> {
        let path = rewrite.path.unwrap_or(agent.path);
        let mut request = self.request(agent.head.method.clone(), path, body)?;
        // The extensions hold the spelling of the agent's header names.
        *request.extensions_mut() = agent.head.extensions.clone();
        *request.headers_mut() = agent.head.headers.clone();
        rewrite::set_headers(rewrite, self.key.as_ref(), request.headers_mut());

        let result = self.answered(self.client.request(request).await);
        if result.as_ref().map_or(true, |reply| reply.status().is_server_error()) {
            // The server may have been restarted with other defaults.
            self.samplers.clear();
        }
        let reply = result?;
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(CallError::Broken("it switched protocols, which nobody asked for".into()));
        }
        let (method, route) = (&agent.head.method, agent.class.route);
        let sent = SentRequest { method, path: agent.path, route };
        self.stray_warnings.check(sent, reply.status());
        Ok(reply)
    }

    /// Forwards a request to an engine control route. Neither it nor its reply has a size limit.
    pub(crate) async fn control(
        &self,
        head: Parts,
        body: OutgoingBody,
    ) -> Result<Response<Incoming>, CallError> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = self.request(head.method, path, body)?;
        *request.headers_mut() = head.headers;
        rewrite::set_credentials(self.key.as_ref(), request.headers_mut());
        self.answered(self.client.request(request).await)
    }

    /// Notes whether a request got an answer.
    fn answered<T>(&self, result: Result<T, ClientFailure>) -> Result<T, CallError> {
        match result {
            Ok(reply) => {
                self.reachability.note_answer(&self.upstream);
                Ok(reply)
            }
            Err(error) if error.is_connect() => Err(self.unreachable(&error).unsent()),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    /// Tries to reach the upstream: with a connection, or, if it was lost, with a request, since
    /// what takes connections may still answer none. Returns the reason if it cannot be reached.
    pub(crate) async fn try_reach(&self) -> Result<(), &'static str> {
        match self.reachability.lost_because() {
            None => self.try_connect().await,
            Some(_) => {
                let _ = timeout(READY_PROBE_WAIT, self.get("/v1/models")).await;
            }
        }
        self.lost_because().map_or(Ok(()), Err)
    }

    /// Opens a connection and closes it. A success says little, and is not noted.
    async fn try_connect(&self) {
        let failure = match timeout(READY_PROBE_WAIT, self.connect()).await {
            Ok(Ok(_)) => return,
            Ok(Err(fault)) => fault,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        self.unreachable_because(reason_of(&failure), &failure.to_string());
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let (host, port) = self.upstream.host();
        match self.address {
            Some(address) => TcpStream::connect((address, port)).await,
            None => TcpStream::connect((host, port)).await,
        }
    }

    /// The reason for which the last attempt to reach the upstream failed; `None` if it did not.
    pub(crate) fn lost_because(&self) -> Option<&'static str> {
        self.reachability.lost_because()
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: OutgoingBody,
    ) -> Result<Request<OutgoingBody>, CallError> {
        let request = self
            .upstream
            .uri(path)
            .and_then(|uri| Request::builder().method(method).uri(uri).body(body));
        request.map_err(|_| CallError::InvalidTag {
            name: "path",
            value: redacted(path).into_owned(),
            expected: "a path and query",
        })
    }

    /// The error for a request that got no reply, with its innermost cause.
    fn unreachable(&self, error: &(dyn Error + 'static)) -> CallError {
        let mut cause = error;
        let mut reason = "it sent no whole answer";
        let mut is_upstreams = true;
        while let Some(source) = cause.source() {
            cause = source;
            if let Some(fault) = cause.downcast_ref::<io::Error>() {
                reason = reason_of(fault);
            }
            // The agent left while its body was sent.
            is_upstreams &=
                !cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user);
            // The agent's body exceeded its limit, or its time, while it was sent.
            if let Some(error) = cause.downcast_ref::<BodyError>() {
                return (*error).into();
            }
        }
        match is_upstreams {
            true => self.unreachable_because(reason, &cause.to_string()),
            false => self.unreachable_error(reason, &cause.to_string()),
        }
    }

    /// Notes a failure of the upstream. Returns the error for the request that met it.
    fn unreachable_because(&self, reason: &'static str, cause: &str) -> CallError {
        self.reachability.note_failure(&self.upstream, reason, cause);
        self.unreachable_error(reason, cause)
    }

    /// The error for a request that got no reply. Agents learn the `reason` and no address.
    fn unreachable_error(&self, reason: &'static str, cause: &str) -> CallError {
        let detail = format!("{}: {cause}", self.upstream);
        CallError::Unreachable { reason, detail, is_unsent: false }
    }

    /// Fetches a document with our own key.
    pub(crate) async fn get(&self, path: &str) -> Result<(StatusCode, Bytes), CallError> {
        self.fetch(path, &HeaderMap::new()).await
    }

    /// Fetches a document with our own key, or with the agent's.
    pub(crate) async fn fetch(
        &self,
        path: &str,
        agent: &HeaderMap,
    ) -> Result<(StatusCode, Bytes), CallError> {
        self.ask(self.request(Method::GET, path, OutgoingBody::default())?, agent).await
    }

    /// Sends a JSON document and fetches the reply, with our own key, or with the agent's.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: Bytes,
        agent: &HeaderMap,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let mut request = self.request(Method::POST, path, OutgoingBody::whole(body, None))?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.ask(request, agent).await
    }

    async fn ask(
        &self,
        mut request: Request<OutgoingBody>,
        agent: &HeaderMap,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let own = self.key.as_ref().and_then(|key| rewrite::bearer(key).ok());
        if let Some(key) = own.or_else(|| agent.get(AUTHORIZATION).cloned()) {
            request.headers_mut().insert(AUTHORIZATION, key);
        }
        let reply = self.answered(self.client.request(request).await)?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| CallError::Broken(error.to_string()))?.to_bytes()))
    }

    /// Drops the translation of a plan whose model the upstream does not have: its own route
    /// refuses such a model, and its chat route would accept it.
    pub(crate) async fn untranslate_unknown_model<'a>(
        &self,
        plan: Plan<'a>,
        agent: &HeaderMap,
    ) -> Plan<'a> {
        match plan.unchecked_model() {
            Some(name) if !self.has_model(&name, agent).await => plan.without_translation(),
            _ => plan,
        }
    }

    /// True if the upstream lists the model, or lists none.
    async fn has_model(&self, name: &str, agent: &HeaderMap) -> bool {
        if self.models.contains(name) {
            return true;
        }
        match self.fetch("/v1/models", agent).await {
            Ok((status, list)) if status.is_success() => self.models.replace(&list),
            _ => return true,
        }
        self.models.contains(name)
    }

    /// Notes that the upstream may have other weights now.
    pub(crate) fn weights_changed(&self) {
        self.samplers.clear();
    }

    /// Forgets the fields that the upstream refused.
    pub(crate) fn forget_refused(&self) {
        self.refusals.clear();
    }
}

/// The kind of an error of a connection, in words that name no address.
fn reason_of(fault: &io::Error) -> &'static str {
    match fault.kind() {
        _ if is_tls_fault(fault) => "its TLS or its certificate is not accepted",
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::TimedOut => "timed out",
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => "the connection broke off",
        _ => "no connection",
    }
}

/// Returns true if an error of TLS is behind the error of a connection.
fn is_tls_fault(fault: &io::Error) -> bool {
    fault.get_ref().is_some_and(|inner| {
        inner.is::<rustls::Error>() || inner.downcast_ref().is_some_and(is_tls_fault)
    })
}

/// The agent's `authorization` header alone.
pub(super) fn credentials_of(agent: &HeaderMap) -> HeaderMap {
    let mut credentials = HeaderMap::new();
    credentials.extend(agent.get(AUTHORIZATION).map(|key| (AUTHORIZATION, key.clone())));
    credentials
}

/// The body of a refusal; empty if it cannot be read.
async fn read_refusal(reply: Response<Incoming>) -> Bytes {
    let body = Limited::new(reply.into_body(), REFUSAL_BYTES_MAX).collect();
    match timeout(REFUSAL_WAIT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
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
        assert!(
            [a, b, c, d, e].iter().all(|told| matches!(told, Err(CallError::Unreachable { .. })))
        );
        assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    }
}
