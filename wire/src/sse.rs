//! Server-sent events: bytes in, whole events out, whatever the chunking.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use episode::Route;

use crate::bounds::{EVENT_BYTES_MAX, EVENT_LINES_MAX};
use crate::document::ReplyDocument;
use crate::document::kind::{self, ReplyKind};
use crate::json::{Edits, members, root};

/// Bytes of a recorded stream that are cut at a time.
const PIECE_BYTES: usize = 16 << 10;

/// The data of the event that ends a stream of chat or text completions.
const DONE: &[u8] = b"[DONE]";

/// The events that end a stream of the Responses route.
const RESPONSE_ENDS: [&str; 3] = ["response.completed", "response.incomplete", "response.failed"];

/// An event that outgrew its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {EVENT_BYTES_MAX} bytes or {EVENT_LINES_MAX} lines")]
pub struct EventTooLong;

/// Cuts a byte stream into events.
#[derive(Debug, Default)]
pub struct Splitter {
    buffer: BytesMut,
    /// Start of the last line in the buffer.
    line_start: usize,
    /// Number of bytes already searched for the end of a line.
    searched: usize,
    /// Number of lines of the event in the buffer that have ended.
    lines: usize,
}

/// One event: its lines and the blank line that ends it, exactly as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event(pub Bytes);

/// An event with its data, found once for all that read it.
#[derive(Debug)]
pub struct ReadEvent<'a> {
    pub(crate) event: &'a Event,
    /// The places of the values of the `data:` lines.
    pub(crate) places: Vec<Range<usize>>,
    data: ReplyDocument,
}

impl Splitter {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event, if there is one.
    ///
    /// # Errors
    /// [`EventTooLong`] if an event has more than 64 MiB or 65,536 lines.
    pub fn next_event(&mut self) -> Result<Option<Event>, EventTooLong> {
        while let Some(length) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            let end = self.searched + length + 1;
            let blank = matches!(&self.buffer[self.line_start..end], b"\n" | b"\r\n");
            self.line_start = end;
            self.searched = end;
            if blank {
                (self.line_start, self.searched, self.lines) = (0, 0, 0);
                return Ok(Some(Event(self.buffer.split_to(end).freeze())));
            }
            self.lines += 1;
            if self.lines > EVENT_LINES_MAX {
                return Err(EventTooLong);
            }
        }
        self.searched = self.buffer.len();
        if self.buffer.len() > EVENT_BYTES_MAX { Err(EventTooLong) } else { Ok(None) }
    }

    /// Number of bytes that are held, in an event that has not ended.
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes that are left if the stream ends without a blank line.
    pub fn rest(&mut self) -> Option<Event> {
        (self.line_start, self.searched, self.lines) = (0, 0, 0);
        let rest = self.buffer.split().freeze();
        (!rest.is_empty()).then_some(Event(rest))
    }
}

/// The offsets of the lines of a payload that is joined from places in an event.
struct LineMap<'a> {
    places: &'a [Range<usize>],
    /// The offset in the joined payload at which each line begins.
    starts: Vec<usize>,
}

/// Edits of a payload that is joined from `places` in an event, as edits of the event.
pub(crate) fn in_event(edits: Edits, places: &[Range<usize>]) -> Edits {
    match places {
        [line] => edits.moved(|cut| Some(line.start + cut.start..line.start + cut.end)),
        lines => {
            let lines = LineMap::of(lines);
            edits.moved(|cut| lines.places_of(cut))
        }
    }
}

impl<'a> LineMap<'a> {
    fn of(places: &'a [Range<usize>]) -> Self {
        let begin = |at: &mut usize, place: &Range<usize>| {
            let start = *at;
            // Lines are joined by a line feed.
            *at += place.len() + 1;
            Some(start)
        };
        Self { places, starts: places.iter().scan(0, begin).collect() }
    }

    /// The places in the event of a part of the joined payload, one a line. Line ends, and the
    /// lines between that are not data, are no part of it.
    fn places_of(&self, part: Range<usize>) -> Vec<Range<usize>> {
        let first = self.starts.partition_point(|start| *start <= part.start).saturating_sub(1);
        let lines = self.places.iter().zip(&self.starts).skip(first);

        let in_line = |(place, start): (&Range<usize>, &usize)| {
            let in_event = |at: usize| place.start + at.saturating_sub(*start).min(place.len());
            in_event(part.start)..in_event(part.end)
        };
        let reached = lines.take_while(|(_, start)| **start < part.end.max(part.start + 1));
        reached.map(in_line).collect()
    }
}

