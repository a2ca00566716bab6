//! The body of a reply that is given again. Its last bytes wait for the commit.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use episode::{CallEnd, Micros, Outcome};
use http::body::BoxError;
use http::clock::now;
use hyper::body::{Body, Frame};
use store::CommitError;
use tokio::time::Sleep;

use super::deck::ReplyOnItsWay;
use crate::error::CallError;
use crate::record::open_call::{Commit, OpenCall};

/// The reason for which a transfer breaks off that broke off when it was recorded.
const BROKEN: &str = "the recorded reply breaks off here";

/// The bytes of a reply, in the pieces in which they are sent.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) bytes: Vec<Bytes>,
    /// The time that the reply takes; none if it is sent at once.
    pub(super) pauses: Option<Pauses>,
    /// True if the transfer breaks off behind them.
    pub(super) is_broken: bool,
}

/// The times that a recorded reply took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pauses {
    /// From the request to the first byte.
    pub(super) before_first: Duration,
    /// From there to the end. When each event came is not recorded.
    pub(super) after: Duration,
}

impl Pauses {
    pub(super) fn of(started_at: Micros, ended: &CallEnd) -> Self {
        let between = |from: Micros, until: Micros| {
            Duration::from_micros(u64::try_from(until - from).unwrap_or(0))
        };
        let first = ended.first_byte_at.unwrap_or(ended.ended_at);
        Self { before_first: between(started_at, first), after: between(first, ended.ended_at) }
    }
}

/// A body that is given again while it is recorded.
pub(super) struct ReplayedBody {
    pieces: VecDeque<Bytes>,
    pauses: Option<Pauses>,
    /// The number of pauses between pieces.
    gaps: u32,
    is_broken: bool,
    pause: Option<Pin<Box<Sleep>>>,
    state: SendState,
    /// There until the last piece is sent.
    on_its_way: Option<ReplyOnItsWay>,
}

enum SendState {
    Sending(Box<OpenCall>),
    /// Waiting for the commit, with the last piece in hand.
    Committing(Commit, Bytes),
    /// The transfer breaks. One poll is skipped first, so that hyper flushes what it holds.
    Flushing(BoxError),
    Breaking(BoxError),
    Ended,
}

impl ReplayedBody {
    pub(super) fn new(call: OpenCall, pieces: Pieces, on_its_way: ReplyOnItsWay) -> Self {
        let Pieces { bytes, pauses, is_broken } = pieces;
        let pause = pauses.map(|pauses| Box::pin(tokio::time::sleep(pauses.before_first)));
        Self {
            gaps: u32::try_from(bytes.len().saturating_sub(1)).unwrap_or(u32::MAX),
            pieces: bytes.into(),
            pauses,
            is_broken,
            pause,
            state: SendState::Sending(Box::new(call)),
            on_its_way: Some(on_its_way),
        }
    }

    /// Takes the next piece, and records it as sent.
    fn next_piece(&mut self) -> Bytes {
        let piece = self.pieces.pop_front().unwrap_or_default();
        if let SendState::Sending(call) = &mut self.state {
            call.recording().add_arrival(now);
            call.recording().add_reply_bytes(&piece);
        }
        let pauses = self.pauses.filter(|_| self.gaps > 0);
        self.pause = pauses.map(|pauses| Box::pin(tokio::time::sleep(pauses.after / self.gaps)));
        piece
    }

    /// Takes the step that follows the commit of the call.
    fn after(&mut self, committed: Result<(), CommitError>) {
        let error = match committed {
            Err(unrecorded) => CallError::from(unrecorded).to_string(),
            Ok(()) if self.is_broken => BROKEN.to_owned(),
            Ok(()) => return self.state = SendState::Ended,
        };
        self.state = SendState::Flushing(error.into());
    }
}

impl Body for ReplayedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }

            let is_last = self.pieces.len() <= 1;
            match std::mem::replace(&mut self.state, SendState::Ended) {
                SendState::Sending(call) if !is_last => {
                    self.state = SendState::Sending(call);
                    let piece = self.next_piece();
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                SendState::Sending(call) => {
                    self.state = SendState::Sending(call);
                    let piece = self.next_piece();
                    self.pause = None;
                    if let SendState::Sending(call) =
                        std::mem::replace(&mut self.state, SendState::Ended)
                    {
                        self.state = SendState::Committing(call.end(Outcome::Complete), piece);
                    }
                }
                SendState::Committing(mut commit, piece) => {
                    let Poll::Ready(done) = Pin::new(&mut commit).poll(cx) else {
                        self.state = SendState::Committing(commit, piece);
                        return Poll::Pending;
                    };
                    let committed = done.unwrap_or(Err(CommitError::Stopped));
                    let is_recorded = committed.is_ok();
                    self.after(committed);
                    if let Some(reply) = self.on_its_way.take() {
                        reply.arrived();
                    }
                    if is_recorded && !piece.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                }
                SendState::Flushing(error) => {
                    self.state = SendState::Breaking(error);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                SendState::Breaking(error) => return Poll::Ready(Some(Err(error))),
                SendState::Ended => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use episode::CallId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_times_of_a_reply_are_those_of_its_record() {
        let call = CallId(Uuid::nil());
        let mut ended = CallEnd::without_reply(call, 40, Outcome::Complete);
        ended.first_byte_at = Some(30);
        let pauses = Pauses::of(10, &ended);
        assert_eq!(pauses.before_first, Duration::from_micros(20));
        assert_eq!(pauses.after, Duration::from_micros(10));
    }
}
