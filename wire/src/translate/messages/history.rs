//! The messages of a request: Anthropic's content blocks as chat messages.

use serde_json::{Map, Value, json};

use super::spelling::python_json;
use super::{list, text};
use crate::chat::{PartReader, Untranslatable};

/// The start of Claude Code's attribution line. The line changes with every request and would
/// defeat prefix caches.
const BILLING: &str = "x-anthropic-billing-header";

/// The chat messages of `body`: its system prompt, then its messages.
pub(super) fn messages(
    body: &Value,
    reader: &mut PartReader,
) -> Result<Vec<Value>, Untranslatable> {
    let mut chat = Vec::new();
    match body.get("system") {
        None | Some(Value::Null) => {}
        // A plain string is kept whatever it starts with, as vLLM keeps it.
        Some(Value::String(prompt)) => push_system(&mut chat, prompt, reader),
        Some(blocks) => {
            let prompt = system_text(blocks, reader)?;
            push_system(&mut chat, &prompt, reader);
        }
    }

    match body.get("messages") {
        Some(Value::Array(messages)) => {
            for message in messages {
                push_message(&mut chat, message, reader)?;
            }
        }
        other => reader.leave(other.unwrap_or(&Value::Null), || {
            Untranslatable("`messages` is not a list".to_owned())
        })?,
    }
    Ok(chat)
}

fn push_message(
    chat: &mut Vec<Value>,
    message: &Value,
    reader: &mut PartReader,
) -> Result<(), Untranslatable> {
    let content = message.get("content").unwrap_or(&Value::Null);
    match text(message, "role") {
        // vLLM folds these into the leading prompt if the model's template refuses them. The
        // template is not known here; a refusal is at least visible.
        "system" => {
            let prompt = system_text(content, reader)?;
            push_system(chat, &prompt, reader);
            Ok(())
        }
        role @ ("user" | "assistant") => push_turn(chat, role, content, reader),
        // A role that this wire does not have is one to whoever wrote it.
        role if !reader.is_strict() && !role.is_empty() => push_turn(chat, role, content, reader),
        role => reader.leave(message, || Untranslatable(format!("a message of the role `{role}`"))),
    }
}

fn push_system(chat: &mut Vec<Value>, prompt: &str, reader: &mut PartReader) {
    if !prompt.is_empty() || reader.has_left() {
        let mut message = Map::from_iter([
            ("role".to_owned(), json!("system")),
            ("content".to_owned(), json!(prompt)),
        ]);
        reader.put_into(&mut message);
        chat.push(Value::Object(message));
    }
}

