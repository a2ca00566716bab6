//! The messages of a request: Anthropic's content blocks as chat messages.

use serde_json::{Map, Value, json};

use super::arguments::python_json;
use super::{list, text};
use crate::translate::Untranslatable;

/// The start of Claude Code's attribution line. The line changes with every request and would
/// defeat prefix caches.
const BILLING: &str = "x-anthropic-billing-header";

/// The chat messages of `body`: its system prompt, then its messages.
pub(super) fn messages(body: &Value) -> Result<Vec<Value>, Untranslatable> {
    let mut chat = Vec::new();
    match body.get("system") {
        None | Some(Value::Null) => {}
        // A plain string is kept whatever it starts with, as vLLM keeps it.
        Some(Value::String(prompt)) => push_system(&mut chat, prompt),
        Some(blocks) => push_system(&mut chat, &system_text(blocks)?),
    }

    let Some(messages) = body.get("messages").and_then(Value::as_array) else {
        return Err(Untranslatable("`messages` is not a list".to_owned()));
    };
    for message in messages {
        let content = message.get("content").unwrap_or(&Value::Null);
        match text(message, "role") {
            // vLLM folds these into the leading prompt if the model's template refuses them. The
            // template is not known here; a refusal is at least visible.
            "system" => push_system(&mut chat, &system_text(content)?),
            role @ ("user" | "assistant") => push_turn(&mut chat, role, content)?,
            role => return Err(Untranslatable(format!("a message of the role `{role}`"))),
        }
    }
    Ok(chat)
}

fn push_system(chat: &mut Vec<Value>, prompt: &str) {
    if !prompt.is_empty() {
        chat.push(json!({ "role": "system", "content": prompt }));
    }
}

fn system_text(content: &Value) -> Result<String, Untranslatable> {
    match content {
        Value::String(prompt) => Ok(without_billing(prompt).to_owned()),
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| match text(block, "type") {
                "text" => Ok(without_billing(text(block, "text"))),
                kind => Err(unknown_block(kind, "a system prompt")),
            })
            .collect(),
        _ => Err(Untranslatable("a system prompt is neither text nor blocks".to_owned())),
    }
}

fn without_billing(text: &str) -> &str {
    if text.starts_with(BILLING) { "" } else { text }
}

/// The blocks of one message, sorted by the fields of a chat message.
#[derive(Default)]
struct TurnDraft {
    parts: Vec<Value>,
    calls: Vec<Value>,
    reasoning: Option<String>,
}

fn push_turn(chat: &mut Vec<Value>, role: &str, content: &Value) -> Result<(), Untranslatable> {
    let blocks = match content {
        Value::String(text) => {
            chat.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => return Err(Untranslatable("a message's content is neither text nor blocks".into())),
    };

    let mut turn = TurnDraft::default();
    for block in blocks {
        match text(block, "type") {
            // A tool's result comes before the rest of its message, wherever it stands in it.
            "tool_result" if role == "user" => push_tool_result(chat, block)?,
            "tool_result" => {
                let result = ToolResult::read(block)?;
                turn.parts.push(text_part(&format!("Tool result: {}", result.text)));
            }
            _ => turn.add(block)?,
        }
    }

    let message = turn.message(role);
    if role == "assistant" || message.contains_key("content") {
        chat.push(Value::Object(message));
    }
    Ok(())
}

impl TurnDraft {
    fn add(&mut self, block: &Value) -> Result<(), Untranslatable> {
        match text(block, "type") {
            "text" if text(block, "text").is_empty() => {}
            "text" => self.parts.push(text_part(text(block, "text"))),
            "image" => self.parts.extend(image_part(block)?),
            "document" => self.parts.push(text_part(&document_text(block)?)),
            "thinking" => {
                if let Some(thinking) = block.get("thinking").and_then(Value::as_str) {
                    self.reasoning.get_or_insert_default().push_str(thinking);
                }
            }
            "tool_use" => self.calls.push(tool_call(block, self.calls.len())),
            // Encrypted reasoning cannot be shown, and a reference belongs inside a tool's result.
            "redacted_thinking" | "tool_reference" => {}
            kind => return Err(unknown_block(kind, "a message")),
        }
        Ok(())
    }

    fn message(self, role: &str) -> Map<String, Value> {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!(role));
        if let Some(reasoning) = self.reasoning {
            message.insert("reasoning".to_owned(), json!(reasoning));
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(self.calls));
        }
        // A single text is a plain string: a template may render a list of parts differently.
        let content = match self.parts.as_slice() {
            [] => None,
            [part] if text(part, "type") == "text" => part.get("text").cloned(),
            _ => Some(Value::Array(self.parts)),
        };
        message.extend(content.map(|content| ("content".to_owned(), content)));
        message
    }
}

