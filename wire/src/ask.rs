//! Asking the upstream for ids and logprobs, and hiding exactly what was asked for.
//!
//! vLLM's rules are in its own sources: the keys are there, as null, when nobody asks, so hiding
//! is putting null back. The one structural effect of asking is in streamed chat: a chunk whose
//! delta is empty is sent only because its ids or logprobs were wanted, and is taken out whole.

use std::ops::Range;

use bytes::Bytes;
use episode::Route;

use crate::json::{Edits, Malformed, elements, members, root};
use crate::request::Request;
use crate::sse::Event;

/// The manner of speech of an upstream: what may be asked and where the answers come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM's OpenAI server.
    Vllm,
    /// rolltape's own engine, which speaks as vLLM does.
    Rolltape,
    /// Any OpenAI-compatible server: nothing is asked for, what comes by itself is kept.
    OpenAi,
}

impl Dialect {
    /// The dialect that a user names.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "vllm" => Some(Self::Vllm),
            "rolltape" => Some(Self::Rolltape),
            "openai" => Some(Self::OpenAi),
            _ => None,
        }
    }

    /// The word a user names it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Rolltape => "rolltape",
            Self::OpenAi => "openai",
        }
    }
}

/// The dialect of the server whose list of models this is; `openai` when it does not say.
pub fn dialect_of_models(models: &[u8]) -> Dialect {
    let owner = serde_json::from_slice::<serde_json::Value>(models).ok().and_then(|list| {
        list.get("data")?.get(0)?.get("owned_by")?.as_str().and_then(Dialect::from_word)
    });
    owner.unwrap_or(Dialect::OpenAi)
}

/// A request as it goes to the upstream, and what to hide of the reply.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The body to send.
    pub body: Bytes,
    /// What to take out of the reply.
    pub hide: Hide,
}

/// What rolltape asked for and the agent did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hide {
    logprobs: bool,
    token_ids: bool,
    versions: bool,
    /// Streamed chunks with an empty delta are there only because of the ask.
    empty_deltas: bool,
}

/// Adds to `request` what the upstream must be asked for to report what it sampled.
pub fn ask(dialect: Dialect, route: Route, request: &Request) -> Asked {
    let unchanged = || Asked { body: request.with(&[]), hide: Hide::default() };
    if dialect == Dialect::OpenAi || !route.generates() || must_not_ask(route, request) {
        return unchanged();
    }
    let (Some(logprobs), Some(token_ids), Some(versions)) = (
        wanted(request, route, "logprobs"),
        wanted(request, route, "return_token_ids"),
        wanted(request, route, "return_weight_versions"),
    ) else {
        return unchanged();
    };
    let want = if route == Route::Chat { "true" } else { "0" };
    let add: Vec<_> = [
        (!logprobs, ("logprobs", want)),
        (!token_ids, ("return_token_ids", "true")),
        (!versions, ("return_weight_versions", "true")),
    ]
    .into_iter()
    .filter_map(|(missing, field)| missing.then_some(field))
    .collect();
    let hide = Hide {
        logprobs: !logprobs,
        token_ids: !token_ids,
        versions: !versions,
        empty_deltas: route == Route::Chat && !logprobs && !token_ids,
    };
    Asked { body: request.with(&add), hide }
}

/// Whether the agent itself asked; `None` when what it sent is for the upstream to refuse.
fn wanted(request: &Request, route: Route, key: &str) -> Option<bool> {
    match request.raw(key) {
        None | Some(b"null") => Some(false),
        Some(number) if route == Route::Completions && key == "logprobs" => {
            number.first().is_some_and(|b| b.is_ascii_digit() || *b == b'-').then_some(true)
        }
        Some(b"true") => Some(true),
        Some(b"false") => Some(false),
        Some(_) => None,
    }
}

/// Requests whose reply would change in ways that cannot be hidden, or that are refused today
/// and would not be with our fields.
fn must_not_ask(route: Route, request: &Request) -> bool {
    let is_true = |key| request.raw(key) == Some(b"true");
    let set = |key| !matches!(request.raw(key), None | Some(b"null" | b"0" | b"false"));
    is_true("use_beam_search")
        || (route == Route::Completions && is_true("echo"))
        || (route == Route::Chat && set("top_logprobs") && !is_true("logprobs"))
}

impl Hide {
    /// Whether the reply goes to the agent as it came.
    pub fn nothing(&self) -> bool {
        *self == Self::default()
    }

    /// A whole reply without what was asked for; one that is not JSON stays as it is.
    pub fn document(&self, body: &Bytes) -> Bytes {
        match self.edits(body) {
            Ok(Some(edits)) if !edits.is_empty() => Bytes::from(edits.apply(body)),
            _ => body.clone(),
        }
    }

    /// An event of a stream without what was asked for; `None` when all of it was.
    pub fn event(&self, event: &Event) -> Option<Bytes> {
        let Some(place) = event.payload().filter(|_| !self.nothing()) else {
            return Some(event.0.clone());
        };
        let payload = &event.0[place.clone()];
        match self.edits(payload) {
            Ok(None) => None,
            Ok(Some(edits)) if !edits.is_empty() => {
                let mut raw = event.0[..place.start].to_vec();
                raw.extend_from_slice(&edits.apply(payload));
                raw.extend_from_slice(&event.0[place.end..]);
                Some(Bytes::from(raw))
            }
            _ => Some(event.0.clone()),
        }
    }

