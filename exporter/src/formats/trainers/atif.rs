//! `atif`: Trajectory of the Agent Trajectory Interchange Format 1.8 (harbor 0.26).
//!
//! Each step has the ids and logprobs of what was sampled. It does not have those of the prompt,
//! which would repeat the whole history in every step.

use serde_json::{Map, Value, json};

use crate::formats::chat_json::{content_value, part_text};
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::messages::RowMessage;
use crate::rows::row::TurnRow;

/// The types of pictures and sounds that the format has.
const MEDIA: [&str; 12] = [
    "audio/aac",
    "audio/aiff",
    "audio/flac",
    "audio/mp4",
    "audio/mpeg",
    "audio/ogg",
    "audio/wav",
    "audio/webm",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/webp",
];

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("schema_version", Getter::Text(|_| Some("ATIF-v1.8".to_owned()))),
    RecordColumn::new("session_id", Getter::Text(|s| Some(session(s)))),
    RecordColumn::new("trajectory_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
    RecordColumn::new("agent", Getter::Json(|s| Some(agent(s)))),
    RecordColumn::new("steps", Getter::Jsons(|s| Some(steps(s)))),
    RecordColumn::new("final_metrics", Getter::Json(|s| Some(final_metrics(s)))),
    RecordColumn::new("extra", Getter::Json(|s| Some(extra(s)))),
];

fn session(sample: &Sample) -> String {
    format!("{}/{}", sample.row.episode_id, sample.row.attempt)
}

/// Describes the agent. Its name and version, which the format requires, are not recorded.
fn agent(sample: &Sample) -> String {
    let mut agent = json!({ "name": "unknown", "version": "unknown" });
    if !sample.row.model.is_empty() {
        agent["model_name"] = json!(sample.row.model);
    }
    let tools = sample.row.dialogue.tools.iter();
    let definitions: Vec<Value> = tools.filter_map(|t| serde_json::from_str(t).ok()).collect();
    if !definitions.is_empty() {
        agent["tool_definitions"] = json!(definitions);
    }
    agent.to_string()
}

fn extra(sample: &Sample) -> String {
    let mut extra = sample.metadata();
    extra["reward"] = json!(sample.row.score());
    extra["status"] = json!(sample.row.status);
    extra.to_string()
}

fn final_metrics(sample: &Sample) -> String {
    let own_turns: Vec<&TurnRow> = sample.row.turns.iter().filter(|turn| turn.own).collect();
    let prompt: i64 = own_turns.iter().map(|turn| i64::from(turn.start)).sum();
    let sampled: i64 = own_turns.iter().map(|turn| i64::from(turn.end - turn.start)).sum();
    json!({
        "total_prompt_tokens": prompt,
        "total_completion_tokens": sampled,
        "total_steps": steps(sample).len(),
    })
    .to_string()
}

fn steps(sample: &Sample) -> Vec<String> {
    let dialogue = &sample.row.dialogue;
    let prompt = dialogue.prompt.iter().map(|message| (message, None));
    let completion = dialogue.completion.iter().zip(sample.turns_of_completion());
    let mut steps: Vec<Map<String, Value>> = Vec::new();
    for (message, turn) in prompt.chain(completion) {
        // The result of a tool belongs to the step that called it.
        let of_agent = steps.last_mut().filter(|step| step["source"] == "agent");
        match of_agent.filter(|_| message.role == "tool") {
            Some(step) => add_observation(step, message),
            None => steps.push(step(sample, steps.len() + 1, message, turn)),
        }
    }
    steps.into_iter().map(|step| Value::Object(step).to_string()).collect()
}

fn step(
    sample: &Sample,
    id: usize,
    message: &RowMessage,
    turn: Option<&TurnRow>,
) -> Map<String, Value> {
    let source = match message.role.as_str() {
        "assistant" => "agent",
        "system" | "developer" => "system",
        _ => "user",
    };
    let mut step = Map::new();
    step.insert("step_id".to_owned(), json!(id));
    step.insert("source".to_owned(), json!(source));
    step.insert("message".to_owned(), content(message));
    if source == "agent" {
        add_answer(&mut step, message);
        add_turn(&mut step, sample, turn.filter(|turn| turn.own));
    }
    step
}

/// Writes a content: a text, or parts where it holds a picture or a sound. Other parts are texts of
/// JSON.
fn content(message: &RowMessage) -> Value {
    let text = message.content.as_deref().unwrap_or_default();
    match content_value(text) {
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => json!(text),
    }
}

