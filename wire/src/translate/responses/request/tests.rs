//! A table of requests and the chat requests that they become.

use super::*;

/// The chat request of a body that holds `fields` beside a model and an input.
fn chat(fields: Value) -> Value {
    let mut body = json!({ "model": "m", "input": "hi" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request(&body).unwrap()
}

/// The fields that `fields` adds to the simplest chat request.
fn added(fields: Value) -> Value {
    let mut chat = chat(fields);
    let fields = chat.as_object_mut().unwrap();
    assert_eq!(fields.shift_remove("model"), Some(json!("m")));
    assert_eq!(fields.shift_remove("messages"), Some(json!([{ "role": "user", "content": "hi" }])));
    chat
}

fn messages(input: Value) -> Value {
    chat(json!({ "input": input }))["messages"].clone()
}

fn refused(fields: Value) -> String {
    let mut body = json!({ "model": "m", "input": "hi" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request(&body).unwrap_err().to_string()
}

fn function(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name } })
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

#[test]
fn fields_translate_or_pass_or_stay_behind() {
    let table = [
        (json!({}), json!({})),
        (
            json!({ "stream": true, "stream_options": { "include_obfuscation": false } }),
            json!({ "stream": true, "stream_options": { "include_usage": true } }),
        ),
        (json!({ "stream": false, "store": true, "background": false }), json!({})),
        (json!({ "stream": "no", "background": "off" }), json!({})),
        (
            json!({ "max_output_tokens": 9, "temperature": 0.5, "top_p": null }),
            json!({ "max_tokens": 9, "temperature": 0.5 }),
        ),
        (json!({ "include": ["reasoning.encrypted_content"], "top_logprobs": 2 }), json!({})),
        (
            json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 }),
            json!({ "logprobs": true, "top_logprobs": 2 }),
        ),
        (
            json!({ "reasoning": { "effort": "high", "summary": "auto" },
                "text": { "verbosity": "low", "format": { "type": "text" } } }),
            json!({ "verbosity": "low", "reasoning_effort": "high" }),
        ),
        (
            json!({ "text": { "format": { "type": "json_schema", "name": "n", "strict": true,
                "schema": { "type": "object" }, "description": null } } }),
            json!({ "response_format": { "type": "json_schema", "json_schema":
                { "name": "n", "schema": { "type": "object" }, "strict": true } } }),
        ),
        (
            json!({ "text": { "format": { "type": "json_object" } } }),
            json!({ "response_format": { "type": "json_object" } }),
        ),
        (
            json!({ "seed": 1, "top_k": 2, "stop": ["x"], "cache_salt": "s", "user": "u",
                "chat_template_kwargs": { "a": 1 }, "prompt_cache_key": "k" }),
            json!({ "seed": 1, "top_k": 2, "stop": ["x"], "cache_salt": "s", "user": "u",
                "chat_template_kwargs": { "a": 1 }, "prompt_cache_key": "k" }),
        ),
        (
            json!({ "metadata": { "a": "b" }, "client_metadata": {}, "truncation": "auto",
                "n": 4, "messages": [], "max_tool_calls": 1, "previous_response_id": null }),
            json!({}),
        ),
    ];
    for (fields, expected) in table {
        assert_eq!(added(fields.clone()), expected, "{fields}");
    }
}

#[test]
fn a_turn_with_tools_becomes_one_assistant_message() {
    let body = json!({
        "model": "m",
        "instructions": "be brief",
        "input": [
            { "role": "user", "content": "hi" },
            { "type": "reasoning", "id": "rs_1", "summary": [],
                "content": [{ "type": "reasoning_text", "text": "let me see" }] },
            { "type": "message", "role": "assistant", "status": "completed",
                "content": [{ "type": "output_text", "text": "one ", "annotations": [] },
                    { "type": "output_text", "text": "moment" }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}" },
            { "type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** \"x\"" },
            { "type": "function_call_output", "call_id": "c1", "output": "1" },
            { "type": "custom_tool_call_output", "call_id": "c2",
                "output": [{ "type": "input_text", "text": "done" }] },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "short" }],
                "encrypted_content": "x", "content": null },
            { "type": "reasoning", "summary": [], "encrypted_content": "x" },
            { "type": "function_call", "call_id": "c3", "name": "g", "namespace": "ns",
                "arguments": "{}" },
        ],
    });
    assert_eq!(
        request(&body).unwrap(),
        json!({ "model": "m", "messages": [
            { "role": "system", "content": "be brief" },
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": "one moment", "reasoning": "let me see",
                "tool_calls": [call("c1", "f", "{\"a\": 1}"),
                    call("c2", "patch", "{\"input\":\"*** \\\"x\\\"\"}")] },
            { "role": "tool", "tool_call_id": "c1", "content": "1" },
            { "role": "tool", "tool_call_id": "c2", "content": "done" },
            { "role": "assistant", "content": null, "reasoning": "short",
                "tool_calls": [call("c3", "ns__g", "{}")] },
        ] })
    );
}

