//! The handlers of the engine's routes, and their callers.

use std::pin::Pin;
use std::sync::Arc;

use http::api::route::Route;

use super::calls::{ApiError, HttpCall, HttpReply, error_reply};
use super::state::ServerState;

/// A route of the engine.
pub(super) type EngineRoute = Route<Handler>;

/// The future of a handler.
pub(super) type HandlerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<HttpReply, ApiError>> + Send + 'a>>;

/// Answers the calls of a route.
pub(super) type Answer = for<'a> fn(&'a Arc<ServerState>, HttpCall) -> HandlerFuture<'a>;

/// The handler of a route, and the callers that it serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handler {
    pub(super) answer: Answer,
    /// Writes an error in the form of the route's API.
    pub(super) write_error: fn(&ApiError) -> HttpReply,
    /// True if a call changes what others get, and may not come from a web page.
    pub(super) is_control: bool,
    /// True if callers without a token are answered, too.
    pub(super) is_open: bool,
}

impl Handler {
    pub(super) const fn new(answer: Answer) -> Handler {
        Handler { answer, write_error: error_reply, is_control: false, is_open: false }
    }

    /// Answers callers without a token, too.
    pub(super) const fn open(self) -> Handler {
        Handler { is_open: true, ..self }
    }

    /// Replaces the form of errors.
    pub(super) const fn errors(self, write_error: fn(&ApiError) -> HttpReply) -> Handler {
        Handler { write_error, ..self }
    }
}

/// Makes a route that is read.
pub(super) const fn get(
    path: &'static str,
    handler: Handler,
    summary: &'static str,
) -> EngineRoute {
    Route { reply: "the reply", ..Route::new(&["GET"], path, handler, summary) }
}

/// Makes a route that takes a body.
pub(super) const fn post(
    path: &'static str,
    handler: Handler,
    summary: &'static str,
) -> EngineRoute {
    Route { methods: &["POST"], ..get(path, handler, summary) }
}

/// Makes a route that changes what others get.
pub(super) const fn control(
    path: &'static str,
    handler: Handler,
    summary: &'static str,
) -> EngineRoute {
    post(path, Handler { is_control: true, ..handler }, summary)
}
