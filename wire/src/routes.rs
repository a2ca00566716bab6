//! The routes of agents: which are served, which are recorded with tokens, and which sample tokens
//! that cannot be recorded.

pub(crate) mod base;

use episode::Route;

use crate::dialect::Dialect;
use crate::request::Request;

/// The treatment of a route of agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    /// A call of this kind. Its tokens are recorded if the kind generates.
    Call(Route),
    /// Chat or a text completion, as the body says.
    ByBody,
    /// A plain exchange, which samples nothing.
    Plain,
    /// No reader knows the tokens that it samples, so agents are refused.
    Unrecorded,
}

use Treatment::{ByBody, Call, Plain, Unrecorded};

/// The routes of agents, by method and path without a leading `/v1`, sorted by path. The last
/// segment of a path may be `*`, which stands for the rest of any path. Every other route is
/// closed: OpenAI's files and batches, tokenizers, adapters, slots, models to load or delete, and
/// the control of a server.
const ROUTES: [(&str, &str, Treatment); 39] = [
    // Claude Code's first request. TGI samples on a POST to it.
    ("GET", "", Plain),
    ("POST", "", Unrecorded),
    // Ollama's own form, which SGLang and llama.cpp have, too.
    ("POST", "api/chat", Unrecorded),
    ("POST", "api/generate", Unrecorded),
    // Models of speech.
    ("POST", "audio/speech", Unrecorded),
    ("POST", "audio/transcriptions", Unrecorded),
    ("POST", "audio/translations", Unrecorded),
    ("POST", "chat/completions", Call(Route::Chat)),
    // vLLM: several conversations at once.
    ("POST", "chat/completions/batch", Unrecorded),
    // vLLM, in Cohere's form.
    ("POST", "cohere/v2/chat", Unrecorded),
    // llama.cpp.
    ("POST", "completion", Call(Route::Generate)),
    ("POST", "completions", Call(Route::Completions)),
    ("POST", "embeddings", Call(Route::Embeddings)),
    // SGLang.
    ("POST", "generate", Call(Route::Generate)),
    ("PUT", "generate", Call(Route::Generate)),
    // TGI.
    ("POST", "generate_stream", Unrecorded),
    ("GET", "health", Plain),
    // SGLang samples a token for it.
    ("GET", "health_generate", Unrecorded),
    // vLLM: ids in, ids out.
    ("POST", "inference/v1/generate", Unrecorded),
    // llama.cpp: fills in the code between two pieces of code.
    ("POST", "infill", Call(Route::Generate)),
    // vLLM and SGLang, in SageMaker's form.
    ("POST", "invocations", ByBody),
    ("POST", "messages", Call(Route::Messages)),
    // Anthropic: many calls at once, answered later.
    ("POST", "messages/batches", Unrecorded),
    ("POST", "messages/count_tokens", Call(Route::CountTokens)),
    ("GET", "models", Call(Route::Models)),
    ("GET", "models/*", Plain),
    ("GET", "ping", Plain),
    ("POST", "rerank", Plain),
    ("POST", "reranking", Plain),
    ("POST", "responses", Call(Route::Responses)),
    // OpenAI: a model writes a summary.
    ("POST", "responses/compact", Unrecorded),
    ("POST", "responses/input_tokens", Plain),
    ("POST", "score", Plain),
    // TGI, in Vertex's form.
    ("POST", "v2/chat", Unrecorded),
    ("POST", "v2/rerank", Plain),
    ("GET", "version", Plain),
    ("POST", "vertex", Unrecorded),
    // SGLang, in Vertex's form.
    ("POST", "vertex_generate", Unrecorded),
    ("POST", "videos", Unrecorded),
];

/// The treatment of a method on a path, if the table has it.
fn treatment(method: &str, path: &str) -> Option<Treatment> {
    let name = endpoint_name(path);
    ROUTES
        .iter()
        .find(|(known, template, _)| *known == method && names(template, name))
        .map(|(_, _, treatment)| *treatment)
}

/// Returns true if a path of the table names this endpoint.
fn names(template: &str, name: &str) -> bool {
    match template.strip_suffix('*') {
        Some(start) => name.len() > start.len() && name.starts_with(start),
        None => template == name,
    }
}

