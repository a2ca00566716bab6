//! SGLang.
//!
//! A streamed chat is asked for ids by headers, so that they come in an event of their own.
//! Everything else is asked for by fields; without a field its answer is absent.

use episode::Route;

use super::AskOptions;
use super::builder::{NotAsked, RequestBuilder, SGLANG_EXPERTS_START};
use crate::hide::{FrameKind, Replacement, Rule, rule};

const LOGPROBS: Rule = rule(&["choices", "*", "logprobs"], Replacement::Null);
const TOP_LOGPROBS: Rule =
    rule(&["choices", "*", "logprobs", "content", "*", "top_logprobs"], Replacement::EmptyList);
const PROMPT_IDS: Rule = rule(&["choices", "*", "prompt_token_ids"], Replacement::Absent);
const RESPONSE_IDS: Rule = rule(&["choices", "*", "response_token_ids"], Replacement::Absent);
const TOKEN_IDS: Rule = rule(&["choices", "*", "token_ids"], Replacement::Absent);
const META_INFO: Rule = rule(&["choices", "*", "meta_info"], Replacement::Absent);

/// Logprobs on the server's own route, in one reply and in a list of replies.
const NATIVE_LOGPROBS: [Rule; 6] = [
    rule(&["meta_info", "input_token_logprobs"], Replacement::Absent),
    rule(&["meta_info", "output_token_logprobs"], Replacement::Absent),
    rule(&["meta_info", "output_token_logprobs_length"], Replacement::Absent),
    rule(&["*", "meta_info", "input_token_logprobs"], Replacement::Absent),
    rule(&["*", "meta_info", "output_token_logprobs"], Replacement::Absent),
    rule(&["*", "meta_info", "output_token_logprobs_length"], Replacement::Absent),
];
/// What the same route tells of other tokens, and the value with which it does not.
const ALTERNATIVES: [(&str, &str); 3] = [
    ("top_logprobs_num", "0"),
    ("token_ids_logprob", "null"),
    ("return_flat_raw_output_top_logprobs", "false"),
];
const NATIVE_PROMPT_IDS: [Rule; 2] = [
    rule(&["prompt_token_ids"], Replacement::Absent),
    rule(&["*", "prompt_token_ids"], Replacement::Absent),
];

/// The header that puts the ids of a stream into an event of their own.
const FRAMED: &str = "x-sglext-ids-framed";
/// One kind of ids of a stream: the header and the field that ask for it, and its place in the
/// last event.
struct StreamedIds {
    header: &'static str,
    field: &'static str,
    rule: Rule,
}
const STREAMED_IDS: [StreamedIds; 2] = [
    StreamedIds {
        header: "x-sglext-return-input-ids",
        field: "return_input_ids_in_sglext",
        rule: rule(&["sglext", "input_ids"], Replacement::Absent),
    },
    StreamedIds {
        header: "x-sglext-return-output-ids",
        field: "return_output_ids_in_sglext",
        rule: rule(&["sglext", "output_ids"], Replacement::Absent),
    },
];

pub(super) fn ask(
    builder: &mut RequestBuilder<'_>,
    options: &AskOptions,
    route: Route,
    has_header: &dyn Fn(&str) -> bool,
) -> Result<(), NotAsked> {
    match route {
        Route::Chat => {
            ask_logprobs(builder, options)?;
            match builder.request.streams() {
                true => ask_streamed_chat(builder, options, has_header),
                false => ask_whole_chat(builder, options),
            }
        }
        Route::Completions => ask_completions(builder),
        Route::Generate => ask_native(builder),
        _ => Err(NotAsked("SGLang reports no tokens on this route")),
    }
}

fn ask_logprobs(builder: &mut RequestBuilder<'_>, options: &AskOptions) -> Result<(), NotAsked> {
    let is_asked = builder.flag("logprobs", &[LOGPROBS])?;
    if !is_asked {
        builder.hide_frames(FrameKind::OnlyLogprobs);
    }
    builder.set_top_logprobs(options, is_asked, TOP_LOGPROBS);
    Ok(())
}

