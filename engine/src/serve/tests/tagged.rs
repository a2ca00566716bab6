//! Tool calls in tags, as Qwen3-Coder's and Qwen3.5's templates show them: on all wires, whole and
//! in a stream, as the model pleases and on demand.

use super::talk::{templated, user};
use super::wires::named;
use super::*;

/// ChatML with calls as those templates write them: other values than objects and lists as
/// Python's `str`.
const TEMPLATE: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n' if not loop.first or message.content -}}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' -}}
{%- for name, value in call.function.arguments|items -%}
{{- '<parameter=' + name + '>\\n' -}}
{%- set is_list = value is sequence and value is not string -%}
{{- value | tojson if value is mapping or is_list else value | string -}}
{{- '\\n</parameter>\\n' -}}
{%- endfor -%}
{{- '</function>\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// A call of `write` as a model may sample it.
const CALL: &str = "<tool_call>\n<function=write>\n<parameter=path>\n12\n</parameter>\n\
    <parameter=text>\na\n \"b\"\n\n</parameter>\n<parameter=lines>\n[1,2]\n</parameter>\n\
    <parameter=over>\ntrue\n</parameter>\n</function>\n</tool_call>";

fn arguments() -> Value {
    json!({"path": "12", "text": "a\n \"b\"\n", "lines": [1, 2], "over": true})
}

fn schema() -> Value {
    json!({"type": "object", "required": ["path"], "properties": {
        "path": {"type": "string", "maxLength": 8}, "text": {"type": "string", "maxLength": 8},
        "lines": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "over": {"type": "boolean"}}})
}

async fn tagged() -> (Server, tempfile::TempDir) {
    let folder = templated(TEMPLATE);
    let served_model_name = Some("tiny".to_owned());
    let options = EngineOptions { seed: Some(1), served_model_name, ..EngineOptions::default() };
    (Server::of(folder.path(), options).await, folder)
}

/// A chat with the tool whose reply is `text`.
fn saying(text: &str) -> Value {
    let function = json!({"name": "write", "parameters": schema()});
    json!({"tools": [{"type": "function", "function": function}], "return_token_ids": true,
        "structured_outputs": {"choice": [text]}, "max_tokens": 400})
}

/// The calls of a stream: names and joined arguments.
fn streamed_calls(events: &[Value]) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in events {
        let deltas = event["choices"][0]["delta"]["tool_calls"].as_array();
        for delta in deltas.into_iter().flatten() {
            let index = delta["index"].as_u64().unwrap() as usize;
            let function = &delta["function"];
            if let Some(name) = function["name"].as_str() {
                assert_eq!(index, calls.len());
                calls.push((name.to_owned(), String::new()));
            }
            calls[index].1 += function["arguments"].as_str().unwrap_or_default();
        }
    }
    calls
}

#[tokio::test]
async fn calls_in_tags_are_found_whole_and_in_a_stream() {
    let (server, _folder) = tagged().await;
    let text = format!("So.\n\n{CALL}\n{CALL}");
    for (changes, count) in [(json!({}), 2), (json!({"parallel_tool_calls": false}), 1)] {
        let asked = merged(saying(&text), changes);
        let whole = server.chat(asked.clone()).await.json();
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
        assert_eq!(choice["message"]["content"], "So.\n\n");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), count);
        let events = server.chat(merged(asked, json!({"stream": true}))).await.events();
        let streamed = streamed_calls(&events);
        assert_eq!(streamed.len(), count);
        for (call, (name, pieces)) in calls.iter().zip(&streamed) {
            assert_eq!((&call["function"]["name"], name.as_str()), (&json!("write"), "write"));
            assert_eq!(call["function"]["arguments"], **pieces);
            assert_eq!(serde_json::from_str::<Value>(pieces).unwrap(), arguments());
        }
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
    server.stop().await;
}

#[tokio::test]
async fn malformed_calls_in_tags_stay_text() {
    let (server, _folder) = tagged().await;
    for text in [
        CALL.replace("<function=write>", "<function=write"),
        CALL.replace("</parameter>\n<parameter=text>", "</parameter>\nand\n<parameter=text>"),
        CALL.replace("</function>\n</tool_call>", ""),
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {}}\n</tool_call>".to_owned(),
    ] {
        let reply = server.chat(saying(&text)).await.json();
        let choice = &reply["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(text), &json!("stop"))
        );
        assert!(choice["message"]["tool_calls"].is_null());

        let events = server.chat(merged(saying(&text), json!({"stream": true}))).await.events();
        assert!(streamed_calls(&events).is_empty());
        let content = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(content.collect::<String>(), text);
    }
    // Without tools nothing is a call.
    let bare = json!({"structured_outputs": {"choice": [CALL]}, "max_tokens": 400});
    assert_eq!(server.chat(bare).await.json()["choices"][0]["message"]["content"], CALL);
    server.stop().await;
}