impl Event {
    /// The event with its data.
    pub fn read(&self) -> ReadEvent<'_> {
        let places = self.payload();
        let data = match places.as_slice() {
            [only] => self.0.slice(only.clone()),
            several => Bytes::copy_from_slice(&self.joined(several)),
        };
        ReadEvent { event: self, places, data: ReplyDocument::new(data) }
    }

    /// The places of the values of the event's `data:` lines.
    pub(crate) fn payload(&self) -> Vec<Range<usize>> {
        self.lines()
            .filter_map(|(start, line)| Some(start + data_value_start(line)?..start + line.len()))
            .collect()
    }

    /// The payload at `places` as one document.
    pub(crate) fn joined(&self, places: &[Range<usize>]) -> Cow<'_, [u8]> {
        match places {
            [] => Cow::Borrowed(b""),
            [only] => Cow::Borrowed(&self.0[only.clone()]),
            several => {
                let lines: Vec<&[u8]> =
                    several.iter().map(|place| &self.0[place.clone()]).collect();
                Cow::Owned(lines.join(&b'\n'))
            }
        }
    }

    /// Returns true if the event's name is `name`.
    pub fn is_named(&self, name: &str) -> bool {
        self.name() == Some(name.as_bytes())
    }

    /// The value of the event's last `event:` line.
    fn name(&self) -> Option<&[u8]> {
        self.lines()
            .filter_map(|(_, line)| line.strip_prefix(b"event:"))
            .last()
            .map(|value| value.strip_prefix(b" ").unwrap_or(value))
    }

    /// The event's data: its `data:` lines joined; `None` if it has none, as a comment.
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        let places = self.payload();
        (!places.is_empty()).then(|| self.joined(&places))
    }

    /// Returns true if the event has the blank line that ends it.
    pub(crate) fn is_whole(&self) -> bool {
        let last = self.0.split_inclusive(|b| *b == b'\n').next_back();
        matches!(last, Some(b"\n" | b"\r\n"))
    }

    /// Returns true if this event ends the stream of a reply to `route`.
    pub fn ends(&self, route: Route) -> bool {
        self.read().ends(route)
    }

    /// The lines without line ends, each with its offset.
    fn lines(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut start = 0;
        self.0.split_inclusive(|b| *b == b'\n').map(move |line| {
            let at = start;
            start += line.len();
            let text = without_line_end(line);
            // Only the first line of a stream may carry a byte order mark.
            match text.strip_prefix(b"\xef\xbb\xbf") {
                Some(rest) if at == 0 => (at + 3, rest),
                _ => (at, text),
            }
        })
    }
}

impl ReadEvent<'_> {
    /// The event's data: its `data:` lines joined; `None` if it has none, as a comment.
    pub fn data(&self) -> Option<&ReplyDocument> {
        (!self.places.is_empty()).then_some(&self.data)
    }

    /// Returns true if the event's name is `name`.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.event.is_named(name)
    }

    /// Returns true if this event ends the stream of a reply to `route`.
    pub fn ends(&self, route: Route) -> bool {
        match route {
            Route::Messages => self.is_of_type(&["message_stop"]),
            Route::Responses => self.is_of_type(&RESPONSE_ENDS),
            _ => self.is_done(),
        }
    }

    /// Returns true if the event says that a stream of completions is done, and nothing else.
    pub fn is_done(&self) -> bool {
        self.data.bytes().trim_ascii() == DONE
    }

    /// Returns true if the event is of one of `types`, by its name or else by its data's `type`.
    fn is_of_type(&self, types: &[&str]) -> bool {
        match self.event.name() {
            Some(name) => types.iter().any(|kind| kind.as_bytes() == name),
            None => self.data().is_some_and(|data| {
                let kind = text_member(data, "type");
                kind.is_some_and(|kind| types.contains(&kind.as_str()))
            }),
        }
    }
}

