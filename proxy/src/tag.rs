//! The episode of a call, from its path, its headers, its API key, its agent's session, or the
//! conversation that it continues.
//!
//! A session id counts only if nothing else names the episode. Some agents always send one, and a
//! user who tagged the path must not be refused because of it.

pub(crate) mod api_key;
pub(crate) mod conversations;
pub(crate) mod credentials;
mod own_ids;
pub(crate) mod owner;
pub(crate) mod path;
pub(crate) mod responses;

use std::str::FromStr;

use episode::{EpisodeId, InvalidId, Lineage, Micros, Route, Tag, TagSource};
use http::headers::{self, HeaderTexts};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};
use wire::Request;

use crate::bounds::{
    CALL_LABELS_MAX, LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, PROBE_BYTES_MAX,
};
use crate::config::episode_prefix::EpisodePrefix;
use crate::error::CallError;
use crate::tag::api_key::KeySigner;
use crate::tag::conversations::{ConversationTurn, Conversations};
use crate::tag::owner::owner;
use crate::tag::path::TaggedPath;
use crate::tag::responses::ResponseChains;
use http::path::escapes::normalized;

const EPISODE: &str = "x-episode-id";
const SESSION: &str = "x-session-id";
const ATTEMPT: &str = "x-attempt";
const GROUP: &str = "x-group-id";
const TASK: &str = "x-task-id";
const LABEL: &str = "x-episode-tag";
const TAGS: [&str; 5] = [EPISODE, ATTEMPT, GROUP, TASK, LABEL];

/// The episode of untagged calls that sample nothing: probes and lists of models must not make an
/// episode each.
const UNTAGGED: &str = "untagged";

/// State that identifies the episodes of calls.
#[derive(Debug)]
pub(crate) struct TagContext {
    pub(crate) signer: KeySigner,
    pub(crate) conversations: Conversations,
    pub(crate) responses: ResponseChains,
    /// The prefix of the names that clients give.
    pub(crate) prefix: EpisodePrefix,
}

impl TagContext {
    pub(crate) fn new(signer: KeySigner, prefix: EpisodePrefix) -> Self {
        let (conversations, responses) = (Conversations::default(), ResponseChains::default());
        Self { signer, conversations, responses, prefix }
    }
}

/// The tag of a request, and the path that is left for the upstream.
#[derive(Debug)]
pub(crate) struct RequestTag {
    pub(crate) tag: Tag,
    pub(crate) path: String,
    pub(crate) route: Route,
    pub(crate) lineage: Lineage,
    /// The id of the API key, if it came with a signed one.
    pub(crate) key_id: Option<String>,
    /// The conversation that named the episode, if one did.
    pub(crate) conversation: Option<ConversationTurn>,
}

