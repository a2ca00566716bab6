//! Tools: failures in a row, calls of what was not offered, arguments that are no JSON, and writes
//! to what graders own.

use serde_json::Value;

use crate::diagnosis::health::checks::rules::{ShareRule, one};
use crate::diagnosis::health::grader_paths::written_grader_path;
use crate::diagnosis::health::seen::{SeenAttempt, SeenReply, offered};
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{HealthExample, Tally};
use crate::rows::messages::sent_conversation;

/// The checks of tools.
pub(crate) const RULES: &[ShareRule] = &[
    ShareRule {
        check: "tool_error_streaks",
        units: "attempts with results of tools",
        fault: "have `tool_error_streak` failed results in a row",
        share_max: 0.05,
        at_least: one,
        look: streaks,
        all_is_none: false,
    },
    ShareRule {
        check: "tools_not_offered",
        units: "tool calls where tools were offered",
        fault: "name a tool that was not",
        share_max: 0.01,
        at_least: one,
        look: not_offered,
        all_is_none: false,
    },
    ShareRule {
        check: "malformed_arguments",
        units: "calls of functions",
        fault: "have arguments that are no JSON object",
        share_max: 0.01,
        at_least: one,
        look: malformed,
        all_is_none: false,
    },
    ShareRule {
        check: "grader_paths",
        units: "tool calls",
        fault: "write to paths that graders own",
        share_max: 0.0,
        at_least: one,
        look: graders,
        all_is_none: false,
    },
];

fn streaks(seen: &SeenAttempt<'_>, thresholds: &Thresholds, tally: &mut Tally) {
    if seen.paths.iter().all(|path| path.results.is_empty()) {
        return;
    }
    let streaks = seen.paths.iter().map(|path| (longest_streak(&path.results), path.leaf));
    let longest = streaks.max_by_key(|(length, _)| *length);
    let longest = longest.filter(|(length, _)| *length >= thresholds.tool_error_streak.max(1));
    tally.add(longest.is_some(), || match longest {
        Some((length, leaf)) => {
            let note = format!("{length} in a row before it");
            HealthExample::of_reply(seen, &seen.replies[leaf], note)
        }
        None => HealthExample::of_record(seen.record(), ""),
    });
}

fn longest_streak(results: &[bool]) -> usize {
    results.split(|failed| !failed).map(<[bool]>::len).max().unwrap_or(0)
}

fn name(call: &Value) -> Option<&str> {
    ["/function/name", "/custom/name"].iter().find_map(|at| call.pointer(at)?.as_str())
}

fn arguments(call: &Value) -> Option<&Value> {
    call.pointer("/function/arguments").or_else(|| call.pointer("/custom/input"))
}

fn not_offered(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    for reply in seen.own() {
        let Some(tools) = &seen.paths[reply.path].offered else { continue };
        for call in reply.tool_calls() {
            let Some(name) = name(call) else { continue };
            // The last call of the path may offer other tools than this one did.
            let is_missing = !tools.contains(name) && !is_offered_by(reply, name);
            tally.add(is_missing, || HealthExample::of_reply(seen, reply, name));
        }
    }
}

fn is_offered_by(reply: &SeenReply<'_>, name: &str) -> bool {
    let tools = offered(&sent_conversation(reply.node).tools);
    tools.is_none_or(|tools| tools.contains(name))
}

fn malformed(seen: &SeenAttempt<'_>, _: &Thresholds, tally: &mut Tally) {
    // The arguments of a reply that was cut are not whole.
    for reply in seen.whole().filter(|reply| !reply.is_cut()) {
        for call in reply.tool_calls() {
            let Some(arguments) = call.pointer("/function/arguments") else { continue };
            let is_object = wire::parsed_arguments(arguments.clone()).is_object();
            let is_nothing = arguments.as_str().is_some_and(|text| text.trim().is_empty());
            tally.add(!is_object && !is_nothing, || {
                HealthExample::of_reply(seen, reply, name(call).unwrap_or_default())
            });
        }
    }
}

fn graders(seen: &SeenAttempt<'_>, thresholds: &Thresholds, tally: &mut Tally) {
    for reply in seen.own() {
        for call in reply.tool_calls() {
            let (Some(name), Some(arguments)) = (name(call), arguments(call)) else { continue };
            let path = written_grader_path(name, arguments, &thresholds.grader_paths);
            tally.add(path.is_some(), || {
                HealthExample::of_reply(seen, reply, path.clone().unwrap_or_default())
            });
        }
    }
}
