//! Compressed bodies, in both directions.

use std::io::Write;

use bytes::Bytes;
use episode::Outcome;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use kit::{Seen, Step, Upstream, World, exchange, tape};

const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];
const CHAT: &str = "/e/a/v1/chat/completions";
const OTHER: &str = "/e/a/v1/score";

fn coded(coding: &str, plain: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
            gzip.write_all(plain).unwrap();
            gzip.finish().unwrap()
        }
        "deflate" => {
            let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
            zlib.write_all(plain).unwrap();
            zlib.finish().unwrap()
        }
        "br" => {
            let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
            brotli.write_all(plain).unwrap();
            brotli.into_inner()
        }
        _ => zstd::encode_all(plain, 3).unwrap(),
    }
}

fn ok(_: &Seen) -> Vec<Step> {
    vec![Step::reply("200 OK", "application/json", b"{}")]
}

fn bodies(world_calls: &[episode::Call]) -> Vec<Bytes> {
    world_calls.iter().map(|call| call.begun.request.read()).collect()
}

#[tokio::test]
async fn compressed_requests_are_recorded_plain_and_sent_on() {
    let upstream = Upstream::start("vllm", ok).await;
    let world = World::start(upstream.address).await;
    let plain = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    for coding in CODINGS {
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        let body = coded(coding, plain);
        exchange(world.data, ("POST", CHAT), &headers, &body).await;
        let seen = upstream.seen().pop().unwrap();
        let text = String::from_utf8(seen.body).unwrap();
        assert!(text.starts_with(r#"{"model":"m","messages""#), "{coding}: {text}");
        assert!(text.contains("\"return_token_ids\":true"), "{coding}: {text}");
        assert!(!seen.head.to_ascii_lowercase().contains("content-encoding"), "{coding}");
        exchange(world.data, ("POST", OTHER), &headers, &body).await;
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.body, body, "{coding}");
        assert!(seen.head.contains(&format!("content-encoding: {coding}\r\n")), "{coding}");
    }
    assert_eq!(bodies(&world.calls().await), [&plain[..]; 8]);
    world.stop().await;
}

/// Bodies that are not in the coding that their header names, or that were cut off.
fn damaged() -> Vec<(&'static str, Vec<u8>)> {
    let mut damaged = vec![
        ("gzip", b"\x1f\x8bno gzip".to_vec()),
        ("zstd", b"no zstd".to_vec()),
        ("deflate", b"no zlib".to_vec()),
        ("br", vec![0xff; 64]),
    ];
    for coding in CODINGS {
        let mut cut = coded(coding, b"{\"messages\":[],\"cut\":\"off\"}");
        cut.truncate(cut.len() - 3);
        damaged.push((coding, cut));
    }
    damaged
}

#[tokio::test]
async fn a_request_that_cannot_be_decoded_is_refused() {
    let upstream = Upstream::start("vllm", ok).await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    (config.request_bytes_kept, config.request_bytes_max) = (1 << 20, 4 << 20);
    let world = World::start_with(config).await;

    let bomb = vec![b' '; 16 << 20];
    let bombs = CODINGS.map(|coding| (coding, coded(coding, &bomb)));
    let all = damaged().into_iter().map(|body| (body, 400));

    for ((coding, body), status) in all.chain(bombs.map(|body| (body, 413))) {
        let headers = [("content-encoding", coding)];
        for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] {
            let reply = exchange(world.data, ("POST", path), &headers, &body).await;
            assert_eq!(reply.status, status, "{coding} {path}: {}", reply.text());
            assert_eq!(reply.header("x-rolltape-error"), Some("1"));
            let kind = match (path, status) {
                ("/v1/messages", 413) => "request_too_large",
                _ => "invalid_request_error",
            };
            assert_eq!(reply.json()["error"]["type"], kind, "{coding} {path}");
            let message = reply.json()["error"]["message"].to_string();
            let word = if status == 413 { "decodes to more than" } else { "coding is damaged" };
            assert!(message.contains(word), "{message}");
        }
        // Elsewhere the upstream is the judge.
        exchange(world.data, ("POST", OTHER), &headers, &body).await;
        let seen = upstream.seen().pop().unwrap();
        assert!(seen.path == OTHER[4..] && seen.body == body, "{coding}");
        assert!(seen.head.contains(&format!("content-encoding: {coding}\r\n")), "{coding}");
    }

    assert!(upstream.seen().iter().all(|seen| !seen.path.contains("completions")));
    world.stop().await;
}

