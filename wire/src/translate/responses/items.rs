//! Items of a Responses conversation as messages of a chat.

use serde_json::{Map, Value, json};

use super::super::Untranslatable;
use super::sealed::unseal;
use super::tools::{chat_tool_name, custom_arguments};

/// Items about tools that the provider runs, or that only list tools. They have no form in chat,
/// and no chat server can have made them.
const SKIPPED: [&str; 11] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
];

/// Messages made of items. The assistant's items (reasoning, text, tool calls) become one message,
/// as long as no field of it is set twice.
#[derive(Debug, Default)]
pub(super) struct Messages(Vec<Map<String, Value>>);

impl Messages {
    /// Adds a message.
    pub(super) fn push(&mut self, role: &str, content: Value) {
        self.0.push(Map::from_iter([
            ("role".to_owned(), json!(role)),
            ("content".to_owned(), content),
        ]));
    }

    /// Adds an item of the input or of an output.
    pub(super) fn push_item(&mut self, item: &Value) -> Result<(), Untranslatable> {
        let kind = text(item, "type").or(text(item, "role").map(|_| "message"));
        match kind {
            Some("message") => self.push_message(item)?,
            Some("reasoning") => self.push_reasoning(item),
            Some("function_call" | "custom_tool_call" | "local_shell_call") => self.push_call(item),
            Some(
                "function_call_output" | "custom_tool_call_output" | "local_shell_call_output",
            ) => self.push_result(item)?,
            Some("item_reference") => return untranslatable("an item by its id, stored elsewhere"),
            Some(kind) if SKIPPED.contains(&kind) => {}
            Some(kind) => return untranslatable(&format!("an item of type `{kind}`")),
            None => return untranslatable("an item without a type or a role"),
        }
        Ok(())
    }

    /// The messages, all with a content that chat servers accept.
    pub(super) fn finish(mut self) -> Vec<Value> {
        for message in &mut self.0 {
            // Null is only accepted beside a call or a refusal.
            let is_empty = message.get("content").is_some_and(Value::is_null)
                && !message.contains_key("tool_calls")
                && !message.contains_key("refusal");
            if is_empty {
                message.insert("content".to_owned(), json!(""));
            }
        }
        self.0.into_iter().map(Value::Object).collect()
    }

    /// The messages as they stand. The content of an assistant without text is null.
    pub(super) fn into_raw(self) -> Vec<Map<String, Value>> {
        self.0
    }

    fn push_message(&mut self, item: &Value) -> Result<(), Untranslatable> {
        match text(item, "role") {
            Some("assistant") => self.push_assistant_text(item.get("content")),
            // `developer` stays, too: the server knows whether its template has the role. vLLM and
            // llama.cpp make a system message of it otherwise.
            Some(role) => self.push(role, chat_content(item.get("content"))?),
            None => return untranslatable("a message without a role"),
        }
        Ok(())
    }

    /// Sets the assistant's text. Parts are joined: they are pieces of one answer, whatever
    /// annotations they have.
    fn push_assistant_text(&mut self, content: Option<&Value>) {
        let parts = match content {
            Some(Value::String(text)) => return self.set_in_assistant("content", json!(text)),
            Some(Value::Array(parts)) => parts.as_slice(),
            _ => &[],
        };
        let (answer, refusal) = (texts(parts, "text"), texts(parts, "refusal"));
        // A refusal without text has no content at all.
        if !answer.is_empty() || refusal.is_empty() {
            self.set_in_assistant("content", json!(answer.concat()));
        }
        if !refusal.is_empty() {
            self.set_in_assistant("refusal", json!(refusal.concat()));
        }
    }

    /// Sets the reasoning: its text, plain or sealed by us, else its summary. Text that another
    /// server encrypted cannot be read.
    fn push_reasoning(&mut self, item: &Value) {
        let reasoning = joined_parts(item, "content")
            .or_else(|| unseal(text(item, "encrypted_content")?))
            .or_else(|| joined_parts(item, "summary"));
        if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
            self.set_in_assistant("reasoning", json!(reasoning));
        }
    }

    /// Sets a field of the assistant's last message; of a new one if the field is set already.
    fn set_in_assistant(&mut self, key: &str, value: Value) {
        let is_unset = |message: &Map<String, Value>| message.get(key).is_none_or(Value::is_null);
        self.assistant_message(is_unset).insert(key.to_owned(), value);
    }

    /// The last message if it is the assistant's and fits, else a new one.
    fn assistant_message(
        &mut self,
        fits: impl Fn(&Map<String, Value>) -> bool,
    ) -> &mut Map<String, Value> {
        let is_there = self
            .0
            .last()
            .is_some_and(|last| last.get("role") == Some(&json!("assistant")) && fits(last));
        if !is_there {
            self.push("assistant", Value::Null);
        }
        self.0.last_mut().expect("a message was there or was just added")
    }

    fn push_call(&mut self, item: &Value) {
        let message = self.assistant_message(|_| true);
        let calls = message.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(tool_call(item));
        }
    }

    fn push_result(&mut self, item: &Value) -> Result<(), Untranslatable> {
        let message = Map::from_iter([
            ("role".to_owned(), json!("tool")),
            ("tool_call_id".to_owned(), call_id(item)),
            ("content".to_owned(), chat_content(item.get("output"))?),
        ]);
        self.0.push(message);
        Ok(())
    }
}

