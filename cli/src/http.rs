//! A small HTTP client for JSON: the control listener, and the demo's agent.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::exit::Failure;

const REPLY_BYTES_MAX: usize = 1 << 30;

/// A pool of connections.
#[derive(Debug, Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

impl Http {
    /// A client without connections yet.
    pub(crate) fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Self(Client::builder(TokioExecutor::new()).build(tcp))
    }

    /// Sends `body` (nothing, if null) and reads JSON.
    pub(crate) async fn json(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<(u16, Value), Failure> {
        let (status, _, body) = self.begin(method, url, headers, body).await?;
        Ok((status, serde_json::from_slice(&whole(body, url).await?).unwrap_or(Value::Null)))
    }

    /// Sends `body` (nothing, if null) and reads the head of the reply.
    pub(crate) async fn begin(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<(u16, HeaderMap, Incoming), Failure> {
        let failed = |what: &dyn std::error::Error| {
            let cause = Failure::of(what);
            cause.context(&format!("no answer from {url}"))
        };
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(bytes))
            .map_err(|e| failed(&e))?;
        for (name, value) in headers {
            let name: hyper::header::HeaderName = name.parse().map_err(|_| bad(name))?;
            request.headers_mut().insert(name, value.parse().map_err(|_| bad(value))?);
        }
        let reply = self.0.request(request).await.map_err(|e| failed(&e))?;
        let (head, body) = reply.into_parts();
        Ok((head.status.as_u16(), head.headers, body))
    }
}

/// A reply from there, read whole.
pub(crate) async fn whole(body: Incoming, url: &str) -> Result<Bytes, Failure> {
    let body = Limited::new(body, REPLY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| Failure::new(format!("no answer from {url}: {error}")))?;
    Ok(body.to_bytes())
}

fn bad(text: &str) -> Failure {
    Failure::new(format!("`{text}` cannot stand in a header"))
}
