//! A case for each cause, and one against it.

use std::collections::HashMap;

use serde_json::json;

use super::*;
use crate::forks::rules::evidence::{CallRelation, SampledSpan};
use crate::forks::token_texts::ForkTexts;

/// Messages from `role: text`.
fn messages(lines: &[&str]) -> Vec<Value> {
    let message = |line: &&str| {
        let (role, text) = line.split_once(": ").unwrap();
        json!({ "role": role, "content": text })
    };
    lines.iter().map(message).collect()
}

fn history(messages: Vec<Value>) -> HistorySide {
    HistorySide { messages, models: [Some("m".to_owned()), None], ..HistorySide::default() }
}

fn said(lines: &[&str]) -> HistorySide {
    history(messages(lines))
}

fn calling(id: &str, arguments: &str) -> Value {
    json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": id, "type": "function",
        "function": { "name": "f", "arguments": arguments } }] })
}

const CONTINUES: CallRelation =
    CallRelation { continues: true, summary: false, other_agent: false, inherited_messages: None };

/// The causes of a fork of which no ids are known.
fn of_words(known: &HistorySide, sent: &HistorySide, relation: CallRelation) -> Vec<Cause> {
    let texts = ForkTexts::default();
    causes(&ForkCase { known, sent, ids: None, relation, texts: &texts })
}

fn causes(case: &ForkCase<'_>) -> Vec<Cause> {
    classify(case).into_iter().map(|found| found.cause).collect()
}

/// The causes where two histories differ in one message, the answer `b` to `a`.
fn of_answers(known: Value, sent: Value) -> Vec<Cause> {
    let user = || json!({ "role": "user", "content": "a" });
    let next = json!({ "role": "user", "content": "c" });
    let (known, sent) = (history(vec![user(), known]), history(vec![user(), sent, next]));
    of_words(&known, &sent, CONTINUES)
}

fn assistant(content: &str, reasoning: Option<&str>) -> Value {
    let mut message = json!({ "role": "assistant", "content": content });
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    message
}

#[test]
fn thinking_that_is_not_sent_back_is_stripped() {
    let thought = || assistant("b", Some("hm"));
    assert_eq!(of_answers(thought(), assistant("b", None)), [Cause::ThinkingStripped]);
    let tagged = || assistant("<think>\nhm\n</think>\n\nb", None);
    assert_eq!(of_answers(tagged(), assistant("b", None)), [Cause::ThinkingStripped]);
    // The opener may stand in the template.
    let closed = assistant("hm\n</think>\n\nb", None);
    assert_eq!(of_answers(closed, assistant("b", None)), [Cause::ThinkingStripped]);
    // Under another name it is still there; other words are another answer.
    let mut renamed = assistant("b", None);
    renamed["reasoning"] = json!("hm");
    assert_eq!(of_answers(thought(), renamed), [Cause::Unknown]);
    assert_eq!(of_answers(thought(), assistant("c", None)), [Cause::MessageEdited]);
    assert_eq!(of_answers(assistant("b", Some("")), assistant("b", None)), [Cause::Unknown]);
}

