//! The server over a real socket, with the tiny model.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::{Engine, EngineOptions};

struct Server {
    address: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    done: tokio::task::JoinHandle<std::io::Result<()>>,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The events of a stream, less `[DONE]`, which must be the last.
    fn events(&self) -> Vec<Value> {
        let mut frames: Vec<&str> =
            self.body.split_terminator("\n\n").map(|f| f.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(frames.pop(), Some("[DONE]"));
        frames.into_iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
    }
}

impl Server {
    async fn start(options: EngineOptions) -> Server {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
        let engine = Engine::load(&folder, options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let done = tokio::spawn(super::serve(listener, engine, async {
            stopped.await.ok();
        }));
        Server { address, stop: Some(stop), done }
    }

    async fn plain() -> Server {
        Server::start(EngineOptions { seed: Some(1), ..EngineOptions::default() }).await
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.done.await.unwrap().unwrap();
    }

    async fn send(&self, request: String) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(body) } else { body.to_owned() };
        Answer { status, head: head.to_owned(), body }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")).await
    }

    async fn post_text(&self, path: &str, body: &str) -> Answer {
        let head = format!("POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n");
        self.send(format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    async fn chat(&self, changes: Value) -> Answer {
        let body = json!({"messages": [{"role": "user", "content": "Hello"}], "seed": 5});
        self.post("/v1/chat/completions", &merged(body, changes)).await
    }

    async fn text(&self, changes: Value) -> Answer {
        let body = json!({"prompt": [1, 2, 3], "seed": 5});
        self.post("/v1/completions", &merged(body, changes)).await
    }
}

fn merged(mut body: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}

fn keys(value: &Value) -> String {
    value.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "guess", "parameters":
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}])
}

const QUESTION: &str = "Find the secret number from 1 to 7. You have 3 guesses.";

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

#[tokio::test]
async fn a_chat_reply_has_the_form_of_vllm() {
    let server = Server::plain().await;
    let reply = server.chat(json!({"max_tokens": 4, "ignore_eos": true})).await.json();
    assert_eq!(
        keys(&reply),
        "id object created model choices service_tier system_fingerprint usage prompt_logprobs \
         prompt_token_ids prompt_text kv_transfer_params ec_transfer_params metrics"
    );
    let choice = &reply["choices"][0];
    assert_eq!(
        keys(choice),
        "index message logprobs finish_reason stop_reason token_ids routed_experts weight_versions"
    );
    assert_eq!(
        keys(&choice["message"]),
        "role content refusal annotations audio function_call reasoning"
    );
    assert_eq!(
        keys(&reply["usage"]),
        "prompt_tokens total_tokens completion_tokens prompt_tokens_details \
         completion_tokens_details"
    );
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(reply["usage"]["completion_tokens"], 4);
    for null in ["logprobs", "token_ids", "weight_versions", "stop_reason"] {
        assert!(choice[null].is_null(), "{null}");
    }
    assert!(reply["prompt_token_ids"].is_null());
    server.stop().await;
}

#[tokio::test]
async fn what_is_asked_for_is_shown() {
    let server = Server::plain().await;
    let asked = json!({"max_tokens": 5, "ignore_eos": true, "logprobs": true, "top_logprobs": 2,
        "return_token_ids": true, "return_weight_versions": true});
    let reply = server.chat(asked).await.json();
    let choice = &reply["choices"][0];
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 5);
    assert_eq!(keys(&entries[0]), "token logprob bytes top_logprobs");
    assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(entries[0]["top_logprobs"][0]["token"], entries[0]["token"]);
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 5);
    assert_eq!(choice["weight_versions"], json!([{"version": "default", "start": 0, "end": 5}]));
    let prompt = reply["prompt_token_ids"].as_array().unwrap().len();
    assert_eq!(reply["usage"]["prompt_tokens"], prompt);
    let named = json!({"max_tokens": 2, "logprobs": true, "return_token_ids": true,
        "return_tokens_as_token_ids": true});
    let choice = server.chat(named).await.json()["choices"][0].clone();
    let name = format!("token_id:{}", choice["token_ids"][0]);
    assert_eq!(choice["logprobs"]["content"][0]["token"], json!(name));
    server.stop().await;
}