    /// The replacements to make in one reply or chunk; `None` drops the chunk.
    fn edits(&self, doc: &[u8]) -> Result<Option<Edits>, Malformed> {
        let mut edits = Edits::default();
        for member in members(doc, &root(doc)?)? {
            match member.key(doc).as_ref() {
                "choices" => {
                    let choices = elements(doc, &member.value)?;
                    if self.empty_deltas
                        && let [only] = choices.as_slice()
                        && adds_nothing(doc, only)?
                    {
                        return Ok(None);
                    }
                    for choice in choices {
                        for field in members(doc, &choice)? {
                            self.null(&mut edits, doc, (&field.key(doc), field.value.clone()));
                        }
                    }
                }
                key => self.null(&mut edits, doc, (key, member.value.clone())),
            }
        }
        Ok(Some(edits))
    }

    fn null(&self, edits: &mut Edits, doc: &[u8], (key, value): (&str, Range<usize>)) {
        let ours = match key {
            "logprobs" => self.logprobs,
            "token_ids" | "prompt_token_ids" => self.token_ids,
            "weight_versions" => self.versions,
            _ => false,
        };
        if ours && &doc[value.clone()] != b"null" {
            edits.put(value, "null");
        }
    }
}

/// Whether a streamed choice has an empty delta and does not finish.
fn adds_nothing(doc: &[u8], choice: &Range<usize>) -> Result<bool, Malformed> {
    let mut empty = false;
    for field in members(doc, choice)? {
        let value = &doc[field.value.clone()];
        match field.key(doc).as_ref() {
            "delta" => empty = members(doc, &field.value)?.is_empty(),
            "finish_reason" if value != b"null" => return Ok(false),
            _ => {}
        }
    }
    Ok(empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(route: Route, body: &'static str) -> (String, Hide) {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        let asked = ask(Dialect::Vllm, route, &request);
        (String::from_utf8(asked.body.to_vec()).unwrap(), asked.hide)
    }

    #[test]
    fn a_plain_request_is_asked_for_ids_logprobs_and_versions() {
        let (body, hide) = asked(Route::Chat, r#"{"messages":[]}"#);
        assert_eq!(
            body,
            r#"{"messages":[],"logprobs":true,"return_token_ids":true,"return_weight_versions":true}"#
        );
        assert!(hide.logprobs && hide.token_ids && hide.versions && hide.empty_deltas);
        let (body, hide) = asked(Route::Completions, r#"{"prompt":"a","logprobs":null}"#);
        assert_eq!(
            body,
            r#"{"prompt":"a","logprobs":0,"return_token_ids":true,"return_weight_versions":true}"#
        );
        assert!(hide.logprobs && !hide.empty_deltas);
    }

    #[test]
    fn what_the_agent_asked_for_is_not_hidden() {
        let (body, hide) =
            asked(Route::Chat, r#"{"logprobs":true,"top_logprobs":2,"return_token_ids":false}"#);
        assert!(body.contains(r#""return_token_ids":true"#) && !body.contains("false"));
        assert!(!hide.logprobs && hide.token_ids && !hide.empty_deltas);
        let (_, hide) = asked(Route::Completions, r#"{"logprobs":0}"#);
        assert!(!hide.logprobs);
    }

    #[test]
    fn requests_that_asking_would_change_are_left_alone() {
        for (route, body) in [
            (Route::Chat, r#"{"top_logprobs":3}"#),
            (Route::Chat, r#"{"logprobs":"yes"}"#),
            (Route::Completions, r#"{"echo":true}"#),
            (Route::Chat, r#"{"use_beam_search":true}"#),
            (Route::Other, r#"{}"#),
        ] {
            let (sent, hide) = asked(route, body);
            assert_eq!(sent, body);
            assert!(hide.nothing());
        }
    }

    #[test]
    fn hiding_puts_null_back_and_keeps_every_other_byte() {
        let (_, hide) = asked(Route::Chat, "{}");
        let reply = r#"{"id":"c","choices":[{"index":0,"message":{"content":"logprobs"},"logprobs":{"content":[{"logprob":-1e-05}]},"token_ids":[13,2],"weight_versions":[{"version":"1"}]}],"usage":{"x":1.50},"prompt_token_ids":[1,5],"prompt_text":null}"#;
        let hidden = r#"{"id":"c","choices":[{"index":0,"message":{"content":"logprobs"},"logprobs":null,"token_ids":null,"weight_versions":null}],"usage":{"x":1.50},"prompt_token_ids":null,"prompt_text":null}"#;
        assert_eq!(hide.document(&Bytes::from_static(reply.as_bytes())), hidden);
        assert_eq!(hide.document(&Bytes::from_static(b"<html>")), &b"<html>"[..]);
    }

    #[test]
    fn a_chunk_that_only_carries_ids_is_dropped_unless_the_agent_wanted_it() {
        let chunk = |text: &str| Event(Bytes::from(format!("data: {text}\n\n")));
        let empty = chunk(
            r#"{"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[7]}]}"#,
        );
        let last =
            chunk(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop","token_ids":[7]}]}"#);
        let (_, hide) = asked(Route::Chat, "{}");
        assert_eq!(hide.event(&empty), None);
        assert!(hide.event(&last).unwrap().windows(16).any(|w| w == b"\"token_ids\":null"));
        let (_, hide) = asked(Route::Chat, r#"{"logprobs":true}"#);
        assert!(hide.event(&empty).is_some());
        let done = Event(Bytes::from_static(b"data: [DONE]\n\n"));
        assert_eq!(hide.event(&done).unwrap(), done.0);
    }
}
