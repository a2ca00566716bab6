//! Added and forced fields change those fields of a request and no other byte.
#![no_main]

use std::collections::BTreeSet;

use bytes::Bytes;
use episode::Route;
use fuzz::{DIALECTS, Knobs, ROUTES, parts, root_members, text_or_grown};
use libfuzzer_sys::fuzz_target;
use wire::{AskOptions, Dialect, ForcedSampling, RefusedFields, Request, ask};

/// All fields that may be added, in any dialect.
const ADDED: [&str; 15] = [
    "logprobs",
    "top_logprobs",
    "return_token_ids",
    "return_weight_versions",
    "include",
    "enable_response_messages",
    "n_probs",
    "verbose",
    "return_tokens",
    "return_meta_info",
    "return_prompt_token_ids",
    "return_routed_experts",
    "routed_experts_prompt_start",
    "routed_experts_start_len",
    "return_sampling_mask",
];

const FORCED: [&str; 5] = [
    "temperature=0.7",
    "top_p=off,seed=1",
    "seed=off,stop=off,n=off",
    "top_k=off,min_p=off,repetition_penalty=off,temperature=1",
    "logit_bias={},max_tokens=5,thinking=off,reasoning=null",
];

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    round_trip(text);
    let body = text_or_grown(text, knobs.flag(0, 0));
    let Some(request) = Request::read(&body) else {
        assert!(root_members(&body).is_none(), "an object was not read");
        return;
    };
    assert_eq!(request.body(), &body);
    let _ = (request.model(), request.sampling(), request.streams());
    assert!(request.choices() > 0 && request.prompts() <= body.len());
    for dialect in DIALECTS {
        for route in ROUTES {
            asked(&request, route, &options(dialect, knobs), knobs.flag(0, 6));
        }
        forced(&request, dialect, &knobs.pick(1, &FORCED).parse().expect("they are forces"));
    }
    headers(text, &request);
});

fn options(dialect: Dialect, knobs: Knobs) -> AskOptions {
    AskOptions {
        dialect,
        hosted_logprobs: !knobs.flag(0, 1),
        top_logprobs: if knobs.flag(0, 2) { 5 } else { 0 },
        routed_experts: knobs.flag(0, 3),
        experts_from: if knobs.flag(0, 5) { 3 } else { 0 },
        sampling_mask: knobs.flag(0, 4),
        refused: RefusedFields::default(),
    }
}

fn asked(request: &Request, route: Route, options: &AskOptions, has_headers: bool) {
    let has = |_: &str| has_headers;
    let augmented = ask(options, route, request, None, has);
    if augmented.unasked.is_some() {
        assert_eq!(&augmented.body, request.body());
        assert!(augmented.hide.is_empty() && augmented.headers.is_empty());
        return;
    }
    let Some(before) = root_members(request.body()) else { return };
    let after = root_members(&augmented.body).expect("JSON stays JSON");
    let old = last_values(&before);
    let new = last_values(&after);
    let changed: BTreeSet<&str> = new
        .iter()
        .filter(|(key, value)| !old.contains(&(*key, *value)))
        .map(|(key, _)| *key)
        .collect();
    for key in &changed {
        assert!(ADDED.contains(key), "`{key}` was set");
    }
    assert_eq!(Bytes::from(spliced(request.body(), &before, &after, &changed)), augmented.body);
    let again = Request::read(&augmented.body).expect("it is an object still");
    assert_eq!(ask(options, route, &again, None, has).body, augmented.body, "asked twice");
}

/// The last value under each key.
fn last_values<'a>(members: &'a [(String, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let last = |key: &str| members.iter().rev().find(|(name, _)| name == key).map(|(_, v)| *v);
    let keys: BTreeSet<&str> = members.iter().map(|(key, _)| key.as_str()).collect();
    keys.into_iter().filter_map(|key| Some((key, last(key)?))).collect()
}

/// The body with the values that the `changed` keys have in `after`, built in a second way. A value
/// is replaced where its key stands; new members are put before the last brace.
fn spliced(
    body: &[u8],
    before: &[(String, &str)],
    after: &[(String, &str)],
    changed: &BTreeSet<&str>,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut kept = 0;
    for (at, (key, value)) in before.iter().enumerate() {
        if changed.contains(key.as_str()) {
            let start = value.as_ptr().addr() - body.as_ptr().addr();
            out.extend_from_slice(&body[kept..start]);
            // The old members keep their order.
            out.extend_from_slice(after[at].1.as_bytes());
            kept = start + value.len();
        }
    }
    let close = body.iter().rposition(|byte| *byte == b'}').expect("an object ends");
    out.extend_from_slice(&body[kept..close]);
    for (at, (key, value)) in after.iter().enumerate().skip(before.len()) {
        let comma = if at == 0 { "" } else { "," };
        out.extend_from_slice(format!("{comma}\"{key}\":{value}").as_bytes());
    }
    out.extend_from_slice(&body[close..]);
    out
}

fn forced(request: &Request, dialect: Dialect, force: &ForcedSampling) {
    let body = force.apply(dialect, request);
    let _ = force.sampling(request);
    let Some(before) = root_members(request.body()) else { return };
    let after = root_members(&body).expect("JSON stays JSON");
    let names = force.to_string();
    let names: Vec<&str> = names.split(',').filter_map(|pair| pair.split('=').next()).collect();
    let other = |members: &[(String, &str)]| -> Vec<(String, String)> {
        let members = members.iter().filter(|(key, _)| !names.contains(&key.as_str()));
        members.map(|(key, value)| (key.clone(), (*value).to_owned())).collect()
    };
    assert_eq!(other(&before), other(&after));
    let again = Request::read(&body).expect("it is an object still");
    assert_eq!(force.apply(dialect, &again), body, "forced twice");
}

/// A parsed `ForcedSampling` is printed so that it parses to the same: the store keeps the text.
fn round_trip(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Ok(force) = text.parse::<ForcedSampling>() {
        assert_eq!(force.to_string().parse::<ForcedSampling>().ok(), Some(force));
    }
}

/// The headers that lineage is read from, with pieces of the input in them.
fn headers(text: &[u8], request: &Request) {
    let lines: Vec<&str> = std::str::from_utf8(text).unwrap_or_default().lines().collect();
    let header = |name: &str| lines.get(name.len() % 4).copied();
    let _ = wire::lineage(header, Route::Chat, Some(request));
    let _ = wire::lineage(|_| None, Route::Messages, Some(request));
}
