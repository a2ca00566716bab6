//! Upstreams of hosted APIs: the form of their key, their bases, and what they refuse to tell.

use std::net::SocketAddr;

use kit::{Seen, Step, Upstream, World, exchange, post};
use proxy::Config;
use serde_json::json;
use wire::Dialect;

const KEY: &str = "sk-ant-own-4b8e1c7a";
const MESSAGE: &[u8] =
    br#"{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"a"}]}"#;

/// The value of a header of a request; empty if it has none.
fn header<'a>(seen: &'a Seen, name: &str) -> &'a str {
    let mut pairs = seen.head.lines().filter_map(|line| line.split_once(": "));
    pairs.find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
}

fn method(seen: &Seen) -> &str {
    seen.head.split(' ').next().unwrap_or_default()
}

fn document(status: &str, body: &serde_json::Value) -> Vec<Step> {
    vec![Step::reply(status, "application/json", body.to_string().as_bytes())]
}

/// An error in the form of Anthropic's API.
fn refusal(status: &str, kind: &str, message: &str) -> Vec<Step> {
    let error = json!({ "type": kind, "message": message });
    document(status, &json!({ "type": "error", "error": error }))
}

/// A server of Anthropic's API, which wants its key and a version.
fn anthropic(seen: &Seen) -> Vec<Step> {
    if header(seen, "x-api-key") != KEY || !header(seen, "authorization").is_empty() {
        return refusal("401 Unauthorized", "authentication_error", "invalid x-api-key");
    }
    if header(seen, "anthropic-version").is_empty() {
        let message = "anthropic-version: header is required";
        return refusal("400 Bad Request", "invalid_request_error", message);
    }
    match (method(seen), seen.path.as_str()) {
        ("GET", _) => {
            let model = json!({ "type": "model", "id": "claude-a", "display_name": "A" });
            document(
                "200 OK",
                &json!({ "data": [model], "has_more": false, "first_id": "claude-a" }),
            )
        }
        (_, "/v1/messages/count_tokens") => document("200 OK", &json!({ "input_tokens": 1 })),
        _ => document(
            "200 OK",
            &json!({ "id": "m1", "type": "message", "role": "assistant", "model": "m",
                "content": [{ "type": "text", "text": "hi" }], "stop_reason": "end_turn",
                "usage": { "input_tokens": 1, "output_tokens": 1 } }),
        ),
    }
}

fn config(upstream: &Upstream, base: &str) -> Config {
    Config::new(format!("http://{}{base}", upstream.address).parse().unwrap())
}

fn config_with_key(upstream: &Upstream, dialect: Option<Dialect>) -> Config {
    let mut config = config(upstream, "");
    config.upstream_key = Some(KEY.to_owned());
    config.allowed_origins = vec!["*".to_owned()];
    config.dialect = dialect;
    config
}

/// The keys that agents send, none of which is for the upstream.
const AGENTS_KEYS: [&[(&str, &str)]; 6] = [
    &[("x-api-key", "made-up")],
    &[("authorization", "Bearer made-up")],
    &[("x-api-key", "made-up"), ("authorization", "Bearer made-up")],
    &[("api-key", "made-up"), ("x-goog-api-key", "made-up")],
    &[("x-api-key", "made-up"), ("anthropic-version", "2023-06-01")],
    &[],
];

#[tokio::test]
async fn anthropics_api_gets_its_key_in_its_own_form() {
    for dialect in [Some(Dialect::OpenAi), None] {
        let upstream = Upstream::start_bare(anthropic).await;
        let world = World::start_with(config_with_key(&upstream, dialect)).await;
        for keys in AGENTS_KEYS {
            for path in ["/e/t/v1/messages?beta=true", "/v1/messages/count_tokens"] {
                let before = upstream.seen().len();
                let reply = exchange(world.data, ("POST", path), keys, MESSAGE).await;
                let seen = upstream.seen().split_off(before);
                assert_eq!((reply.status, seen.len()), (200, 1), "{dialect:?} {keys:?}: {seen:?}");
                assert_eq!(header(&seen[0], "anthropic-version"), "2023-06-01");
                assert!(!seen[0].head.contains("made-up"), "{}", seen[0].head);
            }
            let list = exchange(world.data, ("GET", "/e/t/v1/models?limit=9"), keys, b"").await;
            assert_eq!(list.json()["data"][0]["id"], "claude-a", "{dialect:?} {keys:?}");
        }
        let version = [("anthropic-version", "2030-01-01")];
        exchange(world.data, ("POST", "/v1/messages"), &version, MESSAGE).await;
        assert_eq!(header(&upstream.seen().pop().unwrap(), "anthropic-version"), "2030-01-01");
        let listed = exchange(world.control, ("GET", "/v1/models"), &[], b"").await;
        assert_eq!(listed.status, 200, "{}", listed.text());
        world.stop().await;
    }
}

