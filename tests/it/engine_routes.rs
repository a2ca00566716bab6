//! The upstream's control routes, the token of the control listener, and versions of weights.

use episode::{VersionSpan, VersionStamps};
use hyper::{Response, StatusCode};
use kit::{Answer, Heard, Manner, Reply, Server, World, exchange, post, tape};
use proxy::Config;
use serde_json::json;
use tokio::net::TcpSocket;
use wire::Dialect;

use crate::wait::until;

/// A server that repeats the request, and answers as vLLM on the chat route.
async fn upstream() -> Server {
    Server::start(Manner::default(), |heard| match heard.path.as_str() {
        "/v1/chat/completions" if String::from_utf8_lossy(&heard.body).contains("told") => {
            json_reply(&tape("vllm/chat.asked.json"))
        }
        "/v1/chat/completions" => json_reply(silent().as_bytes()),
        "/weight_info" => json_reply(br#"{"weight_version":"7","checksum":"xxh3:ab"}"#),
        _ => {
            let said = json!({ "path": heard.path, "bytes": heard.bytes });
            json_reply(said.to_string().as_bytes())
        }
    })
    .await
}

/// A reply without its version.
fn silent() -> String {
    let whole = String::from_utf8(tape("vllm/chat.asked.json")).unwrap();
    let spans = r#""weight_versions":[{"version":"7","start":0,"end":2}]"#;
    let silent = whole.replace(spans, r#""weight_versions":null"#);
    assert_ne!(silent, whole);
    silent
}

fn json_reply(body: &[u8]) -> Answer {
    let reply = Response::builder().header("content-type", "application/json");
    Answer::Whole(reply.body(body.to_vec().into()).unwrap())
}

fn config(server: &Server) -> Config {
    let mut config = Config::new(format!("http://{}", server.address).parse().unwrap());
    config.dialect = Some(Dialect::Vllm);
    config
}

fn paths(heard: &[Heard]) -> Vec<String> {
    heard.iter().map(|heard| heard.path.clone()).collect()
}

async fn chat(world: &World, episode: &str) -> Reply {
    say(world, episode, "hi").await
}

async fn say(world: &World, episode: &str, words: &str) -> Reply {
    let path = format!("/e/{episode}/v1/chat/completions");
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}]}}"#);
    post(world.data, &path, &body).await
}

#[tokio::test]
async fn engine_control_is_for_trainers_and_not_for_agents() {
    let server = upstream().await;
    let world = World::start_with(config(&server)).await;

    let body = vec![b'x'; 8 << 20];
    let path = "/update_weights?part=1";
    let reply = exchange(world.control, ("POST", path), &[("x-mine", "1")], &body).await;
    assert_eq!(reply.json(), json!({ "path": path, "bytes": 8 << 20 }));
    let heard = server.heard().remove(0);
    assert_eq!(heard.headers["x-mine"], "1");
    let got = exchange(world.control, ("GET", "/is_paused"), &[], b"").await;
    assert_eq!(got.json()["path"], "/is_paused");
    let models = exchange(world.control, ("GET", "/v1/models"), &[], b"").await;
    assert_eq!(models.json()["path"], "/v1/models");
    let before = server.heard().len();

    for path in [
        "/pause?mode=keep",
        "/v1/load_lora_adapter",
        "/e/run/v1/unload_lora_adapter",
        "/e/run/a/3/v1/%75nload_lora_adapter/",
        "/update_weights_from_disk",
        "/v1/../pause",
        "/e/run/v1/%2e%2e/pause",
        "/inference/v1/abort_requests",
    ] {
        let refused = post(world.data, path, "{}").await;
        assert_eq!(refused.status, 403, "{path}");
        assert_eq!(refused.json()["error"]["code"], 403);
    }

    assert_eq!(server.heard().len(), before, "the upstream heard nothing of it");
    assert_eq!(post(world.control, "/v1/chat/completions", "{}").await.status, 404);
    world.stop().await;
}

#[tokio::test]
async fn a_token_is_asked_for_and_goes_no_further() {
    let server = upstream().await;
    let (folder, token) = (tempfile::tempdir().unwrap(), Some("s3cret".to_owned()));
    let world = World::start_guarded(folder, config(&server), token).await;
    let ask = async |path: &str, token: &str| {
        let headers = [("authorization", token)];
        exchange(world.control, ("GET", path), &headers, b"").await.status
    };
    for path in ["/metrics", "/feed", "/episodes/a", "/is_paused", "/versions", "/ready"] {
        // Each wrong one is answered late.
        let wrong = tokio::join!(ask(path, "Bearer wrong"), ask(path, "s3cret"));
        assert_eq!(wrong, (401, 401), "{path}");
        assert_ne!(ask(path, "Bearer s3cret").await, 401, "{path}");
    }
    assert_eq!(ask("/health", "").await, 200);
    assert!(server.heard().iter().all(|heard| !heard.headers.contains_key("authorization")));
    assert_eq!(chat(&world, "a").await.status, 200, "agents need none");
    world.stop().await;
}

