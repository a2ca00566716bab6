//! Excerpts of messages, in one line.

use serde_json::Value;

use crate::bounds::EXCERPT_CHARS_MAX;

/// A message's tool calls, or else its role and content, in one short line. The role of an answer
/// is known, so it is left out there.
pub(crate) fn excerpt(message: &Value, is_answer: bool) -> String {
    let tool_calls: Vec<String> = message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(tool_call)
        .collect();
    let content = wire::content_text(message.get("content")).unwrap_or_default();
    let said = match (content.trim().is_empty(), tool_calls.is_empty()) {
        (_, true) => content,
        (true, false) => tool_calls.join(" "),
        (false, false) => format!("{content} {}", tool_calls.join(" ")),
    };

    let role = message.get("role").and_then(Value::as_str).unwrap_or("?");
    match is_answer || !tool_calls.is_empty() {
        true => shortened(&said),
        false => shortened(&format!("{role}: {said}")),
    }
}

fn tool_call(call: &Value) -> Option<String> {
    let function = call.get("function")?;
    let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("");
    Some(format!("{}({arguments})", function.get("name")?.as_str()?))
}

/// The beginning of a text, in one line.
fn shortened(text: &str) -> String {
    let mut words = text.split_whitespace();
    let mut line = words.next().unwrap_or_default().to_owned();
    // Long texts are not read to their end.
    for word in words {
        if line.len() > EXCERPT_CHARS_MAX * 4 {
            break;
        }
        line.push(' ');
        line.push_str(word);
    }
    match line.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_excerpt_is_one_short_line() {
        let call = json!([{ "function": { "name": "run", "arguments": "{\"a\":1}" } }]);
        let said = json!({ "role": "assistant", "content": "I will\n run", "tool_calls": call });
        assert_eq!(excerpt(&said, true), "I will run run({\"a\":1})");
        let parts = json!({ "role": "user", "content": [{ "type": "text", "text": "hi  you" }] });
        assert_eq!(excerpt(&parts, false), "user: hi you");
        let long = json!({ "role": "tool", "content": "x".repeat(5000) });
        assert_eq!(excerpt(&long, false).chars().count(), EXCERPT_CHARS_MAX + 3);
    }
}
