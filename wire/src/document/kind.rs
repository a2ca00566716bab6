//! What a reply is. Its bytes say it, whatever its content type says: servers send event streams as
//! `application/json` or without a type, and documents as `text/event-stream`.

use std::ops::Range;

use bytes::Bytes;

use crate::document::ReplyDocument;
use crate::json::{Ends, root};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The fields of an event.
const EVENT_FIELDS: [&[u8]; 4] = [b"data", b"event", b"id", b"retry"];

/// The kind of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// A stream of server-sent events. Each can be read by itself.
    Events,
    /// Anything else, above all a JSON document. It can be read once it is whole.
    Document,
}

impl ReplyKind {
    /// The kind of a reply that begins with `beginning`; `None` as long as that does not tell.
    /// `is_declared` says that the content type is that of an event stream.
    pub fn of(beginning: &[u8], is_declared: bool) -> Option<Self> {
        if BYTE_ORDER_MARK.starts_with(beginning) {
            return None;
        }
        let text = beginning.strip_prefix(BYTE_ORDER_MARK).unwrap_or(beginning);
        let text = text.trim_ascii_start();
        match text.first()? {
            b'{' | b'[' | b'"' | b'<' => Some(Self::Document),
            _ if is_declared => Some(Self::Events),
            _ => kind_of_line(text),
        }
    }

    /// The kind of a reply that ended before its bytes told.
    pub fn at_end(is_declared: bool) -> Self {
        if is_declared { Self::Events } else { Self::Document }
    }
}

/// The kind of a reply without the type of an event stream, of which some of the first line is
/// known.
fn kind_of_line(text: &[u8]) -> Option<ReplyKind> {
    let end = text.iter().position(|byte| matches!(byte, b':' | b'\r' | b'\n'));
    let is_field = match end {
        // A comment has no field before the colon.
        Some(0) => true,
        Some(end) => EVENT_FIELDS.contains(&&text[..end]),
        None if EVENT_FIELDS.iter().any(|field| field.starts_with(text)) => return None,
        None => false,
    };
    Some(if is_field { ReplyKind::Events } else { ReplyKind::Document })
}

/// The number of bytes of white space at the start of a reply: some servers send it so that nobody
/// takes the connection for dead. It belongs to no event and to no document.
pub fn padding(beginning: &[u8]) -> usize {
    beginning.len() - beginning.trim_ascii_start().len()
}

/// A part of a whole reply that is no event stream.
#[derive(Debug)]
pub enum ReplyPart {
    /// One document, or what is not JSON.
    Document(ReplyDocument),
    /// Events after a document: some servers end it like a stream.
    Events(Bytes),
}

/// The parts of a whole reply that is no event stream. Together they are the reply.
pub fn parts(reply: &Bytes) -> Vec<ReplyPart> {
    let whole = ReplyDocument::new(reply.clone());
    if whole.outline().is_ok_and(|outline| root(&outline).is_ok()) {
        return vec![ReplyPart::Document(whole)];
    }
    let part = |(is_document, place)| {
        let bytes = reply.slice(place);
        match is_document {
            true => ReplyPart::Document(ReplyDocument::new(bytes)),
            false => ReplyPart::Events(bytes),
        }
    };
    places(reply).into_iter().map(part).collect()
}

/// The places of the parts of a reply, each with whether it is a document.
pub(crate) fn places(reply: &[u8]) -> Vec<(bool, Range<usize>)> {
    let mut found = Vec::new();
    let mut at = 0;
    if reply.starts_with(BYTE_ORDER_MARK) {
        at = BYTE_ORDER_MARK.len();
        found.push((false, 0..at));
    }
    while let Some(end) = document_end(reply, at) {
        found.push((true, at..end));
        at = end;
    }

    let has_document = found.iter().any(|(is_document, _)| *is_document);
    match found.last_mut() {
        _ if at == reply.len() && has_document => {}
        // The space after a document is part of it.
        Some((true, last)) if reply[at..].trim_ascii().is_empty() => last.end = reply.len(),
        Some((true, _)) => found.push((false, at..reply.len())),
        _ => found = vec![(true, 0..reply.len())],
    }
    found
}

