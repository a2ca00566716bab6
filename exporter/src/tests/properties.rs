//! Properties of any episode: random branching, drift, sub-agents, retries, losses, overlaps.

use std::collections::{BTreeMap, BTreeSet};

use episode::{Call, CallId, CallKind, Choice, Outcome, TrajectoryKind};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::graph::assessment::is_missing;
use crate::rows::row::{Row, Tokens};
use crate::tests::fixture::{call, choice, chosen, episode, reply, rows_of, with_bodies};
use crate::{ChoiceLink, Fork, Reason, SharedTokens, choice_links, diagnose};

/// The draws for one call.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The earlier choice that it continues; none for a conversation of its own.
    parent: Option<prop::sample::Index>,
    /// The token of that history that is left out.
    drift: Option<prop::sample::Index>,
    /// The ids that the agent adds.
    seam: Vec<u32>,
    /// For each choice its tokens, each with or without a logprob.
    choices: Vec<Vec<(u32, bool)>>,
    /// Its end: see [`finish`].
    ending: u8,
    /// The maker: the main agent, or one of two others.
    agent: u8,
    /// The purpose: see [`lineage`].
    purpose: u8,
    /// True if it asks once more what it continues was asked.
    again: bool,
    /// True if another model answers it.
    other_model: bool,
    /// True if its answers are cut off.
    cut_off: bool,
    /// The time by which it begins later than its number says.
    delay: i64,
    /// The time that it takes.
    lasts: i64,
}

impl Plan {
    /// The same call, whose choices all sample a token.
    pub(crate) fn never_silent(mut self) -> Self {
        let silent = self.choices.iter_mut().filter(|tokens| tokens.is_empty());
        silent.for_each(|tokens| tokens.push((0, true)));
        self
    }
}

pub(crate) fn plans() -> impl Strategy<Value = Vec<Plan>> {
    // Two symbols only, so that paths meet by accident too.
    let token = (0..2u32, prop::bool::weighted(0.9));
    let choices = prop::collection::vec(prop::collection::vec(token, 0..4), 1..4);
    let parent = prop::option::weighted(0.85, any::<prop::sample::Index>());
    let drift = prop::option::weighted(0.1, any::<prop::sample::Index>());
    let history = (parent, drift, prop::collection::vec(0..2u32, 0..4), choices);
    let who = (0..12u8, 0..6u8, 0..16u8, prop::bool::weighted(0.15));
    let how = (prop::bool::weighted(0.1), prop::bool::weighted(0.1), 0..60i64, 1..80i64);
    let plan = (history, who, how).prop_map(|(history, who, how)| {
        let (parent, drift, seam, choices) = history;
        let (ending, agent, purpose, again) = who;
        let (other_model, cut_off, delay, lasts) = how;
        Plan {
            parent,
            drift,
            seam,
            choices,
            ending,
            agent,
            purpose,
            again,
            other_model,
            cut_off,
            delay,
            lasts,
        }
    });
    prop::collection::vec(plan, 1..25)
}

/// The questions and answers so far on one path.
struct Told {
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    messages: Vec<Value>,
    answer: String,
    retry: u32,
}

/// The calls of such an episode.
pub(crate) fn recorded(plans: &[Plan]) -> Vec<Call> {
    recorded_as(plans, 1, false)
}

/// The same, where no two choices sample the same tokens or say the same, so that the same tokens
/// always mean the same text. The calls are numbered from `first`.
pub(crate) fn distinct(plans: &[Plan], first: u32) -> Vec<Call> {
    recorded_as(plans, first, true)
}

