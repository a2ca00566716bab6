//! The kind of a call by its method and path, and the routes that sample unrecorded tokens.

use episode::Route;

use crate::dialect::Dialect;
use crate::request::Request;

/// The treatment of a sampling route beside OpenAI's and Anthropic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherRoute {
    /// It is recorded as the server's own route for text.
    Text,
    /// It is chat or a text completion, as its body says.
    ByBody,
    /// No reader knows the tokens that it samples, so agents are refused.
    Unrecorded,
}

/// Such routes without a leading `/v1`, sorted.
const OTHER_ROUTES: [(&str, OtherRoute); 10] = [
    // SGLang, in Ollama's form.
    ("api/chat", OtherRoute::Unrecorded),
    ("api/generate", OtherRoute::Unrecorded),
    // vLLM: several conversations at once.
    ("chat/completions/batch", OtherRoute::Unrecorded),
    // vLLM, in Cohere's form.
    ("cohere/v2/chat", OtherRoute::Unrecorded),
    // llama.cpp.
    ("completion", OtherRoute::Text),
    // SGLang.
    ("generate", OtherRoute::Text),
    // vLLM: ids in, ids out.
    ("inference/v1/generate", OtherRoute::Unrecorded),
    // llama.cpp: fills in the code between two pieces of code.
    ("infill", OtherRoute::Text),
    // vLLM and SGLang, in SageMaker's form.
    ("invocations", OtherRoute::ByBody),
    // SGLang, in Vertex's form.
    ("vertex_generate", OtherRoute::Unrecorded),
];

fn other_route(name: &str) -> Option<OtherRoute> {
    let found = OTHER_ROUTES.binary_search_by(|(known, _)| (*known).cmp(name)).ok()?;
    Some(OTHER_ROUTES[found].1)
}

/// The kind of endpoint that `path` (without a query) names under `method`. A route that only its
/// body names is `Other`: see [`route_with_body`].
pub fn route(method: &str, path: &str) -> Route {
    match (method, endpoint_name(path)) {
        ("POST", "chat/completions") => Route::Chat,
        ("POST", "completions") => Route::Completions,
        ("POST", "responses") => Route::Responses,
        ("POST", "messages") => Route::Messages,
        ("POST", "messages/count_tokens") => Route::CountTokens,
        ("POST", "embeddings") => Route::Embeddings,
        ("GET", "models") => Route::Models,
        ("POST" | "PUT", name) if other_route(name) == Some(OtherRoute::Text) => Route::Generate,
        _ => Route::Other,
    }
}

/// The kind of endpoint, where the body may tell it.
pub fn route_with_body(method: &str, path: &str, request: Option<&Request>) -> Route {
    let has = |key| request.and_then(|r| r.raw(key)).is_some_and(|value| value != b"null");
    match other_route(endpoint_name(path)) {
        Some(OtherRoute::ByBody) if method == "POST" && has("messages") => Route::Chat,
        Some(OtherRoute::ByBody) if method == "POST" && has("prompt") => Route::Completions,
        _ => route(method, path),
    }
}

/// The kind of endpoint as a server of `dialect` reads it: llama.cpp's `/completions` without a
/// version is its own route for text.
pub fn route_for(dialect: Dialect, route: Route, path: &str) -> Route {
    let without_query = path.split('?').next().unwrap_or(path).trim_end_matches('/');
    match (dialect, route) {
        (Dialect::Llamacpp, Route::Completions) if without_query == "/completions" => {
            Route::Generate
        }
        _ => route,
    }
}

/// Returns true if a call samples, on some server, tokens that cannot be recorded. `path` is as a
/// server reads it, without a query.
pub fn samples_unrecorded(method: &str, path: &str) -> bool {
    !matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE")
        && other_route(endpoint_name(path)) == Some(OtherRoute::Unrecorded)
}

/// Returns true if a server of `dialect` reports the sampled tokens of its own route.
pub fn reports_natively(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Sglang | Dialect::Llamacpp | Dialect::Rolltape)
}

/// A path without slashes at its ends and without a leading `v1`. Some clients leave the version
/// out, some join it with a second slash.
fn endpoint_name(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/').trim_start_matches('/');
    match trimmed.strip_prefix("v1") {
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => trimmed,
    }
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
            route_with_body("POST", "/invocations", request.as_ref())
        };
        assert_eq!(of(r#"{"messages":[]}"#), Route::Chat);
        assert_eq!(of(r#"{"prompt":"a","messages":null}"#), Route::Completions);
        assert_eq!(of(r#"{"input":"a"}"#), Route::Other);
        assert_eq!(of("["), Route::Other);
        assert_eq!(route_with_body("POST", "/v1/messages", None), Route::Messages);
    }

    #[test]
    fn a_path_without_a_version_is_llamacpps_own() {
        let at = |dialect, path| route_for(dialect, Route::Completions, path);
        assert_eq!(at(Dialect::Llamacpp, "/completions?a=b"), Route::Generate);
        assert_eq!(at(Dialect::Llamacpp, "/v1/completions"), Route::Completions);
        assert_eq!(at(Dialect::Vllm, "/completions"), Route::Completions);
        assert_eq!(route_for(Dialect::Llamacpp, Route::Chat, "/chat/completions"), Route::Chat);
    }

    #[test]
    fn what_samples_unheard_is_known_by_its_path() {
        assert!(OTHER_ROUTES.is_sorted_by_key(|(path, _)| path));
        for path in ["/v1/chat/completions/batch", "/api/chat", "/inference/v1/generate/"] {
            assert!(samples_unrecorded("POST", path), "{path}");
            assert!(!samples_unrecorded("GET", path), "{path}");
        }
        for path in ["/v1/chat/completions", "/generate", "/invocations", "/v1/embeddings", "/"] {
            assert!(!samples_unrecorded("POST", path), "{path}");
        }
    }
}
