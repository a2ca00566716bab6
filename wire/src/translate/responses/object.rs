//! The response object: fields repeated from the request, and counts and logprobs of the reply.

use serde_json::{Map, Value, json};

/// The number that vLLM sends for a logprob that it does not have.
const NO_LOGPROB: f64 = -9999.0;

/// Returns true if the agent asked for the logprobs of the text.
pub(super) fn wants_logprobs(request: &Map<String, Value>) -> bool {
    includes(request, "message.output_text.logprobs")
}

/// Returns true if the agent asked for reasoning in a form that it can send back.
pub(super) fn wants_sealed(request: &Map<String, Value>) -> bool {
    includes(request, "reasoning.encrypted_content")
}

fn includes(request: &Map<String, Value>, what: &str) -> bool {
    let include = request.get("include").and_then(Value::as_array);
    include.into_iter().flatten().any(|included| included == what)
}

/// The object before the model has sampled anything. It has every key that OpenAI's clients read.
/// A field that the request left open is null if only the server knows its value.
pub(super) fn template(request: &Map<String, Value>) -> Map<String, Value> {
    let echo = |key: &str, default: Value| match request.get(key) {
        None | Some(Value::Null) => default,
        Some(value) => value.clone(),
    };

    let object = json!({
        "id": null,
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "background": false,
        "completed_at": null,
        "error": null,
        "incomplete_details": null,
        "instructions": echo("instructions", Value::Null),
        "max_output_tokens": echo("max_output_tokens", Value::Null),
        "max_tool_calls": echo("max_tool_calls", Value::Null),
        "model": echo("model", json!("")),
        "output": [],
        "parallel_tool_calls": echo("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "prompt_cache_key": echo("prompt_cache_key", Value::Null),
        "reasoning": reasoning(request.get("reasoning")),
        "safety_identifier": echo("safety_identifier", Value::Null),
        "service_tier": echo("service_tier", json!("auto")),
        "store": false,
        "temperature": echo("temperature", Value::Null),
        "text": text(request.get("text")),
        "tool_choice": echo("tool_choice", json!("auto")),
        "tools": echo("tools", json!([])),
        "top_logprobs": echo("top_logprobs", json!(0)),
        "top_p": echo("top_p", Value::Null),
        "truncation": echo("truncation", json!("disabled")),
        "usage": null,
        "user": echo("user", Value::Null),
        "metadata": echo("metadata", json!({})),
    });

    match object {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn reasoning(asked: Option<&Value>) -> Value {
    match asked {
        Some(Value::Object(asked)) => json!(asked),
        _ => json!({ "effort": null, "summary": null }),
    }
}

fn text(asked: Option<&Value>) -> Value {
    let mut text = asked.and_then(Value::as_object).cloned().unwrap_or_default();
    if text.get("format").is_none_or(Value::is_null) {
        text.insert("format".to_owned(), json!({ "type": "text" }));
    }
    Value::Object(text)
}

/// Chat's usage in the form of Responses.
pub(super) fn usage(chat: &Value) -> Value {
    let count = |place: &str| chat.pointer(place).and_then(Value::as_u64);
    let input = count("/prompt_tokens").unwrap_or(0);
    let output = count("/completion_tokens").unwrap_or(0);
    // SGLang puts the reasoning count beside the details.
    let reasoning =
        count("/completion_tokens_details/reasoning_tokens").or_else(|| count("/reasoning_tokens"));
    // OpenAI's name, then vLLM's.
    let written = count("/prompt_tokens_details/cache_write_tokens")
        .or_else(|| count("/prompt_tokens_details/created_cache_tokens"));

    json!({
        "input_tokens": input,
        "input_tokens_details": {
            "cached_tokens": count("/prompt_tokens_details/cached_tokens").unwrap_or(0),
            "cache_write_tokens": written.unwrap_or(0),
        },
        "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": reasoning.unwrap_or(0) },
        "total_tokens": count("/total_tokens").unwrap_or_else(|| input.saturating_add(output)),
    })
}

/// Chat's entries for the tokens of a chunk, with the keys that Responses has.
pub(super) fn logprobs(choice: &Value) -> Vec<Value> {
    let content = choice.pointer("/logprobs/content").and_then(Value::as_array);
    content.into_iter().flatten().map(logprob_with_alternatives).collect()
}

fn logprob_with_alternatives(token: &Value) -> Value {
    let alternatives = token.get("top_logprobs").and_then(Value::as_array);
    let mut entry = logprob(token);
    entry["top_logprobs"] = alternatives.into_iter().flatten().map(logprob).collect();
    entry
}

fn logprob(entry: &Value) -> Value {
    json!({
        "token": entry.get("token").and_then(Value::as_str).unwrap_or_default(),
        "bytes": entry.get("bytes").filter(|bytes| bytes.is_array()).cloned().unwrap_or(json!([])),
        // In a stream, vLLM leaves an unknown logprob out; elsewhere it sends this number.
        "logprob": entry.get("logprob").and_then(Value::as_f64).unwrap_or(NO_LOGPROB),
    })
}
