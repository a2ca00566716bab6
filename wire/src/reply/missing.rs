//! Ids that a server does not put into its replies, and the requests that get them.
//!
//! llama.cpp reports a prompt as text and its number of tokens. `/tokenize` makes ids of that text,
//! as the server itself does before it samples. A streamed chat ends without the token that ended
//! it. [`MissingIds`] says what a reply left out; [`PromptLookup`] asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use episode::{Choice, Fidelity, Route};
use serde::Deserialize;
use serde_json::json;

use super::chat::PromptIds;
use super::lenient::Lenient;
use super::sum;
use crate::dialect::Dialect;
use crate::json::first_elements;
use crate::request::Request;

const TEMPLATE: &str = "/apply-template";
const TOKENIZE: &str = "/tokenize";

/// Requests with more prompts are not looked up: each prompt costs a request of its own.
const PROMPTS_MAX: usize = 256;

/// Ids that a reply left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingIds {
    /// The prompt as text, if the server reports it.
    pub text: Option<String>,
    /// Indices of choices that the model's end token stopped, and that lack this token.
    pub unended: Vec<u32>,
    /// Number of tokens of each prompt, as the server counted them.
    prompt_tokens: BTreeMap<u32, u64>,
}

/// The requests for the ids of a call's prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLookup {
    /// The body of a chat request, whose prompt a template makes.
    chat: Option<Bytes>,
    prompts: Vec<Prompt>,
}

#[derive(Debug, Clone, PartialEq)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    /// A form that is not known.
    Other,
}

impl MissingIds {
    /// Notes that the server counted `tokens` tokens in a prompt.
    pub(crate) fn set_prompt_tokens(&mut self, prompt_index: u32, tokens: u64) {
        self.prompt_tokens.insert(prompt_index, tokens);
    }

    /// The number of tokens of all these prompts, if the server counted each of them.
    pub(crate) fn prompt_tokens(&self, prompts: &BTreeSet<u32>) -> Option<u64> {
        sum(prompts.iter().map(|prompt| self.prompt_tokens.get(prompt).copied()))
    }

    /// The ids of prompts, by their places, without those whose number differs from the server's
    /// count. `counted` is the count of the whole call.
    pub fn verified(&self, mut ids: Vec<Vec<u32>>, counted: Option<u64>) -> Vec<Vec<u32>> {
        let of_only_prompt = counted.filter(|_| ids.len() == 1);
        for (at, ids) in (0..).zip(&mut ids) {
            let expected = self.prompt_tokens.get(&at).copied().or(of_only_prompt);
            if expected != Some(ids.len() as u64) {
                ids.clear();
            }
        }
        let end = ids.iter().rposition(|ids| !ids.is_empty()).map_or(0, |last| last + 1);
        ids.truncate(end);
        ids
    }

    /// Appends the end token `id` to the choices that lack it. It has no logprob, and is known from
    /// the reason why the reply stopped, not from a list of ids.
    pub fn append_end_token(&self, id: u32, choices: &mut [Choice]) {
        for choice in choices.iter_mut().filter(|choice| self.unended.contains(&choice.index)) {
            let Some(ids) = &mut choice.token_ids else { continue };
            ids.push(id);
            choice.logprobs.push(f32::NAN);
            choice.fidelity = Fidelity::Mapped;
        }
    }
}

impl PromptLookup {
    /// Returns true if the prompts of a call to `route` of a server of `dialect` are not in its
    /// replies: they must be asked for, or read off the request.
    pub fn applies_to(dialect: Dialect, route: Route) -> bool {
        dialect == Dialect::Llamacpp || route == Route::Generate
    }

    /// The lookup for a request to `route`; `None` if it could not find the prompts.
    pub fn for_request(route: Route, request: &Request) -> Option<Self> {
        let prompts = match route {
            Route::Chat => Vec::new(),
            // The server itself writes the prompt around two pieces of code.
            Route::Generate if request.raw("input_prefix").is_some() => return None,
            Route::Completions | Route::Generate => prompts_of(prompt_field(request)?),
            _ => return None,
        };
        if prompts.len() > PROMPTS_MAX {
            return None;
        }
        let chat = (route == Route::Chat).then(|| request.body().clone());
        Some(Self { chat, prompts })
    }

