//! Items of a Responses conversation as messages of a chat.

use serde_json::{Map, Value, json};

use super::sealed::unseal;
use super::tools::{chat_tool_name, custom_arguments};
use crate::chat::{PartReader, Untranslatable, arguments_text};
use crate::json::json_text;

/// Items about tools that the provider runs. They have no form in chat, and no chat server can have
/// made them.
const SKIPPED: [&str; 8] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
];

/// Items that only list tools: they are read as such.
const LISTINGS: [&str; 3] = ["mcp_list_tools", "tool_search_output", "additional_tools"];

/// Parts that are chat's own, beside texts.
const CHAT_PARTS: [&str; 5] = ["image_url", "input_audio", "audio_url", "video_url", "file"];

/// Messages made of items. The assistant's items (reasoning, text, tool calls) become one message,
/// as long as no field of it is set twice.
#[derive(Debug)]
pub(super) struct Messages {
    list: Vec<Map<String, Value>>,
    /// Reads the parts of a message.
    reader: PartReader,
    /// Reads items: what it leaves out is beside messages, and no part of one.
    items: PartReader,
}

impl Messages {
    pub(super) fn new(reader: PartReader) -> Self {
        let items = if reader.is_strict() { PartReader::strict() } else { PartReader::lenient() };
        Self { list: Vec::new(), reader, items }
    }

    /// Adds a message. What was left out of its content goes with it.
    pub(super) fn push(&mut self, role: &str, content: Value) {
        self.push_fields(Map::from_iter([
            ("role".to_owned(), json!(role)),
            ("content".to_owned(), content),
        ]));
    }

    fn push_fields(&mut self, mut message: Map<String, Value>) {
        self.reader.put_into(&mut message);
        self.list.push(message);
    }