#[test]
fn sealed_thoughts_are_read_and_foreign_ones_are_passed_over() {
    let sealed = super::super::sealed::seal("let me see");
    let thought = |fields: Value| {
        let mut item = json!({ "type": "reasoning", "id": "rs_1", "summary": [] });
        item.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let call = json!({ "type": "function_call", "call_id": "c", "name": "f" });
        messages(json!([item, call]))[0]["reasoning"].clone()
    };
    let summary = json!([{ "type": "summary_text", "text": "short" }]);
    let content = json!([{ "type": "reasoning_text", "text": "itself" }]);
    for (fields, expected) in [
        (json!({ "encrypted_content": sealed, "content": null }), json!("let me see")),
        (json!({ "encrypted_content": sealed, "summary": summary }), json!("let me see")),
        (json!({ "encrypted_content": sealed, "content": content }), json!("itself")),
        (json!({ "encrypted_content": &sealed[..sealed.len() - 2] }), Value::Null),
        (json!({ "encrypted_content": "gAAAAABo", "summary": summary }), json!("short")),
        (json!({ "encrypted_content": 7 }), Value::Null),
        (json!({ "encrypted_content": null }), Value::Null),
    ] {
        assert_eq!(thought(fields.clone()), expected, "{fields}");
    }
}

#[test]
fn what_is_said_twice_begins_a_new_message() {
    let said = |text: &str| json!({ "role": "assistant", "content": text });
    let thought = |text: &str| json!({ "type": "reasoning", "content": [{ "text": text }] });
    assert_eq!(
        messages(json!([said("a"), said("b"), thought("t"), thought("u")])),
        json!([
            { "role": "assistant", "content": "a" },
            { "role": "assistant", "content": "b", "reasoning": "t" },
            { "role": "assistant", "content": "", "reasoning": "u" },
        ])
    );
}

#[test]
fn parts_of_a_message_translate() {
    let input = json!([
        { "role": "developer", "content": [{ "type": "input_text", "text": "rules" }] },
        { "role": "user", "content": [
            { "type": "input_text", "text": "see" },
            { "type": "input_image", "image_url": "data:x", "detail": "low", "file_id": null },
            { "type": "input_image", "image_url": "data:y", "detail": "original" },
            { "type": "input_file", "filename": "a.pdf", "file_data": "data:z" },
            { "type": "input_audio", "input_audio": { "data": "d", "format": "wav" } },
        ] },
        { "role": "assistant", "content": [{ "type": "refusal", "refusal": "no" }] },
        { "role": "user", "content": [] },
        { "type": "function_call_output", "call_id": "c", "output": { "a": 1 } },
    ]);
    assert_eq!(
        messages(input),
        json!([
            { "role": "developer", "content": "rules" },
            { "role": "user", "content": [
                { "type": "text", "text": "see" },
                { "type": "image_url", "image_url": { "url": "data:x", "detail": "low" } },
                { "type": "image_url", "image_url": { "url": "data:y" } },
                { "type": "file", "file": { "file_data": "data:z", "filename": "a.pdf" } },
                { "type": "input_audio", "input_audio": { "data": "d", "format": "wav" } },
            ] },
            { "role": "assistant", "content": null, "refusal": "no" },
            { "role": "user", "content": "" },
            { "role": "tool", "tool_call_id": "c", "content": "{\"a\":1}" },
        ])
    );
}