fn tool_call(block: &Value, position: usize) -> Value {
    let id = match text(block, "id") {
        "" => format!("call_{position}"),
        id => id.to_owned(),
    };
    let arguments = match block.get("input") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(input) => python_json(input),
    };
    json!({
        "id": id,
        "type": "function",
        "function": { "name": text(block, "name"), "arguments": arguments },
    })
}

/// Adds a tool's result. Its images and references need messages of their own.
fn push_tool_result(chat: &mut Vec<Value>, block: &Value) -> Result<(), Untranslatable> {
    let id = text(block, "tool_use_id");
    let result = ToolResult::read(block)?;
    chat.push(json!({ "role": "tool", "tool_call_id": id, "content": result.text }));
    if !result.images.is_empty() {
        chat.push(json!({ "role": "user", "content": result.images }));
    }

    let items = list(block, "content").iter();
    let references: Vec<Value> = items
        .filter(|item| text(item, "type") == "tool_reference")
        .filter_map(tool_reference)
        .collect();
    if !references.is_empty() {
        chat.push(json!({ "role": "tool", "tool_call_id": id, "content": references }));
    }
    Ok(())
}

fn tool_reference(item: &Value) -> Option<Value> {
    let name = match text(item, "tool_name") {
        "" => text(item, "name"),
        name => name,
    };
    (!name.is_empty()).then(|| json!({ "type": "tool_reference", "name": name }))
}

/// The content of a tool's result.
#[derive(Default)]
struct ToolResult {
    text: String,
    images: Vec<Value>,
}

