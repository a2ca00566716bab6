//! Renders conversations with chat templates, for comparison with another renderer.
//!
//! Reads from the standard input a list of `{"template", "messages", "tools", "documents",
//! "add_generation_prompt", "variables", "special_tokens", "now", "open"}` and writes a list of
//! `{"text"}` or `{"error"}`. `tests/python/oracle/templates.py` runs it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::io::{Read, Write};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use template::{ChatInput, ChatTemplate, prepare};

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    add_generation_prompt: bool,
    variables: Map<String, Value>,
    special_tokens: Map<String, Value>,
    now: Option<i64>,
    /// True if the prompt ends inside the last message.
    open: bool,
}

/// The templates that were parsed, by their text and the special tokens.
type Parsed = HashMap<(String, String), ChatTemplate>;

fn render(case: &Case, parsed: &mut Parsed) -> Result<String, Box<dyn Error>> {
    let key = (case.template.clone(), serde_json::to_string(&case.special_tokens)?);
    let template = match parsed.entry(key) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => {
            new.insert(ChatTemplate::new(&case.template, case.special_tokens.clone())?)
        }
    };
    let keeps_parts = template.reads_parts(case.tools.is_some());
    let messages = prepare(&case.messages, keeps_parts)?;
    let input = ChatInput {
        messages: &messages,
        tools: case.tools.as_deref(),
        documents: case.documents.as_deref(),
        add_generation_prompt: case.add_generation_prompt,
        variables: Some(&case.variables),
        now: case.now,
    };
    let text =
        if case.open { template.render_continuation(&input) } else { template.render(&input) };
    Ok(text?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let cases: Vec<Case> = serde_json::from_str(&text)?;
    let mut parsed = Parsed::new();
    let rendered = cases.iter().map(|case| match render(case, &mut parsed) {
        Ok(text) => json!({"text": text}),
        Err(error) => json!({"error": error.to_string()}),
    });
    let rendered: Vec<Value> = rendered.collect();
    std::io::stdout().write_all(serde_json::to_string(&rendered)?.as_bytes())?;
    Ok(())
}
