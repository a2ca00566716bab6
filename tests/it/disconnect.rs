//! Agents that leave, before and after the terminal event.

use std::time::Duration;

use bytes::Bytes;
use episode::{Call, Outcome};
use http_body_util::BodyExt;
use hyper::Response;
use kit::{
    Agent, Answer, Heard, Manner, Server, Step, Upstream, World, ask, connect, read_some, request,
    sending, tape,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use wire::Dialect;

use crate::wait::until;

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

/// Longest wait for what must come; only a failure takes it.
const WAIT: Duration = Duration::from_secs(30);

async fn asked(upstream: &Upstream) {
    tokio::time::timeout(WAIT, upstream.asked()).await.expect("the upstream is asked");
}

async fn upstream_left(upstream: &Upstream) {
    tokio::time::timeout(WAIT, upstream.left()).await.expect("the upstream is left");
}

#[tokio::test]
async fn leaving_in_mid_stream_aborts_and_keeps_the_tokens() {
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
    let _folder = tokio::time::timeout(WAIT, world.stop()).await.unwrap();
    let mut snapshot = store::Snapshot::open(&store).await.unwrap();
    let episode = snapshot.episodes(&store::Selection::default()).await.unwrap().remove(0);
    let call = snapshot.calls(&episode).await.unwrap().remove(0);
    assert_eq!(call.ended.unwrap().outcome, Outcome::ClientGone);
}

#[tokio::test]
async fn a_stream_under_way_keeps_its_place_among_the_calls_in_flight() {
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::stream_head(), Step::chunk(events()[0].as_bytes()), Step::AwaitLeave]
    })
    .await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.calls_max = 1;
    let world = World::start_with(config).await;
    let first = agent_at(&world, b"data:").await;
    asked(&upstream).await;
    let mut second = connect(world.data).await;
    second.write_all(&request("POST", PATH, &[], b"{\"stream\":true}")).await.unwrap();
    // No event says that a call waits. A second that did not wait would be seen within this time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(upstream.seen().len(), 1, "the second waits");
    drop(first);
    asked(&upstream).await;
    drop(second);
    world.stop().await;
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

const ROUTES: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];
const EVENT: &[u8] =
    b"data: {\"choices\":[{\"index\":0,\"text\":\"x\",\"delta\":{\"content\":\"x\"}}]}\n\n";

/// A server that answers as the agent's header `x-answer` says, and never ends.
fn endless(heard: &Heard) -> Answer {
    match heard.headers["x-answer"] == "open" {
        true => {
            let reply = Response::builder().header("content-type", "text/event-stream");
            Answer::Open(reply.body(Bytes::from_static(EVENT)).unwrap())
        }
        false => Answer::Silence,
    }
}

/// A call that is left.
#[derive(Clone, Copy)]
struct LeaveCase {
    route: &'static str,
    /// The value of `x-answer`.
    answer: &'static str,
    streams: bool,
}

/// Asks, leaves, and waits until the server has noticed.
async fn leave(mut agent: Agent, server: &Server, case: LeaveCase) {
    let LeaveCase { route, answer, streams } = case;
    let body = format!(
        r#"{{"model":"m","max_tokens":9,"prompt":"x","input":"x","stream":{streams},
            "messages":[{{"role":"user","content":"x"}}]}}"#
    );
    let path = format!("/e/a{route}");
    let request = ask("POST", &path).header("x-answer", answer).body(sending(body)).unwrap();
    if answer == "open" {
        let mut reply = agent.send(request).await.unwrap();
        server.asked().await;
        let frame = reply.body_mut().frame().await.unwrap().unwrap();
        assert!(!frame.into_data().unwrap().is_empty());
    } else {
        tokio::select! {
            reply = agent.send(request) => panic!("{path}: {reply:?}"),
            () = server.asked() => {}
        }
    }

    // An HTTP/2 connection stays, so that what is seen upstream is the end of the stream alone.
    let kept = Some(agent).filter(Agent::is_http2);
    let left = tokio::time::timeout(WAIT, server.left()).await;
    left.unwrap_or_else(|_| panic!("{path} {answer} {streams}: still asked"));
    drop(kept);
}

