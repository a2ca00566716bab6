//! Documents: replies that are read whole before they are sent.

use bytes::{Bytes, BytesMut};
use http::body::coding::Decoder;
use http::bounds::BODY_COPIES;
use wire::{ReplyFilter, ReplyPart, Splitter};

use crate::error::CallError;
use crate::record::recording::Recording;
use crate::reply::opening::{ContentPath, Opening};
use crate::upstream::rewrite::ContentTransform;

/// The agent's form of a document.
#[derive(Debug)]
pub(crate) struct AgentDocument {
    pub(crate) status: u16,
    /// The content type, if it is not the upstream's.
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: Bytes,
}

/// Records a document that came with `status`; returns the agent's form of it.
pub(crate) fn agent_document(
    status: u16,
    document: &Bytes,
    content: ContentTransform,
    recording: &mut Recording,
) -> AgentDocument {
    let parts = wire::parts(document);
    parts.iter().for_each(|part| record(part, recording));

    match content {
        ContentTransform::Native(hide) => {
            let body = match parts.as_slice() {
                [only] => hidden(&hide, only),
                several => several
                    .iter()
                    .map(|part| hidden(&hide, part))
                    .collect::<Vec<_>>()
                    .concat()
                    .into(),
            };
            AgentDocument { status, content_type: None, body }
        }
        ContentTransform::Translated(back) => {
            recording.note_upstream_status(status);
            let first = parts.iter().find_map(|part| match part {
                ReplyPart::Document(document) => Some(document.bytes()),
                ReplyPart::Events(_) => None,
            });
            let translated = back.document(status, first.unwrap_or(document));
            recording.set_status(translated.status);
            let content_type = Some(translated.content_type);
            AgentDocument { status: translated.status, content_type, body: translated.body }
        }
    }
}

/// A part without what rolltape asked for.
fn hidden(hide: &ReplyFilter, part: &ReplyPart) -> Bytes {
    match part {
        ReplyPart::Document(document) => hide.document(document),
        ReplyPart::Events(bytes) => {
            let mut shown = BytesMut::new();
            each_event(bytes, |event| {
                shown.extend_from_slice(&hide.event(event).unwrap_or_default());
            });
            shown.freeze()
        }
    }
}

fn record(part: &ReplyPart, recording: &mut Recording) {
    match part {
        ReplyPart::Document(document) => recording.add_upstream_document(document),
        ReplyPart::Events(bytes) => each_event(bytes, |event| {
            if let Some(data) = event.data().filter(|_| !event.is_done()) {
                recording.add_upstream_document(data);
            }
        }),
    }
}

/// Calls `take` with each event of `bytes`, and with what is left of them.
fn each_event(bytes: &[u8], mut take: impl FnMut(&wire::ReadEvent<'_>)) {
    let mut splitter = Splitter::default();
    splitter.push(bytes);
    while let Ok(Some(event)) = splitter.next_event() {
        take(&event.read());
    }
    if let Some(rest) = splitter.rest() {
        take(&rest.read());
    }
}

/// A document whose head was sent before it came.
#[derive(Debug)]
pub(crate) struct LateDocument {
    read: BytesMut,
    pub(crate) decoder: Decoder,
    path: ContentPath,
}

/// The end of a [`LateDocument`]: bytes for the agent, and the error that breaks the transfer.
pub(crate) struct LateEnd {
    pub(crate) held: Bytes,
    pub(crate) error: Option<String>,
}

impl LateDocument {
    /// The document that begins with what was read of `opening`.
    pub(crate) fn new(opening: Opening) -> Self {
        let Opening { text, decoder, path, .. } = opening;
        Self { read: text, decoder, path }
    }

    /// Takes the next bytes of the upstream.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Result<(), String> {
        let decoded = self.decoder.push(bytes).map_err(|error| error.to_string())?;
        if self.read.len() + decoded.len() > self.path.bytes_max {
            return Err(CallError::ReplyTooLong(self.path.bytes_max).to_string());
        }
        self.read.extend_from_slice(&decoded);
        Ok(())
    }

    /// Bytes that are held until the document is whole.
    pub(crate) fn held(&self) -> usize {
        self.read.len() * BODY_COPIES
    }

    /// Ends the document. An error in a translated reply has no status any more: a stream tells it
    /// in an event, and a transfer breaks, since the document would pass for an answer.
    pub(crate) fn end(&mut self, recording: &mut Recording) -> LateEnd {
        let is_stream = self.path.translates_a_stream();
        let content = self.take_content();
        let document = self.read.split().freeze();
        let shown = agent_document(self.path.status, &document, content, recording);
        recording.add_reply_bytes(&shown.body);
        if shown.status < 400 || self.path.status >= 400 {
            return LateEnd { held: shown.body, error: None };
        }

        let text = wire::error_text(&shown.body);
        match is_stream {
            true => {
                let event =
                    wire::error_event(self.path.agent, shown.status, "upstream_error", &text);
                LateEnd { held: Bytes::from(event), error: None }
            }
            false => LateEnd {
                held: Bytes::new(),
                error: Some(format!("status {}: {text}", shown.status)),
            },
        }
    }

    /// Records what came of a document that broke off. The agent gets none of it.
    pub(crate) fn break_off(&mut self, recording: &mut Recording) {
        if let ContentTransform::Native(hide) = self.take_content() {
            let read = self.read.split().freeze();
            for part in wire::parts(&read) {
                recording.add_reply_bytes(&hidden(&hide, &part));
            }
        }
    }

    fn take_content(&mut self) -> ContentTransform {
        let nothing = ContentTransform::Native(ReplyFilter::default());
        std::mem::replace(&mut self.path.content, nothing)
    }
}