/// The end of the object or array that begins at `at`, after white space.
fn document_end(reply: &[u8], at: usize) -> Option<usize> {
    let start = at + padding(&reply[at..]);
    let is_open = matches!(reply.get(start), Some(b'{' | b'['));
    if is_open { reply.end_of(start).ok() } else { None }
}

/// The first document of a recorded reply, if it begins with one; else all of it.
pub(crate) fn first_document(reply: &[u8]) -> &[u8] {
    let text = reply.strip_prefix(BYTE_ORDER_MARK).unwrap_or(reply);
    match document_end(text, 0) {
        Some(end) => &text[..end],
        None => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAMS: [&str; 8] = [
        "data: {}\n\n",
        "data:{}",
        ": alive\n\n",
        "event: x\ndata: {}\n\n",
        "id\n",
        "retry: 3\r\n",
        "\u{feff}data: 1\n\n",
        " \r\n\n\tid: 7\n",
    ];
    const DOCUMENTS: [&str; 6] =
        ["{", "[1]", "\n\n {\"a\":1}", "\u{feff}{}", "<html>", "\"overloaded\""];

    #[test]
    fn the_first_bytes_tell_the_kind_whatever_the_type() {
        for is_declared in [false, true] {
            for stream in STREAMS {
                let kind = ReplyKind::of(stream.as_bytes(), is_declared);
                assert_eq!(kind, Some(ReplyKind::Events), "{stream}");
            }
            for document in DOCUMENTS {
                let kind = ReplyKind::of(document.as_bytes(), is_declared);
                assert_eq!(kind, Some(ReplyKind::Document), "{document}");
            }
        }
        for text in ["dated: 1", "upstream error", "identity: x", "null", "data base: x"] {
            let kind = |is_declared| ReplyKind::of(text.as_bytes(), is_declared);
            assert_eq!(kind(false), Some(ReplyKind::Document), "{text}");
            assert_eq!(kind(true), Some(ReplyKind::Events), "{text}");
        }
    }

    #[test]
    fn no_beginning_tells_another_kind_than_the_whole() {
        for is_declared in [false, true] {
            for reply in STREAMS.iter().chain(&DOCUMENTS) {
                let bytes = reply.as_bytes();
                let whole = ReplyKind::of(bytes, is_declared);
                for cut in 0..bytes.len() {
                    let kind = ReplyKind::of(&bytes[..cut], is_declared);
                    assert!(kind.is_none() || kind == whole, "{reply:?} at {cut}");
                }
            }
            assert_eq!(ReplyKind::of(b" \n\t\r", is_declared), None);
        }
    }

    #[test]
    fn white_space_is_told_from_what_follows() {
        let lengths =
            ["", " \n", "\r\n\r\n{", "x ", "\u{feff} {"].map(|text| padding(text.as_bytes()));
        assert_eq!(lengths, [0, 2, 4, 0, 0]);
    }

    #[test]
    fn a_document_may_be_followed_by_events_or_by_documents() {
        let shown = |reply: &'static str| -> Vec<String> {
            let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
            let all = parts(&Bytes::from_static(reply.as_bytes()));
            let named = all.iter().map(|part| match part {
                ReplyPart::Document(document) => format!("document {}", text(document.bytes())),
                ReplyPart::Events(bytes) => format!("events {}", text(bytes)),
            });
            named.collect()
        };
        assert_eq!(shown(" {\"a\":1}\n"), ["document  {\"a\":1}\n"]);
        assert_eq!(shown("{}\n\ndata: [DONE]\n\n"), ["document {}", "events \n\ndata: [DONE]\n\n"]);
        assert_eq!(shown("{}\n[2]\n"), ["document {}", "document \n[2]\n"]);
        assert_eq!(shown("\u{feff}{}\n"), ["events \u{feff}", "document {}\n"]);
        for other in ["<html>{}", "{\"a\":", "", "upstream error", "\u{feff}", "\u{feff}x"] {
            assert_eq!(shown(other), [format!("document {other}")]);
        }
        let first = |reply: &'static str| first_document(reply.as_bytes());
        assert_eq!(first("\u{feff} {}\n\ndata: [DONE]\n\n"), b" {}");
        assert_eq!(first("data: {}\n\n"), b"data: {}\n\n");
    }
}