#[tokio::test]
async fn a_request_that_need_not_be_decoded_goes_on_as_sent() {
    let upstream = Upstream::start("vllm", ok).await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.request_bytes_kept = 1 << 20;
    let world = World::start_with(config).await;

    // Decoded it is longer than what is held, and it is not denser than a body may be.
    let word = |n: u32| format!("{0:08x}{0:08x}", n.wrapping_mul(2_654_435_761));
    let long = (0..100_000).map(word).collect::<String>().into_bytes();
    let mut sent = Vec::new();
    for (name, body) in [
        ("gzip", coded("gzip", &long)),
        ("br", coded("br", &long)),
        ("compress", b"an older coding".to_vec()),
        ("gzip, br", coded("br", &coded("gzip", b"{}"))),
        ("gzip", Vec::new()),
    ] {
        let headers = [("content-encoding", name)];
        for path in [CHAT, OTHER] {
            let reply = exchange(world.data, ("POST", path), &headers, &body).await;
            assert_eq!((reply.status, reply.text().as_str()), (200, "{}"), "{name} {path}");
            let seen = upstream.seen().pop().unwrap();
            assert!(seen.body == body, "{name} {path}");
            assert!(seen.head.contains(&format!("content-encoding: {name}\r\n")), "{name}");
            sent.push(body.clone());
        }
    }

    // What is no JSON object lies with other probes, so the order is that of episodes.
    let calls = world.calls().await;
    let (mut kept, mut sent) = (bodies(&calls), sent.iter().map(Vec::as_slice).collect::<Vec<_>>());
    kept.sort_unstable();
    sent.sort_unstable();
    assert!(kept == sent);
    world.stop().await;
}

#[tokio::test]
async fn generating_routes_ask_for_identity_and_decode_replies() {
    let upstream = Upstream::start("vllm", |seen| {
        let coding = seen.head.lines().find_map(|line| line.strip_prefix("x-coding: ")).unwrap();
        let streams = String::from_utf8_lossy(&seen.body).contains("\"stream\":true");
        let name = if streams { "vllm/chat_stream.asked.sse" } else { "vllm/chat.asked.json" };
        let kind = if streams { "text/event-stream" } else { "application/json" };
        let body = coded(coding, &tape(name));
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: {coding}\r\n\
             transfer-encoding: chunked\r\n\r\n"
        );
        let mut steps = vec![Step::Send(head.into_bytes())];
        steps.extend(body.chunks(50).map(Step::chunk));
        steps.push(Step::chunk(b""));
        steps
    })
    .await;
    let world = World::start(upstream.address).await;

    for coding in CODINGS {
        for streams in [false, true] {
            let body = format!(r#"{{"messages":[],"stream":{streams}}}"#);
            let headers = [("accept-encoding", "gzip, br"), ("x-coding", coding)];
            let reply = exchange(world.data, ("POST", CHAT), &headers, body.as_bytes()).await;
            let name = if streams { "vllm/chat_stream.plain.sse" } else { "vllm/chat.plain.json" };
            assert_eq!(reply.text().as_bytes(), tape(name), "{coding} {streams}");
            assert_eq!(reply.header("content-encoding"), None, "{coding}");
            assert!(reply.whole);
            let head = upstream.seen().pop().unwrap().head;
            assert!(head.contains("accept-encoding: identity\r\n"), "{head}");
            let ended = world.calls().await.pop().unwrap().ended.unwrap();
            assert_eq!(ended.outcome, Outcome::Complete, "{coding} {streams}");
            assert!(ended.choices[0].token_ids.is_some(), "{coding} {streams}");
        }
    }
    world.stop().await;
}

/// A reply of a type with a coded body.
fn coded_reply(kind: &str, coding: &str, body: &[u8]) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: {coding}\r\n\
         vary: accept-encoding\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    vec![Step::Send([head.as_bytes(), body].concat())]
}

