//! The agent gets exactly the bytes that the upstream would have sent without rolltape.

use std::time::Duration;

use episode::Outcome;
use kit::{Seen, Step, Upstream, World, connect, exchange, post, read_some, tape};
use proxy::Config;
use tokio::io::AsyncWriteExt;

/// A vLLM that answers from the tapes, with our fields or without, in `pieces` of the stream.
fn vllm(pieces: usize) -> impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static {
    move |request| {
        let body = String::from_utf8_lossy(&request.body);
        let form = if body.contains("\"return_token_ids\":true") { "asked" } else { "plain" };
        let name = if request.path.contains("chat") { "chat" } else { "completions" };
        if !body.contains("\"stream\":true") {
            let reply = tape(&format!("vllm/{name}.{form}.json"));
            return vec![Step::reply("200 OK", "application/json", &reply)];
        }
        let stream = tape(&format!("vllm/{name}_stream.{form}.sse"));
        let size = stream.len().div_ceil(pieces).max(1);
        let mut steps = vec![Step::stream_head()];
        steps.extend(stream.chunks(size).map(Step::chunk));
        steps.push(Step::chunk(b""));
        steps
    }
}

const ROUTES: [&str; 2] = ["/v1/chat/completions", "/v1/completions"];

fn request(stream: bool, extra: &str) -> String {
    format!(r#"{{"model":"m", "messages":[],"stream":{stream}{extra}}}"#)
}

#[tokio::test]
async fn hidden_replies_equal_plain_ones_byte_for_byte() {
    for pieces in [1, 7, 200] {
        let upstream = Upstream::start("vllm", vllm(pieces)).await;
        let world = World::start(upstream.address).await;
        for route in ROUTES {
            for stream in [false, true] {
                let body = request(stream, "");
                let direct = post(upstream.address, route, &body).await;
                let through = post(world.data, &format!("/e/a{route}"), &body).await;
                assert_eq!(through.text(), direct.text(), "{route} stream {stream}");
                assert_eq!(through.status, 200);
                assert!(through.whole && direct.whole);
                assert_eq!(through.header("content-type"), direct.header("content-type"));
            }
        }
        world.stop().await;
    }
}

/// Number of chunks of a body, up to the one that ends it.
fn chunks(mut body: &[u8]) -> usize {
    let mut count = 0;
    loop {
        let line = body.windows(2).position(|window| window == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&body[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return count;
        }
        body = &body[line + 2 + size + 2..];
        count += 1;
    }
}

#[tokio::test]
async fn events_that_come_together_share_chunks() {
    const EVENTS: usize = 64;
    let upstream = Upstream::start("vllm", |_| {
        let event = |n| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{n}\"}}}}]}}\n\n")
        };
        let events = (0..EVENTS).map(event).chain(["data: [DONE]\n\n".to_owned()]);
        let chunked = events.map(|event| format!("{:x}\r\n{event}\r\n", event.len()));
        let at_once: String = chunked.chain(["0\r\n\r\n".to_owned()]).collect();
        vec![Step::stream_head(), Step::Send(at_once.into_bytes())]
    })
    .await;
    let world = World::start(upstream.address).await;

    let mut socket = connect(world.data).await;
    let asked = kit::request("POST", "/e/a/v1/chat/completions", &[], request(true, "").as_bytes());
    socket.write_all(&asked).await.unwrap();
    let received = read_some(&mut socket, |read| read.ends_with(b"\r\n0\r\n\r\n")).await;

    let text = String::from_utf8_lossy(&received);
    assert_eq!(text.matches("data: {").count(), EVENTS);
    let head = text.find("\r\n\r\n").unwrap() + 4;
    let count = chunks(&received[head..]);
    assert!(count <= EVENTS / 4, "{count} chunks");
    world.stop().await;
}

#[tokio::test]
async fn what_was_hidden_is_recorded() {
    let upstream = Upstream::start("vllm", vllm(5)).await;
    let world = World::start(upstream.address).await;

    for stream in [false, true] {
        post(world.data, "/e/a/v1/chat/completions", &request(stream, "")).await;
    }

    let calls = world.calls().await;
    let ends: Vec<_> = calls.iter().map(|call| call.ended.as_ref().unwrap()).collect();
    assert_eq!(ends.len(), 2);

    for (end, ids) in ends.iter().zip([&[13, 2][..], &[13, 391, 386, 392, 2]]) {
        assert_eq!(end.outcome, Outcome::Complete);
        assert_eq!(end.prompts, [[1, 5, 9]]);
        assert_eq!(end.choices[0].token_ids.as_deref(), Some(ids));
        assert_eq!(end.choices[0].logprobs.len(), ids.len());
        assert_eq!(end.choices[0].versions[0].number(), Some(7));
        assert_eq!(end.usage.completion, Some(ids.len() as u64));
    }

    assert_eq!(ends[1].choices[0].logprobs[2].to_bits(), (-1.19e-7_f32).to_bits());
    assert_eq!(ends[1].reply, tape("vllm/chat_stream.plain.sse"));
    assert_eq!(calls[0].begun.request, request(false, ""));
    world.stop().await;
}

