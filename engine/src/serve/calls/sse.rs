//! Server-sent events, made from the engine's outputs as these arrive.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use super::error::ApiError;
use super::json::to_json;
use crate::schedule::request::FinishReason;
use crate::schedule::request::Output;

/// Events that wait to be sent, each one frame of the body.
#[derive(Default)]
pub(crate) struct EventQueue(VecDeque<Bytes>);

impl EventQueue {
    /// Adds one event, as JSON.
    pub(crate) fn push<T: Serialize>(&mut self, event: &T) {
        self.push_text(&to_json(event));
    }

    fn push_text(&mut self, text: &str) {
        self.0.push_back(Bytes::from(format!("data: {text}\n\n")));
    }
}

/// The events of one call, in the form of one route.
pub(crate) trait Events: Send {
    /// Adds the events of an output.
    fn on_output(&mut self, output: Output, queue: &mut EventQueue);

    /// Adds the events that follow the last output.
    fn on_end(&mut self, queue: &mut EventQueue);

    /// True if every choice has ended.
    fn is_complete(&self) -> bool;
}

/// A reply body that turns outputs into events. Dropping it cancels the call.
pub(crate) struct EventStream<E> {
    outputs: Receiver<Output>,
    events: E,
    queue: EventQueue,
    is_done: bool,
}

impl<E: Events> EventStream<E> {
    pub(crate) fn new(outputs: Receiver<Output>, events: E) -> EventStream<E> {
        EventStream { outputs, events, queue: EventQueue::default(), is_done: false }
    }

    /// Queues the events of an output; none says that the engine dropped its side.
    fn advance(&mut self, output: Option<Output>) {
        match output {
            Some(output) => match failure(&output) {
                Some(error) => self.fail(&error),
                None => self.events.on_output(output, &mut self.queue),
            },
            None if self.events.is_complete() => self.is_done = true,
            None => self.fail(&ApiError::internal()),
        }

        if !self.is_done && self.events.is_complete() {
            self.events.on_end(&mut self.queue);
            self.is_done = true;
        }
        if self.is_done {
            self.queue.push_text("[DONE]");
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.queue.push_text(&error.body());
        self.is_done = true;
    }
}

/// Returns the error of an output that says that the engine failed.
fn failure(output: &Output) -> Option<ApiError> {
    match &output.end.as_ref()?.finish {
        FinishReason::Failed(reason) => Some(ApiError::failed(reason)),
        _ => None,
    }
}

impl<E: Events + Unpin> Body for EventStream<E> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(frame) = self.queue.0.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if self.is_done {
                return Poll::Ready(None);
            }
            let output = ready!(self.outputs.poll_recv(context));
            self.advance(output);
        }
    }
}
