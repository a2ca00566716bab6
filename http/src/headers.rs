//! Headers: those that are forwarded, in their order, and those that are not.

use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};

use episode::Route;

/// Headers that belong to one connection and are not forwarded. `te` is forwarded if it asks for
/// trailers, and so is `trailer`, which announces them.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];
/// Request headers by which some servers take another path or method than those of the request
/// line.
const OVERRIDES: [&str; 5] = [
    "x-original-url",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];
/// Request headers that every hop writes anew, or answers itself.
const REWRITTEN_BY_HOP: [&str; 3] = ["host", "content-length", "expect"];

/// Request headers that hold credentials. They are marked as such, so that no log shows them.
pub(crate) const SECRET_HEADERS: [HeaderName; 7] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    // Clients in a browser name their key as a subprotocol.
    header::SEC_WEBSOCKET_PROTOCOL,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// The header of a reply that names its call.
pub const CALL_ID: HeaderName = HeaderName::from_static("x-rolltape-call-id");

/// The media type of a stream of server-sent events.
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// True for the headers of a stream of server-sent events. The body may still be something else.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let media_type = value.split(|byte| matches!(byte, b';' | b',')).next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(EVENT_STREAM)
}

/// The text of a header. It is UTF-8, of which ASCII is a part, or cannot be read.
pub fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

/// Headers as texts. What is not UTF-8 is read as Latin-1, which HTTP had before.
#[derive(Debug)]
pub struct HeaderTexts<'h> {
    headers: &'h HeaderMap,
    latin: Vec<(&'h HeaderName, String)>,
}

impl<'h> HeaderTexts<'h> {
    /// Reads the headers that are not UTF-8.
    pub fn of(headers: &'h HeaderMap) -> Self {
        let latin =
            |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
        let unread = headers.iter().filter(|(_, value)| text(value).is_none());
        Self { headers, latin: unread.map(|(name, value)| (name, latin(value))).collect() }
    }

    /// The text of the first header of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        text(value).or_else(|| {
            let (_, text) = self.latin.iter().find(|(latin, _)| *latin == name)?;
            Some(text.as_str())
        })
    }
}

/// Removes the named headers. Unlike `HeaderMap::remove`, it keeps the order of the others.
pub fn remove(headers: &mut HeaderMap, names: &[impl AsRef<str>]) {
    remove_where(headers, |name| is_named(name, names));
}

/// Removes the headers whose name is one of those that `goes` says. The others keep their order.
pub fn remove_where(headers: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    if headers.keys().any(&goes) {
        retain(headers, |name, _| !goes(name));
    }
}

fn is_named(name: &HeaderName, names: &[impl AsRef<str>]) -> bool {
    names.iter().any(|other| other.as_ref() == name.as_str())
}

fn retain(headers: &mut HeaderMap, keeps: impl Fn(&HeaderName, &HeaderValue) -> bool) {
    let mut name = None;
    // The iterator names a header once, before its first value.
    for (next_name, value) in std::mem::take(headers) {
        name = next_name.or(name);
        if let Some(name) = name.as_ref().filter(|name| keeps(name, &value)) {
            headers.append(name.clone(), value);
        }
    }
}

/// Removes the headers that belong to one connection only.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let connection: Vec<String> = list_members(headers, header::CONNECTION).collect();
    remove(headers, &connection);
    remove(headers, &HOP_BY_HOP);
}

/// Members of a header that is a list, in lower case.
pub fn list_members(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|list| list.split(',')).map(|token| token.trim().to_ascii_lowercase())
}

/// The content codings that an agent accepts: each name with whether it is accepted. `None` if the
/// agent sends no `accept-encoding`, and so accepts any.
#[derive(Debug)]
pub struct AcceptedCodings(Option<Vec<(String, bool)>>);

impl AcceptedCodings {
    /// Reads `accept-encoding`.
    pub fn of(headers: &HeaderMap) -> Self {
        let is_sent = headers.contains_key(header::ACCEPT_ENCODING);
        Self(is_sent.then(|| {
            list_members(headers, header::ACCEPT_ENCODING)
                .map(|member| {
                    let (name, weight) = member.split_once(';').unwrap_or((&member, "q=1"));
                    let weight = weight.trim().trim_start_matches("q=").parse();
                    (name.trim().to_owned(), weight != Ok(0.0))
                })
                .collect()
        }))
    }

