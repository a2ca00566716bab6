//! `tools` and `tool_choice`: the calls that a reply may or must make.
//!
//! A reply that must call is held to a grammar: calls in the notation of the model's chat template,
//! with arguments of the tools' own schemas. The sampled text is therefore in the form that the
//! model was trained on, and is parsed like any other reply.

use serde_json::{Value, json};
use template::{Tokenizer, ToolFormat};

use super::message::{ToolDemand, ToolParsing};
use crate::grammar::{GrammarError, GrammarSpec, prepare_schema, tag};
use crate::info::ModelInfo;
use crate::serve::generation::PrescribedForm;
use crate::serve::http::{ApiError, Fields};

const CHOICE: &str = "tool_choice";

/// The tool settings of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolChoice {
    pub(super) parsing: ToolParsing,
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

        // Without a choice the model decides. Without tools it is not asked to, and text that looks
        // like a call stays text.
        let Some(choice) = fields.get(CHOICE) else {
            let parsing = if tools.is_empty() { ToolParsing::Off } else { parsing };
            return Ok(ToolChoice { parsing, required: None });
        };
        if choice == "none" {
            return Ok(ToolChoice { parsing: ToolParsing::Off, required: None });
        }
        if tools.is_empty() {
            return Err(ApiError::bad_field(CHOICE, "can only be given together with `tools`"));
        }
        if choice == "auto" {
            return Ok(ToolChoice { parsing, required: None });
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
        Ok(ToolChoice { parsing, required: Some(required) })
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
    let schema = match &function["parameters"] {
        Value::Null => json!({"type": "object"}),
        schema @ Value::Object(_) => schema.clone(),
        _ => return Err(wrong("parameters must be an object")),
    };
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
    /// The key of the arguments.
    arguments: &'static str,
}

impl CallNotation {
    fn new(format: ToolFormat, tokenizer: &Tokenizer) -> CallNotation {
        match format {
            ToolFormat::Hermes => CallNotation {
                open: format!("{} \"\\n\"?", tag(tokenizer, "<tool_call>")),
                close: format!("\"\\n\"? {}", tag(tokenizer, "</tool_call>")),
                separator: "\"\\n\"?",
                arguments: "arguments",
            },
            ToolFormat::Llama3Json => CallNotation {
                open: String::new(),
                close: String::new(),
                separator: "\"; \"",
                arguments: "parameters",
            },
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
        for (index, Tool { name, schema }) in self.tools.iter().enumerate() {
            let name = Value::from(name.as_str());
            let head = Value::from(format!("{{\"name\": {name}, \"{arguments}\": "));
            rules.push_str(&format!("call_{index}: {head} arguments_{index} \"}}\"\n"));
            let schema = prepare_schema(schema)?;
            rules.push_str(&format!("arguments_{index}: %json {schema}\n"));
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::grammar::{GrammarCompiler, LeadingThought};

    fn required(format: ToolFormat, only_one: bool) -> RequiredCalls {
        let schema = json!({"type": "object", "properties": {"w": {"enum": ["b", "c"]}},
            "required": ["w"], "additionalProperties": false});
        let tool = |name: &str| Tool { name: name.to_owned(), schema: schema.clone() };
        let tools = vec![tool("f"), tool("g\"")];
        RequiredCalls { format, tools, only_one, demand: ToolDemand::Required }
    }

    /// True if a reply to `prompt`, that of a model that reasons, may be this text, and then end.
    fn fits(calls: &RequiredCalls, prompt: Option<&str>, text: &str) -> bool {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
        let tokenizer = Tokenizer::load(&folder).unwrap();
        let (vocab, end) = (tokenizer.size(), tokenizer.id("<|im_end|>").unwrap());
        let grammars = GrammarCompiler::new(&tokenizer, vocab, &[end]).unwrap();
        let thought = LeadingThought::of(prompt.is_some(), prompt.unwrap_or_default());
        let mut grammar = grammars
            .compile(GrammarSpec::Calls(calls.rules(&tokenizer).unwrap()), thought)
            .unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        ids.into_iter().chain([end]).all(|id| {
            let mut logits = vec![0.0; vocab];
            grammar.mask(&mut logits);
            grammar.push(id);
            logits[id as usize] == 0.0
        })
    }

    const F: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"w\": \"b\"}}</tool_call>";
    const G: &str =
        "<tool_call>\n{\"name\": \"g\\\"\", \"arguments\": {\"w\": \"c\"}}\n</tool_call>";

    #[test]
    fn calls_are_in_the_words_of_the_template() {
        let (one, many) = (required(ToolFormat::Hermes, true), required(ToolFormat::Hermes, false));
        for text in [F, G] {
            assert!(fits(&one, None, text), "{text}");
        }
        assert!(fits(&many, None, &format!("{F}\n{G}{F}")));
        for text in [
            "",
            "Well.",
            &format!("Well. {F}"),
            &format!("{F}{G}"),
            &F.replace("\"f\"", "\"h\""),
            &F.replace("\"b\"", "\"d\""),
            &F.replace("</tool_call>", ""),
        ] {
            assert!(!fits(&one, None, text), "{text}");
        }
        let llama = required(ToolFormat::Llama3Json, false);
        let call = "{\"name\": \"f\", \"parameters\": {\"w\": \"b\"}}";
        assert!(fits(&llama, None, call));
        assert!(fits(&llama, None, &format!("{call}; {call}")));
        assert!(!fits(&llama, None, &call.replace("parameters", "arguments")));
    }

    #[test]
    fn thoughts_may_come_first() {
        let one = required(ToolFormat::Hermes, true);
        let thought = "\nIs 1 < 2 in <b>f</b>?\n</think>\n\n";
        let (closed, opened) = (Some("a\n"), Some("a\n<think>\n"));
        assert!(fits(&one, closed, F));
        assert!(fits(&one, closed, &format!("<think>{thought}{F}")));
        assert!(fits(&one, opened, &format!("{thought}{F}")));
        assert!(!fits(&one, closed, &format!("{thought}{F}")));
        assert!(!fits(&one, opened, F));
        assert!(!fits(&one, opened, &format!("{thought}Well. {F}")));
        assert!(!fits(&one, None, &format!("<think>{thought}{F}")));
        let over = Some("a\n<think>\n\n</think>\n\n");
        assert!(fits(&one, over, F));
        assert!(!fits(&one, over, &format!("<think>{thought}{F}")));
        assert!(!fits(&one, over, &format!("\n{F}")));
    }
}
