//! The words on a request that the recording does not answer.

use episode::{AttemptId, Call};
use wire::{IgnoreRules, RequestDifference, request_differences};

/// Fields of an item that hold what is said in it.
const SAID: [&str; 6] = ["content", "text", "arguments", "input", "output", "summary"];

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

    let rules = differences.iter().flat_map(|difference| &difference.rules);
    let options: Vec<String> = shortened(rules.map(String::as_str).collect())
        .into_iter()
        .map(|rule| format!("--ignore {}", quoted(&rule)))
        .collect();
    told + &format!("\nif that does not matter: {}", options.join(" "))
}

/// Each rule once. The same field of several items is one rule with `*`, unless it holds what is
/// said: then the rule would let every answer and every tool result pass.
fn shortened(rules: Vec<&str>) -> Vec<String> {
    let of_all_items = |rule: &str| -> Option<String> {
        let mut names: Vec<&str> = rule.strip_prefix('/')?.split('/').collect();
        let place = names.iter().position(|name| name.parse::<usize>().is_ok())?;
        let is_said = names[place + 1..].iter().any(|name| SAID.contains(name));
        names[place] = "*";
        (!is_said && place + 1 < names.len()).then(|| format!("/{}", names.join("/")))
    };

    let all: Vec<Option<String>> = rules.iter().map(|rule| of_all_items(rule)).collect();
    let mut short: Vec<String> = Vec::new();
    for (rule, of_all) in rules.into_iter().zip(&all) {
        let alike = all.iter().filter(|other| other.is_some() && *other == of_all).count();
        let rule = match of_all {
            Some(of_all) if alike > 1 => of_all.clone(),
            _ => rule.to_owned(),
        };
        if !short.contains(&rule) {
            short.push(rule);
        }
    }
    short
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_several_items_is_one_rule_unless_it_is_said() {
        let rules = vec![
            "clocks",
            "/input/1/status",
            "/input/12/status",
            "clocks",
            "/input/3/kind",
            "/messages/1/content",
            "/messages/2/content",
            "/tools/0/function/description",
            "/tools/1/function/description",
            "/messages/4",
            "/messages/5",
        ];
        let short = [
            "clocks",
            "/input/*/status",
            "/input/3/kind",
            "/messages/1/content",
            "/messages/2/content",
            "/tools/*/function/description",
            "/messages/4",
            "/messages/5",
        ];
        assert_eq!(shortened(rules), short);
    }
}
