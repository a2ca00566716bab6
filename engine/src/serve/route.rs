//! How a route of the engine is answered, and who may call it.

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

/// Writes an error in the form of a route's API.
pub(super) type WriteError = fn(&ApiError) -> HttpReply;

/// Who answers a route, and whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handler {
    pub(super) answer: Answer,
    pub(super) write_error: WriteError,
    /// True if a call changes what others get, and may not come from a web page.
    pub(super) is_control: bool,
    /// True if callers without a token are answered, too.
    pub(super) is_open: bool,
}

/// Makes a route that is read.
pub(super) const fn get(path: &'static str, answer: Answer, summary: &'static str) -> EngineRoute {
    let write_error = error_reply;
    let handler = Handler { answer, write_error, is_control: false, is_open: false };
    Route { reply: "the reply", ..Route::new(&["GET"], path, handler, summary) }
}

/// Makes a route that takes a body.
pub(super) const fn post(path: &'static str, answer: Answer, summary: &'static str) -> EngineRoute {
    Route { methods: &["POST"], ..get(path, answer, summary) }
}

/// Makes a route that changes what others get.
pub(super) const fn control(
    path: &'static str,
    answer: Answer,
    summary: &'static str,
) -> EngineRoute {
    let route = post(path, answer, summary);
    Route { handler: Handler { is_control: true, ..route.handler }, ..route }
}

/// Answers callers without a token, too.
pub(super) const fn open(route: EngineRoute) -> EngineRoute {
    Route { handler: Handler { is_open: true, ..route.handler }, ..route }
}

/// Replaces the form of errors.
pub(super) const fn errors(write_error: WriteError, route: EngineRoute) -> EngineRoute {
    Route { handler: Handler { write_error, ..route.handler }, ..route }
}

/// Puts routes into a group of the documents.
pub(super) const fn in_group<const N: usize>(
    group: &'static str,
    mut routes: [EngineRoute; N],
) -> [EngineRoute; N] {
    let mut at = 0;
    while at < N {
        routes[at].group = group;
        at += 1;
    }
    routes
}
