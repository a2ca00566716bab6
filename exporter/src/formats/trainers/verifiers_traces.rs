//! `verifiers-traces`: Episode, a line of `traces.jsonl` (verifiers 0.4: `read_episodes` takes
//! a folder with that file).
//!
//! A row is a trace: a chain of nodes, one for each message. The node of an answer has all tokens
//! since the answer before it, so the nodes of a chain are the tokens of the row.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::call_time::seconds;
use super::replay::ExpertRouting;
use super::verifiers::{failure, metrics};
use crate::formats::chat_json::{content_value, part_text, plain_tool};
use crate::formats::records::attempts::AttemptRecord;
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::notes::Reason;
use crate::rows::annotations::TokenStream;
use crate::rows::messages::RowMessage;
use crate::rows::row::{TurnRow, is_limit};

pub(crate) const COLUMNS: &[RecordColumn<AttemptRecord>] = &[
    RecordColumn::new("id", Getter::Text(|a| Some(id(a)))),
    RecordColumn::new("task", Getter::Json(|a| Some(task(a).to_string()))),
    RecordColumn::new(
        "group",
        Getter::Json(|a| Some(json!({ "id": a.main().comparison_key() }).to_string())),
    ),
    RecordColumn::new("ok", Getter::Bool(|a| Some(failure(a).is_none()))),
    RecordColumn::new("errors", Getter::Jsons(|a| Some(errors(a)))),
    RecordColumn::new("traces", Getter::Jsons(|a| Some(traces(a)))),
];

fn id(attempt: &AttemptRecord) -> String {
    let row = &attempt.main().row;
    format!("{}/{}", row.episode_id, row.attempt)
}

/// Describes the task by its number and its name, which is all that is recorded of it.
fn task(attempt: &AttemptRecord) -> Value {
    let main = attempt.main();
    let key = main.row.task_id.clone().unwrap_or_else(|| main.comparison_key());
    json!({ "type": "Task", "key": key, "data": { "idx": main.numbers.group, "id": key } })
}

fn errors(attempt: &AttemptRecord) -> Vec<String> {
    let error = |word| json!({ "type": word, "message": word }).to_string();
    failure(attempt).map(error).into_iter().collect()
}

fn traces(attempt: &AttemptRecord) -> Vec<String> {
    attempt.rows.iter().map(|sample| trace(attempt, sample).to_string()).collect()
}

fn trace(attempt: &AttemptRecord, sample: &Sample) -> Value {
    let row = &sample.row;
    let tools = tools(sample);
    let Chain { nodes, calls } = Chain::of(sample, &tools);
    let errors: Vec<Value> =
        errors(attempt).iter().filter_map(|error| serde_json::from_str(error).ok()).collect();
    let metrics: Value = serde_json::from_str(&metrics(attempt)).unwrap_or_default();
    let began = row.turns.first().map_or(0.0, |turn| seconds(&turn.call_id));

    json!({
        "version": 1,
        "id": row.trajectory_id,
        "task": task(attempt),
        "agent": {
            "config": { "model": row.model },
            "name": row.kind,
            "trainable": row.tokens.trained() > 0,
        },
        "tools": tools,
        "nodes": nodes,
        "calls": calls,

        // A reward of null says that nobody scored the path.
        "rewards": { "reward": row.score().map(|score| json!({ "score": score })) },
        "metrics": metrics,
        "info": info(sample),
        "is_completed": true,
        "ok": errors.is_empty(),
        "stop_condition": stop_condition(sample),
        "errors": errors,
        "timing": { "start": began },
    })
}

/// Names what stopped an attempt, in the words of verifiers where it has one. A limit of the server
/// is told by the last call; of those of an agent's own loop the number of turns is the usual one.
fn stop_condition(sample: &Sample) -> &str {
    let was_cut_by_server = is_limit(sample.finish_reason().as_deref());
    match sample.row.status.as_str() {
        "truncated" if !was_cut_by_server => "max_turns",
        "completed" | "truncated" => "agent_completed",
        other => other,
    }
}

