//! Sampling parameters by name: which ones there are, which shape the distribution, and which
//! mask tokens.

use serde_json::Value;

use crate::dialect::Dialect;

/// The fields of a request that decide how tokens are drawn.
pub(crate) const NAMES: [&str; 49] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "response_format",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "dry_multiplier",
    "mirostat",
    "dynatemp_range",
    "adaptive_target",
    "repeat_penalty",
    "bad_words",
    "allowed_token_ids",
    "min_new_tokens",
    "structured_outputs",
    "structural_tag",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "regex",
    "ebnf",
    "grammar",
    "json_schema",
    "output_format",
    "output_config",
    "text",
    "thinking_token_budget",
    "tool_choice",
];

/// A parameter that shapes the distribution of the next token.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// The parameter removes tokens from the distribution, rather than reweighting all of them.
    pub(crate) truncates: bool,
    neutral: Neutral,
    is_known_to: fn(Dialect) -> bool,
}

/// The values with which a parameter does nothing.
enum Neutral {
    At(f64),
    AtMost(f64),
    AtLeast(f64),
}

const fn truncation(
    name: &'static str,
    neutral: Neutral,
    is_known_to: fn(Dialect) -> bool,
) -> Parameter {
    Parameter { name, truncates: true, neutral, is_known_to }
}

const fn reweighting(
    name: &'static str,
    neutral: Neutral,
    is_known_to: fn(Dialect) -> bool,
) -> Parameter {
    Parameter { name, truncates: false, neutral, is_known_to }
}

fn any(_: Dialect) -> bool {
    true
}

fn llamacpp(dialect: Dialect) -> bool {
    dialect == Dialect::Llamacpp
}

fn others(dialect: Dialect) -> bool {
    dialect != Dialect::Llamacpp
}

/// All parameters that shape the distribution. `top_k` is off at 0 on some servers and at -1 on
/// others.
pub(crate) const SHAPING: [Parameter; 15] = [
    reweighting("temperature", Neutral::At(1.0), any),
    truncation("top_p", Neutral::AtLeast(1.0), any),
    truncation("top_k", Neutral::AtMost(0.0), any),
    truncation("min_p", Neutral::AtMost(0.0), any),
    reweighting("presence_penalty", Neutral::At(0.0), any),
    reweighting("frequency_penalty", Neutral::At(0.0), any),
    reweighting("repetition_penalty", Neutral::At(1.0), others),
    reweighting("repeat_penalty", Neutral::At(1.0), llamacpp),
    truncation("typical_p", Neutral::AtLeast(1.0), llamacpp),
    truncation("top_n_sigma", Neutral::AtMost(0.0), llamacpp),
    truncation("xtc_probability", Neutral::AtMost(0.0), llamacpp),
    reweighting("dry_multiplier", Neutral::At(0.0), llamacpp),
    truncation("mirostat", Neutral::At(0.0), llamacpp),
    reweighting("dynatemp_range", Neutral::AtMost(0.0), llamacpp),
    truncation("adaptive_target", Neutral::AtMost(-f64::MIN_POSITIVE), llamacpp),
];

impl Parameter {
    /// Returns true if a server of `dialect` has this parameter.
    pub(crate) fn is_known_to(&self, dialect: Dialect) -> bool {
        (self.is_known_to)(dialect)
    }

    /// Returns true if the parameter does nothing at `value`.
    pub(crate) fn is_neutral(&self, value: &Value) -> bool {
        value.as_f64().is_some_and(|value| match self.neutral {
            Neutral::At(neutral) => value == neutral,
            Neutral::AtMost(neutral) => value <= neutral,
            Neutral::AtLeast(neutral) => value >= neutral,
        })
    }
}

/// Returns true if the parameter of this name shapes the distribution at `value`.
pub(crate) fn is_shaping(name: &str, value: &Value) -> bool {
    SHAPING.iter().any(|parameter| parameter.name == name && !parameter.is_neutral(value))
}

/// Fields that mask tokens if they are there.
const MASKS_IF_PRESENT: [&str; 17] = [
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
/// Fields that mask tokens, or move single ones, if they are not empty.
const MASKS_IF_FILLED: [&str; 2] = ["bad_words", "logit_bias"];
/// Fields that mask the end token if they are above zero.
const MASKS_IF_POSITIVE: [&str; 2] = ["min_new_tokens", "min_tokens"];

/// The names of the fields of `body`, on any wire, that mask tokens. A field that the dialect may
/// not know counts as known.
pub(crate) fn masks(dialect: Option<Dialect>, body: &Value) -> Vec<&'static str> {
    let mut found = Vec::new();
    add_masks(&mut found, body, &MASKS_IF_PRESENT, is_not_false);
    add_masks(&mut found, body, &MASKS_IF_FILLED, is_filled);
    add_masks(&mut found, body, &MASKS_IF_POSITIVE, is_positive);

    // A grammar enforces output formats and forced tool calls. Each wire has its own place.
    for (name, inner) in
        [("response_format", None), ("text", Some("format")), ("output_config", Some("format"))]
    {
        let value = body.get(name);
        let format = value.and_then(|value| inner.map_or(Some(value), |inner| value.get(inner)));
        if format.is_some_and(is_structured) {
            found.push(name);
        }
    }
    if body.get("tool_choice").is_some_and(forces_a_call) {
        found.push("tool_choice");
    }
    if body.get("tool_choice") != Some(&Value::from("none")) && has_strict_tool(body) {
        found.push("tools");
    }

    // For llama.cpp this is a bias against every end token.
    if dialect == Some(Dialect::Llamacpp) && body.get("ignore_eos") == Some(&Value::Bool(true)) {
        found.push("ignore_eos");
    }
    found
}

/// Adds those `names` whose values mask tokens by `test`.
fn add_masks(
    found: &mut Vec<&'static str>,
    body: &Value,
    names: &[&'static str],
    test: fn(&Value) -> bool,
) {
    found.extend(names.iter().filter(|name| {
        let value = body.get(**name).filter(|value| !value.is_null());
        value.is_some_and(test)
    }));
}

fn is_not_false(value: &Value) -> bool {
    value != false
}

fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_none_or(|value| value > 0.0)
}

/// Returns true if an output format is more than plain text.
fn is_structured(format: &Value) -> bool {
    !format.is_null() && format.get("type").and_then(Value::as_str) != Some("text")
}

/// Returns true if a grammar enforces the schema of a tool.
fn has_strict_tool(body: &Value) -> bool {
    let tools = body.get("tools").and_then(Value::as_array);
    tools.into_iter().flatten().any(|tool| {
        let strict = tool.get("strict").or_else(|| tool.pointer("/function/strict"));
        strict == Some(&Value::Bool(true))
    })
}

/// Returns true if this `tool_choice` makes the model call a tool.
fn forces_a_call(choice: &Value) -> bool {
    let mode = choice.as_str().or_else(|| choice.get("type")?.as_str());
    !choice.is_null() && !matches!(mode, Some("auto" | "none"))
}
