//! The path of a server's address, to which its clients join the paths of its API.
//!
//! Most servers have their API below `/v1`, so rolltape and its agents name routes by that. Others
//! (`/api/paas/v4`, `/v1beta/openai`) have it right below the path that clients are given as their
//! base URL. Clients of Anthropic's API add `/v1` to any base by themselves.

use super::{endpoint_name, names};

/// The version by which agents name the routes of an API.
const V1: &str = "/v1";

/// The API's routes, without a version. `*` at the end stands for the rest of a path.
const ROUTES: [&str; 9] = [
    "chat/completions",
    "completions",
    "embeddings",
    "messages",
    "messages/count_tokens",
    "models",
    "models/*",
    "responses",
    "responses/input_tokens",
];

/// The path of a server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasePath {
    /// The path, without `/v1` at its end.
    root: String,
    end: BaseEnd,
}

/// The end of the path of an address, which says where the API is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BaseEnd {
    /// There is no path: the API is below `/v1`, and other routes are beside it.
    Empty,
    /// The path ends in `/v1`, the API is there, and other routes are beside it.
    V1,
    /// The API is right below any other path.
    Own,
}

impl BasePath {
    /// The base at `path`, which has no slash at its end.
    pub fn new(path: &str) -> Self {
        let (root, end) = match path.strip_suffix(V1) {
            Some(root) => (root, BaseEnd::V1),
            None if path.is_empty() => (path, BaseEnd::Empty),
            None => (path, BaseEnd::Own),
        };
        Self { root: root.to_owned(), end }
    }

    /// The path of the address, without `/v1` at its end.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Returns true if the API is right below a path of the server's own.
    pub fn is_own(&self) -> bool {
        self.end == BaseEnd::Own
    }

    /// The path on the server for an agent's path and query. `is_anthropic` says that the client is
    /// one of Anthropic's API.
    pub fn join(&self, path: &str, is_anthropic: bool) -> String {
        let version = if self.lacks_version(path) { V1 } else { "" };
        let path = match below(path, V1) {
            Some(rest) if self.is_own() && !is_anthropic => rest,
            _ => path,
        };
        format!("{}{version}{path}", self.root)
    }

    /// The path as the server reads it: an address that ends in `/v1` gives it to routes of the API
    /// that come without.
    pub fn versioned(&self, path: &str) -> String {
        let version = if self.lacks_version(path) { V1 } else { "" };
        format!("{version}{path}")
    }

    fn lacks_version(&self, path: &str) -> bool {
        self.end == BaseEnd::V1 && below(path, V1).is_none() && is_of_api(path)
    }

    /// The path by which agents name a route, if `path` names it by this base. A path that does not
    /// begin with the base, or is not of the API, has no other name.
    pub fn without(&self, path: &str) -> Option<String> {
        let rest = below(path, &self.root).filter(|_| !self.root.is_empty())?;
        match (self.end, below(rest, V1)) {
            _ if !is_of_api(rest) => None,
            (_, Some(_)) => Some(rest.to_owned()),
            (BaseEnd::Own, None) => Some(format!("{V1}{rest}")),
            (_, None) => None,
        }
    }
}

/// The rest of `path` below the segments of `base`, from its slash on.
fn below<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    path.strip_prefix(base).filter(|rest| rest.starts_with('/'))
}

fn is_of_api(path: &str) -> bool {
    let name = endpoint_name(path.split('?').next().unwrap_or(path));
    ROUTES.iter().any(|route| names(route, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_lands_where_a_client_with_that_base_would_land() {
        let chat = "/chat/completions";
        for (base, with_v1, without) in [
            ("", "/v1/chat/completions", "/chat/completions"),
            ("/v1", "/v1/chat/completions", "/v1/chat/completions"),
            ("/openai/v1", "/openai/v1/chat/completions", "/openai/v1/chat/completions"),
            ("/api/paas/v4", "/api/paas/v4/chat/completions", "/api/paas/v4/chat/completions"),
            (
                "/v1beta/openai",
                "/v1beta/openai/chat/completions",
                "/v1beta/openai/chat/completions",
            ),
        ] {
            let path = BasePath::new(base);
            assert_eq!(path.join(&format!("/v1{chat}"), false), with_v1, "{base}");
            assert_eq!(path.join(chat, false), without, "{base}");
        }
    }

    #[test]
    fn anthropics_clients_add_a_version_to_any_base() {
        for (base, expected) in [
            ("", "/v1/messages?beta=true"),
            ("/v1", "/v1/messages?beta=true"),
            ("/api/anthropic", "/api/anthropic/v1/messages?beta=true"),
            ("/anthropic/v1", "/anthropic/v1/messages?beta=true"),
        ] {
            assert_eq!(
                BasePath::new(base).join("/v1/messages?beta=true", true),
                expected,
                "{base}"
            );
        }
    }

    #[test]
    fn what_is_beside_the_api_stays_there() {
        for (base, path, expected) in [
            ("/v1", "/health", "/health"),
            ("/llm/v1", "/server_info?config_format=json", "/llm/server_info?config_format=json"),
            ("/llm/v1", "/generate", "/llm/generate"),
            ("/api/v3", "/health", "/api/v3/health"),
            ("/api/v3", "/v1", "/api/v3/v1"),
            ("/api/v3", "/v1/files?a=/v1/b", "/api/v3/files?a=/v1/b"),
            ("/v1", "/models/org%2Fname?a=b", "/v1/models/org%2Fname?a=b"),
        ] {
            assert_eq!(BasePath::new(base).join(path, false), expected, "{base} {path}");
        }
        assert_eq!(BasePath::new("/v1").versioned("/completions?a=b"), "/v1/completions?a=b");
        assert_eq!(BasePath::new("").versioned("/completions"), "/completions");
    }

    #[test]
    fn an_agent_may_name_a_route_by_the_upstreams_own_path() {
        for (base, path, expected) in [
            ("/api/paas/v4", "/api/paas/v4/chat/completions?a", Some("/v1/chat/completions?a")),
            ("/openai/v1", "/openai/v1/models/m", Some("/v1/models/m")),
            ("/api/anthropic", "/api/anthropic/v1/messages", Some("/v1/messages")),
            ("/openai", "/openai/v1/responses/", Some("/v1/responses/")),
            // A name of something else, or of nothing that agents may use.
            ("/openai/v1", "/openai/chat/completions", None),
            ("/api", "/apix/models", None),
            ("/api", "/api/generate", None),
            ("/api", "/api/chat", None),
            ("/v1", "/v1/chat/completions", None),
            ("", "/v1/models", None),
        ] {
            assert_eq!(BasePath::new(base).without(path).as_deref(), expected, "{base} {path}");
        }
    }
}
