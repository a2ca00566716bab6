//! The transform of a reply's bytes on their way to the agent and to the recording.

use bytes::{Bytes, BytesMut};
use episode::{Outcome, Route};
use http::body::BoxError;
use http::body::coding::Decoder;
use wire::{Event, ReadEvent, ReplyKind, Splitter};

use crate::bounds::DECODED_PIECE_BYTES_MAX;
use crate::error::CallError;
use crate::record::recording::Recording;
use crate::reply::document::{LateDocument, LateEnd};
use crate::reply::opening::Opening;
use crate::upstream::rewrite::ContentTransform;

/// The transform of a reply's body.
#[derive(Debug)]
pub(crate) enum BodyTransform {
    /// A reply of a sampling route that may be a stream or a document.
    Opening(Box<Opening>),
    Events(Box<EventTransform>),
    Document(Box<LateDocument>),
    Opaque(OpaqueTransform),
}

/// A body whose content is recorded and not changed.
#[derive(Debug, Default)]
pub(crate) struct OpaqueTransform {
    /// Number of bytes to come, if the upstream announced it.
    pub(crate) remaining: Option<u64>,
    /// Decodes the bytes for the recording; `None` once that failed.
    pub(crate) decoder: Option<Decoder>,
    /// True if the agent receives the decoded bytes.
    pub(crate) sends_decoded: bool,
}

/// A stream of server-sent events. Each event is sent as soon as it is whole.
#[derive(Debug)]
pub(crate) struct EventTransform {
    splitter: Splitter,
    decoder: Decoder,
    content: ContentTransform,
    /// The route that was called upstream.
    upstream: Route,
    /// The route that the agent called.
    pub(crate) agent: Route,
}

/// The result of one frame of the upstream.
#[derive(Debug)]
pub(crate) enum TransformStep {
    /// Bytes for the agent. The reply goes on.
    Send(Bytes),
    /// The end of the reply: bytes for the agent now, and bytes for when the call is on disk.
    End { now: Bytes, held: Bytes, outcome: Outcome, tail: Tail },
}

/// The part of a transfer after the end of the reply.
#[derive(Debug)]
pub(crate) enum Tail {
    /// Nothing.
    Nothing,
    /// The bytes that the upstream sends after its terminal event.
    Upstream,
    /// An error that breaks the transfer off.
    Broken(BoxError),
}

impl TransformStep {
    /// A step without bytes.
    pub(crate) fn nothing() -> Self {
        Self::Send(Bytes::new())
    }

    /// The step, with bytes in front that are sent now.
    fn after(self, first: Bytes) -> Self {
        let joined = |bytes: Bytes| match (first.is_empty(), bytes.is_empty()) {
            (true, _) => bytes,
            (false, true) => first,
            (false, false) => Bytes::from([first, bytes].concat()),
        };
        match self {
            Self::Send(bytes) => Self::Send(joined(bytes)),
            Self::End { now, held, outcome, tail } => {
                Self::End { now: joined(now), held, outcome, tail }
            }
        }
    }

    fn broken(now: Bytes, error: String, recording: &mut Recording) -> Self {
        recording.set_error(error.clone());
        let tail = Tail::Broken(CallError::Broken(error).into());
        Self::End { now, held: Bytes::new(), outcome: Outcome::UpstreamFailed, tail }
    }
}

impl BodyTransform {
    /// Takes a piece off `bytes`: all, or of coded ones as many as are decoded at a time.
    pub(crate) fn take_piece(&self, bytes: &mut Bytes) -> Bytes {
        let decoder = match self {
            Self::Opaque(opaque) => opaque.decoder.as_ref(),
            Self::Opening(opening) => Some(&opening.decoder),
            Self::Events(events) => Some(&events.decoder),
            Self::Document(document) => Some(&document.decoder),
        };
        match decoder.is_none_or(Decoder::is_identity) {
            true => std::mem::take(bytes),
            false => bytes.split_to(bytes.len().min(DECODED_PIECE_BYTES_MAX)),
        }
    }

