//! `tools` and `tool_choice`: which calls a reply may or must make.
//!
//! Where it must, the reply is held to a grammar: thoughts if the model has any, then calls in the
//! words in which its chat template shows them, with arguments of the tools' own schemas. So what
//! is sampled is what the model was trained to write, and is read like every other reply.

use std::sync::Arc;

use serde_json::{Value, json};
use template::{Tokenizer, ToolFormat};

use super::error::ApiError;
use super::fields::Fields;
use super::form::compile;
use super::speech::{Calling, ToolUse};
use crate::Card;
use crate::grammar::{Form, Grammar};

const CHOICE: &str = "tool_choice";

/// What a request wants of its tools.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolChoice {
    /// How replies are read.
    pub(super) reading: ToolUse,
    /// The calls that a reply must be made of.
    must: Option<Must>,
}

/// At least one call of one of these tools, or just one.
#[derive(Clone, Debug, PartialEq)]
struct Must {
    format: ToolFormat,
    /// Names and the schemas of arguments.
    tools: Vec<(String, Value)>,
    only_one: bool,
    calling: Calling,
}

impl ToolChoice {
    /// Reads the fields of a request.
    pub(super) fn parse(fields: &Fields, card: &Card) -> Result<ToolChoice, ApiError> {
        let tools = tools(fields)?;
        let one = !fields.flag("parallel_tool_calls", true)?;
        let reading = match card.tool_format {
            None => ToolUse::Off,
            Some(format) if one => ToolUse::One(format),
            Some(format) => ToolUse::Many(format),
        };
        let may = |reading| Ok(ToolChoice { reading, must: None });
        let Some(choice) = fields.get(CHOICE) else {
            return may(if tools.is_empty() { ToolUse::Off } else { reading });
        };
        if choice == "none" {
            return may(ToolUse::Off);
        }
        if tools.is_empty() {
            return Err(ApiError::bad(CHOICE, "can only be given together with `tools`"));
        }
        if choice == "auto" {
            return may(reading);
        }
        let named = named(choice, &tools)?;
        let Some(format) = card.tool_format else {
            let message = "other than \"auto\" and \"none\" cannot be used: the model's chat \
                           template shows no form of calls that is known here";
            return Err(ApiError::bad(CHOICE, message));
        };
        let calling = if named.is_some() { Calling::Named } else { Calling::Required };
        let only_one = one || calling == Calling::Named;
        let tools = named.map_or(tools, |tool| vec![tool]);
        Ok(ToolChoice { reading, must: Some(Must { format, tools, only_one, calling }) })
    }

    /// Whether it is left to the model to call.
    pub(super) fn calling(&self) -> Calling {
        self.must.as_ref().map_or(Calling::Free, |must| must.calling)
    }

    /// The grammar of a reply to `prompt` that must call, given the one that the request prescribes
    /// by other fields.
    pub(super) fn grammar(
        &self,
        card: &Card,
        prompt: &str,
        other: Option<Arc<Grammar>>,
    ) -> Result<Option<Arc<Grammar>>, ApiError> {
        let Some(must) = &self.must else { return Ok(other) };
        if other.is_some() {
            let message = "prescribes tool calls, and another field prescribes another form";
            return Err(ApiError::bad(CHOICE, message));
        }
        let rules = must.rules(&card.tokenizer, card.thinks.then_some(prompt));
        compile(card, CHOICE, Form::Rules(rules)).map(Some)
    }
}

/// Names and the schemas of arguments of the tools of a request.
fn tools(fields: &Fields) -> Result<Vec<(String, Value)>, ApiError> {
    let Some(list) = fields.list("tools")? else { return Ok(Vec::new()) };
    if list.is_empty() {
        return Err(ApiError::bad("tools", "must not be empty; leave it out instead"));
    }
    let tool = |(index, tool): (usize, &Value)| {
        let function = &tool["function"];
        let wrong = |what: &str| ApiError::bad("tools", format!("[{index}].function.{what}"));
        let name = function["name"].as_str().ok_or_else(|| wrong("name must be a string"))?;
        match &function["parameters"] {
            Value::Null => Ok((name.to_owned(), json!({"type": "object"}))),
            schema @ Value::Object(_) => Ok((name.to_owned(), schema.clone())),
            _ => Err(wrong("parameters must be an object")),
        }
    };
    list.iter().enumerate().map(tool).collect()
}

/// The tool that is chosen by name; none where any will do.
fn named(choice: &Value, tools: &[(String, Value)]) -> Result<Option<(String, Value)>, ApiError> {
    if choice == "required" {
        return Ok(None);
    }
    let name = choice.pointer("/function/name").and_then(Value::as_str);
    let (Some(name), true) = (name, choice["type"] == "function") else {
        let message = "must be \"none\", \"auto\", \"required\" or the name of a function in \
                       {\"type\": \"function\", \"function\": {\"name\": ...}}";
        return Err(ApiError::bad(CHOICE, message));
    };
    let found = tools.iter().find(|(other, _)| other == name).cloned();
    let missing = || ApiError::bad(CHOICE, format!("names `{name}`, which is not in `tools`"));
    found.map(Some).ok_or_else(missing)
}

