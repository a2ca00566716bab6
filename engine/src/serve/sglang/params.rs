//! `sampling_params` of `/generate` as fields of the engine's own requests.

use serde_json::{Map, Value, json};

use super::super::error::ApiError;

/// Fields that have another name here; all others of [`SAME`] keep theirs.
const RENAMED: [(&str, &str); 4] = [
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("no_stop_trim", "include_stop_str_in_output"),
    ("sampling_seed", "seed"),
];

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

/// Forms of a reply, under their names in `structured_outputs`.
const FORMS: [(&str, &str); 3] = [("json_schema", "json"), ("regex", "regex"), ("ebnf", "grammar")];

/// Fields that change nothing here.
const IDLE: [&str; 2] = ["spaces_between_special_tokens", "stream_interval"];

/// Tokens of a reply whose request does not say.
const MAX_NEW_TOKENS: u64 = 128;

/// The engine's fields for SGLang's.
pub(super) fn translate(params: &Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let mut fields = Map::new();
    fields.insert("max_tokens".to_owned(), MAX_NEW_TOKENS.into());
    for (name, value) in params.iter().filter(|(_, value)| !value.is_null()) {
        let name = name.as_str();
        let renamed = RENAMED.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
        let same = SAME.contains(&name).then_some(name);
        let form = FORMS.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
        match (renamed.or(same), form) {
            (Some(ours), _) => {
                fields.insert(ours.to_owned(), value.clone());
            }
            (None, Some(form)) => {
                if fields.contains_key("structured_outputs") {
                    let message = "prescribes a second form; a reply can have only one";
                    return Err(ApiError::bad(name, message));
                }
                fields.insert("structured_outputs".to_owned(), json!({form: value}));
            }
            (None, None) if IDLE.contains(&name) || is_empty(value) => {}
            (None, None) => return Err(ApiError::bad(name, "is not supported")),
        }
    }
    Ok(fields)
}

/// Whether a value asks for nothing.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.iter().all(is_empty),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}