    /// The path and body of the request that renders a chat as text.
    pub fn template_request(&self) -> Option<(&'static str, Bytes)> {
        Some((TEMPLATE, self.chat.clone()?))
    }

    /// Returns true if a template makes the prompt.
    pub fn is_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// Takes the text of a chat, from the reply or from [`rendered_text`]. Returns true if it
    /// differs from the text that was known.
    pub fn take_text(&mut self, text: String) -> bool {
        let prompt = Prompt::Text(text);
        let is_new = self.prompts.first() != Some(&prompt);
        self.prompts = vec![prompt];
        is_new
    }

    /// For each prompt that is text, the path and body of the request for its ids.
    pub fn tokenize_requests(&self) -> Vec<Option<(&'static str, Bytes)>> {
        let requests = self.prompts.iter().map(|prompt| match prompt {
            Prompt::Text(text) => Some(tokenize_request(text, true)),
            Prompt::Ids(_) | Prompt::Other => None,
        });
        requests.collect()
    }

    /// The ids of each prompt, given the `answers` to [`Self::tokenize_requests`]; an empty list
    /// for a prompt whose ids are not known.
    pub fn ids(&self, answers: &[Option<Bytes>]) -> Vec<Vec<u32>> {
        let of_prompt = |(prompt, answer): (&Prompt, &Option<Bytes>)| match prompt {
            Prompt::Ids(ids) => ids.clone(),
            Prompt::Text(_) => {
                answer.as_ref().and_then(|answer| tokens_of_answer(answer)).unwrap_or_default()
            }
            Prompt::Other => Vec::new(),
        };
        self.prompts.iter().zip(answers).map(of_prompt).collect()
    }
}

/// The text in the answer to [`PromptLookup::template_request`].
pub fn rendered_text(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Rendered {
        prompt: String,
    }
    serde_json::from_slice::<Rendered>(answer).ok().map(|rendered| rendered.prompt)
}

/// The path and body of the request for the ids of `text`.
pub(crate) fn tokenize_request(text: &str, adds_special: bool) -> (&'static str, Bytes) {
    let body = json!({"content": text, "add_special": adds_special, "parse_special": true});
    (TOKENIZE, Bytes::from(body.to_string()))
}

/// The ids in the answer to [`tokenize_request`].
pub(crate) fn tokens_of_answer(answer: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Tokenized {
        tokens: Vec<u32>,
    }
    serde_json::from_slice::<Tokenized>(answer).ok().map(|tokenized| tokenized.tokens)
}

/// The prompt of a text completion, in each server's words. SGLang's own `text` is left out: the
/// server reports its ids itself.
fn prompt_field(request: &Request) -> Option<&[u8]> {
    request.raw("prompt").or_else(|| request.raw("input_ids"))
}

/// The prompts in a text completion's field: a text, ids, or a list of these. Of more than
/// [`PROMPTS_MAX`] there are a few too many.
fn prompts_of(field: &[u8]) -> Vec<Prompt> {
    let whole = 0..field.len();
    let Ok(first) = first_elements(field, &whole, PROMPTS_MAX + 1) else {
        return vec![one_prompt(field)];
    };
    let is_number = |item: &Range<usize>| matches!(field[item.start], b'0'..=b'9' | b'-');
    let is_prompt = |item: &Range<usize>| matches!(field[item.start], b'"' | b'[');
    match first.iter().any(is_prompt) {
        // Ids among texts are one prompt.
        true if first.iter().any(is_number) => vec![Prompt::Other],
        true => first.into_iter().map(|item| one_prompt(&field[item])).collect(),
        false => vec![one_prompt(field)],
    }
}

