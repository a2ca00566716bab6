//! Replies that are silent for longer than a proxy on the way allows.

use std::time::Duration;

use episode::{Call, Outcome};
use kit::{Reply, Step, Upstream, World, connect, cut_after_silence, post, request, tape};
use proxy::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CHAT: &str = "/e/a/v1/chat/completions";
const STREAM: &str = r#"{"model":"m","stream":true}"#;
const DOCUMENT: &str = r#"{"model":"m"}"#;

/// Longest silence that the proxy on the way allows. The first heartbeat waits for a record, for
/// which a busy disk may take a second and more.
const ALLOWED: Duration = Duration::from_millis(2500);
/// Silence of the upstream.
const SILENCE: Duration = Duration::from_millis(4000);
/// Silence after which a heartbeat is sent.
const BEAT: Duration = Duration::from_millis(250);

async fn world(upstream: &Upstream, beat: Option<Duration>) -> World {
    let mut config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.heartbeat = beat;
    config.call_id_header = true;
    World::start_with(config).await
}

/// A stream that is silent before its head, or in the middle.
async fn silent_stream(before_head: bool) -> Upstream {
    Upstream::start("vllm", move |_| {
        let stream = tape("vllm/chat_stream.asked.sse");
        let (first, second) = stream.split_at(stream.len() / 2);
        let (early, late) =
            if before_head { (SILENCE, Duration::ZERO) } else { (Duration::ZERO, SILENCE) };
        vec![
            Step::Pause(early),
            Step::stream_head(),
            Step::chunk(first),
            Step::Pause(late),
            Step::chunk(second),
            Step::chunk(b""),
        ]
    })
    .await
}

/// Whole replies that come after a silence.
async fn silent_reply(status: &'static str, body: Vec<u8>) -> Upstream {
    Upstream::start("vllm", move |_| {
        vec![Step::Pause(SILENCE), Step::reply(status, "application/json", &body)]
    })
    .await
}

/// What an agent behind a proxy that cuts silent connections gets of one call, and its record.
async fn through_the_cutter(world: &World, body: &str) -> (Reply, Call) {
    let way = cut_after_silence(world.data, ALLOWED).await;
    let reply = post(way, CHAT, body).await;
    (reply, world.ended_call().await)
}

fn recorded(call: &Call) -> (Outcome, Option<u16>, u32, String) {
    let ended = call.ended.as_ref().unwrap();
    let reply = String::from_utf8(ended.reply.read().to_vec()).unwrap();
    (ended.outcome, ended.status, ended.heartbeats, reply)
}

#[tokio::test]
async fn without_heartbeats_a_silent_reply_is_cut_on_its_way() {
    let upstream = silent_stream(false).await;
    let world = world(&upstream, None).await;
    let (reply, call) = through_the_cutter(&world, STREAM).await;
    assert!(!reply.whole && !reply.text().contains("[DONE]"), "{reply:?}");
    assert_eq!(call.ended.unwrap().heartbeats, 0);
    world.stop().await;
}

