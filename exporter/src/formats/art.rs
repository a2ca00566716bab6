//! `art`: Trajectory (read in openpipe-art 0.5.18).
//!
//! What is trained is a choice as OpenAI's API gives it, whose tokens are named by their ids; a
//! message that is none is not trained.

use serde_json::{Value, json};

use super::openai::chat;
use super::sample::Sample;
use super::table::{Column, Of};
use crate::rows::TurnRow;
use crate::rows::messages::Message;

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("messages_and_choices", Of::Jsons(|s| Some(messages_and_choices(s)))),
    Column::optional("tools", Of::Jsons(|s| some(&s.row.dialogue.tools))),
    Column::new("reward", Of::Float(|s| s.row.reward)),
    Column::optional("initial_policy_version", Of::Int(|s| s.row.tokens.trained_versions().min())),
    Column::optional("final_policy_version", Of::Int(|s| s.row.tokens.trained_versions().max())),
    Column::new("metrics", Of::Json(|s| Some(metrics(s)))),
    Column::new("metadata", Of::Json(|s| Some(metadata(s)))),
    Column::new("logs", Of::Texts(|_| Some(Vec::new()))),
];

fn messages_and_choices(sample: &Sample) -> Vec<String> {
    let messages = sample.messages();
    let said = messages.iter().zip(sample.turns_of_messages()).enumerate();
    let said = said.map(|(at, (message, turn))| match turn {
        Some(turn) if sample.taught.contains(&at) => choice(sample, message, turn),
        _ => Value::Object(chat(message)),
    });
    said.map(|value| value.to_string()).collect()
}

fn choice(sample: &Sample, message: &Message, turn: &TurnRow) -> Value {
    let span = turn.start.max(0) as usize..turn.end.max(0) as usize;
    let tokens = &sample.row.tokens;
    let (ids, logprobs) = (&tokens.input_ids[span.clone()], &tokens.logprobs[span]);
    let token = |(id, logprob): (&i32, &f32)| {
        let name = format!("token_id:{id}");
        json!({ "token": name, "logprob": logprob, "bytes": null, "top_logprobs": [] })
    };
    let content: Vec<Value> = ids.iter().zip(logprobs).map(token).collect();
    let mut message = Value::Object(chat(message));
    // The API always has the key.
    if message.get("content").is_none() {
        message["content"] = Value::Null;
    }
    json!({
        "index": turn.choice,
        "finish_reason": finish_reason(turn.finish_reason.as_deref()),
        "message": message,
        "logprobs": { "content": content, "refusal": null },
    })
}

/// The words that OpenAI's client knows; a server's own word is an end like any other.
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
    let mut about = sample.about();
    about["status"] = json!(sample.row.status);
    about.to_string()
}

fn some(tools: &[String]) -> Option<Vec<String>> {
    (!tools.is_empty()).then(|| tools.to_vec())
}
