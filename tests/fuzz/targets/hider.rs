//! A filter removes the answers to added fields from a reply, and no other byte.
#![no_main]

use std::sync::LazyLock;

use bytes::Bytes;
use fuzz::{DIALECTS, ROUTES, Spelled, events, events_of, is_whole, parts, request, text_or_grown};
use libfuzzer_sys::fuzz_target;
use wire::{AskOptions, Event, ReplyDocument, ReplyFilter, ask};

/// All keys that are ever hidden.
const HIDDEN: [&str; 10] = [
    "logprobs",
    "top_logprobs",
    "token_ids",
    "prompt_token_ids",
    "response_token_ids",
    "meta_info",
    "weight_versions",
    "input_messages",
    "output_messages",
    "__verbose",
];

const REQUESTS: [&str; 5] = [
    "{}",
    r#"{"stream":true}"#,
    r#"{"stream":true,"logprobs":true}"#,
    r#"{"return_token_ids":true,"include":["x"]}"#,
    r#"{"return_prompt_token_ids":true,"n_probs":1,"stream":false}"#,
];

/// The filters for each of the requests, in each dialect and on each route.
static FILTERS: LazyLock<Vec<ReplyFilter>> = LazyLock::new(|| {
    let mut filters = Vec::new();
    for dialect in DIALECTS {
        for route in ROUTES {
            for body in REQUESTS {
                let options = AskOptions {
                    hosted_logprobs: true,
                    top_logprobs: 3,
                    routed_experts: true,
                    sampling_mask: true,
                    ..AskOptions::for_dialect(dialect)
                };
                let hide = ask(&options, route, &request(body), None, |_| false).hide;
                if !hide.is_empty() && !filters.contains(&hide) {
                    filters.push(hide);
                }
            }
        }
    }
    filters
});

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let filters: Vec<&ReplyFilter> = FILTERS.iter().collect();
    let body = text_or_grown(text, knobs.flag(1, 0));
    let stream = match knobs.flag(1, 0) {
        true => Bytes::from([b"data: ", &body[..], b"\n\n"].concat()),
        false => body.clone(),
    };
    let hide = knobs.pick(0, &filters);
    document(hide, &body);
    let whole = events(&stream);
    whole.iter().for_each(|shown| event(hide, shown));
    assert_eq!(shown(hide, &whole), shown(hide, &events_of(knobs.pieces(&stream))));
});

/// The bytes that the agent gets for these events.
fn shown(hide: &ReplyFilter, events: &[Event]) -> Bytes {
    events.iter().filter_map(|event| hide.event(&event.read())).flatten().collect()
}

fn document(hide: &ReplyFilter, body: &Bytes) {
    let shown = hide.document(&ReplyDocument::new(body.clone()));
    assert_eq!(hide.document(&ReplyDocument::new(shown.clone())), shown, "hidden twice");
    same_but_hidden(body, &shown);
}

fn event(hide: &ReplyFilter, event: &Event) {
    let Some(shown) = hide.event(&event.read()) else { return };
    let apart = events(&shown);
    if apart.len() > 1 {
        // The deltas of one step, each in an event of its own.
        let again = |part: &Event| hide.event(&part.read()).as_ref() == Some(&part.0);
        assert!(apart.iter().all(again), "hidden twice");
        return;
    }
    let shown = Event(shown);
    assert_eq!(hide.event(&shown.read()).as_ref(), Some(&shown.0), "hidden twice");
    assert_eq!(is_whole(&event.0), is_whole(&shown.0));
    assert_eq!(beside_data(event), beside_data(&shown), "{event:?}");
    let (before, after) = (event.data(), shown.data());
    assert_eq!(before.is_some(), after.is_some());
    same_but_hidden(&before.unwrap_or_default(), &after.unwrap_or_default());
}

/// The lines of an event that are not data.
fn beside_data(event: &Event) -> Vec<Vec<u8>> {
    let lines = event.0.split(|byte| *byte == b'\n');
    let beside = lines.filter(|line| {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        !line.starts_with(b"data:")
    });
    beside.map(<[u8]>::to_vec).collect()
}

fn same_but_hidden(before: &[u8], after: &[u8]) {
    if before == after {
        return;
    }
    let Some(spelled) = Spelled::read(before) else {
        // What is torn may still be hidden in, but not where no key is.
        let text = String::from_utf8_lossy(before);
        let hidden = text.contains('\\') || HIDDEN.iter().any(|key| text.contains(key));
        assert!(hidden, "nothing was to hide");
        return;
    };
    assert!(spelled.has(&HIDDEN), "nothing was to hide");
    let shown = Spelled::read(after).expect("JSON stays JSON");
    assert_eq!(spelled.without(&HIDDEN), shown.without(&HIDDEN));
}
