//! The beginning of a reply, up to the bytes that tell whether it is an event stream or a document.

use std::io;

use bytes::{Bytes, BytesMut};
use episode::Route;
use http::body::coding::Decoder;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Frame, Incoming};
use wire::ReplyKind;

use crate::bounds::DECODED_PIECE_BYTES_MAX;
use crate::upstream::rewrite::ContentTransform;

/// The way of a reply's content to the agent.
#[derive(Debug)]
pub(crate) struct ContentPath {
    pub(crate) content: ContentTransform,
    /// The route that was called upstream.
    pub(crate) upstream: Route,
    /// The route that the agent called.
    pub(crate) agent: Route,
    /// The upstream's status.
    pub(crate) status: u16,
    /// Longest document, in bytes.
    pub(crate) bytes_max: usize,
}

impl ContentPath {
    /// True if the agent asked for a stream in a wire that the upstream does not speak.
    pub(crate) fn translates_a_stream(&self) -> bool {
        matches!(&self.content, ContentTransform::Translated(back) if back.streams())
    }
}

/// The kind of a reply's body, as far as it is known with the head, which carries it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyKind(pub(crate) Option<ReplyKind>);

/// A reply whose kind is not known yet.
#[derive(Debug)]
pub(crate) struct Opening {
    /// Decoded bytes that were not sent.
    pub(crate) text: BytesMut,
    pub(crate) decoder: Decoder,
    /// True if the content type is that of an event stream.
    pub(crate) is_declared: bool,
    pub(crate) path: ContentPath,
}

impl Opening {
    pub(crate) fn new(decoder: Decoder, is_declared: bool, path: ContentPath) -> Self {
        Self { text: BytesMut::new(), decoder, is_declared, path }
    }

    /// Takes the next bytes of the upstream.
    pub(crate) fn push(&mut self, bytes: Bytes) -> io::Result<()> {
        if !bytes.is_empty() {
            self.text.extend_from_slice(&self.decoder.push(bytes)?);
        }
        Ok(())
    }

    /// The kind of the reply, as soon as its bytes tell.
    pub(crate) fn kind(&self) -> Option<ReplyKind> {
        ReplyKind::of(&self.text, self.is_declared)
    }

    /// The kind of a reply that has ended.
    pub(crate) fn kind_at_end(&self) -> ReplyKind {
        self.kind().unwrap_or_else(|| ReplyKind::at_end(self.is_declared))
    }

    /// True if nothing came that could be sent before the kind is known.
    fn has_no_padding(&self) -> bool {
        wire::padding(&self.text) == 0
    }

    /// Takes the white space at the start, in the agent's form. In a translated reply it is line
    /// feeds, which are in the way neither of a document nor of events.
    pub(crate) fn take_padding(&mut self) -> Bytes {
        let padding = self.text.split_to(wire::padding(&self.text)).freeze();
        match self.path.content {
            ContentTransform::Native(_) => padding,
            ContentTransform::Translated(_) => Bytes::from(vec![b'\n'; padding.len()]),
        }
    }
}

/// Bytes of a reply that were read before its head is sent.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    /// All bytes, as they came.
    pub(crate) coded: BytesMut,
    /// The last of them, which were not needed to tell the kind.
    pub(crate) unread: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    has_ended: bool,
    is_damaged: bool,
}

impl Beginning {
    /// Reads until the kind of the reply is known, or until there is white space to send. What was
    /// read stays if this is dropped before.
    pub(crate) async fn read(
        &mut self,
        opening: &mut Opening,
        body: &mut Incoming,
        mut arrived: impl FnMut(),
    ) -> Result<(), hyper::Error> {
        while opening.kind().is_none() && opening.has_no_padding() {
            if self.unread.is_empty() {
                let Some(frame) = body.frame().await else {
                    self.has_ended = true;
                    return Ok(());
                };
                arrived();
                match frame.map(Frame::into_data)? {
                    Ok(data) => self.unread = data,
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                }
                self.coded.extend_from_slice(&self.unread);
            }

            let size = self.unread.len().min(DECODED_PIECE_BYTES_MAX);
            if opening.push(self.unread.split_to(size)).is_err() {
                self.is_damaged = true;
                return Ok(());
            }
        }
        Ok(())
    }

    /// The kind of the reply, if it is known. A damaged one is read whole, which tells the damage.
    pub(crate) fn kind(&self, opening: &Opening) -> Option<ReplyKind> {
        match self.has_ended {
            _ if self.is_damaged => Some(ReplyKind::Document),
            true => Some(opening.kind_at_end()),
            false => opening.kind(),
        }
    }
}
