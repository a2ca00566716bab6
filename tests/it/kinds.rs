//! Replies are what their bytes say: event streams and documents under any content type, and white
//! space that keeps a connection alive before either.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use episode::{Call, Outcome, Route};
use flate2::Compression;
use flate2::write::GzEncoder;
use kit::{Reply, Seen, Step, Upstream, World, connect, exchange, read_some, request, tape};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

const CHAT: &str = "/e/a/v1/chat/completions";
const MESSAGES: &str = "/e/a/v1/messages";
const RESPONSES: &str = "/e/a/v1/responses";
/// Content types of a stream; the empty one is missing.
const TYPES: [&str; 10] = [
    "text/event-stream",
    "Text/Event-Stream;charset=utf-8",
    "application/json",
    "APPLICATION/JSON; charset=utf-8",
    "text/plain",
    "application/octet-stream",
    "application/x-ndjson",
    "application/stream+json",
    "text/html",
    "",
];

/// A signal that lets an upstream go on.
type Go = Arc<watch::Sender<()>>;

/// A request to `path` for a stream or a document, answered under the content type `kind`.
fn asked(path: &str, kind: &str, stream: bool) -> Vec<u8> {
    let question = match path {
        RESPONSES => r#""input":"a""#,
        _ => r#""max_tokens":9,"messages":[{"role":"user","content":"a"}]"#,
    };
    let body = format!(r#"{{"model":"m",{question},"stream":{stream}}}"#);
    let headers = [("content-type", "application/json"), ("x-kind", kind)];
    request("POST", path, &headers, body.as_bytes())
}

/// The head of a chunked reply under the content type that the request names.
fn head(seen: &Seen) -> Step {
    let kind = seen.head.lines().find_map(|line| line.strip_prefix("x-kind: ")).unwrap_or("");
    let kind = if kind.is_empty() { String::new() } else { format!("content-type: {kind}\r\n") };
    Step::Send(format!("HTTP/1.1 200 OK\r\n{kind}transfer-encoding: chunked\r\n\r\n").into_bytes())
}

/// A vLLM that sends `first`, and `second` once it may go on.
async fn paused(first: Vec<u8>, second: Vec<u8>) -> (Upstream, Go) {
    let go = Go::default();
    let waits = Arc::clone(&go);
    let upstream = Upstream::start("vllm", move |seen| {
        vec![
            head(seen),
            Step::chunk(&first),
            Step::Await(waits.subscribe()),
            Step::chunk(&second),
            Step::chunk(b""),
        ]
    })
    .await;
    (upstream, go)
}

/// The stream of vLLM in two halves, the first with whole events that hold text.
fn halves(form: &str) -> (Vec<u8>, Vec<u8>) {
    let stream = tape(&format!("vllm/chat_stream.{form}.sse"));
    let events: Vec<&[u8]> = stream.split_inclusive(|byte| *byte == b'\n').collect();
    let (first, second) = events.split_at(events.len() / 4 * 2);
    (first.concat(), second.concat())
}

async fn send(world: &World, bytes: &[u8]) -> TcpStream {
    let mut socket = connect(world.data).await;
    socket.write_all(bytes).await.unwrap();
    socket
}

fn holds(read: &[u8], text: &str) -> bool {
    read.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Reads on to the end of a reply.
async fn rest(mut socket: TcpStream, mut read: Vec<u8>) -> Reply {
    let _ = socket.read_to_end(&mut read).await;
    kit::replies(&read).pop().unwrap()
}

async fn last_call(world: &World) -> Call {
    world.calls().await.pop().unwrap()
}

#[tokio::test]
async fn a_stream_streams_hides_and_records_under_any_type() {
    let (first, second) = halves("asked");
    let (upstream, go) = paused(first, second).await;
    let world = World::start(upstream.address).await;
    for kind in TYPES {
        for stream in [true, false] {
            let mut socket = send(&world, &asked(CHAT, kind, stream)).await;
            // Events pass while more of them are to come.
            let shown = String::from_utf8(halves("plain").0).unwrap();
            let last = shown.trim_end().rsplit("data: ").next().unwrap().to_owned();
            let read = read_some(&mut socket, |read| holds(read, &last)).await;
            go.send_replace(());
            let reply = rest(socket, read).await;
            assert_eq!(reply.body, tape("vllm/chat_stream.plain.sse"), "{kind} {stream}");
            assert_eq!(reply.header("content-type").unwrap_or(""), kind);
            assert!(reply.whole && reply.status == 200, "{kind} {stream}");

            let ended = last_call(&world).await.ended.unwrap();
            assert_eq!(ended.outcome, Outcome::Complete, "{kind}");
            assert_eq!(ended.choices[0].token_ids.as_deref(), Some(&[13, 391, 386, 392, 2][..]));
            assert_eq!(ended.reply, tape("vllm/chat_stream.plain.sse"), "{kind}");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_stream_is_translated_as_one_under_any_type() {
    let (first, second) = halves("asked");
    let (upstream, go) = paused(first, second).await;
    let world = World::start(upstream.address).await;
    for (path, route, early, end) in [
        (MESSAGES, Route::Messages, "event: content_block_delta", "event: message_stop"),
        (RESPONSES, Route::Responses, "event: response.output_text.delta", "response.completed"),
    ] {
        for kind in TYPES {
            let mut socket = send(&world, &asked(path, kind, true)).await;
            let read = read_some(&mut socket, |read| holds(read, early)).await;
            go.send_replace(());
            let reply = rest(socket, read).await;
            assert!(reply.whole && reply.text().contains(end), "{kind}: {}", reply.text());
            assert!(!reply.text().contains("token_ids\":["), "{kind}: {}", reply.text());
            let shown = reply.header("content-type").unwrap().to_ascii_lowercase();
            assert!(shown.starts_with("text/event-stream"), "{kind}: {shown}");

            let ended = last_call(&world).await.ended.unwrap();
            assert_eq!(
                (ended.outcome, &ended.reply.read()[..]),
                (Outcome::Complete, &reply.body[..])
            );
            assert_eq!(ended.choices[0].token_ids.as_ref().unwrap().len(), 5, "{kind}");
            assert_eq!(wire::answers(route, &ended.reply.read()).len(), 1, "{kind}");
        }
    }
    world.stop().await;
}

/// A document of vLLM with what some servers put around it, in the forms with ids and without.
fn wrapped(form: &str) -> Vec<Vec<u8>> {
    let document = tape(&format!("vllm/chat.{form}.json"));
    let around = [
        ("", ""),
        ("\n \n", "\n"),
        ("\u{feff}", ""),
        ("", "\n\ndata: [DONE]\n\n"),
        ("", "\ndata: [DONE]"),
    ];
    let whole =
        |(before, after): (&str, &str)| [before.as_bytes(), &document, after.as_bytes()].concat();
    let mut all: Vec<Vec<u8>> = around.map(whole).to_vec();
    // A stray frame that repeats the ids.
    all.push([&document, &b"\n\ndata: "[..], &document, b"\n\ndata: [DONE]\n\n"].concat());
    all
}

#[tokio::test]
async fn a_document_is_one_under_the_type_of_a_stream() {
    for (sent, plain) in wrapped("asked").into_iter().zip(wrapped("plain")) {
        let body = sent.clone();
        let upstream = Upstream::start("vllm", move |seen| {
            let (first, second) = body.split_at(body.len() / 2);
            vec![head(seen), Step::chunk(first), Step::chunk(second), Step::chunk(b"")]
        })
        .await;
        let world = World::start(upstream.address).await;
        let name = String::from_utf8_lossy(&sent).into_owned();
        for kind in [TYPES[0], TYPES[1], "application/json", ""] {
            for stream in [true, false] {
                let reply = rest(send(&world, &asked(CHAT, kind, stream)).await, Vec::new()).await;
                assert!(reply.body == plain, "{kind} {stream}: {name}: {}", reply.text());
                assert_eq!(reply.header("content-type").unwrap_or(""), kind);
                let ended = last_call(&world).await.ended.unwrap();
                assert_eq!(ended.outcome, Outcome::Complete, "{kind}: {name}: {:?}", ended.error);
                assert_eq!(ended.prompts, [[1, 5, 9]], "{kind}: {name}");
                assert_eq!(ended.reply, plain, "{kind}: {name}");
                let answers = wire::answers(Route::Chat, &ended.reply.read());
                assert_eq!(answers.len(), 1, "{kind}: {name}");
            }
        }
        for kind in [TYPES[0], "application/json"] {
            let reply = rest(send(&world, &asked(MESSAGES, kind, true)).await, Vec::new()).await;
            assert_eq!(
                (reply.status, reply.json()["type"].as_str()),
                (200, Some("message")),
                "{name}"
            );
            assert_eq!(reply.header("content-type"), Some("application/json"));
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn an_error_document_is_one_under_the_type_of_a_stream() {
    let error = r#"{"error":{"message":"too much at once","type":"x","code":529}}"#;
    for status in ["200 OK", "429 Too Many Requests"] {
        let upstream = Upstream::start("vllm", move |_| {
            vec![Step::reply(status, "text/event-stream", error.as_bytes())]
        })
        .await;
        let world = World::start(upstream.address).await;
        for stream in [true, false] {
            let reply = rest(send(&world, &asked(CHAT, "", stream)).await, Vec::new()).await;
            assert_eq!((reply.text().as_str(), reply.whole), (error, true));
            let ended = last_call(&world).await.ended.unwrap();
            assert_ne!(ended.outcome, Outcome::Complete, "{status}");
            assert!(ended.error.unwrap_or_default().contains("too much at once"), "{status}");
        }
        // What the upstream's status did not tell, the document does.
        let told = if status == "200 OK" { 529 } else { 429 };
        let reply = rest(send(&world, &asked(MESSAGES, "", true)).await, Vec::new()).await;
        assert_eq!((reply.status, reply.json()["type"].as_str()), (told, Some("error")));
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_ne!(last_call(&world).await.ended.unwrap().outcome, Outcome::Complete);
        world.stop().await;
    }
}

#[tokio::test]
async fn white_space_passes_before_a_document_as_it_comes() {
    let (upstream, go) = paused(b" \n".to_vec(), tape("vllm/chat.asked.json")).await;
    let world = World::start(upstream.address).await;
    for kind in ["application/json", "text/event-stream", ""] {
        let mut socket = send(&world, &asked(CHAT, kind, false)).await;
        let read = read_some(&mut socket, |read| holds(read, "\r\n\r\n2\r\n \n\r\n")).await;
        go.send_replace(());
        let reply = rest(socket, read).await;
        let plain = [b" \n", &tape("vllm/chat.plain.json")[..]].concat();
        assert!(reply.whole && reply.body == plain, "{kind}: {}", reply.text());
        let ended = last_call(&world).await.ended.unwrap();
        assert_eq!((ended.outcome, ended.prompts.len()), (Outcome::Complete, 1), "{kind}");
        assert_eq!(ended.reply, plain, "{kind}");

        for path in [MESSAGES, RESPONSES] {
            let mut socket = send(&world, &asked(path, kind, false)).await;
            let read = read_some(&mut socket, |read| holds(read, "\r\n\r\n2\r\n\n\n\r\n")).await;
            go.send_replace(());
            let reply = rest(socket, read).await;
            assert!(reply.whole && reply.json()["id"].is_string(), "{kind}: {}", reply.text());
            let ended = last_call(&world).await.ended.unwrap();
            assert_eq!(
                (ended.outcome, &ended.reply.read()[..]),
                (Outcome::Complete, &reply.body[..])
            );
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn white_space_passes_before_a_stream_as_it_comes() {
    let (upstream, go) = paused(b"\n".to_vec(), tape("vllm/chat_stream.asked.sse")).await;
    let world = World::start(upstream.address).await;
    for kind in ["application/json", "text/event-stream"] {
        for path in [CHAT, MESSAGES] {
            let mut socket = send(&world, &asked(path, kind, true)).await;
            let read = read_some(&mut socket, |read| holds(read, "\r\n\r\n1\r\n\n\r\n")).await;
            go.send_replace(());
            let reply = rest(socket, read).await;
            assert!(reply.whole && !reply.text().contains("token_ids\":["), "{}", reply.text());
            let ended = last_call(&world).await.ended.unwrap();
            assert_eq!(
                (ended.outcome, &ended.reply.read()[..]),
                (Outcome::Complete, &reply.body[..])
            );
            assert_eq!(ended.choices[0].token_ids.as_ref().unwrap().len(), 5);
            if path == CHAT {
                assert_eq!(reply.body, [b"\n", &tape("vllm/chat_stream.plain.sse")[..]].concat());
            } else {
                assert!(reply.header("content-type").unwrap().starts_with("text/event-stream"));
            }
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_document_after_white_space_waits_for_its_record() {
    let (upstream, go) = paused(b"\n".to_vec(), tape("vllm/chat.asked.json")).await;
    let world = World::start(upstream.address).await;
    let mut socket = send(&world, &asked(CHAT, "application/json", false)).await;
    let mut read = read_some(&mut socket, |read| read.ends_with(b"1\r\n\n\r\n")).await;
    let connection = kit::sql(&world.store());
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    go.send_replace(());
    let mut byte = [0; 1];
    let early = tokio::time::timeout(Duration::from_millis(500), socket.read(&mut byte)).await;
    assert!(early.is_err(), "{early:?}");
    connection.execute_batch("ROLLBACK").unwrap();
    assert_eq!(socket.read(&mut byte).await.unwrap(), 1);
    read.push(byte[0]);
    assert!(rest(socket, read).await.whole);
    world.stop().await;
}

#[tokio::test]
async fn an_error_after_white_space_is_an_event_or_breaks_a_document() {
    let (upstream, go) = paused(b"\n".to_vec(), b"<html>bad gateway</html>".to_vec()).await;
    let world = World::start(upstream.address).await;
    for stream in [true, false] {
        let mut socket = send(&world, &asked(MESSAGES, "application/json", stream)).await;
        let read = read_some(&mut socket, |read| holds(read, "\r\n\r\n1\r\n\n")).await;
        go.send_replace(());
        let reply = rest(socket, read).await;
        match stream {
            true => {
                assert!(reply.whole && reply.text().starts_with("\nevent: error\n"), "{reply:?}")
            }
            false => assert!(!reply.whole && reply.text() == "\n", "{reply:?}"),
        }
        let ended = last_call(&world).await.ended.unwrap();
        assert_eq!((ended.outcome, ended.status), (Outcome::UpstreamFailed, Some(502)));
    }
    world.stop().await;
}

#[tokio::test]
async fn what_follows_the_end_of_a_stream_is_hidden_in_too() {
    let stray = |form: &str| {
        let stream = String::from_utf8(tape(&format!("vllm/chat_stream.{form}.sse"))).unwrap();
        let event = stream.split("\n\n").find(|event| event.contains("\"Hi\"")).unwrap();
        format!("\n{event}\n\n: alive\n\n{event}")
    };
    assert!(stray("asked").contains("\"token_ids\":["));
    let (end, more) = (stray("asked") + "\n\n", stray("asked"));
    let upstream = Upstream::start("vllm", move |seen| {
        let mut together = tape("vllm/chat_stream.asked.sse");
        together.extend_from_slice(end.as_bytes());
        let later = more.as_bytes();
        vec![head(seen), Step::chunk(&together), Step::chunk(later), Step::chunk(b"")]
    })
    .await;
    let world = World::start(upstream.address).await;
    let reply = rest(send(&world, &asked(CHAT, TYPES[0], true)).await, Vec::new()).await;
    let plain = String::from_utf8(tape("vllm/chat_stream.plain.sse")).unwrap();
    let shown = plain + &stray("plain") + "\n\n" + &stray("plain");
    assert!(reply.whole && reply.text() == shown, "{}", reply.text());
    world.stop().await;
}

#[tokio::test]
async fn what_is_compressed_is_read_as_what_it_is() {
    let gzip = |plain: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(plain).unwrap();
        gzip.finish().unwrap()
    };
    for (name, kind) in [
        ("chat_stream.asked.sse", "application/json"),
        ("chat.asked.json", "text/event-stream"),
        ("chat.asked.json", "application/json"),
    ] {
        let body = gzip(&[b"\n", &tape(&format!("vllm/{name}"))[..]].concat());
        let upstream = Upstream::start("vllm", move |_| {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\n\
                 transfer-encoding: chunked\r\n\r\n"
            );
            let mut steps = vec![Step::Send(head.into_bytes())];
            steps.extend(body.chunks(7).map(Step::chunk));
            steps.push(Step::chunk(b""));
            steps
        })
        .await;
        let world = World::start(upstream.address).await;
        let reply =
            exchange(world.data, ("POST", CHAT), &[], br#"{"model":"m","messages":[]}"#).await;
        let plain = tape(&format!("vllm/{}", name.replace("asked", "plain")));
        assert!(reply.whole && reply.body == [b"\n", &plain[..]].concat(), "{name} as {kind}");
        let ended = world.ended_call().await.ended.unwrap();
        assert_eq!((ended.outcome, &ended.reply.read()[..]), (Outcome::Complete, &reply.body[..]));
        assert!(ended.choices[0].token_ids.is_some(), "{name} as {kind}");
        world.stop().await;
    }
}
