//! Items of a Responses conversation as messages of a chat.

use serde_json::{Map, Value, json};

use super::super::Untranslatable;
use super::sealed::unseal;
use super::tools::{custom_arguments, flat};

/// Items that tell what a tool of the provider did, or that only list tools. A chat server has
/// no form for them, and one that answered before cannot have made them.
const SILENT: [&str; 11] = [
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

/// Messages as they come out of items. What the model said in several items (its reasoning, its
/// text, its tool calls) becomes one assistant message, as long as nothing is said twice.
#[derive(Debug, Default)]
pub(super) struct Messages(Vec<Map<String, Value>>);

impl Messages {
    /// Adds a message of any role but the assistant's.
    pub(super) fn say(&mut self, role: &str, content: Value) {
        self.0.push(Map::from_iter([
            ("role".to_owned(), json!(role)),
            ("content".to_owned(), content),
        ]));
    }

    /// Adds an item of the input or of an output.
    pub(super) fn item(&mut self, item: &Value) -> Result<(), Untranslatable> {
        let text = |key: &str| item.get(key).and_then(Value::as_str);
        let kind = text("type").or(text("role").map(|_| "message"));
        match kind {
            Some("message") => self.message(item)?,
            Some("reasoning") => self.reasoning(item),
            Some("function_call" | "custom_tool_call" | "local_shell_call") => self.call(item),
            Some(
                "function_call_output" | "custom_tool_call_output" | "local_shell_call_output",
            ) => self.result(item)?,
            Some("item_reference") => return untranslatable("an item by its id, stored elsewhere"),
            Some(kind) if SILENT.contains(&kind) => {}
            Some(kind) => return untranslatable(&format!("an item of type `{kind}`")),
            None => return untranslatable("an item without a type or a role"),
        }
        Ok(())
    }

    /// The messages, all with a content that chat servers accept.
    pub(super) fn finish(mut self) -> Vec<Value> {
        for message in &mut self.0 {
            // Null stands only beside what was said in place of text.
            let empty = message.get("content").is_some_and(Value::is_null)
                && !message.contains_key("tool_calls")
                && !message.contains_key("refusal");
            if empty {
                message.insert("content".to_owned(), json!(""));
            }
        }
        self.0.into_iter().map(Value::Object).collect()
    }

    /// The messages as they stand: an assistant's content is null where it said none.
    pub(super) fn raw(self) -> Vec<Map<String, Value>> {
        self.0
    }

    fn message(&mut self, item: &Value) -> Result<(), Untranslatable> {
        match item.get("role").and_then(Value::as_str) {
            Some("assistant") => self.assistant_text(item.get("content")),
            // `developer` too stays what it is: the server knows whether its template has the
            // role (vLLM and llama.cpp make a system message of it where it has not).
            Some(role) => self.say(role, content(item.get("content"))?),
            None => return untranslatable("a message without a role"),
        }
        Ok(())
    }

    /// Texts are joined: they are pieces of one answer, whatever annotated them.
    fn assistant_text(&mut self, content: Option<&Value>) {
        let parts = match content {
            Some(Value::String(text)) => return self.assistant("content", json!(text)),
            Some(Value::Array(parts)) => parts.as_slice(),
            _ => &[],
        };
        let joined = |key: &str| {
            let texts: Vec<&str> =
                parts.iter().filter_map(|part| part.get(key).and_then(Value::as_str)).collect();
            (!texts.is_empty()).then(|| texts.concat())
        };
        let refusal = joined("refusal");
        match joined("text") {
            Some(text) => self.assistant("content", json!(text)),
            None if refusal.is_none() => self.assistant("content", json!("")),
            None => {}
        }
        if let Some(refusal) = refusal {
            self.assistant("refusal", json!(refusal));
        }
    }

    /// The text of the thought itself, as it is or as it was sealed here, else its summary. What
    /// another server encrypted nobody here can read.
    fn reasoning(&mut self, item: &Value) {
        let plain = |key: &str| {
            let texts: Vec<&str> = item
                .get(key)?
                .as_array()?
                .iter()
                .filter_map(|part| part.get("text").and_then(Value::as_str))
                .collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        };
        let sealed = || unseal(item.get("encrypted_content")?.as_str()?);
        let text = plain("content").or_else(sealed).or_else(|| plain("summary"));
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.assistant("reasoning", json!(text));
        }
    }

    /// Sets what the assistant's message has not said yet, else begins a new one.
    fn assistant(&mut self, key: &str, value: Value) {
        let vacant = |message: &Map<String, Value>| message.get(key).is_none_or(Value::is_null);
        self.assistant_where(vacant).insert(key.to_owned(), value);
    }

    fn assistant_where(
        &mut self,
        fits: impl Fn(&Map<String, Value>) -> bool,
    ) -> &mut Map<String, Value> {
        let there = self
            .0
            .last()
            .is_some_and(|last| last.get("role") == Some(&json!("assistant")) && fits(last));
        if !there {
            self.say("assistant", Value::Null);
        }
        self.0.last_mut().expect("a message was there or was just added")
    }

    fn call(&mut self, item: &Value) {
        let message = self.assistant_where(|_| true);
        let calls = message.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(tool_call(item));
        }
    }

    fn result(&mut self, item: &Value) -> Result<(), Untranslatable> {
        let message = Map::from_iter([
            ("role".to_owned(), json!("tool")),
            ("tool_call_id".to_owned(), call_id(item)),
            ("content".to_owned(), content(item.get("output"))?),
        ]);
        self.0.push(message);
        Ok(())
    }
}

