//! Conversations that go on from a response by its id, with responses that were chat replies.

use bytes::Bytes;
use episode::{Call, Outcome, Route};
use kit::{Step, Upstream, World, exchange, post, start_engine, tape};
use proxy::Config;
use serde_json::{Value, json};

const PATH: &str = "/e/a/v1/responses";
const QUESTION: &str = "Find the secret number from 1 to 7. You have 3 guesses.";

fn body(input: Value, before: Option<&str>, stream: bool) -> Value {
    let tool = json!({ "type": "function", "name": "guess", "parameters": { "type": "object" } });
    let mut body = json!({
        "model": "tiny", "input": input, "tools": [tool], "max_output_tokens": 24, "seed": 5,
        "temperature": 0, "stream": stream,
    });
    if let Some(before) = before {
        body["previous_response_id"] = json!(before);
    }
    body
}

/// The result of the call that a reply made.
fn result(reply: &[u8]) -> Value {
    let call = wire::answers(Route::Responses, reply).remove(0).message["tool_calls"][0].clone();
    json!([{ "type": "function_call_output", "call_id": call["id"], "output": "too low" }])
}

fn id(reply: &[u8]) -> String {
    wire::response_id(Route::Responses, reply).unwrap()
}

/// Asks three times, each time with the result of the last tool call and the id of the last
/// response. Returns the recorded calls.
async fn played(world: &World, stream: bool) -> Vec<Call> {
    let mut before = None;
    let mut input = json!(QUESTION);
    for _ in 0..3 {
        let asked = body(input, before.as_deref(), stream).to_string();
        let reply = post(world.data, PATH, &asked).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        if let Some(before) = &before {
            let named = format!(r#""previous_response_id":"{before}""#);
            assert!(reply.text().contains(&named), "{}", reply.text());
        }
        input = result(&reply.body);
        before = Some(id(&reply.body));
    }
    world.calls().await
}

fn ids(call: &Call) -> (Vec<u32>, Vec<u32>) {
    let ended = call.ended.as_ref().unwrap();
    assert_eq!(ended.translated, Some(Route::Chat));
    let sampled = ended.choices[0].token_ids.clone().unwrap();
    assert_eq!(ended.choices[0].logprobs.len(), sampled.len());
    (ended.prompts[0].clone(), sampled)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_goes_on_from_a_response_that_no_server_has() {
    for stream in [false, true] {
        let world = World::start(start_engine().await).await;
        let calls = played(&world, stream).await;
        for pair in calls.windows(2) {
            let ((prompt, sampled), (next, _)) = (ids(&pair[0]), ids(&pair[1]));
            let so_far = [prompt, sampled].concat();
            assert!(next.starts_with(&so_far), "{next:?} goes on from {so_far:?}");
        }
        // What is recorded is what the agent sent.
        let sent: Value = serde_json::from_slice(&calls[1].begun.request.read()).unwrap();
        assert_eq!(sent["input"].as_array().unwrap().len(), 1);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_known_after_a_restart_and_to_its_episode_alone() {
    let engine = start_engine().await;
    let config = Config::new(format!("http://{engine}").parse().unwrap());
    let world = World::start_with(config.clone()).await;
    let first = post(world.data, PATH, &body(json!(QUESTION), None, true).to_string()).await;
    let folder = world.stop().await;

    let world = World::start_in(folder, config).await;
    let next = body(result(&first.body), Some(&id(&first.body)), false).to_string();
    let elsewhere = post(world.data, "/e/b/v1/responses", &next).await;
    assert_eq!(elsewhere.status, 400, "another episode's recording is not read");
    assert_eq!(elsewhere.json()["error"]["code"], "previous_response_not_found");
    let world = {
        let config = Config::new(format!("http://{engine}").parse().unwrap());
        World::start_in(world.stop().await, config).await
    };
    let told = post(world.data, PATH, &next).await;
    assert_eq!(told.status, 200, "{}", told.text());
    let calls: Vec<Call> = world.calls().await;
    let own: Vec<&Call> = calls.iter().filter(|call| call.begun.path == "/v1/responses").collect();
    let ((prompt, sampled), (next, _)) = (ids(own[0]), ids(own[1]));
    assert!(next.starts_with(&[prompt, sampled].concat()));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_too_long_to_be_read_back_is_told_so() {
    let engine = start_engine().await;
    let config = Config::new(format!("http://{engine}").parse().unwrap());
    let world = World::start_with(config.clone()).await;
    let mut last = post(world.data, PATH, &body(json!(QUESTION), None, false).to_string()).await;
    for _ in 0..9 {
        last = post(world.data, PATH, &body(json!(QUESTION), None, false).to_string()).await;
    }
    let folder = world.stop().await;

    // Readers have 64 KiB, and each body counts for 4.
    let narrow = Config { memory_bytes_max: 192 << 10, ..config };
    let world = World::start_in(folder, narrow).await;
    let next = body(result(&last.body), Some(&id(&last.body)), false).to_string();
    let refused = post(world.data, PATH, &next).await;
    assert_eq!(refused.status, 507, "{}", refused.text());
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert!(refused.text().contains("send the whole conversation"), "{}", refused.text());
    let calls = world.calls().await;
    assert_eq!(calls.last().unwrap().ended.as_ref().unwrap().outcome, Outcome::Refused);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_to_be_kept_is_not() {
    let world = World::start(start_engine().await).await;
    let mut asked = body(json!(QUESTION), None, false);
    asked["store"] = json!(false);
    let first = post(world.data, PATH, &asked.to_string()).await;
    let next = body(result(&first.body), Some(&id(&first.body)), false).to_string();
    let refused = post(world.data, PATH, &next).await;
    assert_eq!(refused.status, 404);
    assert!(refused.json()["error"]["message"].is_string());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_tagged_turns_of_one_chain_are_one_episode() {
    let world = World::start(start_engine().await).await;
    let send = async |body: Value, key: &'static str| {
        let (path, key) = (("POST", "/v1/responses"), [("authorization", key)]);
        exchange(world.data, path, &key, body.to_string().as_bytes()).await
    };
    let first = send(body(json!(QUESTION), None, false), "Bearer one").await;
    let next = body(result(&first.body), Some(&id(&first.body)), false);
    assert_eq!(send(next.clone(), "Bearer one").await.status, 200);
    assert_eq!(world.recorded().await.len(), 1);
    assert_eq!(send(next, "Bearer two").await.status, 400);
    assert_eq!(world.recorded().await.len(), 2, "who holds another key is another agent");
    world.stop().await;
}

/// A vLLM that stores responses and answers on both routes.
async fn vllm() -> Upstream {
    Upstream::start("vllm", |request| {
        let name = match request.head.contains("/v1/responses") {
            true => "vllm/responses/text.asked.json",
            false => "vllm/chat/tools.asked.json",
        };
        vec![Step::reply("200 OK", "application/json", &tape(name))]
    })
    .await
}

#[tokio::test]
async fn a_whole_call_of_a_tool_has_ids_logprobs_and_versions() {
    let upstream = vllm().await;
    let world = World::start(upstream.address).await;
    let reply = post(world.data, PATH, &body(json!(QUESTION), None, false).to_string()).await;
    assert_eq!(reply.json()["object"], "response");
    assert!(reply.text().contains(r#""type":"function_call""#), "{}", reply.text());
    assert!(upstream.seen()[0].head.starts_with("POST /v1/chat/completions "));
    let calls = world.calls().await;
    let (_, sampled) = ids(&calls[0]);
    let choice = &calls[0].ended.as_ref().unwrap().choices[0];
    assert!(choice.logprobs.iter().all(|logprob| !logprob.is_nan()));
    assert_eq!(choice.versions[0].end as usize, sampled.len());
    world.stop().await;
}

#[tokio::test]
async fn what_the_server_has_or_alone_tells_is_asked_of_it() {
    let upstream = vllm().await;
    let world = World::start(upstream.address).await;
    let own = r#"{"model":"tiny","input":"a","enable_response_messages":true}"#;
    let later = r#"{"model":"tiny","input":"b","previous_response_id":"resp_1"}"#;
    for body in [own, later] {
        assert_eq!(post(world.data, PATH, body).await.status, 200);
    }
    let seen = upstream.seen();
    assert!(seen.iter().all(|seen| seen.head.starts_with("POST /v1/responses ")));
    let sent = Bytes::from(seen[1].body.clone());
    assert_eq!(wire::previous_response(Route::Responses, &sent).as_deref(), Some("resp_1"));
    let told: Vec<_> = world.calls().await.into_iter().map(|call| call.ended.unwrap()).collect();
    assert!(told.iter().all(|ended| ended.translated.is_none()));
    assert!(told[1].choices[0].token_ids.is_some(), "it is asked for tokens all the same");
    world.stop().await;
}
