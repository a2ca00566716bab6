//! vLLM, and rolltape's own engine. When nobody asks, the keys are there as null, so hiding is
//! putting null back. The one structural effect is in streamed chat: a chunk whose delta is empty
//! is sent only because its ids or logprobs were wanted.
//!
//! vLLM's Rust frontend differs in streams. It leaves out what is null; it sends the prompt's ids
//! of a text completion in a chunk of their own; and it joins the deltas of a step where it has
//! ids or logprobs to send with them. Each shows in the chunk itself, so the same rules serve both.

use episode::Route;

use super::{Draft, FOR_THE_UPSTREAM, Unasked, Wants};
use crate::hide::{Drop, Rule, With};

const LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::NullOrAbsent);
/// Alternatives, where the agent asked for logprobs without any.
const TOPS: Rule = (&["choices", "*", "logprobs", "content", "*", "top_logprobs"], With::EmptyList);
const IDS: [Rule; 3] = [
    (&["choices", "*", "token_ids"], With::NullOrAbsent),
    (&["choices", "*", "prompt_token_ids"], With::NullOrAbsent),
    (&["prompt_token_ids"], With::NullOrAbsent),
];
const VERSIONS: [Rule; 1] = [(&["choices", "*", "weight_versions"], With::NullOrAbsent)];

/// In a reply and, below `response`, in the first and last event of a stream.
const RESPONSE_IDS: [Rule; 4] = [
    (&["input_messages"], With::Null),
    (&["output_messages"], With::Null),
    (&["response", "input_messages"], With::Null),
    (&["response", "output_messages"], With::Null),
];
/// `logprobs` at the root is that of a text delta, where an empty list stands unasked.
const RESPONSE_LOGPROBS: [Rule; 7] = [
    (&["top_logprobs"], With::Null),
    (&["response", "top_logprobs"], With::Null),
    (&["logprobs"], With::EmptyListOf("response.output_text.delta")),
    (&["part", "logprobs"], With::NullIfFilled),
    (&["item", "content", "*", "logprobs"], With::NullIfFilled),
    (&["output", "*", "content", "*", "logprobs"], With::NullIfFilled),
    (&["response", "output", "*", "content", "*", "logprobs"], With::NullIfFilled),
];
const INCLUDED: &str = r#""message.output_text.logprobs""#;

pub(super) fn ask(draft: &mut Draft<'_>, wants: &Wants, route: Route) -> Result<(), Unasked> {
    match route {
        Route::Chat => chat(draft, wants),
        Route::Completions => completions(draft),
        Route::Responses => responses(draft),
        _ => Err(Unasked("vLLM reports no tokens on this route")),
    }
}

fn chat(draft: &mut Draft<'_>, wants: &Wants) -> Result<(), Unasked> {
    no_beams(draft)?;
    let logprobs = draft.asked("logprobs")?;
    let tops = draft.is_set("top_logprobs");
    if tops && !logprobs {
        return Err(FOR_THE_UPSTREAM);
    }
    draft.flag("logprobs", &[LOGPROBS])?;
    if wants.top_logprobs > 0 && !tops {
        draft.set(
            "top_logprobs",
            wants.top_logprobs.to_string(),
            if logprobs { &[TOPS] } else { &[] },
        );
    }
    let ids = draft.flag("return_token_ids", &IDS)?;
    draft.flag("return_weight_versions", &VERSIONS)?;
    if !logprobs && !ids {
        draft.drop(Drop::EmptyDelta);
        draft.hide.split();
    }
    Ok(())
}

fn completions(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    no_beams(draft)?;
    if draft.asked("echo")? {
        return Err(Unasked("with echo, vLLM's ids take the place of the prompt's text"));
    }
    if !draft.asked_number("logprobs")? {
        draft.set("logprobs", "0", &[LOGPROBS]);
    }
    if !draft.flag("return_token_ids", &IDS)? {
        draft.drop(Drop::OnlyPrompt);
    }
    draft.flag("return_weight_versions", &VERSIONS)?;
    Ok(())
}

fn no_beams(draft: &Draft<'_>) -> Result<(), Unasked> {
    match draft.request.raw("use_beam_search") {
        Some(b"true") => Err(Unasked("beams are not samples")),
        _ => Ok(()),
    }
}

fn responses(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    if draft.asked("background")? {
        return Err(Unasked("a reply in the background is fetched by another call"));
    }
    draft.flag("enable_response_messages", &RESPONSE_IDS)?;
    match draft.request.raw("include") {
        None | Some(b"null") => {
            draft.set("include", r#"["message.output_text.logprobs"]"#, &RESPONSE_LOGPROBS);
        }
        Some(list) if list.first() != Some(&b'[') => return Err(FOR_THE_UPSTREAM),
        Some(list) if list.windows(INCLUDED.len()).any(|w| w == INCLUDED.as_bytes()) => {}
        Some(_) if draft.refused.holds("include") => {}
        Some(_) => {
            draft.appended.push(("include", INCLUDED));
            draft.hide.rules(&RESPONSE_LOGPROBS);
        }
    }
    Ok(())
}