fn part(part: &Value) -> Value {
    media(part).unwrap_or_else(|| json!({ "type": "text", "text": part_text(part) }))
}

/// Writes a picture or a sound; none of a type that the format does not have.
fn media(part: &Value) -> Option<Value> {
    let url_at = |path| part.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let (kind, url) = match part["type"].as_str()? {
        "image_url" => ("image", url_at("/image_url/url")?),
        "audio_url" => ("audio", url_at("/audio_url/url")?),
        "input_audio" => {
            let [format, data] = ["format", "data"].map(|name| part["input_audio"][name].as_str());
            ("audio", format!("data:audio/{};base64,{}", format?, data?))
        }
        _ => return None,
    };
    let source = json!({ "media_type": media_type(kind, &url)?, "path": url });
    Some(json!({ "type": kind, "source": source }))
}

/// Returns the type of a picture or a sound, as its address names it.
fn media_type(kind: &str, url: &str) -> Option<String> {
    let named = match url.strip_prefix("data:") {
        Some(data) => data.split([';', ',']).next()?.split_once('/')?.1,
        None => url.split(['?', '#']).next()?.rsplit('.').next()?,
    };
    let named = named.to_ascii_lowercase();
    let known = match named.trim_start_matches("x-") {
        "jpg" => "jpeg",
        "mp3" | "mpga" => "mpeg",
        "m4a" => "mp4",
        "oga" => "ogg",
        "aif" => "aiff",
        "wave" | "vnd.wave" => "wav",
        other => other,
    };
    let named = format!("{kind}/{known}");
    MEDIA.contains(&named.as_str()).then_some(named)
}

/// Adds the reasoning and the tool calls of an answer.
fn add_answer(step: &mut Map<String, Value>, message: &RowMessage) {
    if let Some(reasoning) = &message.reasoning {
        step.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    if let Some(calls) = &message.tool_calls {
        let calls: Vec<Value> = calls.iter().map(|call| tool_call(call)).collect();
        step.insert("tool_calls".to_owned(), json!(calls));
    }
}

/// Adds the metrics of the turn that sampled an answer; none for an answer copied from another row.
fn add_turn(step: &mut Map<String, Value>, sample: &Sample, turn: Option<&TurnRow>) {
    match turn {
        Some(turn) => {
            step.insert("metrics".to_owned(), metrics(sample, turn));
            step.insert("llm_call_count".to_owned(), json!(1));
        }
        None => {
            step.insert("is_copied_context".to_owned(), json!(true));
        }
    }
}

fn metrics(sample: &Sample, turn: &TurnRow) -> Value {
    let tokens = &sample.row.tokens;
    let mut metrics = json!({
        "prompt_tokens": turn.start,
        "completion_tokens": turn.span().len(),
        "extra": { "call_id": turn.call_id, "finish_reason": turn.finish_reason },
    });
    if !turn.span().is_empty() {
        metrics["completion_token_ids"] = json!(tokens.input_ids[turn.span()]);
        metrics["logprobs"] = json!(tokens.logprobs[turn.span()]);
    }
    metrics
}

/// Writes a tool call. Arguments must be an object, so other arguments go under a key of their own.
fn tool_call(text: &str) -> Value {
    let call: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let part = |path: &str| call.pointer(path).cloned().unwrap_or(Value::Null);
    let arguments = match part("/function/arguments") {
        object @ Value::Object(_) => object,
        other => json!({ "arguments": other }),
    };
    json!({
        "tool_call_id": part("/id").as_str().unwrap_or_default(),
        "function_name": part("/function/name").as_str().unwrap_or_default(),
        "arguments": arguments,
    })
}

/// Adds a tool's result to the step that called it. A result may name only calls of its step.
fn add_observation(step: &mut Map<String, Value>, message: &RowMessage) {
    let id = message.tool_call_id.as_deref();
    let mut calls = step.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let is_of_step = id.is_some() && calls.any(|call| call["tool_call_id"] == json!(id));
    let mut result = json!({ "content": content(message) });
    if is_of_step {
        result["source_call_id"] = json!(id);
    }
    let observation = step.entry("observation").or_insert_with(|| json!({ "results": [] }));
    if let Some(results) = observation["results"].as_array_mut() {
        results.push(result);
    }
}
