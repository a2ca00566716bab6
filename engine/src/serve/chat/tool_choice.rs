//! `tools` and `tool_choice`: the calls that a reply may or must make.
//!
//! A reply that must call is held to a grammar: calls in the notation of the model's chat template,
//! with arguments of the tools' own schemas. The sampled text is therefore in the form that the
//! model was trained on, and is parsed like any other reply.

mod tagged;

use std::sync::Arc;

use serde_json::{Value, json};
use template::json::exact;
use template::{Tokenizer, ToolFormat, ToolTypes};

use super::message::{ToolDemand, ToolParsing};
use crate::grammar::{GrammarError, GrammarSpec, prepare_schema, tag};
use crate::info::ModelInfo;
use crate::serve::calls::{ApiError, Fields};
use crate::serve::generation::PrescribedForm;

const CHOICE: &str = "tool_choice";

/// The tool settings of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolChoice {
    pub(super) parsing: ToolParsing,
    /// The types of the arguments.
    pub(super) types: Arc<ToolTypes>,
    /// The calls that a reply must be made of.
    required: Option<RequiredCalls>,
}

/// A tool that a reply may call.
#[derive(Clone, Debug, PartialEq)]
struct Tool {
    name: String,
    /// The JSON schema of its arguments.
    schema: Value,
}

/// The demand for at least one call of one of these tools.
#[derive(Clone, Debug, PartialEq)]
struct RequiredCalls {
    format: ToolFormat,
    tools: Vec<Tool>,
    /// True if there may be no second call.
    only_one: bool,
    demand: ToolDemand,
}

impl ToolChoice {
    /// Reads the tool settings of a request.
    pub(super) fn parse(fields: &Fields, model: &ModelInfo) -> Result<ToolChoice, ApiError> {
        let tools = parse_tools(fields)?;
        let only_one = !fields.flag("parallel_tool_calls", true)?;
        let parsing = match model.tool_format {
            None => ToolParsing::Off,
            Some(format) if only_one => ToolParsing::First(format),
            Some(format) => ToolParsing::All(format),
        };

        let types = tools.iter().map(|tool| (tool.name.as_str(), &tool.schema));
        let types = Arc::new(ToolTypes::of(types));

        // Without a choice the model decides. Without tools it is not asked to, and text that looks
        // like a call stays text.
        let Some(choice) = fields.get(CHOICE) else {
            let parsing = if tools.is_empty() { ToolParsing::Off } else { parsing };
            return Ok(ToolChoice { parsing, types, required: None });
        };
        if choice == "none" {
            return Ok(ToolChoice { parsing: ToolParsing::Off, types, required: None });
        }
        if tools.is_empty() {
            return Err(ApiError::bad_field(CHOICE, "can only be given together with `tools`"));
        }
        if choice == "auto" {
            return Ok(ToolChoice { parsing, types, required: None });
        }

        // A grammar needs the notation of calls; where the template shows none, no call can be
        // demanded.
        let named = find_named(choice, &tools)?;
        let Some(format) = model.tool_format else {
            let message = "other than \"auto\" and \"none\" cannot be used: the model's chat \
                           template shows no form of calls that is known here";
            return Err(ApiError::bad_field(CHOICE, message));
        };
        let required = match named {
            Some(tool) => RequiredCalls {
                format,
                tools: vec![tool],
                only_one: true,
                demand: ToolDemand::Named,
            },
            None => RequiredCalls { format, tools, only_one, demand: ToolDemand::Required },
        };
        Ok(ToolChoice { parsing, types, required: Some(required) })
    }

    /// Returns the calls that the request demands.
    pub(super) fn demand(&self) -> ToolDemand {
        self.required.as_ref().map_or(ToolDemand::Optional, |required| required.demand)
    }

    /// Returns the form of the replies: that of the required calls, or `other`, the one that the
    /// request prescribes by other fields.
    ///
    /// # Errors
    /// 400 if there are both.
    pub(super) fn form(
        &self,
        model: &ModelInfo,
        other: Option<PrescribedForm>,
    ) -> Result<Option<PrescribedForm>, ApiError> {
        let Some(required) = &self.required else { return Ok(other) };
        if other.is_some() {
            let message = "prescribes tool calls, and another field prescribes another form";
            return Err(ApiError::bad_field(CHOICE, message));
        }
        let rules = required
            .rules(&model.tokenizer)
            .map_err(|error| ApiError::bad_field(CHOICE, format!("cannot be used: {error}")))?;
        Ok(Some(PrescribedForm { field: CHOICE, form: GrammarSpec::Calls(rules) }))
    }
}

