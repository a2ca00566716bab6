//! vLLM, and rolltape's own engine.
//!
//! Without our fields their answers are null, so hiding puts null back. One effect is structural: a
//! streamed chat sends a chunk with an empty delta only because its ids or logprobs were wanted.
//!
//! vLLM's Rust frontend differs in streams. It leaves null fields out. It sends the prompt's ids
//! of a text completion in a chunk of their own. It joins the deltas of one step where it has ids
//! or logprobs to send with them. Each difference shows in the chunk itself, so the same rules
//! serve both frontends.

use episode::Route;

use super::AskOptions;
use super::builder::{INVALID_REQUEST, NotAsked, RequestBuilder, VLLM_EXPERTS_START};
use crate::dialect::Dialect;
use crate::hide::{FrameKind, Replacement, Rule, rule};

const LOGPROBS: Rule = rule(&["choices", "*", "logprobs"], Replacement::NullOrAbsent);
/// Alternatives, where the agent asked for logprobs without any.
const TOP_LOGPROBS: Rule =
    rule(&["choices", "*", "logprobs", "content", "*", "top_logprobs"], Replacement::EmptyList);
const IDS: [Rule; 3] = [
    rule(&["choices", "*", "token_ids"], Replacement::NullOrAbsent),
    rule(&["choices", "*", "prompt_token_ids"], Replacement::NullOrAbsent),
    rule(&["prompt_token_ids"], Replacement::NullOrAbsent),
];
const VERSIONS: [Rule; 1] = [rule(&["choices", "*", "weight_versions"], Replacement::NullOrAbsent)];
/// The experts of a choice. Without them, whole replies have null there, and streams have no such
/// key.
const EXPERTS: [Rule; 1] = [rule(&["choices", "*", "routed_experts"], Replacement::Null)];
const STREAMED_EXPERTS: [Rule; 1] =
    [rule(&["choices", "*", "routed_experts"], Replacement::Absent)];

/// Ids of a response: in a whole reply and, below `response`, in the first and last event of a
/// stream.
const RESPONSE_IDS: [Rule; 4] = [
    rule(&["input_messages"], Replacement::Null),
    rule(&["output_messages"], Replacement::Null),
    rule(&["response", "input_messages"], Replacement::Null),
    rule(&["response", "output_messages"], Replacement::Null),
];
/// Logprobs of a response. `logprobs` at the root belongs to a text delta, which has an empty list
/// there without our fields.
const RESPONSE_LOGPROBS: [Rule; 7] = [
    rule(&["top_logprobs"], Replacement::Null),
    rule(&["response", "top_logprobs"], Replacement::Null),
    rule(&["logprobs"], Replacement::EmptyListOf("response.output_text.delta")),
    rule(&["part", "logprobs"], Replacement::NullIfFilled),
    rule(&["item", "content", "*", "logprobs"], Replacement::NullIfFilled),
    rule(&["output", "*", "content", "*", "logprobs"], Replacement::NullIfFilled),
    rule(&["response", "output", "*", "content", "*", "logprobs"], Replacement::NullIfFilled),
];
/// The entry of `include` that asks a response for logprobs, as JSON text.
const INCLUDE_LOGPROBS: &str = r#""message.output_text.logprobs""#;

pub(super) fn ask(
    builder: &mut RequestBuilder<'_>,
    options: &AskOptions,
    route: Route,
) -> Result<(), NotAsked> {
    match route {
        Route::Chat => ask_chat(builder, options),
        Route::Completions => ask_completions(builder, options),
        Route::Responses => ask_responses(builder),
        _ => Err(NotAsked("vLLM reports no tokens on this route")),
    }
}

fn ask_chat(builder: &mut RequestBuilder<'_>, options: &AskOptions) -> Result<(), NotAsked> {
    refuse_beam_search(builder)?;
    let logprobs_asked = builder.asked("logprobs")?;
    if builder.wants_only_alternatives() {
        return Err(INVALID_REQUEST);
    }

    builder.flag("logprobs", &[LOGPROBS])?;
    builder.set_top_logprobs(options, logprobs_asked, TOP_LOGPROBS);
    let ids_asked = builder.flag("return_token_ids", &IDS)?;
    builder.flag("return_weight_versions", &VERSIONS)?;
    ask_experts(builder, options)?;

    // An agent that asked for either gets these frames without us, too.
    if !logprobs_asked && !ids_asked {
        builder.hide_frames(FrameKind::EmptyDelta);
        builder.hide.split_frames();
    }
    Ok(())
}

fn ask_completions(builder: &mut RequestBuilder<'_>, options: &AskOptions) -> Result<(), NotAsked> {
    refuse_beam_search(builder)?;
    if builder.asked("echo")? {
        return Err(NotAsked("with echo, vLLM's ids take the place of the prompt's text"));
    }
    if !builder.asked_number("logprobs")? {
        builder.set("logprobs", "0", &[LOGPROBS]);
    }
    if !builder.flag("return_token_ids", &IDS)? {
        builder.hide_frames(FrameKind::OnlyPrompt);
    }
    builder.flag("return_weight_versions", &VERSIONS)?;
    ask_experts(builder, options)?;
    Ok(())
}

