//! `art`: Trajectory (openpipe-art 0.5.23).
//!
//! What is trained is a choice as OpenAI's API returns it, whose tokens are named by their ids. A
//! message that is no choice is not trained.

use serde_json::{Value, json};

use crate::formats::chat_json::{chat, functions_if_any};
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::messages::RowMessage;
use crate::rows::row::TurnRow;

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("messages_and_choices", Getter::Jsons(|s| Some(messages_and_choices(s)))),
    RecordColumn::optional("tools", Getter::Jsons(|s| functions_if_any(&s.row.dialogue.tools))),
    RecordColumn::new("reward", Getter::Float(|s| s.row.score())),
    RecordColumn::optional(
        "initial_policy_version",
        Getter::Int(|s| s.row.tokens.trained_versions().min()),
    ),
    RecordColumn::optional(
        "final_policy_version",
        Getter::Int(|s| s.row.tokens.trained_versions().max()),
    ),
    RecordColumn::new("metrics", Getter::Json(|s| Some(metrics(s)))),
    RecordColumn::new("metadata", Getter::Json(|s| Some(metadata(s)))),
    RecordColumn::new("logs", Getter::Texts(|_| Some(Vec::new()))),
];

fn messages_and_choices(sample: &Sample) -> Vec<String> {
    let messages = sample.messages();
    let turns = sample.turns_of_messages();
    let written = messages.iter().zip(turns).enumerate().map(|(at, (message, turn))| match turn {
        Some(turn) if sample.trained_messages.contains(&at) => choice(sample, message, turn),
        _ => Value::Object(chat(message)),
    });
    written.map(|value| value.to_string()).collect()
}

fn choice(sample: &Sample, message: &RowMessage, turn: &TurnRow) -> Value {
    let tokens = &sample.row.tokens;
    let ids = &tokens.input_ids[turn.span()];
    let logprobs = &tokens.logprobs[turn.span()];
    let content: Vec<Value> = ids
        .iter()
        .zip(logprobs)
        .map(|(id, logprob)| {
            let name = format!("token_id:{id}");
            json!({ "token": name, "logprob": logprob, "bytes": null, "top_logprobs": [] })
        })
        .collect();

    let mut answer = chat(message);
    // The API always has the key.
    answer.entry("content").or_insert(Value::Null);
    json!({
        "index": turn.choice,
        "finish_reason": finish_reason(turn.finish_reason.as_deref()),
        "message": answer,
        "logprobs": { "content": content, "refusal": null },
    })
}

/// Maps a finish reason to one that OpenAI's client knows. A server's own word is a normal end.
fn finish_reason(word: Option<&str>) -> &str {
    match word {
        Some(known @ ("length" | "tool_calls" | "content_filter" | "function_call")) => known,
        _ => "stop",
    }
}

fn metrics(sample: &Sample) -> String {
    json!({ "row_weight": sample.row.row_weight }).to_string()
}

fn metadata(sample: &Sample) -> String {
    let mut metadata = sample.metadata();
    metadata["status"] = json!(sample.row.status);
    metadata.to_string()
}
