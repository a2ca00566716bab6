//! A small HTTP client for JSON, for the control listener and for the demo's agent.

use bytes::Bytes;
use http::client::{self, ClientOptions, HttpClient, HttpsClient, SocketClient, socket};
use http::tls::client_config;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{HeaderMap, Method, Request, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::exit::Failure;
use crate::options::address::UNIX;

/// Longest reply that is read, in bytes.
const REPLY_BYTES_MAX: usize = 1 << 30;

/// Bytes that a value of a query holds escaped only.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b',').remove(b':');

/// An HTTP client of servers on ports and on sockets in the file system.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    ports: Ports,
    sockets: SocketClient<Full<Bytes>>,
}

/// Connections to ports.
#[derive(Debug, Clone)]
enum Ports {
    Plain(HttpClient<Full<Bytes>>),
    Tls(HttpsClient<Full<Bytes>>),
}

impl Http {
    /// A client of servers without TLS, without connections yet.
    pub(crate) fn new() -> Self {
        let options = ClientOptions::default();
        let ports = Ports::Plain(client::http(&options));
        Self { ports, sockets: client::sockets(&options) }
    }

    /// A client of the server at `url`, which trusts the certificates in `ca`, in PEM, beside the
    /// system's.
    ///
    /// # Errors
    /// [`Failure`] if `ca` holds what is no certificate.
    pub(crate) fn of(url: &str, ca: &[u8]) -> Result<Self, Failure> {
        if !url.starts_with("https:") {
            return Ok(Self::new());
        }
        let tls = client_config(ca).map_err(|e| Failure::of(&e).context("--control-ca"))?;
        let ports = Ports::Tls(client::https(&tls, &ClientOptions::default()));
        Ok(Self { ports, ..Self::new() })
    }

    /// Sends `body` (nothing if null). Returns the status and the reply as JSON.
    pub(crate) async fn json(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<(u16, Value), Failure> {
        let (status, _, body) = self.begin(method, url, headers, body).await?;
        Ok((status, serde_json::from_slice(&read_body(body, url).await?).unwrap_or(Value::Null)))
    }

    /// Sends `body` (nothing if null). Returns the reply as soon as its headers have arrived.
    pub(crate) async fn begin(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<(u16, HeaderMap, Incoming), Failure> {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(bytes))
            .map_err(|e| no_answer(url, &e))?;

        let is_socket = socket::path_of(request.uri()).is_some();
        if is_socket {
            request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        }
        for (name, value) in headers {
            let name: hyper::header::HeaderName = name.parse().map_err(|_| bad_header(name))?;
            request.headers_mut().insert(name, value.parse().map_err(|_| bad_header(value))?);
        }

        let reply = match &self.ports {
            _ if is_socket => self.sockets.request(request),
            Ports::Plain(ports) => ports.request(request),
            Ports::Tls(ports) => ports.request(request),
        };
        let (head, body) = reply.await.map_err(|e| no_answer(url, &e))?.into_parts();
        Ok((head.status.as_u16(), head.headers, body))
    }
}

fn no_answer(url: &str, error: &dyn std::error::Error) -> Failure {
    let failure = Failure::of(error);
    let hint = tls_hint(url, &failure.to_string());
    let failure = failure.context(&format!("no answer from {}", shown(url)));
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The way out of the usual mistakes with TLS, by the text of an error.
fn tls_hint(url: &str, error: &str) -> Option<&'static str> {
    let says = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
    match url.starts_with("https:") {
        true if says(&["InvalidContentType"]) => Some("it speaks plain HTTP: use http://"),
        true if says(&["UnknownIssuer", "CaUsedAsEndEntity"]) => {
            Some("name the authority that signed the server's certificate with --control-ca")
        }
        true if says(&["NotValidForName"]) => {
            Some("the server's certificate is for another name; use one that it has")
        }
        false if says(&["connection closed before", "reset by peer", "invalid HTTP version"]) => {
            Some("if it has TLS, such as --control-tls-cert of `rolltape serve`, use https://")
        }
        _ => None,
    }
}

/// Reads the whole body of a reply from `url`.
pub(crate) async fn read_body(body: Incoming, url: &str) -> Result<Bytes, Failure> {
    Limited::new(body, REPLY_BYTES_MAX)
        .collect()
        .await
        .map(|body| body.to_bytes())
        .map_err(|error| Failure::new(format!("no answer from {}: {error}", shown(url))))
}

/// A URL for people.
fn shown(url: &str) -> String {
    let parsed: Option<Uri> = url.parse().ok();
    match parsed.as_ref().and_then(|uri| Some((socket::path_of(uri)?, uri.path()))) {
        Some((socket, page)) => format!("{page} at {UNIX}{}", socket.display()),
        None => url.to_owned(),
    }
}

/// A server's base URL from `text`, which may lack `http://` and may end in a slash, or be
/// `unix:PATH`.
pub(crate) fn base_url(text: &str) -> String {
    if let Some(path) = text.strip_prefix(UNIX) {
        return socket::url_of(path);
    }
    let text = text.trim_end_matches('/');
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}

/// Percent-encodes a value of a query.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Adds the hint that a refusal's status suggests.
pub(crate) fn with_hint(failure: Failure, status: u16) -> Failure {
    match status {
        403 if failure.to_string().contains("read token") => failure,
        401 => failure.hint(
            "the token lies beside the server's store: give that store with --store, or the token \
             with --control-token-file or --control-token-env",
        ),
        403..=405 => failure.hint(
            "--control must name the control listener, which `rolltape serve` prints when it \
             starts; it is not the listener that agents call",
        ),
        _ => failure,
    }
}

fn bad_header(text: &str) -> Failure {
    Failure::new(format!("`{text}` is not allowed in a header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_no_scheme() {
        assert_eq!(base_url("127.0.0.1:8081"), "http://127.0.0.1:8081");
        assert_eq!(base_url("https://h/"), "https://h");
        assert_eq!(base_url("unix:/a"), "http://2f61.unix");
    }

    #[test]
    fn the_url_of_a_socket_is_shown_as_its_path() {
        let page = format!("{}/episodes?a=1", base_url("unix:/run/é b.sock"));
        assert_eq!(shown(&page), "/episodes at unix:/run/é b.sock");
        for other in ["http://h/x", "http://zz.unix/", "http://2f2.unix/"] {
            assert_eq!(shown(other), other);
        }
    }

    #[test]
    fn a_mistake_with_tls_has_a_way_out() {
        let hint = |url, error| tls_hint(url, error).unwrap_or_default();
        let issuer = "invalid peer certificate: UnknownIssuer";
        assert!(hint("https://h", issuer).contains("--control-ca"));
        let plain = "received corrupt message of type InvalidContentType";
        assert!(hint("https://h", plain).contains("http://"));
        let closed = "connection closed before message completed";
        assert!(hint("http://h", closed).contains("https://"));
        assert_eq!(hint("https://h", "connection refused"), "");
    }

    #[test]
    fn values_of_a_query_are_escaped() {
        assert_eq!(escaped("main,fork"), "main,fork");
        assert_eq!(escaped("a b&c=d%é"), "a%20b%26c%3Dd%25%C3%A9");
    }
}
