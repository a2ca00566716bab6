//! Requests to switch a connection from HTTP to another protocol. None is granted: bytes after the
//! switch could not be recorded.

use http::headers;
use hyper::body::Body;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{HeaderMap, Method, Request, Version};

/// The only protocol whose request is refused. An offer of another one is declined by not answering
/// it.
const WEBSOCKET: &[u8] = b"websocket";

/// True if a request asks for a WebSocket and nothing else. Any other request is a call: its
/// upgrade is optional, and is declined.
pub(crate) fn is_requested(request: &Request<impl Body>) -> bool {
    let asks = headers::list_members(request.headers(), CONNECTION).any(|name| name == "upgrade");
    let can_ask = request.method() == Method::GET && request.version() == Version::HTTP_11;
    asks && can_ask && names_websocket(request.headers()) && request.body().is_end_stream()
}

/// True if the one protocol that the headers name is WebSocket.
fn names_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter().map(HeaderValue::as_bytes);
    let first = protocols.next().unwrap_or_default();
    first.trim_ascii().eq_ignore_ascii_case(WEBSOCKET) && protocols.next().is_none()
}