#[tokio::test]
async fn a_stream_says_what_the_whole_reply_says() {
    let server = Server::plain().await;
    for n in [1, 3] {
        let asked = json!({"max_tokens": 12, "n": n, "logprobs": true, "return_token_ids": true});
        let whole = server.chat(asked.clone()).await.json();
        let stream = server.chat(merged(asked, json!({"stream": true}))).await;
        assert!(stream.head.contains("content-type: text/event-stream"));
        let events = stream.events();
        for index in 0..n {
            let mut ids = Vec::new();
            let (mut text, mut logprobs, mut finish) = (String::new(), Vec::new(), Value::Null);
            for event in &events {
                let choice = &event["choices"][0];
                if choice["index"] == index {
                    text += choice["delta"]["content"].as_str().unwrap_or_default();
                    ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
                    let entries = choice["logprobs"]["content"].as_array();
                    logprobs.extend(entries.into_iter().flatten().cloned());
                    finish = choice["finish_reason"].clone();
                }
            }
            let choice = &whole["choices"][index];
            assert_eq!(choice["message"]["content"], json!(text));
            assert_eq!(choice["token_ids"], json!(ids));
            assert_eq!(choice["logprobs"]["content"], json!(logprobs));
            assert_eq!(choice["finish_reason"], finish);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn chunks_have_the_form_of_vllm() {
    let server = Server::plain().await;
    let asked = json!({"max_tokens": 3, "ignore_eos": true, "stream": true, "n": 2});
    let stream = server.chat(asked.clone()).await;
    let frames: Vec<&str> = stream.body.split_terminator("\n\n").collect();
    let id = stream.events()[0]["id"].as_str().unwrap().to_owned();
    let created = stream.events()[0]["created"].clone();
    let head = format!(
        "data: {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":{created},\
         \"model\":\"tiny\",\"choices\":["
    );
    for (index, frame) in frames[..2].iter().enumerate() {
        let role = format!(
            "{head}{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\
             \"logprobs\":null,\"finish_reason\":null}}],\"prompt_token_ids\":null,\
             \"prompt_text\":null}}"
        );
        assert_eq!(*frame, role);
    }
    assert!(frames[2].starts_with(&format!("{head}{{\"index\":0,\"delta\":{{\"content\":\"")));
    let tail = "\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}],\
                \"kv_transfer_params\":null}";
    assert!(frames[2].ends_with(tail), "{}", frames[2]);
    let last = frames[frames.len() - 2];
    assert!(last.contains(
        "\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,\
                           \"weight_versions\":null}],\"system_fingerprint\":\"rolltape-"
    ));
    let usage = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = server.chat(merged(asked, usage)).await.events();
    let last = events.last().unwrap();
    assert_eq!(keys(last), "id object created model choices usage system_fingerprint");
    assert_eq!(keys(&last["usage"]), "prompt_tokens total_tokens completion_tokens");
    assert_eq!(last["usage"]["completion_tokens"], 6);
    assert!(events[3]["usage"]["completion_tokens_details"].is_null());
    assert!(events[events.len() - 2].get("system_fingerprint").is_none());
    server.stop().await;
}

#[tokio::test]
async fn completions_have_the_form_of_vllm() {
    let server = Server::plain().await;
    let asked = json!({"prompt": [[1, 2, 3], [4, 5]], "n": 2, "logprobs": 0, "max_tokens": 3,
        "return_token_ids": true, "ignore_eos": true});
    let reply = server.text(asked.clone()).await.json();
    assert_eq!(
        keys(&reply),
        "id object created model choices service_tier system_fingerprint usage \
         kv_transfer_params ec_transfer_params metrics"
    );
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert_eq!(
        keys(&choices[2]),
        "index text logprobs finish_reason stop_reason token_ids prompt_logprobs \
         prompt_token_ids routed_experts weight_versions"
    );
    assert_eq!(choices[2]["prompt_token_ids"], json!([4, 5]));
    let logprobs = &choices[2]["logprobs"];
    assert_eq!(keys(logprobs), "text_offset token_logprobs tokens top_logprobs");
    for list in ["text_offset", "token_logprobs", "tokens", "top_logprobs"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 3, "{list}");
    }
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 1);
    assert_eq!(reply["usage"]["prompt_tokens"], 5);
    let events = server.text(merged(asked, json!({"stream": true}))).await.events();
    assert_eq!(keys(&events[0]), "id object created model choices kv_transfer_params");
    assert_eq!(
        keys(&events[0]["choices"][0]),
        "index text logprobs finish_reason stop_reason prompt_token_ids token_ids weight_versions"
    );
    for choice in choices {
        let own = |event: &&Value| event["choices"][0]["index"] == choice["index"];
        let own: Vec<&Value> = events.iter().filter(own).map(|e| &e["choices"][0]).collect();
        let ids: Vec<Value> =
            own.iter().flat_map(|c| c["token_ids"].as_array().unwrap().clone()).collect();
        assert_eq!(json!(ids), choice["token_ids"]);
        assert_eq!(own[0]["prompt_token_ids"], choice["prompt_token_ids"]);
        assert!(own[1]["prompt_token_ids"].is_null());
        let text: String = own.iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(json!(text), choice["text"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn text_and_ids_are_the_same_prompt() {
    let server = Server::plain().await;
    let text = server.text(json!({"prompt": "Hello", "return_token_ids": true})).await.json();
    let ids = text["choices"][0]["prompt_token_ids"].clone();
    let again = server.text(json!({"prompt": ids})).await.json();
    assert_eq!(again["choices"][0]["text"], text["choices"][0]["text"]);
    assert!(text["usage"]["completion_tokens"].as_u64().unwrap() <= 16);
    let list = server.text(json!({"prompt": ["Hello", "Hello"], "n": 2})).await.json();
    assert_eq!(list["choices"][3]["index"], 3);
    assert_eq!(list["choices"][0]["text"], list["choices"][2]["text"]);
    server.stop().await;
}

#[tokio::test]
async fn tool_calls_are_found_whole_and_in_a_stream() {
    let server = Server::plain().await;
    let asked = json!({"messages": [{"role": "user", "content": QUESTION}], "tools": tools(),
        "temperature": 0});
    let whole = server.chat(asked.clone()).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    assert!(choice["message"]["content"].is_null());
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(keys(call), "id type function");
    assert_eq!(call["function"]["name"], "guess");
    assert!(call["id"].as_str().unwrap().starts_with("chatcmpl-tool-"));
    let events = server.chat(merged(asked.clone(), json!({"stream": true}))).await.events();
    // The role, the call, and the end; text that is held back gives no chunk.
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(deltas.len(), 3, "{deltas:?}");
    assert_eq!(keys(&deltas[1]["tool_calls"][0]), "id type index function");
    assert_eq!(deltas[1]["tool_calls"][0]["function"], call["function"]);
    assert_eq!(
        (deltas[2], &events[2]["choices"][0]["finish_reason"]),
        (&json!({}), &json!("tool_calls"))
    );
    let shown = json!({"stream": true, "return_token_ids": true});
    let events = server.chat(merged(asked.clone(), shown)).await.events();
    assert!(events.len() > 5);
    assert_eq!(events[1]["choices"][0]["delta"], json!({}));
    let none = server.chat(merged(asked, json!({"tool_choice": "none"}))).await.json();
    let content = none["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.contains("<tool_call>"), "{content}");
    server.stop().await;
}

#[tokio::test]
async fn a_stop_text_cuts_the_reply_and_is_named() {
    let server = Server::plain().await;
    let long = json!({"max_tokens": 30, "ignore_eos": true});
    let text = server.text(long.clone()).await.json()["choices"][0]["text"].clone();
    let text = text.as_str().unwrap();
    let letters: Vec<(usize, char)> = text.char_indices().collect();
    let (from, to) = (letters[letters.len() / 2].0, letters[letters.len() / 2 + 3].0);
    let stop = &text[from..to];
    let asked = merged(long, json!({"stop": [stop], "return_token_ids": true}));
    let choice = server.text(asked.clone()).await.json()["choices"][0].clone();
    assert_eq!(choice["text"], text[..text.find(stop).unwrap()]);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
    let events = server.text(merged(asked.clone(), json!({"stream": true}))).await.events();
    let streamed: String =
        events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(choice["text"], streamed);
    let whole = server.text(merged(asked, json!({"include_stop_str_in_output": true}))).await;
    assert!(whole.json()["choices"][0]["text"].as_str().unwrap().ends_with(stop));
    server.stop().await;
}

#[tokio::test]
async fn a_seed_gives_the_same_tokens_whatever_else_runs() {
    let server = Server::plain().await;
    let asked = json!({"max_tokens": 16, "ignore_eos": true, "return_token_ids": true,
        "logprobs": 3});
    let alone = server.text(asked.clone()).await.json()["choices"].clone();
    let crowd = (0..8).map(|i| server.text(json!({"prompt": [i, 7], "max_tokens": 40, "seed": i})));
    let crowd = futures_join(crowd.collect());
    let (again, _) = tokio::join!(server.text(asked.clone()), crowd);
    assert_eq!(again.json()["choices"], alone);
    // Children of a seeded call have the seeds that follow.
    let two = server.text(merged(asked.clone(), json!({"n": 2}))).await.json();
    let next = server.text(merged(asked, json!({"seed": 6}))).await.json();
    assert_eq!(two["choices"][0]["token_ids"], alone[0]["token_ids"]);
    assert_eq!(two["choices"][1]["token_ids"], next["choices"][0]["token_ids"]);
    server.stop().await;
}

async fn futures_join<F: Future<Output = Answer>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[tokio::test]
async fn impossible_values_are_refused_by_name() {
    let server = Server::plain().await;
    let cases = [
        ("n", json!({"n": 0})),
        ("n", json!({"n": 2, "temperature": 0})),
        ("temperature", json!({"temperature": -0.1})),
        ("temperature", json!({"temperature": "warm"})),
        ("top_p", json!({"top_p": 0})),
        ("top_p", json!({"top_p": 1.01})),
        ("top_k", json!({"top_k": -2})),
        ("min_p", json!({"min_p": 1.5})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("max_tokens", json!({"max_tokens": 5000})),
        ("stop", json!({"stop": [1]})),
        ("stop", json!({"stop": ""})),
        ("seed", json!({"seed": "x"})),
        ("stream", json!({"stream": "yes"})),
        ("stream_options", json!({"stream_options": {"include_usage": true}})),
        ("echo", json!({"echo": true})),
        ("frequency_penalty", json!({"frequency_penalty": 0.5})),
        ("response_format", json!({"response_format": {"type": "json_object"}})),
    ];
    for (param, changes) in cases {
        for answer in [server.chat(changes.clone()).await, server.text(changes.clone()).await] {
            let error = &answer.json()["error"];
            assert_eq!(answer.status, 400, "{changes}");
            assert_eq!(keys(error), "message type param code");
            assert_eq!(
                (&error["param"], &error["type"], &error["code"]),
                (&json!(param), &json!("BadRequestError"), &json!(400)),
                "{changes}"
            );
        }
    }
    let chat = [
        ("top_logprobs", json!({"top_logprobs": 2})),
        ("top_logprobs", json!({"top_logprobs": 21, "logprobs": true})),
        ("tool_choice", json!({"tool_choice": "auto"})),
        ("tool_choice", json!({"tool_choice": "required", "tools": tools()})),
        ("tools", json!({"tools": []})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": [{"role": "user", "content": 3}]})),
    ];
    for (param, changes) in chat {
        let answer = server.chat(changes.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
    let text = [
        ("prompt", json!({"prompt": [393]})),
        ("prompt", json!({"prompt": [-1]})),
        ("prompt", json!({"prompt": []})),
        ("prompt", json!({"prompt": null})),
        ("prompt", json!({"prompt": vec![1; 1024]})),
        ("logprobs", json!({"logprobs": 21})),
    ];
    for (param, changes) in text {
        let answer = server.text(changes.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
    server.stop().await;
}

#[tokio::test]
async fn other_refusals_have_their_own_status() {
    let server = Server::plain().await;
    let other = server.chat(json!({"model": "gpt"})).await;
    assert_eq!((other.status, &other.json()["error"]["type"]), (404, &json!("NotFoundError")));
    assert_eq!(server.chat(json!({"model": "tiny", "unknown": 1})).await.status, 200);
    assert_eq!(server.post_text("/v1/completions", "{").await.status, 400);
    assert_eq!(server.post_text("/v1/completions", "[]").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn a_full_queue_is_429_and_a_lost_client_frees_its_place() {
    let options = EngineOptions { max_num_seqs: 1, max_queue: 1, ..EngineOptions::default() };
    let server = Server::start(options).await;
    let long = json!({"prompt": [1], "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let body = long.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut holders = Vec::new();
    // Holders never read, and leave; the one that runs is replaced by the next.
    let mut refused = None;
    for _ in 0..200 {
        let mut holder = TcpStream::connect(server.address).await.unwrap();
        holder.write_all(head.as_bytes()).await.unwrap();
        holders.push(holder);
        let answer = server.text(json!({"max_tokens": 1})).await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.unwrap();
    assert!(refused.head.contains("retry-after: 1"));
    assert_eq!(refused.json()["error"]["code"], 429);
    drop(holders);
    for _ in 0..200 {
        if server.text(json!({"max_tokens": 1})).await.status == 200 {
            return server.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the place was not freed");
}
