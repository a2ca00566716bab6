//! Each check is seen on a planted case, and silent on clean ones.

use std::collections::BTreeSet;

use episode::{Body, Call, CallEnd, Outcome, Reward, RewardScope, VersionSpan};
use serde_json::{Value, json};
use store::GroupPlace;

use super::*;
use crate::tests::fixture::{call, episode, reply};

/// Attempts of a group.
const GROUP: usize = 8;
/// Attempts of a planted run.
const PLANTED: usize = 160;
/// Turns of an attempt, of which all but the last call a tool.
const TURNS: usize = 3;

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 40) as f64 / (1_u64 << 24) as f64
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.next() * f64::from(bound)) as u32
    }
}

/// An attempt that can be changed.
#[derive(Clone)]
struct Played {
    attempt: usize,
    calls: Vec<Call>,
    rewards: Vec<Reward>,
}

impl Played {
    fn last(&mut self) -> &mut CallEnd {
        reply(self.calls.last_mut().unwrap())
    }

    fn group(&self) -> usize {
        self.attempt / GROUP
    }

    fn set_reward(&mut self, name: &str, value: f64) {
        let given = self.rewards.iter_mut().find(|reward| reward.name == name);
        given.unwrap().value = Some(value);
    }

    /// Replaces what the first call of a tool says.
    fn set_tool_call(&mut self, name: &str, arguments: &str) {
        let function = json!({ "name": name, "arguments": arguments });
        let calls = json!([{ "id": "c", "type": "function", "function": function }]);
        reply(&mut self.calls[0]).reply = reply_of(&json!({ "tool_calls": calls }));
    }

    fn sample(&mut self, ids: Vec<u32>) {
        let end = ids.len() as u32;
        let choice = &mut self.last().choices[0];
        choice.logprobs = vec![-0.8; ids.len()];
        choice.versions[0].end = end;
        choice.token_ids = Some(ids);
    }
}

fn reply_of(fields: &Value) -> Body {
    let mut message = json!({ "role": "assistant", "content": null });
    message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Body::from(json!({ "choices": [{ "index": 0, "message": message }] }).to_string())
}

fn request_of(messages: &[Value]) -> Body {
    let function = json!({ "name": "bash", "parameters": { "type": "object" } });
    let tools = json!([{ "type": "function", "function": function }]);
    Body::from(json!({ "messages": messages, "tools": tools }).to_string())
}

fn tool_result(text: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": "c", "content": text })
}

fn reward(name: &str, value: f64) -> Reward {
    let (scope, source) = (RewardScope::Episode, "judge".to_owned());
    Reward {
        scope,
        name: name.to_owned(),
        value: Some(value),
        source,
        at: 1,
        provenance: episode::Provenance::default(),
    }
}