fn recorded_as(plans: &[Plan], first: u32, distinct: bool) -> Vec<Call> {
    let mut paths: Vec<Told> = Vec::new();
    let mut calls = Vec::new();
    for (plan, n) in plans.iter().zip(first..) {
        let told = plan.parent.filter(|_| !paths.is_empty()).map(|p| p.get(&paths));
        let lost = distinct.then_some(1_000_000 + n);
        let (prompt, messages, retry) = asked(plan, told, lost);
        let mut call = with_bodies(call(n, &prompt, &[]), &messages, "");
        call.begun.started_at += plan.delay;
        call.begun.lineage.retry = retry;
        lineage(plan, &mut call);
        let mut answers = Vec::new();
        for (tokens, index) in plan.choices.iter().zip(0..) {
            let first = if distinct { 2 * (n * 8 + index) } else { 0 };
            let sampled: Vec<u32> = tokens.iter().map(|t| first + t.0).collect();
            let logprobs = tokens.iter().map(|t| if t.1 { -0.5 } else { f32::NAN }).collect();
            let why = if plan.cut_off { "length" } else { "stop" };
            let finish_reason = Some(why.to_owned());
            let made = Choice { logprobs, finish_reason, ..choice(index, &sampled) };
            reply(&mut call).choices.push(made);
            let name = if distinct { format!("{n}.{index} ") } else { String::new() };
            let answer = format!("{name}{sampled:?}");
            answers.push(json!({ "index": index, "message": {
                "role": "assistant", "content": answer } }));
            let (prompt, messages) = (prompt.clone(), messages.clone());
            paths.push(Told { prompt, sampled, messages, answer, retry });
        }
        reply(&mut call).reply = json!({ "choices": answers }).to_string().into();
        reply(&mut call).model = plan.other_model.then(|| "judge".to_owned());
        finish(plan, &mut call);
        calls.push(call);
    }
    calls
}

/// Prompt, messages and number of the try. A token of the history that drifts is another one, if
/// one is given, or left out.
fn asked(plan: &Plan, told: Option<&Told>, other: Option<u32>) -> (Vec<u32>, Vec<Value>, u32) {
    let Some(told) = told else {
        let first = json!({ "role": "user", "content": format!("{:?}", plan.seam) });
        return ([&[0], plan.seam.as_slice()].concat(), vec![first], 0);
    };
    if plan.again {
        return (told.prompt.clone(), told.messages.clone(), told.retry + 1);
    }
    let mut prompt = [told.prompt.as_slice(), &told.sampled].concat();
    if let Some(lost) = plan.drift.filter(|_| prompt.len() > 1) {
        let at = lost.index(prompt.len());
        prompt.splice(at..=at, other);
    }
    prompt.extend(&plan.seam);
    let mut messages = told.messages.clone();
    messages.push(json!({ "role": "assistant", "content": told.answer, "reasoning": "hm" }));
    messages.push(json!({ "role": "user", "content": format!("{:?}", plan.seam) }));
    (prompt, messages, 0)
}

fn lineage(plan: &Plan, call: &mut Call) {
    let lineage = &mut call.begun.lineage;
    if plan.agent < 2 {
        lineage.agent = Some(["a", "b"][usize::from(plan.agent)].to_owned());
        lineage.kind = CallKind::Subagent;
    }
    match plan.purpose {
        0 => lineage.kind = CallKind::Compaction,
        1 => lineage.kind = CallKind::Auxiliary,
        _ => {}
    }
}

fn finish(plan: &Plan, call: &mut Call) {
    let started = call.begun.started_at;
    let ended = reply(call);
    ended.ended_at = started + plan.lasts;
    match plan.ending {
        0 => ended.outcome = Outcome::ClientGone,
        1 => ended.outcome = Outcome::UpstreamFailed,
        2 => call.ended = None,
        // The server reports no ids.
        3 => {
            ended.prompts.clear();
            ended.choices.iter_mut().for_each(|c| c.token_ids = None);
        }
        // Which logprob belongs to which token is not known.
        4 => ended.choices.iter_mut().for_each(|c| c.logprobs.push(-0.5)),
        _ => {}
    }
}

/// A sampled token: the call, the choice, and its place.
pub(crate) type Place = (String, u32, usize);

