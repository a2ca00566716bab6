//! Prompts and end tokens of a server that tells their ids elsewhere than in its replies.
//!
//! llama.cpp tells a prompt as text and in how many tokens it read it. `/tokenize` makes ids of
//! that text, as the server itself does before it samples. A streamed chat ends without the token
//! that ended it. What a reply leaves open so is [`Owed`]; how it is asked for, [`Prompts`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use episode::{Choice, Fidelity, Route};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::dialect::Dialect;
use crate::reply::sum;
use crate::request::Request;

const TEMPLATE: &str = "/apply-template";
const TOKENIZE: &str = "/tokenize";

/// More prompts of one request are not asked for: each is a question of its own.
const PROMPTS_MAX: usize = 256;

/// What a reply leaves to be asked of its server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owed {
    /// The text that the model was given, where the server tells it.
    pub text: Option<String>,
    /// Choices that the model's end token stopped, and that lack it.
    pub unended: Vec<u32>,
    /// In how many tokens the server read each prompt.
    counts: BTreeMap<u32, u64>,
}

/// What is to be asked of a server so that the prompts of a request are known.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompts {
    /// The request whose prompt a template makes.
    chat: Option<Bytes>,
    parts: Vec<Part>,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Ids(Vec<u32>),
    /// Of a form that is not known.
    Other,
}

impl Owed {
    /// The server read a prompt in so many tokens.
    pub(crate) fn counted(&mut self, prompt_index: u32, tokens: u64) {
        self.counts.insert(prompt_index, tokens);
    }

    /// In how many tokens the server read all of these prompts.
    pub(crate) fn count(&self, prompts: &BTreeSet<u32>) -> Option<u64> {
        sum(prompts.iter().map(|prompt| self.counts.get(prompt).copied()))
    }

    /// The server made this text of a chat.
    pub(crate) fn rendered(&mut self, text: String) {
        self.text = Some(text);
    }

    /// The ids of prompts, by their places, where the server counted as many; `counted` are those
    /// of the whole call.
    pub fn believed(&self, mut ids: Vec<Vec<u32>>, counted: Option<u64>) -> Vec<Vec<u32>> {
        let only = counted.filter(|_| ids.len() == 1);
        for (at, ids) in (0..).zip(&mut ids) {
            let count = self.counts.get(&at).copied().or(only);
            if count != Some(ids.len() as u64) {
                ids.clear();
            }
        }
        let told = ids.iter().rposition(|ids| !ids.is_empty()).map_or(0, |last| last + 1);
        ids.truncate(told);
        ids
    }

    /// Ends the choices that lack their end token with `id`, which has no logprob. It is known
    /// from why the reply stopped, not from a list of ids.
    pub fn end(&self, id: u32, choices: &mut [Choice]) {
        for choice in choices.iter_mut().filter(|c| self.unended.contains(&c.index)) {
            let Some(ids) = &mut choice.token_ids else { continue };
            ids.push(id);
            choice.logprobs.push(f32::NAN);
            choice.fidelity = Fidelity::Mapped;
        }
    }
}

impl Prompts {
    /// Whether a server of this dialect leaves the prompts of a call to `route` to be asked for, or
    /// to be read off the request.
    pub fn are_asked_of(dialect: Dialect, route: Route) -> bool {
        dialect == Dialect::Llamacpp || route == Route::Generate
    }

    /// What is to be asked for a request to `route`; nothing where nothing would come of it.
    pub fn of(route: Route, request: &Request) -> Option<Self> {
        let parts = match route {
            Route::Chat => Vec::new(),
            // What stands between two pieces of code is told to the model in words of its own.
            Route::Generate if request.raw("input_prefix").is_some() => return None,
            Route::Completions | Route::Generate => parts(prompt(request)?),
            _ => return None,
        };
        if parts.len() > PROMPTS_MAX {
            return None;
        }
        let chat = (route == Route::Chat).then(|| request.body().clone());
        Some(Self { chat, parts })
    }

    /// Where to ask for the text of a chat, and the body to send.
    pub fn rendering(&self) -> Option<(&'static str, Bytes)> {
        Some((TEMPLATE, self.chat.clone()?))
    }

    /// Whether a template makes the prompt.
    pub fn is_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// Takes the text of a chat, from the answer to that or from the reply; gives whether it was
    /// there and is another than was known.
    pub fn take_text(&mut self, text: String) -> bool {
        let part = Part::Text(text);
        let is_new = self.parts.first() != Some(&part);
        self.parts = vec![part];
        is_new
    }

    /// Where to ask for the ids of each prompt that is text, and the body to send.
    pub fn tokenizing(&self) -> Vec<Option<(&'static str, Bytes)>> {
        let question = |part: &Part| match part {
            Part::Text(text) => Some(tokenize(text, true)),
            Part::Ids(_) | Part::Other => None,
        };
        self.parts.iter().map(question).collect()
    }

    /// The ids of each prompt, with the answers to that in the places of texts; an empty list where
    /// there is none.
    pub fn ids(&self, answers: &[Option<Bytes>]) -> Vec<Vec<u32>> {
        let of = |(part, answer): (&Part, &Option<Bytes>)| match part {
            Part::Ids(ids) => ids.clone(),
            Part::Text(_) => answer.as_ref().and_then(|a| tokens(a)).unwrap_or_default(),
            Part::Other => Vec::new(),
        };
        self.parts.iter().zip(answers).map(of).collect()
    }
}

