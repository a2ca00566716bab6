//! The fields of a Responses request as those of a chat request.

use serde_json::{Map, Value, json};

use super::super::Untranslatable;
use super::items::Messages;
use super::{object, tools};

/// Fields that stand for something the provider keeps, which a chat server does not have.
const STATEFUL: [(&str, &str); 6] = [
    ("previous_response_id", "continues a stored response"),
    ("previous_response", "continues a stored response"),
    ("previous_input_messages", "continues a stored response"),
    ("conversation", "continues a stored conversation"),
    ("prompt", "names a stored prompt"),
    ("background", "asks for a reply to be fetched later"),
];

/// Fields that are read elsewhere, or that mean something on the Responses wire alone. What is
/// not named here is sampling, or an extension of the server, and is passed on as it is.
const OURS: [&str; 34] = [
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
    // A chat server would obey these, and the Responses route knows none of them.
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
/// [`Untranslatable`] when the request leans on state or on content that only the provider has.
pub(crate) fn request(body: &Value) -> Result<Value, Untranslatable> {
    let Value::Object(body) = body else {
        return Err(Untranslatable("the body is not a JSON object".to_owned()));
    };
    stateless(body)?;
    in_chat(body)
}

/// What a recorded request says for itself, whatever it goes on from.
///
/// # Errors
/// [`Untranslatable`] when it has content that chat has no form for.
pub(crate) fn recorded(body: &Value) -> Result<Value, Untranslatable> {
    in_chat(body.as_object().unwrap_or(&Map::new()))
}

fn in_chat(body: &Map<String, Value>) -> Result<Value, Untranslatable> {
    let mut chat = Map::new();
    if let Some(model) = given(body, "model") {
        chat.insert("model".to_owned(), model.clone());
    }
    chat.insert("messages".to_owned(), messages(body)?);
    tools::put(body, &mut chat)?;
    limits(body, &mut chat);
    shape(body, &mut chat);
    if body.get("stream") == Some(&Value::Bool(true)) {
        chat.insert("stream".to_owned(), json!(true));
        // The last event of a response carries the usage, which chat sends only when asked.
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    for (key, value) in body {
        let known = OURS.contains(&key.as_str()) || STATEFUL.iter().any(|(name, _)| name == key);
        if !known && !value.is_null() && !chat.contains_key(key) {
            chat.insert(key.clone(), value.clone());
        }
    }
    Ok(Value::Object(chat))
}

/// A field that is there and not null.
fn given<'a>(body: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    body.get(key).filter(|value| !value.is_null())
}

fn stateless(body: &Map<String, Value>) -> Result<(), Untranslatable> {
    for (key, meaning) in STATEFUL {
        if given(body, key).is_some_and(|value| value != &Value::Bool(false)) {
            return Err(Untranslatable(format!(
                "`{key}` {meaning}, and a chat server keeps none: send the whole input instead"
            )));
        }
    }
    Ok(())
}

fn messages(body: &Map<String, Value>) -> Result<Value, Untranslatable> {
    let mut messages = Messages::default();
    if let Some(Value::String(text)) = body.get("instructions")
        && !text.is_empty()
    {
        messages.say("system", json!(text));
    }
    match body.get("input") {
        Some(Value::String(text)) => messages.say("user", json!(text)),
        Some(Value::Array(items)) => {
            for item in items {
                messages.item(item)?;
            }
        }
        _ => return Err(Untranslatable("`input` is neither a text nor a list".to_owned())),
    }
    Ok(Value::Array(messages.finish()))
}

fn limits(body: &Map<String, Value>, chat: &mut Map<String, Value>) {
    if let Some(limit) = given(body, "max_output_tokens") {
        // The older name: every chat server knows it, and many know no other.
        chat.insert("max_tokens".to_owned(), limit.clone());
    }
    if object::wants_logprobs(body) {
        chat.insert("logprobs".to_owned(), json!(true));
        if let Some(count) = given(body, "top_logprobs") {
            chat.insert("top_logprobs".to_owned(), count.clone());
        }
    }
}

/// What the answer has to look like, and how hard to think about it.
fn shape(body: &Map<String, Value>, chat: &mut Map<String, Value>) {
    let text = body.get("text");
    let format = text.and_then(|text| text.get("format"));
    match format.and_then(|format| format.get("type")).and_then(Value::as_str) {
        Some("json_object") => {
            chat.insert("response_format".to_owned(), json!({ "type": "json_object" }));
        }
        Some("json_schema") => {
            let schema: Map<String, Value> = ["name", "description", "schema", "strict"]
                .into_iter()
                .filter_map(|key| Some((key.to_owned(), format?.get(key)?.clone())))
                .filter(|(_, value)| !value.is_null())
                .collect();
            let format = json!({ "type": "json_schema", "json_schema": schema });
            chat.insert("response_format".to_owned(), format);
        }
        _ => {}
    }
    let verbosity = text.and_then(|text| text.get("verbosity"));
    let effort = body.get("reasoning").and_then(|reasoning| reasoning.get("effort"));
    for (key, value) in [("verbosity", verbosity), ("reasoning_effort", effort)] {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            chat.insert(key.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests;
