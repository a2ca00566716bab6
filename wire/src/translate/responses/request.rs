//! The fields of a Responses request as those of a chat request.

use serde_json::{Map, Value, json};

use super::items::Messages;
use super::{object, tools};
use crate::chat::{PartReader, Untranslatable};
use crate::json::truth;

/// Fields that refer to state which only the provider keeps, and the meaning of each.
const STATEFUL: [(&str, &str); 6] = [
    ("previous_response_id", "continues a stored response"),
    ("previous_response", "continues a stored response"),
    ("previous_input_messages", "continues a stored response"),
    ("conversation", "continues a stored conversation"),
    ("prompt", "names a stored prompt"),
    ("background", "asks for a reply to be fetched later"),
];

/// Fields that are translated, or that have a meaning on the Responses wire only. All other fields
/// are sampling parameters or extensions of the server, and are passed on as they are.
const NOT_PASSED_ON: [&str; 34] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stream",
    "stream_options",
    "max_output_tokens",
    "max_tool_calls",
    "text",
    "reasoning",
    "include",
    "top_logprobs",
    "metadata",
    "client_metadata",
    "store",
    "truncation",
    "context_management",
    "moderation",
    "prompt_cache_options",
    "prompt_cache_retention",
    "enable_response_messages",
    // A chat server would apply these, and the Responses route knows none of them.
    "messages",
    "functions",
    "function_call",
    "n",
    "logprobs",
    "max_tokens",
    "max_completion_tokens",
    "response_format",
    "reasoning_effort",
    "modalities",
    "audio",
];

/// The body for `/v1/chat/completions` in place of an OpenAI `/v1/responses` one.
///
/// # Errors
/// [`Untranslatable`] if the request refers to state or content that only the provider has.
pub(crate) fn request(body: &Value) -> Result<Value, Untranslatable> {
    let Value::Object(body) = body else {
        return Err(Untranslatable("the body is not a JSON object".to_owned()));
    };
    refuse_state(body)?;
    let mut chat = Map::new();
    if let Some(model) = filled(body, "model") {
        chat.insert("model".to_owned(), model.clone());
    }
    let messages = messages(body, PartReader::strict())?;
    chat.insert("messages".to_owned(), Value::Array(messages));
    tools::put(body, &mut chat)?;
    put_limits(body, &mut chat);
    put_output_format(body, &mut chat);
    put_effort(body, &mut chat);

    if body.get("stream").and_then(truth) == Some(true) {
        chat.insert("stream".to_owned(), json!(true));
        // The last event of a response has the usage, which chat sends only if asked.
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }

    for (key, value) in body {
        let is_ours =
            NOT_PASSED_ON.contains(&key.as_str()) || STATEFUL.iter().any(|(name, _)| name == key);
        if !is_ours && !value.is_null() && !chat.contains_key(key) {
            chat.insert(key.clone(), value.clone());
        }
    }
    Ok(Value::Object(chat))
}

/// The messages and tools of a recorded body in chat's form, without the conversation that it goes
/// on from. What has no form there is kept with a message beside it.
pub(crate) fn recorded(body: &Value) -> Value {
    let none = Map::new();
    let body = body.as_object().unwrap_or(&none);
    let messages = messages(body, PartReader::lenient()).unwrap_or_default();
    json!({ "messages": messages, "tools": tools::recorded(body) })
}

/// The value under `key`, if it is not null.
fn filled<'a>(body: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    body.get(key).filter(|value| !value.is_null())
}

fn refuse_state(body: &Map<String, Value>) -> Result<(), Untranslatable> {
    for (key, meaning) in STATEFUL {
        let is_no = |value: &Value| match key {
            "background" => truth(value) == Some(false),
            _ => value == &Value::Bool(false),
        };
        if filled(body, key).is_some_and(|value| !is_no(value)) {
            return Err(Untranslatable(format!(
                "`{key}` {meaning}, and a chat server keeps none: send the whole input instead"
            )));
        }
    }
    Ok(())
}

fn messages(body: &Map<String, Value>, reader: PartReader) -> Result<Vec<Value>, Untranslatable> {
    let is_strict = reader.is_strict();
    let mut messages = Messages::new(reader);

    match body.get("instructions") {
        Some(Value::String(text)) if !text.is_empty() => messages.push("system", json!(text)),
        Some(Value::Array(_)) if is_strict => {
            return Err(Untranslatable("`instructions` is a list of items".to_owned()));
        }
        Some(Value::Array(items)) => {
            for item in items {
                messages.push_item(item)?;
            }
        }
        _ => {}
    }

    match body.get("input") {
        Some(Value::String(text)) => messages.push("user", json!(text)),
        Some(Value::Array(items)) => {
            for item in items {
                messages.push_item(item)?;
            }
        }
        _ if !is_strict => {}
        _ => return Err(Untranslatable("`input` is neither a text nor a list".to_owned())),
    }
    Ok(messages.finish())
}

fn put_limits(body: &Map<String, Value>, chat: &mut Map<String, Value>) {
    if let Some(limit) = filled(body, "max_output_tokens") {
        // The older name: every chat server knows it, and many know no other.
        chat.insert("max_tokens".to_owned(), limit.clone());
    }
    if object::wants_logprobs(body) {
        chat.insert("logprobs".to_owned(), json!(true));
        if let Some(count) = filled(body, "top_logprobs") {
            chat.insert("top_logprobs".to_owned(), count.clone());
        }
    }
}

fn put_output_format(body: &Map<String, Value>, chat: &mut Map<String, Value>) {
    let Some(format) = body.get("text").and_then(|text| text.get("format")) else { return };
    let chat_format = match format.get("type").and_then(Value::as_str) {
        Some("json_object") => json!({ "type": "json_object" }),
        Some("json_schema") => {
            let schema: Map<String, Value> = ["name", "description", "schema", "strict"]
                .into_iter()
                .filter_map(|key| Some((key.to_owned(), format.get(key)?.clone())))
                .filter(|(_, value)| !value.is_null())
                .collect();
            json!({ "type": "json_schema", "json_schema": schema })
        }
        _ => return,
    };
    chat.insert("response_format".to_owned(), chat_format);
}

/// Puts the amount of text and of reasoning.
fn put_effort(body: &Map<String, Value>, chat: &mut Map<String, Value>) {
    let verbosity = body.get("text").and_then(|text| text.get("verbosity"));
    let effort = body.get("reasoning").and_then(|reasoning| reasoning.get("effort"));
    for (key, value) in [("verbosity", verbosity), ("reasoning_effort", effort)] {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            chat.insert(key.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests;
