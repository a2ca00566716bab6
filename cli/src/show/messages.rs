//! The last message of a prompt and its answer, shortened to fit a line.

use episode::Call;
use serde_json::Value;

/// Longest excerpt of a message, in characters.
const EXCERPT_CHARS_MAX: usize = 60;

/// The newest message that the model was given, and its answer.
pub(super) fn exchange(call: &Call, choice: u32) -> (String, String) {
    let heard = wire::conversation(call.begun.route, &call.begun.request)
        .and_then(|conversation| conversation.messages.last().map(excerpt))
        .unwrap_or_default();
    let said = call
        .ended
        .iter()
        .flat_map(|ended| wire::answers(call.begun.route, &ended.reply))
        .find(|answer| answer.index == choice)
        .map(|answer| excerpt(&answer.message))
        .unwrap_or_default();
    (heard, said)
}

/// A message's tool calls, or else its role and content, in one short line.
fn excerpt(message: &Value) -> String {
    let tool_calls: Vec<String> = message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(tool_call)
        .collect();
    if !tool_calls.is_empty() {
        return shorten(&tool_calls.join(" "));
    }

    let role = message.get("role").and_then(Value::as_str).unwrap_or("?");
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    };
    shorten(&format!("{role}: {content}"))
}

fn tool_call(call: &Value) -> Option<String> {
    let function = call.get("function")?;
    let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("");
    Some(format!("{}({arguments})", function.get("name")?.as_str()?))
}

fn shorten(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &one_line[..end]),
        None => one_line,
    }
}
