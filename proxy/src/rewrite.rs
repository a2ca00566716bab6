//! What goes to the upstream in place of what the agent sent.

use bytes::Bytes;
use episode::Route;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use wire::{Dialect, Hide, Request};

/// Headers that belong to one connection and are not passed on.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The body to send, and what to take out of the reply. A value: nothing happens here.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub(crate) body: Bytes,
    pub(crate) hide: Hide,
}

/// Adds to a body what `dialect` must be asked for; what cannot be added to stays as it is.
pub(crate) fn rewrite(dialect: Dialect, route: Route, sent: (&Bytes, Option<&Request>)) -> Rewrite {
    match sent {
        (_, Some(request)) => {
            let asked = wire::ask(dialect, route, request);
            Rewrite { body: asked.body, hide: asked.hide }
        }
        (body, None) => Rewrite { body: body.clone(), hide: Hide::default() },
    }
}

/// The agent's headers as they go on.
pub(crate) fn request_headers(headers: &mut HeaderMap, route: Route) {
    end_to_end(headers);
    for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
        headers.remove(name);
    }
    // A reply that must be read while it passes must not be compressed.
    if route.generates() && headers.contains_key(header::ACCEPT_ENCODING) {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

/// Takes out what belongs to one connection only.
pub(crate) fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_connection_stays_behind() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("host", "proxy"),
            ("content-length", "5"),
            ("accept-encoding", "gzip"),
            ("authorization", "Bearer k"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        request_headers(&mut headers, Route::Chat);
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["accept-encoding"], "identity");
        assert_eq!(headers["authorization"], "Bearer k");
    }
}
