//! Tools, and the names by which a chat server knows them.
//!
//! Chat has functions only, in one flat list. A custom (freeform) tool becomes a function with one
//! text parameter, `input`. A tool of a namespace gets vLLM's name for it, `namespace__name`. Tools
//! that the provider runs itself are left out: a chat server does not run them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::chat::Untranslatable;
use crate::json::inner_tree;

/// A tool as the agent knows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) is_custom: bool,
}

/// The agent's tools by their names on the chat wire.
#[derive(Debug, Default)]
pub(super) struct Tools(BTreeMap<String, Tool>);

impl Tools {
    /// The tools that `body` offers.
    pub(super) fn of(body: &Map<String, Value>) -> Self {
        Self(offers(body).into_iter().map(|offer| (offer.chat_name(), offer.tool)).collect())
    }

    /// The tool that the model called `name`; a function of that name if there is no such tool.
    pub(super) fn called(&self, name: &str) -> Tool {
        let known = self.0.get(name).cloned();
        known.unwrap_or_else(|| Tool { name: name.to_owned(), ..Tool::default() })
    }
}

/// The name of a tool on the chat wire.
pub(super) fn chat_tool_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}__{name}"),
        _ => name.to_owned(),
    }
}

/// The arguments of the function that stands for a custom tool.
pub(super) fn custom_arguments(input: &str) -> String {
    json!({ "input": input }).to_string()
}

/// The input of a custom tool, taken out of the function's arguments. A model may write the input
/// without the JSON around it, so any other text is the input itself.
pub(super) fn custom_input(arguments: &str) -> String {
    match inner_tree(arguments) {
        Some(Value::String(text)) => text,
        Some(Value::Object(mut fields)) => match fields.remove("input") {
            Some(Value::String(text)) => text,
            _ => arguments.to_owned(),
        },
        _ => arguments.to_owned(),
    }
}

/// A tool with the fields that describe it.
struct Offer<'a> {
    tool: Tool,
    fields: &'a Value,
}

impl<'a> Offer<'a> {
    /// Reads a function or a custom tool; `None` for any other entry.
    fn read(namespace: Option<&str>, entry: &'a Value) -> Option<Self> {
        let is_custom = match text(entry, "type")? {
            "function" => false,
            "custom" => true,
            _ => return None,
        };
        let fields = function_of(entry);
        let name = text(fields, "name")?.to_owned();
        let tool = Tool { name, namespace: namespace.map(str::to_owned), is_custom };
        Some(Self { tool, fields })
    }

    fn chat_name(&self) -> String {
        chat_tool_name(self.tool.namespace.as_deref(), &self.tool.name)
    }

    fn chat_tool(&self) -> Value {
        let mut function = Map::from_iter([("name".to_owned(), json!(self.chat_name()))]);
        if self.tool.is_custom {
            function.insert("description".to_owned(), json!(self.custom_description()));
            function.insert("parameters".to_owned(), custom_parameters());
        } else {
            for key in ["description", "parameters", "strict"] {
                if let Some(value) = self.fields.get(key).filter(|value| !value.is_null()) {
                    function.insert(key.to_owned(), value.clone());
                }
            }
        }
        json!({ "type": "function", "function": function })
    }

    /// The description of a custom tool with its grammar, which has no other place in chat.
    fn custom_description(&self) -> String {
        let description = text(self.fields, "description").unwrap_or_default();
        let format = self.fields.get("format").unwrap_or(&Value::Null);
        match (text(format, "syntax"), text(format, "definition")) {
            (Some(syntax), Some(definition)) => {
                format!("{description}\n\n`input` follows this {syntax} grammar:\n{definition}")
            }
            _ => description.to_owned(),
        }
    }
}

fn custom_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "input": { "type": "string", "description": "The whole input of the tool, as text." },
        },
        "required": ["input"],
        "additionalProperties": false,
    })
}

