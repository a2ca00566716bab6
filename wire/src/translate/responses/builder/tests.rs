//! Replies, event by event.

use super::*;
use crate::chat::{ChatReader, in_one_form};
use crate::sse::{Event, events};

fn chunk(delta: Value) -> Value {
    json!({ "id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 5, "model": "served",
        "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null }] })
}

fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({ "tool_calls": [{ "index": index, "id": id, "type": "function",
        "function": { "name": name, "arguments": arguments } }] })
}

fn values(stream: &[u8]) -> Vec<Value> {
    let events: Vec<Event> = events(stream).collect();
    events.iter().map(|event| serde_json::from_slice(&event.data().unwrap()).unwrap()).collect()
}

fn run(request: &Value, chunks: &[Value]) -> Vec<Value> {
    let mut reply = ResponseBuilder::new(request);
    let (mut reader, mut bytes) = (ChatReader::default(), Vec::new());
    for mut chunk in chunks.iter().cloned() {
        reader.take(&mut chunk, true);
        bytes.extend(reply.chunk(&chunk));
    }
    bytes.extend(reply.end());
    values(&bytes)
}

/// The types of the events, without what they all begin with, and the places of their items.
fn types(events: &[Value]) -> Vec<String> {
    let name = |event: &Value| {
        let kind = event["type"].as_str().unwrap().trim_start_matches("response.").to_owned();
        event["output_index"].as_u64().map_or(kind.clone(), |place| format!("{kind} {place}"))
    };
    events.iter().map(name).collect()
}

/// Reasoning, a text, and two calls with interleaved arguments.
fn everything() -> Vec<Value> {
    let mut last = chunk(json!({}));
    last["choices"][0]["finish_reason"] = json!("tool_calls");
    let mut usage = chunk(json!({}));
    usage["choices"] = json!([]);
    usage["usage"] = json!({ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
        "prompt_tokens_details": { "cached_tokens": 2 },
        "completion_tokens_details": { "reasoning_tokens": 1 } });
    let tools = json!({ "tools": [{ "type": "custom", "name": "patch" }] });
    run(
        &tools,
        &[
            chunk(json!({ "role": "assistant", "content": "" })),
            chunk(json!({ "reasoning": "hm" })),
            chunk(json!({ "content": "a" })),
            chunk(json!({ "content": "b", "reasoning_content": null })),
            chunk(call(0, "c0", "f", "")),
            chunk(call(1, "c1", "patch", "{\"input\":")),
            chunk(call(0, "", "", "{}")),
            chunk(call(1, "", "", "\"x\"}")),
            last,
            usage,
        ],
    )
}

#[test]
fn a_thought_a_text_and_two_calls_stream_in_order() {
    let events = everything();
    let expected = [
        "created",
        "in_progress",
        "output_item.added 0",
        "content_part.added 0",
        "reasoning_text.delta 0",
        "reasoning_text.done 0",
        "content_part.done 0",
        "output_item.done 0",
        "output_item.added 1",
        "content_part.added 1",
        "output_text.delta 1",
        "output_text.delta 1",
        "output_text.done 1",
        "content_part.done 1",
        "output_item.done 1",
        "output_item.added 2",
        "output_item.added 3",
        "function_call_arguments.delta 2",
        "function_call_arguments.done 2",
        "output_item.done 2",
        "custom_tool_call_input.delta 3",
        "custom_tool_call_input.done 3",
        "output_item.done 3",
        "completed",
    ];
    assert_eq!(types(&events), expected);
    assert_eq!(
        events[10],
        json!({ "type": "response.output_text.delta", "sequence_number": 10,
            "item_id": "msg_9_1", "output_index": 1, "content_index": 0, "delta": "a",
            "logprobs": [] })
    );
}

#[test]
fn a_whole_call_ends_when_something_else_begins() {
    let two = [
        call(0, "c0", "f", "{\"a\":"),
        call(0, "", "", "\"}\"}"),
        call(1, "c1", "f", "{}"),
        call(0, "", "", " "),
        json!({ "content": "both" }),
    ];
    let events = run(&json!({}), &two.map(chunk));
    let expected = [
        "created",
        "in_progress",
        "output_item.added 0",
        "function_call_arguments.delta 0",
        "function_call_arguments.delta 0",
        "function_call_arguments.done 0",
        "output_item.done 0",
        "output_item.added 1",
        "function_call_arguments.delta 1",
        "function_call_arguments.done 1",
        "output_item.done 1",
        "output_item.added 2",
        "content_part.added 2",
        "output_text.delta 2",
        "output_text.done 2",
        "content_part.done 2",
        "output_item.done 2",
        "completed",
    ];
    assert_eq!(types(&events), expected);
    let output = &events[events.len() - 1]["response"]["output"];
    assert_eq!(output[0]["arguments"], "{\"a\":\"}\"}");
}

#[test]
fn the_last_event_holds_the_whole_response() {
    let events = everything();
    let response = &events[events.len() - 1]["response"];
    assert_eq!(
        response["output"],
        json!([
            { "id": "rs_9_0", "type": "reasoning", "status": "completed", "summary": [],
                "content": [{ "type": "reasoning_text", "text": "hm" }],
                "encrypted_content": null },
            { "id": "msg_9_1", "type": "message", "status": "completed", "role": "assistant",
                "content": [{ "type": "output_text", "text": "ab", "annotations": [],
                    "logprobs": [] }] },
            { "id": "fc_9_2", "type": "function_call", "status": "completed", "call_id": "c0",
                "name": "f", "arguments": "{}" },
            { "id": "ctc_9_3", "type": "custom_tool_call", "status": "completed",
                "call_id": "c1", "name": "patch", "input": "x" },
        ])
    );
    assert_eq!(
        response["usage"],
        json!({ "input_tokens": 3,
            "input_tokens_details": { "cached_tokens": 2, "cache_write_tokens": 0 },
            "output_tokens": 4, "output_tokens_details": { "reasoning_tokens": 1 },
            "total_tokens": 7 })
    );
    let heads = [&events[0], &events[1], &events[events.len() - 1]];
    assert!(heads.iter().all(|event| event["response"]["id"] == "resp_9"));
    assert!(heads.iter().all(|event| event["response"]["created_at"] == 5));
}

#[test]
fn the_response_repeats_the_request() {
    let request = json!({ "model": "asked", "instructions": "i", "temperature": 0.5, "store": true,
        "metadata": { "a": "b" }, "tool_choice": "required", "text": { "verbosity": "low" },
        "reasoning": { "effort": "low" }, "tools": [{ "type": "function", "name": "f" }] });
    let response = ResponseBuilder::new(&request).document(&json!({ "id": "x", "choices": [] }));
    for key in ["model", "instructions", "temperature", "metadata", "tool_choice", "reasoning"] {
        assert_eq!(response[key], request[key], "{key}");
    }
    assert_eq!(response["id"], "resp_x");
    assert_eq!(response["store"], false);
    assert_eq!(response["text"], json!({ "verbosity": "low", "format": { "type": "text" } }));
    assert_eq!(response["tools"], request["tools"]);
    assert_eq!(response["status"], "completed");
    assert_eq!(response["usage"], Value::Null);
}

#[test]
fn thoughts_are_sealed_for_who_asked_once_they_are_whole() {
    let asked = json!({ "include": ["reasoning.encrypted_content"] });
    let sealed = |request: &Value, deltas: &[Value]| {
        let chunks: Vec<Value> = deltas.iter().cloned().map(chunk).collect();
        let events = run(request, &chunks);
        let of = |event: &Value| match event.pointer("/item/encrypted_content") {
            Some(sealed) => Some(sealed.clone()),
            None => event.pointer("/response/output/0/encrypted_content").cloned(),
        };
        let all: Vec<Value> = events.iter().filter_map(of).collect();
        all.iter().map(|s| s.as_str().and_then(super::super::sealed::unseal)).collect::<Vec<_>>()
    };
    let whole =
        [json!({ "reasoning": "a" }), json!({ "reasoning": "b" }), json!({ "content": "c" })];
    let both = Some("ab".to_owned());
    // When it is added, when it is done, and in the last event.
    assert_eq!(sealed(&asked, &whole), [None, both.clone(), both.clone()]);
    assert_eq!(sealed(&json!({}), &whole), [None, None, None]);
    let failed = [whole[0].clone(), whole[1].clone()];
    assert_eq!(sealed(&asked, &failed), [None, both.clone(), both], "an answer of thoughts only");
}

#[test]
fn logprobs_come_back_to_who_asked() {
    let chat = json!({ "id": "x", "choices": [{ "index": 0, "finish_reason": "stop",
        "message": { "content": "hi" },
        "logprobs": { "content": [{ "id": 5, "token": "hi", "logprob": -0.5, "bytes": null,
            "top_logprobs": [{ "token": "ho", "logprob": -1.0, "bytes": [104, 111] }] }] } }] });
    let of = |request: Value| {
        ResponseBuilder::new(&request).document(&chat)["output"][0]["content"][0]["logprobs"]
            .clone()
    };
    assert_eq!(of(json!({})), json!([]));
    assert_eq!(
        of(json!({ "include": ["message.output_text.logprobs"] })),
        json!([{ "token": "hi", "bytes": [], "logprob": -0.5,
            "top_logprobs": [{ "token": "ho", "bytes": [104, 111], "logprob": -1.0 }] }])
    );
}

#[test]
fn a_reply_that_was_cut_short_says_why() {
    let mut cut = chunk(call(0, "c0", "f", "{\"a"));
    cut["choices"][0]["finish_reason"] = json!("length");
    let events = run(&json!({}), &[chunk(json!({ "content": "a" })), cut]);
    let last = &events[events.len() - 1];
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(last["response"]["output"][0]["status"], "completed");
    assert_eq!(last["response"]["output"][1]["status"], "incomplete");
    assert_eq!(last["response"]["output"][1]["arguments"], "{\"a");

    let filtered = json!({ "choices": [{ "message": { "refusal": "no" },
        "finish_reason": "content_filter" }] });
    let response = ResponseBuilder::new(&json!({})).document(&filtered);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "content_filter");
    assert_eq!(response["output"][0]["content"], json!([{ "type": "refusal", "refusal": "no" }]));
}

