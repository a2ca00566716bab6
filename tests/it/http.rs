//! HTTP/1.1 and HTTP/2, plain and over TLS: requests, replies, trailers and resets.

use std::time::Duration;

use bytes::Bytes;
use episode::Outcome;
use hyper::{HeaderMap, Response, Version};
use kit::{
    Agent, Answer, Authority, Heard, Manner, Server, Step, Upstream, World, ask, connect, exchange,
    post, read_some, sending, spaces, tape, trailed,
};
use proxy::Config;
use tokio::io::AsyncWriteExt;
use wire::Dialect;

const CHAT: &str = "/e/a/v1/chat/completions";
const OTHER: &str = "/e/a/v1/score";

/// A vLLM that answers from the tapes.
fn vllm(heard: &Heard) -> Answer {
    let streams = String::from_utf8_lossy(&heard.body).contains("\"stream\":true");
    let (kind, name) = match streams {
        true => ("text/event-stream", "vllm/chat_stream.asked.sse"),
        false => ("application/json", "vllm/chat.asked.json"),
    };
    reply(200, kind, tape(name))
}

fn reply(status: u16, kind: &str, body: impl Into<Bytes>) -> Answer {
    let reply = Response::builder().status(status).header("content-type", kind);
    Answer::Whole(reply.body(body.into()).unwrap())
}

fn config(scheme: &str, server: &Server, dialect: Dialect) -> Config {
    let mut config = Config::new(format!("{scheme}://{}", server.address).parse().unwrap());
    config.dialect = Some(dialect);
    config
}

