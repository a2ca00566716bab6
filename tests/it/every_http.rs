//! Every tape of vLLM over every pair of HTTP versions, through and direct.

use std::collections::BTreeMap;

use episode::Outcome;
use hyper::Response;
use kit::{Agent, Answer, Got, Heard, Manner, Server, World, ask, sending, tape};
use proxy::{Config, TranslateMode};
use serde_json::Value;
use wire::Dialect;

/// The cases that vLLM answers with 200 at the first try.
fn cases() -> Vec<Value> {
    let index: Vec<Value> = serde_json::from_slice(&tape("index.json")).unwrap();
    let fits = |case: &Value| case["upstream"] == "vllm" && case["status"] == 200;
    index.into_iter().filter(|case| fits(case) && case["retried"] == false).collect()
}

fn file(case: &str, ending: &Value) -> Vec<u8> {
    tape(&format!("{case}.{}", ending.as_str().unwrap()))
}

/// Answers a request with our fields by the reply with ids, and the agent's own by the plain one.
fn vllm(cases: &[Value], heard: &Heard) -> Answer {
    let name = heard.headers["x-case"].to_str().unwrap();
    let case = cases.iter().find(|case| case["name"] == name).unwrap();
    let kind = if case["stream"] == true { "text/event-stream" } else { "application/json" };
    let is_asked = heard.body == file(name, &"sent.json".into());
    let reply = file(name, &case[if is_asked { "asked" } else { "plain" }]);
    let head = Response::builder().header("content-type", kind).header("x-request-id", "r");
    Answer::Whole(head.body(reply.into()).unwrap())
}

/// Headers that say nothing about framing or time.
fn told(got: &Got) -> BTreeMap<String, String> {
    let framing = ["content-length", "transfer-encoding", "date", "connection"];
    let headers = got.headers.iter().filter(|(name, _)| !framing.contains(&name.as_str()));
    headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}

/// One case through `agent`, which must get the same reply as `direct`.
async fn compare(agent: &mut Agent, direct: &mut Agent, server: &Server, case: &Value) {
    let name = case["name"].as_str().unwrap();
    let path = case["path"].as_str().unwrap();
    let request = |path: &str| {
        let body = file(name, &"request.json".into());
        ask("POST", path).header("x-case", name).body(sending(body)).unwrap()
    };
    let plain = direct.call(request(path)).await;
    let through = agent.call(request(&format!("/e/a{path}"))).await;
    let heard = server.heard().pop().unwrap();
    assert!(heard.body == file(name, &"sent.json".into()), "{name}: what is sent");
    assert!(through.body == plain.body, "{name}: what is shown");
    assert!(plain.body == file(name, &case["plain"]), "{name}: the tape");
    assert_eq!((through.status, told(&through)), (plain.status, told(&plain)), "{name}");
}

#[tokio::test]
async fn every_tape_is_byte_equal_over_every_http() {
    let cases = cases();
    assert!(cases.len() > 50);
    for http2 in [false, true] {
        let known = cases.clone();
        let manner = Manner { http2, tls: None };
        let server = Server::start(manner, move |heard| vllm(&known, heard)).await;
        let mut config = Config::new(format!("http://{}", server.address).parse().unwrap());
        config.dialect = Some(Dialect::Vllm);
        (config.translate, config.upstream_http2) = (TranslateMode::Never, http2);
        let world = World::start_with(config).await;
        let mut direct = match http2 {
            true => Agent::http2(server.address).await,
            false => Agent::http1(server.address).await,
        };

        for mut agent in [Agent::http1(world.data).await, Agent::http2(world.data).await] {
            for case in &cases {
                compare(&mut agent, &mut direct, &server, case).await;
            }
        }

        let calls = world.calls().await;
        assert_eq!(calls.len(), 2 * cases.len());
        let routes: std::collections::HashSet<_> = calls.iter().map(|c| c.begun.route).collect();
        assert_eq!(routes.len(), 4);
        let whole = |outcome| outcome == Outcome::Complete || outcome == Outcome::UpstreamFailed;
        assert!(calls.into_iter().all(|call| whole(call.ended.unwrap().outcome)));
        world.stop().await;
    }
}