#[test]
fn a_stream_that_fails_ends_with_the_reason_and_no_half_item() {
    let mut reply = ResponseBuilder::new(&json!({}));
    let mut bytes = reply.chunk(&chunk(call(0, "c0", "f", "{")));
    bytes.extend(reply.chunk(&json!({ "error": { "message": "lost", "code": 500 } })));
    let events = values(&bytes);
    let last = &events[events.len() - 1];
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(last["response"]["error"], json!({ "code": "server_error", "message": "lost" }));
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    assert!(events.iter().all(|event| event["type"] != "response.output_item.done"));
    assert!(reply.end().is_empty());
    assert!(reply.error("again", 500).is_empty());
    assert!(reply.chunk(&chunk(json!({ "content": "late" }))).is_empty());

    let early = ResponseBuilder::new(&json!({})).error("the maximum context length is 8", 400);
    let kinds = types(&values(&early));
    assert_eq!(kinds, ["created", "in_progress", "failed"]);
    assert_eq!(values(&early)[2]["response"]["error"]["code"], "context_length_exceeded");
}

#[test]
fn calls_of_careless_servers_are_told_apart() {
    let whole = |index: u64, id: &str| chunk(call(index, id, "f", "{}"));
    let outputs = |chunks: &[Value]| {
        let events = run(&json!({}), chunks);
        events[events.len() - 1]["response"]["output"].as_array().unwrap().clone()
    };
    let same_index = outputs(&[whole(0, "a"), whole(0, "b")]);
    assert_eq!(same_index[0]["call_id"], "a");
    assert_eq!(same_index[1]["call_id"], "b");
    // An id that changes between the deltas of one call is not another call.
    let drifting = outputs(&[chunk(call(0, "a", "f", "{")), chunk(call(0, "b", "", "}"))]);
    assert_eq!(drifting.len(), 1);
    assert_eq!(drifting[0]["arguments"], "{}");
    let nameless = outputs(&[chunk(call(0, "", "", "{}"))]);
    assert_eq!(nameless[0]["call_id"], "call_9_0");
    assert_eq!(nameless[0]["arguments"], "{}");
}

