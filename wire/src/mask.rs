//! Masks: fields of a request that keep tokens from being sampled, or move single ones.

use serde_json::Value;

use crate::dialect::Dialect;

/// Fields that mask by being there.
const PRESENT: [&str; 17] = [
    "allowed_token_ids",
    "custom_logit_processor",
    "ebnf",
    "grammar",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_json_object",
    "guided_regex",
    "json_schema",
    "logits_processors",
    "output_format",
    "regex",
    "structural_tag",
    "structured_outputs",
    "thinking_token_budget",
];
/// Fields that mask where they hold something.
const FILLED: [&str; 2] = ["bad_words", "logit_bias"];
/// Fields that mask where they are above zero.
const ABOVE_ZERO: [&str; 2] = ["min_new_tokens", "min_tokens"];

/// The names of the fields of `body` that mask tokens, on any wire. A server of a dialect that
/// does not know a field is taken to know it.
pub(crate) fn masks(dialect: Option<Dialect>, body: &Value) -> Vec<&'static str> {
    let there = |name: &str| body.get(name).filter(|value| !value.is_null());
    let mut found: Vec<&'static str> = Vec::new();
    found.extend(PRESENT.into_iter().filter(|name| there(name).is_some_and(|v| v != false)));
    found.extend(FILLED.into_iter().filter(|name| there(name).is_some_and(is_filled)));
    found.extend(ABOVE_ZERO.into_iter().filter(|name| there(name).is_some_and(is_above_zero)));
    let format = |value: Option<&Value>| value.is_some_and(is_form);
    if format(body.get("response_format")) {
        found.push("response_format");
    }
    if format(body.pointer("/text/format")) {
        found.push("text");
    }
    if format(body.pointer("/output_config/format")) {
        found.push("output_config");
    }
    if body.get("tool_choice").is_some_and(is_forced) {
        found.push("tool_choice");
    }
    if body.get("tool_choice") != Some(&Value::from("none")) && has_strict(body) {
        found.push("tools");
    }
    // There it is a bias against every end of turn.
    if dialect == Some(Dialect::Llamacpp) && there("ignore_eos") == Some(&Value::Bool(true)) {
        found.push("ignore_eos");
    }
    found
}

fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

fn is_above_zero(value: &Value) -> bool {
    value.as_f64().is_none_or(|value| value > 0.0)
}

/// Whether a format is more than plain text.
fn is_form(format: &Value) -> bool {
    !format.is_null() && format.get("type").and_then(Value::as_str) != Some("text")
}

/// Whether the arguments of a tool are held to its schema.
fn has_strict(body: &Value) -> bool {
    let is_strict = |tool: &Value| {
        let own = tool.get("strict").or_else(|| tool.pointer("/function/strict"));
        own == Some(&Value::Bool(true))
    };
    body.get("tools").and_then(Value::as_array).is_some_and(|tools| tools.iter().any(is_strict))
}

/// Whether a call of a tool is made sure of, by a grammar.
fn is_forced(choice: &Value) -> bool {
    let word = choice.as_str().or_else(|| choice.get("type")?.as_str());
    !choice.is_null() && !matches!(word, Some("auto" | "none"))
}