#[tokio::test]
async fn a_turn_after_calls_in_tags_starts_with_what_was_sampled() {
    let (server, _folder) = tagged().await;
    let first = server.chat(saying(&format!("{CALL}\n{CALL}"))).await.json();
    let message = &first["choices"][0]["message"];
    // Clients space arguments as they please; the template writes `True`.
    let mut calls = message["tool_calls"].clone();
    for call in calls.as_array_mut().unwrap() {
        call["function"]["arguments"] = json!(format!("{:#}", arguments()));
    }
    let said = json!({"role": "assistant", "content": null, "tool_calls": calls});
    let result = json!({"role": "tool", "content": "done", "tool_call_id": "1"});
    let history = json!({"messages": [user("Hello"), said, result]});
    let second = server.chat(merged(saying("ok"), history)).await.json();
    let known: Vec<Value> = ["prompt_token_ids"]
        .iter()
        .flat_map(|key| first[key].as_array().unwrap().clone())
        .chain(first["choices"][0]["token_ids"].as_array().unwrap().clone())
        .collect();
    assert_eq!(second["prefix"]["reused_tokens"], known.len(), "{}", second["prefix"]);
    assert!(second["prompt_token_ids"].as_array().unwrap().starts_with(&known));
    server.stop().await;
}

/// Checks the arguments of a call that was demanded.
fn check_demanded(arguments: &Value) {
    let length = |key: &str| arguments[key].as_str().map_or(0, |text| text.chars().count());
    assert!(arguments["path"].is_string() && length("path") <= 8 && length("text") <= 8);
    let lines = arguments.get("lines").is_none_or(Value::is_array);
    assert!(lines && arguments.get("over").is_none_or(Value::is_boolean), "{arguments}");
}

#[tokio::test]
async fn demanded_calls_in_tags_are_made_on_every_wire() {
    let (server, _folder) = tagged().await;
    let parsed = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    let mut ended = 0;
    for seed in 0..4 {
        let named_choice = json!({"type": "function", "function": {"name": "write"}});
        let choice = if seed % 2 == 0 { json!("required") } else { named_choice };
        let own = json!({"tool_choice": choice, "temperature": 1.5, "seed": seed,
            "structured_outputs": null, "parallel_tool_calls": false});
        let asked = merged(saying(""), own);
        let whole = server.chat(asked.clone()).await.json();
        let events = server.chat(merged(asked, json!({"stream": true}))).await.events();
        if whole["choices"][0]["finish_reason"] == "length" {
            continue;
        }
        ended += 1;
        let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
        check_demanded(&parsed(&call["arguments"]));
        assert_eq!(call["arguments"], streamed_calls(&events)[0].1);
    }
    assert!(ended > 1);

    let cut = json!({"tool_choice": "required", "structured_outputs": null, "max_tokens": 45});
    let cut = merged(saying(""), cut);
    let whole = server.chat(cut.clone()).await.json()["choices"][0].clone();
    let events = server.chat(merged(cut, json!({"stream": true}))).await.events();
    assert_eq!(
        (&whole["finish_reason"], &whole["message"]["content"]),
        (&json!("length"), &json!(""))
    );
    let call = &whole["message"]["tool_calls"][0]["function"];
    assert!(call["arguments"].as_str().unwrap().starts_with("{\"path\": \""), "{call}");
    assert_eq!(call["arguments"], streamed_calls(&events)[0].1);

    let tools = json!([{"name": "write", "input_schema": schema()}]);
    let messages = json!({"model": "tiny", "max_tokens": 400, "temperature": 0, "tools": tools,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "messages": [user("Hello")]});
    let whole = server.post("/v1/messages", &messages).await.json();
    let block = &whole["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("write")), "{whole}");
    check_demanded(&block["input"]);
    let stream = server.post("/v1/messages", &merged(messages, json!({"stream": true}))).await;
    let stream = named(&stream);
    let pieces = stream.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    assert_eq!(serde_json::from_str::<Value>(&pieces.collect::<String>()).unwrap(), block["input"]);

    let tools = json!([{"type": "function", "name": "write", "parameters": schema()}]);
    let responses = json!({"model": "tiny", "max_output_tokens": 400, "temperature": 0,
        "tools": tools, "input": "Hello", "parallel_tool_calls": false,
        "tool_choice": {"type": "function", "name": "write"}});
    let whole = server.post("/v1/responses", &responses).await.json();
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["name"]),
        (&json!("function_call"), &json!("write")),
        "{whole}"
    );
    check_demanded(&parsed(&item["arguments"]));
    let stream = server.post("/v1/responses", &merged(responses, json!({"stream": true}))).await;
    let last = named(&stream).pop().unwrap();
    assert_eq!(last["response"]["output"][0]["arguments"], item["arguments"]);
    server.stop().await;
}

#[tokio::test]
async fn a_demand_that_tags_cannot_hold_is_refused() {
    let (server, _folder) = tagged().await;
    let schema = json!({"type": "object", "dependentRequired": {"a": ["b"]}});
    let asked = json!({"tools": [{"type": "function",
        "function": {"name": "write", "parameters": schema}}], "tool_choice": "required"});
    let refused = server.chat(asked).await;
    assert!(
        refused.status == 400 && refused.body.contains("`dependentRequired`"),
        "{}",
        refused.body
    );
    server.stop().await;
}