/// Reads the tag of a request, and removes from the head what only rolltape reads.
///
/// # Errors
/// [`CallError`] if a tag is malformed, or two tags disagree.
pub(crate) fn tag(
    context: &TagContext,
    head: &mut Parts,
    request: Option<&Request>,
    now: Micros,
) -> Result<RequestTag, CallError> {
    // Keys are for rolltape alone: nothing behind this point sees one.
    let key = credentials::signed_key(&context.signer, &head.headers, &head.uri, now)?;
    credentials::strip_headers(&mut head.headers);
    // Servers differ in which of two keys they take.
    for name in credentials::KEY_HEADERS {
        single_header(&head.headers, name)?;
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = credentials::strip_path(path)?;
    let path = TaggedPath::parse(&path)?;
    let route = wire::route_with_body(head.method.as_str(), path.without_query(), request);
    let texts = HeaderTexts::of(&head.headers);
    let lineage = wire::lineage(|name| texts.get(name), route, request);

    // An explicit name, in the path, a header or a key, counts before all others.
    let headers = &mut head.headers;
    let recorded = |named: Option<EpisodeId>| named.map(|id| context.prefix.before(id)).transpose();
    let sources = EpisodeSources {
        path: recorded(path.episode.map(str::parse).transpose()?)?,
        header: recorded(parsed_header(headers, EPISODE)?)?,
        key: key.as_ref().map(|key| key.attempt.episode.clone()),
    };

    // The agent's own session comes next, then the conversation.
    let mut conversation = None;
    let (episode, source) = match sources.agreed()? {
        Some(named) => named,
        None => match session_episode(headers, &lineage)? {
            Some((session, source)) => (context.prefix.before(session)?, source),
            None if route.generates() && !is_probe(headers, request) => {
                let turn = find_conversation(context, headers, request, route, &lineage);
                (conversation.insert(turn).episode().clone(), TagSource::Auto)
            }
            None => (UNTAGGED.parse()?, TagSource::Auto),
        },
    };

    let attempts = AttemptSources {
        path: path.attempt.map(parse_attempt).transpose()?,
        header: text_header(headers, ATTEMPT)?.map(parse_attempt).transpose()?,
        key: key.as_ref().map(|key| key.attempt.attempt),
    };
    let tag = Tag {
        episode,
        attempt: attempts.agreed()?,
        group: parsed_header(headers, GROUP)?,
        task: parsed_header(headers, TASK)?,
        labels: labels(headers)?,
        source,
    };
    // The upstream never receives a tag.
    headers::remove(headers, &TAGS);
    let key_id = key.map(|key| key.id);
    Ok(RequestTag { tag, path: path.rest.to_owned(), route, lineage, key_id, conversation })
}

/// Removes tags, credentials and signed keys from the trailers of a request.
pub(crate) fn remove_tags_and_keys(trailers: &mut HeaderMap) {
    headers::remove(trailers, &TAGS);
    headers::remove(trailers, &credentials::KEY_HEADERS);
    credentials::strip_headers(trailers);
}

/// Refuses a request without a signed key, before its body is read.
///
/// # Errors
/// [`CallError`] if it has none, or one that is not valid.
pub(crate) fn require_key(
    context: &TagContext,
    headers: &HeaderMap,
    uri: &Uri,
    now: Micros,
) -> Result<(), CallError> {
    let key = credentials::signed_key(&context.signer, headers, uri, now)?;
    key.map(drop).ok_or(CallError::KeyRequired)
}

/// True if a request has nothing to answer, or a short body that is no JSON object. Such probes get
/// no episode of their own.
fn is_probe(headers: &HeaderMap, request: Option<&Request>) -> bool {
    let Some(request) = request else {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        return length
            .and_then(|length| length.parse().ok())
            .is_some_and(|bytes: usize| bytes <= PROBE_BYTES_MAX);
    };
    !request.says_anything()
}

/// The route of a request, tagged or not. `Other` if the tag cannot be read.
pub(crate) fn route_of(method: &Method, path: &str) -> Route {
    TaggedPath::parse(path).map_or(Route::Other, |path| path.route(method))
}

/// True if a request, tagged or not, is for one of the upstream's control routes. An upstream whose
/// API is elsewhere gets a path without its `/v1`.
pub(crate) fn is_engine_route(path: &str) -> bool {
    TaggedPath::parse(path).is_ok_and(|path| {
        let path = normalized(path.rest);
        let below = path.strip_prefix("/v1").unwrap_or(&path);
        [path.as_str(), below].iter().any(|path| wire::engine_route(path).is_some())
    })
}

/// The path for the upstream of a request, tagged or not. All of it if the tag cannot be read.
pub(crate) fn path_of(path: &str) -> &str {
    TaggedPath::parse(path).map_or(path, |path| path.without_query())
}

/// The sources that name an episode, in order of precedence. They must not disagree.
struct EpisodeSources {
    path: Option<EpisodeId>,
    header: Option<EpisodeId>,
    key: Option<EpisodeId>,
}

impl EpisodeSources {
    fn agreed(self) -> Result<Option<(EpisodeId, TagSource)>, CallError> {
        let sources = [
            (self.path, TagSource::Path),
            (self.header, TagSource::Header),
            (self.key, TagSource::Key),
        ];
        let mut named = sources.into_iter().filter_map(|(id, source)| Some((id?, source)));
        let Some(first) = named.next() else { return Ok(None) };
        match named.find(|(id, _)| *id != first.0) {
            None => Ok(Some(first)),
            Some((other, _)) => Err(CallError::TwoEpisodes(first.0.to_string(), other.to_string())),
        }
    }
}

/// The sources that name an attempt. They must not disagree.
struct AttemptSources {
    path: Option<u32>,
    header: Option<u32>,
    key: Option<u32>,
}

impl AttemptSources {
    /// The attempt, or 0 if no source names one.
    fn agreed(self) -> Result<u32, CallError> {
        let mut named = [self.path, self.header, self.key].into_iter().flatten();
        let Some(first) = named.next() else { return Ok(0) };
        match named.find(|other| *other != first) {
            None => Ok(first),
            Some(other) => {
                let [first, other] = [first, other].map(|attempt| format!("attempt {attempt}"));
                Err(CallError::TwoEpisodes(first, other))
            }
        }
    }
}

fn parse_attempt(text: &str) -> Result<u32, CallError> {
    text.parse().map_err(|_| CallError::InvalidTag {
        name: "attempt",
        value: text.to_owned(),
        expected: "a number from 0",
    })
}

/// The agent's own name for its session.
fn session_episode(
    headers: &HeaderMap,
    lineage: &Lineage,
) -> Result<Option<(EpisodeId, TagSource)>, CallError> {
    let session = lineage.session.as_deref().and_then(EpisodeId::of_session);
    // No path could name an episode whose name looks like a key.
    let Some(session) = session.filter(|session| !credentials::holds_key(session.as_str())) else {
        return Ok(None);
    };
    // It is the agent's own, and a router behind may go by it: it is passed on.
    let source = match single_header(headers, SESSION)? {
        None => TagSource::Session,
        Some(_) => TagSource::Header,
    };
    Ok(Some((session, source)))
}

/// The conversation that a call continues, or a new one.
fn find_conversation(
    context: &TagContext,
    headers: &HeaderMap,
    request: Option<&Request>,
    route: Route,
    lineage: &Lineage,
) -> ConversationTurn {
    let owner = owner(headers);
    let continued = request.filter(|_| route == Route::Responses);
    if let Some(episode) = continued.and_then(|request| context.responses.episode(owner, request)) {
        return ConversationTurn::of_response(episode);
    }
    let messages = request
        .and_then(|request| wire::conversation(route, request.body()))
        .map(|conversation| conversation.messages)
        .unwrap_or_default();
    context.conversations.continued(owner, &messages, lineage.retry > 0)
}

fn labels(headers: &HeaderMap) -> Result<Vec<(String, String)>, CallError> {
    let mut labels = Vec::new();
    for value in headers.get_all(LABEL) {
        let text = to_text(LABEL, value)?;
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.trim().is_empty())
            .ok_or_else(|| CallError::InvalidTag {
                name: LABEL,
                value: text.to_owned(),
                expected: "NAME=VALUE",
            })?;
        let (name, value) = (name.trim(), value.trim());
        check_label(name, value)?;

        match labels.iter().find(|(known, _): &&(String, String)| known == name) {
            Some((_, known)) if known != value => return Err(CallError::TwoValues(LABEL)),
            Some(_) => {}
            None => labels.push((name.to_owned(), value.to_owned())),
        }
        if labels.len() > CALL_LABELS_MAX {
            let what = "a call has too many labels";
            return Err(CallError::TooMuch { what, max: CALL_LABELS_MAX });
        }
    }
    Ok(labels)
}

