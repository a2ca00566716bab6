//! Fields that a server refused, which are given up one after the other.

use serde_json::Value;

use super::continuation::{SGLANG_PROMPT, VLLM_PROMPT};

/// All fields that `ask` adds, in the order in which they are given up. Fields that a trainer can
/// do without come first. Logprobs come last: without ids they are still of use to a reader with a
/// tokenizer.
const FIELDS: [&str; 16] = [
    VLLM_PROMPT,
    SGLANG_PROMPT,
    "routed_experts_prompt_start",
    "routed_experts_start_len",
    "return_weight_versions",
    "return_sampling_mask",
    "return_routed_experts",
    "top_logprobs",
    "return_meta_info",
    "return_tokens",
    "verbose",
    "enable_response_messages",
    "return_token_ids",
    "include",
    "n_probs",
    "logprobs",
];
/// Bytes of a refusal that are searched for names of fields.
pub const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// A set of fields that a server refused; one bit for each entry of `FIELDS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefusedFields(u32);

impl RefusedFields {
    /// No field may be added.
    pub const ALL: Self = Self(u32::MAX);

    /// Returns true if every field was refused.
    pub fn is_all(self) -> bool {
        self == Self::ALL
    }

    /// Returns true if no field was refused.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns true if a field that makes the server report ids was refused.
    pub fn loses_ids(self) -> bool {
        ["return_token_ids", "return_tokens", "n_probs"].iter().any(|field| self.holds(field))
    }

    /// Returns true if `field` was refused.
    pub(crate) fn holds(self, field: &str) -> bool {
        bit(field).is_some_and(|bit| self.0 & bit != 0)
    }

    /// The fields, by name.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FIELDS.into_iter().filter(move |field| self.holds(field))
    }

    /// The set after a server answered `refusal` to a request that `added` these fields. It grows
    /// by the fields that the refusal names, or by the first one if it names none. Once nothing is
    /// left to give up it is [`Self::ALL`].
    pub fn after(self, added: &[&'static str], refusal: &[u8]) -> Self {
        let candidates: Vec<_> = FIELDS.into_iter().filter(|field| added.contains(field)).collect();
        let names = NamesInError::of(refusal);

        let mut more = Self::default();
        candidates.iter().filter(|field| names.contain(field)).for_each(|field| more.add(field));
        if more.is_none()
            && let Some(first) = candidates.first()
        {
            more.add(first);
        }

        let refused = Self(self.0 | more.0);
        let is_over = more.is_none() || added.iter().all(|field| refused.holds(field));
        if is_over { Self::ALL } else { refused }
    }

    fn add(&mut self, field: &str) {
        self.0 |= bit(field).unwrap_or_default();
        // Every server refuses alternatives without logprobs.
        if field == "logprobs" {
            self.0 |= bit("top_logprobs").unwrap_or_default();
        }
    }
}

fn bit(field: &str) -> Option<u32> {
    FIELDS.iter().position(|known| *known == field).map(|at| 1 << at)
}

/// The names that the body of an error holds.
struct NamesInError {
    text: String,
    /// JSON strings of the error, such as the value of `param`.
    strings: Vec<String>,
}

impl NamesInError {
    fn of(refusal: &[u8]) -> Self {
        let mut strings = Vec::new();
        if let Ok(document) = serde_json::from_slice(refusal) {
            collect_strings(&document, &mut strings);
        }
        Self { text: String::from_utf8_lossy(refusal).into_owned(), strings }
    }

    /// Returns true if `field` is a string of its own, or stands in a sentence. A field that is
    /// also an English word, such as `include`, must be a string of its own.
    fn contain(&self, field: &str) -> bool {
        let is_english = !field.contains('_') && field != "logprobs";
        self.strings.iter().any(|name| name == field) || !is_english && self.mention(field)
    }

    /// Returns true if the text holds `field` as a whole word.
    fn mention(&self, field: &str) -> bool {
        self.text.match_indices(field).any(|(at, _)| {
            let before = self.text[..at].chars().next_back();
            let after = self.text[at + field.len()..].chars().next();
            !before.is_some_and(is_word_part) && !after.is_some_and(is_word_part)
        })
    }
}

fn is_word_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn collect_strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_strings(item, found)),
        Value::Object(fields) => {
            fields.values().for_each(|field| collect_strings(field, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: [&str; 3] = ["logprobs", "return_token_ids", "return_weight_versions"];

    fn names(refused: RefusedFields) -> Vec<&'static str> {
        refused.names().collect()
    }

    #[test]
    fn what_a_refusal_names_is_left_out() {
        let rust = br#"{"error":{"message":"return_weight_versions is not supported.",
            "type":"BadRequestError","param":"return_weight_versions","code":400}}"#;
        let first = RefusedFields::default().after(&CHAT, rust);
        assert_eq!(names(first), ["return_weight_versions"]);
        assert!(!first.loses_ids() && RefusedFields::ALL.loses_ids());
        assert!(first.holds("return_weight_versions") && !first.holds("logprobs"));
        let loc = br#"{"detail":[{"loc":["body","include"],"msg":"no"}]}"#;
        let asked = ["enable_response_messages", "include"];
        assert_eq!(names(RefusedFields::default().after(&asked, loc)), ["include"]);
        let words = br#"{"message":"these include top_logprobs2"}"#;
        assert_eq!(
            names(RefusedFields::default().after(&asked, words)),
            ["enable_response_messages"]
        );
        let logprobs = br#"{"error":{"message":"logprobs are not supported with tools + stream"}}"#;
        let left = names(RefusedFields::default().after(&CHAT, logprobs));
        assert_eq!(left, ["top_logprobs", "logprobs"]);
    }

    #[test]
    fn what_cannot_be_told_is_given_up_from_the_least_to_the_most() {
        let mut refused = RefusedFields::default();
        let mut left = CHAT.to_vec();
        for wanted in ["return_weight_versions", "return_token_ids"] {
            refused = refused.after(&left, b"<html>");
            assert!(refused.holds(wanted) && !refused.is_all());
            left.retain(|field| !refused.holds(field));
        }
        assert!(refused.after(&left, b"no").is_all());
        assert!(RefusedFields::default().after(&[], b"no").is_all(), "only a header was added");
        assert!(
            RefusedFields::default().after(&["new_field"], b"no").is_all(),
            "nothing to go on with"
        );
    }
}