/// A clean attempt: an agent that calls a tool twice and answers.
fn played(attempt: usize, numbers: &mut Numbers) -> Played {
    let mut messages = vec![json!({ "role": "user", "content": format!("do {attempt}") })];
    let mut prompt: Vec<u32> = (0..20).map(|_| numbers.below(50_000)).collect();
    let mut calls = Vec::new();
    for turn in 0..TURNS {
        let count = 64 + numbers.below(40);
        let sampled: Vec<u32> = (0..count).map(|_| 1 + numbers.below(50_000)).collect();
        let mut made = call((attempt * TURNS + turn) as u32 + 1, &prompt, &[&sampled]);
        made.begun.request = request_of(&messages);
        let function = json!({ "name": "bash", "arguments": r#"{"command":"ls"}"# });
        let tool = json!([{ "id": "c", "type": "function", "function": function }]);
        let said = match turn + 1 == TURNS {
            true => json!({ "content": format!("done {attempt}") }),
            false => json!({ "content": format!("step {turn}"), "tool_calls": tool }),
        };

        let ended = reply(&mut made);
        ended.reply = reply_of(&said);
        ended.engine = Some(if attempt.is_multiple_of(2) { "a" } else { "b" }.to_owned());
        let choice = &mut ended.choices[0];
        choice.logprobs = sampled.iter().map(|_| -1.6 * numbers.next() as f32).collect();
        let version = (10 + attempt / 20).to_string();
        choice.versions = vec![VersionSpan { version, start: 0, end: count }];
        let reason = if numbers.below(33) == 0 { "length" } else { "stop" };
        choice.finish_reason = Some(reason.to_owned());

        let message: Value = serde_json::from_slice(&ended.reply.read()).unwrap();
        messages.push(message["choices"][0]["message"].clone());
        messages.push(tool_result(if numbers.below(5) == 0 { "error: no" } else { "ok" }));
        prompt.extend(&sampled);
        prompt.extend((0..10).map(|_| numbers.below(50_000)));
        calls.push(made);
    }
    let (one, other) = (f64::from(numbers.below(2)), numbers.next());
    let rewards = vec![reward("reward", one), reward("style", other), reward("tests", one)];
    Played { attempt, calls, rewards }
}

fn clean(count: usize) -> Vec<Played> {
    let mut numbers = Numbers(7);
    (0..count).map(|attempt| played(attempt, &mut numbers)).collect()
}

/// Looks at attempts as a store would give them.
fn report(run: Vec<Played>, thresholds: Thresholds) -> HealthReport {
    let mut health = HealthRun::new(thresholds);
    for played in run {
        let mut attempt = episode(played.calls.clone());
        attempt.record.id = format!("e{}", played.attempt).parse().unwrap();
        attempt.record.group = Some(format!("g{}", played.group()).parse().unwrap());
        attempt.record.closed_at = Some(1);
        attempt.rewards = played.rewards;
        let given = attempt.rewards.iter().find(|reward| reward.name == "reward");
        let reward = given.and_then(|reward| reward.value).filter(|value| value.is_finite());
        let (record, place) = (attempt.record.clone(), None::<GroupPlace>);
        let scored = ScoredAttempt { record, reward, is_infrastructure_failed: false, place };
        health.see(&attempt, &scored);
    }
    health.finish()
}

fn verdict<'r>(report: &'r HealthReport, check: &str) -> &'r CheckVerdict {
    report.checks.iter().find(|verdict| verdict.check == check).unwrap()
}

fn findings(report: &HealthReport) -> Vec<(&str, &str)> {
    let found = report.checks.iter().filter(|check| check.verdict == HealthWord::Finding);
    found.map(|check| (check.check, check.sentence.as_str())).collect()
}

type Plant = fn(&mut Played);