fn check_label(name: &str, value: &str) -> Result<(), CallError> {
    let bounds = [
        ("the name of a label is too long, in bytes", name.len(), LABEL_NAME_BYTES_MAX),
        ("the value of a label is too long, in bytes", value.len(), LABEL_VALUE_BYTES_MAX),
    ];
    match bounds.into_iter().find(|(_, len, max)| len > max) {
        Some((what, _, max)) => Err(CallError::TooMuch { what, max }),
        None => Ok(()),
    }
}

fn parsed_header<T>(headers: &HeaderMap, name: &'static str) -> Result<Option<T>, CallError>
where
    T: FromStr<Err = InvalidId>,
{
    Ok(text_header(headers, name)?.map(str::parse).transpose()?)
}

fn text_header<'a>(
    headers: &'a HeaderMap,
    name: &'static str,
) -> Result<Option<&'a str>, CallError> {
    single_header(headers, name)?.map(|value| to_text(name, value)).transpose()
}

/// The one value of a header, however often it is sent.
fn single_header<'a>(
    headers: &'a HeaderMap,
    name: &'static str,
) -> Result<Option<&'a HeaderValue>, CallError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    match values.all(|value| value == first) {
        true => Ok(Some(first)),
        false => Err(CallError::TwoValues(name)),
    }
}

