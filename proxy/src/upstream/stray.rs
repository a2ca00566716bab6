//! Calls to a path that resembles a generating route and is none. They are recorded without tokens,
//! so a warning names the likely mistake, once for each path.

use crate::bounds::STRAY_PATHS_MAX;
use std::collections::BTreeSet;
use std::sync::Mutex;

use episode::Route;
use hyper::{Method, StatusCode};

/// Endings of generating routes.
const ENDINGS: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];
/// A part of OpenAI's thread routes, whose messages nothing samples.
const THREADS: &str = "/threads/";
/// The paths that were warned of.
#[derive(Debug, Default)]
pub(super) struct StrayWarnings(Mutex<BTreeSet<String>>);

/// A request as it was sent to the upstream.
#[derive(Clone, Copy)]
pub(super) struct SentRequest<'a> {
    pub(super) method: &'a Method,
    /// Path and query, without a tag.
    pub(super) path: &'a str,
    pub(super) route: Route,
    /// True if the upstream's address says that its API is right below a path of its own.
    pub(super) is_own_base: bool,
}

impl SentRequest<'_> {
    fn path_without_query(&self) -> &str {
        self.path.split('?').next().unwrap_or(self.path)
    }

    /// True if the request seems meant to sample and went to a route that does not. Some servers
    /// have routes without `/v1`, so such a path is a stray only if the status is 404.
    fn is_stray(&self, status: StatusCode) -> bool {
        let path = self.path_without_query();
        let resembles =
            ENDINGS.iter().any(|ending| path.ends_with(ending)) && !path.contains(THREADS);
        let is_missing =
            status == StatusCode::NOT_FOUND && (self.is_own_base || !path.starts_with("/v1/"));
        self.method == Method::POST && resembles && (!self.route.generates() || is_missing)
    }
}

/// The likely mistake in a call to this path, if it resembles one to a generating route.
pub(crate) fn likely_mistake(path: &str) -> Option<&'static str> {
    match path {
        path if path.ends_with("/messages") => Some("does ANTHROPIC_BASE_URL end without /v1?"),
        path if ENDINGS.iter().any(|ending| path.ends_with(ending)) => {
            Some("does OPENAI_BASE_URL end in /v1?")
        }
        _ => None,
    }
}

impl StrayWarnings {
    /// Warns if the request is a stray.
    pub(super) fn check(&self, request: SentRequest<'_>, status: StatusCode) {
        let path = request.path_without_query();
        if request.is_stray(status) && self.is_new(path) {
            let question = match request.is_own_base {
                true => {
                    "is the upstream's address a client's base URL, with /v1 where that has it?"
                }
                false => likely_mistake(path).unwrap_or_default(),
            };
            let status = status.as_u16();
            tracing::warn!(path, status, "no route whose tokens are recorded; {question}");
        }
    }

    fn is_new(&self, path: &str) -> bool {
        let paths = self.0.lock();
        paths.is_ok_and(|mut paths| paths.len() < STRAY_PATHS_MAX && paths.insert(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stray(method: Method, path: &str, status: u16) -> bool {
        let bare = path.split('?').next().unwrap_or(path);
        let route = wire::route(method.as_str(), bare);
        stray_at(false, method, path, status, route)
    }

    fn stray_at(is_own_base: bool, method: Method, path: &str, status: u16, route: Route) -> bool {
        let sent = SentRequest { method: &method, path, route, is_own_base };
        sent.is_stray(StatusCode::from_u16(status).unwrap())
    }

    #[test]
    fn a_path_that_is_almost_a_route_is_a_stray() {
        for path in ["/v1/v1/chat/completions", "/v1/v1/messages", "/openai/v1/responses?a=b"] {
            assert!(stray(Method::POST, path, 404) && stray(Method::POST, path, 200), "{path}");
        }
        for path in ["/chat/completions", "/messages", "/responses?a=b"] {
            assert!(stray(Method::POST, path, 404), "{path}");
            assert!(!stray(Method::POST, path, 200), "{path} is this server's own");
        }
        for path in ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"] {
            assert!(!stray(Method::POST, path, 404), "{path}: a model that is not there");
        }
        let chat = ("/v1/chat/completions", Route::Chat);
        assert!(stray_at(true, Method::POST, chat.0, 404, chat.1), "an address without its /v1");
        assert!(!stray_at(true, Method::POST, chat.0, 400, chat.1));
        assert!(!stray(Method::POST, "/v1/threads/t/messages", 404));
        assert!(!stray(Method::GET, "/completions", 404));
    }

    #[test]
    fn a_path_is_told_once() {
        let strays = StrayWarnings::default();
        assert!(strays.is_new("/a") && !strays.is_new("/a") && strays.is_new("/b"));
    }
}
