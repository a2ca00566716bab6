//! Which episode a call belongs to: its path, its headers, its API key, its agent's own session,
//! or the conversation that it goes on with.
//!
//! A session id counts as a tag only where nothing else names the episode: some agents send one
//! of their own, and a user who tagged the path must not be refused because of it.

use episode::{EpisodeId, Lineage, Micros, Route, Tag, TagSource};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};
use wire::Request;

use crate::chains::Chains;
use crate::control::engine;
use crate::conversations::{Conversations, Thread};
use crate::fault::Fault;
use crate::headers;
use crate::key::Signer;

const EPISODE: &str = "x-episode-id";
const SESSION: &str = "x-session-id";
const ATTEMPT: &str = "x-attempt";
const GROUP: &str = "x-group-id";
const TASK: &str = "x-task-id";
const LABEL: &str = "x-episode-tag";
const API_KEY: &str = "x-api-key";

/// The episode of calls that nobody tagged and that sample nothing: probes and lists of models
/// must not make an episode each.
const UNTAGGED: &str = "untagged";

/// What helps to tell calls apart.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) signer: Signer,
    pub(crate) conversations: Conversations,
    pub(crate) chains: Chains,
}

/// A tag, and the path that is left for the upstream.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) tag: Tag,
    pub(crate) path: String,
    pub(crate) route: Route,
    pub(crate) lineage: Lineage,
    /// The conversation that gave the call its episode, if one did.
    pub(crate) thread: Option<Thread>,
}

/// Reads the tag off the head of a request, and takes what names it out.
///
/// # Errors
/// [`Fault`] when a tag is malformed, or two of them disagree.
pub(crate) fn tag(
    known: &Known,
    head: &mut Parts,
    request: Option<&Request>,
    now: Micros,
) -> Result<Tagged, Fault> {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let prefix = Prefix::of(path)?;
    let route = wire::route_of(head.method.as_str(), prefix.bare(), request);
    let text_of = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let lineage = wire::lineage(text_of, route, request);
    let key = key(&known.signer, &mut head.headers, now)?;
    let headers = &mut head.headers;
    let named = Named {
        path: prefix.episode.map(str::parse).transpose()?,
        header: text(headers, EPISODE)?.map(|e| e.parse()).transpose()?,
        key: key.as_ref().map(|(episode, _)| episode.clone()),
    };
    let mut thread = None;
    let (episode, source) = match named.one()? {
        Some(found) => found,
        None => match session(headers, &lineage) {
            Some(found) => found,
            None if route.generates() => {
                let placed = converse(known, headers, (route, &lineage), request);
                (thread.insert(placed).episode().clone(), TagSource::Auto)
            }
            None => (UNTAGGED.parse()?, TagSource::Auto),
        },
    };
    let attempt_of_key = key.map(|(_, attempt)| attempt);
    let tag = Tag {
        episode,
        attempt: attempt(prefix.attempt, text(headers, ATTEMPT)?, attempt_of_key)?,
        group: text(headers, GROUP)?.map(|g| g.parse()).transpose()?,
        task: text(headers, TASK)?.map(|t| t.parse()).transpose()?,
        labels: labels(headers)?,
        source,
    };
    headers::without(headers, &[EPISODE, ATTEMPT, GROUP, TASK, LABEL]);
    Ok(Tagged { tag, path: prefix.rest.to_owned(), route, lineage, thread })
}

/// The route of a request, whether or not its tag can be read.
pub(crate) fn route_of(method: &Method, path: &str) -> Route {
    Prefix::of(path).map_or(Route::Other, |prefix| prefix.route(method))
}

/// Whether a request is for one of the upstream's control routes, whether or not it is tagged.
pub(crate) fn is_control(path: &str) -> bool {
    Prefix::of(path).is_ok_and(|prefix| engine::is_control(prefix.rest))
}

/// Whether a request samples where nothing tells the tokens, whether or not it is tagged.
pub(crate) fn samples_unheard(method: &Method, path: &str) -> bool {
    Prefix::of(path).is_ok_and(|prefix| {
        let plain = engine::plain(prefix.bare());
        wire::samples_unheard(method.as_str(), &plain)
    })
}

/// The sources that name an episode outright, highest first.
struct Named {
    path: Option<EpisodeId>,
    header: Option<EpisodeId>,
    key: Option<EpisodeId>,
}

impl Named {
    /// The episode that they agree on.
    fn one(self) -> Result<Option<(EpisodeId, TagSource)>, Fault> {
        let sources = [
            (self.path, TagSource::Path),
            (self.header, TagSource::Header),
            (self.key, TagSource::Key),
        ];
        let mut found = sources.into_iter().filter_map(|(id, source)| Some((id?, source)));
        let Some(first) = found.next() else { return Ok(None) };
        match found.find(|(id, _)| *id != first.0) {
            None => Ok(Some(first)),
            Some((other, _)) => Err(Fault::TwoEpisodes(first.0.to_string(), other.to_string())),
        }
    }
}

/// The attempt that signed API keys name; they are for us, and none of them goes further.
fn key(
    signer: &Signer,
    headers: &mut HeaderMap,
    now: Micros,
) -> Result<Option<(EpisodeId, u32)>, Fault> {
    let mut named: Option<(EpisodeId, u32)> = None;
    for name in [AUTHORIZATION.as_str(), API_KEY] {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        let read: Vec<_> = values.filter_map(|value| signer.read(bare(value), now)).collect();
        if !read.is_empty() {
            headers::without(headers, &[name]);
        }
        for key in read {
            let key = key.map_err(|_| Fault::BadKey)?;
            match &named {
                Some(first) if *first != key => {
                    let words = |(id, attempt)| format!("{id} attempt {attempt}");
                    return Err(Fault::TwoEpisodes(words(first.clone()), words(key)));
                }
                _ => named = Some(key),
            }
        }
    }
    Ok(named)
}

