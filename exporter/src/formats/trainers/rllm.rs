//! `rllm`: Episode (rLLM 0.3.0, of August 2026). `Episode.from_dict` takes a record.
//!
//! A step has no mask: all of its response is trained. So a step is one trained part of a turn,
//! after everything that stands before it.

use std::ops::Range;

use serde_json::{Value, json};

use crate::formats::chat_json::chat_with_reasoning;
use crate::formats::records::attempts::AttemptRecord;
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::messages::RowMessage;
use crate::rows::row::TurnRow;

pub(crate) const COLUMNS: &[RecordColumn<AttemptRecord>] = &[
    RecordColumn::new("id", Getter::Text(|a| Some(id(a)))),
    RecordColumn::new("task", Getter::Json(|a| Some(task(a)))),
    RecordColumn::new(
        "termination_reason",
        Getter::Text(|a| Some(termination_reason(a).to_owned())),
    ),
    RecordColumn::new("is_correct", Getter::Bool(|a| Some(a.main().is_good))),
    RecordColumn::new("session_id", Getter::Text(|a| Some(session(a)))),
    RecordColumn::new(
        "trajectories",
        Getter::Jsons(|a| Some(a.rows.iter().map(trajectory).collect())),
    ),
    RecordColumn::new("metrics", Getter::Json(|a| Some(metrics(a)))),
    RecordColumn::new("info", Getter::Json(|a| Some(a.main().metadata().to_string()))),
];

/// Returns the comparison key and the number in it. rLLM splits them at the first colon.
fn id(attempt: &AttemptRecord) -> String {
    let main = attempt.main();
    format!("{}:{}", main.comparison_key().replace(':', "%3A"), main.numbers.repetition)
}

fn session(attempt: &AttemptRecord) -> String {
    let row = &attempt.main().row;
    format!("{}/{}", row.episode_id, row.attempt)
}

/// Describes the task as far as it is recorded: by the first message of the user.
fn task(attempt: &AttemptRecord) -> String {
    let main = attempt.main();
    let first = main.row.dialogue.prompt.iter().find(|message| message.role == "user");
    let instruction = first.and_then(|message| message.content.clone()).unwrap_or_default();
    let id = main.row.task_id.clone().unwrap_or_else(|| main.comparison_key());
    json!({ "id": id, "instruction": instruction }).to_string()
}

fn termination_reason(attempt: &AttemptRecord) -> &'static str {
    match attempt.main().row.status.as_str() {
        "completed" => "env_done",
        "truncated" => "max_response_length_exceeded",
        "failed" | "infrastructure_failed" => "error",
        _ => "unknown",
    }
}

fn metrics(attempt: &AttemptRecord) -> String {
    json!({ "rows": attempt.rows.len() }).to_string()
}

fn trajectory(sample: &Sample) -> String {
    let mut steps: Vec<Value> =
        sample.trained_runs().map(|(turn, run)| step(sample, turn, run)).collect();
    if let Some(last) = steps.last_mut() {
        last["done"] = json!(true);
    }
    json!({
        "uid": sample.row.trajectory_id,
        "name": sample.row.kind,
        "task": null,
        "steps": steps,
        "reward": sample.row.score(),
        "info": sample.metadata(),
    })
    .to_string()
}

fn step(sample: &Sample, turn: &TurnRow, run: Range<usize>) -> Value {
    let tokens = &sample.row.tokens;
    let (prompt, answer) = sample.messages_of_turn(turn);
    let messages = prompt.into_iter().chain(answer).map(chat_with_reasoning);
    let RowMessage { reasoning, content, .. } = answer.cloned().unwrap_or_default();
    json!({
        "prompt_ids": tokens.input_ids[..run.start],
        "response_ids": tokens.input_ids[run.clone()],
        "logprobs": tokens.logprobs[run],
        "chat_completions": messages.collect::<Vec<_>>(),

        "observation": null,
        "thought": reasoning.unwrap_or_default(),
        "action": null,
        "model_response": content.unwrap_or_default(),
        "model_output": null,

        "info": { "call_id": turn.call_id, "finish_reason": turn.finish_reason },
        "reward": turn.reward.unwrap_or_default(),
        // The last step of the trajectory is marked later.
        "done": false,
        "mc_return": turn.mc_return.unwrap_or_default(),
        "advantage": sample.row.advantage,
        "weight_version": turn.version_start,
    })
}
