//! The address of an inference server.

use std::borrow::Cow;

use http::path::target::normal_path;
use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};
use thiserror::Error;
use wire::BasePath;

/// The address of an inference server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    scheme: Scheme,
    pub(crate) authority: Authority,
    /// The path, which is that of a client's base URL.
    pub(crate) base: BasePath,
    /// True if the address had a user or a password, which are kept nowhere.
    has_credentials: bool,
}

/// An upstream address that cannot be used.
#[derive(Debug, Clone, Error)]
pub enum InvalidUpstream {
    /// The text is not the address of a server.
    #[error("`{0}` is not an upstream; give http://HOST:PORT or https://HOST, with or without /v1")]
    NotServer(String),
    /// The port of the address is none.
    #[error("the port of `{0}` is not a number from 1 to 65535")]
    Port(String),
    /// The path of the address can be read in different ways.
    #[error("the path of `{0}` is ambiguous; give it without escapes, dots and empty parts")]
    AmbiguousPath(String),
    /// The text is the address of a route of a server.
    #[error("`{0}` is a route of a server; give the server, without `{1}`")]
    Route(String, &'static str),
}

/// Path endings of an address that names a route in place of a server.
const ROUTES: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];

impl std::str::FromStr for Upstream {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let (text, has_credentials) = without_credentials(text);
        let text = text.as_str();
        let uri: Uri = text.parse().map_err(|_| not_server(text))?;
        let scheme = uri.scheme().cloned().ok_or_else(|| not_server(text))?;
        if (scheme != Scheme::HTTP && scheme != Scheme::HTTPS) || uri.query().is_some() {
            return Err(not_server(text));
        }

        let path = uri.path().trim_end_matches('/');
        if let Some(route) = ROUTES.into_iter().find(|route| path.ends_with(route)) {
            return Err(InvalidUpstream::Route(text.to_owned(), route));
        }
        if !path.is_empty() && !matches!(normal_path(path, |_| 0), Ok(Cow::Borrowed(_))) {
            return Err(InvalidUpstream::AmbiguousPath(text.to_owned()));
        }
        let base = BasePath::new(path);
        let authority = uri.authority().cloned().ok_or_else(|| not_server(text))?;
        if !has_port_that_exists(&authority) {
            return Err(InvalidUpstream::Port(text.to_owned()));
        }
        Ok(Self { scheme, authority, base, has_credentials })
    }
}

/// True if there is no port, or one that a server can have.
fn has_port_that_exists(authority: &Authority) -> bool {
    match authority.as_str()[authority.host().len()..].strip_prefix(':') {
        None | Some("") => true,
        Some(port) => {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            is_number && port.parse::<u16>().is_ok_and(|port| port > 0)
        }
    }
}

/// The address without a user and a password, and whether it had any.
fn without_credentials(text: &str) -> (String, bool) {
    let Some((scheme, rest)) = text.split_once("://") else { return (text.to_owned(), false) };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => (format!("{scheme}://{host}{path}"), true),
        None => (text.to_owned(), false),
    }
}

fn not_server(text: &str) -> InvalidUpstream {
    InvalidUpstream::NotServer(text.to_owned())
}

impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base.root())
    }
}

impl Upstream {
    /// Returns true if the address had a user or a password. Such an address is not used: it stands
    /// where secrets do not belong.
    pub fn has_credentials(&self) -> bool {
        self.has_credentials
    }

    /// Host and port, to connect to.
    pub(crate) fn host(&self) -> (&str, u16) {
        let port = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        (host, self.authority.port_u16().unwrap_or(port))
    }

    /// True if it is reached through TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// A short name: host and port, and the path if there is one.
    pub(crate) fn short_name(&self) -> String {
        let name = format!("{}{}", self.authority, self.base.root().replace('/', "-"));
        name.replace(['[', ']'], "")
    }

    /// The address of an agent's path and query on this server. `is_anthropic` says that the client
    /// is one of Anthropic's API.
    pub(crate) fn uri(&self, path: &str, is_anthropic: bool) -> Result<Uri, hyper::http::Error> {
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(self.base.join(path, is_anthropic))
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_may_carry_v1_or_not() {
        for text in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            let upstream: Upstream = text.parse().unwrap();
            assert_eq!(upstream.uri("/v1/models?a=b", false).unwrap(), "http://h:1/v1/models?a=b");
        }
        let deep: Upstream = "https://h/llm/v1".parse().unwrap();
        assert_eq!(deep.uri("/v1/models", false).unwrap(), "https://h/llm/v1/models");
        let own: Upstream = "https://h/api/paas/v4/".parse().unwrap();
        assert_eq!(own.uri("/v1/models?a=b", false).unwrap(), "https://h/api/paas/v4/models?a=b");
        assert_eq!(own.to_string(), "https://h/api/paas/v4");
        for bad in ["", "h:1", "localhost", "ftp://h", "http://", "http://h/?q"] {
            assert!(bad.parse::<Upstream>().is_err(), "{bad}");
        }
        for bad in ["http://h/a/../b", "http://h/%2e%2e", "http://h//a/v1", "http://h/a%2fb"] {
            let why = bad.parse::<Upstream>().unwrap_err();
            assert!(matches!(why, InvalidUpstream::AmbiguousPath(_)), "{bad}: {why}");
        }
        for bad in ["http://h:65536", "http://h:0", "https://[::1]:99999/v1", "http://h:4294967376"]
        {
            let why = bad.parse::<Upstream>().unwrap_err();
            assert!(matches!(why, InvalidUpstream::Port(_)), "{bad}: {why}");
        }
        assert_eq!("http://[::1]:65535".parse::<Upstream>().unwrap().host(), ("::1", 65535));
        let route = "http://h/v1/chat/completions".parse::<Upstream>().unwrap_err().to_string();
        assert!(route.ends_with("give the server, without `/chat/completions`"), "{route}");
    }

    #[test]
    fn the_port_follows_from_the_scheme() {
        let host = |text: &str| {
            let upstream: Upstream = text.parse().unwrap();
            let (host, port) = upstream.host();
            format!("{host} {port}")
        };
        assert_eq!(host("http://h:1/v1"), "h 1");
        assert_eq!(host("https://h"), "h 443");
        assert_eq!(host("http://[::1]/a"), "::1 80");
    }

    #[test]
    fn a_user_and_a_password_of_an_address_are_kept_nowhere() {
        for text in ["http://u:s3cret@h:1/a/v1", "http://s3cret@h:1/a", "http://u:s3@cret@h:1/a/"] {
            let upstream: Upstream = text.parse().unwrap();
            assert!(upstream.has_credentials());
            assert_eq!(upstream.to_string(), "http://h:1/a");
            assert!(!format!("{upstream:?}").contains("s3"), "{upstream:?}");
        }
        let broken = "http://u:s3cret@/v1".parse::<Upstream>().unwrap_err();
        assert!(!broken.to_string().contains("s3cret"), "{broken}");
        assert!(!"http://h/@x".parse::<Upstream>().unwrap().has_credentials());
    }
}