#[tokio::test]
async fn a_silent_stream_gets_comments_its_record_does_not() {
    for before_head in [false, true] {
        let upstream = silent_stream(before_head).await;
        let world = world(&upstream, Some(BEAT)).await;
        let (reply, call) = through_the_cutter(&world, STREAM).await;
        assert!(reply.whole && reply.status == 200, "{before_head}: {reply:?}");
        assert_eq!(reply.header("x-rolltape-call-id").unwrap(), call.begun.call_id.to_string());

        let (outcome, status, beats, kept) = recorded(&call);
        assert_eq!((outcome, status), (Outcome::Complete, Some(200)), "{before_head}");
        assert!(beats >= 5, "{before_head}: {beats}");
        assert_eq!(reply.text().matches(": \n\n").count(), beats as usize, "{before_head}");
        assert_eq!(reply.text().replace(": \n\n", ""), kept, "{before_head}");
        assert_eq!(kept.as_bytes(), tape("vllm/chat_stream.plain.sse"), "{before_head}");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_silent_document_arrives_whole_after_white_space() {
    let upstream = silent_reply("200 OK", tape("vllm/chat.asked.json")).await;
    let world = world(&upstream, Some(BEAT)).await;
    let (reply, call) = through_the_cutter(&world, DOCUMENT).await;
    assert!(reply.whole && reply.status == 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.json()["object"], "chat.completion");

    let (outcome, _, beats, kept) = recorded(&call);
    assert_eq!(outcome, Outcome::Complete);
    assert_eq!(reply.text(), " ".repeat(beats as usize) + &kept);
    assert_eq!(kept.as_bytes(), tape("vllm/chat.plain.json"));
    assert!(beats >= 5, "{beats}");
    world.stop().await;
}

#[tokio::test]
async fn a_late_error_is_an_event_or_breaks_a_document() {
    let error = br#"{"error":{"message":"the engine is dead","type":"x","code":503}}"#;
    for body in [STREAM, DOCUMENT] {
        let upstream = silent_reply("503 Service Unavailable", error.to_vec()).await;
        let world = world(&upstream, Some(BEAT)).await;
        let (reply, call) = through_the_cutter(&world, body).await;
        assert_eq!(reply.status, 200, "{body}");
        if body == STREAM {
            let event = reply.text().replace(": \n\n", "");
            assert!(reply.whole && event.starts_with("data: {\"error\":"), "{event}");
            assert!(event.contains("the engine is dead"), "{event}");
        } else {
            assert!(!reply.whole && reply.text().trim().is_empty(), "no answer: {reply:?}");
        }
        let (outcome, status, beats, kept) = recorded(&call);
        assert_eq!((outcome, status), (Outcome::UpstreamFailed, Some(503)), "{body}");
        assert_eq!(kept.as_bytes(), error, "{body}");
        assert!(beats > 0);
        world.stop().await;
    }
}

#[tokio::test]
async fn a_quick_reply_has_the_status_and_the_headers_of_the_upstream() {
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::reply("400 Bad Request", "application/json", br#"{"error":{"message":"no"}}"#)]
    })
    .await;
    let world = world(&upstream, Some(Duration::from_secs(20))).await;
    let reply = post(world.data, CHAT, DOCUMENT).await;
    assert_eq!((reply.status, reply.text().as_str()), (400, r#"{"error":{"message":"no"}}"#));
    assert_eq!(recorded(&world.ended_call().await).2, 0);
    world.stop().await;
}

#[tokio::test]
async fn no_heartbeat_leaves_before_the_begun_record_is_on_disk() {
    let upstream = silent_reply("200 OK", tape("vllm/chat.asked.json")).await;
    let world = world(&upstream, Some(BEAT)).await;
    // The episode takes calls: from now on they are forwarded while their record is written.
    assert_eq!(post(world.data, CHAT, DOCUMENT).await.status, 200);
    let connection = kit::sql(&world.store());
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", CHAT, &[], DOCUMENT.as_bytes())).await.unwrap();
    let mut read = [0; 1];
    let byte = tokio::time::timeout(BEAT * 5, socket.read(&mut read)).await;
    assert!(byte.is_err(), "{byte:?}");
    connection.execute_batch("ROLLBACK").unwrap();
    let byte = tokio::time::timeout(Duration::from_secs(30), socket.read(&mut read)).await;
    assert_eq!(byte.expect("a heartbeat's head").unwrap(), 1);
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_leaves_during_heartbeats_is_recorded_as_gone() {
    let upstream = Upstream::start("vllm", |_| vec![Step::AwaitLeave]).await;
    let world = world(&upstream, Some(BEAT)).await;
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", CHAT, &[], STREAM.as_bytes())).await.unwrap();
    kit::read_some(&mut socket, |read| read.windows(4).any(|w| w == b": \n\n")).await;
    drop(socket);
    upstream.left().await;
    let (outcome, status, beats, kept) = recorded(&world.ended_call().await);
    assert_eq!((outcome, status, kept.as_str()), (Outcome::ClientGone, None, ""));
    assert!(beats > 0);
    world.stop().await;
}
