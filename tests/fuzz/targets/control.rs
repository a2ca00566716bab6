//! Any body and query of the control listener is read or refused: what is read has no name that the
//! route does not know, and a refusal is not longer than what it refuses.
#![no_main]

use std::sync::LazyLock;

use fuzz::{parts, text_or_grown};
use http::api::json::parse;
use http::api::query::Query;
use http::api::schema::fields_of;
use libfuzzer_sys::fuzz_target;
use requests::{
    AckBody, AnnounceBody, CloseBody, KeyBody, NackBody, RenewBody, RewardBody, VersionBody,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

#[expect(dead_code, reason = "bodies are read here, and used in `control`")]
#[path = "../../../control/src/requests.rs"]
mod requests;

/// Longest text of a refusal without what it quotes, in bytes.
const REFUSAL_BYTES_MAX: usize = 1000;
const PARAMETERS: [&str; 3] = ["attempt", "consumer", "limit"];

/// The bodies that the routes of the control listener take.
static KINDS: LazyLock<[BodyKind; 8]> = LazyLock::new(|| {
    [
        kind::<AnnounceBody>(),
        kind::<KeyBody>(),
        kind::<RewardBody>(),
        kind::<CloseBody>(),
        kind::<AckBody>(),
        kind::<NackBody>(),
        kind::<RenewBody>(),
        kind::<VersionBody>(),
    ]
});

/// A body that a route of the control listener takes.
struct BodyKind {
    /// Names of its fields.
    fields: Vec<&'static str>,
    /// Reads a body. The error is the text of the refusal.
    read: fn(&[u8]) -> Result<(), String>,
}

fn kind<T: DeserializeOwned>() -> BodyKind {
    let fields = fields_of::<T>().iter().map(|field| field.name).collect();
    BodyKind { fields, read: |bytes| parse::<T>(bytes).map(drop).map_err(|error| error.0) }
}

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
    let read = Query::parse(Some(query)).and_then(|query| {
        query.check_known(&PARAMETERS)?;
        Ok(query)
    });
    match read {
        Ok(query) => {
            let names: Vec<&str> = query.pairs().iter().map(|(name, _)| name.as_str()).collect();
            assert!(names.iter().all(|name| PARAMETERS.contains(name)), "{names:?}");
            assert!(names.len() <= PARAMETERS.len(), "one is given twice: {names:?}");
        }
        Err(refusal) => short(&refusal.0, query.len()),
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
