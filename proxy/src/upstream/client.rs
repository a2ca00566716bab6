//! Single requests to an upstream: its address, its key, its connections, and what a failure means.

use std::error::Error;
use std::io;
use std::net::IpAddr;

use bytes::Bytes;
use http::body::BodyError;
use http::body::outgoing::OutgoingBody;
use http::client::{self, ClientOptions, HttpsClient, Versions};
use http::path::target::redacted;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::Extensions;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bounds::{CONNECT_WAIT, DOCUMENT_BYTES_MAX, READY_PROBE_WAIT, UPSTREAM_IDLE_WAIT};
use crate::config::address::Upstream;
use crate::config::{Config, InvalidSetting};
use crate::error::CallError;
use crate::upstream::keys::{self, KeyForm, KeyUse, OwnKey, VERSION};
use crate::upstream::reachability::Reachability;

/// The client of an upstream.
#[derive(Debug)]
pub(crate) struct UpstreamClient {
    pub(crate) upstream: Upstream,
    /// The one of the host's addresses that is called, if the host has several.
    address: Option<IpAddr>,
    /// The API key that replaces the agent's.
    key: Option<OwnKey>,
    connections: HttpsClient<OutgoingBody>,
    reachability: Reachability,
}

/// The head of a request, with the agent's key if it has one.
#[derive(Debug, Clone)]
pub(super) struct OutgoingHead<'a> {
    pub(super) method: Method,
    /// Path and query, as agents name them.
    pub(super) path: &'a str,
    pub(super) headers: HeaderMap,
    pub(super) extensions: Extensions,
    /// True if the client is one of Anthropic's API.
    pub(super) is_anthropic: bool,
}

impl<'a> OutgoingHead<'a> {
    /// The head of an agent's or a user's request.
    pub(super) fn new(method: Method, path: &'a str, headers: HeaderMap) -> Self {
        let is_anthropic = wire::is_anthropic_call(path, headers.contains_key(VERSION));
        Self { method, path, headers, extensions: Extensions::new(), is_anthropic }
    }

    /// The head of a question of rolltape itself.
    fn question(method: Method, path: &'a str, headers: HeaderMap) -> Self {
        Self { is_anthropic: false, ..Self::new(method, path, headers) }
    }

    fn key_use(&self) -> KeyUse {
        let path = self.path.split('?').next().unwrap_or(self.path);
        let route = wire::route(self.method.as_str(), path);
        KeyUse { route, is_anthropic: self.is_anthropic }
    }
}

impl UpstreamClient {
    /// A client of `upstream`, without connections yet. All go to `address` if there is one.
    ///
    /// # Errors
    /// [`InvalidSetting`] if the address or the key cannot be used.
    pub(super) fn new(
        config: &Config,
        upstream: Upstream,
        address: Option<IpAddr>,
        tls: &ClientConfig,
    ) -> Result<Self, InvalidSetting> {
        if upstream.has_credentials() {
            return Err(InvalidSetting::Credentials);
        }
        let key = config.upstream_key.as_deref().map(OwnKey::new).transpose();
        let options = ClientOptions {
            address,
            connect_wait: Some(CONNECT_WAIT),
            idle_wait: Some(UPSTREAM_IDLE_WAIT),
            versions: if config.upstream_http2 { Versions::Http2 } else { Versions::Negotiated },
        };
        Ok(Self {
            upstream,
            address,
            key: key.map_err(|_| InvalidSetting::Key)?,
            connections: client::https(tls, &options),
            reachability: Reachability::default(),
        })
    }

    /// True if the upstream is called with a key of its own.
    pub(super) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Sends a request once, with the upstream's own key if there is one.
    pub(super) async fn send_once(
        &self,
        head: OutgoingHead<'_>,
        body: OutgoingBody,
    ) -> Result<Response<Incoming>, CallError> {
        let form = self.key.as_ref().map(|key| key.form(head.key_use()));
        self.send_in_form(head, form, body).await
    }

    /// Sends a request whose body is at hand. If the upstream refuses its own key, the request is
    /// sent again with the key in another form.
    pub(super) async fn send_whole(
        &self,
        head: OutgoingHead<'_>,
        body: impl Fn() -> OutgoingBody,
    ) -> Result<Response<Incoming>, CallError> {
        let Some(key) = &self.key else { return self.send_in_form(head, None, body()).await };
        let calls = head.key_use();
        let form = key.form(calls);
        let reply = self.send_in_form(head.clone(), Some(form), body()).await?;
        let Some(other) = key.next_form(calls, form, reply.status()) else { return Ok(reply) };
        let Ok(second) = self.send_in_form(head, Some(other), body()).await else {
            return Ok(reply);
        };
        key.note(calls, other, second.status());
        // The first refusal is the one that the agent's own client would have got.
        Ok(if keys::is_refusal(second.status()) { reply } else { second })
    }

