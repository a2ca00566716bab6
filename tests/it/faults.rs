//! Faults: the error that the agent gets, and the record of the call.

use episode::Outcome;
use kit::{Step, Upstream, World, post, tape};
use proxy::Config;
use wire::Dialect;

const PATH: &str = "/e/a/v1/chat/completions";

#[tokio::test]
async fn an_unreachable_upstream_is_a_502_and_a_recorded_call() {
    let world = World::start("127.0.0.1:9".parse().unwrap()).await;
    let reply = post(world.data, PATH, "{\"model\":\"m\"}").await;
    assert_eq!(reply.status, 502);
    assert_eq!(reply.header("x-rolltape-error"), Some("1"));
    let error = &reply.json()["error"];
    assert!(!error["message"].as_str().unwrap().contains("127.0.0.1"), "{error}");
    assert_eq!(error["code"], 502);
    let call = world.ended_call().await;
    let ended = call.ended.unwrap();
    assert_eq!((ended.outcome, ended.status), (Outcome::UpstreamFailed, Some(502)));
    assert!(ended.error.unwrap().contains("127.0.0.1:9"), "the recording names it");
    assert_eq!(call.begun.model.as_deref(), Some("m"));
    world.stop().await;
}

#[tokio::test]
async fn a_malformed_body_goes_on_unchanged_and_its_answer_comes_back() {
    let answer = br#"{"error": {"message": "bad json", "code": 400}}"#;
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::reply("400 Bad Request", "application/json", answer)]
    })
    .await;
    let world = World::start(upstream.address).await;
    for body in ["{\"messages\": [", "", "[1]"] {
        let reply = post(world.data, PATH, body).await;
        assert_eq!((reply.status, reply.body.as_slice()), (400, &answer[..]));
        assert_eq!(upstream.seen().last().unwrap().body, body.as_bytes());
        assert_eq!(reply.header("x-rolltape-error"), None);
    }
    let calls = world.calls().await.into_iter().map(|call| call.ended.unwrap());
    let told: Vec<_> = calls.map(|ended| (ended.outcome, ended.unasked)).collect();
    let why = Some("the body is not a JSON object".to_owned());
    assert_eq!(told, [(); 3].map(|()| (Outcome::Refused, why.clone())));
    world.stop().await;
}

#[tokio::test]
async fn an_upstream_s_death_in_mid_stream_keeps_the_tokens() {
    let stream = tape("vllm/chat_stream.asked.sse");
    let cut = stream.len() / 2;
    let upstream = Upstream::start("vllm", move |_| {
        vec![Step::stream_head(), Step::chunk(&stream[..cut]), Step::Cut]
    })
    .await;
    let world = World::start(upstream.address).await;
    let reply = post(world.data, PATH, "{\"stream\":true}").await;
    assert!(!reply.whole, "a cut stream must not end cleanly");
    assert!(reply.text().contains("\"content\":\"Hi\"") && !reply.text().contains("[DONE]"));
    let ended = world.ended_call().await.ended.unwrap();
    assert_eq!(ended.outcome, Outcome::UpstreamFailed);
    assert_eq!(ended.choices[0].token_ids.as_ref().unwrap()[0], 13);
    assert_eq!(ended.reply, reply.body);
    world.stop().await;
}

#[tokio::test]
async fn an_upstream_that_dies_in_a_document_is_a_502() {
    let upstream = Upstream::start("vllm", |_| {
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
        vec![Step::Send(head.to_vec()), Step::Cut]
    })
    .await;
    let world = World::start(upstream.address).await;
    let reply = post(world.data, PATH, "{}").await;
    assert_eq!(reply.status, 502);
    assert_eq!(world.ended_call().await.ended.unwrap().outcome, Outcome::UpstreamFailed);
    world.stop().await;
}

#[tokio::test]
async fn an_error_inside_a_stream_passes_and_the_call_is_not_complete() {
    let stream =
        b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"token_ids\":[5]}]}\n\n\
        data: {\"error\": {\"message\": \"engine died\", \"code\": 500}}\n\ndata: [DONE]\n\n";
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::stream_head(), Step::chunk(stream), Step::chunk(b"")]
    })
    .await;
    let world = World::start(upstream.address).await;
    let reply = post(world.data, PATH, "{\"stream\":true}").await;
    assert!(
        reply.text().contains("data: {\"error\": {\"message\": \"engine died\", \"code\": 500}}")
    );
    let ended = world.ended_call().await.ended.unwrap();
    assert_eq!(ended.outcome, Outcome::UpstreamFailed);
    assert_eq!(ended.error.as_deref(), Some("engine died"));
    assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&[5][..]));
    world.stop().await;
}

