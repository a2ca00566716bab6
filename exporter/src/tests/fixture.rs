//! Calls and episodes for tests.

use episode::Body;
use episode::{
    Call, CallEnd, CallId, CallStart, Choice, Outcome, Route, Tag, TagSource, TrajectoryKind,
    VersionSpan,
};
use serde_json::{Value, json};
use store::AttemptRecord;

use crate::graph::derive::derive;
use crate::graph::scan::RecordedAttempt;
use crate::rows::builder::{RowExtras, rows};
use crate::rows::row::Row;
use crate::weigh::{PathFilter, SharedTokens, weigh};

/// Call number `n`, begun at time 10 n and ended at 10 n + 5, with what each choice sampled.
pub(crate) fn call(n: u32, prompt: &[u32], choices: &[&[u32]]) -> Call {
    let call_id = CallId(uuid::Uuid::from_u128(u128::from(n)));
    let tag = Tag {
        episode: "e".parse().unwrap(),
        attempt: 0,
        group: None,
        task: None,
        labels: Vec::new(),
        source: TagSource::Header,
    };
    let begun = CallStart {
        call_id,
        tag,
        started_at: i64::from(n) * 10,
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        route: Route::Chat,
        model: Some("m".to_owned()),
        request: Body::default(),
        sampling: None,
        lineage: episode::Lineage::default(),
    };
    let ended = CallEnd {
        status: Some(200),
        prompts: vec![prompt.to_vec()],
        choices: choices.iter().zip(0..).map(|(ids, index)| choice(index, ids)).collect(),
        logprob_kind: "processed".to_owned(),
        ..CallEnd::without_reply(call_id, i64::from(n) * 10 + 5, Outcome::Complete)
    };
    Call { begun, ended: Some(ended) }
}

/// A choice sampled by version 7, each token with logprob -0.5.
pub(crate) fn choice(index: u32, ids: &[u32]) -> Choice {
    Choice {
        index,
        prompt_index: 0,
        token_ids: Some(ids.to_vec()),
        logprobs: vec![-0.5; ids.len()],
        finish_reason: Some("stop".to_owned()),
        stop_reason: None,
        versions: vec![VersionSpan { version: "7".to_owned(), start: 0, end: ids.len() as u32 }],
        fidelity: episode::Fidelity::Exact,
        token_columns: Vec::new(),
    }
}

/// A call to a server that reports no ids.
pub(crate) fn text_call(n: u32, messages: &[Value], answer: &str) -> Call {
    let mut call = with_bodies(call(n, &[], &[]), messages, answer);
    call.ended.as_mut().unwrap().prompts.clear();
    call
}

/// The same call with a request and a reply in OpenAI's chat form.
pub(crate) fn with_bodies(mut call: Call, messages: &[Value], answer: &str) -> Call {
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": {} } });
    let request = json!({ "messages": messages, "tools": [tool] });
    let answer = json!({ "role": "assistant", "content": answer });
    let reply = json!({ "choices": [{ "index": 0, "message": answer }] });
    call.begun.request = Body::from(request.to_string());
    call.ended.as_mut().unwrap().reply = Body::from(reply.to_string());
    call
}

/// The reply of a call, to be changed.
pub(crate) fn reply(call: &mut Call) -> &mut CallEnd {
    call.ended.as_mut().unwrap()
}

/// An episode of these calls without rewards.
pub(crate) fn episode(calls: Vec<Call>) -> RecordedAttempt {
    let record = AttemptRecord {
        key: 1,
        id: "e".parse().unwrap(),
        attempt: 0,
        group: Some("g".parse().unwrap()),
        task: None,
        labels: vec![("suite".to_owned(), "a".to_owned())],
        source: TagSource::Header,
        opened_at: 0,
        closed_at: None,
        status: None,
        force_sampling: None,
        continues: None,
        replay: None,
        may_lack_calls: false,
    };
    RecordedAttempt::of_calls(record, calls)
}

/// The rows of an episode.
pub(crate) fn rows_of(episode: &RecordedAttempt) -> Vec<Row> {
    chosen(episode, &[], SharedTokens::Once)
}

/// The rows of an episode with what they say when they are asked to.
pub(crate) fn beside(episode: &RecordedAttempt, beside: RowExtras<'_>) -> Vec<Row> {
    let derived = derive(&episode.calls);
    let (shares, _) = weigh(&derived, &PathFilter::default());
    rows(episode, &derived, &shares, beside).collect()
}

/// The rows of an episode that are of these kinds (none: of all).
pub(crate) fn chosen(
    episode: &RecordedAttempt,
    kinds: &[TrajectoryKind],
    shared: SharedTokens,
) -> Vec<Row> {
    let derived = derive(&episode.calls);
    let kinds = kinds.iter().copied().collect();
    let wanted = PathFilter { kinds, shared, ..PathFilter::default() };
    let (shares, _) = weigh(&derived, &wanted);
    rows(episode, &derived, &shares, RowExtras::default()).collect()
}

/// Ids, loss mask and kind of each row.
pub(crate) fn brief(calls: Vec<Call>) -> Vec<(Vec<i32>, Vec<i8>, &'static str)> {
    let rows = rows_of(&episode(calls));
    rows.into_iter().map(|r| (r.tokens.input_ids, r.tokens.loss_mask, r.kind)).collect()
}
