//! Logprobs as chat and as completions show them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::choice::Named;
use super::request::Show;

/// Chat: one entry a token.
#[derive(Debug, Default, Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopEntry>,
}

#[derive(Debug, Serialize)]
struct TopEntry {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// The entries of `tokens`, if logprobs are shown.
    pub(super) fn of(tokens: &[Named], show: &Show) -> Option<ChatLogprobs> {
        let count = show.logprobs?;
        let entry = |token: &Named| Entry {
            token: name(token.id, &token.name, show),
            logprob: token.logprob,
            // The bytes stay those of the text, whatever the token is called.
            bytes: token.name.clone().into_bytes(),
            top_logprobs: top(token, count, show),
        };
        Some(ChatLogprobs { content: tokens.iter().map(entry).collect() })
    }
}

/// The first `count` of the sampled token and the likeliest others.
fn top(token: &Named, count: usize, show: &Show) -> Vec<TopEntry> {
    let entries = token.top.iter().take(count).map(|other| {
        let token = name(other.id, &other.name, show);
        TopEntry { bytes: token.clone().into_bytes(), token, logprob: other.logprob }
    });
    entries.collect()
}

/// Completions: parallel lists.
#[derive(Debug, Default, Serialize)]
pub(super) struct TextLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<f64>,
    tokens: Vec<String>,
    top_logprobs: Vec<Map<String, Value>>,
}

impl TextLogprobs {
    /// The lists for `tokens`, if logprobs are shown. `offset` counts the characters of all tokens
    /// so far and moves on.
    pub(super) fn of(tokens: &[Named], show: &Show, offset: &mut usize) -> Option<TextLogprobs> {
        let count = show.logprobs?;
        let mut lists = TextLogprobs::default();
        for token in tokens {
            let shown = name(token.id, &token.name, show);
            lists.text_offset.push(*offset);
            *offset += shown.chars().count();
            lists.token_logprobs.push(token.logprob);
            let top = token.top.iter().take(count + 1);
            let top = top.map(|t| (name(t.id, &t.name, show), Value::from(t.logprob)));
            lists.top_logprobs.push(top.collect());
            lists.tokens.push(shown);
        }
        Some(lists)
    }
}

fn name(id: u32, text: &str, show: &Show) -> String {
    if show.ids_as_tokens { format!("token_id:{id}") } else { text.to_owned() }
}
