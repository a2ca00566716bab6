//! Any body and query of the control listener is read or refused: what is read has no name that the
//! route does not know, and a refusal is not longer than what it refuses.
#![no_main]

use std::sync::LazyLock;

use control::fuzzing::{BodyKind, body_kinds, read_query};
use fuzz::{parts, text_or_grown};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Longest text of a refusal without what it quotes, in bytes.
const REFUSAL_BYTES_MAX: usize = 1000;
const PARAMETERS: [&str; 3] = ["attempt", "consumer", "limit"];

static KINDS: LazyLock<Vec<BodyKind>> = LazyLock::new(body_kinds);

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let body = text_or_grown(text, knobs.flag(1, 0));
    for kind in KINDS.iter() {
        match (kind.read)(&body) {
            Ok(()) => known(kind, &body),
            Err(refusal) => short(&refusal, body.len()),
        }
    }
    let Ok(query) = str::from_utf8(text) else { return };
    match read_query(query, &PARAMETERS) {
        Ok(pairs) => {
            let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
            assert!(names.iter().all(|name| PARAMETERS.contains(name)), "{names:?}");
            assert!(names.len() <= PARAMETERS.len(), "one is given twice: {names:?}");
        }
        Err(refusal) => short(&refusal, query.len()),
    }
});

/// A body that is read is an object, or nothing, of the fields that the route knows.
fn known(kind: &BodyKind, body: &[u8]) {
    if body.trim_ascii().is_empty() {
        return;
    }
    let value: Value = serde_json::from_slice(body).expect("what is read is JSON");
    let object = value.as_object().expect("what is read is an object");
    let unknown = object.keys().find(|name| !kind.fields.contains(&name.as_str()));
    assert_eq!(unknown, None, "{:?}", kind.fields);
}

/// A letter may be written as six.
fn short(refusal: &str, asked: usize) {
    assert!(refusal.len() <= 6 * asked + REFUSAL_BYTES_MAX, "{} of {asked}", refusal.len());
}
