//! The words of any episode, whose agent writes the same words in other messages from call to call.

use episode::Body;
use episode::Call;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::rows::row::Row;
use crate::tests::fixture::{episode, rows_of};
use crate::tests::properties::{Plan, distinct, plans};

/// Ways of an agent to write the messages of a call, none of which changes a token.
const MANNERS: u8 = 7;

/// Writes the messages of a call in another manner.
fn written(messages: Vec<Value>, manner: u8) -> Vec<Value> {
    let empty = |role: &str| json!({ "role": role, "content": "" });
    let each =
        |change: fn(Value) -> Vec<Value>| messages.iter().cloned().flat_map(change).collect();
    match manner {
        1 => each(|message| match message["role"].as_str() {
            Some("user") => halves(&message),
            _ => vec![message],
        }),
        2 => each(|message| match message["role"].as_str() {
            Some("assistant") => halves(&message),
            _ => vec![message],
        }),
        3 => each(|message| vec![message, json!({ "role": "user", "content": "" })]),
        4 => [vec![empty("system")], messages].concat(),
        5 => each(|mut message| {
            message["content"] = json!([{ "type": "text", "text": message["content"] }]);
            vec![message]
        }),
        6 => each(|mut message| {
            message["content"] = json!(format!("{} ", message["content"].as_str().unwrap()));
            vec![message]
        }),
        _ => messages,
    }
}

/// Splits a message in two.
fn halves(message: &Value) -> Vec<Value> {
    let text = message["content"].as_str().unwrap();
    let (first, second) = text.split_at(text.len() / 2);
    let part = |text: &str| json!({ "role": message["role"], "content": text });
    vec![part(first), part(second)]
}

fn text(content: &Value) -> String {
    let text = wire::content_text(Some(content)).unwrap_or_default();
    text.chars().filter(|letter| !letter.is_whitespace()).collect()
}

fn messages_of(call: &Call) -> Vec<Value> {
    let body: Value = serde_json::from_slice(&call.begun.request.read()).unwrap();
    body["messages"].as_array().unwrap().clone()
}

fn answer_of(call: &Call, choice: usize) -> String {
    let reply: Value = serde_json::from_slice(&call.ended.as_ref().unwrap().reply.read()).unwrap();
    text(&reply["choices"][choice]["message"]["content"])
}

/// The calls of an episode in which every turn samples a token, so that no two conversations have
/// the same tokens, each call in a manner of its own.
fn recorded(plans: &[Plan], manners: &[u8]) -> Vec<Call> {
    let plans: Vec<Plan> = plans.iter().cloned().map(Plan::never_silent).collect();
    let mut calls = distinct(&plans, 1);
    for (call, manner) in calls.iter_mut().zip(manners.iter().cycle()) {
        let messages = written(messages_of(call), *manner);
        call.begun.request = Body::from(json!({ "messages": messages }).to_string());
    }
    calls
}

/// The words of a row are those of its last call and its answer, and the answer of each turn is a
/// message by itself.
fn check(row: &Row, calls: &[Call]) {
    let said = |turn: &crate::rows::row::TurnRow| {
        let call = calls.iter().find(|call| call.begun.call_id.to_string() == turn.call_id);
        (call.unwrap(), answer_of(call.unwrap(), turn.choice as usize))
    };
    let words: Vec<String> = row.messages().map(|message| text(&json!(message.content))).collect();
    let (last, answer) = said(row.turns.last().unwrap());
    let sent: String = messages_of(last).iter().map(|message| text(&message["content"])).collect();
    assert_eq!(words.concat(), sent + &answer, "{:?}", row.dialogue);

    let mut next = 0;
    for turn in &row.turns {
        let at = turn.message.unwrap_or_else(|| panic!("{turn:?}: {:?}", row.dialogue));
        assert_eq!(words[at], said(turn).1);
        assert!(at >= next, "{turn:?}");
        next = at + 1;
    }
    assert_eq!(row.dialogue.unread_parts, "{}");
}

proptest! {
    #[test]
    fn words_are_conserved_however_the_agent_writes_them(
        plans in plans(),
        manners in prop::collection::vec(0..MANNERS, 1..8),
    ) {
        let calls = recorded(&plans, &manners);
        for row in rows_of(&episode(calls.clone())).iter().filter(|row| row.fidelity.is_some()) {
            check(row, &calls);
        }
    }
}
