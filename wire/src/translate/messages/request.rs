//! The body of a chat request in place of an Anthropic one.

use serde_json::{Map, Value, json};

use super::history::messages;
use super::{list, text};
use crate::chat::{PartReader, Untranslatable};
use crate::json::truth;

/// Fields that mean the same on both wires: Anthropic's name and chat's name. Those below the line
/// are vLLM's own, which it accepts on either route. All other fields are dropped, as on vLLM's own
/// route. `max_completion_tokens` is not set: vLLM reads either, and hosted APIs refuse both at
/// once.
const SAME: [(&str, &str); 12] = [
    ("max_tokens", "max_tokens"),
    ("stop_sequences", "stop"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    // ---
    ("cache_salt", "cache_salt"),
    ("watermarking", "watermarking"),
    ("kv_transfer_params", "kv_transfer_params"),
    ("ec_transfer_params", "ec_transfer_params"),
    ("vllm_xargs", "vllm_xargs"),
    ("chat_template_kwargs", "chat_template_kwargs"),
    ("mm_payload", "mm_payload"),
];

/// The body for `/v1/chat/completions` in place of a `/v1/messages` one.
///
/// # Errors
/// [`Untranslatable`] for content that has no form in chat, such as a file.
pub(crate) fn request(body: &Value) -> Result<Value, Untranslatable> {
    let mut chat = Map::new();
    put(&mut chat, "model", body.get("model"));
    let messages = messages(body, &mut PartReader::strict())?;
    chat.insert("messages".to_owned(), Value::Array(messages));

    for (theirs, ours) in SAME {
        let is_empty = body.get(theirs).and_then(Value::as_array).is_some_and(Vec::is_empty);
        put(&mut chat, ours, body.get(theirs).filter(|_| !is_empty));
    }
    if body.get("stream").and_then(truth) == Some(true) {
        chat.insert("stream".to_owned(), json!(true));
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    put_output_format(&mut chat, body);
    put_thinking(&mut chat, body);

    let tools = own_tools(body).map(chat_tool).collect::<Result<Vec<Value>, _>>()?;
    // Chat refuses an empty list, and a choice without tools.
    if !tools.is_empty() {
        put_tool_choice(&mut chat, body)?;
        chat.insert("tools".to_owned(), Value::Array(tools));
    }
    Ok(Value::Object(chat))
}

/// The messages and tools of a recorded body in chat's form. What has no form there is kept with
/// the message that it was part of.
pub(crate) fn recorded(body: &Value) -> Value {
    let messages = messages(body, &mut PartReader::lenient()).unwrap_or_default();
    let tools: Vec<Value> = own_tools(body).map(recorded_tool).collect();
    json!({ "messages": messages, "tools": tools })
}

fn recorded_tool(tool: &Value) -> Value {
    chat_tool(tool).unwrap_or_else(|_| {
        let mut function = Map::from_iter([("name".to_owned(), json!(text(tool, "name")))]);
        put(&mut function, "description", tool.get("description"));
        json!({ "type": "function", "function": function })
    })
}

fn put(chat: &mut Map<String, Value>, key: &str, value: Option<&Value>) {
    if let Some(value) = value.filter(|value| !value.is_null()) {
        chat.insert(key.to_owned(), value.clone());
    }
}

fn put_output_format(chat: &mut Map<String, Value>, body: &Value) {
    let schema = body.pointer("/output_config/format/schema").filter(|schema| schema.is_object());
    if let Some(schema) = schema {
        let named = json!({ "name": "json_schema", "schema": schema });
        let format = json!({ "type": "json_schema", "json_schema": named });
        chat.insert("response_format".to_owned(), format);
    }
}

/// Puts the amount of reasoning. Disabled thinking overrides an effort.
fn put_thinking(chat: &mut Map<String, Value>, body: &Value) {
    put(chat, "reasoning_effort", body.pointer("/output_config/effort"));
    let thinking = body.get("thinking").unwrap_or(&Value::Null);
    match text(thinking, "type") {
        "disabled" => drop(chat.insert("reasoning_effort".to_owned(), json!("none"))),
        "enabled" => put(chat, "thinking_token_budget", thinking.get("budget_tokens")),
        // "adaptive" leaves the depth to the model.
        _ => {}
    }
}

/// The agent's own tools. Tools that Anthropic's servers would run have another type. They are left
/// out, as SGLang leaves them out.
fn own_tools(body: &Value) -> impl Iterator<Item = &Value> {
    let tools = list(body, "tools").iter();
    tools.filter(|tool| matches!(text(tool, "type"), "" | "custom"))
}

fn chat_tool(tool: &Value) -> Result<Value, Untranslatable> {
    let Some(schema) = tool.get("input_schema").and_then(Value::as_object) else {
        return Err(Untranslatable(format!("the tool `{}` has no schema", text(tool, "name"))));
    };
    let mut parameters = schema.clone();
    parameters.entry("type").or_insert_with(|| json!("object"));

    let mut function = Map::new();
    function.insert("name".to_owned(), json!(text(tool, "name")));
    put(&mut function, "description", tool.get("description"));
    function.insert("parameters".to_owned(), Value::Object(parameters));
    put(&mut function, "strict", tool.get("strict"));
    put(&mut function, "defer_loading", tool.get("defer_loading"));
    Ok(json!({ "type": "function", "function": function }))
}

fn put_tool_choice(chat: &mut Map<String, Value>, body: &Value) -> Result<(), Untranslatable> {
    let Some(choice) = body.get("tool_choice").filter(|choice| !choice.is_null()) else {
        chat.insert("tool_choice".to_owned(), json!("auto"));
        return Ok(());
    };
    let chat_choice = match text(choice, "type") {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({ "type": "function", "function": { "name": text(choice, "name") } }),
        kind => return Err(Untranslatable(format!("a tool choice of the type `{kind}`"))),
    };
    chat.insert("tool_choice".to_owned(), chat_choice);
    let is_single = choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true));
    chat.insert("parallel_tool_calls".to_owned(), json!(!is_single));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with `fields`, and what they add to its translation.
    fn check(fields: Value, expected: Value) {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut chat = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        chat.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        assert_eq!(request(&body), Ok(chat));
    }

    #[test]
    fn fields_are_carried_over_or_left_behind() {
        check(
            json!({
                "max_tokens": 9, "stop_sequences": ["a"], "temperature": 1.0, "top_p": 0.5,
                "top_k": 3, "stream": true, "cache_salt": "s", "vllm_xargs": { "x": 1 },
                "chat_template_kwargs": { "k": true }, "kv_transfer_params": {},
                "metadata": { "user_id": "u" }, "betas": ["b"], "service_tier": "auto",
                "cache_control": { "type": "ephemeral" }, "context_management": { "edits": [] },
                "container": "c", "unknown": 1,
            }),
            json!({
                "max_tokens": 9, "stop": ["a"], "temperature": 1.0, "top_p": 0.5, "top_k": 3,
                "cache_salt": "s", "vllm_xargs": { "x": 1 }, "chat_template_kwargs": { "k": true },
                "kv_transfer_params": {}, "stream": true,
                "stream_options": { "include_usage": true },
            }),
        );
        check(
            json!({
                "stop_sequences": [], "temperature": null, "stream": false, "system": null,
                "tools": null, "tool_choice": null, "thinking": null, "output_config": null,
            }),
            json!({}),
        );
    }

    #[test]
    fn thinking_and_output_are_asked_for() {
        check(
            json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } }),
            json!({ "thinking_token_budget": 1024 }),
        );
        check(
            json!({
                "thinking": { "type": "adaptive", "display": "omitted" },
                "output_config": { "effort": "high" },
            }),
            json!({ "reasoning_effort": "high" }),
        );
        check(
            json!({ "thinking": { "type": "disabled" }, "output_config": { "effort": "high" } }),
            json!({ "reasoning_effort": "none" }),
        );
        let schema = json!({ "type": "object" });
        check(
            json!({ "output_config": { "format": { "type": "json_schema", "schema": schema } } }),
            json!({ "response_format": {
                "type": "json_schema", "json_schema": { "name": "json_schema", "schema": schema },
            } }),
        );
    }

    #[test]
    fn tools_and_the_choice_among_them() {
        let custom = json!({
            "name": "f", "description": "d", "cache_control": {}, "type": "custom",
            "input_schema": { "properties": {} }, "strict": true, "defer_loading": null,
        });
        let server = json!({ "type": "web_search_20250305", "name": "web_search" });
        let tools = json!([{ "type": "function", "function": {
            "name": "f", "description": "d",
            "parameters": { "properties": {}, "type": "object" }, "strict": true,
        } }]);
        check(
            json!({ "tools": [server, custom] }),
            json!({ "tools": tools, "tool_choice": "auto" }),
        );
        let named = json!({ "type": "function", "function": { "name": "f" } });
        for (asked, choice, parallel) in [
            (json!({ "type": "auto" }), json!("auto"), true),
            (json!({ "type": "any", "disable_parallel_tool_use": true }), json!("required"), false),
            (json!({ "type": "tool", "name": "f" }), named, true),
            (json!({ "type": "none" }), json!("none"), true),
        ] {
            check(
                json!({ "tools": [custom], "tool_choice": asked }),
                json!({ "tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel }),
            );
        }
        for none in [json!([]), json!([server])] {
            check(json!({ "tools": none, "tool_choice": { "type": "any" } }), json!({}));
        }
    }

    #[test]
    fn what_is_no_request_is_refused_in_words() {
        for body in [
            json!(null),
            json!({ "messages": "hi" }),
            json!({ "messages": [], "tools": [{ "name": "f" }] }),
            json!({ "messages": [], "tools": [{ "name": "f", "input_schema": {} }],
                "tool_choice": { "type": "some" } }),
        ] {
            assert!(!request(&body).unwrap_err().0.is_empty(), "{body}");
        }
    }
}
