//! Calls that look like generating ones and are none: told once, because they are recorded without
//! tokens and nobody would know why.

use std::collections::BTreeSet;
use std::sync::Mutex;

use episode::Route;
use hyper::{Method, StatusCode};

/// What generating routes end in.
const ENDS: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];
/// OpenAI's threads have messages that nothing samples.
const NOT_SAMPLED: &str = "/threads/";
/// Paths that are remembered.
const PATHS_MAX: usize = 64;

/// The paths that were told of.
#[derive(Debug, Default)]
pub(crate) struct Strays(Mutex<BTreeSet<String>>);

/// A request as the upstream gets it: its path is without its tag.
type Asked<'a> = (&'a Method, &'a str, Route);

impl Strays {
    /// Warns of a call that was meant to sample, it seems, and went where nothing does; once for
    /// each path. Routes without their `/v1` are some servers' own: those count where the answer
    /// is that there is none.
    pub(crate) fn look(&self, asked: Asked<'_>, status: StatusCode) {
        let (_, path, _) = asked;
        let path = path.split('?').next().unwrap_or(path);
        if is_stray(asked, status) && self.is_new(path) {
            let variable = match path.ends_with("/messages") {
                true => "does ANTHROPIC_BASE_URL end without /v1?",
                false => "does OPENAI_BASE_URL end in /v1?",
            };
            let status = status.as_u16();
            tracing::warn!(path, status, "no route whose tokens are recorded; {variable}");
        }
    }

    fn is_new(&self, path: &str) -> bool {
        let told = self.0.lock();
        told.is_ok_and(|mut told| told.len() < PATHS_MAX && told.insert(path.to_owned()))
    }
}

fn is_stray((method, path, route): Asked<'_>, status: StatusCode) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    let almost = ENDS.iter().any(|end| path.ends_with(end)) && !path.contains(NOT_SAMPLED);
    let missed = status == StatusCode::NOT_FOUND && !path.starts_with("/v1/");
    method == Method::POST && almost && (!route.generates() || missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stray(method: Method, path: &str, status: u16) -> bool {
        let bare = path.split('?').next().unwrap_or(path);
        let route = wire::route(method.as_str(), bare);
        is_stray((&method, path, route), StatusCode::from_u16(status).unwrap())
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
        assert!(!stray(Method::POST, "/v1/threads/t/messages", 404));
        assert!(!stray(Method::GET, "/completions", 404));
    }

    #[test]
    fn a_path_is_told_once() {
        let strays = Strays::default();
        assert!(strays.is_new("/a") && !strays.is_new("/a") && strays.is_new("/b"));
    }
}
