//! What becomes of a reply's bytes on their way to the agent.

use bytes::{Bytes, BytesMut};
use episode::{Outcome, Route};
use wire::{Event, Splitter};

use crate::coding::Decoder;
use crate::fault::Fault;
use crate::record::Recording;
use crate::rewrite::Manner;
use crate::tee::BoxError;

/// What becomes of bytes on their way.
#[derive(Debug)]
pub(crate) enum Lens {
    Events(Box<Events>),
    Plain(Plain),
}

/// Bytes that are not looked into.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    /// How many are still to come, where the upstream said so.
    pub(crate) left: Option<u64>,
    /// Makes them readable for the recording; none once that has failed.
    pub(crate) decoder: Option<Decoder>,
    /// Whether the agent gets them as they are recorded.
    pub(crate) is_opened: bool,
}

/// A stream of events, each shown as soon as it is whole.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) splitter: Splitter,
    pub(crate) decoder: Decoder,
    pub(crate) manner: Manner,
    /// The route that was called upstream.
    pub(crate) upstream: Route,
    /// The route that the agent called.
    pub(crate) agent: Route,
}

/// What one frame of the upstream comes to.
#[derive(Debug)]
pub(crate) enum Step {
    /// Bytes for the agent now; the reply goes on.
    Show(Bytes),
    /// Bytes for the agent now, and the end of the reply for when it is on disk.
    End { now: Bytes, held: Bytes, outcome: Outcome, tail: Tail },
}

/// What follows the end of a reply.
#[derive(Debug)]
pub(crate) enum Tail {
    /// Nothing.
    Nothing,
    /// Whatever the upstream still sends after its terminal event.
    More,
    /// The transfer breaks off.
    Broken(BoxError),
}

impl Step {
    fn ended(now: Bytes, held: Bytes, outcome: Outcome) -> Self {
        Self::End { now, held, outcome, tail: Tail::Nothing }
    }

    fn broken(now: Bytes, why: String, recording: &mut Recording) -> Self {
        recording.failed(why.clone());
        let tail = Tail::Broken(Fault::Broken(why).into());
        Self::End { now, held: Bytes::new(), outcome: Outcome::UpstreamFailed, tail }
    }
}

impl Lens {
    /// The next bytes of the upstream.
    pub(crate) fn bytes(&mut self, bytes: Bytes, recording: &mut Recording) -> Step {
        match self {
            Self::Plain(plain) => plain.take(bytes, recording),
            Self::Events(events) => match events.decoder.push(bytes) {
                Ok(plain) => {
                    events.splitter.push(&plain);
                    events.take(recording)
                }
                Err(error) => Step::broken(Bytes::new(), error.to_string(), recording),
            },
        }
    }

    /// Bytes that came after the terminal event.
    pub(crate) fn after(&mut self, bytes: Bytes) -> std::io::Result<Bytes> {
        match self {
            Self::Plain(_) => Ok(bytes),
            Self::Events(events) => events.decoder.push(bytes),
        }
    }

    /// Bytes that come when the agent has left, for the recording alone; gives whether the reply
    /// has come to its end.
    pub(crate) fn overheard(&mut self, bytes: Bytes, recording: &mut Recording) -> bool {
        let Self::Events(events) = self else { return true };
        let Ok(plain) = events.decoder.push(bytes) else { return true };
        events.splitter.push(&plain);
        while let Ok(next) = events.splitter.next_event() {
            let Some(event) = next else { return false };
            if event.ends(events.upstream) {
                return true;
            }
            if let Some(data) = event.data() {
                recording.said(&data);
            }
        }
        true
    }

    /// The upstream closed its side cleanly.
    pub(crate) fn end(&mut self, recording: &mut Recording) -> Step {
        match self {
            Self::Plain(plain) => plain.end(Bytes::new(), recording),
            Self::Events(events) => match events.decoder.finish() {
                Ok(()) => events.end(recording),
                Err(error) => Step::broken(Bytes::new(), error.to_string(), recording),
            },
        }
    }

    /// The connection broke. A half event stays behind: it could hold what must be hidden.
    pub(crate) fn cut(&mut self, why: String, recording: &mut Recording) -> Step {
        Step::broken(Bytes::new(), why, recording)
    }
}

