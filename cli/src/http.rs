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

/// The address of a server, with or without `http://` in front of it and a slash behind.
pub(crate) fn base(text: &str) -> String {
    let text = text.trim_end_matches('/');
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}

/// A value as it stands in a query.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' | b',' | b':' => {
                out.push(char::from(byte));
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// A refusal of the control listener with a way out, where its status tells one.
pub(crate) fn hinted(failure: Failure, status: u16) -> Failure {
    match status {
        401 => failure.hint("name the variable that holds its token with --control-token-env"),
        404 | 405 => failure.hint(
            "is --control the control listener? `rolltape serve` says at its start where that is; \
             agents call another one",
        ),
        _ => failure,
    }
}

fn bad(text: &str) -> Failure {
    Failure::new(format!("`{text}` cannot stand in a header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_no_scheme() {
        assert_eq!(base("127.0.0.1:8081"), "http://127.0.0.1:8081");
        assert_eq!(base("https://h/"), "https://h");
    }

    #[test]
    fn values_of_a_query_are_escaped() {
        assert_eq!(escaped("main,fork"), "main,fork");
        assert_eq!(escaped("a b&c=d%é"), "a%20b%26c%3Dd%25%C3%A9");
    }
}
