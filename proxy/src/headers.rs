//! Headers that go on, in their order, and those that do not.

use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};

use episode::Route;

/// Headers that belong to one connection and are not passed on. `te` is, where it asks for
/// trailers, and `trailer`, which announces them.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];
/// Headers of a request that every hop writes anew, or answers itself.
const OF_A_HOP: [&str; 3] = ["host", "content-length", "expect"];

/// Takes the named headers out. The others keep their order, which `HeaderMap::remove` does not
/// promise.
pub(crate) fn without(headers: &mut HeaderMap, names: &[impl AsRef<str>]) {
    let goes = |name: &HeaderName| names.iter().any(|gone| gone.as_ref() == name.as_str());
    if headers.keys().any(goes) {
        keep(headers, |name, _| !goes(name));
    }
}

fn keep(headers: &mut HeaderMap, stays: impl Fn(&HeaderName, &HeaderValue) -> bool) {
    let mut name = None;
    for (next, value) in std::mem::take(headers) {
        name = next.or(name);
        if let Some(name) = name.as_ref().filter(|name| stays(name, &value)) {
            headers.append(name.clone(), value);
        }
    }
}

/// Takes out what belongs to one connection only.
pub(crate) fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<String> = tokens(headers, header::CONNECTION).collect();
    without(headers, &named);
    without(headers, &HOP_BY_HOP);
}

/// The members of a header that is a list, in lower case.
pub(crate) fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|list| list.split(',')).map(|token| token.trim().to_ascii_lowercase())
}

/// The content codings that an agent takes.
#[derive(Debug)]
pub(crate) struct Accepts(Option<Vec<(String, bool)>>);

impl Accepts {
    /// What `accept-encoding` says. An agent that does not send it takes anything.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let read = |token: String| {
            let (name, weight) = token.split_once(';').unwrap_or((&token, "q=1"));
            let weight = weight.trim().trim_start_matches("q=").parse();
            (name.trim().to_owned(), weight != Ok(0.0))
        };
        let sent = headers.contains_key(header::ACCEPT_ENCODING);
        Self(sent.then(|| tokens(headers, header::ACCEPT_ENCODING).map(read).collect()))
    }

    /// Whether a reply with `headers` can be read by the agent.
    pub(crate) fn takes(&self, headers: &HeaderMap) -> bool {
        let Some(named) = &self.0 else { return true };
        let find = |name: &str| named.iter().find(|(known, _)| known == name);
        tokens(headers, header::CONTENT_ENCODING).all(|coding| {
            let found = find(&coding).or_else(|| find("*"));
            found.map_or(coding == "identity", |(_, taken)| *taken)
        })
    }
}

/// The agent's headers as they go on.
pub(crate) fn request_headers(headers: &mut HeaderMap, route: Route) {
    end_to_end(headers);
    without(headers, &OF_A_HOP);
    keep(headers, |name, value| name != header::TE || value == "trailers");
    one_cookie(headers);
    // A reply that must be read while it passes must not be compressed.
    if route.generates() && headers.contains_key(header::ACCEPT_ENCODING) {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

/// HTTP/2 lets cookies come apart; HTTP/1.1 knows one header only.
fn one_cookie(headers: &mut HeaderMap) {
    let parts: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if parts.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&parts.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, whole);
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
            let accepts = Accepts::of(&map(header::ACCEPT_ENCODING, accepts));
            accepts.takes(&map(header::CONTENT_ENCODING, coding))
        };
        assert!(takes("gzip, br;q=0.5", "BR") && takes("*", "br") && takes("", "identity"));
        assert!(
            takes("gzip, br", "gzip, br")
                && Accepts::of(&HeaderMap::new()).takes(&map(header::CONTENT_ENCODING, "gzip"))
        );
        assert!(!takes("gzip", "br") && !takes("gzip;q=0, *", "gzip") && !takes("", "gzip"));
        assert!(!takes("identity", "gzip") && !takes("gzip", "gzip, br"));
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
            ("accept-encoding", "gzip"),
            ("x-first", "2"),
            ("authorization", "Bearer k"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        request_headers(&mut headers, Route::Chat);
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
