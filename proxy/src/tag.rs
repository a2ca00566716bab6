//! Which episode a call belongs to: its path, its headers, or a name made up.
//!
//! `x-session-id` counts as a tag only where nothing else names the episode: some agents send
//! one of their own, and a user who tagged the path must not be refused because of it.

use episode::{EpisodeId, Route, Tag, TagSource};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method};
use uuid::Uuid;

use crate::fault::Fault;

const EPISODE: &str = "x-episode-id";
const SESSION: &str = "x-session-id";
const ATTEMPT: &str = "x-attempt";
const GROUP: &str = "x-group-id";
const TASK: &str = "x-task-id";
const LABEL: &str = "x-episode-tag";

/// The episode of calls that nobody tagged and that sample nothing: probes and lists of models
/// must not make an episode each.
const UNTAGGED: &str = "untagged";

/// A tag, and the path that is left for the upstream.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) tag: Tag,
    pub(crate) path: String,
    pub(crate) route: Route,
}

/// Reads the tag off `path` (with its query) and `headers`, and takes its headers out.
pub(crate) fn tag(method: &Method, path: &str, headers: &mut HeaderMap) -> Result<Tagged, Fault> {
    let prefix = Prefix::of(path)?;
    let bare = prefix.rest.split('?').next().unwrap_or(prefix.rest);
    let route = wire::route(method.as_str(), bare);
    let named = text(headers, EPISODE)?;
    let (episode, source) = match (prefix.episode, named) {
        (Some(path), Some(header)) if path != header => {
            return Err(Fault::TwoEpisodes(path.to_owned(), header));
        }
        (Some(path), _) => (path.parse()?, TagSource::Path),
        (None, Some(header)) => (header.parse()?, TagSource::Header),
        (None, None) => session_or_new(headers, route)?,
    };
    let tag = Tag {
        episode,
        attempt: attempt(prefix.attempt, text(headers, ATTEMPT)?)?,
        group: text(headers, GROUP)?.map(|g| g.parse()).transpose()?,
        task: text(headers, TASK)?.map(|t| t.parse()).transpose()?,
        labels: labels(headers)?,
        source,
    };
    for name in [EPISODE, ATTEMPT, GROUP, TASK, LABEL] {
        headers.remove(name);
    }
    Ok(Tagged { tag, path: prefix.rest.to_owned(), route })
}

fn session_or_new(headers: &mut HeaderMap, route: Route) -> Result<(EpisodeId, TagSource), Fault> {
    if let Some(session) = text(headers, SESSION)?.and_then(|s| s.parse().ok()) {
        headers.remove(SESSION);
        return Ok((session, TagSource::Header));
    }
    let made_up = match route.generates() {
        true => format!("auto-{}", Uuid::now_v7().as_simple()),
        false => UNTAGGED.to_owned(),
    };
    Ok((made_up.parse()?, TagSource::Auto))
}

/// `/e/{episode}[/a/{attempt}]` in front of a path.
struct Prefix<'a> {
    episode: Option<&'a str>,
    attempt: Option<&'a str>,
    rest: &'a str,
}

impl<'a> Prefix<'a> {
    fn of(path: &'a str) -> Result<Self, Fault> {
        let Some(tagged) = path.strip_prefix("/e/") else {
            return Ok(Self { episode: None, attempt: None, rest: path });
        };
        let (episode, rest) = segment(tagged);
        if episode.is_empty() {
            return Err(Fault::BadTag("the path", path.to_owned(), "/e/EPISODE/v1/..."));
        }
        let (attempt, rest) = match rest.strip_prefix("/a/") {
            Some(tagged) => {
                let (attempt, rest) = segment(tagged);
                (Some(attempt), rest)
            }
            None => (None, rest),
        };
        let rest = if rest.starts_with('/') { rest } else { "/" };
        Ok(Self { episode: Some(episode), attempt, rest })
    }
}

/// The first segment of a path, and what follows it.
fn segment(path: &str) -> (&str, &str) {
    path.split_at(path.find(['/', '?']).unwrap_or(path.len()))
}