/// The text in the answer to [`Prompts::rendering`].
pub fn rendered_text(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Rendered {
        prompt: String,
    }
    serde_json::from_slice::<Rendered>(answer).ok().map(|rendered| rendered.prompt)
}

/// Where to ask for the ids of `text`, and the body to send.
pub(crate) fn tokenize(text: &str, adds_special: bool) -> (&'static str, Bytes) {
    let body = json!({"content": text, "add_special": adds_special, "parse_special": true});
    (TOKENIZE, Bytes::from(body.to_string()))
}

/// The ids in the answer to [`tokenize`].
pub(crate) fn tokens(answer: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<u32>,
    }
    serde_json::from_slice::<Tokens>(answer).ok().map(|told| told.tokens)
}

/// The prompt of a text completion, in each server's words. SGLang makes ids of a text itself.
fn prompt(request: &Request) -> Option<Value> {
    let raw = request.raw("prompt").or_else(|| request.raw("input_ids"))?;
    serde_json::from_slice(raw).ok()
}

/// The prompts of a text completion: a text, ids, or a list of such.
fn parts(prompt: Value) -> Vec<Part> {
    let ids = |list: &[Value]| {
        let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
        list.iter().map(id).collect::<Option<Vec<u32>>>().map_or(Part::Other, Part::Ids)
    };
    let one = |prompt: &Value| match prompt {
        Value::String(text) => Part::Text(text.clone()),
        Value::Array(list) if !list.is_empty() => ids(list),
        _ => Part::Other,
    };
    match &prompt {
        Value::Array(list) if list.iter().any(|p| p.is_string() || p.is_array()) => {
            // Ids among texts are one prompt.
            match list.iter().any(Value::is_number) {
                true => vec![Part::Other],
                false => list.iter().map(one).collect(),
            }
        }
        other => vec![one(other)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &str) -> Request {
        Request::read(&Bytes::copy_from_slice(body.as_bytes())).unwrap()
    }

    fn of(prompt: &str) -> Vec<Part> {
        let request = request(&format!(r#"{{"prompt":{prompt}}}"#));
        Prompts::of(Route::Completions, &request).unwrap().parts
    }

    #[test]
    fn prompts_of_every_form_are_told_apart() {
        let text = |text: &str| Part::Text(text.to_owned());
        assert_eq!(of(r#""a""#), [text("a")]);
        assert_eq!(of(r#"["a","b"]"#), [text("a"), text("b")]);
        assert_eq!(of("[1,2]"), [Part::Ids(vec![1, 2])]);
        assert_eq!(of(r#"[[1],"a"]"#), [Part::Ids(vec![1]), text("a")]);
        assert_eq!(of(r#"["a",1]"#), [Part::Other]);
        assert_eq!(of("[-1]"), [Part::Other]);
        assert_eq!(of(r#"{"prompt_string":"a"}"#), [Part::Other]);
        assert!(Prompts::of(Route::Completions, &request("{}")).is_none());
        assert!(Prompts::of(Route::Messages, &request("{}")).is_none());
    }

    #[test]
    fn a_chat_is_rendered_and_tokenized_and_believed_where_the_count_agrees() {
        let mut prompts = Prompts::of(Route::Chat, &request(r#"{"messages":[]}"#)).unwrap();
        let (path, body) = prompts.rendering().unwrap();
        assert_eq!((path, &body[..]), ("/apply-template", &br#"{"messages":[]}"#[..]));
        let text = rendered_text(br#"{"prompt":"<s>hi"}"#).unwrap();
        assert!(prompts.take_text(text.clone()) && !prompts.take_text(text));
        let [Some((path, body))] = &prompts.tokenizing()[..] else { panic!("one text") };
        let asked: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(*path, "/tokenize");
        assert_eq!(asked, json!({"content": "<s>hi", "add_special": true, "parse_special": true}));
        let ids = prompts.ids(&[Some(Bytes::from_static(br#"{"tokens":[1,2,3]}"#))]);
        assert_eq!(ids, [[1, 2, 3]]);
        let believed = |owed: &Owed, count| owed.believed(ids.clone(), count);
        assert_eq!(believed(&Owed::default(), Some(3)), ids);
        assert!(believed(&Owed::default(), Some(4)).is_empty());
        assert!(believed(&Owed::default(), None).is_empty());
        let mut owed = Owed::default();
        owed.counted(0, 4);
        assert!(believed(&owed, Some(3)).is_empty(), "what is told of the prompt comes first");
    }

    #[test]
    fn a_batch_keeps_the_places_of_prompts_that_are_not_known() {
        let mut owed = Owed::default();
        owed.counted(1, 2);
        let ids = vec![vec![1, 2, 3], vec![4, 5], vec![6]];
        assert_eq!(owed.believed(ids, Some(3)), [vec![], vec![4, 5]]);
    }

    #[test]
    fn an_end_token_that_was_not_told_has_no_logprob_and_is_not_called_exact() {
        let choice = |index| Choice {
            index,
            token_ids: Some(vec![7]),
            logprobs: vec![-1.0],
            ..Choice::default()
        };
        let mut choices = [choice(0), choice(1)];
        Owed { unended: vec![1], ..Owed::default() }.end(2, &mut choices);
        assert_eq!(choices[0], choice(0));
        assert_eq!(choices[1].token_ids.as_deref(), Some(&[7, 2][..]));
        assert!(choices[1].logprobs[1].is_nan());
        assert_eq!(choices[1].fidelity, Fidelity::Mapped);
    }
}
