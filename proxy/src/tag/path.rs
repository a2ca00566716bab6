//! Tags in a path: `/e/{episode}[/a/{attempt}]` before the upstream's own path.

use episode::Route;
use http::path::target;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Uri};

use crate::config::tag_segments::tag_length;
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

/// Gives the path of a request, tagged or not, the name that `renamed` has for its rest.
pub(crate) fn rename(uri: &mut Uri, renamed: impl Fn(&str) -> Option<String>) {
    let Some(path) = uri.path_and_query().map(|path| path.as_str()) else { return };
    let Ok(tagged) = TaggedPath::parse(path) else { return };
    let Some(name) = renamed(tagged.rest) else { return };
    let tag = path.strip_suffix(tagged.rest).unwrap_or_default();
    let Ok(renamed) = PathAndQuery::try_from(format!("{tag}{name}")) else { return };

    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(renamed);
    if let Ok(whole) = Uri::from_parts(parts) {
        *uri = whole;
    }
}

/// The first segment of a path, and the part that follows it.
fn split_segment(path: &str) -> (&str, &str) {
    path.split_at(path.find(['/', '?']).unwrap_or(path.len()))
}

/// Writes the path of a request in its normal form.
///
/// # Errors
/// [`CallError::AmbiguousPath`] if servers may read the path in different ways.
pub(crate) fn normalize(uri: &mut Uri) -> Result<(), CallError> {
    // An episode without a name must not take the next segment for its name.
    if uri.path().trim_start_matches('/').starts_with("e//") {
        let (value, expected) = (uri.path().to_owned(), "/e/EPISODE/v1/...");
        return Err(CallError::InvalidTag { name: "path", value, expected });
    }
    Ok(target::normalize(uri, tag_length)?)
}

#[cfg(test)]
mod tests {
    use http::path::target::Ambiguity;

    use super::*;

    #[test]
    fn dots_stay_behind_the_tag_of_a_path() {
        for path in ["/e/a/../v1/messages", "/e/a/v1/%2e%2e/../pause", "/e/a/a/1/../../../b/v1/x"] {
            let mut uri: Uri = path.parse().unwrap();
            let refused = normalize(&mut uri);
            let climbs = matches!(refused, Err(CallError::AmbiguousPath(Ambiguity::Climbs)));
            assert!(climbs, "{path}: {refused:?}");
        }
        let mut uri: Uri = "/e/a/v1/../pause".parse().unwrap();
        normalize(&mut uri).unwrap();
        assert_eq!(uri.path(), "/e/a/pause");
    }

    #[test]
    fn a_path_keeps_its_tag_under_another_name() {
        for (path, expected) in [
            ("/api/v3/models?a=b", "/v1/models?a=b"),
            ("/e/x/a/2/api/v3/models", "/e/x/a/2/v1/models"),
            ("http://h/e/x/api/v3/models", "http://h/e/x/v1/models"),
            ("/e/x/v1/models", "/e/x/v1/models"),
            ("/e/x", "/e/x"),
        ] {
            let mut uri: Uri = path.parse().unwrap();
            rename(&mut uri, |rest| Some(format!("/v1{}", rest.strip_prefix("/api/v3")?)));
            assert_eq!(uri, expected, "{path}");
        }
    }

    #[test]
    fn an_episode_without_a_name_is_refused() {
        let mut nameless: Uri = "/e//v1/models".parse().unwrap();
        assert_eq!(normalize(&mut nameless).unwrap_err().status(), 400);
    }
}
