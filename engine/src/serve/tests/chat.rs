//! `/v1/chat/completions`, whole and streamed.

use super::*;

#[tokio::test]
async fn a_chat_reply_has_the_form_of_vllm() {
    let server = Server::plain().await;
    let reply = server.chat(json!({"max_tokens": 4, "ignore_eos": true})).await.json();
    assert_eq!(
        keys(&reply),
        "id object created model choices service_tier system_fingerprint usage prompt_logprobs \
         prompt_token_ids prompt_text kv_transfer_params ec_transfer_params metrics prefix"
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
             \"prompt_text\":null,\"prefix\":{{\"reused_tokens\":0,\"remembered_tokens\":0,\
             \"reason\":null}}}}"
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
    let usage = "prompt_tokens total_tokens completion_tokens prompt_tokens_details";
    assert_eq!(keys(&last["usage"]), usage);
    assert_eq!(last["usage"]["completion_tokens"], 6);
    assert!(events[3]["usage"]["completion_tokens_details"].is_null());
    assert!(events[events.len() - 2].get("system_fingerprint").is_none());
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
    // The role, the call once it is complete, and the end; text that is held back gives no chunk.
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(keys(&deltas[1]["tool_calls"][0]), "id type index function");
    assert_eq!(deltas[1]["tool_calls"][0]["function"]["name"], call["function"]["name"]);
    assert_eq!(keys(&deltas[1]["tool_calls"][0]["function"]), "name");
    let mut arguments = String::new();
    for delta in &deltas[1..deltas.len() - 1] {
        assert_eq!((keys(delta), &delta["content"]), ("content tool_calls".into(), &Value::Null));
        for entry in delta["tool_calls"].as_array().unwrap() {
            assert_eq!(entry["index"], 0);
            arguments += entry["function"]["arguments"].as_str().unwrap_or_default();
        }
    }
    assert_eq!(deltas.len(), 3, "{deltas:?}");
    assert_eq!(keys(&deltas[1]["tool_calls"][1]), "index function");
    assert_eq!(json!(arguments), call["function"]["arguments"]);
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    let shown = json!({"stream": true, "return_token_ids": true});
    let events = server.chat(merged(asked.clone(), shown)).await.events();
    assert!(events.len() > 5);
    assert_eq!(events[1]["choices"][0]["delta"], json!({}));
    let none = server.chat(merged(asked, json!({"tool_choice": "none"}))).await.json();
    let content = none["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content.contains("<tool_call>"), "{content}");
    server.stop().await;
}