/// The events of a stream of two tokens that goes on with `rest`.
fn stream_of(rest: &str) -> Vec<u8> {
    let chunk = |content: &str, id: u32| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\
             \"logprobs\":{{\"content\":[{{\"token\":\"{content}\",\"logprob\":-0.5}}]}},\
             \"token_ids\":[{id}]}}],\"prompt_token_ids\":[1,2]}}\n\n"
        )
    };
    (chunk("a", 5) + &chunk("b", 6) + rest).into_bytes()
}

/// The outcome and the error of the call whose agent gets `body`, byte for byte.
async fn outcome_of(status: &str, kind: &str, body: Vec<u8>) -> (Outcome, Option<String>) {
    let reply = Step::reply(status, kind, &body);
    let upstream = Upstream::start("vllm", move |_| vec![reply.clone()]).await;
    let world = World::start(upstream.address).await;
    let reply = post(world.data, PATH, "{\"stream\":true}").await;
    let texts = [&body[..], &reply.body].map(|text| String::from_utf8_lossy(text).into_owned());
    assert_eq!(texts[0].lines().last(), texts[1].lines().last(), "the end reaches the agent");
    let ended = world.ended_call().await.ended.unwrap();
    world.stop().await;
    (ended.outcome, ended.error)
}

#[tokio::test]
async fn a_stream_that_tells_a_failure_is_not_complete() {
    let down = r#"{"message":"provider down","code":502}"#;
    let end = |members: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},{members}}}]}}\n\ndata: [DONE]\n\n"
        )
    };
    let aborted = "the engine ended the answer with `abort`";
    for (rest, told) in [
        (end(&format!("\"finish_reason\":\"stop\",\"error\":{down}")), "provider down"),
        (end("\"finish_reason\":\"abort\""), aborted),
        (
            end("\"finish_reason\":\"stop\",\"native_finish_reason\":\"network_error\""),
            "the engine ended the answer with `network_error`",
        ),
        (end("\"finish_reason\":null"), "the reply has no finish reason"),
        (format!("data: {{\"error\":{down}}}\n\n"), "provider down"),
        (format!("event: error\ndata: {down}\n\n"), "provider down"),
        ("event: error\ndata: provider down\n\n".to_owned(), "provider down"),
        ("data: {\"detail\":\"provider down\"}\n\n".to_owned(), "provider down"),
    ] {
        let found = outcome_of("200 OK", "text/event-stream", stream_of(&rest)).await;
        assert_eq!(found, (Outcome::UpstreamFailed, Some(told.to_owned())), "{rest}");
    }
    let rest = end("\"finish_reason\":\"stop\"");
    let found = outcome_of("200 OK", "text/event-stream", stream_of(&rest)).await;
    assert_eq!(found, (Outcome::Complete, None));
}

#[tokio::test]
async fn a_reply_that_is_no_answer_is_not_complete() {
    let (stream, json) = ("text/event-stream", "application/json");
    let whole = stream_of("data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
    for (status, kind, body, outcome) in [
        ("429 Too Many Requests", stream, whole.clone(), Outcome::Refused),
        (
            "429 Too Many Requests",
            stream,
            b"data: {\"error\":\"slow down\"}\n\n".to_vec(),
            Outcome::Refused,
        ),
        ("503 Service Unavailable", stream, whole, Outcome::UpstreamFailed),
        ("200 OK", json, Vec::new(), Outcome::UpstreamFailed),
        ("200 OK", stream, Vec::new(), Outcome::UpstreamFailed),
        ("200 OK", "text/html", b"<html>Bad gateway</html>".to_vec(), Outcome::UpstreamFailed),
    ] {
        let (found, error) = outcome_of(status, kind, body).await;
        assert_eq!(found, outcome, "{status} {kind} {error:?}");
    }
}

#[tokio::test]
async fn an_event_without_tokens_leaves_the_record_as_it_is() {
    let end = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    for beat in ["data:\n\n", "data: ping\n\n", "event: ping\ndata: 12:00\n\n", "data: null\n\n"] {
        let stream = stream_of(&format!("{beat}{end}"));
        let upstream = Upstream::start("vllm", move |_| {
            vec![Step::stream_head(), Step::chunk(&stream), Step::chunk(b"")]
        })
        .await;
        let world = World::start(upstream.address).await;
        let reply = post(world.data, PATH, "{\"stream\":true}").await;
        assert!(reply.text().contains(beat), "{beat}");
        let ended = world.ended_call().await.ended.unwrap();
        assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&[5, 6][..]), "{beat}");
        assert_eq!(
            (ended.outcome, &ended.choices[0].logprobs[..]),
            (Outcome::Complete, &[-0.5; 2][..])
        );
        world.stop().await;
    }
}