#[tokio::test]
async fn every_version_meets_every_version() {
    let authority = Authority::default();
    for (http2, tls) in [(false, false), (false, true), (true, false), (true, true)] {
        let manner = Manner { http2, tls: tls.then_some(&authority) };
        let server = Server::start(manner, vllm).await;
        let mut config = config(if tls { "https" } else { "http" }, &server, Dialect::Vllm);
        config.upstream_ca = authority.pem().to_vec();
        config.upstream_http2 = http2 && !tls;

        let plain = World::start_with(config.clone()).await;
        let (chain, key) = authority.server();
        config.set_tls(chain.as_bytes(), key.as_bytes()).unwrap();
        let secure = World::start_with(config).await;
        let agents = [
            (Agent::http1(plain.data).await, &plain, false),
            (Agent::http2(plain.data).await, &plain, true),
            (Agent::tls(secure.data, &authority, &["http/1.1"]).await, &secure, false),
            (Agent::tls(secure.data, &authority, &["h2", "http/1.1"]).await, &secure, true),
        ];

        for (mut agent, world, speaks_http2) in agents {
            assert_eq!(agent.is_http2(), speaks_http2);
            for (streams, name) in
                [(false, "vllm/chat.plain.json"), (true, "vllm/chat_stream.plain.sse")]
            {
                let body = format!(r#"{{"messages":[],"stream":{streams}}}"#);
                let got = agent.call(ask("POST", CHAT).body(sending(body)).unwrap()).await;
                assert_eq!((got.status, &got.body[..]), (200, &tape(name)[..]));
                let heard = server.heard().pop().unwrap();
                let version = if http2 { Version::HTTP_2 } else { Version::HTTP_11 };
                assert_eq!((heard.version, heard.path.as_str()), (version, &CHAT[4..]));
                let ended = world.calls().await.pop().unwrap().ended.unwrap();
                assert_eq!(ended.outcome, Outcome::Complete);
                assert!(ended.choices[0].token_ids.is_some());
            }
        }
        plain.stop().await;
        secure.stop().await;
    }
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_not_trusted() {
    let authority = Authority::default();
    let manner = Manner { http2: false, tls: Some(&authority) };
    let server = Server::start(manner, vllm).await;
    let mut config = config("https", &server, Dialect::Vllm);
    config.upstream_ca = Authority::default().pem().to_vec();
    let world = World::start_with(config).await;
    let reply = post(world.data, CHAT, "{}").await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("not trusted: --upstream-ca"), "{}", reply.text());
    assert!(server.heard().is_empty());
    world.stop().await;
}

#[tokio::test]
async fn calls_share_connections() {
    for http2 in [false, true] {
        let server = Server::start(Manner { http2, tls: None }, vllm).await;
        let mut config = config("http", &server, Dialect::Vllm);
        config.upstream_http2 = http2;
        let world = World::start_with(config).await;
        for turn in 0..20 {
            let body = format!(r#"{{"messages":[],"stream":{}}}"#, turn % 2 == 0);
            assert_eq!(post(world.data, CHAT, &body).await.status, 200);
        }
        // Beside the first call it is asked how it samples.
        assert!(server.connections() <= 2, "HTTP/2 {http2}");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_late_last_chunk_leaves_its_connection_usable() {
    let upstream = Upstream::start("vllm", |_| {
        vec![
            Step::stream_head(),
            Step::chunk(&tape("vllm/chat_stream.asked.sse")),
            // As uvicorn does: the end of the body is a write of its own.
            Step::Pause(Duration::from_millis(20)),
            Step::chunk(b""),
        ]
    })
    .await;
    let world = World::start(upstream.address).await;
    for _ in 0..5 {
        post(world.data, CHAT, "{\"stream\":true}").await;
        // No event says that a connection is free again; the last chunk comes after 20 ms.
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    // One connection is for the list of models, one for the server's sampling.
    assert!(upstream.connections() <= 2);
    world.stop().await;
}

fn map(name: &'static str, value: &'static str) -> HeaderMap {
    [(name.parse().unwrap(), value.parse().unwrap())].into_iter().collect()
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    for http2 in [false, true] {
        let server = Server::start(Manner { http2, tls: None }, |heard| {
            let kind = match String::from_utf8_lossy(&heard.body).contains("\"stream\":true") {
                true => "text/event-stream",
                false => "application/json",
            };
            let head = Response::builder().header("content-type", kind).header("trailer", "x-sum");
            let reply = head.body("{}".into()).unwrap();
            Answer::Trailed(reply, map("x-sum", "reply"))
        })
        .await;
        let mut config = config("http", &server, Dialect::Vllm);
        config.upstream_http2 = http2;
        let world = World::start_with(config).await;

        let agents = [Agent::http1(world.data).await, Agent::http2(world.data).await];
        for mut agent in agents {
            for (path, body) in [(CHAT, "{}"), (OTHER, "{}"), (CHAT, "{\"stream\":true}")] {
                let sent = trailed(body, map("x-sum", "request"));
                let request = ask("POST", path).header("te", "trailers").header("trailer", "x-sum");
                let got = agent.call(request.body(sent).unwrap()).await;
                assert_eq!(got.status, 200);
                let heard = server.heard().pop().unwrap();
                assert_eq!(heard.trailers, Some(map("x-sum", "request")), "{path} {http2}");
                assert_eq!(got.trailers, Some(map("x-sum", "reply")), "{path} {body} {http2}");
            }
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn an_agent_that_expects_to_be_told_is_told() {
    let upstream = Upstream::start("openai", |seen| {
        let expects = seen.head.to_ascii_lowercase().contains("expect").to_string();
        vec![Step::reply("200 OK", "text/plain", expects.as_bytes())]
    })
    .await;
    let mut config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.request_bytes_max = 1000;
    let world = World::start_with(config).await;

    for path in [CHAT, OTHER] {
        let mut socket = connect(world.data).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let told = read_some(&mut socket, |read| read.ends_with(b"\r\n\r\n")).await;
        assert_eq!(told, b"HTTP/1.1 100 Continue\r\n\r\n");
        assert!(upstream.seen().iter().all(|seen| seen.path != path[4..]));
        socket.write_all(b"{}").await.unwrap();
        read_some(&mut socket, |read| read.ends_with(b"\r\n\r\nfalse")).await;
    }

    // What is refused anyway is not asked for.
    let mut socket = connect(world.data).await;
    let head = format!(
        "POST {OTHER} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let told = read_some(&mut socket, |read| read.ends_with(b"}")).await;
    assert!(told.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&told));
    world.stop().await;
}

#[tokio::test]
async fn bodies_over_the_bound_are_refused_however_they_come() {
    let server = Server::start(Manner::default(), |_| reply(200, "a/b", "taken")).await;
    let mut config = config("http", &server, Dialect::OpenAi);
    (config.request_bytes_kept, config.request_bytes_max) = (1000, 100_000);
    let world = World::start_with(config).await;
    for (bytes, status) in [(100_000, 200), (100_001, 413)] {
        let body = vec![b'x'; bytes];
        let sized = exchange(world.data, ("POST", OTHER), &[], &body).await;
        assert_eq!(sized.status, status, "sized {bytes}");
        let mut agent = Agent::http1(world.data).await;
        let got = agent.call(ask("POST", CHAT).body(spaces(bytes as u64, false)).unwrap()).await;
        assert_eq!(got.status, status, "chunked {bytes}: {:?}", got.body);
    }
    let refused = world.calls().await.pop().unwrap().ended.unwrap();
    assert_eq!((refused.status, refused.outcome), (Some(413), Outcome::Refused));
    assert!(refused.error.unwrap().contains("100000"));
    world.stop().await;
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_no_call() {
    let upstream = Upstream::start("openai", |seen| match seen.path.as_str() {
        "/v1/score" => vec![Step::reply("200 OK", "a/b", b""), Step::Cut],
        "/v1/rerank" => vec![Step::Cut],
        _ => vec![Step::reply("200 OK", "a/b", b"")],
    })
    .await;
    let world = World::start(upstream.address).await;
    let asked = |path: &str| upstream.seen().iter().filter(|seen| seen.path == path).count();
    for turn in 1..=10 {
        assert_eq!(post(world.data, "/v1/score", "{}").await.status, 200);
        // The proxy must see the end of the connection, and no event says that it did.
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(post(world.data, "/v1/embeddings", "{}").await.status, 200, "turn {turn}");
        assert_eq!(asked("/v1/embeddings"), turn);
        // This one goes over the connection of the one before, was read, and is not sent again.
        assert_eq!(post(world.data, "/v1/rerank", "{}").await.status, 502);
        assert_eq!(asked("/v1/rerank"), turn);
    }
    // Ten for `last` with `models` on the first, ten for `next` and `cut`.
    assert_eq!(upstream.connections(), 20);
    world.stop().await;
}

#[tokio::test]
async fn an_hour_of_silence_is_not_cut_short() {
    let (go, wait) = tokio::sync::watch::channel(());
    let upstream = Upstream::start("openai", move |seen| {
        let streams = String::from_utf8_lossy(&seen.body).contains("true");
        let wait = Step::Await(wait.clone());
        match streams {
            false => vec![wait, Step::reply("200 OK", "application/json", b"{}")],
            true => {
                vec![Step::stream_head(), wait, Step::chunk(b"data: [DONE]\n\n"), Step::chunk(b"")]
            }
        }
    })
    .await;
    let world = World::start(upstream.address).await;

    for (body, end) in [("{}", "{}"), ("{\"stream\":true}", "data: [DONE]\n\n")] {
        let call = tokio::spawn(post(world.data, CHAT, body));
        upstream.asked().await;
        // The store must come to rest first, since the clock moves for it, too. No event says that
        // it did.
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(3600)).await;
        tokio::time::resume();
        tokio::time::sleep(Duration::from_millis(50)).await;
        go.send_replace(());
        let reply = call.await.unwrap();
        assert_eq!((reply.status, reply.text().as_str(), reply.whole), (200, end, true));
    }
    world.stop().await;
}

#[tokio::test]
async fn event_streams_pass_in_whatever_form_they_come() {
    let ids: Vec<String> = (0..300_000).map(|id| id.to_string()).collect();
    let chunk = |extra: &str| {
        format!("{{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"x\"}}{extra}}}]}}")
    };
    let stop = chunk(",\"finish_reason\":\"stop\"");
    let long = format!("{{\"x\":\"{}\"}}", ids.join(","));
    let forms = [
        format!("data:{}\r\n\r\ndata:{stop}\r\n\r\ndata:[DONE]\r\n\r\n", chunk("")),
        format!(": hello\n\nretry: 3\n\nevent: x\nid: 7\ndata: {}\n\ndata: [DONE]\n\n", stop),
        format!("data: {{\"choices\":\ndata: []}}\n\ndata: {stop}\n\ndata: [DONE]"),
        format!("data: {stop}\n\n"),
        format!("data: {stop}"),
        format!("data: {long}\n\ndata: {stop}\n\ndata: [DONE]\n\n"),
    ];
    assert!(forms[5].len() > 1 << 20);

    for form in forms {
        for pieces in [1, 3, form.len().min(200)] {
            let body = form.clone();
            let upstream = Upstream::start("vllm", move |_| {
                let mut steps = vec![Step::stream_head()];
                steps.extend(body.as_bytes().chunks(body.len().div_ceil(pieces)).map(Step::chunk));
                steps.push(Step::chunk(b""));
                steps
            })
            .await;
            let world = World::start(upstream.address).await;
            let reply = post(world.data, CHAT, "{\"stream\":true}").await;
            assert!(reply.whole && reply.text() == form, "{} in {pieces}", &form[..60]);
            let ended = world.calls().await.pop().unwrap().ended.unwrap();
            assert_eq!(ended.outcome, Outcome::Complete, "{} in {pieces}", &form[..60]);
            world.stop().await;
        }
    }
}

#[tokio::test]
async fn cookies_that_came_apart_go_on_as_one() {
    let server = Server::start(Manner::default(), |_| reply(200, "a/b", "")).await;
    let world = World::start_with(config("http", &server, Dialect::OpenAi)).await;
    let mut agent = Agent::http2(world.data).await;
    let request = ask("GET", "/v1/models/m").header("cookie", "a=1").header("cookie", "b=2");
    agent.call(request.body(sending("")).unwrap()).await;
    let heard = server.heard().pop().unwrap();
    let cookies: Vec<_> = heard.headers.get_all("cookie").iter().collect();
    assert_eq!(cookies, ["a=1; b=2"]);
    world.stop().await;
}