/// Writes what a trace has no field for. What a trainer replays is here, aligned to all tokens,
/// because the fields of nodes hold raw bytes, which a line of JSON cannot.
fn info(sample: &Sample) -> Value {
    let mut info = sample.metadata();
    info["parent_trajectory_id"] = json!(sample.row.parent_trajectory_id);
    info["fork_position"] = json!(sample.row.fork_position);
    let has_tokens = !sample.row.reasons.contains(&Reason::Retokenized);
    info["sampling_mask"] = sample
        .kept_of_trained()
        .filter(|_| has_tokens)
        .map_or(Value::Null, |(ids, counts)| json!({ "ids": ids, "counts": counts }));
    let routing = sample.routing_of_all().filter(|_| has_tokens);
    info["routed_experts"] = routing.map_or(Value::Null, |routing| routed_experts(&routing));
    info
}

fn routed_experts(routing: &ExpertRouting) -> Value {
    let bytes: Vec<u8> = routing.values.iter().flat_map(|expert| expert.to_le_bytes()).collect();
    json!({
        "data": STANDARD.encode(bytes),
        "dtype": "uint16",
        "shape": [routing.tokens(), routing.layers, routing.experts],
    })
}

fn tools(sample: &Sample) -> Vec<Value> {
    let tools = sample.row.dialogue.tools.iter().map(|tool| plain_tool(tool));
    tools.filter(|tool| tool.contains_key("name")).map(Value::Object).collect()
}

/// The nodes of a row, and the calls that sampled some of them.
struct Chain {
    nodes: Vec<Value>,
    calls: Vec<Value>,
}

impl Chain {
    fn of(sample: &Sample, tools: &[Value]) -> Self {
        let mut chain = Self { nodes: Vec::new(), calls: Vec::new() };
        let turns = sample.turns_of_messages();
        let mut end = 0;
        for (at, message) in sample.messages().iter().enumerate() {
            // A prompt's message came with the call that read it.
            let time = turns[at..].iter().flatten().next().map(|turn| seconds(&turn.call_id));
            let tokens = match turns[at] {
                Some(turn) => end..turn.span().end.max(end),
                None => end..end,
            };
            end = tokens.end;
            let mut node = chain.node(message_of(message), time.unwrap_or_default());
            node["sampled"] = json!(turns[at].is_some());
            add_tokens(&mut node, sample, tokens);
            chain.nodes.push(node);
        }

        // Tokens of turns that are no message.
        let rest = end..sample.row.tokens.input_ids.len();
        if !rest.is_empty() {
            let mut node = chain.node(json!({ "role": "assistant", "content": "" }), 0.0);
            node["sampled"] = json!(true);
            add_tokens(&mut node, sample, rest);
            chain.nodes.push(node);
        }
        if let Some(root) = chain.nodes.first_mut().filter(|_| !tools.is_empty()) {
            root["tools"] = json!(tools);
        }
        chain.calls =
            sample.row.turns.iter().map(|turn| call(turns_node(&turns, turn), turn)).collect();
        chain
    }

    /// Makes a node behind the last one.
    fn node(&self, message: Value, timestamp: f64) -> Value {
        let parent = self.nodes.len().checked_sub(1);
        json!({ "parent": parent, "message": message, "timestamp": timestamp })
    }
}

/// Adds a part of the row's tokens; none that were made from text, whose logprobs are zeros that a
/// trainer would take for real.
fn add_tokens(node: &mut Value, sample: &Sample, part: std::ops::Range<usize>) {
    let row = &sample.row;
    if row.reasons.contains(&Reason::Retokenized) {
        return;
    }
    let mask: Vec<bool> = row.tokens.loss_mask[part.clone()].iter().map(|m| *m == 1).collect();
    let logprobs =
        row.tokens.logprobs[part.clone()].iter().zip(&mask).filter(|(_, is_trained)| **is_trained);
    let logprobs: Vec<f32> = logprobs.map(|(logprob, _)| *logprob).collect();
    node["advantages"] = row.advantage.map(|advantage| vec![advantage; logprobs.len()]).into();
    node["token_ids"] = json!(row.tokens.input_ids[part.clone()]);
    node["mask"] = json!(mask);
    node["logprobs"] = json!(logprobs);

    for stream in &row.annotations {
        add_stream(node, stream, &stream.values[part.clone()], &mask);
    }
}

