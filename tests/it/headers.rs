//! Headers, methods and paths, as they reach the other side.

use bytes::Bytes;
use hyper::Response;
use hyper::header::HeaderValue;
use kit::{
    Agent, Answer, Manner, Reply, Server, Step, Upstream, World, ask, connect, exchange, post,
    sending,
};
use proxy::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The lines of a head without the first one and without those that each hop sets itself.
fn lines(head: &str) -> Vec<&str> {
    let own = ["host", "content-length", "date", "transfer-encoding"];
    let name = |line: &str| line.split(':').next().unwrap_or("").to_ascii_lowercase();
    head.lines().skip(1).filter(|line| !line.is_empty() && !own.contains(&&*name(line))).collect()
}

/// Sends bytes as they are and reads to the end of the connection.
async fn raw(world: &World, bytes: &str) -> String {
    let mut socket = connect(world.data).await;
    socket.write_all(bytes.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let _ = socket.read_to_end(&mut read).await;
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn request_headers_keep_spelling_and_order() {
    let upstream = Upstream::start("openai", |_| vec![Step::reply("200 OK", "a/b", b"{}")]).await;
    let world = World::start(upstream.address).await;

    for path in ["/v1/messages", "/v1/score"] {
        let sent = format!(
            "POST {path}?beta=true HTTP/1.1\r\nHost: proxy\r\nX-ZEBRA: 1\r\nx-Episode-ID: a\r\n\
             anthropic-beta: one\r\nX-Attempt: 0\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\n\
             X-Group-Id: g\r\nx-stainless-OS: Linux\r\nX-Task-Id: t\r\nX-Episode-Tag: a=1\r\n\
             X-Episode-Tag: b=2\r\nKeep-Alive: timeout=5\r\nProxy-Authorization: Basic eDp5\r\n\
             Proxy-Connection: x\r\nTE: gzip\r\nUpgrade: h2c\r\nopenai-Beta: r=v2\r\n\
             ANTHROPIC-Beta: two\r\nUser-Agent: x/1 (odd)\r\nx-empty:\r\nX-Last: \t2 \r\n\
             Content-Length: 2\r\n\r\n{{}}"
        );
        raw(&world, &sent).await;
        let seen = upstream.seen().pop().unwrap();
        let kept = [
            "X-ZEBRA: 1",
            "anthropic-beta: one",
            "ANTHROPIC-Beta: two",
            "x-stainless-OS: Linux",
            "openai-Beta: r=v2",
            "User-Agent: x/1 (odd)",
            "x-empty:",
            "X-Last: 2",
        ];
        assert_eq!(lines(&seen.head), kept, "{path}");
        assert!(seen.head.to_ascii_lowercase().contains(&format!("host: {}", upstream.address)));
        assert_eq!(seen.path, format!("{path}?beta=true"));
    }
    world.stop().await;
}

#[tokio::test]
async fn reply_headers_keep_spelling_and_order() {
    let upstream = Upstream::start("openai", |_| {
        let reply = "HTTP/1.1 429 Slow Down\r\nX-Request-ID: r\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\
                     Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nKeep-Alive: timeout=9\r\n\
                     retry-AFTER: 7\r\nx-should-retry: true\r\nContent-Type: text/html\r\n\
                     Proxy-Authenticate: Basic\r\nWWW-Authenticate: Bearer\r\nX-Last: 2\r\n\
                     Content-Length: 4\r\n\r\nslow";
        vec![Step::Send(reply.as_bytes().to_vec())]
    })
    .await;
    let world = World::start(upstream.address).await;

    for path in ["/v1/chat/completions", "/v1/score"] {
        let reply = post(world.data, path, "{}").await;
        let kept = [
            "X-Request-ID: r",
            "Set-Cookie: a=1",
            "Set-Cookie: b=2",
            "retry-AFTER: 7",
            "x-should-retry: true",
            "Content-Type: text/html",
            "WWW-Authenticate: Bearer",
            "X-Last: 2",
        ];
        let kept_open: Vec<_> =
            lines(&reply.head).into_iter().filter(|line| !line.ends_with(": close")).collect();
        assert_eq!(kept_open, kept, "{path}");
        assert!(reply.head.starts_with("HTTP/1.1 429 Slow Down\r\n"), "{}", reply.head);
        assert_eq!(reply.text(), "slow");
    }
    world.stop().await;
}

#[tokio::test]
async fn paths_are_joined_without_loss() {
    let upstream =
        Upstream::start("openai", |seen| vec![Step::reply("200 OK", "a/b", seen.path.as_bytes())])
            .await;
    let plain = World::start(upstream.address).await;
    let mut config =
        proxy::Config::new(format!("http://{}/deep/llm/v1/", upstream.address).parse().unwrap());
    config.dialect = Some(wire::Dialect::OpenAi);
    let deep = World::start_with(config).await;

    for (asked, path) in [
        ("/v1/chat/completions?beta=true", "/v1/chat/completions?beta=true"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/%63ompletions/", "/v1/chat/completions/"),
        ("/e/a//v1/responses/", "/v1/responses/"),
        ("/e/a/a/3/v1/messages?beta=true&x=%2F%20", "/v1/messages?beta=true&x=%2F%20"),
        ("/e/a/chat/completions", "/chat/completions"),
    ] {
        assert_eq!(post(plain.data, asked, "{}").await.text(), path, "{asked}");
        // A client with this base would not leave the version out.
        let version = if path.starts_with("/v1/") { "" } else { "/v1" };
        let under = format!("/deep/llm{version}{path}");
        assert_eq!(post(deep.data, asked, "{}").await.text(), under, "{asked}");
    }
    for (asked, path) in [
        ("/v1/models/org%2Fname?client_version=1", "/v1/models/org%2Fname?client_version=1"),
        ("/e/a?x=1", "/"),
        ("/?", "/?"),
    ] {
        assert_eq!(exchange(plain.data, ("GET", asked), &[], b"").await.text(), path, "{asked}");
        let under = exchange(deep.data, ("GET", asked), &[], b"").await;
        assert_eq!(under.text(), format!("/deep/llm{path}"), "{asked}");
    }

    let routes: Vec<_> = plain.calls().await.iter().map(|call| call.begun.route).collect();
    assert_eq!(routes.iter().filter(|route| route.generates()).count(), 6, "{routes:?}");
    plain.stop().await;
    deep.stop().await;
}

#[tokio::test]
async fn the_methods_of_agents_pass_and_no_others() {
    let upstream = Upstream::start("openai", |seen| {
        let method = seen.head.split(' ').next().unwrap_or("").to_owned();
        let sized = "HTTP/1.1 200 OK\r\nX-Length: kept\r\nContent-Length: 1234\r\n\r\n";
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let preflight = "HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: https://a.b\r\n\
                         Access-Control-Allow-Headers: authorization, x-episode-id\r\n\
                         Vary: Origin\r\n\r\n";
        let reply = match (method.as_str(), seen.path.as_str()) {
            ("HEAD", "/health") => chunked,
            ("HEAD", _) => sized,
            ("OPTIONS", _) => preflight,
            _ => return vec![Step::reply("200 OK", "text/plain", method.as_bytes())],
        };
        vec![Step::Send(reply.as_bytes().to_vec())]
    })
    .await;
    let world = World::start(upstream.address).await;

    let ask = |method, path| exchange(world.data, (method, path), &[], b"");
    for path in ["/", "/v1/models/m"] {
        let head: Reply = ask("HEAD", path).await;
        assert_eq!((head.status, head.header("content-length")), (200, Some("1234")), "{path}");
        assert!(head.body.is_empty());
    }

    let head = ask("HEAD", "/health").await;
    assert_eq!((head.status, head.header("content-length")), (200, None));
    assert_eq!(ask("PUT", "/generate").await.status, 403, "a hosted server has no such route");
    assert_eq!(ask("POST", "/v1/score").await.text(), "POST");
    for method in ["GET", "HEAD", "PUT", "PATCH", "DELETE", "PROPFIND", "QUERY"] {
        assert_eq!(ask(method, "/v1/chat/completions").await.status, 403, "{method}");
    }

    let headers = [
        ("origin", "https://a.b"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,x-episode-id"),
    ];
    let preflight = exchange(world.data, ("OPTIONS", "/v1/chat/completions"), &headers, b"").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://a.b"));
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        Some("authorization, x-episode-id")
    );
    assert_eq!(preflight.header("vary"), Some("Origin"));
    let seen = upstream.seen().pop().unwrap();
    assert!(seen.head.starts_with("OPTIONS /v1/chat/completions "));
    assert!(seen.head.contains("access-control-request-headers: authorization,x-episode-id"));
    assert!(world.calls().await.iter().all(|call| call.ended.is_some()));
    world.stop().await;
}

/// Returns true if any file of the store holds `secret`.
fn is_stored(world: &World, secret: &str) -> bool {
    let folder = world.store().parent().unwrap().to_owned();
    let files = std::fs::read_dir(folder).unwrap();
    files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .any(|bytes| bytes.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

#[tokio::test]
async fn credentials_pass_and_are_not_stored() {
    let upstream = Upstream::start("openai", |seen| match seen.path.as_str() {
        "/v1/rerank" => vec![Step::Cut],
        _ => vec![Step::reply("401 Unauthorized", "application/json", b"{\"error\":\"no\"}")],
    })
    .await;
    let world = World::start(upstream.address).await;

    let secrets = ["sk-agent-7f3a", "sk-ant-9c1d", "cookie-5e2b", "cHJveHk6c2VjcmV0"];
    let headers = [
        ("authorization", "Bearer sk-agent-7f3a"),
        ("x-api-key", "sk-ant-9c1d"),
        ("cookie", "session=cookie-5e2b"),
        ("proxy-authorization", "Basic cHJveHk6c2VjcmV0"),
    ];

    for path in ["/v1/chat/completions", "/v1/messages", "/v1/score", "/v1/rerank"] {
        exchange(world.data, ("POST", path), &headers, b"{\"seen\":\"body-is-stored\"}").await;
        let head = upstream.seen().pop().unwrap().head;
        assert_eq!(secrets.map(|secret| head.contains(secret)), [true, true, true, false]);
    }

    // Too bad to be tagged, too: its error must not be kept with what it was sent.
    let two = [&headers[..], &[("x-episode-id", "b")]].concat();
    assert_eq!(exchange(world.data, ("POST", "/e/a/v1/score"), &two, b"").await.status, 400);
    assert!(is_stored(&world, "body-is-stored"), "the search finds what is there");

    for secret in secrets {
        assert!(!is_stored(&world, secret), "{secret}");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_signed_key_names_its_episode_and_goes_no_further() {
    let upstream = Upstream::start("openai", |_| vec![Step::reply("200 OK", "a/b", b"{}")]).await;
    let world = World::start(upstream.address).await;
    let minted = post(world.control, "/episodes/run-9/key", "{}").await;
    let key = minted.json()["api_key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("rt-"), "{}", minted.text());
    let bearer = format!("Bearer {key}");
    for (name, value) in [("Authorization", bearer.as_str()), ("x-api-key", key.as_str())] {
        let reply = exchange(world.data, ("POST", "/v1/messages"), &[(name, value)], b"{}").await;
        assert_eq!(reply.status, 200);
        let head = upstream.seen().pop().unwrap().head;
        assert!(!head.contains("rt-") && !head.to_ascii_lowercase().contains("authorization"));
    }
    let calls = world.calls().await;
    assert!(calls.iter().all(|call| call.begun.tag.episode.as_str() == "run-9"), "{calls:?}");
    assert!(is_stored(&world, "run-9") && !is_stored(&world, &key));
    world.stop().await;
}

#[tokio::test]
async fn the_upstreams_key_takes_the_place_of_the_agents() {
    let upstream = Upstream::start("openai", |_| vec![Step::reply("200 OK", "a/b", b"{}")]).await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.upstream_key = Some("sk-own-4b8e".to_owned());
    config.allowed_paths = vec!["GET /v1/score".parse().unwrap()];
    config.allowed_origins = vec!["http://test".to_owned()];
    let world = World::start_with(config).await;
    let bearer = ("authorization", "Bearer sk-agent-7f3a");
    let other = ("x-api-key", "sk-agent-7f3a");
    for (method, headers) in [
        ("POST", &[bearer][..]),
        ("POST", &[other]),
        ("POST", &[bearer, other]),
        ("POST", &[]),
        ("GET", &[bearer]),
    ] {
        exchange(world.data, (method, "/v1/score"), headers, b"").await;
        let head = upstream.seen().pop().unwrap().head;
        assert!(head.contains("sk-own-4b8e"), "{head}");
        assert!(!head.contains("sk-agent-7f3a"), "{head}");
    }
    assert!(!is_stored(&world, "sk-own-4b8e") && !is_stored(&world, "sk-agent-7f3a"));
    world.stop().await;
}

/// A server of HTTP/1.1 or HTTP/2, with a world in front of it.
async fn mannered(http2: bool, answer: fn(&kit::Heard) -> Answer) -> (Server, World) {
    let server = Server::start(Manner { http2, tls: None }, answer).await;
    let mut config = Config::new(format!("http://{}", server.address).parse().unwrap());
    (config.dialect, config.upstream_http2) = (Some(wire::Dialect::OpenAi), http2);
    (server, World::start_with(config).await)
}

#[tokio::test]
async fn heads_are_as_long_and_as_many_over_every_http() {
    for http2 in [false, true] {
        // As many headers as the request has, and as long.
        let (server, world) = mannered(http2, |heard| {
            let mut reply = Response::builder().header("content-type", "application/json");
            for (name, value) in &heard.headers {
                if name.as_str().starts_with("x-n-") {
                    reply = reply.header(name, value);
                }
            }
            Answer::Whole(reply.body(Bytes::from_static(b"{}")).unwrap())
        })
        .await;
        for (count, size) in
            [(1, 17_000), (1, 60_000), (30, 1_000), (110, 100), (500, 40), (1_000, 1)]
        {
            for mut agent in [Agent::http1(world.data).await, Agent::http2(world.data).await] {
                for path in ["/e/a/v1/chat/completions", "/e/a/v1/score"] {
                    let mut request = ask("POST", path);
                    for n in 0..count {
                        request = request.header(format!("x-n-{n}"), "v".repeat(size));
                    }
                    let got = agent.call(request.body(sending("{}")).unwrap()).await;
                    let shown = got.headers.keys().filter(|name| name.as_str().starts_with("x-n-"));
                    let case =
                        format!("{count} of {size}, upstream {http2}, agent {}", agent.is_http2());
                    assert_eq!((got.status, shown.count()), (200, count), "{case}");
                    let heard = server.heard().pop().unwrap();
                    assert_eq!(heard.headers[format!("x-n-{}", count - 1)].len(), size, "{case}");
                }
            }
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused_over_every_http() {
    let (_server, world) =
        mannered(false, |_| Answer::Whole(Response::new(Bytes::from_static(b"{}")))).await;
    for (count, size) in [(1, 110_000), (1_100, 70)] {
        for mut agent in [Agent::http1(world.data).await, Agent::http2(world.data).await] {
            let mut request = ask("POST", "/e/a/v1/score");
            for n in 0..count {
                request = request.header(format!("x-n-{n}"), "v".repeat(size));
            }
            let got = agent.call(request.body(sending("")).unwrap()).await;
            assert_eq!(got.status, 431, "{count} of {size}, http2 {}", agent.is_http2());
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_space_before_a_colon_is_refused_or_removed() {
    let upstream = Upstream::start("openai", |_| {
        let reply = "HTTP/1.1 200 OK\r\nX-Spaced : 1\r\nContent-Type\t: a/b\r\nX-Last: 2\r\n\
                     Content-Length : 2\r\n\r\n{}";
        vec![Step::Send(reply.as_bytes().to_vec())]
    })
    .await;
    let world = World::start(upstream.address).await;
    for path in ["/v1/chat/completions", "/v1/score"] {
        let reply = post(world.data, path, "{}").await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "{}"), "{path}");
        let kept: Vec<_> =
            lines(&reply.head).into_iter().filter(|line| !line.ends_with(": close")).collect();
        assert_eq!(kept, ["X-Spaced: 1", "Content-Type: a/b", "X-Last: 2"], "{path}");

        let sent = format!(
            "POST {path} HTTP/1.1\r\nHost: proxy\r\nX-Spaced : 1\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        let refused = raw(&world, &sent).await;
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    }
    assert_eq!(upstream.seen().len(), 2, "what was refused went no further");
    world.stop().await;
}

#[tokio::test]
async fn bytes_beyond_ascii_pass_and_name_a_session() {
    for http2 in [false, true] {
        let (server, world) = mannered(http2, |_| {
            let place = HeaderValue::from_bytes("Z\u{fc}rich".as_bytes()).unwrap();
            let old = HeaderValue::from_bytes(b"caf\xe9").unwrap();
            let reply = Response::builder().header("x-place", place).header("x-old", old);
            Answer::Whole(reply.body(Bytes::from_static(b"{}")).unwrap())
        })
        .await;
        for session in ["sitzung-\u{fc}".as_bytes(), b"caf\xe9"] {
            for mut agent in [Agent::http1(world.data).await, Agent::http2(world.data).await] {
                for question in ["a", "b"] {
                    let value = HeaderValue::from_bytes(session).unwrap();
                    let body =
                        format!(r#"{{"messages":[{{"role":"user","content":"{question}"}}]}}"#);
                    let request = ask("POST", "/v1/chat/completions").header("x-session-id", value);
                    let got = agent.call(request.body(sending(body)).unwrap()).await;
                    assert_eq!(got.headers["x-place"].as_bytes(), "Z\u{fc}rich".as_bytes());
                    assert_eq!(got.headers["x-old"].as_bytes(), b"caf\xe9");
                    let heard = server.heard().pop().unwrap();
                    assert_eq!(heard.headers["x-session-id"].as_bytes(), session);
                }
            }
        }
        let calls = world.calls().await;
        let of = |episode: &str, session: &str| {
            let begun = calls.iter().map(|call| &call.begun);
            let named = begun.filter(|begun| begun.lineage.session.as_deref() == Some(session));
            named.filter(|begun| begun.tag.episode.as_str() == episode).count()
        };
        assert_eq!(of("sitzung-_c3_bc", "sitzung-\u{fc}"), 4);
        assert_eq!(of("caf_c3_a9", "caf\u{e9}"), 4);
        world.stop().await;
    }
}
