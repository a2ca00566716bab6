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
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bounds::{CONNECT_WAIT, DOCUMENT_BYTES_MAX, READY_PROBE_WAIT, UPSTREAM_IDLE_WAIT};
use crate::config::address::Upstream;
use crate::config::{Config, InvalidSetting};
use crate::error::CallError;
use crate::upstream::reachability::Reachability;
use crate::upstream::rewrite;

/// The client of an upstream.
#[derive(Debug)]
pub(crate) struct UpstreamClient {
    pub(super) upstream: Upstream,
    /// The one of the host's addresses that is called, if the host has several.
    address: Option<IpAddr>,
    /// The API key that replaces the agent's.
    pub(super) key: Option<HeaderValue>,
    connections: HttpsClient<OutgoingBody>,
    reachability: Reachability,
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
        let key = config.upstream_key.as_deref().map(HeaderValue::from_str).transpose();
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

    /// A request to a path and query of this upstream.
    pub(super) fn request(
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

    /// Sends a request. Notes whether it got an answer.
    pub(super) async fn send(
        &self,
        request: Request<OutgoingBody>,
    ) -> Result<Response<Incoming>, CallError> {
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
        let mut request = self.request(head.method, path, body)?;
        *request.headers_mut() = head.headers;
        rewrite::set_credentials(self.key.as_ref(), request.headers_mut());
        self.send(request).await
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
        let reply = self.send(request).await?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| CallError::Broken(error.to_string()))?.to_bytes()))
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
