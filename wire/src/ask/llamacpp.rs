//! llama.cpp's server. `logprobs` is refused with tools on a stream; the native `n_probs` passes
//! the same door. Ids of prompts are not reported.

use episode::Route;

use super::{Draft, Unasked};
use crate::hide::{Rule, With};

const CHAT_LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::Nothing);
const TEXT_LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::Null);
const VERBOSE: Rule = (&["__verbose"], With::Nothing);

pub(super) fn ask(draft: &mut Draft<'_>, route: Route) -> Result<(), Unasked> {
    match route {
        Route::Chat => chat(draft),
        Route::Completions => completions(draft),
        _ => Err(Unasked("llama.cpp reports no tokens on this route")),
    }
}

fn chat(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    if !draft.asked("logprobs")? && !draft.is_set("n_probs") {
        draft.set("n_probs", "1", &[CHAT_LOGPROBS]);
    }
    // The list of ids is whole even where a character took several tokens.
    if !draft.request.streams() && !draft.asked("verbose")? {
        draft.flag("return_tokens", &[])?;
        draft.set("verbose", "true", &[VERBOSE]);
    }
    Ok(())
}

fn completions(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    if !draft.is_set("logprobs") && !draft.is_set("n_probs") {
        draft.set("n_probs", "1", &[TEXT_LOGPROBS]);
    }
    Ok(())
}
