//! Tools, and the names that a chat server knows them by.
//!
//! Chat has functions only, in one flat list. A custom (freeform) tool becomes a function with
//! one text, `input`; a tool of a namespace gets vLLM's name for it, `namespace__name`. Tools
//! that the provider runs itself are left out: nobody behind a chat server would run them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::Untranslatable;

/// A tool as the agent knows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) custom: bool,
}

/// The agent's tools by their names on the chat wire.
#[derive(Debug, Default)]
pub(super) struct Tools(BTreeMap<String, Tool>);

impl Tools {
    /// The tools that `body` offers.
    pub(super) fn of(body: &Map<String, Value>) -> Self {
        Self(offers(body).into_iter().map(|offer| (offer.chat_name(), offer.tool)).collect())
    }

    /// The tool that the model called `name`; a function of that name when it was never offered.
    pub(super) fn called(&self, name: &str) -> Tool {
        let unknown = || Tool { name: name.to_owned(), ..Tool::default() };
        self.0.get(name).cloned().unwrap_or_else(unknown)
    }
}

/// The name of a tool on the chat wire.
pub(super) fn flat(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}__{name}"),
        _ => name.to_owned(),
    }
}

/// The arguments of the function that stands for a custom tool.
pub(super) fn custom_arguments(input: &str) -> String {
    json!({ "input": input }).to_string()
}

/// The input of a custom tool out of those arguments; what is no such JSON is taken as it is,
/// since a model may write the text straight away.
pub(super) fn custom_input(arguments: &str) -> String {
    let input = |value: Value| match value {
        Value::String(text) => Some(text),
        Value::Object(mut fields) => match fields.remove("input") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let read = serde_json::from_str(arguments).ok().and_then(input);
    read.unwrap_or_else(|| arguments.to_owned())
}

struct Offer<'a> {
    tool: Tool,
    fields: &'a Value,
}

impl Offer<'_> {
    fn chat_name(&self) -> String {
        flat(self.tool.namespace.as_deref(), &self.tool.name)
    }

    fn chat(&self) -> Value {
        let mut function = Map::from_iter([("name".to_owned(), json!(self.chat_name()))]);
        if self.tool.custom {
            function.insert("description".to_owned(), json!(self.description()));
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

    /// What a custom tool is for, with its grammar: chat has no other place to say it.
    fn description(&self) -> String {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let said = text(self.fields.get("description")).unwrap_or_default();
        let format = self.fields.get("format");
        let of = |key: &str| text(format.and_then(|format| format.get(key)));
        match (of("syntax"), of("definition")) {
            (Some(syntax), Some(definition)) => {
                format!("{said}\n\n`input` follows this {syntax} grammar:\n{definition}")
            }
            _ => said,
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
    fn list(of: Option<&Value>) -> impl Iterator<Item = &Value> {
        of.and_then(Value::as_array).into_iter().flatten()
    }
    let adds = |item: &&Value| {
        let kind = item.get("type").and_then(Value::as_str);
        matches!(kind, Some("additional_tools" | "tool_search_output"))
    };
    let added = list(body.get("input")).filter(adds).flat_map(|item| list(item.get("tools")));
    let mut offers: Vec<Offer<'_>> = Vec::new();
    for entry in list(body.get("tools")).chain(added) {
        let space = entry.get("type") == Some(&json!("namespace"));
        let namespace = entry.get("name").and_then(Value::as_str).filter(|_| space);
        let inner = list(if space { entry.get("tools") } else { None });
        for fields in inner.chain((!space).then_some(entry)) {
            if let Some(offer) = offer(namespace, fields)
                && offers.iter().all(|known| known.chat_name() != offer.chat_name())
            {
                offers.push(offer);
            }
        }
    }
    offers
}

fn offer<'a>(namespace: Option<&str>, fields: &'a Value) -> Option<Offer<'a>> {
    let custom = match fields.get("type")?.as_str()? {
        "function" => false,
        "custom" => true,
        _ => return None,
    };
    // Some agents send chat's nested form to either wire.
    let fields = fields.get("function").filter(|nested| nested.is_object()).unwrap_or(fields);
    let name = fields.get("name")?.as_str()?.to_owned();
    let tool = Tool { name, namespace: namespace.map(str::to_owned), custom };
    Some(Offer { tool, fields })
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
        Some(choice) => Some(choose(choice, &mut offers)?),
    };
    if offers.is_empty() {
        return Ok(());
    }
    let tools: Vec<Value> = offers.iter().map(Offer::chat).collect();
    chat.insert("tools".to_owned(), Value::Array(tools));
    let parallel = body.get("parallel_tool_calls").filter(|value| !value.is_null()).cloned();
    for (key, value) in [("tool_choice", choice), ("parallel_tool_calls", parallel)] {
        if let Some(value) = value {
            chat.insert(key.to_owned(), value);
        }
    }
    Ok(())
}

/// A choice that is an object: one tool, or some of them. Chat has no choice among some, so the
/// others are not offered.
fn choose(choice: &Value, offers: &mut Vec<Offer<'_>>) -> Result<Value, Untranslatable> {
    let text = |key: &str| choice.get(key).and_then(Value::as_str);
    match text("type") {
        Some("function" | "custom") => {
            let named = choice.get("function").filter(|nested| nested.is_object());
            let name = named.unwrap_or(choice).get("name").and_then(Value::as_str);
            let name = flat(text("namespace"), name.unwrap_or_default());
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        Some("allowed_tools") => {
            let allowed = choice.get("tools").and_then(Value::as_array);
            offers.retain(|offer| allowed.into_iter().flatten().any(|entry| allows(entry, offer)));
            Ok(json!(text("mode").unwrap_or("auto")))
        }
        kind => Err(Untranslatable(format!(
            "`tool_choice` asks for `{}`, which a chat server cannot run",
            kind.unwrap_or("an object without a type")
        ))),
    }
}

/// Whether an entry of the allowed tools is this one, or the namespace that it is of.
fn allows(entry: &Value, offer: &Offer<'_>) -> bool {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    if text("type") == Some("namespace") {
        return offer.tool.namespace.is_some() && text("name") == offer.tool.namespace.as_deref();
    }
    let named = entry.get("function").filter(|nested| nested.is_object()).unwrap_or(entry);
    let name = named.get("name").and_then(Value::as_str).unwrap_or_default();
    flat(text("namespace"), name) == offer.chat_name()
}