    /// Bytes that are held of an event, or of a document, that has not ended.
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Opaque(_) => 0,
            Self::Opening(opening) => opening.text.len(),
            Self::Events(events) => events.splitter.held(),
            Self::Document(document) => document.held(),
        }
    }

    /// Takes the next bytes of the upstream.
    pub(crate) fn push(&mut self, bytes: Bytes, recording: &mut Recording) -> TransformStep {
        let step = self.push_unmetered(bytes, recording);
        recording.hold_beside(self.held());
        step
    }

    fn push_unmetered(&mut self, bytes: Bytes, recording: &mut Recording) -> TransformStep {
        match self {
            Self::Opaque(opaque) => opaque.push(bytes, recording),
            Self::Opening(opening) => match opening.push(bytes) {
                Ok(()) => {
                    let kind = opening.kind();
                    self.open(kind, recording)
                }
                Err(error) => TransformStep::broken(Bytes::new(), error.to_string(), recording),
            },

            Self::Document(document) => match document.push(bytes) {
                Ok(()) => TransformStep::nothing(),
                Err(error) => self.break_off(error, recording),
            },
            Self::Events(events) => match events.decoder.push(bytes) {
                Ok(decoded) => {
                    events.splitter.push(&decoded);
                    events.take_events(recording)
                }
                Err(error) => TransformStep::broken(Bytes::new(), error.to_string(), recording),
            },
        }
    }

    /// Sends the white space at the start of a reply, and goes on by its kind if that is known.
    fn open(&mut self, kind: Option<ReplyKind>, recording: &mut Recording) -> TransformStep {
        let Self::Opening(opening) = self else { return TransformStep::nothing() };
        let padding = opening.take_padding();
        recording.add_reply_bytes(&padding);
        let Some(kind) = kind else { return TransformStep::Send(padding) };

        if let Some(pulse) = recording.pulse() {
            pulse.set_stream(kind == ReplyKind::Events);
        }
        let unused = Self::Opaque(OpaqueTransform::default());
        if let Self::Opening(opening) = std::mem::replace(self, unused) {
            *self = match kind {
                ReplyKind::Events => Self::Events(Box::new(EventTransform::new(*opening))),
                ReplyKind::Document => Self::Document(Box::new(LateDocument::new(*opening))),
            };
        }
        match self {
            Self::Events(events) => events.take_events(recording).after(padding),
            _ => TransformStep::Send(padding),
        }
    }

    /// Takes bytes that follow the terminal event; returns what the agent gets of them.
    pub(crate) fn push_after_end(&mut self, bytes: Bytes) -> std::io::Result<Bytes> {
        match self {
            Self::Opaque(_) | Self::Opening(_) | Self::Document(_) => Ok(bytes),
            Self::Events(events) => events.push_after_end(bytes),
        }
    }

    /// The agent's form of the bytes that follow the terminal event.
    pub(crate) fn rest_after_end(&mut self) -> Bytes {
        let Self::Events(events) = self else { return Bytes::new() };
        let rest = events.splitter.rest();
        rest.and_then(|rest| events.hidden(&rest)).unwrap_or_default()
    }

    /// Takes bytes for the recording alone; returns whether the reply has reached its end.
    pub(crate) fn drain(&mut self, bytes: Bytes, recording: &mut Recording) -> bool {
        let Self::Events(events) = self else { return true };
        let Ok(decoded) = events.decoder.push(bytes) else { return true };
        events.splitter.push(&decoded);
        while let Ok(next) = events.splitter.next_event() {
            let Some(event) = next else { return false };
            let read = event.read();
            if read.ends(events.upstream) {
                return true;
            }
            recording.add_upstream_event(&read);
        }
        true
    }

    /// Ends the body after the upstream closed its side cleanly.
    pub(crate) fn end(&mut self, recording: &mut Recording) -> TransformStep {
        match self {
            Self::Opaque(opaque) => opaque.end(Bytes::new(), recording),
            Self::Opening(opening) => {
                let kind = opening.kind_at_end();
                match self.open(Some(kind), recording) {
                    TransformStep::Send(first) => self.end(recording).after(first),
                    ended @ TransformStep::End { .. } => ended,
                }
            }

            Self::Document(document) => match document.decoder.finish() {
                Ok(()) => {
                    let LateEnd { held, error } = document.end(recording);
                    let tail = error.map_or(Tail::Nothing, |error| Tail::Broken(error.into()));
                    let (now, outcome) = (Bytes::new(), Outcome::Complete);
                    TransformStep::End { now, held, outcome, tail }
                }
                Err(error) => self.break_off(error.to_string(), recording),
            },
            Self::Events(events) => match events.decoder.finish() {
                Ok(()) => events.end(recording),
                Err(error) => TransformStep::broken(Bytes::new(), error.to_string(), recording),
            },
        }
    }

    /// Ends the body after the connection broke. A partial event is not sent: it may contain what
    /// must be hidden.
    pub(crate) fn break_off(&mut self, error: String, recording: &mut Recording) -> TransformStep {
        if let Self::Document(document) = self {
            document.break_off(recording);
        }
        TransformStep::broken(Bytes::new(), error, recording)
    }
}

impl OpaqueTransform {
    fn push(&mut self, bytes: Bytes, recording: &mut Recording) -> TransformStep {
        let remaining = self.remaining.map(|left| left.saturating_sub(bytes.len() as u64));
        self.remaining = remaining;

        let decoded = self.decoder.as_mut().map(|decoder| decoder.push(bytes.clone())).transpose();
        let sent = match decoded {
            Ok(decoded) => {
                let decoded = decoded.unwrap_or_default();
                recording.add_reply_bytes(&decoded);
                if self.sends_decoded { decoded } else { bytes }
            }
            Err(error) if self.sends_decoded => {
                return TransformStep::broken(Bytes::new(), error.to_string(), recording);
            }
            // The agent decodes the body itself, and will find the damage.
            Err(error) => {
                self.stop_decoding(&error, recording);
                bytes
            }
        };

        // The last bytes are held until the call is on disk.
        match remaining {
            Some(0) => self.end(sent, recording),
            _ => TransformStep::Send(sent),
        }
    }