/// Reads `tools`.
fn parse_tools(fields: &Fields) -> Result<Vec<Tool>, ApiError> {
    let Some(list) = fields.list("tools")? else { return Ok(Vec::new()) };
    if list.is_empty() {
        return Err(ApiError::bad_field("tools", "must not be empty; leave it out instead"));
    }
    list.iter().enumerate().map(|(index, tool)| parse_tool(index, tool)).collect()
}

fn parse_tool(index: usize, tool: &Value) -> Result<Tool, ApiError> {
    let wrong = |what: &str| ApiError::bad_field("tools", format!("[{index}].function.{what}"));
    let function = &tool["function"];
    let name = function["name"].as_str().ok_or_else(|| wrong("name must be a string"))?;
    let mut schema = match &function["parameters"] {
        Value::Null => json!({"type": "object"}),
        schema @ Value::Object(_) => schema.clone(),
        _ => return Err(wrong("parameters must be an object")),
    };
    exact::round(&mut schema);
    Ok(Tool { name: name.to_owned(), schema })
}

/// Finds the tool that `tool_choice` names; none if any tool will do.
fn find_named(choice: &Value, tools: &[Tool]) -> Result<Option<Tool>, ApiError> {
    if choice == "required" {
        return Ok(None);
    }
    let name = choice.pointer("/function/name").and_then(Value::as_str);
    let (Some(name), true) = (name, choice["type"] == "function") else {
        let message = "must be \"none\", \"auto\", \"required\" or the name of a function in \
                       {\"type\": \"function\", \"function\": {\"name\": ...}}";
        return Err(ApiError::bad_field(CHOICE, message));
    };
    match tools.iter().find(|tool| tool.name == name) {
        Some(tool) => Ok(Some(tool.clone())),
        None => {
            let message = format!("names `{name}`, which is not in `tools`");
            Err(ApiError::bad_field(CHOICE, message))
        }
    }
}

/// The notation of one tool call, in Lark's notation of grammars.
struct CallNotation {
    open: String,
    close: String,
    /// The text between two calls.
    separator: &'static str,
    /// The key of the arguments; none if the call is in tags.
    arguments: Option<&'static str>,
}

impl CallNotation {
    fn new(format: ToolFormat, tokenizer: &Tokenizer) -> CallNotation {
        match format {
            ToolFormat::Hermes => Self::in_tags(tokenizer, "\"\\n\"?", Some("arguments")),
            ToolFormat::Qwen3Coder => Self::in_tags(tokenizer, "\"\\n\"", None),
            ToolFormat::Llama3Json => CallNotation {
                open: String::new(),
                close: String::new(),
                separator: "\"; \"",
                arguments: Some("parameters"),
            },
        }
    }
}

impl CallNotation {
    /// Calls between the tags that most models use, with the same newline inside and between.
    fn in_tags(
        tokenizer: &Tokenizer,
        newline: &'static str,
        arguments: Option<&'static str>,
    ) -> CallNotation {
        CallNotation {
            open: format!("{} {newline}", tag(tokenizer, "<tool_call>")),
            close: format!("{newline} {}", tag(tokenizer, "</tool_call>")),
            separator: newline,
            arguments,
        }
    }
}

impl RequiredCalls {
    /// Writes the grammar in Lark's notation.
    ///
    /// # Errors
    /// If a tool's schema cannot be used.
    fn rules(&self, tokenizer: &Tokenizer) -> Result<String, GrammarError> {
        let notation = CallNotation::new(self.format, tokenizer);
        let CallNotation { open, close, separator, arguments } = &notation;
        let calls = if self.only_one { "call" } else { "call (between call)*" };

        let mut rules = format!("start: {calls}\n");
        rules.push_str(&format!("between: {separator}\n"));
        let names: Vec<String> =
            (0..self.tools.len()).map(|index| format!("call_{index}")).collect();
        rules.push_str(&format!("call: {open} ({}) {close}\n", names.join(" | ")));

        // Each tool has a rule of its own, because its name decides the schema of the arguments.
        for (index, tool) in self.tools.iter().enumerate() {
            rules.push_str(&match arguments {
                Some(key) => json_rules(index, tool, key)?,
                None => tagged::rules(index, tool)?,
            });
        }
        if arguments.is_none() {
            rules.push_str(tagged::TEXT_RULES);
        }
        Ok(rules)
    }
}

/// Writes the rule `call_INDEX` of one tool whose call is an object with the arguments under `key`.
fn json_rules(index: usize, tool: &Tool, key: &str) -> Result<String, GrammarError> {
    let name = Value::from(tool.name.as_str());
    let head = Value::from(format!("{{\"name\": {name}, \"{key}\": "));
    let schema = prepare_schema(&tool.schema)?;
    Ok(format!(
        "call_{index}: {head} arguments_{index} \"}}\"\narguments_{index}: %json {schema}\n"
    ))
}

#[cfg(test)]
mod tests;
