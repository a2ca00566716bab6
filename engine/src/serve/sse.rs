//! Server-sent events, made from outputs as they arrive.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use super::error::ApiError;
use crate::sequence::{Finish, Output};

/// Frames that are ready to be sent.
#[derive(Default)]
pub(super) struct Ready(VecDeque<Bytes>);

impl Ready {
    /// Adds one event.
    pub(super) fn push<T: Serialize>(&mut self, event: &T) {
        self.0.push_back(Bytes::from(format!("data: {}\n\n", json(event))));
    }

    fn push_text(&mut self, text: &str) {
        self.0.push_back(Bytes::from(format!("data: {text}\n\n")));
    }
}

/// The events of one route.
pub(super) trait Events: Send {
    /// Adds the events of an output.
    fn output(&mut self, output: Output, ready: &mut Ready);

    /// Adds what comes after the last output.
    fn end(&mut self, ready: &mut Ready);

    /// Whether every choice has ended.
    fn is_complete(&self) -> bool;
}

/// A reply body that turns outputs into events. Dropping it cancels the call.
pub(super) struct EventStream<E> {
    outputs: Receiver<Output>,
    events: E,
    ready: Ready,
    done: bool,
}

impl<E: Events> EventStream<E> {
    pub(super) fn new(outputs: Receiver<Output>, events: E) -> EventStream<E> {
        EventStream { outputs, events, ready: Ready::default(), done: false }
    }

    fn take(&mut self, output: Option<Output>) {
        let error = match output.as_ref().map(|output| output.end.as_ref().map(|end| &end.finish)) {
            Some(Some(Finish::Failed(reason))) => Some(ApiError::failed(reason)),
            Some(_) => None,
            None => (!self.events.is_complete()).then(ApiError::internal),
        };
        match (error, output) {
            (Some(error), _) => {
                self.ready.push_text(&error.body());
                self.done = true;
            }
            (None, Some(output)) => self.events.output(output, &mut self.ready),
            (None, None) => self.done = true,
        }
        if !self.done && self.events.is_complete() {
            self.events.end(&mut self.ready);
            self.done = true;
        }
        if self.done {
            self.ready.push_text("[DONE]");
        }
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
            if let Some(frame) = self.ready.0.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if self.done {
                return Poll::Ready(None);
            }
            let output = ready!(self.outputs.poll_recv(context));
            self.take(output);
        }
    }
}

/// A reply as JSON on one line.
pub(super) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("replies have string keys and no failing serializers")
}
