//! `/v1/responses` and `/v1/messages` in the forms that agents use.

use super::*;

fn question(path: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    match path {
        "/v1/messages" => json!({"model": "tiny", "max_tokens": 40, "temperature": 0,
            "messages": [{"role": "user", "content": QUESTION}],
            "tools": [{"name": "guess", "input_schema": schema}]}),
        _ => json!({"model": "tiny", "max_output_tokens": 40, "temperature": 0, "input": QUESTION,
            "tools": [{"type": "function", "name": "guess", "parameters": schema}]}),
    }
}

/// The data of every event, each of which has its type for a name.
pub(super) fn named(answer: &Answer) -> Vec<Value> {
    let frames = answer.body.split_terminator("\n\n");
    let event = |frame: &str| {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    frames.map(event).collect()
}

#[tokio::test]
async fn messages_call_tools_whole_and_in_a_stream() {
    let server = Server::plain().await;
    let whole = server.post("/v1/messages", &question("/v1/messages")).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("tool_use")));
    let call = &whole["content"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("guess")));
    assert!(call["input"]["n"].is_number(), "{call}");
    let asked = merged(question("/v1/messages"), json!({"stream": true}));
    let stream = server.post("/v1/messages?beta=true", &asked).await;
    assert!(stream.head.contains("content-type: text/event-stream"));
    let events = named(&stream);
    let start = &events[0]["message"];
    assert_eq!(start["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    let keys = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let counts = keys.map(|key| start["usage"][key].as_u64().unwrap());
    assert!(counts.iter().sum::<u64>() > 10);
    let pieces = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    let input: String = pieces.collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), call["input"]);
    let (last, before) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!(last["type"], "message_stop");
    assert_eq!(before["delta"]["stop_reason"], "tool_use");
    assert_eq!(before["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    server.stop().await;
}

#[tokio::test]
async fn messages_may_have_a_budget_for_thoughts() {
    let server = Server::plain().await;
    for stream in [false, true] {
        let thinking = json!({"type": "enabled", "budget_tokens": 31999});
        let asked =
            merged(question("/v1/messages"), json!({"thinking": thinking, "stream": stream}));
        let answer = server.post("/v1/messages", &asked).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    server.stop().await;
}

#[tokio::test]
async fn messages_go_on_from_tool_results_with_the_sampled_tokens() {
    let server = Server::plain().await;
    let first = server.post("/v1/messages", &question("/v1/messages")).await.json();
    let result = json!([{"type": "tool_result", "tool_use_id": first["content"][0]["id"],
        "content": "higher"}]);
    let history = json!({"messages": [{"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first["content"]}, {"role": "user", "content": result}]});
    let asked = merged(question("/v1/messages"), history);
    let second = server.post("/v1/messages", &asked).await.json();
    assert_eq!(second["content"][0]["type"], "tool_use", "{second}");
    let counted = server.post("/v1/messages/count_tokens", &asked).await;
    assert_eq!(counted.status, 200, "{}", counted.body);
    let usage = &second["usage"];
    let cached = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
    let input = usage["input_tokens"].as_u64().unwrap() + cached;
    assert_eq!(counted.json()["input_tokens"], input);
    server.stop().await;
}

#[tokio::test]
async fn responses_call_tools_whole_and_in_a_stream() {
    let server = Server::plain().await;
    let whole = server.post("/v1/responses", &question("/v1/responses")).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let call = &whole["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("guess")));
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
    let asked = merged(question("/v1/responses"), json!({"stream": true}));
    let events = named(&server.post("/v1/responses", &asked).await);
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let done = &last["response"]["output"][0];
    assert_eq!((&done["name"], &done["arguments"]), (&call["name"], &call["arguments"]));
    let pieces = events.iter().filter(|e| e["type"] == "response.function_call_arguments.delta");
    let pieces: Vec<&str> = pieces.map(|event| event["delta"].as_str().unwrap()).collect();
    assert!(!pieces.is_empty());
    assert_eq!(json!(pieces.concat()), call["arguments"]);
    assert_eq!(last["response"]["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    server.stop().await;
}

#[tokio::test]
async fn refusals_have_the_form_of_their_wire() {
    let server = Server::plain().await;
    let other = merged(question("/v1/messages"), json!({"model": "other"}));
    let refused = server.post("/v1/messages", &other).await;
    assert_eq!((refused.status, &refused.json()["type"]), (404, &json!("error")));
    assert_eq!(refused.json()["error"]["type"], "not_found_error");
    let cases = [
        ("/v1/messages", "{"),
        ("/v1/messages", "{\"messages\":3}"),
        ("/v1/messages/count_tokens", "[]"),
        ("/v1/messages/count_tokens", "{\"messages\":[]}"),
        ("/v1/messages", "{\"max_tokens\":1,\"thread\":{\"type\":\"create\"},\"messages\":[]}"),
    ];
    for (path, body) in cases {
        let refused = server.post_text(path, body).await;
        assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("error")), "{body}");
        assert_eq!(refused.json()["error"]["type"], "invalid_request_error", "{body}");
    }
    let unknown = "{\"input\":\"a\",\"previous_response_id\":\"r\"}";
    for (body, status) in [("{", 400), ("{}", 400), (unknown, 404)] {
        let refused = server.post_text("/v1/responses", body).await;
        assert_eq!(refused.status, status, "{body}");
        assert!(refused.json()["error"]["message"].is_string(), "{body}");
    }
    let long = "word ".repeat(2000);
    let full = json!({"model": "tiny", "input": long, "stream": true});
    let refused = server.post("/v1/responses", &full).await;
    assert!(refused.body.contains("context_length_exceeded"), "{}", refused.body);
    assert_eq!(server.get("/v1/messages").await.status, 405);
    server.stop().await;
}

#[tokio::test]
async fn a_response_goes_on_from_one_that_is_kept() {
    let server = Server::plain().await;
    let asked = json!({"model": "tiny", "input": "Hello", "max_output_tokens": 6});
    let first = server.post("/v1/responses", &asked).await.json();
    let shown = server.get(&format!("/v1/responses/{}", first["id"].as_str().unwrap())).await;
    assert_eq!((&shown.json()["id"], &shown.json()["output"]), (&first["id"], &first["output"]));

    // The second one, a stream, has the first in its prompt, and is kept like it.
    let next = merged(asked.clone(), json!({"previous_response_id": first["id"]}));
    let second = server.post("/v1/responses", &merged(next, json!({"stream": true}))).await;
    let events = named(&second);
    let second = &events.last().unwrap()["response"];
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(second) > tokens(&first), "{second}");
    assert_eq!(second["previous_response_id"], first["id"]);
    let third = merged(asked.clone(), json!({"previous_response_id": second["id"]}));
    let third = server.post("/v1/responses", &third).await.json();
    assert!(tokens(&third) > tokens(second), "{third}");
    assert_eq!(third["previous_response_id"], second["id"]);
    let path = format!("/v1/responses/{}/cancel", first["id"].as_str().unwrap());
    let refused = server.post(&path, &json!({})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("Cannot cancel a synchronous response."), "{}", refused.body);

    let unkept = merged(asked.clone(), json!({"store": false}));
    let unkept = server.post("/v1/responses", &unkept).await.json();
    let lost = merged(asked, json!({"previous_response_id": unkept["id"]}));
    assert_eq!(server.post("/v1/responses", &lost).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn only_so_many_responses_are_sampled_in_the_background_at_once() {
    let server = Server::plain().await;
    // Nothing ends while no step runs.
    server.post_text("/pause?mode=keep", "").await;
    let asked = json!({"model": "tiny", "input": "Hello", "background": true});
    let mut begun = Vec::new();
    for _ in 0..crate::bounds::BACKGROUND_MAX {
        let reply = server.post("/v1/responses", &asked).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        begun.push(reply.json());
    }
    let refused = server.post("/v1/responses", &asked).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(refused.body.contains("in the background already"), "{}", refused.body);

    let path = format!("/v1/responses/{}/cancel", begun[0]["id"].as_str().unwrap());
    assert_eq!(server.post(&path, &json!({})).await.status, 200);
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while server.post("/v1/responses", &asked).await.status == 429 {
        assert!(tokio::time::Instant::now() < until, "a place is given back");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    server.post_text("/resume", "").await;
    server.stop().await;
}

#[tokio::test]
async fn a_response_can_be_fetched_later_or_cancelled() {
    let server = Server::plain().await;
    let asked = json!({"model": "tiny", "input": "Hello", "background": true});
    let short = merged(asked.clone(), json!({"max_output_tokens": 4}));
    let begun = server.post("/v1/responses", &short).await.json();
    assert_eq!(begun["status"], "queued");
    let path = format!("/v1/responses/{}", begun["id"].as_str().unwrap());
    let done = loop {
        let shown = server.get(&path).await.json();
        if shown["status"] != "in_progress" {
            break shown;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!((&done["id"], &done["background"]), (&begun["id"], &json!(true)));
    assert!(["completed", "incomplete"].contains(&done["status"].as_str().unwrap()), "{done}");
    assert!(!done["output"].as_array().unwrap().is_empty());

    let long = server.post("/v1/responses", &asked).await.json();
    let path = format!("/v1/responses/{}", long["id"].as_str().unwrap());
    let cancelled = server.post(&format!("{path}/cancel"), &json!({})).await.json();
    let status = cancelled["status"].as_str().unwrap();
    // The tiny model may have ended by itself before.
    assert!(["cancelled", "completed", "incomplete"].contains(&status), "{cancelled}");
    for wrong in [json!({"stream": true}), json!({"store": false})] {
        let refused = server.post("/v1/responses", &merged(asked.clone(), wrong)).await;
        assert_eq!(refused.status, 400);
    }
    assert_eq!(server.get("/v1/responses/resp_x").await.status, 404);
    assert_eq!(server.post("/v1/responses/resp_x/cancel", &json!({})).await.status, 404);
    server.stop().await;
}