fn untranslatable<T>(what: &str) -> Result<T, Untranslatable> {
    Err(Untranslatable(format!("`input` has {what}, which chat has no form for")))
}

/// The id that ties a call to its result. Items of the local shell may have only their own.
fn call_id(item: &Value) -> Value {
    let of = |key: &str| item.get(key).filter(|id| id.is_string()).cloned();
    of("call_id").or_else(|| of("id")).unwrap_or_default()
}

fn tool_call(item: &Value) -> Value {
    let text = |key: &str| item.get(key).and_then(Value::as_str);
    let (name, arguments) = match text("type") {
        Some("custom_tool_call") => {
            (text("name"), custom_arguments(text("input").unwrap_or_default()))
        }
        Some("local_shell_call") => {
            (Some("local_shell"), item.get("action").map(Value::to_string).unwrap_or_default())
        }
        _ => (text("name"), text("arguments").unwrap_or_default().to_owned()),
    };
    let name = flat(text("namespace"), name.unwrap_or_default());
    json!({
        "id": call_id(item),
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    })
}

/// Content as a text where it is one, else as a list of chat's parts.
fn content(value: Option<&Value>) -> Result<Value, Untranslatable> {
    let parts = match value {
        None | Some(Value::Null) => return Ok(json!("")),
        Some(Value::String(text)) => return Ok(json!(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Ok(json!(other.to_string())),
    };
    let parts = parts.iter().map(part).collect::<Result<Vec<Value>, _>>()?;
    Ok(match parts.as_slice() {
        [] => json!(""),
        // Not every chat server takes a list, and a single text means the same either way.
        [one] if one.get("type") == Some(&json!("text")) => one["text"].clone(),
        _ => Value::Array(parts),
    })
}

fn part(part: &Value) -> Result<Value, Untranslatable> {
    let text = |key: &str| part.get(key).and_then(Value::as_str);
    Ok(match text("type") {
        Some("input_text" | "output_text" | "text" | "summary_text" | "reasoning_text") => {
            json!({ "type": "text", "text": text("text").unwrap_or_default() })
        }
        Some("refusal") => {
            json!({ "type": "text", "text": text("refusal").unwrap_or_default() })
        }
        Some("input_image") => {
            let Some(url) = text("image_url") else {
                return untranslatable("an image by its id, stored elsewhere");
            };
            let mut image = Map::from_iter([("url".to_owned(), json!(url))]);
            // Chat knows fewer details, and its servers refuse the others.
            if let Some(detail @ ("auto" | "low" | "high")) = text("detail") {
                image.insert("detail".to_owned(), json!(detail));
            }
            json!({ "type": "image_url", "image_url": image })
        }
        Some("input_file") => {
            let Some(data) = text("file_data") else {
                return untranslatable("a file by its id or address, stored elsewhere");
            };
            let mut file = Map::from_iter([("file_data".to_owned(), json!(data))]);
            if let Some(name) = text("filename") {
                file.insert("filename".to_owned(), json!(name));
            }
            json!({ "type": "file", "file": file })
        }
        // Chat's own parts, sound and video of some servers: theirs to read or to refuse.
        _ => part.clone(),
    })
}
