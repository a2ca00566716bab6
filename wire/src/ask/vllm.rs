//! vLLM, and rolltape's own engine.
//!
//! Without our fields their answers are null, so hiding puts null back. One effect is structural: a
//! streamed chat sends a chunk with an empty delta only because its ids or logprobs were wanted.
//!
//! vLLM's Rust frontend differs in streams. It leaves null fields out. It sends the prompt's ids
//! of a text completion in a chunk of their own. It joins the deltas of one step where it has ids
//! or logprobs to send with them. Each difference shows in the chunk itself, so the same rules
//! serve both frontends.

use episode::Route;

use super::AskOptions;
use super::builder::{INVALID_REQUEST, NotAsked, RequestBuilder};
use crate::hide::{FrameKind, Replacement, Rule, rule};

const LOGPROBS: Rule = rule(&["choices", "*", "logprobs"], Replacement::NullOrAbsent);
/// Alternatives, where the agent asked for logprobs without any.
const TOP_LOGPROBS: Rule =
    rule(&["choices", "*", "logprobs", "content", "*", "top_logprobs"], Replacement::EmptyList);
const IDS: [Rule; 3] = [
    rule(&["choices", "*", "token_ids"], Replacement::NullOrAbsent),
    rule(&["choices", "*", "prompt_token_ids"], Replacement::NullOrAbsent),
    rule(&["prompt_token_ids"], Replacement::NullOrAbsent),
];
const VERSIONS: [Rule; 1] = [rule(&["choices", "*", "weight_versions"], Replacement::NullOrAbsent)];

/// Ids of a response: in a whole reply and, below `response`, in the first and last event of a
/// stream.
const RESPONSE_IDS: [Rule; 4] = [
    rule(&["input_messages"], Replacement::Null),
    rule(&["output_messages"], Replacement::Null),
    rule(&["response", "input_messages"], Replacement::Null),
    rule(&["response", "output_messages"], Replacement::Null),
];
/// Logprobs of a response. `logprobs` at the root belongs to a text delta, which has an empty list
/// there without our fields.
const RESPONSE_LOGPROBS: [Rule; 7] = [
    rule(&["top_logprobs"], Replacement::Null),
    rule(&["response", "top_logprobs"], Replacement::Null),
    rule(&["logprobs"], Replacement::EmptyListOf("response.output_text.delta")),
    rule(&["part", "logprobs"], Replacement::NullIfFilled),
    rule(&["item", "content", "*", "logprobs"], Replacement::NullIfFilled),
    rule(&["output", "*", "content", "*", "logprobs"], Replacement::NullIfFilled),
    rule(&["response", "output", "*", "content", "*", "logprobs"], Replacement::NullIfFilled),
];
/// The entry of `include` that asks a response for logprobs, as JSON text.
const INCLUDE_LOGPROBS: &str = r#""message.output_text.logprobs""#;

pub(super) fn ask(
    builder: &mut RequestBuilder<'_>,
    options: &AskOptions,
    route: Route,
) -> Result<(), NotAsked> {
    match route {
        Route::Chat => ask_chat(builder, options),
        Route::Completions => ask_completions(builder),
        Route::Responses => ask_responses(builder),
        _ => Err(NotAsked("vLLM reports no tokens on this route")),
    }
}

fn ask_chat(builder: &mut RequestBuilder<'_>, options: &AskOptions) -> Result<(), NotAsked> {
    refuse_beam_search(builder)?;
    let logprobs_asked = builder.asked("logprobs")?;
    if builder.is_set("top_logprobs") && !logprobs_asked {
        return Err(INVALID_REQUEST);
    }

    builder.flag("logprobs", &[LOGPROBS])?;
    builder.set_top_logprobs(options, logprobs_asked, TOP_LOGPROBS);
    let ids_asked = builder.flag("return_token_ids", &IDS)?;
    builder.flag("return_weight_versions", &VERSIONS)?;

    // An agent that asked for either gets these frames without us, too.
    if !logprobs_asked && !ids_asked {
        builder.hide_frames(FrameKind::EmptyDelta);
        builder.hide.split_frames();
    }
    Ok(())
}

fn ask_completions(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    refuse_beam_search(builder)?;
    if builder.asked("echo")? {
        return Err(NotAsked("with echo, vLLM's ids take the place of the prompt's text"));
    }
    if !builder.asked_number("logprobs")? {
        builder.set("logprobs", "0", &[LOGPROBS]);
    }
    if !builder.flag("return_token_ids", &IDS)? {
        builder.hide_frames(FrameKind::OnlyPrompt);
    }
    builder.flag("return_weight_versions", &VERSIONS)?;
    Ok(())
}

fn refuse_beam_search(builder: &RequestBuilder<'_>) -> Result<(), NotAsked> {
    match builder.request.raw("use_beam_search") {
        Some(b"true") => Err(NotAsked("beam search does not sample")),
        _ => Ok(()),
    }
}

fn ask_responses(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    if builder.asked("background")? {
        return Err(NotAsked("a reply in the background is fetched by another call"));
    }
    builder.flag("enable_response_messages", &RESPONSE_IDS)?;
    match builder.request.raw("include") {
        None | Some(b"null") => {
            builder.set("include", r#"["message.output_text.logprobs"]"#, &RESPONSE_LOGPROBS);
        }
        Some(list) if list.first() != Some(&b'[') => return Err(INVALID_REQUEST),
        Some(list) if asks_logprobs(list) => {}
        Some(_) => builder.append("include", INCLUDE_LOGPROBS, &RESPONSE_LOGPROBS),
    }
    Ok(())
}

fn asks_logprobs(include: &[u8]) -> bool {
    include.windows(INCLUDE_LOGPROBS.len()).any(|window| window == INCLUDE_LOGPROBS.as_bytes())
}