#[test]
fn the_shell_is_a_function_hosted_tools_are_left_out() {
    let action = json!({ "type": "exec", "command": ["ls"] });
    assert_eq!(
        messages(json!([
            { "type": "web_search_call", "id": "w", "status": "completed" },
            { "type": "local_shell_call", "id": "l", "call_id": "c", "action": action },
            { "type": "local_shell_call_output", "id": "c", "output": "a" },
        ])),
        json!([
            { "role": "assistant", "content": null,
                "tool_calls": [call("c", "local_shell", r#"{"type":"exec","command":["ls"]}"#)] },
            { "role": "tool", "tool_call_id": "c", "content": "a" },
        ])
    );
}

#[test]
fn tools_are_functions_under_flat_names() {
    let parameters = json!({ "type": "object" });
    let tools = json!([
        { "type": "function", "name": "f", "description": "d", "parameters": parameters,
            "strict": true },
        { "type": "function", "name": "g", "parameters": null, "strict": null },
        { "type": "function", "function": { "name": "nested" } },
        { "type": "web_search" },
        { "type": "namespace", "name": "ns", "description": "n", "tools":
            [{ "type": "function", "name": "f", "defer_loading": true }] },
        { "type": "custom", "name": "patch", "description": "edits",
            "format": { "type": "grammar", "syntax": "lark", "definition": "start: x" } },
        { "type": "function", "name": "f" },
    ]);
    let input = json!([{ "type": "additional_tools", "role": "developer",
        "tools": [{ "type": "function", "name": "late" }] }, { "role": "user", "content": "hi" }]);
    let custom = json!({ "name": "patch",
        "description": "edits\n\n`input` follows this lark grammar:\nstart: x",
        "parameters": { "type": "object", "properties": { "input": { "type": "string",
            "description": "The whole input of the tool, as text." } },
            "required": ["input"], "additionalProperties": false } });
    assert_eq!(
        added(json!({ "tools": tools, "input": input, "tool_choice": "auto",
            "parallel_tool_calls": false })),
        json!({
            "tools": [
                { "type": "function", "function": { "name": "f", "description": "d",
                    "parameters": parameters, "strict": true } },
                function("g"),
                function("nested"),
                function("ns__f"),
                { "type": "function", "function": custom },
                function("late"),
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": false,
        })
    );
    let hosted = json!({ "tools": [{ "type": "web_search" }], "tool_choice": "auto",
        "parallel_tool_calls": true });
    assert_eq!(added(hosted), json!({}));
}

#[test]
fn a_choice_names_a_tool_or_narrows_the_offer() {
    let tools = json!([
        { "type": "function", "name": "f" },
        { "type": "custom", "name": "p" },
        { "type": "namespace", "name": "ns", "tools": [{ "type": "function", "name": "f" }] },
    ]);
    let choose = |choice: Value| {
        let chat = added(json!({ "tools": tools, "tool_choice": choice }));
        let names: Vec<String> = chat["tools"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
            .collect();
        (chat["tool_choice"].clone(), names.join(" "))
    };
    let all = "f p ns__f".to_owned();
    assert_eq!(choose(json!("required")), (json!("required"), all.clone()));
    assert_eq!(choose(json!({ "type": "function", "name": "f" })), (function("f"), all.clone()));
    assert_eq!(choose(json!({ "type": "custom", "name": "p" })), (function("p"), all.clone()));
    assert_eq!(
        choose(json!({ "type": "function", "name": "f", "namespace": "ns" })),
        (function("ns__f"), all)
    );
    let allowed =
        |tools: Value| json!({ "type": "allowed_tools", "mode": "required", "tools": tools });
    assert_eq!(
        choose(allowed(json!([{ "type": "function", "name": "f" }, { "type": "web_search" }]))),
        (json!("required"), "f".to_owned())
    );
    assert_eq!(
        choose(allowed(json!([{ "type": "namespace", "name": "ns" }]))),
        (json!("required"), "ns__f".to_owned())
    );
}

#[test]
fn what_chat_cannot_say_is_refused_with_a_reason() {
    let item = |item: Value| json!({ "input": [item] });
    let part = |part: Value| item(json!({ "role": "user", "content": [part] }));
    let table = [
        (json!({ "previous_response_id": "resp_1" }), "`previous_response_id` continues"),
        (json!({ "conversation": { "id": "c" } }), "`conversation`"),
        (json!({ "background": true }), "`background`"),
        (json!({ "prompt": { "id": "p" } }), "`prompt` names a stored prompt"),
        (json!({ "input": null }), "`input` is neither"),
        (item(json!({ "type": "item_reference", "id": "i" })), "an item by its id"),
        (item(json!({ "type": "compaction", "encrypted_content": "x" })), "type `compaction`"),
        (item(json!({ "type": "message", "content": "x" })), "without a role"),
        (item(json!("hi")), "without a type"),
        (part(json!({ "type": "input_image", "file_id": "f" })), "an image by its id"),
        (part(json!({ "type": "input_file", "file_url": "u" })), "a file by its id"),
        (json!({ "tool_choice": { "type": "web_search" } }), "`web_search`, which"),
    ];
    for (fields, reason) in table {
        let said = refused(fields.clone());
        assert!(said.contains(reason), "{fields}: {said}");
    }
    assert!(request(&json!([])).is_err());
}