/// Asks for `return_meta_info`, which reports ids and logprobs as pairs. It also moves the experts
/// away from the place where an agent that asked for them looks, so it is not set for such an
/// agent.
fn ask_whole_chat(builder: &mut RequestBuilder<'_>, options: &AskOptions) -> Result<(), NotAsked> {
    let prompt_ids = builder.asked("return_prompt_token_ids")?;
    let ids: &[Rule] = if prompt_ids { &[RESPONSE_IDS] } else { &[PROMPT_IDS, RESPONSE_IDS] };
    builder.flag("return_token_ids", ids)?;

    if builder.asked("return_routed_experts")? {
        return Ok(());
    }
    // The rest comes inside `meta_info`, and only if that is ours to hide.
    if !builder.flag("return_meta_info", &[META_INFO])? {
        if options.routed_experts {
            builder.set("return_routed_experts", "true", &[]);
            builder.set_experts_start(SGLANG_EXPERTS_START, options);
        }
        if options.sampling_mask && !builder.asked("return_sampling_mask")? {
            builder.set("return_sampling_mask", "true", &[]);
        }
    }
    Ok(())
}

/// Asks for ids by headers. If the agent itself asks for some ids in `sglext`, these stay where it
/// looks for them, and only the other ones are taken out of the same event.
fn ask_streamed_chat(
    builder: &mut RequestBuilder<'_>,
    options: &AskOptions,
    has_header: &dyn Fn(&str) -> bool,
) -> Result<(), NotAsked> {
    let by_agent = STREAMED_IDS
        .map(|ids| has_header(ids.header) || builder.request.truth(ids.field) == Some(true));

    if by_agent == [false, false] {
        STREAMED_IDS.iter().for_each(|ids| builder.header(ids.header));
        if !has_header(FRAMED) {
            builder.header(FRAMED);
        }
        builder.hide_frames(FrameKind::Named("sglext_ids"));
        if options.routed_experts && !builder.asked("return_routed_experts")? {
            builder.set("return_routed_experts", "true", &[]);
            builder.set_experts_start(SGLANG_EXPERTS_START, options);
            builder.hide_frames(FrameKind::Sglext);
        }
        return Ok(());
    }

    for (ids, _) in STREAMED_IDS.iter().zip(by_agent).filter(|(_, by_agent)| !by_agent) {
        builder.header(ids.header);
        builder.hide.add_rules(&[ids.rule]);
    }
    Ok(())
}

fn ask_completions(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    if builder.asked("echo")? {
        return Err(NotAsked("with echo, SGLang's logprobs cover the prompt"));
    }
    if !builder.asked_number("logprobs")? {
        builder.set("logprobs", "0", &[LOGPROBS]);
    }
    builder.flag("return_token_ids", &[TOKEN_IDS, PROMPT_IDS])?;
    Ok(())
}

