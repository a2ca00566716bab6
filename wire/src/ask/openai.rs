//! Hosted servers.
//!
//! Extra fields can change billing, routing and refusals, so nothing is added unless the user
//! wants it. These servers never report ids; their logprobs carry the bytes of each token.

use episode::Route;

use super::AskOptions;
use super::builder::{NotAsked, RequestBuilder};
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
        Route::Chat => ask_chat(builder),
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

fn ask_chat(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    let is_asked = builder.flag("logprobs", &[LOGPROBS])?;
    builder.drop_void_alternatives(is_asked);
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ask::ask;
    use crate::dialect::Dialect;
    use crate::request::Request;

    #[test]
    fn no_spelling_switches_wanted_logprobs_off() {
        let options =
            AskOptions { hosted_logprobs: true, ..AskOptions::for_dialect(Dialect::OpenAi) };
        for (given, sent) in [
            (r#"{"logprobs":"off"}"#, r#"{"logprobs":true}"#),
            (r#"{"top_logprobs":2}"#, r#"{"top_logprobs":0,"logprobs":true}"#),
            (r#"{"top_logprobs":null}"#, r#"{"top_logprobs":null,"logprobs":true}"#),
            (r#"{"logprobs":true,"top_logprobs":2}"#, r#"{"logprobs":true,"top_logprobs":2}"#),
        ] {
            let request = Request::read(&Bytes::from_static(given.as_bytes())).unwrap();
            let asked = ask(&options, Route::Chat, &request, None, |_| false);
            assert!(asked.unasked.is_none() && asked.body == sent, "{given}: {:?}", asked.body);
        }
    }
}
