//! Translation of `sampling_params` to the engine's own fields.

use serde_json::{Map, Value, json};

use crate::serve::calls::ApiError;

/// Fields of other names: SGLang's, and the engine's.
const RENAMED: [(&str, &str); 4] = [
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("no_stop_trim", "include_stop_str_in_output"),
    ("sampling_seed", "seed"),
];

/// Fields of the same name.
const SAME: [&str; 13] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "n",
    "logit_bias",
];

/// Fields that prescribe a form, and their names in `structured_outputs`.
const FORMS: [(&str, &str); 3] = [("json_schema", "json"), ("regex", "regex"), ("ebnf", "grammar")];

/// Fields without effect on the replies of this engine.
const IGNORED: [&str; 2] = ["spaces_between_special_tokens", "stream_interval"];

/// Tokens of a reply if the request sets no limit, as in SGLang.
const DEFAULT_MAX_TOKENS: u64 = 128;

/// Translates `sampling_params`.
///
/// # Errors
/// 400 for a second form, or a field without a counterpart that is set.
pub(super) fn translate(params: &Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let mut fields = Map::new();
    fields.insert("max_tokens".to_owned(), DEFAULT_MAX_TOKENS.into());
    for (name, value) in params.iter().filter(|(_, value)| !value.is_null()) {
        let name = name.as_str();
        if let Some(own_name) = plain_name(name) {
            fields.insert(own_name.to_owned(), value.clone());
        } else if let Some(form) = find(&FORMS, name) {
            if fields.contains_key("structured_outputs") {
                let message = "prescribes a second form; a reply can have only one";
                return Err(ApiError::bad_field(name, message));
            }
            fields.insert("structured_outputs".to_owned(), json!({form: value}));
        } else if !IGNORED.contains(&name) && !is_empty(value) {
            return Err(ApiError::bad_field(name, "is not supported"));
        }
    }
    Ok(fields)
}

/// Returns the engine's name of a field that keeps its meaning.
fn plain_name(name: &str) -> Option<&str> {
    find(&RENAMED, name).or_else(|| SAME.contains(&name).then_some(name))
}

fn find(names: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    names.iter().find(|(theirs, _)| *theirs == name).map(|(_, own)| *own)
}

/// True if a value asks for nothing.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.iter().all(is_empty),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}
