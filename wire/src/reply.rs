//! The facts of a reply: ids, logprobs, versions, counts, collected as it passes.

use std::collections::BTreeMap;

use episode::{Choice, Route, TokenCounts, VersionSpan};
use serde::Deserialize;
use serde_json::Value;

use crate::request::Request;

/// Collects what a reply says, from one document or from many chunks. Never fails: what cannot
/// be read is counted, and the bytes are kept beside it anyway.
#[derive(Debug)]
pub struct Collector {
    route: Route,
    choices_per_prompt: u32,
    model: Option<String>,
    prompts: BTreeMap<u32, Vec<u32>>,
    choices: BTreeMap<u32, Choice>,
    usage: TokenCounts,
    error: Option<String>,
    unread: u32,
}

/// What a whole reply said.
#[derive(Debug, Default, PartialEq)]
pub struct Facts {
    /// The model that the server named.
    pub model: Option<String>,
    /// Token ids of each prompt; empty when none were reported.
    pub prompts: Vec<Vec<u32>>,
    /// The choices, by index.
    pub choices: Vec<Choice>,
    /// The server's counts; counted from ids where it gave none.
    pub usage: TokenCounts,
    /// The error the reply carried, inside a stream or instead of one.
    pub error: Option<String>,
    /// Chunks that could not be read.
    pub unread: u32,
}

impl Collector {
    /// A collector for the reply to `request`.
    pub fn new(route: Route, request: Option<&Request>) -> Self {
        Self {
            route,
            choices_per_prompt: request.map_or(1, Request::choices),
            model: None,
            prompts: BTreeMap::new(),
            choices: BTreeMap::new(),
            usage: TokenCounts::default(),
            error: None,
            unread: 0,
        }
    }

    /// Takes one document, or the data of one event.
    pub fn take(&mut self, json: &[u8]) {
        match serde_json::from_slice::<Reply>(json) {
            Ok(reply) => self.reply(reply),
            Err(_) => self.unread += 1,
        }
    }

    /// Whether every choice seen so far has said why it stopped.
    pub fn finished(&self) -> bool {
        !self.choices.is_empty() && self.choices.values().all(|c| c.finish_reason.is_some())
    }

    /// Whether the reply carried an error.
    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// What was collected.
    pub fn facts(self) -> Facts {
        let sampled = |c: &Choice| c.token_ids.as_ref().map(|ids| ids.len() as u64);
        let counted = TokenCounts {
            prompt: (!self.prompts.is_empty())
                .then(|| self.prompts.values().map(|ids| ids.len() as u64).sum()),
            completion: (!self.choices.is_empty())
                .then(|| self.choices.values().map(sampled).sum::<Option<u64>>())
                .flatten(),
        };
        Facts {
            model: self.model,
            prompts: self.prompts.into_values().collect(),
            usage: TokenCounts {
                prompt: self.usage.prompt.or(counted.prompt),
                completion: self.usage.completion.or(counted.completion),
            },
            choices: self.choices.into_values().collect(),
            error: self.error,
            unread: self.unread,
        }
    }

    fn reply(&mut self, reply: Reply) {
        self.model = reply.model.or(self.model.take());
        if let Some(usage) = reply.usage {
            self.usage = TokenCounts {
                prompt: usage.prompt_tokens.or(self.usage.prompt),
                completion: usage.completion_tokens.or(self.usage.completion),
            };
        }
        if let Some(error) = reply.error {
            let text = error.get("message").and_then(Value::as_str).map(str::to_owned);
            self.error = Some(text.unwrap_or_else(|| error.to_string()));
        }
        if let Some(ids) = reply.prompt_token_ids {
            self.prompts.entry(0).or_insert(ids);
        }
        for choice in reply.choices.unwrap_or_default() {
            self.choice(choice);
        }
    }

    fn choice(&mut self, part: ReplyChoice) {
        let prompt_index = match self.route {
            Route::Completions => part.index / self.choices_per_prompt,
            _ => 0,
        };
        if let Some(ids) = part.prompt_token_ids {
            self.prompts.entry(prompt_index).or_insert(ids);
        }
        let choice = self.choices.entry(part.index).or_insert_with(|| Choice {
            index: part.index,
            prompt_index,
            ..Choice::default()
        });
        if let Some(ids) = part.token_ids {
            choice.token_ids.get_or_insert_default().extend(ids);
        }
        if let Some(logprobs) = part.logprobs {
            choice.logprobs.extend(logprobs.values());
        }
        if let Some(spans) = part.weight_versions {
            choice.versions = spans.into_iter().map(VersionSpan::from).collect();
        }
        choice.finish_reason = part.finish_reason.or(choice.finish_reason.take());
        choice.stop_reason = match part.stop_reason {
            None | Some(Value::Null) => choice.stop_reason.take(),
            Some(Value::String(text)) => Some(text),
            Some(other) => Some(other.to_string()),
        };
    }
}