/// Every token that may be trained, straight from the calls and from what goes on from what.
pub(crate) fn trainable(calls: &[Call]) -> BTreeSet<Place> {
    let extended: BTreeSet<(CallId, u32)> =
        choice_links(calls).0.iter().filter_map(|link| link.parent).collect();
    let mut places = BTreeSet::new();
    for (call, ended) in calls.iter().filter_map(|c| Some((c, c.ended.as_ref()?))) {
        let may_train = |choice: &&Choice| match ended.outcome {
            Outcome::Complete => true,
            Outcome::UpstreamFailed => extended.contains(&(call.begun.call_id, choice.index)),
            _ => false,
        };
        for choice in ended.choices.iter().filter(may_train) {
            let ids = choice.token_ids.as_deref().unwrap_or_default();
            if ids.len() != choice.logprobs.len() {
                continue;
            }
            let known = choice.logprobs.iter().enumerate().filter(|(_, l)| !is_missing(**l));
            let id = call.begun.call_id.to_string();
            places.extend(known.map(|(place, _)| (id.clone(), choice.index, place)));
        }
    }
    places
}

/// Every token that a row trains.
pub(crate) fn trained(row: &Row) -> Vec<Place> {
    let mut places = Vec::new();
    for turn in &row.turns {
        let mask = &row.tokens.loss_mask[turn.start as usize..turn.end as usize];
        let masked = mask.iter().enumerate().filter(|(_, mask)| **mask == 1);
        let place = |(place, _)| (turn.call_id.clone(), turn.choice as u32, place);
        places.extend(masked.map(place));
    }
    places
}

/// The row is what was recorded: every sampled span follows its call's own prompt.
fn check_row(row: &Row, rows: &[Row], calls: &[Call]) {
    let Tokens { input_ids, loss_mask, logprobs, versions, .. } = &row.tokens;
    let lengths = [loss_mask.len(), logprobs.len(), versions.len()];
    assert_eq!(lengths, [input_ids.len(); 3]);
    let ids: Vec<u32> = input_ids.iter().map(|id| *id as u32).collect();
    let mut outside = loss_mask.clone();
    for turn in row.turns.iter().filter(|_| row.fidelity.is_some()) {
        let (start, end) = (turn.start as usize, turn.end as usize);
        outside[start..end].fill(0);
        let call = calls.iter().find(|c| c.begun.call_id.to_string() == turn.call_id).unwrap();
        let ended = call.ended.as_ref().unwrap();
        assert_eq!(ended.prompts[0], ids[..start]);
        let choice = &ended.choices[turn.choice as usize];
        assert_eq!(choice.token_ids.as_deref(), Some(&ids[start..end]));
    }
    assert!(outside.iter().all(|m| *m == 0), "a prompt token is trained");
    assert_eq!(row.turns.last().unwrap().end as usize, ids.len());
    if let Some(parent) = &row.parent_trajectory_id {
        let parent = rows.iter().find(|r| r.trajectory_id == *parent).unwrap();
        assert!(parent.trajectory_index < row.trajectory_index);
        let shared = row.fork_position.unwrap() as usize;
        assert_eq!(parent.tokens.input_ids[..shared], input_ids[..shared]);
    }
}

/// Rows train each token that they hold once, and weigh one together.
fn check_shares(rows: &[Row], may_train: &BTreeSet<Place>) {
    let all: Vec<Place> = rows.iter().flat_map(trained).collect();
    // What a row shows of another model's it does not train.
    let of_one = |row: &'_ Row| -> Vec<(String, u32)> {
        let own = row.turns.iter().filter(|turn| turn.model == row.model);
        own.map(|turn| (turn.call_id.clone(), turn.choice as u32)).collect()
    };
    let held: BTreeSet<_> = rows.iter().flat_map(of_one).collect();
    let is_held = |p: &&Place| held.contains(&(p.0.clone(), p.1));
    let expected: Vec<Place> = may_train.iter().filter(is_held).cloned().collect();
    let mut sorted = all;
    sorted.sort();
    assert_eq!(sorted, expected, "each once");
    let weight: f64 = rows.iter().map(|r| r.row_weight).sum();
    let whole = if expected.is_empty() { 0.0 } else { 1.0 };
    assert!((weight - whole).abs() < 1e-9, "the weights sum to {weight}");
}

