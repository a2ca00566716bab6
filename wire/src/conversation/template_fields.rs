//! The request fields that a chat template reads beside messages and tools.

use serde_json::{Map, Value};

use crate::json::tree;

/// Fields that a template or the code around it reads, in the spellings of all wires.
pub(crate) const TEMPLATE_FIELDS: [&str; 10] = [
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "tool_choice",
];

/// The fields of a request body, on any wire, that change how its messages become tokens; empty if
/// the body is not a JSON object.
pub fn template_fields(request: &[u8]) -> Map<String, Value> {
    let body = tree(request).unwrap_or_default();
    TEMPLATE_FIELDS
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), body.get(*key)?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_template_reads_is_told_from_what_it_does_not() {
        let body = json!({ "model": "m", "messages": [], "temperature": 1,
            "chat_template_kwargs": { "enable_thinking": false } });
        let found = template_fields(body.to_string().as_bytes());
        assert_eq!(
            Value::Object(found),
            json!({ "chat_template_kwargs": { "enable_thinking": false } })
        );
        assert!(template_fields(b"[]").is_empty());
    }
}
