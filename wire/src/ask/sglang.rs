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

/// Fields that we set, and that are no booleans to SGLang where they are null. Text completions
/// take a null for `logprobs`, and so does its own route.
const BOOLEANS: [&str; 4] =
    ["return_token_ids", "return_meta_info", "return_prompt_token_ids", "return_routed_experts"];

/// On its own route, in a reply and in a list of such.
const NATIVE_LOGPROBS: [Rule; 6] = [
    (&["meta_info", "input_token_logprobs"], With::Nothing),
    (&["meta_info", "output_token_logprobs"], With::Nothing),
    (&["meta_info", "output_token_logprobs_length"], With::Nothing),
    (&["*", "meta_info", "input_token_logprobs"], With::Nothing),
    (&["*", "meta_info", "output_token_logprobs"], With::Nothing),
    (&["*", "meta_info", "output_token_logprobs_length"], With::Nothing),
];
const NATIVE_PROMPT_IDS: [Rule; 2] =
    [(&["prompt_token_ids"], With::Nothing), (&["*", "prompt_token_ids"], With::Nothing)];

const FRAMED: &str = "x-sglext-ids-framed";
/// What asks for ids on a stream, by header or by field, and where they stand in an event that
/// comes anyway.
const STREAMED_IDS: [(&str, &str, Rule); 2] = [
    (
        "x-sglext-return-input-ids",
        "return_input_ids_in_sglext",
        (&["sglext", "input_ids"], With::Nothing),
    ),
    (
        "x-sglext-return-output-ids",
        "return_output_ids_in_sglext",
        (&["sglext", "output_ids"], With::Nothing),
    ),
];

pub(super) fn ask(
    draft: &mut Draft<'_>,
    wants: &Wants,
    route: Route,
    has_header: &dyn Fn(&str) -> bool,
) -> Result<(), Unasked> {
    let is_null = |key: &&str| draft.request.raw(key) == Some(b"null");
    if BOOLEANS.iter().any(is_null) {
        return Err(FOR_THE_UPSTREAM);
    }
    match route {
        Route::Chat => {
            logprobs(draft, wants)?;
            match draft.request.streams() {
                true => stream(draft, wants, has_header),
                false => document(draft, wants),
            }
        }
        Route::Completions => completions(draft),
        Route::Generate => generate(draft),
        _ => Err(Unasked("SGLang reports no tokens on this route")),
    }
}

fn logprobs(draft: &mut Draft<'_>, wants: &Wants) -> Result<(), Unasked> {
    if draft.request.raw("logprobs") == Some(b"null") {
        return Err(FOR_THE_UPSTREAM);
    }
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

/// An agent that asks for ids in `sglext` itself gets those as it asked, and so do we; the others
/// are taken out of the same event.
fn stream(
    draft: &mut Draft<'_>,
    wants: &Wants,
    has_header: &dyn Fn(&str) -> bool,
) -> Result<(), Unasked> {
    let own = STREAMED_IDS.map(|(header, field, _)| has_header(header) || draft.is_set(field));
    if own == [false, false] {
        draft.headers.extend(STREAMED_IDS.map(|(header, _, _)| (header, "1")));
        if !has_header(FRAMED) {
            draft.headers.push((FRAMED, "1"));
        }
        draft.drop(Drop::Named("sglext_ids"));
        if wants.routed_experts && !draft.asked("return_routed_experts")? {
            draft.set("return_routed_experts", "true", &[]);
            draft.drop(Drop::Sglext);
        }
        return Ok(());
    }
    for ((header, _, rule), _) in STREAMED_IDS.iter().zip(own).filter(|(_, own)| !own) {
        draft.headers.push((header, "1"));
        draft.hide.rules(&[*rule]);
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

/// Ids are told anyway.
fn generate(draft: &mut Draft<'_>) -> Result<(), Unasked> {
    let more = ["top_logprobs_num", "token_ids_logprob", "return_flat_raw_output_top_logprobs"];
    let logprobs = draft.is_set("return_logprob");
    if !logprobs && more.iter().any(|key| draft.is_set(key)) {
        return Err(FOR_THE_UPSTREAM);
    }
    if !logprobs {
        draft.set("return_logprob", "true", &NATIVE_LOGPROBS);
    }
    draft.flag("return_prompt_token_ids", &NATIVE_PROMPT_IDS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ask::{Asked, ask};
    use crate::dialect::Dialect;
    use crate::request::Request;
    use crate::sse::Event;

    fn asked(route: Route, body: &'static str, header: &str) -> Asked {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        ask(&Wants::of(Dialect::Sglang), route, &request, |name| name == header)
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
            let shown = asked.hide.event(&event).unwrap();
            assert_eq!(shown, format!("data: {{\"choices\":[],\"sglext\":{left}}}\n\n"));
        }
        let own = r#"{"stream":true,"return_output_ids_in_sglext":true}"#;
        assert_eq!(asked(Route::Chat, own, "").headers.len(), 1);
        let framed = asked(Route::Chat, r#"{"stream":true}"#, FRAMED);
        assert_eq!(framed.headers.len(), 2);
        let named = Event(Bytes::from(format!("event: sglext_ids\n{BOTH}")));
        assert_eq!(framed.hide.event(&named), None);
    }

    #[test]
    fn what_is_no_boolean_is_left_for_sglang_to_refuse() {
        for body in [r#"{"logprobs":null}"#, r#"{"return_token_ids":null}"#] {
            let asked = asked(Route::Chat, body, "");
            assert!(asked.unasked.is_some() && asked.body == body, "{body}");
        }
        assert!(asked(Route::Completions, r#"{"logprobs":null}"#, "").unasked.is_none());
    }

    #[test]
    fn alternatives_without_logprobs_are_not_given_on_its_own_route() {
        let body = r#"{"text":"a","top_logprobs_num":2}"#;
        assert!(asked(Route::Generate, body, "").unasked.is_some());
        let own = asked(Route::Generate, r#"{"return_logprob":true}"#, "");
        assert_eq!(own.body, r#"{"return_logprob":true,"return_prompt_token_ids":true}"#);
    }
}