/// The functions and custom tools on offer, each name once: those of the request itself, then
/// those that an item of the input adds.
fn offers(body: &Map<String, Value>) -> Vec<Offer<'_>> {
    let added = list(body.get("input"))
        .filter(|item| adds_tools(item))
        .flat_map(|item| list(item.get("tools")));
    let mut offers: Vec<Offer<'_>> = Vec::new();

    for entry in list(body.get("tools")).chain(added) {
        let is_namespace = text(entry, "type") == Some("namespace");
        let (namespace, tools) = match is_namespace {
            true => (text(entry, "name"), list(entry.get("tools")).collect()),
            false => (None, vec![entry]),
        };
        for offer in tools.into_iter().filter_map(|tool| Offer::read(namespace, tool)) {
            if offers.iter().all(|known| known.chat_name() != offer.chat_name()) {
                offers.push(offer);
            }
        }
    }
    offers
}

/// Returns true for an item of the input that offers more tools.
fn adds_tools(item: &Value) -> bool {
    matches!(text(item, "type"), Some("additional_tools" | "tool_search_output"))
}

/// Puts the tools of `body` and the choice among them into `chat`. Without tools there is no
/// choice either: chat servers refuse one.
pub(super) fn put(
    body: &Map<String, Value>,
    chat: &mut Map<String, Value>,
) -> Result<(), Untranslatable> {
    let mut offers = offers(body);
    let choice = match body.get("tool_choice") {
        None | Some(Value::Null) => None,
        Some(Value::String(mode)) => Some(json!(mode)),
        Some(choice) => Some(chat_choice(choice, &mut offers)?),
    };
    if offers.is_empty() {
        return Ok(());
    }

    let tools: Vec<Value> = offers.iter().map(Offer::chat_tool).collect();
    chat.insert("tools".to_owned(), Value::Array(tools));
    if let Some(choice) = choice {
        chat.insert("tool_choice".to_owned(), choice);
    }
    if let Some(parallel) = body.get("parallel_tool_calls").filter(|value| !value.is_null()) {
        chat.insert("parallel_tool_calls".to_owned(), parallel.clone());
    }
    Ok(())
}

/// The tools of a recorded body, less those that its choice rules out.
pub(super) fn recorded(body: &Map<String, Value>) -> Vec<Value> {
    let mut offers = offers(body);
    if let Some(choice) = body.get("tool_choice") {
        // A choice of a tool that chat does not have rules out nothing.
        let _ = chat_choice(choice, &mut offers);
    }
    offers.iter().map(Offer::chat_tool).collect()
}

/// The choice of one tool, or of some. Chat has no choice of some, so the others are removed from
/// `offers`.
fn chat_choice(choice: &Value, offers: &mut Vec<Offer<'_>>) -> Result<Value, Untranslatable> {
    match text(choice, "type") {
        Some("function" | "custom") => {
            let own_name = text(function_of(choice), "name").unwrap_or_default();
            let name = chat_tool_name(text(choice, "namespace"), own_name);
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        Some("allowed_tools") => {
            offers.retain(|offer| list(choice.get("tools")).any(|entry| allows(entry, offer)));
            Ok(json!(text(choice, "mode").unwrap_or("auto")))
        }
        kind => Err(Untranslatable(format!(
            "`tool_choice` asks for `{}`, which a chat server cannot run",
            kind.unwrap_or("an object without a type")
        ))),
    }
}

/// Returns true if an entry of the allowed tools names this tool or its namespace.
fn allows(entry: &Value, offer: &Offer<'_>) -> bool {
    if text(entry, "type") == Some("namespace") {
        return offer.tool.namespace.is_some()
            && text(entry, "name") == offer.tool.namespace.as_deref();
    }
    let name = text(function_of(entry), "name").unwrap_or_default();
    chat_tool_name(text(entry, "namespace"), name) == offer.chat_name()
}

/// The fields of a function: some agents send chat's nested form on either wire.
fn function_of(entry: &Value) -> &Value {
    entry.get("function").filter(|nested| nested.is_object()).unwrap_or(entry)
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}
