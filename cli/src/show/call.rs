//! `rolltape show --call`: prints one call with all its arrays.

use std::process::ExitCode;

use episode::{Call, CallId, Choice, EpisodeId};
use serde_json::{Value, json};
use store::Snapshot;

use super::versions::VersionTable;
use crate::exit::{CommandResult, Failure};
use crate::print;

/// Prints a call of `episode` as one JSON object.
pub(super) async fn run(
    snapshot: &mut Snapshot,
    episode: &EpisodeId,
    call_id: CallId,
) -> CommandResult {
    let found = snapshot.call(call_id).await?.filter(|call| call.begun.tag.episode == *episode);
    let Some(call) = found else {
        return Err(Failure::new(format!("no call `{call_id}` in the episode `{episode}`"))
            .hint("`rolltape show EPISODE --json` lists its calls"));
    };
    let versions = VersionTable(snapshot.versions().await?);
    print::line(&as_json(&call, &versions).to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(call: &Call, versions: &VersionTable) -> Value {
    let begun = &call.begun;
    let ended = call.ended.as_ref();

    json!({
        "call_id": begun.call_id.to_string(),
        "method": begun.method,
        "path": begun.path,
        "request": text(&begun.request),
        "status": ended.and_then(|ended| ended.status),
        "outcome": ended.map(|ended| ended.outcome.as_str()),
        "reply": ended.map(|ended| text(&ended.reply)),
        // Ids of each prompt; a batch of completions has several.
        "prompts": ended.map(|ended| &ended.prompts),
        "choices": ended.map(|ended| {
            ended
                .choices
                .iter()
                .map(|choice| choice_json(choice, versions.spans_json(call, choice.index)))
                .collect::<Vec<_>>()
        }),
        "stamps": ended.map(|ended| json!([ended.stamps.start, ended.stamps.end])),
    })
}

fn choice_json(choice: &Choice, versions: Vec<Value>) -> Value {
    let sides = choice.sides.iter().map(|side| {
        let value = serde_json::from_str(&side.json).unwrap_or_else(|_| json!(side.json));
        (side.name.clone(), value)
    });

    json!({
        "index": choice.index,
        "prompt_index": choice.prompt_index,
        "token_ids": choice.token_ids,
        // A logprob that the server did not give is null.
        "logprobs": choice.logprobs,
        "versions": versions,
        "finish_reason": choice.finish_reason,
        "fidelity": choice.fidelity.as_str(),
        "sides": sides.collect::<serde_json::Map<_, _>>(),
    })
}

/// A body as text; bytes that are not UTF-8 are replaced.
fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}