/// The text under `key`.
fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The texts of the parts in the list under `key`, one a line; `None` if there are none.
fn joined_parts(item: &Value, key: &str) -> Option<String> {
    let texts = texts(item.get(key)?.as_array()?, "text");
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// The texts that parts have under `key`.
fn texts<'a>(parts: &'a [Value], key: &str) -> Vec<&'a str> {
    parts.iter().filter_map(|part| text(part, key)).collect()
}

fn untranslatable<T>(what: &str) -> Result<T, Untranslatable> {
    Err(Untranslatable(format!("`input` has {what}, which has no form in chat")))
}

/// The id that ties a call to its result. Items of the local shell may have only their own.
fn call_id(item: &Value) -> Value {
    ["call_id", "id"]
        .into_iter()
        .find_map(|key| item.get(key).filter(|id| id.is_string()))
        .cloned()
        .unwrap_or_default()
}

fn tool_call(item: &Value) -> Value {
    let field = |key: &str| text(item, key).unwrap_or_default();
    let (name, arguments) = match text(item, "type") {
        Some("custom_tool_call") => (field("name"), custom_arguments(field("input"))),
        Some("local_shell_call") => {
            ("local_shell", item.get("action").map(Value::to_string).unwrap_or_default())
        }
        _ => (field("name"), field("arguments").to_owned()),
    };
    let name = chat_tool_name(text(item, "namespace"), name);
    json!({
        "id": call_id(item),
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    })
}

/// Content as a plain text if it is one, else as a list of chat's parts.
fn chat_content(value: Option<&Value>) -> Result<Value, Untranslatable> {
    let parts = match value {
        None | Some(Value::Null) => return Ok(json!("")),
        Some(Value::String(text)) => return Ok(json!(text)),
        Some(Value::Array(parts)) => parts.iter().map(chat_part).collect::<Result<Vec<_>, _>>()?,
        Some(other) => return Ok(json!(other.to_string())),
    };
    Ok(match parts.as_slice() {
        [] => json!(""),
        // Not every chat server takes a list, and a single text means the same either way.
        [one] if one.get("type") == Some(&json!("text")) => one["text"].clone(),
        _ => Value::Array(parts),
    })
}

fn chat_part(part: &Value) -> Result<Value, Untranslatable> {
    match text(part, "type") {
        Some("input_text" | "output_text" | "text" | "summary_text" | "reasoning_text") => {
            Ok(json!({ "type": "text", "text": text(part, "text").unwrap_or_default() }))
        }
        Some("refusal") => {
            Ok(json!({ "type": "text", "text": text(part, "refusal").unwrap_or_default() }))
        }
        Some("input_image") => image_part(part),
        Some("input_file") => file_part(part),
        // Chat's own parts, such as sound and video, are for the server to read or to refuse.
        _ => Ok(part.clone()),
    }
}

fn image_part(part: &Value) -> Result<Value, Untranslatable> {
    let Some(url) = text(part, "image_url") else {
        return untranslatable("an image by its id, stored elsewhere");
    };
    let mut image = Map::from_iter([("url".to_owned(), json!(url))]);
    // Chat has only these values, and its servers refuse others.
    if let Some(detail @ ("auto" | "low" | "high")) = text(part, "detail") {
        image.insert("detail".to_owned(), json!(detail));
    }
    Ok(json!({ "type": "image_url", "image_url": image }))
}

fn file_part(part: &Value) -> Result<Value, Untranslatable> {
    let Some(data) = text(part, "file_data") else {
        return untranslatable("a file by its id or address, stored elsewhere");
    };
    let mut file = Map::from_iter([("file_data".to_owned(), json!(data))]);
    if let Some(name) = text(part, "filename") {
        file.insert("filename".to_owned(), json!(name));
    }
    Ok(json!({ "type": "file", "file": file }))
}
