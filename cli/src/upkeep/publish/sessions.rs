//! An episode as a session: lines that viewers of agent traces read.
//!
//! The form is version 3 of Pi's session files: a header, then entries that form a tree, so that
//! forks stay forks. Pi has no message of the system; it is an entry of its own here.

use std::collections::HashMap;

use chrono::{DateTime, SecondsFormat};
use episode::{Call, Micros};
use exporter::choice_links;
use serde_json::{Value, json};
use store::{AttemptRecord, MessageRow, Snapshot};

use crate::exit::Failure;

/// The session of an attempt. `None` if nothing was said.
///
/// # Errors
/// [`Failure`] when the store cannot be read.
pub(super) async fn session(
    snapshot: &mut Snapshot,
    attempt: &AttemptRecord,
) -> Result<Option<String>, Failure> {
    let messages = viewer::messages(snapshot, attempt).await;
    let messages = messages.map_err(|error| Failure::of(&error))?;
    if messages.is_empty() {
        return Ok(None);
    }
    let calls = snapshot.calls(attempt).await?;
    let header = json!({
        "type": "session",
        "version": 3,
        "id": format!("{}/{}", attempt.id, attempt.attempt),
        "timestamp": written(attempt.opened_at),
        "cwd": "/",
        "harness": "rolltape",
    });
    let lines = std::iter::once(header).chain(SessionLines::new(&calls).of(&messages));
    Ok(Some(lines.map(|line| format!("{line}\n")).collect()))
}

/// Makes the entries of a session.
struct SessionLines<'a> {
    calls: HashMap<String, &'a Call>,
    /// The turn that each turn continues.
    parents: HashMap<(String, u32), (String, u32)>,
    /// The entry of each answer.
    answers: HashMap<(String, u32), String>,
    /// The names of tools by the ids of their calls.
    tools: HashMap<String, String>,
    last: Option<String>,
    count: usize,
}

impl<'a> SessionLines<'a> {
    fn new(calls: &'a [Call]) -> Self {
        let (links, _) = choice_links(calls);
        let parents = links.into_iter().filter_map(|link| {
            let (parent, choice) = link.parent?;
            Some(((link.call_id.to_string(), link.choice), (parent.to_string(), choice)))
        });
        Self {
            calls: calls.iter().map(|call| (call.begun.call_id.to_string(), call)).collect(),
            parents: parents.collect(),
            answers: HashMap::new(),
            tools: HashMap::new(),
            last: None,
            count: 0,
        }
    }

    fn of(mut self, messages: &[MessageRow]) -> Vec<Value> {
        let mut lines = Vec::with_capacity(messages.len());
        let mut before: Option<&str> = None;
        // What the answers of a call follow: the last message that it sent.
        let mut sent = None;
        for message in messages {
            if before != Some(message.call_id.as_str()) {
                before = Some(&message.call_id);
                self.last = self.entry_before(&message.call_id);
                sent = None;
            }
            if message.choice.is_some() {
                let after = sent.get_or_insert_with(|| self.last.clone());
                self.last = after.clone();
            }
            lines.push(self.line(message));
        }
        lines
    }

    /// The entry of the answer that a call goes on from.
    fn entry_before(&self, call: &str) -> Option<String> {
        let parent = self.parents.get(&(call.to_owned(), 0))?;
        self.answers.get(parent).cloned()
    }

    fn line(&mut self, row: &MessageRow) -> Value {
        self.count += 1;
        let id = format!("{:08x}", self.count);
        let call = self.calls.get(&row.call_id).copied();
        let at = call.map_or(0, |call| match (row.choice, &call.ended) {
            (Some(_), Some(ended)) => ended.ended_at,
            _ => call.begun.started_at,
        });
        let place = json!({ "id": id, "parentId": self.last, "timestamp": written(at) });
        let body = match row.role.as_str() {
            "system" | "developer" => json!({
                "type": "custom_message",
                "customType": row.role,
                "content": row.content.as_deref().unwrap_or_default(),
                "display": true,
            }),
            _ => json!({ "type": "message", "message": self.message(row, call, at / 1000) }),
        };

        if let Some(choice) = row.choice {
            self.answers.insert((row.call_id.clone(), choice), id.clone());
        }
        self.last = Some(id);
        joined(body, place)
    }

    fn message(&mut self, row: &MessageRow, call: Option<&Call>, at: i64) -> Value {
        let content = self.blocks(row);
        match row.role.as_str() {
            "assistant" => {
                let message = json!({ "role": "assistant", "content": content, "timestamp": at });
                joined(message, source(row, call))
            }
            "tool" | "function" => {
                let id = row.tool_call_id.as_deref().unwrap_or_default();
                json!({
                    "role": "toolResult",
                    "toolCallId": id,
                    "toolName": self.tools.get(id).map_or("tool", String::as_str),
                    "content": content,
                    "isError": false,
                    "timestamp": at,
                })
            }
            _ => json!({ "role": "user", "content": content, "timestamp": at }),
        }
    }