/// Asks on the server's own route, which always reports sampled ids.
fn ask_native(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    let is_asked = match builder.request.raw("return_logprob") {
        // One for each prompt.
        Some([b'[', ..]) => builder.all_are_true("return_logprob"),
        _ => builder.asked("return_logprob")?,
    };
    if !is_asked {
        builder.set("return_logprob", "true", &NATIVE_LOGPROBS);
        // Without logprobs these have no effect, and with ours they would.
        for (key, nothing) in ALTERNATIVES {
            if builder.is_set(key) {
                builder.set(key, nothing, &[]);
            }
        }
    }
    builder.flag("return_prompt_token_ids", &NATIVE_PROMPT_IDS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ask::{AugmentedRequest, ask};
    use crate::dialect::Dialect;
    use crate::document::ReplyDocument;
    use crate::request::Request;
    use crate::sse::Event;

    fn asked(route: Route, body: &'static str, header: &str) -> AugmentedRequest {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        ask(&AskOptions::for_dialect(Dialect::Sglang), route, &request, None, |name| name == header)
    }

    /// The last event of a stream, when both are asked for.
    const BOTH: &str = "data: {\"choices\":[],\"sglext\":{\"input_ids\":[1,2],\
                        \"output_ids\":[[3]]}}\n\n";

    #[test]
    fn an_agent_that_asks_for_some_ids_is_told_those() {
        let event = Event(Bytes::from_static(BOTH.as_bytes()));
        for (header, added, left) in [
            ("x-sglext-return-output-ids", "x-sglext-return-input-ids", r#"{"output_ids":[[3]]}"#),
            ("x-sglext-return-input-ids", "x-sglext-return-output-ids", r#"{"input_ids":[1,2]}"#),
        ] {
            let asked = asked(Route::Chat, r#"{"stream":true}"#, header);
            assert_eq!(asked.headers, [(added, "1")]);
            let shown = asked.hide.event(&event.read()).unwrap();
            assert_eq!(shown, format!("data: {{\"choices\":[],\"sglext\":{left}}}\n\n"));
        }
        let own = r#"{"stream":true,"return_output_ids_in_sglext":true}"#;
        assert_eq!(asked(Route::Chat, own, "").headers.len(), 1);
        let framed = asked(Route::Chat, r#"{"stream":true}"#, FRAMED);
        assert_eq!(framed.headers.len(), 2);
        let named = Event(Bytes::from(format!("event: sglext_ids\n{BOTH}")));
        assert_eq!(framed.hide.event(&named.read()), None);
    }

    #[test]
    fn what_is_no_boolean_asks_for_ids_all_the_same() {
        for given in ["null", "0", "\"off\"", "\"NO\"", "false", "{}", "\"maybe\""] {
            let body = format!(
                r#"{{"logprobs":{given},"return_token_ids":{given},"return_meta_info":{given}}}"#
            );
            let asked = asked(Route::Chat, body.leak(), "");
            let all = r#"{"logprobs":true,"return_token_ids":true,"return_meta_info":true}"#;
            assert!(asked.unasked.is_none() && asked.body == all, "{given}: {:?}", asked.body);
            let reply = r#"{"choices":[{"index":0,"logprobs":{},"meta_info":{}}]}"#;
            let reply = ReplyDocument::new(Bytes::from_static(reply.as_bytes()));
            let shown = asked.hide.document(&reply);
            assert_eq!(shown, r#"{"choices":[{"index":0,"logprobs":null}]}"#, "{given}");
        }
        assert!(asked(Route::Completions, r#"{"logprobs":null}"#, "").unasked.is_none());
        let own = asked(Route::Completions, r#"{"logprobs":"5"}"#, "");
        assert_eq!(own.body, r#"{"logprobs":"5","return_token_ids":true}"#);
    }

    #[test]
    fn ids_of_a_stream_are_asked_for_whatever_stands_in_their_field() {
        let off = r#"{"stream":"on","return_input_ids_in_sglext":"off"}"#;
        let asked = asked(Route::Chat, off, "");
        assert_eq!(asked.headers.len(), 3, "{:?}", asked.headers);
    }

    #[test]
    fn alternatives_without_logprobs_are_none() {
        let chat = asked(Route::Chat, r#"{"top_logprobs":2}"#, "");
        assert!(chat.body.starts_with(br#"{"top_logprobs":0,"logprobs":true,"#), "{:?}", chat.body);
        let body = r#"{"text":"a","top_logprobs_num":2,"return_logprob":[false]}"#;
        let asked_natively = asked(Route::Generate, body, "");
        let sent = r#"{"text":"a","top_logprobs_num":0,"return_logprob":true,"return_prompt_token_ids":true}"#;
        assert_eq!(asked_natively.body, sent);
        let each = asked(Route::Generate, r#"{"return_logprob":[true, true]}"#, "");
        assert!(each.body.starts_with(br#"{"return_logprob":[true, true],"#));
        let own = asked(Route::Generate, r#"{"return_logprob":true}"#, "");
        assert_eq!(own.body, r#"{"return_logprob":true,"return_prompt_token_ids":true}"#);
    }
}
