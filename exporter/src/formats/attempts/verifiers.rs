//! `verifiers`: RolloutOutput, a line of `results.jsonl` (read in verifiers 0.1.14, whose
//! `load_outputs` takes a folder with that file).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Attempt, messages_of, plain_tool, thoughtful};
use crate::formats::sample::Sample;
use crate::formats::table::{Column, Of};
use crate::notes::reason::Reason;
use crate::rows::messages::Message;
use crate::rows::row::TurnRow;

pub(crate) const COLUMNS: &[Column<Attempt>] = &[
    Column::new("example_id", Of::Int(|a| Some(a.main().place.group))),
    Column::new("prompt", Of::Jsons(|a| Some(texts(&a.main().row.dialogue.prompt)))),
    Column::new("completion", Of::Jsons(|a| Some(texts(&a.main().row.dialogue.completion)))),
    Column::new("reward", Of::Float(|a| a.main().row.reward)),
    // Spans, which it fills in with zeros.
    Column::new("timing", Of::Json(|_| Some("{}".to_owned()))),
    Column::new("is_completed", Of::Bool(|a| Some(failure(a).is_none()))),
    Column::new("is_truncated", Of::Bool(|a| Some(a.main().row.status == "truncated"))),
    Column::new("metrics", Of::Json(|a| Some(metrics(a)))),
    Column::new("info", Of::Json(|a| Some(a.main().about().to_string()))),
    Column::optional("error", Of::Json(error)),
    Column::new("trajectory", Of::Jsons(|a| Some(steps(a)))),
    Column::new("tool_defs", Of::Jsons(|a| Some(tools(a)))),
    Column::new("token_usage", Of::Json(|a| Some(usage(a)))),
];

fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| thoughtful(message).to_string()).collect()
}

/// The word for an attempt that did not come to its end.
fn failure(attempt: &Attempt) -> Option<&str> {
    let status = attempt.main().row.status.as_str();
    (!["completed", "truncated"].contains(&status)).then_some(status)
}

fn error(attempt: &Attempt) -> Option<String> {
    let word = failure(attempt)?;
    let told = json!({ "error": word, "error_chain_repr": word, "error_chain_str": word });
    Some(told.to_string())
}

/// Rewards of the episode that have another name than the one which counts.
fn metrics(attempt: &Attempt) -> String {
    let said: Value = serde_json::from_str(&attempt.main().row.rewards).unwrap_or(Value::Null);
    let mut found = Map::new();
    for reward in said.as_array().into_iter().flatten() {
        let name = reward["name"].as_str().filter(|name| *name != "reward");
        if let (Some(name), true) = (name, reward["scope"] == "episode") {
            found.insert(name.to_owned(), reward["value"].clone());
        }
    }
    found.retain(|_, value| value.is_number());
    Value::Object(found).to_string()
}

fn tools(attempt: &Attempt) -> Vec<String> {
    let tools = attempt.main().row.dialogue.tools.iter();
    tools.map(|tool| Value::Object(plain_tool(tool)).to_string()).collect()
}

fn usage(attempt: &Attempt) -> String {
    let (mut input, mut output) = (0, 0);
    for (_, turn) in turns(attempt) {
        input += turn.start;
        output += turn.end - turn.start;
    }
    json!({ "input_tokens": f64::from(input), "output_tokens": f64::from(output) }).to_string()
}

/// The turns of all rows, each where it first stands, which is where it is trained.
fn turns(attempt: &Attempt) -> impl Iterator<Item = (&Sample, &TurnRow)> {
    let mut seen = BTreeSet::new();
    let all = attempt.rows.iter().flat_map(|row| row.row.turns.iter().map(move |turn| (row, turn)));
    all.filter(move |(row, turn)| {
        let new = seen.insert((turn.call_id.as_str(), turn.choice));
        new || row.runs().any(|(of, _)| of == *turn)
    })
}

fn steps(attempt: &Attempt) -> Vec<String> {
    turns(attempt).map(|(row, turn)| step(row, turn).to_string()).collect()
}

fn step(sample: &Sample, turn: &TurnRow) -> Value {
    let (prompt, answer) = messages_of(sample, turn);
    json!({
        "prompt": prompt,
        "completion": answer.iter().map(thoughtful).collect::<Vec<_>>(),
        "response": null,
        "tokens": tokens(sample, turn),
        "reward": turn.reward,
        "advantage": sample.row.advantage,
        "is_truncated": is_cut(turn),
        "trajectory_id": sample.row.trajectory_id,
        "extras": { "call_id": turn.call_id, "model": sample.row.model,
            "policy_version": turn.version_start },
    })
}

fn is_cut(turn: &TurnRow) -> bool {
    turn.finish_reason.as_deref() == Some("length")
}

/// Ids that were made from text have no logprobs, and a trainer would believe the zeros.
fn tokens(sample: &Sample, turn: &TurnRow) -> Value {
    let tokens = &sample.row.tokens;
    let span = turn.start.max(0) as usize..turn.end.max(0) as usize;
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
        "is_truncated": is_cut(turn),
        "routed_experts": null,
    })
}