/// Adds what a trainer said of the tokens of a node, under a name for which a node has a place. It
/// has one number for each trained token, so a stream that lacks one is left out.
fn add_stream(node: &mut Value, stream: &TokenStream, values: &[Option<f32>], mask: &[bool]) {
    let trained = values.iter().zip(mask).filter(|(_, is_trained)| **is_trained);
    let Some(of_trained) = trained.map(|(value, _)| *value).collect::<Option<Vec<f32>>>() else {
        return;
    };

    match stream.name.as_str() {
        _ if of_trained.is_empty() => {}
        name @ ("trainer_logprobs" | "reference_logprobs" | "entropies" | "advantages") => {
            node[name] = json!(of_trained);
        }
        // Weights have one for each token.
        name @ "loss_weights" => {
            let weight = |(value, is_trained): (&Option<f32>, &bool)| {
                if *is_trained { value.unwrap_or_default() } else { 0.0 }
            };
            let weights: Vec<f32> = values.iter().zip(mask).map(weight).collect();
            node[name] = json!({ name: weights });
        }
        _ => {}
    }
}

/// Returns the node of a turn's message, if it has one.
fn turns_node(turns: &[Option<&TurnRow>], turn: &TurnRow) -> Option<usize> {
    turns.iter().position(|of_message| *of_message == Some(turn))
}

fn call(node: Option<usize>, turn: &TurnRow) -> Value {
    let finish_reason = match turn.finish_reason.as_deref() {
        reason if is_limit(reason) => Some("length"),
        Some("tool_calls" | "function_call" | "tool_use") => Some("tool_calls"),
        Some("stop" | "end_turn" | "stop_sequence") => Some("stop"),
        _ => None,
    };
    json!({
        "node": node,
        "model": turn.model,
        "sampling": turn.temperature.map(|temperature| json!({ "temperature": temperature })),
        "finish_reason": finish_reason,
        "usage": { "prompt_tokens": turn.start, "completion_tokens": turn.span().len() },
    })
}

/// Writes a message of one of the four kinds that verifiers knows.
fn message_of(message: &RowMessage) -> Value {
    let content = || content(message.content.as_deref().unwrap_or_default());
    match message.role.as_str() {
        "assistant" => json!({
            "role": "assistant",
            "content": message.content.as_deref().map(plain_text),
            "reasoning_content": message.reasoning,
            "tool_calls": message.tool_calls.as_ref().map(|calls| {
                calls.iter().map(|call| tool_call(call)).collect::<Vec<_>>()
            }),
        }),
        "tool" | "function" => json!({
            "role": "tool",
            "tool_call_id": message.tool_call_id.clone().unwrap_or_default(),
            "content": content(),
            "name": message.name,
        }),
        "system" | "developer" => json!({ "role": "system", "content": content() }),
        _ => json!({ "role": "user", "content": content() }),
    }
}

/// Writes the content of an answer, which is one text.
fn plain_text(text: &str) -> String {
    match content_value(text) {
        Value::Array(parts) => parts.iter().map(part_text).collect(),
        _ => text.to_owned(),
    }
}

/// Writes a content; parts that are neither texts nor pictures are texts of their JSON.
fn content(text: &str) -> Value {
    let Value::Array(parts) = content_value(text) else { return json!(text) };
    let part = |part: &Value| match part.pointer("/image_url/url") {
        Some(url) => json!({ "type": "image_url", "image_url": { "url": url } }),
        None => json!({ "type": "text", "text": part_text(part) }),
    };
    parts.iter().map(part).collect()
}

fn tool_call(text: &str) -> Value {
    let call: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let is_custom = call["type"] == "custom";
    let (called, said) = match is_custom {
        true => (&call["custom"], &call["custom"]["input"]),
        false => (&call["function"], &call["function"]["arguments"]),
    };
    let arguments = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
    json!({
        "id": call["id"].as_str().unwrap_or_default(),
        "type": if is_custom { "custom" } else { "function" },
        "name": called["name"].as_str().unwrap_or_default(),
        "arguments": arguments,
    })
}
