//! `verifiers`: RolloutOutput, a line of `results.jsonl` (verifiers 0.1.14, whose `load_outputs`
//! takes a folder with that file).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::formats::chat_json::{chat_with_reasoning, plain_tool};
use crate::formats::records::attempts::AttemptRecord;
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::notes::Reason;
use crate::rows::messages::RowMessage;
use crate::rows::row::{TurnRow, is_limit};

pub(crate) const COLUMNS: &[RecordColumn<AttemptRecord>] = &[
    RecordColumn::new("example_id", Getter::Int(|a| Some(a.main().numbers.group))),
    RecordColumn::new("prompt", Getter::Jsons(|a| Some(texts(&a.main().row.dialogue.prompt)))),
    RecordColumn::new(
        "completion",
        Getter::Jsons(|a| Some(texts(&a.main().row.dialogue.completion))),
    ),
    RecordColumn::new("reward", Getter::Float(|a| a.main().row.score())),
    // Spans, which verifiers fills with zeros.
    RecordColumn::new("timing", Getter::Json(|_| Some("{}".to_owned()))),
    RecordColumn::new("is_completed", Getter::Bool(|a| Some(failure(a).is_none()))),
    RecordColumn::new("is_truncated", Getter::Bool(|a| Some(was_cut(a)))),
    RecordColumn::new("metrics", Getter::Json(|a| Some(metrics(a)))),
    RecordColumn::new("info", Getter::Json(|a| Some(a.main().metadata().to_string()))),
    RecordColumn::optional("error", Getter::Json(error)),
    RecordColumn::new("trajectory", Getter::Jsons(|a| Some(steps(a)))),
    RecordColumn::new("tool_defs", Getter::Jsons(|a| Some(tools(a)))),
    RecordColumn::new("token_usage", Getter::Json(|a| Some(usage(a)))),
];

fn texts(messages: &[RowMessage]) -> Vec<String> {
    messages.iter().map(|message| chat_with_reasoning(message).to_string()).collect()
}

/// Returns the status of an attempt that did not come to its end.
pub(super) fn failure(attempt: &AttemptRecord) -> Option<&str> {
    let status = attempt.main().row.status.as_str();
    (!["completed", "truncated"].contains(&status)).then_some(status)
}

fn error(attempt: &AttemptRecord) -> Option<String> {
    let word = failure(attempt)?;
    let error = json!({ "error": word, "error_chain_repr": word, "error_chain_str": word });
    Some(error.to_string())
}

/// Collects the latest rewards of the episode that have another name than `reward`.
pub(super) fn metrics(attempt: &AttemptRecord) -> String {
    let rewards: Value = serde_json::from_str(&attempt.main().row.rewards).unwrap_or(Value::Null);
    let mut latest = Map::new();
    for reward in rewards.as_array().into_iter().flatten() {
        let name = reward["name"].as_str().filter(|name| *name != "reward");
        if let (Some(name), true) = (name, reward["scope"] == "episode") {
            latest.insert(name.to_owned(), reward["value"].clone());
        }
    }
    latest.retain(|_, value| value.is_number());
    Value::Object(latest).to_string()
}

fn tools(attempt: &AttemptRecord) -> Vec<String> {
    let tools = attempt.main().row.dialogue.tools.iter();
    tools.map(|tool| Value::Object(plain_tool(tool)).to_string()).collect()
}

fn usage(attempt: &AttemptRecord) -> String {
    let (mut input, mut output) = (0, 0);
    for (_, turn) in turns(attempt) {
        input += turn.start;
        output += turn.end - turn.start;
    }
    json!({ "input_tokens": f64::from(input), "output_tokens": f64::from(output) }).to_string()
}

/// Returns the turns of all rows, each where it first stands, which is where it is trained.
fn turns(attempt: &AttemptRecord) -> impl Iterator<Item = (&Sample, &TurnRow)> {
    let mut seen = BTreeSet::new();
    let all = attempt.rows.iter().flat_map(|row| row.row.turns.iter().map(move |turn| (row, turn)));
    all.filter(move |(row, turn)| {
        let is_new = seen.insert((turn.call_id.as_str(), turn.choice));
        is_new || row.trained_runs().any(|(trained, _)| trained == *turn)
    })
}

fn steps(attempt: &AttemptRecord) -> Vec<String> {
    turns(attempt).map(|(row, turn)| step(row, turn).to_string()).collect()
}

fn step(sample: &Sample, turn: &TurnRow) -> Value {
    let (prompt, answer) = sample.messages_of_turn(turn);
    json!({
        "prompt": prompt.into_iter().map(chat_with_reasoning).collect::<Vec<_>>(),
        "completion": answer.into_iter().map(chat_with_reasoning).collect::<Vec<_>>(),
        "response": null,
        "tokens": tokens(sample, turn),
        "reward": turn.reward,
        "advantage": sample.row.advantage,
        "is_truncated": is_truncated(turn),
        "trajectory_id": sample.row.trajectory_id,
        "extras": { "call_id": turn.call_id, "model": sample.row.model,
            "policy_version": turn.version_start },
    })
}

fn is_truncated(turn: &TurnRow) -> bool {
    is_limit(turn.finish_reason.as_deref())
}

/// Returns true where a step was truncated: the rule of `MultiTurnEnv`.
fn was_cut(attempt: &AttemptRecord) -> bool {
    let is_cut = attempt.main().row.status == "truncated";
    is_cut || turns(attempt).any(|(_, turn)| is_truncated(turn))
}

/// Writes the tokens of a turn; null for ids that were made from text, whose logprobs are zeros
/// that a trainer would take for real.
fn tokens(sample: &Sample, turn: &TurnRow) -> Value {
    let (tokens, span) = (&sample.row.tokens, turn.span());
    if span.is_empty() || sample.row.reasons.contains(&Reason::Retokenized) {
        return Value::Null;
    }
    json!({
        "prompt_ids": tokens.input_ids[..span.start],
        "prompt_mask": vec![0; span.start],
        "completion_ids": tokens.input_ids[span.clone()],
        "completion_mask": tokens.loss_mask[span.clone()],
        "completion_logprobs": tokens.logprobs[span],
        "overlong_prompt": false,
        "is_truncated": is_truncated(turn),
        "routed_experts": null,
    })
}
