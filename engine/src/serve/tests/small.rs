//! The routes beside generation.

use super::*;

#[tokio::test]
async fn the_small_routes_answer() {
    let server = Server::plain().await;
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let models = server.get("/v1/models").await;
    assert!(models.head.contains("server: rolltape"));
    let card = &models.json()["data"][0];
    assert_eq!(keys(card), "id object created owned_by root parent max_model_len");
    assert_eq!((&card["id"], &card["max_model_len"]), (&json!("tiny"), &json!(1024)));
    assert_eq!(server.get("/v1/nothing").await.status, 404);
    assert_eq!(server.get("/v1/completions").await.status, 405);
    server.stop().await;
}

/// Calls every operation of the document with an empty object. Most refuse it, but none is absent.
#[tokio::test]
async fn every_route_of_the_document_is_answered() {
    let server = Server::plain().await;
    let document = server.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, operations) in document["paths"].as_object().unwrap() {
        let path = path.replace("{name}", "tiny");
        for method in operations.as_object().unwrap().keys() {
            let body = if method == "get" { "" } else { "{}" };
            let head = format!("{} {path} HTTP/1.1\r\nhost: t", method.to_ascii_uppercase());
            let length = format!("content-length: {}", body.len());
            let request = format!("{head}\r\nconnection: close\r\n{length}\r\n\r\n{body}");
            let reply = ends(&path, server.send(request)).await;
            // No response of this id is kept, which is an answer of the route.
            let is_answered = reply.body.contains("Response with id 'tiny' not found");
            let is_absent = [404, 405].contains(&reply.status) && !is_answered;
            assert!(!is_absent, "{method} {path}: {}", reply.status);
        }
        let request = format!("DELETE {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
        assert_eq!(server.send(request).await.status, 405, "DELETE {path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_model_is_found_by_its_name() {
    let options = EngineOptions {
        served_model_name: Some("org/tiny".to_owned()),
        ..EngineOptions::default()
    };
    let server = Server::start(options).await;
    let card = server.get("/v1/models/org/tiny").await.json();
    assert_eq!(card, server.get("/v1/models").await.json()["data"][0]);
    assert_eq!(server.get("/v1/models/tiny").await.status, 404);
    assert_eq!(server.get("/ping").await.status, 200);
    assert_eq!(server.post("/ping", &json!({})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn text_becomes_ids_and_ids_become_text() {
    let server = Server::plain().await;
    let asked = json!({"prompt": "Hello, ü", "return_token_strs": true});
    let found = server.post("/tokenize", &asked).await.json();
    assert_eq!(keys(&found), "count max_model_len tokens token_strs");
    let count = found["tokens"].as_array().unwrap().len();
    assert_eq!((&found["count"], &found["max_model_len"]), (&json!(count), &json!(1024)));
    assert_eq!(found["token_strs"].as_array().unwrap().len(), count);
    let back = server.post("/detokenize", &json!({"tokens": found["tokens"]})).await.json();
    assert_eq!(back, json!({"prompt": "Hello, ü"}));
    // Messages become the prompt that chat makes of them.
    let messages = json!({"messages": [{"role": "user", "content": "Hello"}], "tools": tools()});
    let found = server.post("/tokenize", &messages).await.json();
    let shown = merged(messages, json!({"return_token_ids": true, "max_tokens": 1}));
    let reply = server.post("/v1/chat/completions", &shown).await.json();
    assert_eq!(found["tokens"], reply["prompt_token_ids"]);
    assert!(found["token_strs"].is_null());
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [393]}), "tokens"),
    ] {
        let refused = server.post(path, &body).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    server.stop().await;
}

#[tokio::test]
async fn the_counts_are_those_of_what_was_done() {
    let server = Server::plain().await;
    let value = |page: &str, name: &str| {
        let line = page.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {page}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let asked = json!({"prompt": [1, 2, 3, 4], "n": 3, "max_tokens": 5, "ignore_eos": true});
    server.text(asked).await;
    let page = server.get("/metrics").await;
    assert!(page.head.contains("content-type: text/plain; version=0.0.4"));
    assert_eq!(value(&page.body, "vllm:generation_tokens_total{"), 15.0);
    assert_eq!(value(&page.body, "vllm:prompt_tokens_total{"), 12.0);
    let length = "vllm:request_success_total{engine=\"0\",model_name=\"tiny\",\
                  finished_reason=\"length\"}";
    assert_eq!(value(&page.body, length), 3.0);
    for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"] {
        assert!(value(&page.body, &format!("vllm:{name}{{")) >= 0.0);
        assert!(page.body.contains(&format!("# TYPE vllm:{name} gauge")));
    }
    server.stop().await;
}

#[tokio::test]
async fn the_tokenizer_describes_itself() {
    let server = Server::plain().await;
    let info = server.get("/tokenizer_info").await.json();
    assert!(info["chat_template"].as_str().unwrap().contains("<|im_start|>"));
    assert!(info["tokenizer_class"].is_string());
    server.stop().await;
}

#[tokio::test]
async fn pages_of_allowed_origins_may_call() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let known = ["https://a.example", "localhost"].map(str::to_owned);
    let access = Access::open().with_origins(known.to_vec());
    let server = Server::with_access(&folder, EngineOptions::default(), access).await;
    let ask = |origin: &str| {
        format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
             origin: {origin}\r\naccess-control-request-method: POST\r\n\
             access-control-request-headers: authorization,content-type\r\n\r\n"
        )
    };
    let allowed = server.send(ask("https://a.example")).await;
    assert_eq!(allowed.status, 200);
    for header in [
        "access-control-allow-origin: https://a.example",
        "access-control-allow-headers: authorization,content-type",
        "access-control-allow-methods: GET, POST, PUT, OPTIONS",
        "vary: origin",
    ] {
        assert!(allowed.head.contains(header), "{}", allowed.head);
    }
    for other in ["https://b.example", "http://localhost.b.example", "http://notlocalhost"] {
        let other = server.send(ask(other)).await;
        assert_eq!(other.status, 405);
        assert!(!other.head.contains("access-control"), "{}", other.head);
    }
    for local in ["http://localhost", "http://127.0.0.1:3000", "http://[::1]:3000"] {
        let header = format!("access-control-allow-origin: {local}");
        assert!(server.send(ask(local)).await.head.contains(&header), "{local}");
    }

    // The reply is readable, and what changes the engine is still refused.
    let call = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 2\r\n\
             origin: https://a.example\r\n\r\n{{}}"
        )
    };
    let refused = server.send(call("/v1/chat/completions")).await;
    assert!(refused.head.contains("access-control-allow-origin: https://a.example"));
    assert_eq!(server.send(call("/pause")).await.status, 403);
    server.stop().await;
}

#[tokio::test]
async fn http_2_is_spoken_too() {
    let server = Server::plain().await;
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let driving = tokio::spawn(connection);
    let calls = (0..3).map(|_| {
        let request = hyper::Request::get(format!("http://{}/version", server.address));
        sender.send_request(request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap())
    });
    for reply in calls.collect::<Vec<_>>() {
        assert_eq!(reply.await.unwrap().status(), 200);
    }
    drop(sender);
    drop(driving.await);
    server.stop().await;
}