#[tokio::test]
async fn a_key_that_was_refused_goes_in_the_other_form() {
    // A gateway that has Anthropic's route and takes bearer tokens alone.
    let upstream = Upstream::start_bare(|seen| match header(seen, "authorization") {
        "Bearer sk-ant-own-4b8e1c7a" => document("200 OK", &json!({})),
        _ => document("401 Unauthorized", &json!({ "error": "no" })),
    })
    .await;
    let world = World::start_with(config_with_key(&upstream, Some(Dialect::OpenAi))).await;
    for (path, requests) in [
        ("/v1/messages", 2),
        ("/v1/messages", 1),
        ("/v1/chat/completions", 1),
        ("/v1/messages/count_tokens", 2),
        ("/v1/messages/count_tokens", 1),
    ] {
        let before = upstream.seen().len();
        let reply = exchange(world.data, ("POST", path), AGENTS_KEYS[0], MESSAGE).await;
        let seen = upstream.seen().split_off(before);
        assert_eq!((reply.status, seen.len()), (200, requests), "{path}: {seen:?}");
        assert!(seen.iter().all(|one| one.body == MESSAGE), "{seen:?}");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_key_that_is_wrong_is_not_sent_twice_with_every_call() {
    let upstream = Upstream::start_bare(|_| {
        refusal("401 Unauthorized", "authentication_error", "invalid x-api-key")
    })
    .await;
    let world = World::start_with(config_with_key(&upstream, Some(Dialect::OpenAi))).await;
    for requests in [2, 1, 1] {
        let before = upstream.seen().len();
        let reply = exchange(world.data, ("POST", "/v1/messages"), &[], MESSAGE).await;
        assert_eq!((reply.status, upstream.seen().len() - before), (401, requests));
        assert!(reply.text().contains("invalid x-api-key"));
    }
    world.stop().await;
}

/// The paths that the upstream is asked for with GET, which are questions of rolltape itself.
fn questions(upstream: &Upstream) -> Vec<String> {
    let seen = upstream.seen();
    seen.iter().filter(|one| method(one) == "GET").map(|one| one.path.clone()).collect()
}

#[tokio::test]
async fn a_question_that_was_refused_is_not_asked_again() {
    type Script = fn(&Seen) -> Vec<Step>;
    let refuses: [(Script, [usize; 3]); 3] = [
        // Anthropic's API says by its form what it is, to whomever.
        (|_| refusal("401 Unauthorized", "authentication_error", "invalid x-api-key"), [2, 2, 2]),
        // Another agent may have a better key.
        (|_| document("401 Unauthorized", &json!({ "error": "no" })), [2, 2, 4]),
        // A server that is not ready is asked again.
        (|_| document("503 Service Unavailable", &json!({ "error": "no" })), [1, 2, 3]),
    ];
    for (script, asked) in refuses {
        let upstream = Upstream::start_bare(script).await;
        let world = World::start(upstream.address).await;
        for (key, asked) in ["one", "one", "other"].into_iter().zip(asked) {
            exchange(world.data, ("POST", "/v1/messages"), &[("x-api-key", key)], MESSAGE).await;
            let questions = questions(&upstream);
            assert_eq!(questions.len(), asked, "{key}: {questions:?}");
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn an_agents_key_asks_for_the_models_as_it_was_sent() {
    let upstream = Upstream::start_bare(anthropic).await;
    let world = World::start(upstream.address).await;
    let headers = [("x-api-key", KEY), ("anthropic-version", "2023-06-01")];
    for _ in 0..2 {
        let reply = exchange(world.data, ("POST", "/v1/messages"), &headers, MESSAGE).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let list = exchange(world.data, ("GET", "/v1/models"), &headers, b"").await;
    assert_eq!(list.json()["first_id"], "claude-a");
    assert_eq!(questions(&upstream).len(), 2, "one is rolltape's, one the agent's");
    world.stop().await;

    // A vLLM takes the same key as a bearer token.
    let upstream = Upstream::start_bare(|seen| match header(seen, "authorization") {
        "Bearer made-up" => {
            document("200 OK", &json!({ "data": [{ "id": "m", "owned_by": "vllm" }] }))
        }
        _ => document("401 Unauthorized", &json!({ "error": "Unauthorized" })),
    })
    .await;
    let world = World::start(upstream.address).await;
    exchange(world.data, ("POST", "/v1/messages"), AGENTS_KEYS[0], MESSAGE).await;
    let seen = upstream.seen();
    assert!(seen.iter().any(|one| one.path == "/v1/chat/completions"), "{seen:?}");
    world.stop().await;
}

#[tokio::test]
async fn fields_that_a_server_forbids_are_not_sent_again() {
    for (status, as_anthropic) in [("400 Bad Request", true), ("422 Unprocessable Entity", false)] {
        let upstream = Upstream::start("vllm", move |seen| {
            let body = String::from_utf8_lossy(&seen.body);
            match ["logprobs", "return_"].iter().any(|field| body.contains(field)) {
                false => document("200 OK", &json!({ "choices": [] })),
                true if as_anthropic => {
                    refusal(status, "invalid_request_error", "logprobs: Extra inputs")
                }
                true => document(status, &json!({ "detail": [{ "type": "extra_forbidden" }] })),
            }
        })
        .await;
        let world = World::start(upstream.address).await;
        let mut requests = Vec::new();
        for _ in 0..3 {
            let before = upstream.seen().len();
            let reply = exchange(world.data, ("POST", "/v1/chat/completions"), &[], MESSAGE).await;
            assert_eq!(reply.status, 200, "{status}: {}", reply.text());
            requests.push(upstream.seen().len() - before);
        }
        assert!(requests[0] > 1 && requests[1..] == [1, 1], "{status}: {requests:?}");
        world.stop().await;
    }
}

/// The path at which an agent's call to `path` reaches the upstream.
async fn landed(data: SocketAddr, upstream: &Upstream, path: &str) -> String {
    let reply = post(data, path, std::str::from_utf8(MESSAGE).unwrap()).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    upstream.seen().pop().unwrap().path
}

#[tokio::test]
async fn a_call_lands_where_it_would_with_the_upstreams_own_base() {
    let upstream = Upstream::start_bare(|_| document("200 OK", &json!({}))).await;
    for base in [
        "/v1",
        "/api/v1",
        "/openai/v1",
        "/api/paas/v4",
        "/api/v3",
        "/v1beta/openai",
        "/openai",
        "/v2",
    ] {
        for address in [base.to_owned(), format!("{base}/")] {
            let mut config = config(&upstream, &address);
            config.dialect = Some(Dialect::OpenAi);
            let world = World::start_with(config).await;
            let at = |path: String| {
                let (data, upstream) = (world.data, &upstream);
                async move { landed(data, upstream, &path).await }
            };
            for tag in ["", "/e/t", "/e/t/a/2"] {
                for agents in ["/v1", base, ""] {
                    for route in ["chat/completions?a=b", "completions", "responses", "embeddings"]
                    {
                        let path = at(format!("{tag}{agents}/{route}")).await;
                        assert_eq!(path, format!("{base}/{route}"), "{tag}{agents}/{route}");
                    }
                }
                // Anthropic's clients add the version themselves.
                let root = base.strip_suffix("/v1").unwrap_or(base);
                for agents in ["", root] {
                    let path = at(format!("{tag}{agents}/v1/messages?beta=true")).await;
                    assert_eq!(path, format!("{root}/v1/messages?beta=true"), "{tag}{agents}");
                }
            }
            let calls = world.calls().await;
            assert!(calls.iter().all(|call| call.begun.route.generates()
                || call.begun.route == episode::Route::Embeddings));
            world.stop().await;
        }
    }
}

#[tokio::test]
async fn a_list_of_models_is_that_of_the_client_who_asks() {
    let upstream = Upstream::start_bare(|_| document("200 OK", &json!({}))).await;
    let mut config = config(&upstream, "/api/anthropic");
    config.dialect = Some(Dialect::OpenAi);
    let world = World::start_with(config).await;
    for (headers, expected) in [
        (&[][..], "/api/anthropic/models?limit=9"),
        (&[("anthropic-version", "2023-06-01")][..], "/api/anthropic/v1/models?limit=9"),
    ] {
        exchange(world.data, ("GET", "/e/t/v1/models?limit=9"), headers, b"").await;
        assert_eq!(upstream.seen().pop().unwrap().path, expected);
    }
    world.stop().await;
}

#[tokio::test]
async fn a_translated_call_lands_below_the_upstreams_own_base() {
    let upstream = Upstream::start_bare(|seen| match seen.path.as_str() {
        "/api/paas/v4/models" => {
            document("200 OK", &json!({ "data": [{ "id": "m", "owned_by": "vllm" }] }))
        }
        "/api/paas/v4/chat/completions" => {
            let message = json!({ "role": "assistant", "content": "hi" });
            let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
            document("200 OK", &json!({ "id": "c", "model": "m", "choices": [choice] }))
        }
        _ => document("404 Not Found", &json!({ "error": "no route" })),
    })
    .await;
    let world = World::start_with(config(&upstream, "/api/paas/v4")).await;
    let reply = post(world.data, "/e/t/v1/messages", std::str::from_utf8(MESSAGE).unwrap()).await;
    assert_eq!(reply.json()["content"][0]["text"], "hi", "{}", reply.text());
    world.stop().await;
}

#[tokio::test]
async fn no_base_opens_the_control_of_the_upstream() {
    let upstream = Upstream::start_bare(|_| document("200 OK", &json!({}))).await;
    let mut config = config(&upstream, "/engine");
    config.dialect = Some(Dialect::OpenAi);
    config.allowed_paths = vec!["POST /*".parse().unwrap()];
    let world = World::start_with(config).await;
    for path in ["/pause", "/v1/pause", "/engine/pause", "/engine/v1/pause", "/e/t/v1/v1/pause"] {
        let reply = post(world.data, path, "{}").await;
        let landed = upstream.seen().pop().map(|seen| seen.path);
        let is_control = landed.as_deref() == Some("/engine/pause");
        assert!(!is_control, "{path}: {} {landed:?}", reply.status);
    }
    world.stop().await;
}