/// For each choice all choices with the longest path of ids that its prompt starts with.
fn deepest(calls: &[Call]) -> BTreeMap<(episode::CallId, u32), BTreeSet<(episode::CallId, u32)>> {
    let mut paths = Vec::new();
    for (call, ended) in calls.iter().filter_map(|c| Some((c, c.ended.as_ref()?))) {
        for choice in &ended.choices {
            let (Some(prompt), Some(ids)) = (ended.prompts.first(), &choice.token_ids) else {
                continue;
            };
            let path = [prompt.as_slice(), ids].concat();
            paths.push(((call.begun.call_id, choice.index), prompt.clone(), path, ids.is_empty()));
        }
    }
    let of = |prompt: &[u32]| {
        let fits = paths.iter().filter(|(_, _, path, empty)| !empty && prompt.starts_with(path));
        let longest = fits.clone().map(|(_, _, path, _)| path.len()).max();
        fits.filter(|p| Some(p.2.len()) == longest).map(|p| p.0).collect()
    };
    paths.iter().map(|(key, prompt, ..)| (*key, of(prompt))).collect()
}

fn check_links(links: &[ChoiceLink], calls: &[Call]) {
    let deepest = deepest(calls);
    for link in links {
        let Some(found) = deepest.get(&(link.call_id, link.choice)) else { continue };
        let unclear = link.reasons.contains(&Reason::AmbiguousParent);
        match link.parent {
            Some(parent) => assert!(found.contains(&parent), "{link:?}"),
            None => assert_eq!(found.len() > 1, unclear, "{link:?}"),
        }
        assert!(!unclear || link.parent.is_none(), "an unclear parent is taken");
    }
}

/// A fork names a place where the two prompts part, and another call that holds the place. Clocks
/// may disagree, so that call need not have begun before.
fn check_fork(fork: &Fork, calls: &[Call]) {
    let [this, parent] = [&fork.call_id, &fork.parent_call_id]
        .map(|id| calls.iter().find(|c| c.begun.call_id.to_string() == *id).unwrap());
    assert_ne!(fork.call_id, fork.parent_call_id);
    let Some(at) = fork.position.map(|at| at as usize) else {
        assert_eq!((fork.lost_tokens, fork.ids_known.len()), (None, 0));
        return;
    };
    let [prompt, known] = [this, parent].map(|call| &call.ended.as_ref().unwrap().prompts[0]);
    assert_eq!(fork.prefill_tokens, Some((prompt.len() - at) as u32));
    assert!(fork.lost_tokens > Some(0) && fork.lost_sampled_tokens <= fork.lost_tokens);
    assert_eq!(fork.ids_sent.first(), Some(&prompt[at]));
    assert_ne!(fork.ids_known.first(), Some(&prompt[at]));
    let choices =
        parent.ended.as_ref().unwrap().choices.iter().filter_map(|c| c.token_ids.as_ref());
    let parts = |ids: &Vec<u32>| {
        let path = [known.as_slice(), ids].concat();
        path.get(..at) == Some(&prompt[..at]) && path.get(at) == fork.ids_known.first()
    };
    assert!(choices.into_iter().any(parts), "{fork:?}");
}