fn without_line_end(line: &[u8]) -> &[u8] {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// The events of a whole stream, one by one; up to one that is too long.
pub fn events(stream: &[u8]) -> impl Iterator<Item = Event> {
    let mut rest = stream;
    let mut splitter = Splitter::default();
    std::iter::from_fn(move || {
        loop {
            match splitter.next_event() {
                Ok(Some(event)) => return Some(event),
                Ok(None) if rest.is_empty() => return splitter.rest(),
                Ok(None) => {
                    let (piece, after) = rest.split_at(rest.len().min(PIECE_BYTES));
                    splitter.push(piece);
                    rest = after;
                }
                Err(EventTooLong) => return None,
            }
        }
    })
}

/// The documents of a whole reply, one by one: the reply itself, or the data of its events.
pub(crate) fn documents(reply: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let places = match ReplyKind::of(reply, false) {
        Some(ReplyKind::Document) => kind::places(reply),
        _ => vec![(false, 0..reply.len())],
    };
    places.into_iter().flat_map(move |(is_document, place)| {
        let (whole, stream) = match is_document {
            true => (Some(&reply[place]), &b""[..]),
            false => (None, &reply[place]),
        };
        let of_events = events(stream).filter_map(|event| event.data().map(Cow::into_owned));
        whole.map(Cow::Borrowed).into_iter().chain(of_events.map(Cow::Owned))
    })
}

/// The string under `key` of an object.
fn text_member(document: &ReplyDocument, key: &str) -> Option<String> {
    let (doc, outline) = (document.bytes(), document.outline().ok()?);
    let all = members(&outline, &root(&outline).ok()?).ok()?;
    let found = all.iter().find(|member| member.key(doc) == key)?;
    serde_json::from_slice(&doc[found.value.clone()]).ok()
}

/// The offset of the value of a `data:` line.
fn data_value_start(line: &[u8]) -> Option<usize> {
    let rest = line.strip_prefix(b"data:")?;
    Some(if rest.first() == Some(&b' ') { 6 } else { 5 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"\xef\xbb\xbfdata: {\"a\":1}\n\n: alive\n\nevent: x\r\ndata:two\r\n\
        data: \xc3\xa9\r\n\r\n\ndata: [DONE]\n\nlast";

    #[test]
    fn events_are_the_same_at_every_cut_and_lose_no_byte() {
        let whole: Vec<Event> = events(STREAM).collect();
        let cut_events = |chunks: &[&[u8]]| -> Vec<Event> {
            let mut splitter = Splitter::default();
            let mut found = Vec::new();
            for chunk in chunks {
                splitter.push(chunk);
                found.extend(std::iter::from_fn(|| splitter.next_event().ok().flatten()));
            }
            found.extend(splitter.rest());
            found
        };
        let data: Vec<_> = whole.iter().map(|e| e.data().map(Cow::into_owned)).collect();
        assert_eq!(
            data,
            [
                Some(b"{\"a\":1}".to_vec()),
                None,
                Some(b"two\n\xc3\xa9".to_vec()),
                None,
                Some(b"[DONE]".to_vec()),
                None
            ]
        );
        for cut in 0..=STREAM.len() {
            let halves = cut_events(&[&STREAM[..cut], &STREAM[cut..]]);
            assert_eq!(halves, whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(cut_events(&single), whole);
        assert_eq!(whole.iter().flat_map(|e| e.0.to_vec()).collect::<Vec<_>>(), STREAM);
    }

    #[test]
    fn an_event_without_an_end_is_not_held_for_ever() {
        let mut splitter = Splitter::default();
        let piece = [&b"data: "[..], &b"x".repeat((1 << 20) - 7), b"\n"].concat();
        let pushes = (0..=EVENT_BYTES_MAX / piece.len()).take_while(|_| {
            splitter.push(&piece);
            splitter.next_event() == Ok(None)
        });
        assert_eq!(pushes.count(), EVENT_BYTES_MAX / piece.len());
    }

    #[test]
    fn an_event_of_endless_lines_is_not_held_for_ever() {
        let mut splitter = Splitter::default();
        splitter.push(&b"data:\n".repeat(EVENT_LINES_MAX));
        assert_eq!(splitter.next_event(), Ok(None));
        splitter.push(b"data:\n");
        assert_eq!(splitter.next_event(), Err(EventTooLong));
    }

    #[test]
    fn each_route_has_its_own_end() {
        let event = |text: &'static str| Event(Bytes::from_static(text.as_bytes()));
        let stop = event("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
        let done = event("data: [DONE]\n\n");
        let unnamed = event("data: {\"type\":\"response.failed\"}\n\n");
        let delta = event("event: content_block_delta\ndata: {\"t\":\"message_stop\"}\n\n");
        let ends = |route| [&stop, &done, &unnamed, &delta].map(|event| event.ends(route));
        assert_eq!(ends(Route::Messages), [true, false, false, false]);
        assert_eq!(ends(Route::Chat), [false, true, false, false]);
        assert_eq!(ends(Route::Responses), [false, false, true, false]);
    }

    #[test]
    fn the_payload_is_found_in_place() {
        let event = Event(Bytes::from_static(b"id: 7\ndata: {}\n\n"));
        assert_eq!(&event.0[event.payload()[0].clone()], b"{}");
        assert!(Event(Bytes::from_static(b": data: 1\n\n")).payload().is_empty());
        let two = Event(Bytes::from_static(b"data: 1\r\ndata:23\n\n"));
        let places = two.payload();
        assert_eq!(two.joined(&places).as_ref(), b"1\n23");
        let lines = LineMap::of(&places);
        let part = |part| -> Vec<&[u8]> {
            lines.places_of(part).into_iter().map(|place| &two.0[place]).collect()
        };
        assert_eq!(part(0..4), [&b"1"[..], b"23"]);
        assert_eq!((part(3..4), part(2..2)), (vec![&b"3"[..]], vec![&b""[..]]));
    }
}