#[tokio::test]
async fn a_damaged_reply_ends_badly_and_says_so() {
    for (coding, body) in damaged() {
        let upstream = Upstream::start("vllm", move |seen| {
            let streams = String::from_utf8_lossy(&seen.body).contains("\"stream\":true");
            let kind = if streams { "text/event-stream" } else { "application/json" };
            coded_reply(kind, coding, &body)
        })
        .await;
        let world = World::start(upstream.address).await;
        let ask = |streams| {
            let body = format!(r#"{{"messages":[],"stream":{streams}}}"#);
            async move { exchange(world.data, ("POST", CHAT), &[], body.as_bytes()).await }
        };

        assert_eq!(ask(false).await.status, 502, "{coding}");
        let stream = ask(true).await;
        assert!(!stream.whole && stream.body.is_empty(), "{coding}");
        for call in world.calls().await {
            assert_eq!(call.ended.unwrap().outcome, Outcome::UpstreamFailed, "{coding}");
        }
        world.stop().await;
    }
}

const LIST: &[u8] = br#"{"object":"list","data":[],"usage":{"prompt_tokens":8}}"#;

#[tokio::test]
async fn an_agent_never_gets_a_coding_that_it_did_not_accept() {
    let upstream = Upstream::start("openai", |seen| {
        let coding = seen.head.lines().find_map(|line| line.strip_prefix("x-coding: ")).unwrap();
        coded_reply("application/json", coding, &coded(coding, LIST))
    })
    .await;
    let world = World::start(upstream.address).await;

    for (coding, accepts) in [
        ("gzip", "identity"),
        ("deflate", "gzip"),
        ("br", "br;q=0, *"),
        ("zstd", "gzip, deflate"),
        ("gzip", ""),
    ] {
        for path in [CHAT, "/e/a/v1/embeddings", OTHER] {
            let headers = [("accept-encoding", accepts), ("x-coding", coding)];
            let reply = exchange(world.data, ("POST", path), &headers, b"{}").await;
            assert_eq!((reply.status, reply.text().as_bytes()), (200, LIST), "{coding} {path}");
            assert!(reply.whole && reply.header("content-encoding").is_none(), "{coding} {path}");
            assert_eq!(world.calls().await.pop().unwrap().ended.unwrap().reply, LIST);
        }
    }

    // One that nobody here knows is refused, and taken where it was asked for.
    for (accepts, status) in [("gzip", 502), ("gzip, sdch", 200)] {
        for path in [CHAT, OTHER] {
            let headers = [("accept-encoding", accepts), ("x-coding", "sdch")];
            let reply = exchange(world.data, ("POST", path), &headers, b"{}").await;
            assert_eq!(reply.status, status, "{accepts} {path}");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn other_replies_keep_their_coding_and_are_recorded_plain() {
    let upstream = Upstream::start("openai", |seen| {
        let name = |line: &str| line.split_once(": ").map(|(name, _)| name.to_ascii_lowercase());
        let accepts = seen.head.lines().find(|l| name(l).as_deref() == Some("accept-encoding"));
        let coding = accepts.unwrap().split_once(": ").unwrap().1;
        coded_reply("application/json", coding, &coded(coding, LIST))
    })
    .await;
    let world = World::start(upstream.address).await;

    for coding in CODINGS {
        for path in ["/e/a/v1/embeddings", OTHER] {
            let headers = [("accept-encoding", coding)];
            let reply = exchange(world.data, ("POST", path), &headers, b"{}").await;
            assert_eq!(reply.body, coded(coding, LIST), "{coding} {path}");
            assert_eq!(reply.header("content-encoding"), Some(coding));
            let ended = world.calls().await.pop().unwrap().ended.unwrap();
            assert_eq!(ended.reply, LIST, "{coding} {path}");
            let counted = ended.usage.prompt;
            assert_eq!(counted, Some(8).filter(|_| path.ends_with("embeddings")), "{coding}");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn other_replies_pass_damaged_and_are_marked() {
    let upstream = Upstream::start("openai", |_| {
        let mut body = coded("gzip", LIST);
        body.truncate(40);
        coded_reply("application/json", "gzip", &body)
    })
    .await;
    let world = World::start(upstream.address).await;
    let reply = exchange(world.data, ("POST", OTHER), &[("accept-encoding", "gzip")], b"{}").await;
    assert!(reply.whole && reply.body == coded("gzip", LIST)[..40]);
    let ended = world.ended_call().await.ended.unwrap();
    assert_eq!(ended.outcome, Outcome::UpstreamFailed);
    assert!(ended.error.unwrap().contains("damaged") && LIST.starts_with(&ended.reply.read()));
    let strict = exchange(world.data, ("POST", OTHER), &[("accept-encoding", "br")], b"{}").await;
    assert!(!strict.whole && LIST.starts_with(&strict.body));
    world.stop().await;
}