#[tokio::test]
async fn calls_are_stamped_with_the_version_that_is_said() {
    let server = upstream().await;
    let world = World::start_with(config(&server)).await;

    chat(&world, "a-before").await;
    let told = r#"{"version":"step_5","checksum":"b3:1"}"#;
    assert_eq!(post(world.control, "/version", told).await.status, 200);
    chat(&world, "b-after").await;
    say(&world, "c-told", "told").await;
    assert_eq!(post(world.control, "/version", r#"{"version":6}"#).await.status, 200);

    for bad in ["{}", r#"{"version":""}"#, r#"{"version":-1}"#, r#"{"version":[1]}"#] {
        assert_eq!(post(world.control, "/version", bad).await.status, 400, "{bad}");
    }

    let ended = world.calls().await.into_iter().map(|call| call.ended.unwrap());
    let ended: Vec<_> = ended.collect();
    assert_eq!(
        (&ended[0].stamps, ended[0].choices[0].versions.len()),
        (&VersionStamps::default(), 0)
    );
    let five = Some("step_5".to_owned());
    assert_eq!(ended[1].stamps, VersionStamps { start: five.clone(), end: five });
    let count = ended[1].choices[0].token_ids.as_ref().unwrap().len() as u32;
    let span = VersionSpan { version: "step_5".to_owned(), start: 0, end: count };
    assert_eq!(ended[1].choices[0].versions, [span]);
    assert_eq!(ended[2].choices[0].versions[0].version, "7", "what the upstream says wins");
    assert_eq!(ended[2].stamps, ended[1].stamps);
    let listed = exchange(world.control, ("GET", "/versions"), &[], b"").await.json();
    assert_eq!(listed["current"], json!({ "label": "6", "number": 6 }));
    assert_eq!(listed["versions"][0]["checksum"], "b3:1");
    assert_eq!(listed["versions"][0]["number"], 5);
    let sources = listed["versions"].as_array().unwrap().iter().map(|v| v["source"].clone());
    assert_eq!(sources.filter(|source| source == "control").count(), 2);
    assert!(paths(&server.heard()).iter().all(|path| path != "/weight_info"), "vLLM is not asked");
    world.stop().await;
}

#[tokio::test]
async fn our_own_engine_is_asked_for_the_checksum_of_a_new_label_once() {
    let server = Server::start(Manner::default(), |heard| match heard.path.as_str() {
        "/weight_info?version=7" => json_reply(br#"{"weight_version":"7","checksum":"xxh3:ab"}"#),
        "/weight_info" => json_reply(br#"{"weight_version":"8","checksum":"xxh3:cd"}"#),
        _ => json_reply(
            br#"{"id":"c","model":"m","prompt_token_ids":[1],"choices":[{"index":0,"message":
            {"role":"assistant","content":"a"},"finish_reason":"stop","token_ids":[5],
            "logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}]},
            "weight_versions":[{"version":"7","start":0,"end":1}]}]}"#,
        ),
    })
    .await;
    let mut config = config(&server);
    config.dialect = Some(Dialect::Rolltape);
    let world = World::start_with(config).await;

    for episode in ["a", "b"] {
        assert_eq!(chat(&world, episode).await.status, 200);
    }

    let versions = until("both versions", async || {
        let versions = world.snapshot().await.versions().await.unwrap();
        (versions.len() == 2).then_some(versions)
    })
    .await;
    let found = &versions[0];
    assert_eq!((found.label.as_str(), found.number()), ("7", Some(7)));
    assert_eq!((found.checksum.as_deref(), found.source.as_str()), (Some("xxh3:ab"), "upstream"));
    // It serves others already.
    assert_eq!((&versions[1].label, &versions[1].checksum), (&"8".into(), &Some("xxh3:cd".into())));
    let heard = paths(&server.heard());
    assert_eq!(heard.iter().filter(|path| *path == "/weight_info?version=7").count(), 1);
    let listed = exchange(world.control, ("GET", "/versions"), &[], b"").await.json();
    assert_eq!(listed["current"]["label"], "8");
    world.stop().await;
}

#[tokio::test]
async fn an_upstream_that_is_gone_is_told_to_the_trainer() {
    // Its port is held, but nobody listens there.
    let gone = TcpSocket::new_v4().unwrap();
    gone.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let world = World::start(gone.local_addr().unwrap()).await;
    let reply = post(world.control, "/pause?mode=keep", "").await;
    assert_eq!(reply.status, StatusCode::BAD_GATEWAY.as_u16());
    assert_eq!(reply.json()["error"]["code"], 502);
    world.stop().await;
}