/// A key without its scheme, however that is written.
fn bare(credentials: &str) -> &str {
    match credentials.trim().split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim_start(),
        _ => credentials.trim(),
    }
}

/// The agent's own name for its session.
fn session(headers: &mut HeaderMap, lineage: &Lineage) -> Option<(EpisodeId, TagSource)> {
    let session = lineage.session.as_deref()?.parse().ok()?;
    if !headers.contains_key(SESSION) {
        return Some((session, TagSource::Session));
    }
    headers::without(headers, &[SESSION]);
    Some((session, TagSource::Header))
}

/// Whose call this is, as far as its key tells.
pub(crate) fn holder(headers: &HeaderMap) -> &str {
    let credentials = headers.get(AUTHORIZATION).or_else(|| headers.get(API_KEY));
    credentials.and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// The conversation that a call goes on with.
fn converse(
    known: &Known,
    headers: &HeaderMap,
    (route, lineage): (Route, &Lineage),
    request: Option<&Request>,
) -> Thread {
    let holder = holder(headers);
    if let Some(episode) = request.and_then(|request| known.chains.episode(holder, request)) {
        return Thread::of(episode);
    }
    let messages = request
        .and_then(|request| wire::conversation(route, request.body()))
        .map(|conversation| conversation.messages)
        .unwrap_or_default();
    known.conversations.place(holder, &messages, lineage.retry > 0)
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

    fn route(&self, method: &Method) -> Route {
        wire::route(method.as_str(), self.bare())
    }

    /// The path without its query.
    fn bare(&self) -> &'a str {
        self.rest.split('?').next().unwrap_or(self.rest)
    }
}

/// The first segment of a path, and what follows it.
fn segment(path: &str) -> (&str, &str) {
    path.split_at(path.find(['/', '?']).unwrap_or(path.len()))
}

fn attempt(path: Option<&str>, header: Option<String>, key: Option<u32>) -> Result<u32, Fault> {
    let number = |text: &str| {
        let bad = || Fault::BadTag("the attempt", text.to_owned(), "a number from 0");
        text.parse::<u32>().map_err(|_| bad())
    };
    let (path, header) =
        (path.map(number).transpose()?, header.as_deref().map(number).transpose()?);
    let mut named = [path, header, key].into_iter().flatten();
    let Some(first) = named.next() else { return Ok(0) };
    match named.find(|other| *other != first) {
        None => Ok(first),
        Some(other) => {
            Err(Fault::TwoEpisodes(format!("attempt {first}"), format!("attempt {other}")))
        }
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

    fn known() -> Known {
        let conversations = Conversations::default();
        Known { signer: Signer::new(vec![7; 32]), conversations, chains: Chains::default() }
    }

    fn read(path: &str, pairs: &[(&'static str, &str)]) -> Result<Tagged, Fault> {
        let mut request = hyper::Request::builder().method(Method::POST).uri(path);
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        let request = request.body(()).map_err(|_| Fault::BadTag("the path", path.into(), ""))?;
        let mut head = request.into_parts().0;
        let tagged = tag(&known(), &mut head, None, 0);
        if tagged.is_ok() {
            assert!(head.headers.keys().all(|name| !name.as_str().starts_with("x-e")));
            let signed = |value: &HeaderValue| value.to_str().unwrap().contains("rt-");
            assert!(!head.headers.values().any(signed), "{:?}", head.headers);
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
    fn a_signed_key_tags_and_goes_no_further() {
        let episode: EpisodeId = "r".parse().unwrap();
        let key = known().signer.mint(&episode, 4, 100);
        let bearer = format!("Bearer {key}");
        let lower = format!("bearer  {key}");
        for headers in [
            &[("authorization", bearer.as_str())][..],
            &[("authorization", &lower)],
            &[("x-api-key", &key)],
            &[("authorization", &bearer), ("x-api-key", &key)],
            &[("authorization", "Bearer theirs"), ("authorization", &bearer)],
        ] {
            let tagged = read("/v1/messages", headers).unwrap().tag;
            assert_eq!((tagged.episode.as_str(), tagged.attempt), ("r", 4));
            assert_eq!(tagged.source, TagSource::Key);
        }
        let next = known().signer.mint(&episode, 5, 100);
        let two = [("authorization", bearer.as_str()), ("x-api-key", &next)];
        assert_eq!(read("/v1/messages", &two).unwrap_err().status(), 400);
        let other = read("/e/other/v1/x", &[("x-api-key", &key)]).unwrap_err();
        assert_eq!(other.status(), 400);
        let forged = read("/v1/x", &[("x-api-key", "rt-a.b")]).unwrap_err();
        assert_eq!(forged.status(), 401);
    }

    #[test]
    fn the_agents_own_session_is_an_episode() {
        let tagged = read("/v1/messages", &[("x-claude-code-session-id", "s-1")]).unwrap();
        assert_eq!(tagged.tag.episode.as_str(), "s-1");
        assert_eq!(tagged.tag.source, TagSource::Session);
        assert_eq!(tagged.lineage.client.as_deref(), Some("claude-code"));
    }

    #[test]
    fn what_disagrees_or_is_malformed_is_refused() {
        for (path, headers) in [
            ("/e/a/v1/x", &[("x-episode-id", "b")][..]),
            ("/e/a/a/1/v1/x", &[("x-attempt", "2")]),
            ("/e/a%20b/v1/x", &[]),
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