    fn blocks(&mut self, row: &MessageRow) -> Vec<Value> {
        let mut blocks = Vec::new();
        if let Some(thinking) = row.reasoning.as_deref().filter(|text| !text.is_empty()) {
            blocks.push(json!({ "type": "thinking", "thinking": thinking }));
        }
        if let Some(text) = row.content.as_deref().filter(|text| !text.is_empty()) {
            blocks.push(json!({ "type": "text", "text": text }));
        }
        let calls = row.tool_calls.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let calls: Vec<Value> = calls.unwrap_or_default();
        for call in &calls {
            let id = call["id"].as_str().unwrap_or_default();
            let name = call["function"]["name"].as_str().unwrap_or_default();
            self.tools.insert(id.to_owned(), name.to_owned());
            blocks.push(json!({
                "type": "toolCall", "id": id, "name": name,
                "arguments": arguments(&call["function"]["arguments"]),
            }));
        }
        blocks
    }
}

/// Arguments as an object; those that are none are under `arguments`.
fn arguments(value: &Value) -> Value {
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    match parsed.unwrap_or_else(|| value.clone()) {
        Value::Object(members) => Value::Object(members),
        Value::Null => json!({}),
        other => json!({ "arguments": other }),
    }
}

/// The model that answered, its tokens, and the reason for which it stopped.
fn source(row: &MessageRow, call: Option<&Call>) -> Value {
    let begun = call.map(|call| &call.begun);
    let ended = call.and_then(|call| call.ended.as_ref()).filter(|_| row.choice.is_some());
    let model = ended
        .and_then(|ended| ended.model.as_deref())
        .or_else(|| begun.and_then(|begun| begun.model.as_deref()));
    let usage = ended.map(|ended| ended.usage).unwrap_or_default();
    let (input, output) = (usage.prompt.unwrap_or(0), usage.completion.unwrap_or(0));
    let reason = ended.and_then(|ended| {
        let choice = ended.choices.iter().find(|choice| Some(choice.index) == row.choice)?;
        choice.finish_reason.as_deref()
    });

    json!({
        "api": begun.map_or("", |begun| begun.route.as_str()),
        "provider": "rolltape",
        "model": model.unwrap_or_default(),
        "usage": {
            "input": input, "output": output, "cacheRead": 0, "cacheWrite": 0,
            "totalTokens": input + output,
            "cost": { "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0 },
        },
        "stopReason": match reason {
            _ if row.tool_calls.is_some() => "toolUse",
            Some("length") => "length",
            _ => "stop",
        },
    })
}

/// The members of both objects.
fn joined(first: Value, second: Value) -> Value {
    match (first, second) {
        (Value::Object(mut first), Value::Object(second)) => {
            first.extend(second);
            Value::Object(first)
        }
        (first, _) => first,
    }
}

fn written(at: Micros) -> String {
    let moment = DateTime::from_timestamp_micros(at).unwrap_or_default();
    moment.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(call: &str, choice: Option<u32>, role: &str, content: &str) -> MessageRow {
        MessageRow {
            call_id: call.to_owned(),
            choice,
            role: role.to_owned(),
            content: Some(content.to_owned()),
            ..MessageRow::default()
        }
    }

    #[test]
    fn a_turn_follows_the_answer_that_it_goes_on_from() {
        let mut lines = SessionLines::new(&[]);
        lines.parents.insert(("b".to_owned(), 0), ("a".to_owned(), 0));
        lines.parents.insert(("c".to_owned(), 0), ("a".to_owned(), 0));
        let found = lines.of(&[
            row("a", None, "user", "one"),
            row("a", Some(0), "assistant", "two"),
            row("b", None, "user", "three"),
            row("b", Some(0), "assistant", "four"),
            row("b", Some(1), "assistant", "or five"),
            row("c", None, "user", "again"),
        ]);
        let parent = |at: usize| found[at]["parentId"].clone();
        let id = |at: usize| found[at]["id"].clone();
        assert_eq!((parent(0), parent(1)), (Value::Null, id(0)));
        assert_eq!((parent(2), parent(3), parent(4)), (id(1), id(2), id(2)));
        assert_eq!(parent(5), id(1));
    }

    #[test]
    fn a_tool_call_and_its_result_have_the_form_that_viewers_read() {
        let call = r#"[{"id":"c1","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}}]"#;
        let asked = MessageRow {
            tool_calls: Some(call.to_owned()),
            reasoning: Some("look".to_owned()),
            ..row("a", Some(0), "assistant", "")
        };
        let result =
            MessageRow { tool_call_id: Some("c1".to_owned()), ..row("b", None, "tool", "a.txt") };
        let found = SessionLines::new(&[]).of(&[asked, result]);
        let blocks = &found[0]["message"]["content"];
        assert_eq!(blocks[0], json!({"type": "thinking", "thinking": "look"}));
        assert_eq!(blocks[1]["arguments"], json!({"command": "ls"}));
        assert_eq!(found[0]["message"]["stopReason"], "toolUse");
        assert_eq!(found[1]["message"]["role"], "toolResult");
        assert_eq!(found[1]["message"]["toolName"], "bash");
    }

    #[test]
    fn arguments_that_are_no_object_are_kept_in_one() {
        assert_eq!(arguments(&json!("[1")), json!({"arguments": "[1"}));
        assert_eq!(arguments(&json!("{\"a\":1}")), json!({"a": 1}));
        assert_eq!(arguments(&Value::Null), json!({}));
    }
}
