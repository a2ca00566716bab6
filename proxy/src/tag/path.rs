//! Tags in a path: `/e/{episode}[/a/{attempt}]` before the upstream's own path.

use episode::Route;
use hyper::Method;

use crate::error::CallError;

/// A path with its tag split off.
pub(super) struct TaggedPath<'a> {
    pub(super) episode: Option<&'a str>,
    pub(super) attempt: Option<&'a str>,
    /// Path and query for the upstream.
    pub(super) rest: &'a str,
}

impl<'a> TaggedPath<'a> {
    /// Splits `path`.
    ///
    /// # Errors
    /// [`CallError::InvalidTag`] if the prefix names no episode.
    pub(super) fn parse(path: &'a str) -> Result<Self, CallError> {
        let Some(tagged) = path.strip_prefix("/e/") else {
            return Ok(Self { episode: None, attempt: None, rest: path });
        };
        let (episode, rest) = split_segment(tagged);
        if episode.is_empty() {
            let (value, expected) = (path.to_owned(), "/e/EPISODE/v1/...");
            return Err(CallError::InvalidTag { name: "path", value, expected });
        }
        let (attempt, rest) = match rest.strip_prefix("/a/").map(split_segment) {
            Some((attempt, rest)) => (Some(attempt), rest),
            None => (None, rest),
        };
        let rest = if rest.starts_with('/') { rest } else { "/" };
        Ok(Self { episode: Some(episode), attempt, rest })
    }

    /// The kind of endpoint that the rest names.
    pub(super) fn route(&self, method: &Method) -> Route {
        wire::route(method.as_str(), self.without_query())
    }

    /// The path for the upstream, without its query.
    pub(super) fn without_query(&self) -> &'a str {
        self.rest.split('?').next().unwrap_or(self.rest)
    }
}

/// The first segment of a path, and the part that follows it.
fn split_segment(path: &str) -> (&str, &str) {
    path.split_at(path.find(['/', '?']).unwrap_or(path.len()))
}
