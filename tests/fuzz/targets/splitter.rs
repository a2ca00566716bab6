//! Any bytes in any chunks are the same events, and no byte is lost.
#![no_main]

use fuzz::{ROUTES, events, is_whole, parts};
use libfuzzer_sys::fuzz_target;
use wire::{Event, Splitter};

fuzz_target!(|input: &[u8]| {
    let Some((stream, knobs)) = parts(input) else { return };
    let whole = events(stream);
    let mut splitter = Splitter::default();
    let mut found = Vec::new();
    for piece in knobs.pieces(stream) {
        splitter.push(piece);
        // Not every chunk is looked at before the next one comes.
        if knobs.flag(6, 0) || piece.len() % 2 == 1 {
            while let Ok(Some(event)) = splitter.next_event() {
                found.push(event);
            }
        }
    }
    while let Ok(Some(event)) = splitter.next_event() {
        found.push(event);
    }
    found.extend(splitter.rest());
    assert_eq!(found, whole);
    assert!(splitter.rest().is_none());
    let joined: Vec<u8> = whole.iter().flat_map(|event| event.0.to_vec()).collect();
    assert_eq!(joined, stream);
    for (at, event) in whole.iter().enumerate() {
        assert!(is_whole(&event.0) || at + 1 == whole.len(), "{event:?}");
        assert_eq!(event.data().map(|data| data.into_owned()), data(event));
        let _ = ROUTES.map(|route| event.ends(route));
    }
});

/// The data of an event by the letter of the standard.
fn data(event: &Event) -> Option<Vec<u8>> {
    let text = event.0.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&event.0);
    let lines = text.split(|byte| *byte == b'\n');
    let values: Vec<&[u8]> = lines
        .filter_map(|line| line.strip_suffix(b"\r").unwrap_or(line).strip_prefix(b"data:"))
        .map(|value| value.strip_prefix(b" ").unwrap_or(value))
        .collect();
    (!values.is_empty()).then(|| values.join(&b'\n'))
}