#[test]
fn tools_come_back_under_the_agents_names() {
    let request = json!({ "tools": [{ "type": "namespace", "name": "ns", "tools": [
        { "type": "function", "name": "g" }, { "type": "custom", "name": "p" }] }] });
    let call = |name: &str, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": name, "function": function })
    };
    let chat = json!({ "choices": [{ "message": { "tool_calls":
        [call("ns__g", "{}"), call("ns__p", "plain text"), call("unknown", "")] } }] });
    let response = ResponseBuilder::new(&request).document(&in_one_form([chat])[0]);
    let of = |place: usize, key: &str| response["output"][place][key].clone();
    assert_eq!((of(0, "name"), of(0, "namespace")), (json!("g"), json!("ns")));
    assert_eq!((of(1, "name"), of(1, "namespace")), (json!("p"), json!("ns")));
    assert_eq!((of(1, "type"), of(1, "input")), (json!("custom_tool_call"), json!("plain text")));
    assert_eq!((of(2, "name"), of(2, "namespace")), (json!("unknown"), Value::Null));
}

#[test]
fn each_chunk_gives_whole_events_at_once() {
    let mut reply = ResponseBuilder::new(&json!({}));
    for delta in [json!({ "content": "a" }), json!({ "content": "b" })] {
        let bytes = reply.chunk(&chunk(delta));
        assert!(bytes.ends_with(b"\n\n"));
        assert!(events(&bytes).all(|event| event.data().is_some()));
    }
    assert!(reply.chunk(&json!({ "choices": [] })).is_empty());
}