#[tokio::test]
async fn leaving_reaches_the_upstream_on_every_route_and_http() {
    for dialect in [Dialect::OpenAi, Dialect::Vllm] {
        for http2 in [false, true] {
            let server = Server::start(Manner { http2, tls: None }, endless).await;
            let mut config =
                proxy::Config::new(format!("http://{}", server.address).parse().unwrap());
            (config.dialect, config.upstream_http2) = (Some(dialect), http2);
            let world = World::start_with(config).await;
            for route in ROUTES {
                for (answer, streams) in [("open", true), ("silence", true), ("silence", false)] {
                    let case = LeaveCase { route, answer, streams };
                    leave(Agent::http1(world.data).await, &server, case).await;
                    leave(Agent::http2(world.data).await, &server, case).await;
                }
            }
            for call in ended_calls(&world, 24).await {
                let ended = call.ended.unwrap();
                assert_eq!(ended.outcome, Outcome::ClientGone, "{}", call.begun.path);
            }
            if http2 {
                assert!(server.connections() <= 2, "one stream is given up, not all of them");
            }
            world.stop().await;
        }
    }
}

/// `count` calls, once they have ended.
async fn ended_calls(world: &World, count: usize) -> Vec<Call> {
    until("the end of every call", async || {
        let calls = world.calls().await;
        let ended = calls.iter().filter(|call| call.ended.is_some()).count();
        (ended == count).then_some(calls)
    })
    .await
}

/// An agent that leaves as soon as it has read `mark`, and its server's events before and after.
#[derive(Clone, Copy)]
struct Leaving {
    dialect: &'static str,
    path: &'static str,
    body: &'static str,
    /// Sent at once.
    before: &'static [&'static str],
    mark: &'static [u8],
    /// Sent when the agent has left.
    after: &'static [&'static str],
}

impl Leaving {
    /// The call as it was recorded.
    async fn recorded(&self) -> episode::CallEnd {
        let (before, after) = (self.before, self.after);
        let (gone, left) = tokio::sync::watch::channel(());
        let upstream = Upstream::start(self.dialect, move |_| {
            let chunks = |events: &[&str]| {
                let event = |event: &&str| Step::chunk(format!("data: {event}\n\n").as_bytes());
                events.iter().map(event).collect::<Vec<_>>()
            };
            let first = [vec![Step::stream_head()], chunks(before)].concat();
            let rest = match after {
                [] => vec![Step::AwaitLeave],
                rest => [vec![Step::Await(left.clone())], chunks(rest)].concat(),
            };
            [first, rest].concat()
        })
        .await;
        let world = World::start(upstream.address).await;

        let mut socket = connect(world.data).await;
        let asked = request("POST", self.path, &[], self.body.as_bytes());
        socket.write_all(&asked).await.unwrap();
        read_some(&mut socket, |read| read.windows(self.mark.len()).any(|w| w == self.mark)).await;
        drop(socket);
        if self.after.is_empty() {
            upstream_left(&upstream).await;
        } else {
            // The proxy must notice that the agent left before there is more to send, and no event
            // says that it did.
            tokio::time::sleep(Duration::from_millis(600)).await;
            gone.send_replace(());
        }

        let ended = world.ended_call().await.ended.unwrap();
        world.stop().await;
        ended
    }
}

const CHAT_BODY: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}"#;
const TWO: &str = r#"{"model":"m","n":2,"stream":true,"messages":[{"role":"user","content":"x"}]}"#;
const FIRST: &str =
    r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[4]}]}"#;
const SECOND: &str =
    r#"{"choices":[{"index":1,"delta":{"content":"b"},"finish_reason":null,"token_ids":[5]}]}"#;
const CUT: &str =
    r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length","token_ids":[6]}]}"#;
