//! What a server would not be asked for: fields that are given up, one after the other.

use serde_json::Value;

/// The fields that are asked with, in the order in which they are given up: first what a trainer
/// can do without. Logprobs without ids are still worth something to who has a tokenizer.
const FIELDS: [&str; 12] = [
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
/// Bytes of a refusal that are looked into.
pub const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Fields that a server would not be asked with; a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused(u16);

impl Refused {
    /// Nothing may be asked for.
    pub const ALL: Self = Self(u16::MAX);

    /// Whether everything was refused.
    pub fn is_all(self) -> bool {
        self == Self::ALL
    }

    /// Whether nothing was.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether a field was refused that has ids for an answer.
    pub fn loses_ids(self) -> bool {
        ["return_token_ids", "return_tokens", "n_probs"].iter().any(|field| self.holds(field))
    }

    /// Whether `field` was refused.
    pub(crate) fn holds(self, field: &str) -> bool {
        bit(field).is_some_and(|bit| self.0 & bit != 0)
    }

    /// The fields, by name.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        FIELDS.into_iter().filter(move |field| self.holds(field))
    }

    /// What to leave out after a refusal of a request that `added` these fields: those that it
    /// names, or the first where it names none. All once nothing is left.
    pub fn after(self, added: &[&'static str], refusal: &[u8]) -> Self {
        let left = || FIELDS.into_iter().filter(|field| added.contains(field));
        let named = Names::of(refusal);
        let mut more = Self::default();
        left().filter(|field| named.have(field)).for_each(|field| more.add(field));
        if more.is_none()
            && let Some(first) = left().next()
        {
            more.add(first);
        }
        let refused = Self(self.0 | more.0);
        let is_over = more.is_none() || added.iter().all(|field| refused.holds(field));
        if is_over { Self::ALL } else { refused }
    }

    fn add(&mut self, field: &str) {
        self.0 |= bit(field).unwrap_or_default();
        // Alternatives without logprobs are refused by every server.
        if field == "logprobs" {
            self.0 |= bit("top_logprobs").unwrap_or_default();
        }
    }
}

fn bit(field: &str) -> Option<u16> {
    FIELDS.iter().position(|known| *known == field).map(|at| 1 << at)
}

/// The names that an error holds.
struct Names {
    text: String,
    /// Strings that stand alone, such as the value of `param`.
    alone: Vec<String>,
}

impl Names {
    fn of(refusal: &[u8]) -> Self {
        let mut alone = Vec::new();
        if let Ok(document) = serde_json::from_slice(refusal) {
            strings(&document, &mut alone);
        }
        Self { text: String::from_utf8_lossy(refusal).into_owned(), alone }
    }

    /// Whether `field` is named: alone, or in a sentence if it is no word of the language.
    fn have(&self, field: &str) -> bool {
        let is_word = !field.contains('_') && field != "logprobs";
        self.alone.iter().any(|name| name == field) || !is_word && self.tell_of(field)
    }

    fn tell_of(&self, field: &str) -> bool {
        let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        self.text.match_indices(field).any(|(at, _)| {
            let before = self.text[..at].chars().next_back();
            let after = self.text[at + field.len()..].chars().next();
            !before.is_some_and(part) && !after.is_some_and(part)
        })
    }
}

fn strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| strings(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| strings(field, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: [&str; 3] = ["logprobs", "return_token_ids", "return_weight_versions"];

    fn names(refused: Refused) -> Vec<&'static str> {
        refused.names().collect()
    }

    #[test]
    fn what_a_refusal_names_is_left_out() {
        let rust = br#"{"error":{"message":"return_weight_versions is not supported.",
            "type":"BadRequestError","param":"return_weight_versions","code":400}}"#;
        let first = Refused::default().after(&CHAT, rust);
        assert_eq!(names(first), ["return_weight_versions"]);
        assert!(!first.loses_ids() && Refused::ALL.loses_ids());
        assert!(first.holds("return_weight_versions") && !first.holds("logprobs"));
        let loc = br#"{"detail":[{"loc":["body","include"],"msg":"no"}]}"#;
        let asked = ["enable_response_messages", "include"];
        assert_eq!(names(Refused::default().after(&asked, loc)), ["include"]);
        let words = br#"{"message":"these include top_logprobs2"}"#;
        assert_eq!(names(Refused::default().after(&asked, words)), ["enable_response_messages"]);
        let logprobs = br#"{"error":{"message":"logprobs are not supported with tools + stream"}}"#;
        let left = names(Refused::default().after(&CHAT, logprobs));
        assert_eq!(left, ["top_logprobs", "logprobs"]);
    }

    #[test]
    fn what_cannot_be_told_is_given_up_from_the_least_to_the_most() {
        let mut refused = Refused::default();
        let mut left = CHAT.to_vec();
        for wanted in ["return_weight_versions", "return_token_ids"] {
            refused = refused.after(&left, b"<html>");
            assert!(refused.holds(wanted) && !refused.is_all());
            left.retain(|field| !refused.holds(field));
        }
        assert!(refused.after(&left, b"no").is_all());
        assert!(Refused::default().after(&[], b"no").is_all(), "only a header was added");
        assert!(Refused::default().after(&["new_field"], b"no").is_all(), "nothing to go on with");
    }
}