    /// Ends the body, with its last bytes. Trailers may still follow.
    fn end(&mut self, held: Bytes, recording: &mut Recording) -> TransformStep {
        match self.decoder.as_mut().map_or(Ok(()), Decoder::finish) {
            Err(error) if self.sends_decoded => {
                return TransformStep::broken(held, error.to_string(), recording);
            }
            Err(error) => self.stop_decoding(&error, recording),
            Ok(()) => {}
        }
        let (now, outcome) = (Bytes::new(), Outcome::Complete);
        TransformStep::End { now, held, outcome, tail: Tail::Upstream }
    }

    /// Stops the recording of a body that cannot be decoded. The agent still receives it.
    fn stop_decoding(&mut self, error: &std::io::Error, recording: &mut Recording) {
        self.decoder = None;
        recording.set_error(format!("the reply's coding is damaged: {error}"));
    }
}

impl EventTransform {
    /// The stream that begins with what was read of `opening`.
    fn new(opening: Opening) -> Self {
        let Opening { text, decoder, path, .. } = opening;
        let mut splitter = Splitter::default();
        splitter.push(&text);
        Self {
            splitter,
            decoder,
            content: path.content,
            upstream: path.upstream,
            agent: path.agent,
        }
    }

    /// Takes every whole event. The terminal event and what follows it are held.
    fn take_events(&mut self, recording: &mut Recording) -> TransformStep {
        let mut sent = BytesMut::new();
        loop {
            let event = match self.splitter.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return TransformStep::Send(sent.freeze()),
                Err(error) => {
                    return TransformStep::broken(sent.freeze(), error.to_string(), recording);
                }
            };
            let read = event.read();
            if !read.ends(self.upstream) {
                self.take_event(&read, recording, &mut sent);
                continue;
            }

            let held = self.take_terminal(&read, recording);
            let tail = match &self.content {
                ContentTransform::Native(_) => Tail::Upstream,
                ContentTransform::Translated(_) => Tail::Nothing,
            };
            let (now, outcome) = (sent.freeze(), Outcome::Complete);
            return TransformStep::End { now, held, outcome, tail };
        }
    }

    /// The agent's form of the terminal event and of the bytes that came with it.
    fn take_terminal(&mut self, read: &ReadEvent<'_>, recording: &mut Recording) -> Bytes {
        let mut held = BytesMut::new();
        match &mut self.content {
            ContentTransform::Translated(back) => held.extend_from_slice(&back.end()),
            ContentTransform::Native(hide) => {
                recording.add_upstream_event(read);
                held.extend_from_slice(&hide.event(read).unwrap_or_default());
                while let Ok(Some(event)) = self.splitter.next_event() {
                    held.extend_from_slice(&self.hidden(&event).unwrap_or_default());
                }
            }
        }
        recording.add_reply_bytes(&held);
        held.freeze()
    }

    /// An event that follows the terminal one, in the agent's form.
    fn hidden(&self, event: &Event) -> Option<Bytes> {
        match &self.content {
            ContentTransform::Native(hide) => hide.event(&event.read()),
            ContentTransform::Translated(_) => None,
        }
    }

    fn push_after_end(&mut self, bytes: Bytes) -> std::io::Result<Bytes> {
        self.splitter.push(&self.decoder.push(bytes)?);
        let mut sent = BytesMut::new();
        while let Some(event) = self.splitter.next_event().map_err(std::io::Error::other)? {
            sent.extend_from_slice(&self.hidden(&event).unwrap_or_default());
        }
        Ok(sent.freeze())
    }

    /// Records an event, and adds the agent's form of it to `sent`.
    fn take_event(&mut self, read: &ReadEvent<'_>, recording: &mut Recording, sent: &mut BytesMut) {
        recording.add_upstream_event(read);
        let bytes = match &mut self.content {
            ContentTransform::Native(hide) => hide.event(read),
            ContentTransform::Translated(back) => Some(back.event(read)),
        };
        if let Some(bytes) = bytes {
            recording.add_reply_bytes(&bytes);
            sent.extend_from_slice(&bytes);
        }
    }

    /// Ends a stream that had no terminal event. Some servers end so; nothing is missing if every
    /// choice has reported its finish reason.
    fn end(&mut self, recording: &mut Recording) -> TransformStep {
        let mut held = BytesMut::new();
        if let Some(event) = self.splitter.rest() {
            self.take_event(&event.read(), recording, &mut held);
        }

        let is_whole = recording.is_finished();
        let error = "the stream ended without its terminal event";
        if let ContentTransform::Translated(back) = &mut self.content {
            let end = if is_whole { back.end() } else { back.error(error, 502) };
            recording.add_reply_bytes(&end);
            held.extend_from_slice(&end);
        }
        // An error that the stream told says more.
        if !is_whole && !recording.has_failed() {
            recording.set_error(error.to_owned());
        }

        let (now, held, outcome) = (Bytes::new(), held.freeze(), Outcome::Complete);
        TransformStep::End { now, held, outcome, tail: Tail::Nothing }
    }
}
