//! llama.cpp's server.
//!
//! It refuses `logprobs` with tools on a stream; the native `n_probs` has the same effect and is
//! accepted. It reports no ids of prompts: `__verbose` holds the prompt as text and its number of
//! tokens, from which `PromptLookup` gets the ids.

use episode::Route;

use super::builder::{NotAsked, RequestBuilder};
use crate::hide::{Replacement, Rule, rule};

const CHAT_LOGPROBS: Rule = rule(&["choices", "*", "logprobs"], Replacement::Absent);
const TEXT_LOGPROBS: Rule = rule(&["choices", "*", "logprobs"], Replacement::Null);
const VERBOSE: Rule = rule(&["__verbose"], Replacement::Absent);
/// Effects of `n_probs` on the `__verbose` object of an agent that asked for it itself.
const VERBOSE_PROBS: [Rule; 2] = [
    rule(&["__verbose", "completion_probabilities"], Replacement::Absent),
    rule(&["__verbose", "generation_settings", "n_probs"], Replacement::Zero),
];
/// The effect of `return_tokens` on the same object.
const VERBOSE_TOKENS: Rule = rule(&["__verbose", "tokens"], Replacement::EmptyList);

/// Effects of `n_probs` on the server's own route, in one reply and in a list of replies.
const NATIVE_PROBS: [Rule; 4] = [
    rule(&["completion_probabilities"], Replacement::Absent),
    rule(&["*", "completion_probabilities"], Replacement::Absent),
    rule(&["generation_settings", "n_probs"], Replacement::Zero),
    rule(&["*", "generation_settings", "n_probs"], Replacement::Zero),
];
const NATIVE_TOKENS: [Rule; 2] =
    [rule(&["tokens"], Replacement::EmptyList), rule(&["*", "tokens"], Replacement::EmptyList)];

pub(super) fn ask(builder: &mut RequestBuilder<'_>, route: Route) -> Result<(), NotAsked> {
    match route {
        Route::Chat => {
            if !builder.asked("logprobs")? {
                ask_probabilities(builder, CHAT_LOGPROBS)?;
            }
            ask_verbose(builder)
        }
        Route::Completions => {
            if !builder.is_positive("logprobs") {
                ask_probabilities(builder, TEXT_LOGPROBS)?;
            }
            // Every event of a stream would repeat the whole `__verbose` object.
            if builder.asked("stream")? { Ok(()) } else { ask_verbose(builder) }
        }
        Route::Generate => ask_native(builder),
        _ => Err(NotAsked("llama.cpp reports no tokens on this route")),
    }
}

fn ask_probabilities(builder: &mut RequestBuilder<'_>, rule: Rule) -> Result<(), NotAsked> {
    // The server takes what is no number for 0.
    if builder.is_positive("n_probs") {
        return Ok(());
    }
    builder.set("n_probs", "1", &[rule]);
    if builder.asked("verbose")? {
        builder.hide.add_rules(&VERBOSE_PROBS);
    }
    Ok(())
}

/// Asks for `__verbose`: the rendered prompt and the reason why the reply stopped. Of a whole
/// reply it also holds the list of ids, which is complete even where one character took several
/// tokens.
fn ask_verbose(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    let is_asked = builder.asked("verbose")?;
    if !builder.asked("stream")? {
        builder.flag("return_tokens", if is_asked { &[VERBOSE_TOKENS] } else { &[] })?;
    }
    if !is_asked {
        builder.set("verbose", "true", &[VERBOSE]);
    }
    Ok(())
}

/// Asks on the server's own route, whose streams always report ids.
fn ask_native(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    if builder.request.raw("response_fields").is_some() {
        return Err(NotAsked("the agent chose the fields of the reply"));
    }
    if !builder.is_positive("n_probs") && !builder.is_positive("logprobs") {
        builder.set("n_probs", "1", &NATIVE_PROBS);
    }
    if !builder.asked("stream")? {
        builder.flag("return_tokens", &NATIVE_TOKENS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ask::{AskOptions, AugmentedRequest, ask};
    use crate::dialect::Dialect;
    use crate::document::ReplyDocument;
    use crate::request::Request;

    fn asked(route: Route, body: &'static str) -> AugmentedRequest {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        ask(&AskOptions::for_dialect(Dialect::Llamacpp), route, &request, None, |_| false)
    }

    #[test]
    fn what_an_agent_asks_to_be_told_is_as_it_would_be_unasked() {
        let verbose = asked(Route::Chat, r#"{"verbose":true}"#);
        assert_eq!(verbose.body, r#"{"verbose":true,"n_probs":1,"return_tokens":true}"#);
        let reply = r#"{"choices":[{"index":0,"logprobs":{}}],"__verbose":{"tokens":[5],
            "generation_settings":{"n_probs":1,"min_p":0.05},"completion_probabilities":[{}]}}"#;
        let plain = r#"{"choices":[{"index":0}],"__verbose":{"tokens":[],
            "generation_settings":{"n_probs":0,"min_p":0.05}}}"#;
        let reply = Bytes::from_static(reply.as_bytes());
        assert_eq!(verbose.hide.document(&ReplyDocument::new(reply)), plain);
        let all = r#"{"verbose":true,"n_probs":2,"return_tokens":true}"#;
        assert!(asked(Route::Chat, all).hide.is_empty());
    }

    #[test]
    fn what_is_no_boolean_or_number_asks_all_the_same() {
        for given in [r#""off""#, r#""yes""#, "0.5", "-1", "{}"] {
            let body = format!(
                r#"{{"logprobs":{given},"n_probs":{given},"verbose":{given},"return_tokens":{given}}}"#
            );
            let asked = asked(Route::Chat, body.leak());
            let ours = r#","n_probs":1,"verbose":true,"return_tokens":true}"#;
            assert!(asked.unasked.is_none() && asked.body.ends_with(ours.as_bytes()), "{asked:?}");
            assert!(!asked.hide.is_empty());
        }
        let unstreamed = asked(Route::Generate, r#"{"stream":"yes"}"#);
        assert!(unstreamed.added.contains(&"return_tokens"), "{:?}", unstreamed.added);
        let own = asked(Route::Completions, r#"{"logprobs":5,"stream":true}"#);
        assert_eq!(own.body, r#"{"logprobs":5,"stream":true}"#);
    }

    #[test]
    fn fields_that_the_agent_chose_are_not_added_to() {
        let own = asked(Route::Generate, r#"{"response_fields":["content"]}"#);
        assert!(own.unasked.is_some() && own.hide.is_empty());
        let zero = asked(Route::Generate, r#"{"n_probs":0,"stream":true}"#);
        assert_eq!(zero.body, r#"{"n_probs":1,"stream":true}"#);
    }
}
