//! The shape of a request: what a server may refuse other requests of the same kind for.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::request::Request;

/// Longest value that belongs to the shape, in bytes. Longer ones are content.
const SHAPE_VALUE_BYTES_MAX: usize = 64;

/// Fields whose values name a user, a session or a draw, or are content however short they are.
const OWN_VALUES: [&str; 20] = [
    "cache_salt",
    "client_metadata",
    "input",
    "instructions",
    "messages",
    "metadata",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "request_id",
    "rid",
    "safety_identifier",
    "sampling_seed",
    "seed",
    "session_id",
    "suffix",
    "system",
    "text",
    "user",
    "user_id",
];

/// A number that two requests share if they have the same fields, in any order, with the same short
/// values. Content, seeds and names of users do not count.
pub fn shape(request: &Request) -> u64 {
    let mut fields: Vec<(&str, &[u8])> = request.raw_fields().collect();
    fields.sort_unstable();

    let mut hasher = DefaultHasher::new();
    for (name, value) in fields {
        name.hash(&mut hasher);
        let is_content = value.len() > SHAPE_VALUE_BYTES_MAX || OWN_VALUES.contains(&name);
        let counted = if is_content { kind(value) } else { value };
        counted.hash(&mut hasher);
    }
    hasher.finish()
}

/// The kind of a JSON value: text, list, object, number or a word.
fn kind(value: &[u8]) -> &[u8] {
    match value.first() {
        Some(b'-' | b'0'..=b'9') => b"0",
        _ => &value[..value.len().min(1)],
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn of(body: &str) -> u64 {
        shape(&Request::read(&Bytes::copy_from_slice(body.as_bytes())).unwrap())
    }

    #[test]
    fn requests_that_differ_in_content_have_one_shape() {
        let first = of(r#"{"model":"m","messages":[1],"temperature":0.5,"seed":1,"user":"a"}"#);
        let other = r#"{"seed":2,"user":"b","temperature":0.5,"messages":[1,2],"model":"m"}"#;
        assert_eq!(first, of(other));
        let long = |text: &str| of(&format!(r#"{{"tools":[{{"name":"{}"}}]}}"#, text.repeat(99)));
        assert_eq!(long("a"), long("b"));
    }

    #[test]
    fn an_odd_field_or_value_is_another_shape() {
        let plain = of(r#"{"model":"m","messages":[],"n":1}"#);
        for other in [
            r#"{"model":"m","messages":[],"n":2}"#,
            r#"{"model":"m","messages":[],"n":"1"}"#,
            r#"{"model":"m","messages":"","n":1}"#,
            r#"{"model":"m","messages":[],"n":1,"odd":null}"#,
            r#"{"model":"n","messages":[],"n":1}"#,
            r#"{"model":"m","messages":[]}"#,
        ] {
            assert_ne!(plain, of(other), "{other}");
        }
    }
}