#[tokio::test]
async fn an_overloaded_server_is_told_in_the_record() {
    let start = r#"{"type":"message_start","message":{"type":"message"}}"#;
    let error = r#"{"type":"overloaded_error","message":"Overloaded"}"#;
    let error = format!(r#"{{"type":"error","error":{error}}}"#);
    let stream = format!("event: message_start\ndata: {start}\n\nevent: error\ndata: {error}\n\n");
    let sent = stream.clone();
    let upstream = Upstream::start("openai", move |_| {
        vec![Step::stream_head(), Step::chunk(sent.as_bytes()), Step::chunk(b"")]
    })
    .await;
    let mut config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.dialect = Some(Dialect::OpenAi);
    let world = World::start_with(config).await;
    let reply = post(world.data, "/e/a/v1/messages", "{\"stream\":true}").await;
    assert_eq!(reply.text(), stream);
    let ended = world.ended_call().await.ended.unwrap();
    let told = (ended.outcome, ended.error.as_deref());
    assert_eq!(told, (Outcome::UpstreamFailed, Some("Overloaded")));
    world.stop().await;
}

/// A server that answers 400 to requests that hold any of `refuses`, in these words.
async fn picky(refuses: &'static [&'static str], words: &'static str) -> Upstream {
    Upstream::start("vllm", move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let whole = br#"{"choices":[{"index":0,"message":{},"finish_reason":"stop"}]}"#;
        match refuses.iter().any(|field| body.contains(field)) {
            true => vec![Step::reply("400 Bad Request", "application/json", words.as_bytes())],
            false => vec![Step::reply("200 OK", "application/json", whole)],
        }
    })
    .await
}

/// The fields that each request had of ours, and the reason why a call lacks some.
async fn asked_of(upstream: &Upstream, world: &World) -> (Vec<usize>, Vec<String>) {
    let fields = ["logprobs", "return_token_ids", "return_weight_versions"];
    let of = |body: &[u8]| {
        let body = String::from_utf8_lossy(body).into_owned();
        fields.iter().filter(|field| body.contains(*field)).count()
    };
    let seen = upstream.seen().iter().map(|seen| of(&seen.body)).collect();
    let calls = world.calls().await.into_iter();
    (seen, calls.map(|call| call.ended.unwrap().unasked.unwrap_or_default()).collect())
}

#[tokio::test]
async fn a_field_that_a_400_names_is_given_up_and_no_other() {
    let words = r#"{"error":{"message":"return_weight_versions is not supported."}}"#;
    let upstream = picky(&["return_weight_versions"], words).await;
    let world = World::start(upstream.address).await;
    for body in ["{\"model\":\"m\"}", "{\"model\":\"m\"}", "{\"model\":\"other\"}"] {
        assert_eq!(post(world.data, PATH, body).await.status, 200);
    }
    let (asked, why) = asked_of(&upstream, &world).await;
    assert_eq!(asked, [3, 2, 2, 3, 2], "learned by the first call of each kind");
    assert_eq!(why, ["the upstream refuses `return_weight_versions`"; 3]);
    world.stop().await;
}

