//! Callers that the engine answers: those with a token; without tokens, all but web pages.

use std::fmt;

use http::api::auth::Tokens;
use http::web::{self, HostName};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};

use super::calls::ApiError;
use super::cors::AllowedOrigins;

/// The header that carries the key of Anthropic's clients.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The content types that a web page may send to any server without asking.
const PAGE_TYPES: [&str; 3] =
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];

/// The callers that an engine answers.
#[derive(Clone, Default)]
pub struct Access {
    tokens: Tokens,
    pub(super) origins: AllowedOrigins,
}

impl Access {
    /// Lets everybody in who reaches the listener, except web pages on routes that change
    /// something.
    pub fn open() -> Access {
        Access::default()
    }

    /// Lets callers in that send one of the tokens, as `authorization: Bearer TOKEN` or as
    /// `x-api-key`. Only the health of the engine is told to all. No token stands for
    /// [`Access::open`].
    pub fn with_tokens<T: AsRef<str>>(tokens: impl IntoIterator<Item = T>) -> Access {
        Access { tokens: Tokens::new(tokens), ..Access::default() }
    }

    /// Lets pages of these origins call the engine and read its replies; `*` stands for all.
    /// Without a token, no page may change the engine all the same.
    #[must_use]
    pub fn with_origins(self, origins: Vec<String>) -> Access {
        Access { origins: AllowedOrigins::new(origins), ..self }
    }

    /// True if there is no token.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Refuses a caller without a token, if there are tokens.
    ///
    /// # Errors
    /// 401.
    pub(super) fn check_token(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let given = [bearer(headers), headers.get(API_KEY).map(|value| value.as_bytes())];
        let mut given = given.into_iter().flatten();
        if self.tokens.is_empty() || given.any(|token| self.tokens.has(token)) {
            return Ok(());
        }
        Err(ApiError::unauthorized("the engine requires its token: `authorization: Bearer TOKEN`"))
    }

    /// Refuses a request that a web page may have sent from the browser of somebody who reaches the
    /// listener. A page knows no token, so with tokens there is nothing to refuse.
    ///
    /// # Errors
    /// 403, or 415 for the content type of a form.
    pub(super) fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.tokens.is_empty() {
            return Ok(());
        }
        // A text that is no host is none that is known.
        let hosts = web::hosts(&Uri::default(), headers);
        let known = hosts.as_deref().unwrap_or_default();
        if web::foreign_origin(headers, known, |_| false).is_some() {
            return Err(ApiError::forbidden("a web page may not change the engine"));
        }
        if hosts.is_err() || !known.iter().all(is_local_name) {
            let message = "the host is no address and no name of this network; start the engine \
                           with a token to be reached by that name";
            return Err(ApiError::forbidden(message));
        }

        let is_page_type = |value: &str| {
            let essence = value.split(';').next().unwrap_or_default().trim();
            PAGE_TYPES.iter().any(|known| essence.eq_ignore_ascii_case(known))
        };
        let content_type = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?"));
        match content_type.is_some_and(is_page_type) {
            true => {
                Err(ApiError::unsupported_type("send JSON with `content-type: application/json`"))
            }
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("tokens", &self.tokens.len()).finish()
    }
}

/// The token of `authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| token.trim_ascii())
}

/// True for an address, and for a name that the public name system does not know. A page whose
/// server lets its own name point here sends that name.
fn is_local_name(host: &Authority) -> bool {
    let name = HostName::of(host);
    matches!(name, HostName::Address(_)) || !host.host().contains('.') || name.is_below_localhost()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn any_of_the_tokens_opens_and_nothing_else_does() {
        let access = Access::with_tokens(["one", "two"]);
        let opens = |name, value| access.check_token(&headers(&[(name, value)])).is_ok();
        assert!(opens("authorization", "Bearer one") && opens("authorization", "bearer  two "));
        assert!(opens("x-api-key", "two"));
        for value in ["Bearer", "Bearer ", "Bearer onetwo", "Basic one", "one", "Bearer one,two"] {
            assert!(!opens("authorization", value), "{value}");
        }
        assert!(access.check_token(&HeaderMap::new()).is_err());
        assert!(Access::open().check_token(&HeaderMap::new()).is_ok());
        assert_eq!(format!("{access:?}"), "Access { tokens: 2 }");
    }

    #[test]
    fn a_web_page_changes_nothing() {
        let refused = |pairs: &[_]| Access::open().check_origin(&headers(pairs)).is_err();
        for host in ["127.0.0.1:8000", "[::1]:8000", "localhost:8000", "engine", "a.localhost"] {
            assert!(!refused(&[("host", host)]), "{host}");
        }
        assert!(!refused(&[("host", "engine:80"), ("origin", "http://engine:80")]));
        assert!(!refused(&[("content-type", "application/json; charset=utf-8")]));
        for pairs in [
            [("host", "evil.example"), ("origin", "http://evil.example")],
            [("host", "127.0.0.1:8000"), ("origin", "http://evil.example")],
            [("host", "127.0.0.1:8000"), ("origin", "null")],
            [("host", "127.0.0.1:8000"), ("origin", "http://127.0.0.1:3000")],
            [("host", "127.0.0.1:8000"), ("sec-fetch-site", "cross-site")],
            [("host", "localhost"), ("content-type", "Text/Plain;charset=utf-8")],
            [("host", "localhost"), ("content-type", "application/x-www-form-urlencoded")],
        ] {
            assert!(refused(&pairs), "{pairs:?}");
            assert!(Access::with_tokens(["a"]).check_origin(&headers(&pairs)).is_ok());
        }
    }
}
