//! Parts that several answers have: each is in the file once.
//!
//! A call repeats the history that its turn continues, as messages and as tokens. Without this, the
//! file would grow with the square of the number of turns.

use std::collections::HashMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Shorter parts stay where they are.
const PART_BYTES_MIN: usize = 200;

/// A part of a document, and its place there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SharedPart {
    /// The names and the indexes that lead to it, as JSON.
    pub(super) place: Vec<Value>,
    pub(super) json: String,
}

/// The numbers of the parts that are in the file.
#[derive(Debug, Default)]
pub(super) struct SharedParts(HashMap<[u8; 32], usize>);

impl SharedParts {
    /// The number of a part, and whether it is new.
    pub(super) fn of(&mut self, part: &SharedPart) -> (usize, bool) {
        let next = self.0.len();
        let number = *self.0.entry(Sha256::digest(&part.json).into()).or_insert(next);
        (number, number == next)
    }
}

/// Takes the long parts out of a document, and leaves null in their place: lists of numbers and
/// texts as a whole, other lists by their elements.
pub(super) fn taken_out(document: &mut Value) -> Vec<SharedPart> {
    let mut parts = Vec::new();
    let Value::Object(fields) = document else { return parts };
    for (name, value) in fields {
        match value {
            Value::Array(elements) if elements.iter().any(|one| one.is_object()) => {
                for (at, element) in elements.iter_mut().enumerate() {
                    take(vec![json!(name), json!(at)], element, &mut parts);
                }
            }
            _ => take(vec![json!(name)], value, &mut parts),
        }
    }
    parts
}

fn take(place: Vec<Value>, value: &mut Value, parts: &mut Vec<SharedPart>) {
    let json = value.to_string();
    if json.len() >= PART_BYTES_MIN {
        *value = Value::Null;
        parts.push(SharedPart { place, json });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_in_the_file_once() {
        let long = |role: &str| json!({ "role": role, "content": role.repeat(100) });
        let call = |messages: &[Value]| json!({ "id": "c", "messages": messages });
        let mut numbers = SharedParts::default();
        let mut numbered = |mut document: Value| {
            let parts = taken_out(&mut document);
            let numbers = parts.iter().map(|part| numbers.of(part)).collect::<Vec<_>>();
            (document, numbers)
        };

        let short = json!({ "role": "user", "content": "hi" });
        let (first, parts) = numbered(call(&[long("system"), short.clone()]));
        assert_eq!(first, call(&[Value::Null, short.clone()]));
        assert_eq!(parts, [(0, true)]);
        let (_, parts) = numbered(call(&[long("system"), short, long("assistant")]));
        assert_eq!(parts, [(0, false), (1, true)]);
    }

    #[test]
    fn a_list_of_numbers_is_one_part() {
        let ids: Vec<u32> = (0..100).collect();
        let mut document = json!({ "ids": ids, "from": 0 });
        let parts = taken_out(&mut document);
        assert_eq!(document, json!({ "ids": null, "from": 0 }));
        assert_eq!(parts, [SharedPart { place: vec![json!("ids")], json: json!(ids).to_string() }]);
    }
}
