//! Web pages of other origins that may call the engine, by the protocol CORS.
//!
//! The layer of tower-http answers every `OPTIONS` with a 200; here a page of an origin that is not
//! let in gets a 405.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode, Uri};

use super::calls::{HttpReply, empty_reply};

/// Any origin.
const ANY: &str = "*";
/// Any page of this machine, on any port, as llama.cpp has it.
const LOCAL: &str = "localhost";
/// The hosts of such pages.
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// Methods of all routes.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, OPTIONS");
/// Seconds for which a browser may keep the answer to its question.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origins whose pages may call the engine and read its replies.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedOrigins(Vec<String>);

impl AllowedOrigins {
    pub(super) fn new(origins: Vec<String>) -> AllowedOrigins {
        AllowedOrigins(origins)
    }

    /// Returns the value that lets the page of a request read the reply.
    fn granted(&self, origin: Option<&HeaderValue>) -> Option<HeaderValue> {
        let origin = origin?;
        if self.0.iter().any(|known| known == ANY) {
            return Some(HeaderValue::from_static(ANY));
        }
        let is_known = |known: &String| {
            known.as_bytes() == origin.as_bytes() || known == LOCAL && is_local(origin)
        };
        self.0.iter().any(is_known).then(|| origin.clone())
    }

    /// Answers a browser that asks whether a page may send a request: an `OPTIONS` that names its
    /// method. `None` for any other request, and for a page of another origin.
    pub(super) fn answer_question(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<HttpReply> {
        if method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        self.granted(headers.get(ORIGIN))?;
        // 200, as from vLLM: some clients take no other status.
        let mut reply = empty_reply(StatusCode::OK);
        let out = reply.headers_mut();
        out.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        out.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        // The named headers may be sent: none of them has a meaning that a page must not use.
        if let Some(named) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            out.insert(ACCESS_CONTROL_ALLOW_HEADERS, named.clone());
        }
        Some(reply)
    }

    /// Lets the page of `origin` read the reply.
    pub(super) fn mark(&self, origin: Option<&HeaderValue>, reply: &mut HttpReply) {
        let Some(origin) = self.granted(origin) else { return };
        let out = reply.headers_mut();
        out.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        out.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(ANY));
        out.append(VARY, HeaderValue::from_static("origin"));
    }
}

/// True for an origin whose host is this machine.
fn is_local(origin: &HeaderValue) -> bool {
    let uri = origin.to_str().ok().and_then(|text| text.parse::<Uri>().ok());
    uri.and_then(|uri| uri.host().map(|host| LOCAL_HOSTS.contains(&host))).unwrap_or(false)
}