/// A change of the attempts of a run for each check that sees attempts.
const PLANTS: [(&str, Plant); 29] = [
    ("hollow_episodes", |p| every(10, p, |p| p.calls.clear())),
    ("lost_calls", |p| every(100, p, |p| p.calls.last_mut().unwrap().ended = None)),
    ("slow_calls", |p| every(10, p, |p| p.last().ended_at += 700_000_000)),
    ("failed_calls", |p| every(4, p, |p| reply(&mut p.calls[1]).outcome = Outcome::Refused)),
    ("ended_on_failure", |p| every(10, p, |p| p.last().outcome = Outcome::UpstreamFailed)),
    ("ids_missing", |p| every(10, p, |p| p.last().choices[0].token_ids = None)),
    ("empty_turns", |p| {
        every(10, p, |p| {
            p.sample(vec![5]);
            p.last().reply = reply_of(&json!({ "content": " \n" }));
        })
    }),
    ("runaway_replies", |p| every(2, p, cut)),
    ("loops", |p| every(10, p, |p| p.sample([8, 9, 7, 6].repeat(50)))),
    ("duplicate_rollouts", |p| every(4, p, |p| say_again(p, 0))),
    ("near_duplicates", |p| every(4, p, say_nearly_again)),
    ("rewards_missing", |p| every(5, p, |p| p.rewards.clear())),
    ("rewards_not_finite", |p| every(100, p, |p| p.set_reward("style", f64::INFINITY))),
    ("failed_tasks", |p| {
        if p.group() % 2 == 0 {
            p.set_reward("reward", 0.0)
        }
    }),
    ("solved_tasks", |p| p.set_reward("reward", 0.5 + p.attempt as f64)),
    ("groups_without_signal", |p| p.set_reward("reward", p.group() as f64)),
    ("reward_collapsed", |p| p.set_reward("style", 0.25)),
    ("component_dominates", |p| every(2, p, |p| p.set_reward("style", 100.0))),
    ("reward_follows_length", |p| p.set_reward("reward", sampled(p) as f64 / 100.0)),
    ("tool_error_streaks", |p| {
        every(10, p, |p| {
            let messages: Vec<Value> = (0..5).map(|_| tool_result("Error: again")).collect();
            p.calls.last_mut().unwrap().begun.request = request_of(&messages);
        })
    }),
    ("tools_not_offered", |p| every(10, p, |p| p.set_tool_call("shell", "{}"))),
    ("malformed_arguments", |p| every(10, p, |p| p.set_tool_call("bash", "{\"command\": "))),
    ("grader_paths", |p| {
        every(100, p, |p| {
            p.set_tool_call("bash", r#"{"command": "rm -rf /tests/"}"#);
        })
    }),
    ("stale_attempts", |p| {
        every(5, p, |p| {
            p.last().choices[0].versions[0].version = "40".to_owned();
        })
    }),
    ("truncation_rises", |p| {
        if p.attempt >= PLANTED / 2 {
            every(2, p, cut)
        }
    }),
    ("logprob_jumps", |p| {
        if p.attempt >= PLANTED / 2 {
            scale(p, 2.0)
        }
    }),
    ("entropy_drifts", fade),
    ("engines_differ", |p| every(2, p, |p| scale(p, 0.5))),
    ("retokenized_tokens", |p| {
        every(2, p, |p| {
            let sampled = reply(&mut p.calls[0]).choices[0].token_ids.clone().unwrap();
            let prompt = &mut reply(&mut p.calls[1]).prompts[0];
            let first = prompt.iter().position(|id| *id == sampled[20]).unwrap();
            prompt.splice(first..first + 2, [60_000]);
        })
    }),
];

/// Changes each attempt whose number is a multiple of `step`.
fn every(step: usize, played: &mut Played, change: Plant) {
    if played.attempt.is_multiple_of(step) {
        change(played);
    }
}

fn cut(played: &mut Played) {
    for call in &mut played.calls {
        reply(call).choices[0].finish_reason = Some("length".to_owned());
    }
}

fn scale(played: &mut Played, factor: f32) {
    for call in &mut played.calls {
        reply(call).choices[0].logprobs.iter_mut().for_each(|logprob| *logprob *= factor);
    }
}

/// Makes tokens surer from version to version.
fn fade(played: &mut Played) {
    let factor = 1.0 - (played.attempt / 20) as f32 * 0.1;
    scale(played, factor);
}

fn say_nearly_again(played: &mut Played) {
    let last = played.attempt as u32 % 64 + 1;
    say_again(played, last);
}

/// Samples the same ids as others, but for the last one.
fn say_again(played: &mut Played, last: u32) {
    for call in &mut played.calls {
        let choice = &mut reply(call).choices[0];
        let ids: Vec<u32> = (0..200).map(|n| n * n).chain([100_000 + last]).collect();
        choice.logprobs = vec![-0.8; ids.len()];
        choice.versions[0].end = ids.len() as u32;
        choice.token_ids = Some(ids);
    }
}

fn sampled(played: &Played) -> usize {
    let ended = played.calls.iter().filter_map(|call| call.ended.as_ref());
    ended.filter_map(|ended| ended.choices[0].token_ids.as_ref()).map(Vec::len).sum()
}

#[test]
fn a_thousand_clean_attempts_are_fine_in_each_check() {
    let report = report(clean(1000), Thresholds::default());
    assert!(findings(&report).is_empty(), "{:?}", findings(&report));
    assert_eq!((report.verdict, report.attempts, report.calls), (HealthWord::Fine, 1000, 3000));
    for check in &report.checks {
        assert_eq!(check.verdict, HealthWord::Fine, "{}: {}", check.check, check.sentence);
        assert!(check.looked_at > 0 && check.examples.is_empty(), "{}", check.check);
    }
    let names: Vec<&str> = report.checks.iter().map(|check| check.check).collect();
    assert_eq!(names, CHECKS);
}

#[test]
fn each_planted_case_is_seen() {
    let run = clean(PLANTED);
    let clean = report(run.clone(), Thresholds::default());
    let quiet: Vec<&str> = findings(&clean).iter().map(|(check, _)| *check).collect();
    for (check, plant) in PLANTS {
        assert!(!quiet.contains(&check), "{check} is not silent before");
        let mut planted = run.clone();
        planted.iter_mut().for_each(plant);
        let seen = report(planted, Thresholds::default());
        let found = verdict(&seen, check);
        assert_eq!(found.verdict, HealthWord::Finding, "{check}: {}", found.sentence);
        assert_eq!(
            (seen.verdict, seen.checks[0].verdict),
            (HealthWord::Finding, HealthWord::Finding)
        );
    }

    let planted: BTreeSet<&str> = PLANTS.iter().map(|(check, _)| *check).collect();
    let missing: Vec<_> = CHECKS.iter().filter(|check| !planted.contains(**check)).collect();
    assert_eq!(missing, [&"unreadable_attempts"]);
}

#[test]
fn what_was_given_again_is_no_finding() {
    let mut run = clean(PLANTED);
    for played in &mut run {
        played.set_tool_call("none", "{");
        cut(played);
        say_again(played, 0);
        // The last call is live.
        let of_clean = self::played(played.attempt, &mut Numbers(played.attempt as u64 + 9));
        *played.calls.last_mut().unwrap() = of_clean.calls.last().unwrap().clone();
        for call in &mut played.calls[..TURNS - 1] {
            reply(call).replayed = Some(call.begun.call_id);
        }
    }
    let mut sampled = run.clone();
    let report = |run| report(run, Thresholds::default());
    assert!(findings(&report(run)).is_empty());

    // The same is found where it was sampled.
    for call in sampled.iter_mut().flat_map(|played| &mut played.calls) {
        reply(call).replayed = None;
    }
    let found = report(sampled);
    let found: Vec<&str> = findings(&found).iter().map(|(check, _)| *check).collect();
    assert_eq!(found, ["runaway_replies", "tools_not_offered"]);
}

#[test]
fn an_attempt_that_does_not_decode_is_a_finding() {
    let mut health = HealthRun::new(Thresholds::default());
    let record = episode(Vec::new()).record;
    health.see_unreadable(&record, &SnapshotError::Word("maybe".to_owned(), "outcome"));
    let report = health.finish();
    let found = verdict(&report, "unreadable_attempts");
    assert_eq!((found.verdict, found.looked_at), (HealthWord::Finding, 1));
    assert_eq!(found.examples[0].note, "`maybe` is not a known outcome");
    assert_eq!(found.examples[0].episode_id, "e");
}

#[test]
fn nothing_is_fine_without_evidence() {
    let report = report(Vec::new(), Thresholds::default());
    assert_eq!((report.verdict, report.checks.len()), (HealthWord::NoEvidence, CHECKS.len()));
    for check in &report.checks {
        assert_eq!(
            (check.verdict, check.looked_at),
            (HealthWord::NoEvidence, 0),
            "{}",
            check.check
        );
        assert!(!check.sentence.is_empty());
    }
}

#[test]
fn recordings_without_ids_or_rewards_are_no_fault() {
    let mut run = clean(40);
    for played in &mut run {
        played.rewards.clear();
        played.calls.iter_mut().for_each(|call| {
            let ended = reply(call);
            ended.prompts.clear();
            ended.choices.clear();
        });
    }
    let report = report(run, Thresholds::default());
    assert!(findings(&report).is_empty(), "{:?}", findings(&report));
    for check in ["ids_missing", "rewards_missing", "loops", "logprob_jumps", "failed_tasks"] {
        assert_eq!(verdict(&report, check).verdict, HealthWord::NoEvidence, "{check}");
    }
    assert_eq!(verdict(&report, "hollow_episodes").verdict, HealthWord::Fine);
}

#[test]
fn a_file_makes_a_check_stricter_or_leaves_it_out() {
    let with = |text: &str| report(clean(PLANTED), Thresholds::read(text.as_bytes()).unwrap());
    let strict = with(r#"{ "shares": { "runaway_replies": 0.0 } }"#);
    let found = verdict(&strict, "runaway_replies");
    assert_eq!(found.verdict, HealthWord::Finding);
    assert_eq!((found.thresholds["share_max"], found.examples.len()), (0.0, 5));
    assert_eq!(found.examples[0].turn.is_some(), found.examples[0].call_id.is_some());
    assert!(found.sql.is_some_and(|sql| sql.starts_with("SELECT finish_reason")));

    let off = with(r#"{ "shares": { "runaway_replies": 0.0 }, "off": ["runaway_replies"] }"#);
    assert_eq!((off.verdict, off.checks.len()), (HealthWord::Fine, CHECKS.len() - 1));
}
