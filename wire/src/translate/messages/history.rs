//! The messages of a request: Anthropic's content blocks as chat messages.

use serde_json::{Map, Value, json};

use super::arguments::dumps;
use super::{list, text};
use crate::translate::Untranslatable;

/// Claude Code's attribution line changes with every request and would defeat prefix caches.
const BILLING: &str = "x-anthropic-billing-header";

/// The chat messages of `body`: its system prompt, then its messages.
pub(super) fn messages(body: &Value) -> Result<Vec<Value>, Untranslatable> {
    let mut chat = Vec::new();
    match body.get("system") {
        None | Some(Value::Null) => {}
        // As a plain string the prompt is kept whatever it starts with; so does vLLM.
        Some(Value::String(prompt)) => push_system(&mut chat, prompt),
        Some(blocks) => push_system(&mut chat, &system_text(blocks)?),
    }
    let Some(messages) = body.get("messages").and_then(Value::as_array) else {
        return Err(Untranslatable("`messages` is not a list".to_owned()));
    };
    for message in messages {
        let content = message.get("content").unwrap_or(&Value::Null);
        match text(message, "role") {
            // vLLM folds these into the leading prompt when the model's template refuses them.
            // That is not known here, and in place a refusal is at least seen.
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
    let kept = |text: &str| if text.starts_with(BILLING) { String::new() } else { text.to_owned() };
    match content {
        Value::String(prompt) => Ok(kept(prompt)),
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| match text(block, "type") {
                "text" => Ok(kept(text(block, "text"))),
                kind => Err(unknown(kind, "a system prompt")),
            })
            .collect(),
        _ => Err(Untranslatable("a system prompt is neither text nor blocks".to_owned())),
    }
}

/// What the blocks of one message add up to.
#[derive(Default)]
struct Turn {
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
    let mut turn = Turn::default();
    for block in blocks {
        match text(block, "type") {
            // A tool's result comes before the rest of its message, wherever it stands in it.
            "tool_result" if role == "user" => push_result(chat, block)?,
            "tool_result" => {
                let (said, _) = result(block)?;
                turn.parts.push(text_part(&format!("Tool result: {said}")));
            }
            _ => turn.block(block)?,
        }
    }
    let message = turn.message(role);
    if role == "assistant" || message.contains_key("content") {
        chat.push(Value::Object(message));
    }
    Ok(())
}

impl Turn {
    fn block(&mut self, block: &Value) -> Result<(), Untranslatable> {
        match text(block, "type") {
            "text" => {
                let said = text(block, "text");
                self.parts.extend((!said.is_empty()).then(|| text_part(said)));
            }
            "image" => self.parts.extend(image(block)?),
            "document" => self.parts.push(text_part(&document(block)?)),
            "thinking" => {
                if let Some(thought) = block.get("thinking").and_then(Value::as_str) {
                    self.reasoning.get_or_insert_default().push_str(thought);
                }
            }
            "tool_use" => self.calls.push(call(block, self.calls.len())),
            // Sealed reasoning cannot be shown, and a reference belongs inside a tool's result.
            "redacted_thinking" | "tool_reference" => {}
            kind => return Err(unknown(kind, "a message")),
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
        // One text is a plain string: a template may set a list of parts apart.
        let content = match self.parts.as_slice() {
            [] => None,
            [part] if text(part, "type") == "text" => part.get("text").cloned(),
            _ => Some(Value::Array(self.parts)),
        };
        message.extend(content.map(|content| ("content".to_owned(), content)));
        message
    }
}

fn call(block: &Value, position: usize) -> Value {
    let id = match text(block, "id") {
        "" => format!("call_{position}"),
        id => id.to_owned(),
    };
    let arguments = match block.get("input") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(input) => dumps(input),
    };
    json!({
        "id": id,
        "type": "function",
        "function": { "name": text(block, "name"), "arguments": arguments },
    })
}

/// A tool's result; its images and references cannot ride in the same message.
fn push_result(chat: &mut Vec<Value>, block: &Value) -> Result<(), Untranslatable> {
    let id = text(block, "tool_use_id");
    let (said, images) = result(block)?;
    chat.push(json!({ "role": "tool", "tool_call_id": id, "content": said }));
    if !images.is_empty() {
        chat.push(json!({ "role": "user", "content": images }));
    }
    let named = |item: &Value| match (text(item, "tool_name"), text(item, "name")) {
        ("", "") => None,
        ("", name) | (name, _) => Some(json!({ "type": "tool_reference", "name": name })),
    };
    let items = list(block, "content").iter().filter(|item| text(item, "type") == "tool_reference");
    let references: Vec<Value> = items.filter_map(named).collect();
    if !references.is_empty() {
        chat.push(json!({ "role": "tool", "tool_call_id": id, "content": references }));
    }
    Ok(())
}

/// The text and the images of a tool's result.
fn result(block: &Value) -> Result<(String, Vec<Value>), Untranslatable> {
    if let Some(said) = block.get("content").and_then(Value::as_str) {
        return Ok((said.to_owned(), Vec::new()));
    }
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for item in list(block, "content") {
        match text(item, "type") {
            "text" => texts.push(text(item, "text").to_owned()),
            "image" => images.extend(image(item)?),
            "document" => texts.push(document(item)?),
            "tool_reference" => {}
            kind => return Err(unknown(kind, "a tool's result")),
        }
    }
    Ok((texts.join("\n"), images))
}

fn text_part(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn image(block: &Value) -> Result<Option<Value>, Untranslatable> {
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

/// A document that is plain text; its title and context stand before it.
fn document(block: &Value) -> Result<String, Untranslatable> {
    let source = block.get("source").unwrap_or(&Value::Null);
    let kind = text(source, "type");
    if kind != "text" {
        return Err(Untranslatable(format!("a document whose source is a `{kind}`")));
    }
    let said = [text(block, "title"), text(block, "context"), text(source, "data")];
    Ok(said.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
}

fn unknown(kind: &str, place: &str) -> Untranslatable {
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
