//! SGLang. A streamed chat is asked for ids by headers, so that they come in one event of their
//! own; everything else by fields, whose answers are absent when nobody asks.

use episode::Route;

use super::{Draft, FOR_THE_UPSTREAM, Unasked, Wants};
use crate::hide::{Drop, Rule, With};

const LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::Null);
const TOPS: Rule = (&["choices", "*", "logprobs", "content", "*", "top_logprobs"], With::EmptyList);
const PROMPT_IDS: Rule = (&["choices", "*", "prompt_token_ids"], With::Nothing);
const RESPONSE_IDS: Rule = (&["choices", "*", "response_token_ids"], With::Nothing);
const TOKEN_IDS: Rule = (&["choices", "*", "token_ids"], With::Nothing);
const META: Rule = (&["choices", "*", "meta_info"], With::Nothing);

const ID_HEADERS: [(&str, &str); 3] = [
    ("x-sglext-return-input-ids", "1"),
    ("x-sglext-return-output-ids", "1"),
    ("x-sglext-ids-framed", "1"),
];
const ID_FIELDS: [&str; 2] = ["return_input_ids_in_sglext", "return_output_ids_in_sglext"];

pub(super) fn ask(
    draft: &mut Draft<'_>,
    wants: &Wants,
    route: Route,
    has_header: &dyn Fn(&str) -> bool,
) -> Result<(), Unasked> {
    match route {
        Route::Chat => {
            logprobs(draft, wants)?;
            match draft.request.streams() {
                true => stream(draft, wants, has_header),
                false => document(draft, wants),
            }
        }
        Route::Completions => completions(draft),
        _ => Err(Unasked("SGLang reports no tokens on this route")),
    }
}

fn logprobs(draft: &mut Draft<'_>, wants: &Wants) -> Result<(), Unasked> {
    let asked = draft.asked("logprobs")?;
    let tops = draft.is_set("top_logprobs");
    if tops && !asked {
        return Err(FOR_THE_UPSTREAM);
    }
    draft.flag("logprobs", &[LOGPROBS])?;
    if !asked {
        draft.drop(Drop::OnlyLogprobs);
    }
    if wants.top_logprobs > 0 && !tops {
        draft.set(
            "top_logprobs",
            wants.top_logprobs.to_string(),
            if asked { &[TOPS] } else { &[] },
        );
    }
    Ok(())
}

/// `return_meta_info` gives ids and logprobs as pairs, but takes the experts out of the place where
/// an agent that asked for them looks.
fn document(draft: &mut Draft<'_>, wants: &Wants) -> Result<(), Unasked> {
    let prompt_ids = draft.asked("return_prompt_token_ids")?;
    let ids: &[Rule] = if prompt_ids { &[RESPONSE_IDS] } else { &[PROMPT_IDS, RESPONSE_IDS] };
    draft.flag("return_token_ids", ids)?;
    if draft.asked("return_routed_experts")? {
        return Ok(());
    }
    if !draft.flag("return_meta_info", &[META])? {
        if wants.routed_experts {
            draft.set("return_routed_experts", "true", &[]);
        }
        if wants.sampling_mask && !draft.asked("return_sampling_mask")? {
            draft.set("return_sampling_mask", "true", &[]);
        }
    }
    Ok(())
}

/// An agent that asks for ids in `sglext` itself gets them as it asked, and so do we.
fn stream(
    draft: &mut Draft<'_>,
    wants: &Wants,
    has_header: &dyn Fn(&str) -> bool,
) -> Result<(), Unasked> {
    let by_field = ID_FIELDS.iter().any(|key| draft.is_set(key));
    if !by_field && !ID_HEADERS.iter().any(|(name, _)| has_header(name)) {
        draft.headers.extend(ID_HEADERS);
        draft.drop(Drop::Named("sglext_ids"));
        if wants.routed_experts && !draft.asked("return_routed_experts")? {
            draft.set("return_routed_experts", "true", &[]);
            draft.drop(Drop::Sglext);
        }
    }
    Ok(())
}

fn completions(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    if draft.asked("echo")? {
        return Err(Unasked("with echo, SGLang's logprobs cover the prompt"));
    }
    if !draft.asked_number("logprobs")? {
        draft.set("logprobs", "0", &[LOGPROBS]);
    }
    draft.flag("return_token_ids", &[TOKEN_IDS, PROMPT_IDS])?;
    Ok(())
}
