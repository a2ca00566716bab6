//! The words on a request that the recording does not answer.

use episode::{AttemptId, Call};
use wire::{IgnoreRules, RequestDifference, request_differences};

/// The differences of a request from a recorded call, and the options that let it pass.
pub(super) fn differs(
    source: &AttemptId,
    (number, recorded): (usize, &Call),
    sent: &[u8],
    rules: &IgnoreRules,
) -> String {
    let differences = request_differences(&recorded.begun.request.read(), sent, rules);
    let mut told = format!("the request differs from call {number} of the recording `{source}`:");
    for RequestDifference { place, recorded, sent, .. } in &differences {
        let recorded = recorded.as_deref().unwrap_or("(nothing)");
        let sent = sent.as_deref().unwrap_or("(nothing)");
        told += &format!("\n  {place}\n    recorded: {recorded}\n    sent:     {sent}");
    }

    let mut options: Vec<&str> = Vec::new();
    for rule in differences.iter().flat_map(|difference| &difference.rules) {
        if !options.contains(&rule.as_str()) {
            options.push(rule);
        }
    }
    let options: Vec<String> =
        options.into_iter().map(|rule| format!("--ignore {}", quoted(rule))).collect();
    told + &format!("\nif that does not matter: {}", options.join(" "))
}

/// A rule as a shell reads it.
fn quoted(rule: &str) -> String {
    match rule.contains(|c: char| !c.is_ascii_alphanumeric() && !"/_-.".contains(c)) {
        true => format!("'{}'", rule.replace('\'', r"'\''")),
        false => rule.to_owned(),
    }
}

/// A request that a call of the recording has answered already.
pub(super) fn again(source: &AttemptId, number: usize) -> String {
    format!(
        "the request is that of call {number} of the recording `{source}`, which has answered \
         already; the recording has no second reply to it"
    )
}

/// A request behind the last call of the recording.
pub(super) fn over(source: &AttemptId, method: &str, path: &str) -> String {
    format!("the recording `{source}` has no further call `{method} {path}`")
}
