//! Server-sent events: bytes in, whole events out, whatever the chunking.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

/// An event longer than this is a broken stream: nobody's first chunk of prompt ids is as long.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// The data of the event that ends a stream of chat or text completions.
const DONE: &[u8] = b"[DONE]";

/// An event that outgrew its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {EVENT_BYTES_MAX} bytes")]
pub struct EventTooLong;

/// Cuts a byte stream into events.
#[derive(Debug, Default)]
pub struct Splitter {
    held: BytesMut,
    /// Start of the line that is being read.
    line: usize,
    /// Bytes already searched for its end.
    seen: usize,
}

/// One event with its lines and the blank line that ends it, exactly as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event(pub Bytes);

impl Splitter {
    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next whole event, if there is one.
    ///
    /// # Errors
    /// [`EventTooLong`] when the stream goes on and on without ending an event.
    pub fn next_event(&mut self) -> Result<Option<Event>, EventTooLong> {
        while let Some(length) = self.held[self.seen..].iter().position(|b| *b == b'\n') {
            let end = self.seen + length + 1;
            let blank = matches!(&self.held[self.line..end], b"\n" | b"\r\n");
            self.line = end;
            self.seen = end;
            if blank {
                (self.line, self.seen) = (0, 0);
                return Ok(Some(Event(self.held.split_to(end).freeze())));
            }
        }
        self.seen = self.held.len();
        if self.held.len() > EVENT_BYTES_MAX { Err(EventTooLong) } else { Ok(None) }
    }

    /// What is left when the stream ends without a blank line.
    pub fn rest(&mut self) -> Option<Event> {
        (self.line, self.seen) = (0, 0);
        let rest = self.held.split().freeze();
        (!rest.is_empty()).then_some(Event(rest))
    }
}

impl Event {
    /// Where the event's one `data:` line holds its payload, in bytes of the event; `None` when
    /// it has no such line or several.
    pub(crate) fn payload(&self) -> Option<std::ops::Range<usize>> {
        let mut found = None;
        for (start, line) in self.lines() {
            let Some(value) = data_of(line) else { continue };
            if found.is_some() {
                return None;
            }
            found = Some(start + value..start + line.len());
        }
        found
    }

    /// The event's data: its `data:` lines joined; `None` for comments and other fields.
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        let mut lines = self.lines().filter_map(|(_, line)| data_of(line).map(|at| &line[at..]));
        let first = lines.next()?;
        let mut joined = Cow::Borrowed(first);
        for line in lines {
            let owned = joined.to_mut();
            owned.push(b'\n');
            owned.extend_from_slice(line);
        }
        Some(joined)
    }

    /// Whether this event ends a stream of chat or text completions.
    pub fn is_done(&self) -> bool {
        self.data().is_some_and(|data| data.trim_ascii() == DONE)
    }

    /// Lines with their starts, without their ends.
    fn lines(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut start = 0;
        self.0.split_inclusive(|b| *b == b'\n').map(move |line| {
            let at = start;
            start += line.len();
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // Only the first line of a stream may carry a byte order mark.
            match line.strip_prefix(b"\xef\xbb\xbf") {
                Some(rest) if at == 0 => (at + 3, rest),
                _ => (at, line),
            }
        })
    }
}

/// All events of a stream that is there as a whole, in one chunk or many.
pub(crate) fn events(chunks: &[&[u8]]) -> Vec<Event> {
    let mut splitter = Splitter::default();
    let mut found = Vec::new();
    for chunk in chunks {
        splitter.push(chunk);
        while let Ok(Some(event)) = splitter.next_event() {
            found.push(event);
        }
    }
    found.extend(splitter.rest());
    found
}

/// Where the value of a `data:` line starts.
fn data_of(line: &[u8]) -> Option<usize> {
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
        let whole = events(&[STREAM]);
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
            let halves = events(&[&STREAM[..cut], &STREAM[cut..]]);
            assert_eq!(halves, whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(events(&single), whole);
        assert_eq!(whole.iter().flat_map(|e| e.0.to_vec()).collect::<Vec<_>>(), STREAM);
    }

    #[test]
    fn the_payload_of_a_single_data_line_is_found_in_place() {
        let event = Event(Bytes::from_static(b"id: 7\ndata: {}\n\n"));
        let place = event.payload().unwrap();
        assert_eq!(&event.0[place], b"{}");
        assert!(Event(Bytes::from_static(b"data: 1\ndata: 2\n\n")).payload().is_none());
        assert!(Event(Bytes::from_static(b": data: 1\n\n")).payload().is_none());
    }
}
