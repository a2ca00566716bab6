//! Excerpts of messages, in one line.

use serde_json::Value;

use crate::bounds::EXCERPT_CHARS_MAX;
use crate::excerpt::tool_line::tool_line;

mod tool_line;

/// Elements that agents add to what a user said: Claude Code and Codex.
const ADDED: [&str; 3] = ["system-reminder", "environment_context", "user_instructions"];

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
pub(crate) fn heard<'a>(messages: impl DoubleEndedIterator<Item = &'a Value> + Clone) -> String {
    let is_system =
        |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
    let mut backwards = messages.rev();
    let last = backwards.clone().next();
    let told = backwards.by_ref().filter(|message| !is_system(message)).find_map(without_reminders);
    match (told, last) {
        (Some(message), _) => excerpt(&message, false),
        (None, Some(last)) => excerpt(last, false),
        (None, None) => String::new(),
    }
}

/// The first question of a user: an excerpt of their first message that is more than reminders.
pub(crate) fn prompted(messages: &[Value]) -> Option<String> {
    let mut asked = messages.iter().filter(|message| message["role"].as_str() == Some("user"));
    let said = |message: &Value| {
        let kept = without_reminders(message)?;
        let text = wire::content_text(kept.get("content"))?;
        Some(shortened(&text)).filter(|line| !line.is_empty())
    };
    asked.find_map(said)
}

/// The words of an answer, in one line: its text, else the tools that it called, else its
/// reasoning.
pub(crate) fn answered(message: &Value) -> Option<String> {
    let text = wire::content_text(message.get("content")).filter(|text| !text.trim().is_empty());
    let tools = || {
        let calls = message.get("tool_calls")?.as_array()?;
        let lines: Vec<String> = calls.iter().filter_map(tool_line).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    };
    let said = text.or_else(tools).or_else(|| wire::reasoning(message).map(str::to_owned))?;
    Some(shortened(&said)).filter(|line| !line.is_empty())
}

/// A message without its reminders; `None` if nothing is left of it.
fn without_reminders(message: &Value) -> Option<Value> {
    let mut kept = message.clone();

    match kept.get_mut("content") {
        Some(Value::String(text)) => {
            if let Some(rest) = without_added(text) {
                *text = rest;
                return Some(kept).filter(|kept| kept["content"] != "");
            }
        }
        Some(Value::Array(parts)) => {
            for part in parts.iter_mut() {
                let rest = part["text"].as_str().and_then(without_added);
                if let Some(rest) = rest {
                    part["text"] = rest.into();
                }
            }
            parts.retain(|part| part["text"] != "");
            if parts.is_empty() {
                return None;
            }
        }
        _ => {}
    }
    Some(kept)
}

/// A text without the elements that its agent added, and without the blanks around it; `None` if
/// there are no such elements. One that does not end is the rest of the text.
fn without_added(text: &str) -> Option<String> {
    let mut rest = text.to_owned();
    for name in ADDED {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        while let Some(start) = rest.find(&open) {
            let length = rest[start..].find(&close).map(|at| at + close.len());
            let end = length.map_or(rest.len(), |length| start + length);
            rest.replace_range(start..end, "");
        }
    }
    (rest.len() < text.len()).then(|| rest.trim().to_owned())
}

fn tool_call(call: &Value) -> Option<String> {
    let function = call.get("function")?;
    let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("");
    Some(format!("{}({arguments})", function.get("name")?.as_str()?))
}

/// The beginning of a text, in one line.
pub(crate) fn shortened(text: &str) -> String {
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
        assert_eq!(heard(both.iter()), "user: Write notes.txt");
        let result = json!({ "role": "tool", "tool_call_id": "1", "content": "42" });
        assert_eq!(heard([both[0].clone(), result, aside.clone()].iter()), "tool: 42");
        assert_eq!(heard([aside.clone(), rules].iter()), "system: Agents: claude");
        assert!(heard([aside].iter()).starts_with("user: <system-reminder> Today"));
        assert_eq!(heard([].iter()), "");
    }

    #[test]
    fn a_prompt_is_what_a_user_said_without_additions() {
        let user = |content: Value| json!({ "role": "user", "content": content });
        let reminder = "<system-reminder>\nToday.\n</system-reminder>";
        let system = json!({ "role": "system", "content": "Be good." });
        let context = user(json!("<environment_context>\n<cwd>/</cwd>\n</environment_context>"));
        let asked = user(json!(format!("{reminder}\nMend  the\nreader.{reminder}")));
        let told = prompted(&[system.clone(), context.clone(), asked]);
        assert_eq!(told.as_deref(), Some("Mend the reader."));
        let begun = user(json!([{ "type": "text", "text": "<system-reminder> to the end" }]));
        assert_eq!(prompted(&[system, context, begun]), None);
    }

    #[test]
    fn an_answer_is_its_text_else_its_tools() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": "{}" } });
        let calls = json!([call("look"), call("go")]);
        let tools = json!({ "role": "assistant", "content": " ", "tool_calls": calls });
        assert_eq!(answered(&tools).as_deref(), Some("look, go"));
        let both = json!({ "role": "assistant", "content": "I\nlook", "tool_calls": calls });
        assert_eq!(answered(&both).as_deref(), Some("I look"));
        assert_eq!(answered(&json!({ "role": "assistant", "content": null })), None);
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
