//! Excerpts of messages, in one line.

use serde_json::Value;

use crate::bounds::EXCERPT_CHARS_MAX;

/// The beginning of a text that an agent added to the user's: that of Claude Code.
const REMINDER: &str = "<system-reminder>";

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

/// What a call was about: an excerpt of its last message. Agents add to what a user or a tool said:
/// messages of the system behind it, and reminders beside it. Those are passed over, unless
/// there is nothing else.
pub(crate) fn heard(messages: &[Value]) -> String {
    let is_system =
        |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
    let told =
        messages.iter().rev().filter(|message| !is_system(message)).find_map(without_reminders);
    match (told, messages.last()) {
        (Some(message), _) => excerpt(&message, false),
        (None, Some(last)) => excerpt(last, false),
        (None, None) => String::new(),
    }
}

/// A message without its reminders; `None` if nothing is left of it.
fn without_reminders(message: &Value) -> Option<Value> {
    let is_reminder = |text: &str| text.trim_start().starts_with(REMINDER);
    let mut kept = message.clone();
    match kept.get_mut("content") {
        Some(Value::String(text)) if is_reminder(text) => return None,
        Some(Value::Array(parts)) => {
            parts.retain(|part| !part["text"].as_str().is_some_and(is_reminder));
            if parts.is_empty() {
                return None;
            }
        }
        _ => {}
    }
    Some(kept)
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
    fn what_a_call_was_about_is_what_a_user_or_a_tool_said() {
        let text = |text: &str| json!({ "type": "text", "text": text });
        let reminder = "<system-reminder>\nToday is Monday.\n</system-reminder>\n";
        let asked = json!({ "role": "user", "content": [text(reminder), text("Write notes.txt")] });
        let rules = json!({ "role": "system", "content": "Agents: claude" });
        let aside = json!({ "role": "user", "content": reminder });
        let both = [asked, rules.clone()];
        assert_eq!(heard(&both), "user: Write notes.txt");
        let result = json!({ "role": "tool", "tool_call_id": "1", "content": "42" });
        assert_eq!(heard(&[both[0].clone(), result, aside.clone()]), "tool: 42");
        assert_eq!(heard(&[aside.clone(), rules]), "system: Agents: claude");
        assert!(heard(&[aside]).starts_with("user: <system-reminder> Today"));
        assert_eq!(heard(&[]), "");
    }

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
