//! A reply on any route gives the same consistent facts, however it is cut.
#![no_main]

use std::sync::{Arc, LazyLock};

use episode::Route;
use fuzz::{ROUTES, events, events_of, parts, request, text_or_grown};
use libfuzzer_sys::fuzz_target;
use wire::{Collector, Facts, Request, Vocabulary};

const OTHERS: [Route; 4] = [Route::CountTokens, Route::Embeddings, Route::Generate, Route::Other];
const REQUESTS: [&str; 4] =
    ["{}", r#"{"n":2}"#, r#"{"top_logprobs":2}"#, r#"{"n":4294967295,"logprobs":1}"#];

static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let tokenizer = br#"{"model":{"vocab":{"a":0,"b":1,"text":2,"Hello":3,"<0x0A>":4}}}"#;
    Arc::new(Vocabulary::read(tokenizer).expect("it is a vocabulary"))
});

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let route = if knobs.flag(0, 7) { knobs.pick(0, &OTHERS) } else { knobs.pick(0, &ROUTES) };
    let asked = request(knobs.pick(1, &REQUESTS));
    let vocabulary = knobs.flag(2, 0).then(|| VOCABULARY.clone());
    let collector =
        || Collector::new(route, asked_if(&asked, knobs.flag(2, 1)), vocabulary.clone());
    let _ = wire::dialect_of_models(text);
    let _ = Vocabulary::read(text);

    let mut document = collector();
    let body = text_or_grown(text, knobs.flag(2, 2));
    document.take(&body);
    let document = document.facts();
    consistent(&document, 1);
    assert!(format!("{document:?}").len() <= facts_bytes_max(&body), "a reply is multiplied");

    let whole = events(text);
    let mut once = collector();
    whole.iter().filter_map(|event| event.data()).for_each(|data| once.take(&data));
    let (finished, failed) = (once.finished(), once.failed());
    let once = once.facts();
    consistent(&once, whole.len());
    assert!(!finished || once.choices.iter().all(|choice| choice.finish_reason.is_some()));
    assert_eq!(failed, once.error.is_some());

    let mut pieces = collector();
    let events = events_of(knobs.pieces(text));
    events.iter().filter_map(|event| event.data()).for_each(|data| pieces.take(&data));
    // A missing logprob is NaN, which equals nothing.
    let once = format!("{once:?}");
    assert_eq!(once, format!("{:?}", pieces.facts()));
    assert!(once.len() <= facts_bytes_max(text), "a reply is multiplied");
});

/// The most bytes that the facts of a reply may take: linear in its length.
fn facts_bytes_max(reply: &[u8]) -> usize {
    64 * reply.len() + (2 << 20)
}

fn asked_if(request: &Request, asked: bool) -> Option<&Request> {
    asked.then_some(request)
}

fn consistent(facts: &Facts, taken: usize) {
    assert!(facts.unread as usize <= taken);
    assert!(facts.choices.windows(2).all(|pair| pair[0].index < pair[1].index));
    for choice in &facts.choices {
        if let Some(ids) = &choice.token_ids {
            assert_eq!(ids.len(), choice.logprobs.len());
        }
        for side in &choice.token_columns {
            // Deeper JSON than `serde_json` parses is passed over without being parsed.
            let list = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(&side.json);
            assert!(list.is_ok(), "{side:?}");
        }
    }
}
