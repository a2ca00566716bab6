//! Is it all there: attempts without a reply, calls that were lost, hung or failed, missing ids.

use episode::{Call, Outcome};

use crate::diagnosis::health::checks::rules::{ShareRule, one};
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{HealthExample, Tally};
use crate::forks::Fork;
use crate::notes::cause::Cause;

/// The checks of what was recorded.
pub(crate) const RULES: &[ShareRule] = &[
    ShareRule {
        check: "hollow_episodes",
        units: "closed attempts",
        fault: "have no reply with a word in it",
        share_max: 0.01,
        at_least: one,
        look: hollow,
        all_is_none: false,
    },
    ShareRule {
        check: "lost_calls",
        units: "calls of closed attempts",
        fault: "have no recorded end",
        share_max: 0.0,
        at_least: one,
        look: lost,
        all_is_none: false,
    },
    ShareRule {
        check: "slow_calls",
        units: "ended calls",
        fault: "took longer than `hung_s`",
        share_max: 0.01,
        at_least: one,
        look: slow,
        all_is_none: false,
    },
    ShareRule {
        check: "failed_calls",
        units: "ended calls",
        fault: "failed or were refused",
        share_max: 0.05,
        at_least: |thresholds| thresholds.replies_min,
        look: failed,
        all_is_none: false,
    },
    ShareRule {
        check: "ended_on_failure",
        units: "closed attempts with calls",
        fault: "ended with a call that failed",
        share_max: 0.02,
        at_least: one,
        look: ended_on_failure,
        all_is_none: false,
    },
    ShareRule {
        check: "ids_missing",
        units: "whole replies",
        fault: "have no token ids",
        share_max: 0.01,
        at_least: one,
        look: ids_missing,
        all_is_none: true,
    },
    ShareRule {
        check: "retokenized_tokens",
        units: "sampled tokens of attempts with several turns",
        fault: "are not in the later prompts that should hold them, by their ids alone",
        share_max: 0.02,
        at_least: one,
        look: retokenized,
        all_is_none: false,
    },
];

fn hollow(seen: &SeenAttempt<'_>, thresholds: &Thresholds, tally: &mut Tally) {
    if !seen.is_closed() {
        return;
    }
    let has_words = seen.replies.iter().any(|reply| !reply.is_empty(thresholds.empty_tokens_max));
    tally.add(!has_words, || {
        let note = format!("{} calls, {} replies", seen.attempt.calls.len(), seen.replies.len());
        HealthExample::of_record(seen.record(), note)
    });
}

/// Returns the calls that sample, with their numbers.
fn sampling<'s>(seen: &'s SeenAttempt<'_>) -> impl Iterator<Item = (u32, &'s Call)> {
    (1..).zip(&seen.attempt.calls).filter(|(_, call)| call.begun.route.generates())
}

fn at_call(seen: &SeenAttempt<'_>, (turn, call): (u32, &Call), note: String) -> HealthExample {
    HealthExample {
        call_id: Some(call.begun.call_id.to_string()),
        turn: Some(turn),
        ..HealthExample::of_record(seen.record(), note)
    }
}

fn lost(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    if seen.is_closed() {
        for call in sampling(seen) {
            tally.add(call.1.ended.is_none(), || at_call(seen, call, String::new()));
        }
    }
}

fn slow(seen: &SeenAttempt<'_>, thresholds: &Thresholds, tally: &mut Tally) {
    for call in sampling(seen) {
        let Some(ended) = &call.1.ended else { continue };
        let seconds = (ended.ended_at - call.1.begun.started_at) as f64 / 1e6;
        tally.add(seconds > thresholds.hung_s, || at_call(seen, call, format!("{seconds:.0} s")));
    }
}

fn has_failed(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::UpstreamFailed | Outcome::Capped | Outcome::Refused)
}

fn failed(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    for call in sampling(seen) {
        let Some(ended) = &call.1.ended else { continue };
        tally.add(has_failed(ended.outcome), || {
            at_call(seen, call, ended.outcome.as_str().to_owned())
        });
    }
}

fn ended_on_failure(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    let Some(last) = sampling(seen).last().filter(|_| seen.is_closed()) else { return };
    let outcome = last.1.ended.as_ref().map(|ended| ended.outcome);
    tally.add(outcome.is_none_or(has_failed), || {
        at_call(seen, last, outcome.map_or("no end", Outcome::as_str).to_owned())
    });
}

fn ids_missing(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    for reply in seen.whole() {
        tally.add(!reply.node.has_ids, || HealthExample::of_reply(seen, reply, ""));
    }
}

/// Returns true where the words went on and the ids did not. Without texts of tokens, other ids for
/// a tool call have no cause that is known.
fn is_drift(fork: &Fork) -> bool {
    match fork.cause {
        Cause::Retokenized
        | Cause::Seam
        | Cause::WhitespaceChanged
        | Cause::ArgumentsReserialized => true,
        Cause::Unknown => fork.in_sampled == Some(true),
        _ => false,
    }
}

fn retokenized(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    let sampled = seen.sampled() as u64;
    if seen.own().filter(|reply| reply.node.has_ids).count() < 2 {
        return;
    }
    let drifts = seen.forks.iter().filter(|fork| is_drift(fork));
    let lost: u64 = drifts.clone().filter_map(|fork| fork.lost_sampled_tokens).map(u64::from).sum();
    tally.add_many(sampled, lost.min(sampled), || {
        let first = drifts.clone().find(|fork| fork.lost_sampled_tokens > Some(0));
        let note = first.map_or("", |fork| fork.cause.as_str());
        HealthExample {
            call_id: first.map(|fork| fork.call_id.clone()),
            ..HealthExample::of_record(seen.record(), format!("{note}, {lost} tokens"))
        }
    });
}
