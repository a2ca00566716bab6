//! Hosted servers.
//!
//! Extra fields can change billing, routing and refusals, so nothing is added unless the user
//! wants it. These servers never report ids; their logprobs carry the bytes of each token.

use episode::Route;

use super::AskOptions;
use super::builder::{INVALID_REQUEST, NotAsked, RequestBuilder};
use crate::hide::{Replacement, Rule, rule};

const LOGPROBS: Rule = rule(&["choices", "*", "logprobs"], Replacement::Null);

pub(super) fn ask(
    builder: &mut RequestBuilder<'_>,
    options: &AskOptions,
    route: Route,
) -> Result<(), NotAsked> {
    if !options.hosted_logprobs {
        return Err(NotAsked("hosted servers are asked for nothing unless the user wants it"));
    }
    match route {
        Route::Chat if builder.is_set("top_logprobs") && !builder.asked("logprobs")? => {
            Err(INVALID_REQUEST)
        }
        Route::Chat => builder.flag("logprobs", &[LOGPROBS]).map(drop),
        Route::Completions if builder.asked("echo")? => {
            Err(NotAsked("with echo, logprobs cover the prompt"))
        }
        Route::Completions => {
            if !builder.asked_number("logprobs")? {
                builder.set("logprobs", "0", &[LOGPROBS]);
            }
            Ok(())
        }
        _ => Err(NotAsked("hosted servers report no tokens on this route")),
    }
}
