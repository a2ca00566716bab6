//! `atif`: Trajectory of the Agent Trajectory Interchange Format 1.7 (read in harbor 0.25).
//!
//! Ids and logprobs of what was sampled stand in each step. Those of prompts do not: they would be
//! the whole history again in every step.

use serde_json::{Map, Value, json};

use super::sample::Sample;
use super::table::{Column, Of};
use crate::rows::TurnRow;
use crate::rows::messages::Message;

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("schema_version", Of::Text(|_| Some("ATIF-v1.7".to_owned()))),
    Column::new("session_id", Of::Text(|s| Some(session(s)))),
    Column::new("trajectory_id", Of::Text(|s| Some(s.row.trajectory_id.clone()))),
    Column::new("agent", Of::Json(|s| Some(agent(s)))),
    Column::new("steps", Of::Jsons(|s| Some(steps(s)))),
    Column::new("final_metrics", Of::Json(|s| Some(final_metrics(s)))),
    Column::new("extra", Of::Json(|s| Some(extra(s)))),
];

fn session(sample: &Sample) -> String {
    format!("{}/{}", sample.row.episode_id, sample.row.attempt)
}

/// The recorder does not know the agent's name and version, which the format asks for.
fn agent(sample: &Sample) -> String {
    let mut agent = json!({ "name": "unknown", "version": "unknown" });
    if !sample.row.model.is_empty() {
        agent["model_name"] = json!(sample.row.model);
    }
    let tools = sample.row.dialogue.tools.iter();
    let tools: Vec<Value> = tools.filter_map(|t| serde_json::from_str(t).ok()).collect();
    if !tools.is_empty() {
        agent["tool_definitions"] = json!(tools);
    }
    agent.to_string()
}

fn extra(sample: &Sample) -> String {
    let mut extra = sample.about();
    extra["reward"] = json!(sample.row.reward);
    extra["status"] = json!(sample.row.status);
    extra.to_string()
}

fn final_metrics(sample: &Sample) -> String {
    let turns = sample.row.turns.iter().filter(|turn| turn.own);
    let (prompt, sampled) = turns.fold((0, 0), |(prompt, sampled), turn| {
        (prompt + i64::from(turn.start), sampled + i64::from(turn.end - turn.start))
    });
    json!({
        "total_prompt_tokens": prompt,
        "total_completion_tokens": sampled,
        "total_steps": steps(sample).len(),
    })
    .to_string()
}

fn steps(sample: &Sample) -> Vec<String> {
    let dialogue = &sample.row.dialogue;
    let given = dialogue.prompt.iter().map(|message| (message, None));
    let said = dialogue.completion.iter().zip(sample.turns_of_completion());
    let mut steps: Vec<Map<String, Value>> = Vec::new();
    for (message, turn) in given.chain(said) {
        let told = message.role == "tool" && steps.last().is_some_and(|s| s["source"] == "agent");
        match steps.last_mut().filter(|_| told) {
            Some(step) => observe(step, message),
            None => steps.push(step(sample, steps.len() + 1, message, turn)),
        }
    }
    steps.into_iter().map(|step| Value::Object(step).to_string()).collect()
}

fn step(
    sample: &Sample,
    id: usize,
    message: &Message,
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
    step.insert("message".to_owned(), json!(message.content.clone().unwrap_or_default()));
    if source == "agent" {
        if let Some(reasoning) = &message.reasoning {
            step.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if let Some(calls) = &message.tool_calls {
            let calls: Vec<Value> = calls.iter().map(|call| tool_call(call)).collect();
            step.insert("tool_calls".to_owned(), json!(calls));
        }
        match turn.filter(|turn| turn.own) {
            Some(turn) => {
                step.insert("metrics".to_owned(), metrics(sample, turn));
                step.insert("llm_call_count".to_owned(), json!(1));
            }
            None => {
                step.insert("is_copied_context".to_owned(), json!(true));
            }
        }
    }
    step
}

fn metrics(sample: &Sample, turn: &TurnRow) -> Value {
    let span = turn.start.max(0) as usize..turn.end.max(0) as usize;
    let tokens = &sample.row.tokens;
    let mut metrics = json!({
        "prompt_tokens": turn.start,
        "completion_tokens": span.len(),
        "extra": { "call_id": turn.call_id, "finish_reason": turn.finish_reason },
    });
    if !span.is_empty() {
        metrics["completion_token_ids"] = json!(tokens.input_ids[span.clone()]);
        metrics["logprobs"] = json!(tokens.logprobs[span]);
    }
    metrics
}

/// Arguments must be an object: a text that is none stands under a key of its own.
fn tool_call(text: &str) -> Value {
    let call: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let of = |path: &str| call.pointer(path).cloned().unwrap_or(Value::Null);
    let arguments = of("/function/arguments");
    let arguments =
        if arguments.is_object() { arguments } else { json!({ "arguments": arguments }) };
    json!({
        "tool_call_id": of("/id").as_str().unwrap_or_default(),
        "function_name": of("/function/name").as_str().unwrap_or_default(),
        "arguments": arguments,
    })
}

/// Adds a tool's result to the step that asked for it. A result may name only calls of its step.
fn observe(step: &mut Map<String, Value>, message: &Message) {
    let id = message.tool_call_id.as_deref();
    let calls = step.get("tool_calls").and_then(Value::as_array);
    let known = calls.into_iter().flatten().any(|c| id.is_some() && c["tool_call_id"] == json!(id));
    let mut result = json!({ "content": message.content.clone().unwrap_or_default() });
    if known {
        result["source_call_id"] = json!(id);
    }
    let observation = step.entry("observation").or_insert_with(|| json!({ "results": [] }));
    if let Some(results) = observation["results"].as_array_mut() {
        results.push(result);
    }
}