/// Asks for experts: of rolltape's own engine by a field. vLLM sends them in whole replies if its
/// command line says so. Then they are for the record, which gets only the new ones; an agent that
/// wants them for itself says where they begin.
fn ask_experts(builder: &mut RequestBuilder<'_>, options: &AskOptions) -> Result<(), NotAsked> {
    if !options.routed_experts {
        return Ok(());
    }
    let streams = builder.request.streams();
    let names_start = builder.asked_number(VLLM_EXPERTS_START)?;
    match options.dialect {
        Dialect::Rolltape => {
            let rules = if streams { &STREAMED_EXPERTS } else { &EXPERTS };
            if builder.flag("return_routed_experts", rules)? {
                return Ok(());
            }
        }
        _ if streams || names_start => return Ok(()),
        _ => builder.hide.add_rules(&EXPERTS),
    }
    builder.set_experts_start(VLLM_EXPERTS_START, options);
    Ok(())
}

fn refuse_beam_search(builder: &RequestBuilder<'_>) -> Result<(), NotAsked> {
    match builder.request.truth("use_beam_search") {
        Some(true) => Err(NotAsked("beam search does not sample")),
        _ => Ok(()),
    }
}

fn ask_responses(builder: &mut RequestBuilder<'_>) -> Result<(), NotAsked> {
    if builder.request.asks_for_later() {
        return Err(NotAsked("a reply in the background is fetched by another call"));
    }
    builder.flag("enable_response_messages", &RESPONSE_IDS)?;
    let list = builder.request.raw("include").filter(|include| include.first() == Some(&b'['));
    match list {
        Some(list) if asks_logprobs(list) => {}
        Some(_) => builder.append("include", INCLUDE_LOGPROBS, &RESPONSE_LOGPROBS),
        None => builder.set("include", r#"["message.output_text.logprobs"]"#, &RESPONSE_LOGPROBS),
    }
    Ok(())
}

fn asks_logprobs(include: &[u8]) -> bool {
    include.windows(INCLUDE_LOGPROBS.len()).any(|window| window == INCLUDE_LOGPROBS.as_bytes())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ask::{AugmentedRequest, ask};
    use crate::document::ReplyDocument;
    use crate::request::Request;
    use crate::sse::Event;

    fn asked(dialect: Dialect, routed_experts: bool, body: &'static str) -> AugmentedRequest {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        let options = AskOptions { routed_experts, ..AskOptions::for_dialect(dialect) };
        ask(&options, Route::Chat, &request, None, |_| false)
    }

    #[test]
    fn a_null_for_alternatives_asks_for_logprobs_all_the_same() {
        let body = |body| {
            let body = asked(Dialect::Vllm, false, body).body;
            serde_json::from_slice::<serde_json::Value>(&body).unwrap()
        };
        for null in [r#"{"top_logprobs":null}"#, r#"{"logprobs":false,"top_logprobs":null}"#] {
            let sent = body(null);
            assert_eq!((&sent["logprobs"], &sent["top_logprobs"]), (&true.into(), &0.into()));
        }
        assert!(body("{}").get("top_logprobs").is_none());
        assert_eq!(body(r#"{"logprobs":true,"top_logprobs":2}"#)["top_logprobs"], 2);
    }

    #[test]
    fn no_spelling_of_no_switches_the_ids_off() {
        let no = ["\"no\"", "0", "0.0", "\"OFF\"", "\"\"", "{}", "7", "[]", "null", "false"];
        for given in no {
            let body = format!(
                r#"{{"logprobs":{given},"return_token_ids":{given},"return_weight_versions":{given}}}"#
            );
            let asked = asked(Dialect::Vllm, false, body.leak());
            let ours = r#"{"logprobs":true,"return_token_ids":true,"return_weight_versions":true}"#;
            assert!(asked.unasked.is_none() && asked.body == ours, "{given}: {:?}", asked.body);
            let reply = r#"{"choices":[{"index":0,"logprobs":{},"token_ids":[5]}]}"#;
            let shown = asked.hide.document(&ReplyDocument::new(Bytes::from(reply)));
            assert_eq!(shown, r#"{"choices":[{"index":0}]}"#, "{given}");
        }
        let yes = asked(Dialect::Vllm, false, r#"{"return_token_ids":"yes","logprobs":1}"#);
        let reply =
            Bytes::from_static(br#"{"choices":[{"index":0,"logprobs":{},"token_ids":[5]}]}"#);
        assert_eq!(yes.hide.document(&ReplyDocument::new(reply.clone())), reply);
        let engine = asked(Dialect::Rolltape, false, r#"{"return_token_ids":"no"}"#);
        assert!(engine.unasked.is_some(), "our own engine refuses it");
    }

    #[test]
    fn alternatives_do_not_switch_the_logprobs_off() {
        for given in [r#""logprobs":"off","top_logprobs":50"#, r#""logprobs":0,"top_logprobs":-1"#]
        {
            let asked = asked(Dialect::Vllm, false, format!("{{{given}}}").leak());
            let sent: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
            assert_eq!((&sent["logprobs"], &sent["top_logprobs"]), (&true.into(), &0.into()));
        }
        for zero in ["0.0", "-0", "0e1", "false", "\"0\""] {
            let body = format!(r#"{{"top_logprobs":{zero}}}"#);
            let asked = asked(Dialect::Vllm, false, body.leak());
            assert!(asked.added.contains(&"logprobs"), "{zero}");
        }
        assert!(asked(Dialect::Vllm, false, r#"{"top_logprobs":2}"#).unasked.is_some());
    }

    #[test]
    fn a_number_of_logprobs_is_the_agents_however_it_is_spelled() {
        let texts = |body: &'static str| {
            let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
            let options = AskOptions::for_dialect(Dialect::Vllm);
            ask(&options, Route::Completions, &request, None, |_| false)
        };
        for own in [r#"{"logprobs":5}"#, r#"{"logprobs":"5"}"#, r#"{"logprobs":true}"#] {
            let asked = texts(own);
            assert!(asked.body.starts_with(&own.as_bytes()[..own.len() - 1]), "{own}");
            assert!(asked.added.contains(&"return_token_ids"), "{own}");
        }
        assert!(texts(r#"{"echo":"off"}"#).unasked.is_none());
        assert!(texts(r#"{"echo":"on"}"#).unasked.is_some());
    }

    #[test]
    fn only_rolltape_is_asked_for_experts_if_wanted() {
        const FIELD: &str = "return_routed_experts";
        for (dialect, wanted, expected) in [
            (Dialect::Rolltape, true, true),
            (Dialect::Rolltape, false, false),
            (Dialect::Vllm, true, false),
        ] {
            assert_eq!(asked(dialect, wanted, "{}").added.contains(&FIELD), expected);
        }
        let own = asked(Dialect::Rolltape, true, r#"{"return_routed_experts":true}"#);
        assert!(!own.added.contains(&FIELD), "the agent asked itself");
    }

    #[test]
    fn experts_that_are_recorded_already_are_not_asked_for_again() {
        for dialect in [Dialect::Rolltape, Dialect::Vllm, Dialect::Sglang] {
            let field = match dialect {
                Dialect::Sglang => "routed_experts_start_len",
                _ => "routed_experts_prompt_start",
            };
            let from = |experts_from: usize, body: &'static str| {
                let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
                let plain = AskOptions::for_dialect(dialect);
                let options = AskOptions { routed_experts: true, experts_from, ..plain };
                ask(&options, Route::Chat, &request, None, |_| false)
            };
            let later = from(19, "{}");
            assert!(later.added.contains(&field) && later.starts_experts, "{field}");
            let sent: serde_json::Value = serde_json::from_slice(&later.body).unwrap();
            assert_eq!(sent[field], 19);
            assert!(!from(0, "{}").starts_experts);
            let own = r#"{"return_routed_experts":true,"routed_experts_prompt_start":5}"#;
            assert!(!from(19, own).starts_experts, "the agent says what it wants");
            let is_streamed = from(19, r#"{"stream":true}"#).starts_experts;
            assert_eq!(is_streamed, dialect != Dialect::Vllm);
        }
    }

    #[test]
    fn experts_that_vllm_sends_unasked_are_for_the_record() {
        let reply = Bytes::from_static(br#"{"choices":[{"index":0,"routed_experts":"AA=="}]}"#);
        let shown = |wanted, body| {
            let hide = asked(Dialect::Vllm, wanted, body).hide;
            hide.document(&ReplyDocument::new(reply.clone()))
        };
        assert_eq!(shown(true, "{}"), r#"{"choices":[{"index":0,"routed_experts":null}]}"#);
        assert_eq!(shown(true, r#"{"routed_experts_prompt_start":0}"#), reply);
        assert_eq!(shown(false, "{}"), reply);
    }

    #[test]
    fn experts_that_the_agent_did_not_ask_for_are_hidden() {
        let whole = asked(Dialect::Rolltape, true, "{}");
        let reply = r#"{"choices":[{"index":0,"routed_experts":"AA=="}]}"#;
        let reply = Bytes::from_static(reply.as_bytes());
        let shown = whole.hide.document(&ReplyDocument::new(reply));
        assert_eq!(shown, r#"{"choices":[{"index":0,"routed_experts":null}]}"#);

        let stream = asked(Dialect::Rolltape, true, r#"{"stream":true,"logprobs":true}"#);
        let choice = r#""finish_reason":"stop","logprobs":null,"token_ids":null"#;
        let event = format!(
            "data: {{\"choices\":[{{\"index\":0,{choice},\"routed_experts\":\"AA==\"}}]}}\n\n"
        );
        let event = Event(Bytes::from(event));
        let shown = stream.hide.event(&event.read()).unwrap();
        let shown = String::from_utf8_lossy(&shown);
        assert!(!shown.contains("routed_experts") && shown.contains("finish_reason"), "{shown}");
    }
}