    /// True if the agent can read a reply with these headers.
    pub fn accept(&self, reply: &HeaderMap) -> bool {
        list_members(reply, header::CONTENT_ENCODING).all(|coding| self.accept_coding(&coding))
    }

    fn accept_coding(&self, coding: &str) -> bool {
        let Some(codings) = &self.0 else { return true };
        let named = codings.iter().find(|(name, _)| name == coding);
        let accepted = named.or_else(|| codings.iter().find(|(name, _)| name == "*"));
        accepted.map_or(coding == "identity", |(_, is_accepted)| *is_accepted)
    }
}

/// Removes what every hop writes anew, and what names another path or method.
pub fn remove_rewritten(headers: &mut HeaderMap) {
    remove(headers, &REWRITTEN_BY_HOP);
    remove(headers, &OVERRIDES);
}

/// Prepares the agent's headers for the upstream.
pub fn prepare_request(headers: &mut HeaderMap, route: Route) {
    remove_hop_by_hop(headers);
    remove_rewritten(headers);
    retain(headers, |name, value| name != header::TE || value == "trailers");
    join_cookies(headers);

    // rolltape reads the reply of a generating route, so it should not be compressed.
    if route.generates() && headers.contains_key(header::ACCEPT_ENCODING) {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

/// Joins cookies into one header. HTTP/2 allows several; HTTP/1.1 does not.
fn join_cookies(headers: &mut HeaderMap) {
    let parts: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if parts.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&parts.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_takes_what_it_names() {
        let map = |name, value: &'static str| {
            [(name, HeaderValue::from_static(value))].into_iter().collect::<HeaderMap>()
        };
        let takes = |accepts: &'static str, coding| {
            let accepts = AcceptedCodings::of(&map(header::ACCEPT_ENCODING, accepts));
            accepts.accept(&map(header::CONTENT_ENCODING, coding))
        };
        assert!(takes("gzip, br;q=0.5", "BR") && takes("*", "br") && takes("", "identity"));
        assert!(
            takes("gzip, br", "gzip, br")
                && AcceptedCodings::of(&HeaderMap::new())
                    .accept(&map(header::CONTENT_ENCODING, "gzip"))
        );
        assert!(!takes("gzip", "br") && !takes("gzip;q=0, *", "gzip") && !takes("", "gzip"));
        assert!(!takes("identity", "gzip") && !takes("gzip", "gzip, br"));
    }

    #[test]
    fn a_media_type_is_compared_without_case() {
        let is_stream = |value: &'static [u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            is_event_stream(&[(header::CONTENT_TYPE, value)].into_iter().collect())
        };
        for stream in ["text/event-stream", "Text/Event-Stream ;charset=utf-8", "TEXT/EVENT-STREAM"]
        {
            assert!(is_stream(stream.as_bytes()), "{stream}");
        }
        assert!(is_stream(b"text/event-stream; name=\xe9"), "parameters are not read");
        for other in ["text/event-streams", "application/json", "text/plain; text/event-stream", ""]
        {
            assert!(!is_stream(other.as_bytes()), "{other}");
        }
        assert!(!is_event_stream(&HeaderMap::new()));
    }

    #[test]
    fn texts_are_utf_8_or_else_latin_1() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-plain", &b"a"[..]),
            ("x-utf", "m\u{fc}ller \u{1f680}".as_bytes()),
            ("x-latin", b"caf\xe9"),
            ("x-latin", b"\xff"),
        ] {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let texts = HeaderTexts::of(&headers);
        let read = ["x-plain", "x-utf", "x-latin", "x-none"].map(|name| texts.get(name));
        assert_eq!(read, [Some("a"), Some("m\u{fc}ller \u{1f680}"), Some("caf\u{e9}"), None]);
    }

    #[test]
    fn what_belongs_to_the_connection_stays_behind() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("keep-alive", "timeout=5"),
            ("x-first", "1"),
            ("host", "proxy"),
            ("content-length", "5"),
            ("x-original-url", "/pause"),
            ("accept-encoding", "gzip"),
            ("x-first", "2"),
            ("authorization", "Bearer k"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        prepare_request(&mut headers, Route::Chat);
        let left: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let kept = [
            ("te", "trailers"),
            ("x-first", "1"),
            ("x-first", "2"),
            ("accept-encoding", "identity"),
            ("authorization", "Bearer k"),
        ];
        assert_eq!(left, kept);
    }
}