impl Plain {
    fn take(&mut self, bytes: Bytes, recording: &mut Recording) -> Step {
        let left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
        self.left = left;
        let plain = self.decoder.as_mut().map(|decoder| decoder.push(bytes.clone())).transpose();
        let shown = match plain {
            Ok(plain) => {
                let plain = plain.unwrap_or_default();
                recording.shown(&plain);
                if self.is_opened { plain } else { bytes }
            }
            Err(error) if self.is_opened => {
                return Step::broken(Bytes::new(), error.to_string(), recording);
            }
            Err(error) => {
                self.damaged(&error, recording);
                bytes
            }
        };
        if left == Some(0) { self.end(shown, recording) } else { Step::Show(shown) }
    }

    /// The end, with what is shown of it. Trailers may still follow.
    fn end(&mut self, held: Bytes, recording: &mut Recording) -> Step {
        match self.decoder.as_mut().map_or(Ok(()), Decoder::finish) {
            Err(error) if self.is_opened => {
                return Step::broken(held, error.to_string(), recording);
            }
            Err(error) => self.damaged(&error, recording),
            Ok(()) => {}
        }
        Step::End { now: Bytes::new(), held, outcome: Outcome::Complete, tail: Tail::More }
    }

    /// What cannot be decoded is not recorded any further; the agent gets it all the same.
    fn damaged(&mut self, error: &std::io::Error, recording: &mut Recording) {
        self.decoder = None;
        recording.failed(format!("the reply's coding is damaged: {error}"));
    }
}

impl Events {
    /// Takes every whole event. From the terminal event on everything is held.
    fn take(&mut self, recording: &mut Recording) -> Step {
        let mut shown = BytesMut::new();
        loop {
            match self.splitter.next_event() {
                Ok(Some(event)) if event.ends(self.upstream) => {
                    let held = self.last(&event, recording);
                    let tail = match &self.manner {
                        Manner::Native(_) => Tail::More,
                        Manner::Translated(_) => Tail::Nothing,
                    };
                    let (now, outcome) = (shown.freeze(), Outcome::Complete);
                    return Step::End { now, held, outcome, tail };
                }
                Ok(Some(event)) => self.show(&event, recording, &mut shown),
                Ok(None) => return Step::Show(shown.freeze()),
                Err(too_long) => {
                    return Step::broken(shown.freeze(), too_long.to_string(), recording);
                }
            }
        }
    }

    /// What the agent is shown of the terminal event and whatever came with it.
    fn last(&mut self, event: &Event, recording: &mut Recording) -> Bytes {
        let mut held = BytesMut::new();
        match &mut self.manner {
            Manner::Translated(back) => held.extend_from_slice(&back.end()),
            Manner::Native(hide) => {
                if let Some(data) = event.data().filter(|data| data.trim_ascii() != b"[DONE]") {
                    recording.said(&data);
                }
                held.extend_from_slice(&hide.event(event).unwrap_or_default());
                if let Some(rest) = self.splitter.rest() {
                    held.extend_from_slice(&rest.0);
                }
            }
        }
        recording.shown(&held);
        held.freeze()
    }

    fn show(&mut self, event: &Event, recording: &mut Recording, shown: &mut BytesMut) {
        if let Some(data) = event.data() {
            recording.said(&data);
        }
        let bytes = match &mut self.manner {
            Manner::Native(hide) => hide.event(event),
            Manner::Translated(back) => Some(back.event(event)),
        };
        if let Some(bytes) = bytes {
            recording.shown(&bytes);
            shown.extend_from_slice(&bytes);
        }
    }

    fn end(&mut self, recording: &mut Recording) -> Step {
        let mut last = BytesMut::new();
        if let Some(event) = self.splitter.rest() {
            self.show(&event, recording, &mut last);
        }
        // Some servers end without the terminal event. If every choice said why it stopped,
        // nothing is missing.
        let whole = recording.finished();
        let why = "the stream ended without its terminal event";
        if let Manner::Translated(back) = &mut self.manner {
            let end = if whole { back.end() } else { back.error(why, 502) };
            recording.shown(&end);
            last.extend_from_slice(&end);
        }
        if !whole {
            recording.failed(why.to_owned());
        }
        let outcome = if whole { Outcome::Complete } else { Outcome::UpstreamFailed };
        Step::ended(Bytes::new(), last.freeze(), outcome)
    }
}