#[tokio::test]
async fn what_a_400_does_not_name_is_given_up_step_by_step() {
    let upstream = picky(&["return_token_ids"], "{\"error\":{}}").await;
    let world = World::start(upstream.address).await;
    for _ in 0..2 {
        assert_eq!(post(world.data, PATH, "{\"model\":\"m\"}").await.status, 200);
    }
    let (asked, why) = asked_of(&upstream, &world).await;
    assert_eq!(asked, [3, 2, 1, 1], "versions, then ids; then at once");
    let given_up = "the upstream refuses `return_weight_versions`, `return_token_ids`";
    assert_eq!(why, [given_up; 2]);
    world.stop().await;
}

#[tokio::test]
async fn an_upstream_without_our_fields_gets_the_agents_body() {
    let all = &["logprobs", "return_token_ids", "return_weight_versions"];
    let upstream = picky(all, "{\"error\":{}}").await;
    let world = World::start(upstream.address).await;
    for _ in 0..2 {
        assert_eq!(post(world.data, PATH, "{\"model\":\"m\"}").await.status, 200);
    }
    let (asked, why) = asked_of(&upstream, &world).await;
    assert_eq!(asked, [3, 2, 1, 0, 0]);
    assert_eq!(why, ["the upstream refused the call when it was asked for tokens"; 2]);
    assert_eq!(upstream.seen()[4].body, b"{\"model\":\"m\"}");
    world.stop().await;
}

#[tokio::test]
async fn an_error_of_another_cause_leaves_the_next_call_asked() {
    for passing in ["429 Too Many Requests", "503 Service Unavailable", "401 Unauthorized"] {
        let upstream = Upstream::start("vllm", move |request| {
            let asked = String::from_utf8_lossy(&request.body).contains("return_token_ids");
            let status = if asked { "400 Bad Request" } else { passing };
            vec![Step::reply(status, "application/json", b"{\"error\":{}}")]
        })
        .await;
        let world = World::start(upstream.address).await;
        for _ in 0..2 {
            assert!(passing.starts_with(&post(world.data, PATH, "{}").await.status.to_string()));
        }
        let asked: Vec<_> = upstream
            .seen()
            .iter()
            .map(|seen| String::from_utf8_lossy(&seen.body).contains("return_token_ids"))
            .collect();
        assert_eq!(asked, [true, true, false, true, true, false], "{passing}");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_request_beyond_the_bound_is_refused() {
    let upstream =
        Upstream::start("vllm", |_| vec![Step::reply("200 OK", "application/json", b"{}")]).await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.request_bytes_max = 3 << 20;
    let world = World::start_with(config).await;
    let body = |bytes: usize| format!("{{\"x\":\"{}\"}}", "y".repeat(bytes));
    assert_eq!(post(world.data, PATH, &body(2 << 20)).await.status, 200);
    let mut socket = kit::connect(world.data).await;
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", 4 << 20);
    tokio::io::AsyncWriteExt::write_all(&mut socket, head.as_bytes()).await.unwrap();
    let reply = kit::read_some(&mut socket, |read| read.ends_with(b"}")).await;
    assert!(reply.starts_with(b"HTTP/1.1 413 "));
    assert_eq!(upstream.seen().len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_full_store_is_an_error_not_an_unrecorded_success() {
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::reply("200 OK", "application/json", &tape("vllm/chat.asked.json"))]
    })
    .await;
    let world = World::start(upstream.address).await;
    assert_eq!(post(world.data, PATH, "{}").await.status, 200);
    // Every later insert fails, as on a damaged disk.
    kit::sql(&world.store()).execute_batch("ALTER TABLE call RENAME TO moved").unwrap();
    let reply = post(world.data, PATH, "{}").await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert_eq!(reply.json()["error"]["type"], "recorder_error");
    world.stop().await;
}

#[tokio::test]
async fn a_recorder_is_ready_while_it_can_write() {
    let upstream = Upstream::start("vllm", |_| Vec::new()).await;
    let world = World::start(upstream.address).await;
    let ready = || kit::exchange(world.control, ("GET", "/ready"), &[], b"");
    assert_eq!(ready().await.status, 200);
    let (store, away) = (world.store(), world.store().with_extension("away"));
    std::fs::rename(&store, &away).unwrap();
    let reply = ready().await;
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("moved or deleted"), "{}", reply.text());
    std::fs::rename(&away, &store).unwrap();
    assert_eq!(ready().await.status, 200);
    world.stop().await;
}