impl ToolResult {
    fn read(block: &Value) -> Result<Self, Untranslatable> {
        if let Some(text) = block.get("content").and_then(Value::as_str) {
            return Ok(Self { text: text.to_owned(), images: Vec::new() });
        }
        let (mut texts, mut images) = (Vec::new(), Vec::new());
        for item in list(block, "content") {
            match text(item, "type") {
                "text" => texts.push(text(item, "text").to_owned()),
                "image" => images.extend(image_part(item)?),
                "document" => texts.push(document_text(item)?),
                "tool_reference" => {}
                kind => return Err(unknown_block(kind, "a tool's result")),
            }
        }
        Ok(Self { text: texts.join("\n"), images })
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn image_part(block: &Value) -> Result<Option<Value>, Untranslatable> {
    let Some(source) = block.get("source").filter(|source| !source.is_null()) else {
        return Ok(None);
    };
    let url = match text(source, "type") {
        "url" => text(source, "url").to_owned(),
        "" | "base64" => {
            let kind = source.get("media_type").and_then(Value::as_str).unwrap_or("image/jpeg");
            format!("data:{kind};base64,{}", text(source, "data"))
        }
        kind => return Err(Untranslatable(format!("an image whose source is a `{kind}`"))),
    };
    Ok(Some(json!({ "type": "image_url", "image_url": { "url": url } })))
}

/// The text of a plain text document; its title and context stand before it.
fn document_text(block: &Value) -> Result<String, Untranslatable> {
    let source = block.get("source").unwrap_or(&Value::Null);
    let kind = text(source, "type");
    if kind != "text" {
        return Err(Untranslatable(format!("a document whose source is a `{kind}`")));
    }
    let parts = [text(block, "title"), text(block, "context"), text(source, "data")];
    Ok(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
}

fn unknown_block(kind: &str, place: &str) -> Untranslatable {
    Untranslatable(format!("a content block of the type `{kind}` in {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: Value) -> Value {
        Value::Array(messages(&json!({ "messages": given })).unwrap())
    }

    #[test]
    fn system_prompts_are_joined_without_the_billing_line() {
        let header = "x-anthropic-billing-header: cch=1;";
        let block = |text: &str| json!({ "type": "text", "text": text, "cache_control": {} });
        for (system, expected) in [
            (json!([block(header), block("a"), block(""), block("b")]), Some("ab")),
            (json!([block(header)]), None),
            (json!([]), None),
            (json!(""), None),
            (json!(header), Some(header)),
        ] {
            let chat = messages(&json!({ "system": system, "messages": [] })).unwrap();
            let expected: Vec<Value> = expected
                .map(|prompt| json!({ "role": "system", "content": prompt }))
                .into_iter()
                .collect();
            assert_eq!(chat, expected);
        }
        let chat = of(json!([
            { "role": "user", "content": "q" },
            { "role": "system", "content": header },
            { "role": "system", "content": [block(header), block("be"), block(" brief")] },
        ]));
        assert_eq!(
            chat,
            json!([{ "role": "user", "content": "q" }, { "role": "system", "content": "be brief" }])
        );
    }

    #[test]
    fn an_assistant_message_keeps_its_reasoning_and_calls() {
        let chat = of(json!([{ "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "s" },
            { "type": "redacted_thinking", "data": "x" },
            { "type": "thinking", "thinking": "!" },
            { "type": "text", "text": "" },
            { "type": "text", "text": "so" },
            { "type": "tool_use", "id": "t1", "name": "f", "input": {
                "q": "Z\u{fc}rich", "n": [1, 2.0],
            } },
            { "type": "tool_use", "name": "g", "input": null },
        ] }]));
        let call = |id: &str, name: &str, arguments: &str| {
            let function = json!({ "name": name, "arguments": arguments });
            json!({ "id": id, "type": "function", "function": function })
        };
        let expected = json!([{ "role": "assistant", "reasoning": "hm!", "tool_calls": [
            call("t1", "f", r#"{"q": "Z\u00fcrich", "n": [1, 2.0]}"#), call("call_1", "g", "{}"),
        ], "content": "so" }]);
        assert_eq!(chat, expected);
        assert_eq!(chat.to_string(), expected.to_string(), "the keys keep vLLM's order");
        let empty =
            json!([{ "role": "assistant", "content": [] }, { "role": "user", "content": [] }]);
        assert_eq!(of(empty), json!([{ "role": "assistant" }]));
    }

    #[test]
    fn tool_results_come_before_the_rest_of_their_message() {
        let chat = of(json!([{ "role": "user", "content": [
            { "type": "text", "text": "and" },
            { "type": "tool_result", "tool_use_id": "t1", "content": [
                { "type": "text", "text": "a" },
                { "type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": "AA",
                } },
                { "type": "tool_reference", "tool_name": "g" },
                { "type": "text", "text": "b" },
            ] },
            { "type": "tool_result", "tool_use_id": "t2", "content": "c", "is_error": true },
            { "type": "tool_result", "tool_use_id": "t3" },
            { "type": "text", "text": "now" },
        ] }]));
        assert_eq!(
            chat,
            json!([
                { "role": "tool", "tool_call_id": "t1", "content": "a\nb" },
                { "role": "user", "content": [
                    { "type": "image_url", "image_url": { "url": "data:image/png;base64,AA" } },
                ] },
                { "role": "tool", "tool_call_id": "t1", "content": [
                    { "type": "tool_reference", "name": "g" },
                ] },
                { "role": "tool", "tool_call_id": "t2", "content": "c" },
                { "role": "tool", "tool_call_id": "t3", "content": "" },
                { "role": "user", "content": [
                    { "type": "text", "text": "and" }, { "type": "text", "text": "now" },
                ] },
            ])
        );
    }

    #[test]
    fn images_and_plain_documents_are_parts() {
        let chat = of(json!([
            { "role": "user", "content": [
                { "type": "image", "source": { "type": "url", "url": "https://x/y.png" } },
            ] },
            { "role": "user", "content": [
                { "type": "document", "title": "T", "source": {
                    "type": "text", "media_type": "text/plain", "data": "D" } },
            ] },
        ]));
        assert_eq!(
            chat,
            json!([
                { "role": "user", "content": [
                    { "type": "image_url", "image_url": { "url": "https://x/y.png" } },
                ] },
                { "role": "user", "content": "T\nD" },
            ])
        );
    }

    #[test]
    fn what_chat_cannot_say_is_refused() {
        let pdf = json!({ "type": "document", "source": { "type": "base64", "data": "" } });
        for block in [
            json!({ "type": "document", "source": { "type": "file", "file_id": "f" } }),
            json!({ "type": "image", "source": { "type": "file", "file_id": "f" } }),
            json!({ "type": "container_upload", "file_id": "f" }),
            json!({ "type": "tool_result", "tool_use_id": "t", "content": [pdf] }),
            json!({ "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} }),
            json!("text"),
        ] {
            let body = json!({ "messages": [{ "role": "user", "content": [block] }] });
            assert!(!messages(&body).unwrap_err().0.is_empty(), "{block}");
        }
        for message in [json!({ "role": "tool", "content": "" }), json!({ "role": "user" })] {
            assert!(messages(&json!({ "messages": [message] })).is_err());
        }
    }
}