const TEXT: &str = r#"{"choices":[{"index":0,"text":"a","finish_reason":"stop","token_ids":[4]}]}"#;
const STOPPED: &str =
    r#"{"choices":[{"index":1,"delta":{},"finish_reason":"stop","token_ids":[7]}]}"#;

#[tokio::test]
async fn leaving_at_the_last_finish_reason_is_complete() {
    let chat = Leaving {
        dialect: "vllm",
        path: PATH,
        body: CHAT_BODY,
        before: &[FIRST, CUT],
        mark: b"length",
        after: &[],
    };
    let completions = Leaving {
        path: "/e/a/v1/completions",
        body: r#"{"model":"m","stream":true,"prompt":"x"}"#,
        before: &[TEXT],
        mark: b"stop",
        ..chat
    };
    let messages = Leaving {
        dialect: "openai",
        path: "/e/a/v1/messages",
        before: &[
            r#"{"type":"message_start","message":{"role":"assistant","content":[]}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}"#,
        ],
        mark: b"max_tokens",
        ..chat
    };
    let both =
        Leaving { body: TWO, before: &[FIRST, SECOND, CUT, STOPPED], mark: b"\"stop\"", ..chat };

    for (case, reasons) in [
        (chat, &["length"][..]),
        (completions, &["stop"]),
        (messages, &["length"]),
        (both, &["length", "stop"]),
    ] {
        let ended = case.recorded().await;
        assert_eq!(ended.outcome, Outcome::Complete, "{}", case.path);
        let told = ended.choices.iter().map(|choice| choice.finish_reason.as_deref().unwrap());
        assert_eq!(told.collect::<Vec<_>>(), reasons, "{}", case.path);
    }
}

#[tokio::test]
async fn leaving_before_the_wire_has_told_the_end_is_not_complete() {
    let one = Leaving {
        dialect: "vllm",
        path: PATH,
        body: TWO,
        before: &[FIRST, SECOND, CUT],
        mark: b"length",
        after: &[],
    };
    // The server has said why it stopped; the agent's own wire tells that with its last events.
    let messages = Leaving {
        path: "/e/a/v1/messages",
        body: r#"{"model":"m","max_tokens":5,"stream":true,
            "messages":[{"role":"user","content":"x"}]}"#,
        before: &[FIRST, CUT],
        mark: b"text_delta",
        ..one
    };
    let responses = Leaving {
        path: "/e/a/v1/responses",
        body: r#"{"model":"m","stream":true,"input":"x"}"#,
        mark: b"output_text.delta",
        ..messages
    };
    let native = Leaving {
        dialect: "openai",
        before: &[
            r#"{"type":"response.created","response":{"id":"r","status":"in_progress"}}"#,
            r#"{"type":"response.output_text.done","text":"a"}"#,
        ],
        mark: b"output_text.done",
        ..responses
    };

    for case in [one, messages, responses, native] {
        let ended = case.recorded().await;
        assert_eq!(ended.outcome, Outcome::ClientGone, "{} {}", case.dialect, case.path);
    }
}

#[tokio::test]
async fn the_rest_is_recorded_after_an_agent_left_at_the_end() {
    // Ids that stand beside logprobs count when the server's count says that none is missing.
    const ENTRY: &str = concat!(
        r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"length","#,
        r#""logprobs":{"content":[{"token":"token_id:4","logprob":-0.5}]}}]}"#,
    );
    const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
    let case = Leaving {
        dialect: "openai",
        path: PATH,
        body: CHAT_BODY,
        before: &[ENTRY],
        mark: b"length",
        after: &[USAGE, "[DONE]"],
    };
    let ended = case.recorded().await;
    assert_eq!((ended.outcome, ended.usage.prompt), (Outcome::Complete, Some(3)));
    assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&[4][..]));
    assert!(
        !String::from_utf8_lossy(&ended.reply.read()).contains("usage"),
        "the agent never had it"
    );
    let failed = Leaving { after: &[r#"{"error":{"message":"boom"}}"#, "[DONE]"], ..case };
    assert_eq!(failed.recorded().await.outcome, Outcome::UpstreamFailed);
}