/// A reply or a chunk of one, chat or text; what we do not read is not named.
#[derive(Deserialize)]
struct Reply {
    model: Option<String>,
    choices: Option<Vec<ReplyChoice>>,
    usage: Option<Usage>,
    prompt_token_ids: Option<Vec<u32>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ReplyChoice {
    #[serde(default)]
    index: u32,
    logprobs: Option<Logprobs>,
    finish_reason: Option<String>,
    stop_reason: Option<Value>,
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    weight_versions: Option<Vec<Span>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// Chat has a list of entries, text completions a list of numbers.
#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Entry>>,
    token_logprobs: Option<Vec<Option<f64>>>,
}

#[derive(Deserialize)]
struct Entry {
    logprob: Option<f64>,
}

#[derive(Deserialize)]
struct Span {
    version: Value,
    start: u32,
    end: u32,
}

impl Logprobs {
    /// One number a token. Servers widen float32 to double, so narrowing again loses nothing.
    fn values(self) -> Vec<f32> {
        let narrow = |value: Option<f64>| value.map_or(f32::NAN, |v| v as f32);
        let chat = self.content.unwrap_or_default().into_iter().map(|e| e.logprob);
        chat.chain(self.token_logprobs.unwrap_or_default()).map(narrow).collect()
    }
}

impl From<Span> for VersionSpan {
    fn from(span: Span) -> Self {
        let version = match span.version {
            Value::String(label) => label,
            other => other.to_string(),
        };
        Self { version, start: span.start, end: span.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(route: Route, n: u32, parts: &[&str]) -> Facts {
        let mut collector = Collector::new(route, None);
        collector.choices_per_prompt = n;
        parts.iter().for_each(|part| collector.take(part.as_bytes()));
        collector.facts()
    }

    #[test]
    fn a_streamed_chat_adds_up() {
        let facts = collect(
            Route::Chat,
            1,
            &[
                r#"{"model":"m","choices":[{"index":0,"delta":{"role":"assistant"},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2,3]}"#,
                r#"{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"finish_reason":null,"token_ids":[4]}]}"#,
                r#"{"choices":[{"index":0,"delta":{},"logprobs":{"content":[{"token":"b"}]},"finish_reason":"stop","stop_reason":7,"token_ids":[5],"weight_versions":[{"version":"3","start":0,"end":2}]}]}"#,
                r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
            ],
        );
        let choice = &facts.choices[0];
        assert_eq!(facts.prompts, [[1, 2, 3]]);
        assert_eq!(choice.token_ids.as_deref(), Some(&[4, 5][..]));
        assert!(choice.logprobs[0] == -0.5 && choice.logprobs[1].is_nan());
        assert_eq!(choice.finish_reason.as_deref(), Some("stop"));
        assert_eq!(choice.stop_reason.as_deref(), Some("7"));
        assert_eq!(choice.versions[0].number(), Some(3));
        assert_eq!(facts.usage, TokenCounts { prompt: Some(3), completion: Some(2) });
        assert_eq!(facts.model.as_deref(), Some("m"));
    }

    #[test]
    fn choices_of_a_batch_of_prompts_find_their_prompt() {
        let facts = collect(
            Route::Completions,
            2,
            &[r#"{"choices":[
                {"index":0,"text":"","token_ids":[9],"prompt_token_ids":[1],"logprobs":{"token_logprobs":[-1.0]}},
                {"index":1,"text":"","token_ids":[8],"prompt_token_ids":[1]},
                {"index":2,"text":"","token_ids":[7],"prompt_token_ids":[2]},
                {"index":3,"text":"","token_ids":[6],"prompt_token_ids":[2]}]}"#],
        );
        assert_eq!(facts.prompts, [[1], [2]]);
        let of: Vec<_> = facts.choices.iter().map(|c| c.prompt_index).collect();
        assert_eq!(of, [0, 0, 1, 1]);
        assert_eq!(facts.choices[0].logprobs, [-1.0]);
        assert_eq!(facts.usage.completion, Some(4));
    }

    #[test]
    fn errors_and_nonsense_are_kept_apart() {
        let facts = collect(Route::Chat, 1, &[r#"{"error":{"message":"out of memory"}}"#, "{"]);
        assert_eq!(facts.error.as_deref(), Some("out of memory"));
        assert_eq!(facts.unread, 1);
    }
}