impl Must {
    /// The grammar in Lark's notation. Thoughts come first where there is a `prompt`, which may
    /// have opened them.
    fn rules(&self, tokenizer: &Tokenizer, prompt: Option<&str>) -> String {
        let tag = |text: &str| tag(tokenizer, text);
        let (key, open, close, between) = match self.format {
            ToolFormat::Hermes => {
                let (open, close) = (tag("<tool_call>"), tag("</tool_call>"));
                ("arguments", format!("{open} \"\\n\"?"), format!("\"\\n\"? {close}"), "\"\\n\"?")
            }
            ToolFormat::Llama3Json => ("parameters", String::new(), String::new(), "\"; \""),
        };
        let mut rules = String::from("start: ");
        let opened = prompt.map(|prompt| prompt.trim_end().ends_with("<think>"));
        rules.push_str(match opened {
            None => "",
            Some(true) => "thought ",
            Some(false) => "(open_thought thought)? ",
        });
        rules.push_str(if self.only_one { "call\n" } else { "call (between call)*\n" });
        if opened.is_some() {
            rules.push_str(&format!("open_thought: {}\nBLANK: /\\n*/\n", tag("<think>")));
            // No text of a lexeme reaches over a special token; others have to be looked out for.
            let close = tag("</think>");
            rules.push_str(&match close.starts_with('<') {
                true => format!("thought: THOUGHT {close} BLANK\nTHOUGHT: /(?s:.*)/\n"),
                false => format!("thought: thoughts BLANK\nthoughts[suffix={close}]: /(?s:.*)/\n"),
            });
        }
        rules.push_str(&format!("between: {between}\n"));
        let calls = (0..self.tools.len()).map(|index| format!("call_{index}"));
        let calls: Vec<String> = calls.collect();
        rules.push_str(&format!("call: {open} ({}) {close}\n", calls.join(" | ")));
        for (index, (name, schema)) in self.tools.iter().enumerate() {
            let head = format!("{{\"name\": {}, \"{key}\": ", Value::from(name.as_str()));
            let head = Value::from(head);
            rules.push_str(&format!("call_{index}: {head} arguments_{index} \"}}\"\n"));
            rules.push_str(&format!("arguments_{index}: %json {schema}\n"));
        }
        rules
    }
}

/// A tag in Lark's notation: the special token if it is one, else its text.
fn tag(tokenizer: &Tokenizer, text: &str) -> String {
    let special = tokenizer.special(text);
    special.map_or_else(|| Value::from(text).to_string(), |id| format!("<[{id}]>"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::grammar::Grammars;

    fn must(format: ToolFormat, only_one: bool) -> Must {
        let schema = json!({"type": "object", "properties": {"w": {"enum": ["b", "c"]}},
            "required": ["w"], "additionalProperties": false});
        let tools = vec![("f".to_owned(), schema.clone()), ("g\"".to_owned(), schema)];
        Must { format, tools, only_one, calling: Calling::Required }
    }

    /// Whether a reply may be this text, and then end.
    fn fits(must: &Must, prompt: Option<&str>, text: &str) -> bool {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
        let tokenizer = Tokenizer::load(&folder).unwrap();
        let (vocab, end) = (tokenizer.size(), tokenizer.id("<|im_end|>").unwrap());
        let grammars = Grammars::new(&tokenizer, vocab, &[end]).unwrap();
        let rules = Form::Rules(must.rules(&tokenizer, prompt));
        let mut grammar = grammars.compile(rules).unwrap();
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
        let (one, many) = (must(ToolFormat::Hermes, true), must(ToolFormat::Hermes, false));
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
        let llama = must(ToolFormat::Llama3Json, false);
        let call = "{\"name\": \"f\", \"parameters\": {\"w\": \"b\"}}";
        assert!(fits(&llama, None, call));
        assert!(fits(&llama, None, &format!("{call}; {call}")));
        assert!(!fits(&llama, None, &call.replace("parameters", "arguments")));
    }

    #[test]
    fn thoughts_may_come_first() {
        let one = must(ToolFormat::Hermes, true);
        let thought = "\nIs 1 < 2 in <b>f</b>?\n</think>\n\n";
        let (closed, opened) = (Some("a\n"), Some("a\n<think>\n"));
        assert!(fits(&one, closed, F));
        assert!(fits(&one, closed, &format!("<think>{thought}{F}")));
        assert!(fits(&one, opened, &format!("{thought}{F}")));
        assert!(!fits(&one, closed, &format!("{thought}{F}")));
        assert!(!fits(&one, opened, F));
        assert!(!fits(&one, opened, &format!("{thought}Well. {F}")));
        assert!(!fits(&one, None, &format!("<think>{thought}{F}")));
    }
}
