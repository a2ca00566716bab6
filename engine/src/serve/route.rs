//! One route: its methods, path, handler and documentation.

use std::pin::Pin;
use std::sync::Arc;

use super::http::{ApiError, BodySpec, Field, HttpCall, HttpReply, error_reply};
use super::state::ServerState;

/// The future of a handler.
pub(super) type HandlerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<HttpReply, ApiError>> + Send + 'a>>;

/// Answers the calls of a route.
pub(super) type Handler = for<'a> fn(&'a Arc<ServerState>, HttpCall) -> HandlerFuture<'a>;

/// The parameter of a path, which may contain slashes.
const PARAMETER: &str = "{name}";

/// A route of the engine.
pub(super) struct Route {
    pub(super) methods: &'static [&'static str],
    /// The path, with `{name}` where it has a parameter.
    pub(super) path: &'static str,
    pub(super) handler: Handler,
    /// One sentence in Markdown.
    pub(super) summary: &'static str,
    pub(super) query: &'static [Field],
    pub(super) body: BodySpec,
    /// True if a call changes what others get, and may not come from a web page.
    pub(super) is_control: bool,
    /// True if callers without a token are answered, too.
    pub(super) is_open: bool,
    /// Writes an error in the form of the route's API.
    pub(super) write_error: fn(&ApiError) -> HttpReply,
}

impl Route {
    /// Makes a route that is read.
    pub(super) const fn get(path: &'static str, handler: Handler, summary: &'static str) -> Route {
        Route {
            methods: &["GET"],
            path,
            handler,
            summary,
            query: &[],
            body: BodySpec { fields: &[], takes_weights: false },
            is_control: false,
            is_open: false,
            write_error: error_reply,
        }
    }

    /// Makes a route that takes a body.
    pub(super) const fn post(path: &'static str, handler: Handler, summary: &'static str) -> Route {
        Route { methods: &["POST"], ..Route::get(path, handler, summary) }
    }

    /// Makes a route that changes what others get.
    pub(super) const fn control(
        path: &'static str,
        handler: Handler,
        summary: &'static str,
    ) -> Route {
        Route { is_control: true, ..Route::post(path, handler, summary) }
    }

    /// Replaces the methods.
    pub(super) const fn methods(self, methods: &'static [&'static str]) -> Route {
        Route { methods, ..self }
    }

    /// Declares the names of the query string.
    pub(super) const fn query(self, query: &'static [Field]) -> Route {
        Route { query, ..self }
    }

    /// Declares the fields of the body.
    pub(super) const fn fields(self, fields: &'static [&'static [Field]]) -> Route {
        Route { body: BodySpec { fields, ..self.body }, ..self }
    }

    /// Answers callers without a token, too.
    pub(super) const fn open(self) -> Route {
        Route { is_open: true, ..self }
    }

    /// Allows a safetensors file as the body.
    pub(super) const fn or_weights(self) -> Route {
        Route { body: BodySpec { takes_weights: true, ..self.body }, ..self }
    }

    /// Replaces the form of errors.
    pub(super) const fn errors(self, write_error: fn(&ApiError) -> HttpReply) -> Route {
        Route { write_error, ..self }
    }

    /// Matches a path, and returns its parameter: empty if the route has none.
    pub(super) fn matches<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.path.split_once(PARAMETER) {
            Some((start, end)) => path.strip_prefix(start)?.strip_suffix(end),
            None => (self.path == path).then_some(""),
        }
    }
}

/// A group of routes in the documents.
pub(super) struct RouteGroup {
    pub(super) title: &'static str,
    pub(super) routes: &'static [Route],
}
