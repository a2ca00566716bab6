//! Parts that the fuzz targets share: their input, and a second, simpler implementation of parts of
//! `wire` to compare it with.
#![deny(unsafe_code)]

mod grown;
mod spelled;

pub use grown::grown;
pub use spelled::{Spelled, members_of, root_members};

use bytes::Bytes;
use episode::Route;
use serde_json::Value;
use wire::{Dialect, Event, Request, Splitter};

/// All dialects.
pub const DIALECTS: [Dialect; 5] =
    [Dialect::Vllm, Dialect::Sglang, Dialect::Llamacpp, Dialect::Rolltape, Dialect::OpenAi];
/// The routes that sample.
pub const ROUTES: [Route; 4] = [Route::Chat, Route::Completions, Route::Responses, Route::Messages];
/// The routes that are translated.
pub const TRANSLATED: [Route; 2] = [Route::Messages, Route::Responses];

/// The last bytes of an input. They choose the options of the run, so that the text of a tape can
/// be a seed unchanged.
#[derive(Debug, Clone, Copy)]
pub struct Knobs([u8; Self::BYTES]);

impl Knobs {
    /// Number of bytes; `seed.py` writes as many.
    pub const BYTES: usize = 8;

    /// One of `options`, chosen by the knob at `at`.
    pub fn pick<T: Copy>(&self, at: usize, options: &[T]) -> T {
        options[usize::from(self.0[at]) % options.len()]
    }

    /// Returns true if a bit of the knob at `at` is set.
    pub fn flag(&self, at: usize, bit: u8) -> bool {
        self.0[at] >> bit & 1 == 1
    }

    /// An endless series of numbers, the same for the same knobs.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        let mut state = u64::from_le_bytes(self.0) | 1;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize
        })
    }

    /// `text` in pieces, of one byte each or of any length.
    pub fn pieces<'a>(&self, text: &'a [u8]) -> Vec<&'a [u8]> {
        let longest = self.pick(7, &[1, 2, 7, 50, 500, 5000, usize::MAX]);
        let mut pieces = Vec::new();
        let mut rest = text;
        for number in self.numbers() {
            if rest.is_empty() {
                break;
            }
            let length = (number % longest).saturating_add(1).min(rest.len());
            let (piece, after) = rest.split_at(length);
            pieces.push(piece);
            rest = after;
        }
        pieces
    }
}

/// An input as its text and its knobs.
pub fn parts(input: &[u8]) -> Option<(&[u8], Knobs)> {
    let (text, knobs) = input.split_last_chunk()?;
    Some((text, Knobs(*knobs)))
}

/// The text, or the JSON that it builds as a program: random bytes are seldom deep JSON.
pub fn text_or_grown(text: &[u8], grow: bool) -> Bytes {
    if grow { Bytes::from(grown(text).to_string()) } else { Bytes::copy_from_slice(text) }
}

/// All events of a whole stream.
pub fn events(stream: &[u8]) -> Vec<Event> {
    events_of([stream])
}

/// All events of a stream that comes in pieces.
pub fn events_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
    let mut splitter = Splitter::default();
    let mut found = Vec::new();
    for piece in pieces {
        splitter.push(piece);
        while let Ok(Some(event)) = splitter.next_event() {
            found.push(event);
        }
    }
    found.extend(splitter.rest());
    found
}

/// A request with this body.
pub fn request(body: &str) -> Request {
    Request::read(&Bytes::from(body.to_owned())).expect("it is an object")
}

/// Returns true if an event ends with a blank line.
pub fn is_whole(event: &[u8]) -> bool {
    let line = event.strip_suffix(b"\n").map(|text| text.strip_suffix(b"\r").unwrap_or(text));
    line.is_some_and(|line| line.is_empty() || line.ends_with(b"\n"))
}

/// The values of the data lines of a `stream` that rolltape wrote: whole events with one line of
/// JSON each, named by its type.
pub fn written(stream: &[u8]) -> Vec<Value> {
    let mut values = Vec::new();
    for event in events(stream) {
        assert!(is_whole(&event.0), "half an event: {event:?}");
        let Some(data) = event.data() else { continue };
        serde_json::from_slice::<serde::de::IgnoredAny>(&data).expect("data is JSON");
        // A number may be beyond all that a value holds.
        let Ok(value) = serde_json::from_slice::<Value>(&data) else { continue };
        assert!(value["type"].as_str().is_some_and(|kind| event.is_named(kind)), "{event:?}");
        values.push(value);
    }
    values
}

/// Takes the place of the system's random numbers, which seed the order of hash maps: the same
/// inputs then run the same way. Returns the number of bytes, as Linux's call of this name does.
#[expect(unsafe_code, reason = "the name of a C function is replaced")]
#[unsafe(no_mangle)]
extern "C" fn getrandom(bytes: *mut u8, len: usize, _flags: u32) -> isize {
    // SAFETY: the caller gives room for `len` bytes.
    unsafe { bytes.write_bytes(7, len) };
    len.cast_signed()
}