#[tokio::test]
async fn what_the_agent_asked_for_reaches_it() {
    let upstream = Upstream::start("vllm", vllm(3)).await;
    let world = World::start(upstream.address).await;
    let wants = r#","logprobs":true,"return_token_ids":true,"return_weight_versions":true"#;
    for stream in [false, true] {
        let body = request(stream, wants);
        let direct = post(upstream.address, ROUTES[0], &body).await;
        let through = post(world.data, ROUTES[0], &body).await;
        assert_eq!(through.text(), direct.text());
        assert_eq!(upstream.seen().last().unwrap().body, body.as_bytes());
    }
    world.stop().await;
}

#[tokio::test]
async fn the_request_keeps_every_byte_that_is_not_added() {
    let upstream = Upstream::start("vllm", vllm(1)).await;
    let world = World::start(upstream.address).await;
    let body = "{ \"model\":\"m\", \"seed\":12345678901234567890, \"x\": 1.50E+2,\n\
                \"messages\" : [{\"role\":\"user\",\"content\":\"\\u00e9\\/\"}] }";
    post(world.data, "/e/a/v1/chat/completions", body).await;
    let sent = upstream.seen().pop().unwrap();
    let added = ",\"logprobs\":true,\"return_token_ids\":true,\"return_weight_versions\":true";
    let kept = body.strip_suffix('}').unwrap();
    assert_eq!(String::from_utf8(sent.body).unwrap(), format!("{kept}{added}}}"));
    assert_eq!(sent.path, "/v1/chat/completions");
    assert!(!sent.head.contains("x-rolltape"));
    assert_eq!(world.calls().await[0].begun.request, body);
    world.stop().await;
}

#[tokio::test]
async fn other_paths_and_methods_pass_and_are_recorded() {
    let upstream = Upstream::start("vllm", |request| {
        let kind = "text/plain";
        if request.head.starts_with("HEAD") {
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-kept: 1\r\n\r\n";
            return vec![Step::Send(head.to_vec())];
        }
        match request.path.as_str() {
            "/v1/models/none" => vec![Step::Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())],
            "/v1/models/slow" => {
                let mut steps = vec![Step::stream_head(), Step::chunk(b"a")];
                steps.extend([Step::Pause(Duration::from_millis(50)), Step::chunk(b"b")]);
                steps.push(Step::chunk(b""));
                steps
            }
            path => vec![Step::reply("418 I'm a teapot", kind, path.as_bytes())],
        }
    })
    .await;
    let world = World::start(upstream.address).await;

    let get = |path| exchange(world.data, ("GET", path), &[], b"");
    let reply = get("/e/a/v1/models/things?x=%20y&beta=true").await;
    assert_eq!((reply.status, reply.text().as_str()), (418, "/v1/models/things?x=%20y&beta=true"));
    assert_eq!(get("/v1/models/none").await.status, 204);
    assert_eq!(get("/v1/models/slow").await.text(), "ab");
    let head = exchange(world.data, ("HEAD", "/e/a/"), &[], b"").await;
    assert_eq!((head.status, head.header("x-kept")), (200, Some("1")));
    assert!(head.body.is_empty());
    let sent = exchange(world.data, ("POST", "/e/a/v1/score"), &[], &[0, 255, 10]).await;
    assert_eq!(sent.text(), "/v1/score");
    let calls = world.calls().await;
    assert_eq!(calls.len(), 5);
    assert!(calls.iter().all(|call| call.ended.is_some()));
    assert!(calls.iter().any(|call| call.begun.request == [0, 255, 10]));
    world.stop().await;
}

#[tokio::test]
async fn frames_arrive_as_they_are_sent() {
    let upstream = Upstream::start("vllm", |_| {
        let stream = String::from_utf8(tape("vllm/chat_stream.asked.sse")).unwrap();
        let mut steps = vec![Step::stream_head()];
        for event in stream.split_inclusive("\n\n") {
            steps.extend([Step::chunk(event.as_bytes()), Step::Pause(Duration::from_millis(60))]);
        }
        steps.push(Step::chunk(b""));
        steps
    })
    .await;
    let world = World::start(upstream.address).await;

    let mut socket = kit::connect(world.data).await;
    let bytes = kit::request("POST", ROUTES[0], &[], request(true, "").as_bytes());
    tokio::io::AsyncWriteExt::write_all(&mut socket, &bytes).await.unwrap();
    let started = std::time::Instant::now();
    let has =
        |wanted: &'static [u8]| move |read: &[u8]| read.windows(wanted.len()).any(|w| w == wanted);
    kit::read_some(&mut socket, has(b"\"content\":\"Hi\"")).await;
    let first = started.elapsed();
    kit::read_some(&mut socket, has(b"[DONE]")).await;
    // The rest of the tape takes five pauses of 60 ms; a buffered stream would show none of them.
    assert!(started.elapsed() > first + Duration::from_millis(150));
    world.stop().await;
}

#[tokio::test]
async fn replies_name_their_calls_where_that_is_asked_for() {
    for named in [false, true] {
        let upstream = Upstream::start("vllm", vllm(3)).await;
        let mut config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
        config.call_id_header = named;
        let world = World::start_with(config).await;
        for stream in [false, true] {
            let path = format!("/e/{stream}/v1/chat/completions");
            let reply = post(world.data, &path, &request(stream, "")).await;
            assert_eq!(reply.status, 200);
            let calls = world.calls().await;
            let call =
                calls.iter().find(|call| call.begun.tag.episode.as_str() == stream.to_string());
            let id = call.unwrap().begun.call_id.to_string();
            assert_eq!(reply.header("x-rolltape-call-id"), named.then_some(id.as_str()));
        }
        world.stop().await;
    }
}