fn one_prompt(value: &[u8]) -> Prompt {
    match value.first() {
        Some(b'"') => serde_json::from_slice(value).map_or(Prompt::Other, Prompt::Text),
        Some(b'[') => match PromptIds::of_json(value) {
            Ok(Lenient::Value(ids)) if ids.are_whole() => Prompt::Ids(ids.items),
            _ => Prompt::Other,
        },
        _ => Prompt::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &str) -> Request {
        Request::read(&Bytes::copy_from_slice(body.as_bytes())).unwrap()
    }

    fn of(prompt: &str) -> Vec<Prompt> {
        let request = request(&format!(r#"{{"prompt":{prompt}}}"#));
        PromptLookup::for_request(Route::Completions, &request).unwrap().prompts
    }

    #[test]
    fn prompts_of_every_form_are_told_apart() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(of(r#""a""#), [text("a")]);
        assert_eq!(of(r#"["a","b"]"#), [text("a"), text("b")]);
        assert_eq!(of("[1,2]"), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(of(r#"[[1],"a"]"#), [Prompt::Ids(vec![1]), text("a")]);
        assert_eq!(of(r#"["a",1]"#), [Prompt::Other]);
        assert_eq!(of("[-1]"), [Prompt::Other]);
        assert_eq!(of(r#"{"prompt_string":"a"}"#), [Prompt::Other]);
        assert!(PromptLookup::for_request(Route::Completions, &request("{}")).is_none());
        assert!(PromptLookup::for_request(Route::Messages, &request("{}")).is_none());
    }

    #[test]
    fn a_tokenized_chat_is_believed_where_the_count_agrees() {
        let mut prompts =
            PromptLookup::for_request(Route::Chat, &request(r#"{"messages":[]}"#)).unwrap();
        let (path, body) = prompts.template_request().unwrap();
        assert_eq!((path, &body[..]), ("/apply-template", &br#"{"messages":[]}"#[..]));
        let text = rendered_text(br#"{"prompt":"<s>hi"}"#).unwrap();
        assert!(prompts.take_text(text.clone()) && !prompts.take_text(text));
        let [Some((path, body))] = &prompts.tokenize_requests()[..] else { panic!("one text") };
        let asked: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert_eq!(*path, "/tokenize");
        assert_eq!(asked, json!({"content": "<s>hi", "add_special": true, "parse_special": true}));
        let ids = prompts.ids(&[Some(Bytes::from_static(br#"{"tokens":[1,2,3]}"#))]);
        assert_eq!(ids, [[1, 2, 3]]);
        let verified = |missing: &MissingIds, count| missing.verified(ids.clone(), count);
        assert_eq!(verified(&MissingIds::default(), Some(3)), ids);
        assert!(verified(&MissingIds::default(), Some(4)).is_empty());
        assert!(verified(&MissingIds::default(), None).is_empty());
        let mut missing = MissingIds::default();
        missing.set_prompt_tokens(0, 4);
        assert!(
            verified(&missing, Some(3)).is_empty(),
            "the count of the prompt itself comes first"
        );
    }

    #[test]
    fn a_batch_keeps_the_places_of_prompts_that_are_not_known() {
        let mut missing = MissingIds::default();
        missing.set_prompt_tokens(1, 2);
        let ids = vec![vec![1, 2, 3], vec![4, 5], vec![6]];
        assert_eq!(missing.verified(ids, Some(3)), [vec![], vec![4, 5]]);
    }

    #[test]
    fn an_untold_end_token_has_no_logprob_and_is_not_exact() {
        let choice = |index| Choice {
            index,
            token_ids: Some(vec![7]),
            logprobs: vec![-1.0],
            ..Choice::default()
        };
        let mut choices = [choice(0), choice(1)];
        MissingIds { unended: vec![1], ..MissingIds::default() }.append_end_token(2, &mut choices);
        assert_eq!(choices[0], choice(0));
        assert_eq!(choices[1].token_ids.as_deref(), Some(&[7, 2][..]));
        assert!(choices[1].logprobs[1].is_nan());
        assert_eq!(choices[1].fidelity, Fidelity::Mapped);
    }
}
