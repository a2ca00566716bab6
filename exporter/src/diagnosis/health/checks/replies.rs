//! Replies of the model: nothing, too much, the same again; weights that changed meanwhile.

use crate::diagnosis::health::checks::rules::{ShareRule, one};
use crate::diagnosis::health::seen::{SeenAttempt, SeenReply};
use crate::diagnosis::health::shingles::Shingles;
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{HealthExample, Tally, percent};

/// The checks of single replies.
pub(crate) const RULES: &[ShareRule] = &[
    ShareRule {
        check: "empty_turns",
        units: "whole replies",
        fault: "have no word, thought or tool call",
        share_max: 0.01,
        at_least: one,
        look: empty,
        all_is_none: false,
    },
    ShareRule {
        check: "runaway_replies",
        units: "whole replies",
        fault: "were cut by a limit of length",
        share_max: 0.1,
        at_least: |thresholds| thresholds.replies_min,
        look: runaway,
        all_is_none: false,
    },
    ShareRule {
        check: "loops",
        units: "replies of `tokens_min` tokens",
        fault: "say the same again and again",
        share_max: 0.01,
        at_least: one,
        look: loops,
        all_is_none: false,
    },
    ShareRule {
        check: "stale_attempts",
        units: "attempts with numbered versions",
        fault: "have versions that lie too far apart",
        share_max: 0.1,
        at_least: one,
        look: stale,
        all_is_none: false,
    },
];

fn empty(seen: &SeenAttempt<'_>, thresholds: &Thresholds, tally: &mut Tally) {
    for reply in seen.whole() {
        tally.add(reply.is_empty(thresholds.empty_tokens_max), || {
            let note = format!("{} tokens", reply.node.sampled.len());
            HealthExample::of_reply(seen, reply, note)
        });
    }
}

fn runaway(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    let has_reason = |reply: &&SeenReply<'_>| {
        reply.node.choice.is_some_and(|choice| choice.finish_reason.is_some())
    };
    for reply in seen.whole().filter(has_reason) {
        tally.add(reply.is_cut(), || {
            let note = format!("{} tokens", reply.node.sampled.len());
            HealthExample::of_reply(seen, reply, note)
        });
    }
}

fn loops(seen: &SeenAttempt<'_>, thresholds: &Thresholds, tally: &mut Tally) {
    let long = |reply: &&SeenReply<'_>| reply.node.sampled.len() >= thresholds.tokens_min;
    for reply in seen.own().filter(long) {
        let repeated = Shingles::of(reply.node.sampled).repeated();
        tally.add(repeated >= thresholds.loop_share, || {
            let tokens = reply.node.sampled.len();
            let note = format!("{} of {tokens} tokens repeated", percent(repeated));
            HealthExample::of_reply(seen, reply, note)
        });
    }
}

fn stale(seen: &SeenAttempt<'_>, thresholds: &Thresholds, tally: &mut Tally) {
    let versions = || seen.own().flat_map(SeenReply::versions).map(|span| span.version);
    let Some((oldest, newest)) = versions().min().zip(versions().max()) else { return };
    tally.add(newest.saturating_sub(oldest) > thresholds.versions_apart_max, || {
        HealthExample::of_record(seen.record(), format!("versions {oldest} to {newest}"))
    });
}