#[test]
fn arguments_in_another_spelling_are_reserialized() {
    let sent = || calling("x", r#"{"a": "\u00fc", "b": 2}"#);
    assert_eq!(
        of_answers(sent(), calling("x", r#"{"b":2,"a":"ü"}"#)),
        [Cause::ArgumentsReserialized]
    );
    assert_eq!(of_answers(sent(), calling("x", r#"{"a":"u","b":2}"#)), [Cause::MessageEdited]);
    assert_eq!(of_answers(sent(), sent()), [Cause::Unknown]);
}

#[test]
fn a_message_in_another_form_is_respelled() {
    let plain = || assistant("b", None);
    let parts = json!({ "role": "assistant", "content": [{ "type": "text", "text": "b" }] });
    assert_eq!(of_answers(plain(), parts), [Cause::MessageRespelled]);
    assert_eq!(of_answers(calling("x", "{}"), calling("y", "{}")), [Cause::MessageRespelled]);
    let empty = json!({ "role": "assistant", "content": "" });
    let null = json!({ "role": "assistant", "content": null });
    assert_eq!(of_answers(empty, null), [Cause::Unknown]);
}

#[test]
fn spaces_alone_are_whitespace() {
    assert_eq!(
        of_answers(assistant("b \n", None), assistant("b", None)),
        [Cause::WhitespaceChanged]
    );
    assert_eq!(of_answers(assistant("b c", None), assistant("b d", None)), [Cause::MessageEdited]);
}

#[test]
fn clocks_and_nonces_are_told_from_other_instructions() {
    let at = |text: &str| said(&[&format!("system: {text}"), "user: a", "assistant: b"]);
    let of = |one: &str, other: &str| of_words(&at(one), &at(other), CONTINUES);
    assert_eq!(of("it is 09:15", "it is 10:02"), [Cause::NonceOrDate]);
    assert_eq!(of("cch=5fa31; help", "cch=9be02; help"), [Cause::NonceOrDate]);
    assert_eq!(of("be brief", "be long"), [Cause::InstructionsChanged]);
    assert_eq!(of("a  b", "a b"), [Cause::WhitespaceChanged]);
    assert_eq!(of("same", "same"), [Cause::Unknown]);
    let bare = said(&["user: a", "assistant: b"]);
    assert_eq!(of_words(&at("x"), &bare, CONTINUES)[0], Cause::InstructionsChanged);
    // A clock in what the user says is one too, in what the model said it is an edit.
    let by = |role: &str, text: &str| said(&["user: a", &format!("{role}: {text}")]);
    let of = |role| of_words(&by(role, "at 09:15"), &by(role, "at 10:02"), CONTINUES);
    assert_eq!(of("user"), [Cause::NonceOrDate]);
    assert_eq!(of("assistant"), [Cause::MessageEdited]);
}

#[test]
fn other_tools_models_and_arguments_to_the_template_are_told() {
    let plain = || said(&["user: a", "assistant: b"]);
    let tool = |strict: bool| json!({ "type": "function", "function": { "strict": strict } });
    let with = |tools: Vec<Value>| HistorySide { tools, ..plain() };
    let of = |known: &HistorySide, sent: &HistorySide| of_words(known, sent, CONTINUES);
    assert_eq!(of(&with(vec![tool(true)]), &with(vec![tool(false)])), [Cause::ToolsChanged]);
    assert_eq!(of(&with(vec![tool(true)]), &with(vec![])), [Cause::ToolsChanged]);
    assert_eq!(of(&with(vec![tool(true)]), &with(vec![tool(true)])), [Cause::Unknown]);
    let by = |agent: &str, server: Option<&str>| HistorySide {
        models: [Some(agent.to_owned()), server.map(str::to_owned)],
        ..plain()
    };
    assert_eq!(of(&by("m", None), &by("n", None)), [Cause::ModelChanged]);
    assert_eq!(of(&by("m", Some("x")), &by("m", Some("y"))), [Cause::ModelChanged]);
    assert_eq!(of(&by("m", Some("x")), &by("m", None)), [Cause::Unknown]);
    let mut thinks = plain();
    thinks.rendering.insert("reasoning_effort".to_owned(), json!("high"));
    assert_eq!(of(&plain(), &thinks), [Cause::TemplateChanged]);
}

#[test]
fn a_dropped_message_is_told_from_an_edited_one() {
    let known = said(&["user: a", "assistant: b", "user: c", "assistant: d", "user: e"]);
    let dropped = said(&["user: a", "user: c", "assistant: d", "user: e"]);
    assert_eq!(of_words(&known, &dropped, CONTINUES), [Cause::MessageDropped]);
    let edited = said(&["user: a", "assistant: x", "user: c", "assistant: d", "user: e"]);
    assert_eq!(of_words(&known, &edited, CONTINUES), [Cause::MessageEdited]);
}

#[test]
fn going_back_to_an_earlier_turn_is_a_branch() {
    let known = said(&["user: a", "assistant: b", "user: c", "assistant: d"]);
    let from_b = CallRelation { inherited_messages: Some(2), ..CONTINUES };
    let other = said(&["user: a", "assistant: b", "user: x"]);
    assert_eq!(of_words(&known, &other, from_b), [Cause::Branched]);
    assert_eq!(of_words(&known, &said(&["user: a", "assistant: b"]), from_b), [Cause::Branched]);
    // What followed is still there: the message in between was edited.
    let edited = said(&["user: a", "assistant: b", "user: x", "assistant: d", "user: e"]);
    assert_eq!(of_words(&known, &edited, from_b), [Cause::MessageEdited]);
    // No recorded turn is gone back to.
    assert_eq!(of_words(&known, &other, CONTINUES), [Cause::MessageEdited]);
}

#[test]
fn a_summary_in_place_of_messages_is_a_compaction() {
    let known = said(&["user: a", "assistant: b", "user: c", "assistant: d"]);
    let summed = said(&["user: Summary of the conversation so far: ...", "user: e"]);
    assert_eq!(of_words(&known, &summed, CONTINUES), [Cause::Compaction]);
    let longer = said(&["user: a summary of x?", "assistant: b", "user: c", "assistant: d"]);
    assert_eq!(of_words(&known, &longer, CONTINUES), [Cause::MessageEdited]);
    // The agent said so itself.
    let makes = CallRelation { summary: true, ..CONTINUES };
    assert_eq!(of_words(&known, &known, makes), [Cause::Compaction]);
}

#[test]
fn other_agents_and_conversations_leave_nothing() {
    let known = said(&["system: s", "user: a", "assistant: b"]);
    let agent = CallRelation { other_agent: true, ..CONTINUES };
    assert_eq!(of_words(&known, &known, agent), [Cause::OtherAgent]);
    let alone = CallRelation::default();
    let other = said(&["system: s", "user: x", "assistant: y"]);
    assert_eq!(of_words(&known, &other, alone), [Cause::OtherConversation]);
    // The same beginning, or an answer that was given here, is this conversation.
    assert_eq!(
        of_words(&known, &said(&["system: t", "user: a"]), alone)[0],
        Cause::InstructionsChanged
    );
    let cut = said(&["system: s", "user: x", "assistant: b"]);
    assert_eq!(of_words(&known, &cut, alone), [Cause::MessageEdited]);
    // Of prompts that are no messages nothing is known.
    assert_eq!(of_words(&history(vec![]), &history(vec![]), alone), [Cause::Unknown]);
}

/// A turn: the ids of its prompt that are new, and what it sampled.
fn spans(turns: &[(usize, usize)], thinks: bool, calls: bool) -> Vec<SampledSpan> {
    let span = |(n, (start, end)): (usize, &(usize, usize))| SampledSpan {
        tokens: *start..*end,
        message: 2 * n + 1,
        thinks,
        calls,
        is_cut: false,
    };
    turns.iter().enumerate().map(span).collect()
}

/// The likely cause where the messages are an extension of what was known.
fn of_ids(known: &[u32], sent: &[u32], spans: &[SampledSpan], texts: &ForkTexts) -> Cause {
    of_ids_and_words(known, sent, spans, texts, "user: a")
}

fn of_ids_and_words(
    known: &[u32],
    sent: &[u32],
    spans: &[SampledSpan],
    texts: &ForkTexts,
    first: &str,
) -> Cause {
    let at = known.iter().zip(sent).take_while(|(a, b)| a == b).count();
    let old = said(&["user: a", "assistant: b", "user: c", "assistant: d"]);
    let new = said(&[first, "assistant: b", "user: c", "assistant: d", "user: e"]);
    let ids = Some(ForkIds { known, sent, at, spans });
    causes(&ForkCase { known: &old, sent: &new, ids, relation: CONTINUES, texts })[0]
}

#[test]
fn tokens_at_the_end_of_a_turn_are_a_seam() {
    let none = ForkTexts::default();
    let turns = spans(&[(20, 30), (40, 50)], false, false);
    let known: Vec<u32> = (0..50).collect();
    let with = |at: usize, ids: &[u32], skip: usize| {
        [&known[..at], ids, &known[at + skip..], &[90, 91]].concat()
    };
    let of = |sent: &[u32]| of_ids(&known, sent, &turns, &none);
    assert_eq!(of(&with(29, &[77], 1)), Cause::Seam, "another end of the turn");
    assert_eq!(of(&with(30, &[77], 0)), Cause::Seam, "a newline after it");
    assert_eq!(of(&with(49, &[], 1)), Cause::Seam, "the end of the newest turn is missing");
    assert_eq!(of(&with(39, &[], 1)), Cause::Seam, "the opener of the reasoning is missing");
    assert_ne!(of(&with(24, &[77], 1)), Cause::Seam, "in the midst of an answer");
    assert_ne!(of(&with(10, &[77], 1)), Cause::Seam, "in the midst of a prompt");
    let other: Vec<u32> = (100..120).collect();
    assert_ne!(of(&[&known[..30], &other].concat()), Cause::Seam, "what follows is other text");
}

#[test]
fn reasoning_that_only_the_prompt_lacks_was_cut_by_the_template() {
    let none = ForkTexts::default();
    let known: Vec<u32> = (0..50).collect();
    let sent = [&known[..20], &known[32..50], &[90, 91]].concat();
    let of = |thinks| of_ids(&known, &sent, &spans(&[(20, 50)], thinks, false), &none);
    assert_eq!(of(true), Cause::ThinkingCutByTemplate);
    assert_ne!(of(false), Cause::ThinkingCutByTemplate);
    // The opener stood in the prompt, and an empty pair of marks is left.
    let sent = [&known[..18], &[77, 78], &known[32..50], &[90]].concat();
    let turns = spans(&[(20, 50)], true, false);
    assert_eq!(of_ids(&known, &sent, &turns, &none), Cause::ThinkingCutByTemplate);
    let other = [&known[..20], &[77, 78, 79, 80, 81, 82], &[90]].concat();
    assert_eq!(of_ids(&known, &other, &turns, &none), Cause::Unknown);
}

fn texts(of: &[(u32, &str)]) -> ForkTexts {
    ForkTexts::Known(
        of.iter().map(|(id, text)| (*id, text.as_bytes().to_vec())).collect::<HashMap<_, _>>(),
    )
}

#[test]
fn words_at_either_end_of_a_turn_are_no_seam() {
    let known: Vec<u32> = (0..50).collect();
    let turns = spans(&[(20, 30), (40, 50)], false, false);
    let mut cut = turns.clone();
    cut[0].is_cut = true;
    let of = |at: usize, ids: &[u32], skip: usize, turns: &[SampledSpan]| {
        let sent = [&known[..at], ids, &known[at + skip..], &[90]].concat();
        of_ids(&known, &sent, turns, &ForkTexts::default())
    };
    for last_word in [28, 48] {
        assert_eq!(of(last_word, &[77, 78], 1, &turns), Cause::Retokenized);
        assert_eq!(of(last_word, &[77], 1, &turns), Cause::Retokenized);
    }
    assert_eq!(of(29, &[77, 78], 1, &cut), Cause::Retokenized, "no token ends the turn");
    assert_eq!(of(40, &[77, 78], 2, &turns), Cause::Retokenized, "its first words");
}

#[test]
fn the_same_text_in_other_ids_was_retokenized() {
    let none = ForkTexts::default();
    let known: Vec<u32> = (0..50).collect();
    let sent = [&known[..30], &[77], &known[32..], &[90]].concat();
    let turns = spans(&[(20, 50)], false, false);
    assert_eq!(of_ids(&known, &sent, &turns, &none), Cause::Retokenized);
    let same = texts(&[(30, "ab"), (31, "c"), (77, "abc")]);
    assert_eq!(of_ids(&known, &sent, &turns, &same), Cause::Retokenized);
    let other = texts(&[(30, "ab"), (31, "c"), (77, "xyz")]);
    assert_ne!(of_ids(&known, &sent, &turns, &other), Cause::Retokenized);
    // A template may write arguments in its own way.
    let calls = spans(&[(20, 50)], false, true);
    assert_eq!(of_ids(&known, &sent, &calls, &none), Cause::Unknown);
    // What was never sampled was never tokenized twice.
    let later = spans(&[(40, 50)], false, false);
    assert_ne!(of_ids(&known, &sent, &later, &none), Cause::Retokenized);
}

#[test]
fn a_clock_of_the_template_shows_in_its_text() {
    let known: Vec<u32> = (0..50).collect();
    let sent = [&known[..10], &[77], &known[11..], &[90]].concat();
    let turns = spans(&[(40, 50)], false, false);
    let mut words: Vec<(u32, &str)> = known.iter().map(|id| (*id, " word")).collect();
    words.extend([(10, " 2026-11-21"), (77, " 2026-11-22")]);
    assert_eq!(of_ids(&known, &sent, &turns, &texts(&words)), Cause::NonceOrDate);
    words.extend([(10, " brief"), (77, " long")]);
    assert_eq!(of_ids(&known, &sent, &turns, &texts(&words)), Cause::TemplateChanged);
}

#[test]
fn a_difference_elsewhere_is_not_the_cause() {
    let none = ForkTexts::default();
    let known: Vec<u32> = (0..50).collect();
    let turns = spans(&[(20, 30), (40, 50)], false, false);
    let of = |at: usize| {
        let sent = [&known[..at], &[77], &known[at + 1..], &[90]].concat();
        of_ids_and_words(&known, &sent, &turns, &none, "user: x")
    };
    assert_eq!(of(10), Cause::MessageEdited, "the message stands there");
    assert_eq!(of(45), Cause::Retokenized, "the tokens of the message are the same");
}

#[test]
fn what_comes_first_is_the_likely_cause_and_the_rest_is_told() {
    let known = said(&["system: at 1", "user: a", "assistant: b", "user: c", "assistant: d"]);
    let mut sent = said(&["system: at 2", "user: a", "assistant: x", "user: c", "assistant: y"]);
    sent.tools = vec![json!({})];
    let found = of_words(&known, &sent, CONTINUES);
    assert_eq!(found, [Cause::ToolsChanged, Cause::NonceOrDate, Cause::MessageEdited]);
}