/// The right of an agent to a method on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The call is served.
    Open,
    /// The call samples tokens that cannot be recorded.
    Unrecorded,
    /// No agent needs it, so it is not on the list.
    Closed,
}

/// The access of agents to `path`, which has no query and is in its normal form. `HEAD` goes
/// wherever `GET` goes, and `OPTIONS` to every open path.
pub fn access(method: &str, path: &str) -> Access {
    let methods: &[&str] = match method {
        "HEAD" => &["GET"],
        "OPTIONS" => &["GET", "POST", "PUT"],
        _ => &[method],
    };
    let found: Vec<_> = methods.iter().filter_map(|method| treatment(method, path)).collect();
    match found.first() {
        None => Access::Closed,
        Some(_) if found.iter().any(|treatment| *treatment != Unrecorded) => Access::Open,
        Some(_) => Access::Unrecorded,
    }
}

/// True if a request with a body to `path` has JSON in it, as far as the table knows.
pub fn takes_json(method: &str, path: &str) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    method != "GET" && matches!(treatment(method, path), Some(Call(_) | ByBody | Plain))
}

/// True if `path` names the endpoint `name`.
pub(crate) fn is_named(path: &str, name: &str) -> bool {
    endpoint_name(path.split('?').next().unwrap_or(path)) == name
}

/// The kind of endpoint that `path` (without a query) names under `method`. A route that only its
/// body names is `Other`: see [`route_with_body`].
pub fn route(method: &str, path: &str) -> Route {
    match treatment(method, path) {
        Some(Call(route)) => route,
        _ => Route::Other,
    }
}

/// The kind of endpoint, where the body may tell it. A body that two servers may read as two kinds
/// tells none.
pub fn route_with_body(method: &str, path: &str, request: Option<&Request>) -> Route {
    match treatment(method, path) {
        Some(ByBody) => request.map_or(Route::Other, route_of_body),
        Some(Call(route)) => route,
        _ => Route::Other,
    }
}

/// Chat or a text completion. vLLM tries one after the other and takes the first that fits: only a
/// list of messages may be a chat, and beside a prompt it is not known to fit.
fn route_of_body(request: &Request) -> Route {
    let has = |key| request.raw(key).is_some_and(|value| value != b"null");
    let has_list = request.raw("messages").is_some_and(|value| value.starts_with(b"["));
    match (has_list, has("prompt")) {
        (true, false) if !has("prompt_embeds") => Route::Chat,
        (false, true) => Route::Completions,
        _ => Route::Other,
    }
}

