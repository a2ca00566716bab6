//! llama.cpp's server. `logprobs` is refused with tools on a stream; the native `n_probs` passes
//! the same door. Ids of prompts are not reported: `__verbose` tells their text, and what counts
//! say of them (`Prompts`).

use episode::Route;

use super::{Draft, Unasked};
use crate::hide::{Rule, With};

const CHAT_LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::Nothing);
const TEXT_LOGPROBS: Rule = (&["choices", "*", "logprobs"], With::Null);
const VERBOSE: Rule = (&["__verbose"], With::Nothing);
/// What `n_probs` changes in what an agent is told that asked for `verbose` itself.
const VERBOSE_PROBS: [Rule; 2] = [
    (&["__verbose", "completion_probabilities"], With::Nothing),
    (&["__verbose", "generation_settings", "n_probs"], With::Zero),
];
/// What `return_tokens` changes there.
const VERBOSE_TOKENS: Rule = (&["__verbose", "tokens"], With::EmptyList);

/// The same on its own route, in a reply and in a list of such.
const NATIVE_PROBS: [Rule; 4] = [
    (&["completion_probabilities"], With::Nothing),
    (&["*", "completion_probabilities"], With::Nothing),
    (&["generation_settings", "n_probs"], With::Zero),
    (&["*", "generation_settings", "n_probs"], With::Zero),
];
const NATIVE_TOKENS: [Rule; 2] =
    [(&["tokens"], With::EmptyList), (&["*", "tokens"], With::EmptyList)];

pub(super) fn ask(draft: &mut Draft<'_>, route: Route) -> Result<(), Unasked> {
    match route {
        Route::Chat => {
            let asked = draft.asked("logprobs")?;
            probabilities(draft, asked, CHAT_LOGPROBS)?;
            tell(draft)
        }
        Route::Completions => {
            let asked = draft.is_set("logprobs");
            probabilities(draft, asked, TEXT_LOGPROBS)?;
            // Each event of a stream would say all of it again.
            if draft.request.streams() { Ok(()) } else { tell(draft) }
        }
        Route::Generate => native(draft),
        _ => Err(Unasked("llama.cpp reports no tokens on this route")),
    }
}

fn probabilities(draft: &mut Draft<'_>, asked: bool, rule: Rule) -> Result<(), Unasked> {
    if asked || draft.is_set("n_probs") {
        return Ok(());
    }
    draft.set("n_probs", "1", &[rule]);
    if draft.asked("verbose")? {
        draft.hide.rules(&VERBOSE_PROBS);
    }
    Ok(())
}

/// `__verbose` tells the rendered prompt and why the reply stopped, and of a whole reply the list
/// of ids, which is whole even where a character took several tokens.
fn tell(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    let told = draft.asked("verbose")?;
    if !draft.request.streams() {
        draft.flag("return_tokens", if told { &[VERBOSE_TOKENS] } else { &[] })?;
    }
    if !told {
        draft.set("verbose", "true", &[VERBOSE]);
    }
    Ok(())
}

/// A stream tells its ids anyway.
fn native(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    if draft.request.raw("response_fields").is_some() {
        return Err(Unasked("the agent chose the fields of the reply"));
    }
    if !draft.is_set("n_probs") && !draft.is_set("logprobs") {
        draft.set("n_probs", "1", &NATIVE_PROBS);
    }
    if !draft.request.streams() {
        draft.flag("return_tokens", &NATIVE_TOKENS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ask::{Asked, Wants, ask};
    use crate::dialect::Dialect;
    use crate::request::Request;

    fn asked(route: Route, body: &'static str) -> Asked {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        ask(&Wants::of(Dialect::Llamacpp), route, &request, |_| false)
    }

    #[test]
    fn what_an_agent_asks_to_be_told_is_as_it_would_be_unasked() {
        let verbose = asked(Route::Chat, r#"{"verbose":true}"#);
        assert_eq!(verbose.body, r#"{"verbose":true,"n_probs":1,"return_tokens":true}"#);
        let reply = r#"{"choices":[{"index":0,"logprobs":{}}],"__verbose":{"tokens":[5],
            "generation_settings":{"n_probs":1,"min_p":0.05},"completion_probabilities":[{}]}}"#;
        let plain = r#"{"choices":[{"index":0}],"__verbose":{"tokens":[],
            "generation_settings":{"n_probs":0,"min_p":0.05}}}"#;
        assert_eq!(verbose.hide.document(&Bytes::from_static(reply.as_bytes())), plain);
        let all = r#"{"verbose":true,"n_probs":2,"return_tokens":true}"#;
        assert!(asked(Route::Chat, all).hide.nothing());
    }

    #[test]
    fn fields_that_the_agent_chose_are_not_added_to() {
        let own = asked(Route::Generate, r#"{"response_fields":["content"]}"#);
        assert!(own.unasked.is_some() && own.hide.nothing());
        let zero = asked(Route::Generate, r#"{"n_probs":0,"stream":true}"#);
        assert_eq!(zero.body, r#"{"n_probs":1,"stream":true}"#);
    }
}
