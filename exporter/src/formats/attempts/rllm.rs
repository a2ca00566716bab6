//! `rllm`: Episode (read in rLLM 0.3.0, of August 2026). `Episode.from_dict` takes a record.
//!
//! A step has no mask: all of its response is trained. So a step is what the loss mask lets
//! through of a turn, after all that stands before it.

use serde_json::{Value, json};

use super::{Attempt, messages_of, thoughtful};
use crate::formats::sample::Sample;
use crate::formats::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Attempt>] = &[
    Column::new("id", Of::Text(|a| Some(id(a)))),
    Column::new("task", Of::Json(|a| Some(task(a)))),
    Column::new("termination_reason", Of::Text(|a| Some(ended(a).to_owned()))),
    Column::new("is_correct", Of::Bool(|a| Some(a.main().good))),
    Column::new("session_id", Of::Text(|a| Some(session(a)))),
    Column::new("trajectories", Of::Jsons(|a| Some(a.rows.iter().map(trajectory).collect()))),
    Column::new("metrics", Of::Json(|a| Some(metrics(a)))),
    Column::new("info", Of::Json(|a| Some(a.main().about().to_string()))),
];

/// What it is compared with, and its number there. The first colon parts them.
fn id(attempt: &Attempt) -> String {
    let main = attempt.main();
    format!("{}:{}", main.family().replace(':', "%3A"), main.place.repetition)
}

fn session(attempt: &Attempt) -> String {
    let row = &attempt.main().row;
    format!("{}/{}", row.episode_id, row.attempt)
}

/// A task as far as it is recorded: what the user asked first.
fn task(attempt: &Attempt) -> String {
    let main = attempt.main();
    let asked = main.row.dialogue.prompt.iter().find(|message| message.role == "user");
    let instruction = asked.and_then(|message| message.content.clone()).unwrap_or_default();
    let id = main.row.task_id.clone().unwrap_or_else(|| main.family());
    json!({ "id": id, "instruction": instruction }).to_string()
}

fn ended(attempt: &Attempt) -> &'static str {
    match attempt.main().row.status.as_str() {
        "completed" => "env_done",
        "truncated" => "max_response_length_exceeded",
        "failed" => "error",
        _ => "unknown",
    }
}

fn metrics(attempt: &Attempt) -> String {
    json!({ "rows": attempt.rows.len() }).to_string()
}

fn trajectory(sample: &Sample) -> String {
    let row = &sample.row;
    let mut steps: Vec<Value> = Vec::new();
    for (turn, run) in sample.runs() {
        let (mut messages, answer) = messages_of(sample, turn);
        messages.extend(answer.iter().map(thoughtful));
        let answer = answer.unwrap_or_default();
        steps.push(json!({
            "prompt_ids": row.tokens.input_ids[..run.start],
            "response_ids": row.tokens.input_ids[run.clone()],
            "logprobs": row.tokens.logprobs[run],
            "chat_completions": messages,
            "observation": null,
            "thought": answer.reasoning.unwrap_or_default(),
            "action": null,
            "model_response": answer.content.unwrap_or_default(),
            "model_output": null,
            "info": { "call_id": turn.call_id, "finish_reason": turn.finish_reason },
            "reward": turn.reward.unwrap_or_default(),
            "done": false,
            "mc_return": turn.mc_return.unwrap_or_default(),
            "advantage": row.advantage,
            "weight_version": turn.version_start,
        }));
    }
    if let Some(last) = steps.last_mut() {
        last["done"] = json!(true);
    }
    json!({
        "uid": row.trajectory_id,
        "name": row.kind,
        "task": null,
        "steps": steps,
        "reward": row.reward,
        "info": sample.about(),
    })
    .to_string()
}