    async fn send_in_form(
        &self,
        mut head: OutgoingHead<'_>,
        form: Option<KeyForm>,
        body: OutgoingBody,
    ) -> Result<Response<Incoming>, CallError> {
        if let Some((key, form)) = self.key.as_ref().zip(form) {
            key.put(head.key_use(), form, &mut head.headers);
        }
        let uri = self.upstream.uri(head.path, head.is_anthropic);
        let request =
            uri.and_then(|uri| Request::builder().method(head.method).uri(uri).body(body));
        let mut request = request.map_err(|_| CallError::InvalidTag {
            name: "path",
            value: redacted(head.path).into_owned(),
            expected: "a path and query",
        })?;
        *request.headers_mut() = head.headers;
        *request.extensions_mut() = head.extensions;
        self.send(request).await
    }

    /// Sends a request. Notes whether it got an answer.
    async fn send(&self, request: Request<OutgoingBody>) -> Result<Response<Incoming>, CallError> {
        match self.connections.request(request).await {
            Ok(reply) => {
                self.reachability.note_answer(&self.upstream);
                Ok(reply)
            }
            Err(error) if error.is_connect() => Err(self.unreachable(&error).unsent()),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    /// Forwards a request to an engine control route. Neither it nor its reply has a size limit.
    pub(crate) async fn control(
        &self,
        head: Parts,
        body: OutgoingBody,
    ) -> Result<Response<Incoming>, CallError> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let outgoing = OutgoingHead::new(head.method, path, head.headers);
        match outgoing.method {
            // It has no body.
            Method::GET => self.send_whole(outgoing, OutgoingBody::default).await,
            _ => self.send_once(outgoing, body).await,
        }
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
        let credentials = keys::credentials_of(agent);
        self.ask((Method::GET, path), credentials, OutgoingBody::default).await
    }

    /// Sends a JSON document and fetches the reply, with our own key, or with the agent's.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: Bytes,
        agent: &HeaderMap,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let mut headers = keys::credentials_of(agent);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.ask((Method::POST, path), headers, || OutgoingBody::whole(body.clone(), None)).await
    }

    /// Asks a question, with our own key, or with that of the agent in `headers`.
    async fn ask(
        &self,
        (method, path): (Method, &str),
        headers: HeaderMap,
        body: impl Fn() -> OutgoingBody,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let mut head = OutgoingHead::question(method, path, headers);
        let mut reply = self.send_whole(head.clone(), &body).await?;
        // Servers of OpenAI's API do not know the header of Anthropic's clients.
        let is_refused = keys::is_refusal(reply.status()) && !self.has_key();
        if is_refused && keys::make_bearer(&mut head.headers) {
            reply = self.send_once(head, body()).await?;
        }
        let status = reply.status();
        let body = Limited::new(reply.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| CallError::Broken(error.to_string()))?.to_bytes()))
    }

    /// Tries to reach the upstream: with a connection, or, if it was lost, with a request, since
    /// what takes connections may still answer none. Over TLS a request is the first try, too: a
    /// port without TLS takes connections. Returns the reason if it cannot be reached.
    pub(crate) async fn try_reach(&self) -> Result<(), &'static str> {
        let is_untried = self.upstream.is_https() && !self.reachability.has_answered();
        if is_untried || self.lost_because().is_some() {
            let _ = timeout(READY_PROBE_WAIT, self.get("/v1/models")).await;
        } else {
            self.try_connect().await;
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
                return error.clone().into();
            }
        }
        match is_upstreams {
            true => self.unreachable_because(reason, &cause.to_string()),
            false => self.unreachable_error(reason, &cause.to_string()),
        }
    }

    /// Notes a failure of the upstream. Returns the error for the request that met it.
    pub(super) fn unreachable_because(&self, reason: &'static str, cause: &str) -> CallError {
        self.reachability.note_failure(&self.upstream, reason, cause);
        self.unreachable_error(reason, cause)
    }

    /// The error for a request that got no reply. Agents learn the `reason` and no address.
    fn unreachable_error(&self, reason: &'static str, cause: &str) -> CallError {
        let detail = format!("{}: {cause}", self.upstream);
        CallError::Unreachable { reason, detail, is_unsent: false }
    }
}

/// The kind of an error of a connection, in words that name no address.
fn reason_of(fault: &io::Error) -> &'static str {
    match fault.kind() {
        _ if is_tls_fault(fault, &is_plain) => "it does not speak TLS: name it with http://",
        _ if is_tls_fault(fault, &is_untrusted) => {
            "its certificate is not trusted: --upstream-ca names a file with its authority"
        }
        _ if is_tls_fault(fault, &|_| true) => "its TLS or its certificate is not accepted",
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::TimedOut => "timed out",
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => "the connection broke off",
        _ => "no connection",
    }
}

/// Returns true if such an error of TLS is behind the error of a connection.
fn is_tls_fault(fault: &io::Error, is_such: &dyn Fn(&rustls::Error) -> bool) -> bool {
    fault.get_ref().is_some_and(|inner| {
        inner.downcast_ref().is_some_and(is_such)
            || inner.downcast_ref().is_some_and(|inner| is_tls_fault(inner, is_such))
    })
}

/// Returns true for the error of a certificate whose authority is not known.
fn is_untrusted(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature
        )
    )
}

/// Returns true for the error that a server without TLS causes by its first bytes.
fn is_plain(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType))
}