proptest! {
    #[test]
    fn forks_part_prompts_and_verdicts_cover_all_rows(plans in plans()) {
        let calls = recorded(&plans);
        let rows = rows_of(&episode(calls.clone()));
        let found = diagnose(episode(Vec::new()).record, calls.clone());
        found.forks.iter().for_each(|fork| check_fork(fork, &calls));
        let reasons: BTreeSet<Reason> = found.findings.iter().map(|f| f.reason).collect();
        let mut told: BTreeSet<Reason> = rows.iter().flat_map(|row| row.reasons.clone()).collect();
        // It is about the words of a row, and says nothing of a call.
        told.remove(&Reason::UnreadParts);
        prop_assert!(reasons.is_superset(&told));
        let trained: usize = rows.iter().map(|row| row.tokens.trained()).sum();
        prop_assert_eq!(found.trainable_tokens, trained as u64);
        prop_assert_eq!(found.verdict == "unusable", trained == 0);
        prop_assert_eq!(found.verdict == "exact", trained > 0 && reasons.is_empty());
        let backwards = calls.into_iter().rev().collect();
        prop_assert_eq!(diagnose(episode(Vec::new()).record, backwards), found);
    }

    #[test]
    fn any_episode_is_exported_whole_and_trained_once(plans in plans()) {
        let calls = recorded(&plans);
        let rows = rows_of(&episode(calls.clone()));
        rows.iter().for_each(|row| check_row(row, &rows, &calls));
        let may_train = trainable(&calls);
        check_shares(&rows, &may_train);
        let all: usize = rows.iter().map(|r| r.tokens.trained()).sum();
        prop_assert_eq!(all, may_train.len());
    }

    #[test]
    fn every_choice_is_in_a_row_below_its_longest_prefix(plans in plans()) {
        let calls = recorded(&plans);
        let (links, _) = choice_links(&calls);
        check_links(&links, &calls);
        let rows = rows_of(&episode(calls));
        let turns = rows.iter().flat_map(|r| &r.turns);
        let held: BTreeSet<_> = turns.map(|t| (t.call_id.clone(), t.choice as u32)).collect();
        let made: BTreeSet<_> = links.iter().map(|l| (l.call_id.to_string(), l.choice)).collect();
        prop_assert_eq!(held, made);
    }

    #[test]
    fn the_order_in_which_calls_are_stored_changes_nothing(
        plans in plans(),
        order in any::<prop::sample::Index>(),
    ) {
        let mut episode = episode(recorded(&plans));
        let rows = rows_of(&episode);
        let middle = order.index(plans.len());
        episode.calls.rotate_left(middle);
        episode.calls[..].reverse();
        prop_assert_eq!(rows_of(&episode), rows);
    }

    #[test]
    fn when_calls_began_changes_nothing_but_order(
        plans in plans(),
        delays in prop::collection::vec(0..1000i64, 25),
    ) {
        let calls = recorded(&plans);
        let mut moved = calls.clone();
        for (call, delay) in moved.iter_mut().zip(delays) {
            call.begun.started_at += delay;
            call.ended.iter_mut().for_each(|ended| ended.ended_at += delay);
        }
        check_links(&choice_links(&moved).0, &calls);
        let may_train = trainable(&moved);
        check_shares(&rows_of(&episode(moved)), &may_train);
    }

    #[test]
    fn any_choice_of_kinds_is_trained_once_and_weighs_one(
        plans in plans(),
        kinds in prop::sample::subsequence(TrajectoryKind::ALL.to_vec(), 1..7),
    ) {
        let calls = recorded(&plans);
        let may_train = trainable(&calls);
        let episode = episode(calls);
        let some = chosen(&episode, &kinds, SharedTokens::Once);
        let is_one = |r: &&Row| kinds.iter().any(|k| k.as_str() == r.kind);
        let all = rows_of(&episode);
        let ids = |r: &Row| (r.trajectory_id.clone(), r.kind, r.tokens.input_ids.clone());
        let expected: Vec<_> = all.iter().filter(is_one).map(ids).collect();
        prop_assert_eq!(some.iter().map(ids).collect::<Vec<_>>(), expected);
        check_shares(&some, &may_train);
    }

    #[test]
    fn kept_tokens_are_trained_in_every_row_and_weigh_one(plans in plans()) {
        let calls = recorded(&plans);
        let may_train = trainable(&calls);
        let rows = chosen(&episode(calls), &[], SharedTokens::Keep);
        for row in &rows {
            let own = row.turns.iter().filter(|turn| turn.model == row.model);
            let held = own.map(|t| (t.call_id.clone(), t.choice as u32));
            let held: BTreeSet<_> = held.collect();
            let expected = may_train.iter().filter(|p| held.contains(&(p.0.clone(), p.1)));
            prop_assert_eq!(trained(row).len(), expected.count());
        }
        let weight: f64 = rows.iter().map(|r| r.row_weight).sum();
        let whole = if may_train.is_empty() { 0.0 } else { 1.0 };
        prop_assert!((weight - whole).abs() < 1e-9);
    }
}