fn to_text<'a>(name: &'static str, value: &'a HeaderValue) -> Result<&'a str, CallError> {
    headers::text(value).ok_or_else(|| CallError::InvalidTag {
        name,
        value: format!("{value:?}"),
        expected: "text in UTF-8",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_prefix(prefix: EpisodePrefix) -> TagContext {
        TagContext::new(KeySigner::open(None, Some(vec![7; 32])).unwrap(), prefix)
    }

    fn context() -> TagContext {
        with_prefix(EpisodePrefix::default())
    }

    fn read(path: &str, pairs: &[(&'static str, &str)]) -> Result<RequestTag, CallError> {
        let mut request = hyper::Request::builder().method(Method::POST).uri(path);
        for (name, value) in pairs {
            request = request.header(*name, value.as_bytes());
        }
        let Ok(request) = request.body(()) else {
            return Err(http::body::BodyError::Unreadable(path.to_owned()).into());
        };
        let mut head = request.into_parts().0;
        let tagged = tag(&context(), &mut head, None, 0);
        if tagged.is_ok() {
            assert!(head.headers.keys().all(|name| !name.as_str().starts_with("x-e")));
            let signed = |value: &HeaderValue| headers::text(value).unwrap().contains("rt-");
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
    fn a_prefix_stands_before_what_clients_name() {
        let context = with_prefix("ann.".parse().unwrap());
        let named = |path: &str, pairs: &[(&'static str, &str)]| {
            let request = hyper::Request::builder().method(Method::POST).uri(path);
            let request =
                pairs.iter().fold(request, |all, (name, value)| all.header(*name, *value));
            let mut head = request.body(()).unwrap().into_parts().0;
            tag(&context, &mut head, None, 0).map(|tagged| tagged.tag.episode.to_string())
        };
        let (key, _) = context.signer.sign(&"ann.r/0".parse().unwrap(), 100);
        for (path, pairs) in [
            ("/e/r/v1/x", &[][..]),
            ("/e/ann.r/v1/x", &[]),
            ("/v1/x", &[(EPISODE, "r")]),
            ("/v1/x", &[(SESSION, "r")]),
            ("/e/r/v1/x", &[("x-api-key", &key)]),
        ] {
            assert_eq!(named(path, pairs).unwrap(), "ann.r", "{path} {pairs:?}");
        }
        assert_eq!(named("/v1/x", &[]).unwrap(), UNTAGGED);
        let long = format!("/e/{}/v1/x", "r".repeat(200));
        assert_eq!(named(&long, &[]).unwrap_err().status(), 400);
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
    fn a_session_of_any_letters_is_one_episode() {
        let named = |value: &[u8]| {
            let mut head =
                hyper::Request::post("/v1/chat/completions").body(()).unwrap().into_parts().0;
            head.headers.insert(SESSION, HeaderValue::from_bytes(value).unwrap());
            tag(&context(), &mut head, None, 0).unwrap()
        };
        let tagged = named("\u{e9}".as_bytes());
        assert_eq!(tagged.lineage.session.as_deref(), Some("\u{e9}"));
        assert_eq!((tagged.tag.episode.as_str(), tagged.tag.source), ("_c3_a9", TagSource::Header));
        assert_eq!(named(b"\xe9").tag.episode.as_str(), "_c3_a9", "Latin-1 of older programs");
        assert_eq!(named("東 1".as_bytes()).tag.episode.as_str(), "_e6_9d_b1_201");
        let like_a_key = format!("rt-{}.{}\"", "a".repeat(8), "b".repeat(42));
        assert_eq!(named(like_a_key.as_bytes()).tag.source, TagSource::Auto);
        let label = read("/v1/x", &[(LABEL, "city=Zürich")]).unwrap().tag.labels;
        assert_eq!(label, [("city".to_owned(), "Zürich".to_owned())]);
        assert_eq!(read("/v1/x", &[(EPISODE, "é")]).unwrap_err().status(), 400);
    }

    #[test]
    fn only_calls_that_sample_get_an_episode_of_their_own() {
        let one = || read("/v1/chat/completions", &[]).unwrap().tag;
        assert_eq!(one().source, TagSource::Auto);
        assert_ne!(one().episode, one().episode);
        assert_eq!(read("/v1/x", &[]).unwrap().tag.episode.as_str(), UNTAGGED);
    }

    #[test]
    fn a_probe_gets_no_episode_of_its_own() {
        let tagged = |body: &'static str| {
            let request = Request::read(&bytes::Bytes::from_static(body.as_bytes()));
            let path = "/v1/chat/completions";
            let mut head = hyper::Request::post(path).body(()).unwrap().into_parts().0;
            tag(&context(), &mut head, request.as_ref(), 0).unwrap().tag.episode
        };
        for body in ["{}", r#"{"messages": []}"#, r#"{"model":"m","prompt":""}"#] {
            assert_eq!(tagged(body).as_str(), UNTAGGED, "{body}");
        }
        for body in [r#"{"messages":[{}]}"#, r#"{"prompt":[1]}"#, r#"{"input":"a"}"#] {
            assert_ne!(tagged(body).as_str(), UNTAGGED, "{body}");
        }
        let empty = read("/v1/chat/completions", &[("content-length", "0")]).unwrap();
        assert_eq!(empty.tag.episode.as_str(), UNTAGGED);
    }

    #[test]
    fn a_header_of_ours_is_sent_once_or_says_the_same() {
        for name in [EPISODE, ATTEMPT, GROUP, TASK, SESSION] {
            assert!(read("/v1/x", &[(name, "1"), (name, "1")]).is_ok(), "{name}");
            let refused = read("/v1/x", &[(name, "1"), (name, "2")]).unwrap_err();
            assert_eq!(refused.status(), 400, "{name}");
        }
        for name in credentials::KEY_HEADERS {
            assert!(read("/v1/x", &[(name, "k"), (name, "k")]).is_ok(), "{name}");
            let refused = read("/v1/x", &[(name, "k"), (name, "other")]).unwrap_err();
            assert_eq!(refused.status(), 400, "{name}");
        }
        let labels = [(LABEL, "a=1"), (LABEL, "a=1"), (LABEL, "b=1")];
        assert_eq!(read("/v1/x", &labels).unwrap().tag.labels.len(), 2);
        assert!(read("/v1/x", &[(LABEL, "a=1"), (LABEL, "a=2")]).is_err());
        let long = "v".repeat(LABEL_VALUE_BYTES_MAX);
        assert!(read("/v1/x", &[(LABEL, &format!("a={long}"))]).is_ok());
        assert!(read("/v1/x", &[(LABEL, &format!("a={long}v"))]).is_err());
        let many: Vec<_> = (0..=CALL_LABELS_MAX).map(|n| format!("n{n}=1")).collect();
        let many: Vec<_> = many.iter().map(|label| (LABEL, label.as_str())).collect();
        assert!(read("/v1/x", &many).is_err() && read("/v1/x", &many[1..]).is_ok());
    }

    #[test]
    fn a_signed_key_tags_and_goes_no_further() {
        let (key, _) = context().signer.sign(&"r/4".parse().unwrap(), 100);
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
        let (next, _) = context().signer.sign(&"r/5".parse().unwrap(), 100);
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