    /// Puts items that were left out beside the last message, or the first that comes.
    fn settle_items(&mut self) {
        if let Some(last) = self.list.last_mut() {
            self.items.put_beside(last);
        }
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
            Some("item_reference") => self.leave(item, "an item by its id, stored elsewhere")?,
            Some(kind) if LISTINGS.contains(&kind) => {}
            Some(kind) if SKIPPED.contains(&kind) => self.items.skip(item),
            Some(kind) => self.leave(item, &format!("an item of type `{kind}`"))?,
            None => match item {
                Value::String(text) if !self.reader.is_strict() => self.push("user", json!(text)),
                _ => self.leave(item, "an item without a type or a role")?,
            },
        }
        self.settle_items();
        Ok(())
    }

    fn leave(&mut self, item: &Value, what: &str) -> Result<(), Untranslatable> {
        self.items.leave(item, || untranslatable(what))
    }

    /// The messages, all with a content that chat servers accept.
    pub(super) fn finish(self) -> Vec<Value> {
        let mut messages = self.into_raw();
        for message in &mut messages {
            // Null is only accepted beside a call or a refusal.
            let is_empty = message.get("content").is_some_and(Value::is_null)
                && !message.contains_key("tool_calls")
                && !message.contains_key("refusal");
            if is_empty {
                message.insert("content".to_owned(), json!(""));
            }
        }
        messages.into_iter().map(Value::Object).collect()
    }

    /// The messages as they stand. The content of an assistant without text is null.
    pub(super) fn into_raw(mut self) -> Vec<Map<String, Value>> {
        if self.list.is_empty() && self.items.has_left() {
            self.push("assistant", Value::Null);
        }
        self.settle_items();
        self.list
    }

    fn push_message(&mut self, item: &Value) -> Result<(), Untranslatable> {
        match text(item, "role") {
            Some("assistant") => self.push_assistant_text(item.get("content")),
            // `developer` stays, too: the server knows whether its template has the role. vLLM and
            // llama.cpp make a system message of it otherwise.
            Some(role) => {
                let content = chat_content(item.get("content"), &mut self.reader)?;
                self.push(role, content);
            }
            None => self.leave(item, "a message without a role")?,
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
        let is_read = |part: &Value| text(part, "text").or(text(part, "refusal")).is_some();
        parts.iter().filter(|part| !is_read(part)).for_each(|part| self.reader.skip(part));
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

    /// Sets a field of the assistant's last message; of a new one if the field is set already. For
    /// the record a reply is one turn, however many messages it has: its texts are joined.
    fn set_in_assistant(&mut self, key: &str, value: Value) {
        let last = self.list.last_mut().filter(|_| !self.reader.is_strict());
        if let Some(last) = last.filter(|last| last.get("role") == Some(&json!("assistant")))
            && let (Some(Value::String(text)), Some(more)) = (last.get_mut(key), value.as_str())
        {
            text.push_str(more);
            self.reader.put_into(last);
            return;
        }
        let is_unset = |message: &Map<String, Value>| message.get(key).is_none_or(Value::is_null);
        self.assistant_message(is_unset).insert(key.to_owned(), value);
    }

    /// The last message if it is the assistant's and fits, else a new one.
    fn assistant_message(
        &mut self,
        fits: impl Fn(&Map<String, Value>) -> bool,
    ) -> &mut Map<String, Value> {
        let is_there = self
            .list
            .last()
            .is_some_and(|last| last.get("role") == Some(&json!("assistant")) && fits(last));
        if !is_there {
            self.push("assistant", Value::Null);
        }
        let message = self.list.last_mut().expect("a message was there or was just added");
        self.reader.put_into(message);
        message
    }

    fn push_call(&mut self, item: &Value) {
        let message = self.assistant_message(|_| true);
        let calls = message.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(tool_call(item));
        }
    }

    fn push_result(&mut self, item: &Value) -> Result<(), Untranslatable> {
        let content = chat_content(item.get("output"), &mut self.reader)?;
        self.push_fields(Map::from_iter([
            ("role".to_owned(), json!("tool")),
            ("tool_call_id".to_owned(), call_id(item)),
            ("content".to_owned(), content),
        ]));
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

fn untranslatable(what: &str) -> Untranslatable {
    Untranslatable(format!("`input` has {what}, which has no form in chat"))
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
    let spelled = |key: &str| arguments_text(item.get(key)).into_owned();
    let (name, arguments) = match text(item, "type") {
        Some("custom_tool_call") => (field("name"), custom_arguments(field("input"))),
        Some("local_shell_call") => ("local_shell", spelled("action")),
        _ => (field("name"), spelled("arguments")),
    };
    let name = chat_tool_name(text(item, "namespace"), name);
    json!({
        "id": call_id(item),
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    })
}

/// Content as a plain text if it is one, else as a list of chat's parts.
fn chat_content(value: Option<&Value>, reader: &mut PartReader) -> Result<Value, Untranslatable> {
    let given = match value {
        None | Some(Value::Null) => return Ok(json!("")),
        Some(Value::String(text)) => return Ok(json!(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Ok(json!(json_text(other))),
    };
    let mut parts = Vec::with_capacity(given.len());
    for part in given {
        match chat_part(part, reader.is_strict()) {
            Ok(part) => parts.push(part),
            Err(error) => reader.leave(part, || error)?,
        }
    }
    Ok(match parts.as_slice() {
        [] => json!(""),
        // Not every chat server takes a list, and a single text means the same either way.
        [one] if one.get("type") == Some(&json!("text")) => one["text"].clone(),
        _ => Value::Array(parts),
    })
}

fn chat_part(part: &Value, is_strict: bool) -> Result<Value, Untranslatable> {
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
        Some(kind) if is_strict || CHAT_PARTS.contains(&kind) => Ok(part.clone()),
        None if is_strict => Ok(part.clone()),
        kind => match part {
            Value::String(text) => Ok(json!({ "type": "text", "text": text })),
            _ => Err(untranslatable(&format!("a part of type `{}`", kind.unwrap_or_default()))),
        },
    }
}

fn image_part(part: &Value) -> Result<Value, Untranslatable> {
    let Some(url) = text(part, "image_url") else {
        return Err(untranslatable("an image by its id, stored elsewhere"));
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
        return Err(untranslatable("a file by its id or address, stored elsewhere"));
    };
    let mut file = Map::from_iter([("file_data".to_owned(), json!(data))]);
    if let Some(name) = text(part, "filename") {
        file.insert("filename".to_owned(), json!(name));
    }
    Ok(json!({ "type": "file", "file": file }))
}