fn system_text(content: &Value, reader: &mut PartReader) -> Result<String, Untranslatable> {
    let blocks = match content {
        Value::String(prompt) => return Ok(without_billing(prompt).to_owned()),
        Value::Array(blocks) => blocks,
        other => {
            reader.leave(other, || {
                Untranslatable("a system prompt is neither text nor blocks".to_owned())
            })?;
            return Ok(String::new());
        }
    };
    let mut prompt = String::new();
    for block in blocks {
        match text(block, "type") {
            "text" => prompt.push_str(without_billing(text(block, "text"))),
            kind => reader.leave(block, || unknown_block(kind, "a system prompt"))?,
        }
    }
    Ok(prompt)
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

fn push_turn(
    chat: &mut Vec<Value>,
    role: &str,
    content: &Value,
    reader: &mut PartReader,
) -> Result<(), Untranslatable> {
    let blocks = match content {
        Value::String(text) => {
            chat.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Value::Array(blocks) => blocks.as_slice(),
        Value::Null if !reader.is_strict() => &[],
        other => {
            reader.leave(other, || {
                Untranslatable("a message's content is neither text nor blocks".to_owned())
            })?;
            &[]
        }
    };

    let mut turn = TurnDraft::default();
    for block in blocks {
        match text(block, "type") {
            // A tool's result comes before the rest of its message, wherever it stands in it.
            "tool_result" if role == "user" => push_tool_result(chat, block, reader)?,
            "tool_result" => {
                let result = ToolResult::read(block, reader)?;
                turn.parts.push(text_part(&format!("Tool result: {}", result.text)));
            }
            _ => turn.add(block, reader)?,
        }
    }

    let mut message = turn.message(role);
    let says_something = message.contains_key("content") || role == "assistant";
    // A message of which nothing was read is one all the same.
    if !says_something && (reader.has_left() || (blocks.is_empty() && !reader.is_strict())) {
        message.insert("content".to_owned(), json!(""));
    }
    reader.put_into(&mut message);
    if role == "assistant" || message.contains_key("content") {
        chat.push(Value::Object(message));
    }
    Ok(())
}

/// The assistant's message of a reply with these blocks, for the record. Its texts are one.
pub(super) fn answer(blocks: &[Value]) -> Value {
    let (mut turn, mut reader) = (TurnDraft::default(), PartReader::lenient());
    for block in blocks {
        // A lenient reader refuses nothing.
        let _ = turn.add(block, &mut reader);
    }
    let texts: Option<Vec<&str>> =
        turn.parts.iter().map(|part| part.get("text")?.as_str()).collect();
    let content =
        texts.map(|texts| if texts.is_empty() { Value::Null } else { json!(texts.concat()) });
    let mut message = turn.message("assistant");
    if let Some(content) = content {
        message.insert("content".to_owned(), content);
    }
    reader.put_into(&mut message);
    Value::Object(message)
}

impl TurnDraft {
    fn add(&mut self, block: &Value, reader: &mut PartReader) -> Result<(), Untranslatable> {
        match text(block, "type") {
            "text" if text(block, "text").is_empty() => {}
            "text" => self.parts.push(text_part(text(block, "text"))),
            "image" => match image_part(block) {
                Ok(image) => self.parts.extend(image),
                Err(error) => reader.leave(block, || error)?,
            },
            "document" => match document_text(block) {
                Ok(document) => self.parts.push(text_part(&document)),
                Err(error) => reader.leave(block, || error)?,
            },

            "thinking" => {
                if let Some(thinking) = block.get("thinking").and_then(Value::as_str) {
                    self.reasoning.get_or_insert_default().push_str(thinking);
                }
            }
            "tool_use" => self.calls.push(tool_call(block, self.calls.len())),

            // Encrypted reasoning cannot be shown, and a reference belongs inside a tool's result.
            "redacted_thinking" | "tool_reference" => reader.skip(block),
            kind => match block {
                Value::String(text) if !reader.is_strict() => self.parts.push(text_part(text)),
                _ => reader.leave(block, || unknown_block(kind, "a message"))?,
            },
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
fn push_tool_result(
    chat: &mut Vec<Value>,
    block: &Value,
    reader: &mut PartReader,
) -> Result<(), Untranslatable> {
    let id = text(block, "tool_use_id");
    let result = ToolResult::read(block, reader)?;
    let mut message = Map::from_iter([
        ("role".to_owned(), json!("tool")),
        ("tool_call_id".to_owned(), json!(id)),
        ("content".to_owned(), json!(result.text)),
    ]);
    reader.put_into(&mut message);
    chat.push(Value::Object(message));
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
    fn read(block: &Value, reader: &mut PartReader) -> Result<Self, Untranslatable> {
        match block.get("content") {
            Some(Value::String(text)) => {
                return Ok(Self { text: text.clone(), images: Vec::new() });
            }
            Some(other) if !other.is_array() && !other.is_null() => reader.skip(other),
            _ => {}
        }

        let (mut texts, mut images) = (Vec::new(), Vec::new());
        for item in list(block, "content") {
            match text(item, "type") {
                "text" => texts.push(text(item, "text").to_owned()),
                "image" => match image_part(item) {
                    Ok(image) => images.extend(image),
                    Err(error) => reader.leave(item, || error)?,
                },
                "document" => match document_text(item) {
                    Ok(document) => texts.push(document),
                    Err(error) => reader.leave(item, || error)?,
                },
                "tool_reference" => {}
                kind => match item {
                    Value::String(text) if !reader.is_strict() => texts.push(text.clone()),
                    _ => reader.leave(item, || unknown_block(kind, "a tool's result"))?,
                },
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
    use crate::unread_counts;

    fn of(given: Value) -> Value {
        Value::Array(messages(&json!({ "messages": given }), &mut PartReader::strict()).unwrap())
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
            let body = json!({ "system": system, "messages": [] });
            let chat = messages(&body, &mut PartReader::strict()).unwrap();
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
            let refused = messages(&body, &mut PartReader::strict());
            assert!(!refused.unwrap_err().0.is_empty(), "{block}");

            // The record keeps the rest of the message, and names what it left out.
            let body = json!({ "messages": [{ "role": "user", "content": ["a", block] }] });
            let read = messages(&body, &mut PartReader::lenient()).unwrap();
            let said: String = read.iter().map(|m| text(m, "content")).collect();
            let left = unread_counts(&read).len();
            let is_text = block.is_string();
            assert!(said.contains('a') || is_text, "{block}");
            assert_eq!(left, usize::from(!is_text), "{read:?}");
        }
        for message in [json!({ "role": "tool", "content": "" }), json!({ "role": "user" })] {
            let body = json!({ "messages": [message] });
            assert!(messages(&body, &mut PartReader::strict()).is_err());
            let read = messages(&body, &mut PartReader::lenient()).unwrap();
            assert_eq!(read, [json!({ "role": message["role"], "content": "" })]);
        }
    }
}