fn attempt(path: Option<&str>, header: Option<String>) -> Result<u32, Fault> {
    let number = |text: &str| {
        let bad = || Fault::BadTag("the attempt", text.to_owned(), "a number from 0");
        text.parse::<u32>().map_err(|_| bad())
    };
    match (path.map(number).transpose()?, header.as_deref().map(number).transpose()?) {
        (Some(path), Some(header)) if path != header => {
            Err(Fault::TwoEpisodes(format!("attempt {path}"), format!("attempt {header}")))
        }
        (path, header) => Ok(path.or(header).unwrap_or(0)),
    }
}

fn labels(headers: &HeaderMap) -> Result<Vec<(String, String)>, Fault> {
    let mut labels = Vec::new();
    for value in headers.get_all(LABEL) {
        let text = readable(LABEL, value)?;
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.trim().is_empty())
            .ok_or_else(|| Fault::BadTag(LABEL, text.to_owned(), "NAME=VALUE"))?;
        labels.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(labels)
}

fn text(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, Fault> {
    headers.get(name).map(|value| readable(name, value).map(str::to_owned)).transpose()
}

fn readable<'a>(name: &'static str, value: &'a HeaderValue) -> Result<&'a str, Fault> {
    value.to_str().map_err(|_| Fault::BadTag(name, format!("{value:?}"), "plain text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, pairs: &[(&'static str, &'static str)]) -> Result<Tagged, Fault> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let tagged = tag(&Method::POST, path, &mut headers);
        if tagged.is_ok() {
            assert!(headers.keys().all(|name| !name.as_str().starts_with("x-e")));
        }
        tagged
    }

    #[test]
    fn the_path_tags_and_is_cut() {
        let tagged = read("/e/run:1/v1/models?a=b", &[]).unwrap();
        assert_eq!(tagged.path, "/v1/models?a=b");
        assert_eq!(tagged.tag.episode.as_str(), "run:1");
        assert_eq!((tagged.tag.attempt, tagged.tag.source), (0, TagSource::Path));
        let tagged = read("/e/r/a/3/v1/x", &[]).unwrap();
        assert_eq!((tagged.path.as_str(), tagged.tag.attempt), ("/v1/x", 3));
        assert_eq!(read("/e/r", &[]).unwrap().path, "/");
    }

    #[test]
    fn headers_tag_and_carry_the_rest() {
        let tagged = read(
            "/v1/x",
            &[
                ("x-episode-id", "r"),
                ("x-attempt", "2"),
                ("x-group-id", "g"),
                ("x-task-id", "t"),
                ("x-episode-tag", "split=train"),
                ("x-episode-tag", "k = a=b"),
            ],
        )
        .unwrap();
        assert_eq!(tagged.tag.attempt, 2);
        assert_eq!(tagged.tag.group.unwrap().as_str(), "g");
        assert_eq!(tagged.tag.task.unwrap().as_str(), "t");
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(tagged.tag.labels, [pair("split", "train"), pair("k", "a=b")]);
    }

    #[test]
    fn a_session_of_the_agents_own_does_not_quarrel_with_a_tag() {
        let tagged = read("/e/r/v1/x", &[("x-session-id", "ses_1")]).unwrap();
        assert_eq!(tagged.tag.episode.as_str(), "r");
        let tagged = read("/v1/x", &[("x-session-id", "ses_1")]).unwrap();
        assert_eq!(tagged.tag.episode.as_str(), "ses_1");
    }

    #[test]
    fn only_calls_that_sample_get_an_episode_of_their_own() {
        let one = || read("/v1/chat/completions", &[]).unwrap().tag;
        assert_eq!(one().source, TagSource::Auto);
        assert_ne!(one().episode, one().episode);
        assert_eq!(read("/v1/x", &[]).unwrap().tag.episode.as_str(), UNTAGGED);
    }

    #[test]
    fn what_disagrees_or_is_malformed_is_refused() {
        for (path, headers) in [
            ("/e/a/v1/x", &[("x-episode-id", "b")][..]),
            ("/e/a/a/1/v1/x", &[("x-attempt", "2")]),
            ("/e/a b/v1/x", &[]),
            ("/e//v1/x", &[]),
            ("/e/a/a/one/v1/x", &[]),
            ("/v1/x", &[("x-attempt", "-1")]),
            ("/v1/x", &[("x-episode-tag", "novalue")]),
        ] {
            let fault = read(path, headers).unwrap_err();
            assert_eq!(fault.status(), 400, "{path}: {fault}");
        }
    }
}
