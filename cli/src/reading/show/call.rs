//! `rolltape show --call`: prints one call with all its arrays.

use serde_json::{Value, json};
use viewer::{ChoiceArrays, ChoiceView};

use super::super::source::Source;
use crate::exit::Failure;
use crate::print;

/// Prints a call of an episode as one JSON object.
pub(super) async fn print(source: &Source, episode: &str, id: &str) -> Result<(), Failure> {
    let call = source.whole_call(id).await?;
    if call.episode_id != episode {
        return Err(Failure::new(format!("no call `{id}` in the episode `{episode}`"))
            .hint("`rolltape show EPISODE --json` lists its calls"));
    }
    let (request, reply) = source.bodies(id).await?;
    let has_ended = call.outcome.is_some();

    let document = json!({
        "call_id": call.call_id,
        "method": call.method,
        "path": call.path,
        "request": text(&request),
        "status": call.status,
        "outcome": call.outcome,
        "reply": has_ended.then(|| text(&reply)),
        // Ids of each prompt; a batch of completions has several.
        "prompts": call.prompts,
        "choices": has_ended.then(|| choices(&call.choices)),
        "stamps": has_ended.then_some(&call.stamps),
        "route": call.route,
        "model": call.model,
        "error": call.error,
        "continued": call.continued,
        "replayed": call.replayed,
        "started_at": call.started_at,
        "duration_ms": call.duration_ms,
    });
    print::line(&document.to_string())
}

/// The choices that are more than a text.
fn choices(choices: &[ChoiceView]) -> Vec<Value> {
    let whole = choices.iter().filter_map(|choice| Some((choice, choice.arrays.as_ref()?)));
    whole.map(|(choice, arrays)| choice_json(choice, arrays)).collect()
}

fn choice_json(choice: &ChoiceView, arrays: &ChoiceArrays) -> Value {
    json!({
        "index": choice.index,
        "prompt_index": choice.prompt_index,
        "token_ids": arrays.token_ids,
        // A logprob that the server did not give is null.
        "logprobs": arrays.logprobs,
        "versions": choice.versions,
        "finish_reason": choice.finish_reason,
        "fidelity": choice.fidelity,
        "sides": arrays.sides,
    })
}

/// A body as text; bytes that are not UTF-8 are replaced.
pub(super) fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}
