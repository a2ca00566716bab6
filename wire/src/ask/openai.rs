//! Hosted servers. Extra fields can change billing, routing and refusals, so nothing is asked for
//! unless the user wants it. Ids are never reported; logprobs carry bytes.

use episode::Route;

use super::{Draft, FOR_THE_UPSTREAM, Unasked, Wants};
use crate::hide::{Rule, With};

const LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::Null);

pub(super) fn ask(draft: &mut Draft<'_>, wants: &Wants, route: Route) -> Result<(), Unasked> {
    if !wants.hosted_logprobs {
        return Err(Unasked("hosted servers are asked for nothing unless told to"));
    }
    match route {
        Route::Chat if draft.is_set("top_logprobs") && !draft.asked("logprobs")? => {
            Err(FOR_THE_UPSTREAM)
        }
        Route::Chat => draft.flag("logprobs", &[LOGPROBS]).map(drop),
        Route::Completions if draft.asked("echo")? => {
            Err(Unasked("with echo, logprobs cover the prompt"))
        }
        Route::Completions => {
            if !draft.asked_number("logprobs")? {
                draft.set("logprobs", "0", &[LOGPROBS]);
            }
            Ok(())
        }
        _ => Err(Unasked("hosted servers report no tokens on this route")),
    }
}
