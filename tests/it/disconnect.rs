//! Agents that leave, before and after the terminal event.

use std::time::Duration;

use episode::Outcome;
use kit::{Step, Upstream, World, connect, read_some, request, tape};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const PATH: &str = "/e/a/v1/chat/completions";

fn events() -> Vec<String> {
    let stream = String::from_utf8(tape("vllm/chat_stream.asked.sse")).unwrap();
    stream.split_inclusive("\n\n").map(str::to_owned).collect()
}

/// An agent that has read a stream as far as `mark`.
async fn agent_at(world: &World, mark: &'static [u8]) -> TcpStream {
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", PATH, &[], b"{\"stream\":true}")).await.unwrap();
    read_some(&mut socket, |read| read.windows(mark.len()).any(|w| w == mark)).await;
    socket
}

async fn asked(upstream: &Upstream) {
    tokio::time::timeout(Duration::from_secs(2), upstream.asked())
        .await
        .expect("the upstream is asked within two seconds");
}

async fn upstream_left(upstream: &Upstream) {
    tokio::time::timeout(Duration::from_secs(2), upstream.left())
        .await
        .expect("the upstream is left within two seconds");
}

#[tokio::test]
async fn leaving_in_mid_stream_aborts_the_upstream_and_keeps_what_was_sampled() {
    let upstream = Upstream::start("vllm", |_| {
        let mut steps = vec![Step::stream_head()];
        steps.extend(events().iter().take(4).map(|event| Step::chunk(event.as_bytes())));
        steps.push(Step::AwaitLeave);
        steps
    })
    .await;
    let world = World::start(upstream.address).await;
    let socket = agent_at(&world, b"\"Hi\"").await;
    drop(socket);
    upstream_left(&upstream).await;
    let ended = world.ended_call().await.ended.unwrap();
    assert_eq!(ended.outcome, Outcome::ClientGone);
    assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&[13, 391][..]));
    world.stop().await;
}

#[tokio::test]
async fn leaving_before_the_first_byte_aborts_the_upstream() {
    for body in [&b"{\"stream\":true}"[..], b"{}"] {
        let upstream = Upstream::start("vllm", |_| vec![Step::AwaitLeave]).await;
        let world = World::start(upstream.address).await;
        let mut socket = connect(world.data).await;
        socket.write_all(&request("POST", PATH, &[], body)).await.unwrap();
        asked(&upstream).await;
        drop(socket);
        upstream_left(&upstream).await;
        let ended = world.ended_call().await.ended.unwrap();
        assert_eq!((ended.outcome, ended.status), (Outcome::ClientGone, None));
        world.stop().await;
    }
}

#[tokio::test]
async fn a_call_that_does_not_end_does_not_hold_up_the_exit() {
    let upstream = Upstream::start("vllm", |_| vec![Step::AwaitLeave]).await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.drain_wait = Duration::from_millis(100);
    let world = World::start_with(config).await;
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", PATH, &[], b"{}")).await.unwrap();
    asked(&upstream).await;
    let store = world.store();
    let _folder = tokio::time::timeout(Duration::from_secs(5), world.stop()).await.unwrap();
    let mut snapshot = store::Snapshot::open(&store).await.unwrap();
    let episode = snapshot.episodes(&store::Selection::default()).await.unwrap().remove(0);
    let call = snapshot.calls(&episode).await.unwrap().remove(0);
    assert_eq!(call.ended.unwrap().outcome, Outcome::ClientGone);
}

#[tokio::test]
async fn leaving_right_after_the_terminal_event_is_complete() {
    let upstream = Upstream::start("vllm", |_| {
        let mut steps = vec![Step::stream_head()];
        steps.extend(events().iter().map(|event| Step::chunk(event.as_bytes())));
        // The zero chunk never comes: the client has gone by then anyway.
        steps.push(Step::AwaitLeave);
        steps
    })
    .await;
    let world = World::start(upstream.address).await;
    let socket = agent_at(&world, b"[DONE]").await;
    // Committed before done: whoever has read the terminal event finds the call on disk.
    let ended = world.calls().await.pop().unwrap().ended.expect("on disk before [DONE]");
    assert_eq!(ended.outcome, Outcome::Complete);
    assert_eq!(ended.usage.completion, Some(5));
    drop(socket);
    world.stop().await;
}