/// Returns true if only the body of a `POST` to `path` tells whether it samples.
pub fn depends_on_body(path: &str) -> bool {
    treatment("POST", path.split('?').next().unwrap_or(path)) == Some(ByBody)
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

/// Returns true if a client of Anthropic's API makes a call to `path`: to one of its own routes, or
/// to any other with its header for a version, which `has_version` stands for.
pub fn is_anthropic_call(path: &str, has_version: bool) -> bool {
    let name = endpoint_name(path.split('?').next().unwrap_or(path));
    let is_of_openai = matches!(
        treatment("POST", name),
        Some(Call(Route::Chat | Route::Completions | Route::Responses | Route::Embeddings))
    );
    name == "messages" || name.starts_with("messages/") || has_version && !is_of_openai
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
        assert_eq!(of(r#"{"prompt":"x","messages":"x"}"#), Route::Completions);
        for neither in [
            r#"{"input":"a"}"#,
            r#"{"messages":"x"}"#,
            r#"{"messages":{}}"#,
            r#"{"prompt":"x","messages":[1]}"#,
            r#"{"prompt_embeds":"x","messages":[1]}"#,
        ] {
            assert_eq!(of(neither), Route::Other, "{neither}");
        }
        assert_eq!(of("["), Route::Other);
        assert_eq!(route_with_body("POST", "/v1/messages", None), Route::Messages);
    }

    #[test]
    fn anthropics_clients_are_known_by_their_routes_and_version() {
        for path in ["/v1/messages?beta=true", "/v1/messages/count_tokens", "/messages/"] {
            assert!(is_anthropic_call(path, false), "{path}");
        }
        for path in ["/v1/models?limit=1000", "/v1/models/m", "/"] {
            assert!(is_anthropic_call(path, true) && !is_anthropic_call(path, false), "{path}");
        }
        for path in ["/v1/chat/completions", "/responses", "/v1/messages_of_others"] {
            assert!(!is_anthropic_call(path, false), "{path}");
        }
        assert!(!is_anthropic_call("/v1/chat/completions?a", true));
    }

    #[test]
    fn a_path_without_a_version_is_llamacpps_own() {
        let at = |dialect, path| route_for(dialect, Route::Completions, path);
        assert_eq!(at(Dialect::Llamacpp, "/completions?a=b"), Route::Generate);
        assert_eq!(at(Dialect::Llamacpp, "/v1/completions"), Route::Completions);
        assert_eq!(at(Dialect::Vllm, "/completions"), Route::Completions);
        assert_eq!(route_for(Dialect::Llamacpp, Route::Chat, "/chat/completions"), Route::Chat);
    }

    /// The sampling routes of vLLM, SGLang, llama.cpp, Ollama and TGI, as their sources list them.
    const SAMPLING: [&str; 29] = [
        // All of them.
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        // vLLM.
        "/v1/chat/completions/batch",
        "/cohere/v2/chat",
        "/inference/v1/generate",
        "/invocations",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/audio/speech",
        // SGLang.
        "/generate",
        "/api/chat",
        "/api/generate",
        "/vertex_generate",
        // llama.cpp.
        "/completion",
        "/completions",
        "/chat/completions",
        "/responses",
        "/messages",
        "/infill",
        "/audio/transcriptions",
        // TGI.
        "/",
        "/generate_stream",
        "/vertex",
        // Hosted servers.
        "/v1/responses/compact",
        "/v1/messages/batches",
        "/v1/videos",
        "/v2/chat",
    ];

    #[test]
    fn no_route_that_samples_is_a_plain_exchange() {
        for path in SAMPLING {
            match access("POST", path) {
                Access::Open => {
                    let is_recorded = route("POST", path).generates();
                    assert!(is_recorded || depends_on_body(path), "{path}");
                }
                Access::Unrecorded => assert_eq!(route("POST", path), Route::Other, "{path}"),
                Access::Closed => panic!("{path}: the refusal names the wrong option"),
            }
        }
        assert_eq!(access("GET", "/health_generate"), Access::Unrecorded);
    }

    #[test]
    fn what_no_agent_needs_is_closed() {
        for (method, path) in [
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("POST", "/v1/files"),
            ("GET", "/v1/files/f"),
            ("POST", "/v1/batches"),
            ("GET", "/v1/responses/resp_1"),
            ("DELETE", "/v1/responses/resp_1"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("GET", "/v1/chat/completions"),
            ("DELETE", "/v1/models/m"),
            ("POST", "/v1/models/m:generateContent"),
            ("POST", "/models/load"),
            ("POST", "/lora-adapters"),
            ("POST", "/slots/0"),
            ("GET", "/slots"),
            ("POST", "/props"),
            ("POST", "/load_lora_adapter_from_tensors"),
            ("POST", "/weights_checker"),
            ("DELETE", "/api/delete"),
            ("POST", "/api/pull"),
            ("GET", "/metrics"),
            ("GET", "/server_info"),
            ("CONNECT", "/"),
            ("TRACE", "/v1/models"),
            ("POST", "/V1/chat/completions"),
            ("POST", "/v1/v1/chat/completions"),
        ] {
            assert_eq!(access(method, path), Access::Closed, "{method} {path}");
        }
    }

    #[test]
    fn what_agents_need_is_open() {
        assert!(ROUTES.is_sorted_by_key(|(_, path, _)| path));
        for (method, path) in [
            ("HEAD", "/"),
            ("GET", "/health"),
            ("HEAD", "/v1/models/"),
            ("GET", "/v1/models/org/name"),
            ("OPTIONS", "/v1/chat/completions"),
            ("POST", "//v1/responses/"),
            ("PUT", "/generate"),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1/score"),
        ] {
            assert_eq!(access(method, path), Access::Open, "{method} {path}");
        }
        assert_eq!(access("OPTIONS", "/api/chat"), Access::Unrecorded);
        assert_eq!(access("OPTIONS", "/tokenize"), Access::Closed);
    }
}
