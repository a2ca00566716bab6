//! Logprobs as chat, as completions and as `/inference/v1/generate` show them.

use serde::Serialize;
use serde_json::{Map, Value};
use template::{TokenNames, Tokenizer};

use super::choice::{Named, named};
use super::request::Show;
use crate::sample::Scores;

/// What `return_both_logprobs` adds to a sampled token, whatever the mode of the server is.
#[derive(Debug, Serialize)]
struct Both {
    /// Under the model's own distribution.
    raw_logprob: f64,
    /// Under the distribution that was sampled from.
    processed_logprob: f64,
    /// Tokens that are at least as likely in the server's mode, this one among them.
    rank: usize,
}

impl Both {
    fn of(token: &Named, show: &Show) -> Option<Both> {
        let both =
            Both { raw_logprob: token.raw, processed_logprob: token.processed, rank: token.rank };
        show.both_logprobs.then_some(both)
    }
}

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
    #[serde(flatten)]
    both: Option<Both>,
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
            both: Both::of(token, show),
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
    /// None for the first token of a prompt, which nothing is said about.
    token_logprobs: Vec<Option<f64>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    #[serde(flatten)]
    both: Option<BothLists>,
}

#[derive(Debug, Default, Serialize)]
struct BothLists {
    raw_logprobs: Vec<Option<f64>>,
    processed_logprobs: Vec<Option<f64>>,
    ranks: Vec<Option<usize>>,
}

impl TextLogprobs {
    /// The lists for `tokens`, if logprobs are shown. `offset` counts the characters of all tokens
    /// so far and moves on.
    pub(super) fn of(tokens: &[Named], show: &Show, offset: &mut usize) -> Option<TextLogprobs> {
        let tokens = tokens.iter().map(|token| (name(token.id, &token.name, show), Some(token)));
        TextLogprobs::list(tokens, show, offset)
    }

    /// The same for a prompt, of which the first token has no logprob, and `tokens` after it.
    pub(super) fn echoed(
        prompt: &PromptTokens,
        tokens: &[Named],
        show: &Show,
        offset: &mut usize,
    ) -> Option<TextLogprobs> {
        let first = (name(prompt.first, &prompt.first_name, show), None);
        let rest = prompt.rest.iter().chain(tokens);
        let rest = rest.map(|token| (name(token.id, &token.name, show), Some(token)));
        TextLogprobs::list(std::iter::once(first).chain(rest), show, offset)
    }

    fn list<'a>(
        tokens: impl Iterator<Item = (String, Option<&'a Named>)>,
        show: &Show,
        offset: &mut usize,
    ) -> Option<TextLogprobs> {
        let count = show.logprobs?;
        let both = show.both_logprobs.then(BothLists::default);
        let mut lists = TextLogprobs { both, ..TextLogprobs::default() };
        for (shown, token) in tokens {
            lists.text_offset.push(*offset);
            *offset += shown.chars().count();
            lists.tokens.push(shown);
            lists.token_logprobs.push(token.map(|token| token.logprob));
            let top = token.map(|token| {
                let top = token.top.iter().take(count.saturating_add(1));
                top.map(|t| (name(t.id, &t.name, show), Value::from(t.logprob))).collect()
            });
            lists.top_logprobs.push(top);
            if let Some(both) = &mut lists.both {
                both.raw_logprobs.push(token.map(|token| token.raw));
                both.processed_logprobs.push(token.map(|token| token.processed));
                both.ranks.push(token.map(|token| token.rank));
            }
        }
        Some(lists)
    }
}

/// A prompt with names, and with scores where those were asked for.
#[derive(Clone, Debug)]
pub(super) struct PromptTokens {
    first: u32,
    first_name: String,
    rest: Vec<Named>,
}

impl PromptTokens {
    /// Names the tokens of a prompt, which is not empty; `scores` has one for each but the first.
    pub(super) fn new(tokenizer: &Tokenizer, prompt: &[u32], scores: &[Scores]) -> PromptTokens {
        let mut names = TokenNames::default();
        let first = prompt.first().copied().unwrap_or_default();
        let first_name = names.push(tokenizer, first);
        let rest = prompt.iter().skip(1).zip(scores);
        let rest = rest.map(|(id, scores)| named(&mut names, tokenizer, *id, scores)).collect();
        PromptTokens { first, first_name, rest }
    }

    /// The text of the first token, which has no logprob.
    pub(super) fn first_name(&self) -> &str {
        &self.first_name
    }

    /// The tokens after it.
    pub(super) fn rest(&self) -> &[Named] {
        &self.rest
    }

    /// `prompt_logprobs`: nothing for the first token, then for each the scores of the token and of
    /// its alternatives by id.
    pub(super) fn logprobs(&self) -> Vec<Option<Map<String, Value>>> {
        #[derive(Serialize)]
        struct Logprob<'a> {
            logprob: f64,
            rank: usize,
            decoded_token: &'a str,
        }
        let entry = |token: &Named| {
            let top = token.top.iter().map(|one| {
                let (logprob, rank) = (one.logprob, one.rank);
                let shown = Logprob { logprob, rank, decoded_token: &one.name };
                (one.id.to_string(), serde_json::json!(shown))
            });
            Some(top.collect())
        };
        std::iter::once(None).chain(self.rest.iter().map(entry)).collect()
    }
}

/// Generate: one entry a token, by ids.
#[derive(Debug, Default, Serialize)]
pub(super) struct TokenLogprobs {
    content: Vec<TokenEntry>,
}

#[derive(Debug, Serialize)]
struct TokenEntry {
    token_id: u32,
    logprob: f64,
    rank: usize,
    top_logprobs: Vec<TokenTop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processed_logprob: Option<f64>,
}

#[derive(Debug, Serialize)]
struct TokenTop {
    token_id: u32,
    logprob: f64,
    rank: usize,
}

impl TokenLogprobs {
    /// The entries of `tokens`, if logprobs are shown; all alternatives are.
    pub(super) fn of(tokens: &[Named], show: &Show) -> Option<TokenLogprobs> {
        show.logprobs?;
        let both = |logprob: f64| show.both_logprobs.then_some(logprob);
        let content = tokens.iter().map(|token| TokenEntry {
            token_id: token.id,
            logprob: token.logprob,
            rank: token.rank,
            top_logprobs: (token.top.iter())
                .map(|one| TokenTop { token_id: one.id, logprob: one.logprob, rank: one.rank })
                .collect(),
            raw_logprob: both(token.raw),
            processed_logprob: both(token.processed),
        });
        Some(TokenLogprobs { content: content.collect() })
    }
}

fn name(id: u32, text: &str, show: &Show) -> String {
    if show.ids_as_tokens { format!("token_id:{id}") } else { text.to_owned() }
}
