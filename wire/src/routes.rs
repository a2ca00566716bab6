//! Routes: what kind of call a method and a path make, and which of them sample where nothing tells
//! the tokens.

use episode::Route;

use crate::dialect::Dialect;
use crate::request::Request;

/// What becomes of a call to a route by which servers sample beside OpenAI's and Anthropic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// It is recorded as the server's own route for text.
    Text,
    /// It is chat or a text completion, as its body says.
    ByBody,
    /// Nothing reads which tokens it samples: agents are refused.
    Unheard,
}

/// Such routes, without a `/v1` before them, sorted.
const BESIDE: [(&str, Beside); 10] = [
    // SGLang, as Ollama has them.
    ("api/chat", Beside::Unheard),
    ("api/generate", Beside::Unheard),
    // vLLM: several conversations at once.
    ("chat/completions/batch", Beside::Unheard),
    // vLLM, as Cohere has it.
    ("cohere/v2/chat", Beside::Unheard),
    // llama.cpp.
    ("completion", Beside::Text),
    // SGLang.
    ("generate", Beside::Text),
    // vLLM: ids in, ids out.
    ("inference/v1/generate", Beside::Unheard),
    // llama.cpp: code between two pieces of code.
    ("infill", Beside::Text),
    // vLLM and SGLang, as SageMaker has them.
    ("invocations", Beside::ByBody),
    // SGLang, as Vertex has it.
    ("vertex_generate", Beside::Unheard),
];

fn beside(path: &str) -> Option<Beside> {
    let found = BESIDE.binary_search_by(|(name, _)| (*name).cmp(path)).ok()?;
    Some(BESIDE[found].1)
}

/// The kind of endpoint that `path` (without a query) names under `method`. A route that is named
/// by its body alone is `Other`: see [`route_of`].
pub fn route(method: &str, path: &str) -> Route {
    match (method, bare(path)) {
        ("POST", "chat/completions") => Route::Chat,
        ("POST", "completions") => Route::Completions,
        ("POST", "responses") => Route::Responses,
        ("POST", "messages") => Route::Messages,
        ("POST", "messages/count_tokens") => Route::CountTokens,
        ("POST", "embeddings") => Route::Embeddings,
        ("GET", "models") => Route::Models,
        ("POST" | "PUT", path) if beside(path) == Some(Beside::Text) => Route::Generate,
        _ => Route::Other,
    }
}

/// The kind of endpoint, with what its body says.
pub fn route_of(method: &str, path: &str, request: Option<&Request>) -> Route {
    let has = |key| request.and_then(|r| r.raw(key)).is_some_and(|value| value != b"null");
    match beside(bare(path)) {
        Some(Beside::ByBody) if method == "POST" && has("messages") => Route::Chat,
        Some(Beside::ByBody) if method == "POST" && has("prompt") => Route::Completions,
        _ => route(method, path),
    }
}

/// The route that a server of this dialect takes a call for: llama.cpp's `/completions` without a
/// version is its own route for text.
pub fn route_at(dialect: Dialect, route: Route, path: &str) -> Route {
    let path = path.split('?').next().unwrap_or(path).trim_end_matches('/');
    match (dialect, route) {
        (Dialect::Llamacpp, Route::Completions) if path == "/completions" => Route::Generate,
        _ => route,
    }
}

/// Whether a call samples, on some server, tokens that nothing tells of. `path` is as a server
/// reads it, without a query.
pub fn samples_unheard(method: &str, path: &str) -> bool {
    !matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE")
        && beside(bare(path)) == Some(Beside::Unheard)
}

/// Whether a server of this dialect says on a route of its own what it sampled there.
pub fn tells_natively(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Sglang | Dialect::Llamacpp | Dialect::Rolltape)
}

/// A path without what is before its name. Some clients leave the version out, some join it with a
/// second slash.
fn bare(path: &str) -> &str {
    let path = path.trim_end_matches('/').trim_start_matches('/');
    path.strip_prefix("v1").map_or(path, |rest| match rest.starts_with('/') {
        true => rest.trim_start_matches('/'),
        false => path,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn routes_are_told_by_method_and_path() {
        assert_eq!(route("POST", "/v1/chat/completions"), Route::Chat);
        assert_eq!(route("POST", "//v1/completions/"), Route::Completions);
        assert_eq!(route("GET", "/v1/chat/completions"), Route::Other);
        assert_eq!(route("POST", "/v1/models"), Route::Other);
        assert_eq!(route("GET", "/v1/models"), Route::Models);
        assert_eq!(route("POST", "/responses"), Route::Responses);
        assert_eq!(route("POST", "/v1//v1/responses"), Route::Other);
        assert_eq!(route("POST", "/v1/messages"), Route::Messages);
        assert_eq!(route("POST", "/v1/messages/count_tokens"), Route::CountTokens);
        for path in ["/generate", "/completion", "/infill", "/v1/generate"] {
            assert_eq!(route("POST", path), Route::Generate, "{path}");
            assert_eq!(route("GET", path), Route::Other, "{path}");
        }
    }

    #[test]
    fn an_invocation_is_what_its_body_is() {
        let of = |body: &str| {
            let request = Request::read(&Bytes::copy_from_slice(body.as_bytes()));
            route_of("POST", "/invocations", request.as_ref())
        };
        assert_eq!(of(r#"{"messages":[]}"#), Route::Chat);
        assert_eq!(of(r#"{"prompt":"a","messages":null}"#), Route::Completions);
        assert_eq!(of(r#"{"input":"a"}"#), Route::Other);
        assert_eq!(of("["), Route::Other);
        assert_eq!(route_of("POST", "/v1/messages", None), Route::Messages);
    }

    #[test]
    fn a_path_without_a_version_is_llamacpps_own() {
        let at = |dialect, path| route_at(dialect, Route::Completions, path);
        assert_eq!(at(Dialect::Llamacpp, "/completions?a=b"), Route::Generate);
        assert_eq!(at(Dialect::Llamacpp, "/v1/completions"), Route::Completions);
        assert_eq!(at(Dialect::Vllm, "/completions"), Route::Completions);
        assert_eq!(route_at(Dialect::Llamacpp, Route::Chat, "/chat/completions"), Route::Chat);
    }

    #[test]
    fn what_samples_unheard_is_known_by_its_path() {
        assert!(BESIDE.is_sorted_by_key(|(path, _)| path));
        for path in ["/v1/chat/completions/batch", "/api/chat", "/inference/v1/generate/"] {
            assert!(samples_unheard("POST", path), "{path}");
            assert!(!samples_unheard("GET", path), "{path}");
        }
        for path in ["/v1/chat/completions", "/generate", "/invocations", "/v1/embeddings", "/"] {
            assert!(!samples_unheard("POST", path), "{path}");
        }
    }
}
