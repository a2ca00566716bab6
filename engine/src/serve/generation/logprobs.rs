//! Logprobs in the forms of chat, of completions and of `/inference/v1/generate`.

use serde::Serialize;
use serde_json::{Map, Value, json};
use template::{TokenStrings, Tokenizer};

use super::choice::ScoredToken;
use super::request::ReplyOptions;
use crate::sample::TokenScores;

/// The fields that `return_both_logprobs` adds to a sampled token, in every mode of the server.
#[derive(Debug, Serialize)]
struct BothLogprobs {
    /// Under the model's own distribution.
    raw_logprob: f64,
    /// Under the distribution that was sampled from.
    processed_logprob: f64,
    /// Tokens that are at least as likely in the server's mode, this one included.
    rank: usize,
}

impl BothLogprobs {
    fn new(token: &ScoredToken, options: &ReplyOptions) -> Option<BothLogprobs> {
        options.both_logprobs.then_some(BothLogprobs {
            raw_logprob: token.raw,
            processed_logprob: token.processed,
            rank: token.rank,
        })
    }
}

/// Logprobs of chat: one entry a token.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatLogprob>,
}

#[derive(Debug, Serialize)]
struct ChatLogprob {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    top_logprobs: Vec<ChatAlternative>,
    #[serde(flatten)]
    both: Option<BothLogprobs>,
}

#[derive(Debug, Serialize)]
struct ChatAlternative {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// Builds the entries of `tokens`, if logprobs are reported.
    pub(crate) fn new(tokens: &[ScoredToken], options: &ReplyOptions) -> Option<ChatLogprobs> {
        let count = options.logprobs?;
        let content = tokens.iter().map(|token| ChatLogprob::new(token, count, options)).collect();
        Some(ChatLogprobs { content })
    }
}

impl ChatLogprob {
    fn new(token: &ScoredToken, count: usize, options: &ReplyOptions) -> ChatLogprob {
        ChatLogprob {
            token: token_name(token.id, &token.text, options),
            logprob: token.logprob,
            // The bytes are those of the text, also where the token is named by its id.
            bytes: token.text.clone().into_bytes(),
            top_logprobs: chat_alternatives(token, count, options),
            both: BothLogprobs::new(token, options),
        }
    }
}

/// Builds the entries of the first `count` alternatives, the token itself included.
fn chat_alternatives(
    token: &ScoredToken,
    count: usize,
    options: &ReplyOptions,
) -> Vec<ChatAlternative> {
    let mut alternatives = Vec::with_capacity(count.min(token.top.len()));
    for other in token.top.iter().take(count) {
        let name = token_name(other.id, &other.text, options);
        alternatives.push(ChatAlternative {
            bytes: name.clone().into_bytes(),
            token: name,
            logprob: other.logprob,
        });
    }
    alternatives
}

/// Logprobs of completions: parallel lists, one element a token.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TextLogprobs {
    text_offset: Vec<usize>,
    /// None for the first token of a prompt, which has no logprob.
    token_logprobs: Vec<Option<f64>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    #[serde(flatten)]
    both: Option<BothLogprobLists>,
}

#[derive(Debug, Default, Serialize)]
struct BothLogprobLists {
    raw_logprobs: Vec<Option<f64>>,
    processed_logprobs: Vec<Option<f64>>,
    ranks: Vec<Option<usize>>,
}

impl TextLogprobs {
    /// Builds the lists of `tokens`, if logprobs are reported. `offset` is the number of characters
    /// of all tokens before them, and is advanced.
    pub(crate) fn new(
        tokens: &[ScoredToken],
        options: &ReplyOptions,
        offset: &mut usize,
    ) -> Option<TextLogprobs> {
        let mut lists = TextLogprobs::empty(options)?;
        tokens.iter().for_each(|token| lists.push(token, options, offset));
        Some(lists)
    }

    /// Builds the lists of a prompt and of `tokens` after it.
    pub(crate) fn with_prompt(
        prompt: &PromptTokens,
        tokens: &[ScoredToken],
        options: &ReplyOptions,
        offset: &mut usize,
    ) -> Option<TextLogprobs> {
        let mut lists = TextLogprobs::empty(options)?;
        let first = token_name(prompt.first, &prompt.first_text, options);
        lists.push_entry(first, None, options, offset);
        prompt.rest.iter().chain(tokens).for_each(|token| lists.push(token, options, offset));
        Some(lists)
    }

    fn empty(options: &ReplyOptions) -> Option<TextLogprobs> {
        options.logprobs?;
        let both = options.both_logprobs.then(BothLogprobLists::default);
        Some(TextLogprobs { both, ..TextLogprobs::default() })
    }

    fn push(&mut self, token: &ScoredToken, options: &ReplyOptions, offset: &mut usize) {
        let name = token_name(token.id, &token.text, options);
        self.push_entry(name, Some(token), options, offset);
    }

    /// Appends one element to each list. `token` is none if it has no logprob.
    fn push_entry(
        &mut self,
        name: String,
        token: Option<&ScoredToken>,
        options: &ReplyOptions,
        offset: &mut usize,
    ) {
        self.text_offset.push(*offset);
        *offset += name.chars().count();
        self.tokens.push(name);
        self.token_logprobs.push(token.map(|token| token.logprob));
        self.top_logprobs.push(token.map(|token| text_alternatives(token, options)));

        if let Some(both) = &mut self.both {
            both.raw_logprobs.push(token.map(|token| token.raw));
            both.processed_logprobs.push(token.map(|token| token.processed));
            both.ranks.push(token.map(|token| token.rank));
        }
    }
}

/// Builds the logprobs by name of the token itself and of the alternatives that were asked for. Of
/// several with one name, the first has it: the token itself, then the likelier ones.
fn text_alternatives(token: &ScoredToken, options: &ReplyOptions) -> Map<String, Value> {
    let count = options.logprobs.unwrap_or(0).saturating_add(1);
    let mut by_name = Map::new();
    for one in token.top.iter().take(count) {
        let name = token_name(one.id, &one.text, options);
        by_name.entry(name).or_insert_with(|| Value::from(one.logprob));
    }
    by_name
}

/// `prompt_logprobs`: null for the first token, then an object by token id.
pub(crate) type PromptLogprobs = Vec<Option<Map<String, Value>>>;

/// The tokens of a prompt with their texts and logprobs.
#[derive(Clone, Debug)]
pub(crate) struct PromptTokens {
    first: u32,
    first_text: String,
    rest: Vec<ScoredToken>,
}

impl PromptTokens {
    /// Decodes the tokens of a prompt, which is not empty, from one on. `scores` has an element for
    /// each token after that one.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        prompt: &[u32],
        from: usize,
        scores: &[TokenScores],
    ) -> PromptTokens {
        let mut names = TokenStrings::default();
        for id in prompt.iter().take(from) {
            names.push(tokenizer, *id);
        }

        let first = prompt.get(from).copied().unwrap_or_default();
        let first_text = names.push(tokenizer, first);
        let rest = prompt
            .iter()
            .skip(from + 1)
            .zip(scores)
            .map(|(id, scores)| ScoredToken::new(&mut names, tokenizer, *id, scores))
            .collect();
        PromptTokens { first, first_text, rest }
    }

    /// Returns the text of the token before the scored ones, which has no logprob.
    pub(crate) fn first_text(&self) -> &str {
        &self.first_text
    }

    /// Returns the scored tokens.
    pub(crate) fn rest(&self) -> &[ScoredToken] {
        &self.rest
    }

    /// Builds `prompt_logprobs`.
    pub(crate) fn logprobs(&self) -> PromptLogprobs {
        std::iter::once(None).chain(self.rest.iter().map(prompt_logprob)).collect()
    }
}

/// Builds the entry of one token of a prompt: the token and its alternatives by id.
fn prompt_logprob(token: &ScoredToken) -> Option<Map<String, Value>> {
    let mut entry = Map::new();
    for one in &token.top {
        let value = json!({
            "logprob": one.logprob,
            "rank": one.rank,
            "decoded_token": one.text,
        });
        entry.insert(one.id.to_string(), value);
    }
    Some(entry)
}

/// Logprobs of `/inference/v1/generate`: one entry a token, by ids.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TokenLogprobs {
    content: Vec<TokenLogprob>,
}

#[derive(Debug, Serialize)]
struct TokenLogprob {
    token_id: u32,
    logprob: f64,
    rank: usize,
    top_logprobs: Vec<TokenAlternative>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processed_logprob: Option<f64>,
}

#[derive(Debug, Serialize)]
struct TokenAlternative {
    token_id: u32,
    logprob: f64,
    rank: usize,
}

impl TokenLogprobs {
    /// Builds the entries of `tokens` with all their alternatives, if logprobs are reported.
    pub(crate) fn new(tokens: &[ScoredToken], options: &ReplyOptions) -> Option<TokenLogprobs> {
        options.logprobs?;
        let content = tokens.iter().map(|token| TokenLogprob::new(token, options)).collect();
        Some(TokenLogprobs { content })
    }
}

impl TokenLogprob {
    fn new(token: &ScoredToken, options: &ReplyOptions) -> TokenLogprob {
        let alternatives = token.top.iter().map(|one| TokenAlternative {
            token_id: one.id,
            logprob: one.logprob,
            rank: one.rank,
        });
        TokenLogprob {
            token_id: token.id,
            logprob: token.logprob,
            rank: token.rank,
            top_logprobs: alternatives.collect(),
            raw_logprob: options.both_logprobs.then_some(token.raw),
            processed_logprob: options.both_logprobs.then_some(token.processed),
        }
    }
}

/// Names a token by its text, or by its id where the request asks for that.
fn token_name(id: u32, text: &str, options: &ReplyOptions) -> String {
    if options.ids_as_tokens { format!("token_id:{id}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::generation::Alternative;

    /// Two ids spell "x". The name has the value of the sampled one, or of the likelier.
    #[test]
    fn a_name_has_the_value_of_its_first_token() {
        let one = |id: u32, text: &str, logprob: f64| Alternative {
            id,
            text: text.to_owned(),
            logprob,
            rank: 1,
        };
        let top = vec![one(3, "y", -2.0), one(1, "x", -0.5), one(2, "x", -1.0), one(4, "y", -3.0)];
        let token = ScoredToken {
            id: 3,
            text: "y".to_owned(),
            logprob: -2.0,
            processed: -2.0,
            raw: -2.0,
            rank: 3,
            top,
        };
        let mut options = ReplyOptions {
            logprobs: Some(3),
            both_logprobs: false,
            token_ids: false,
            ids_as_tokens: false,
            weight_versions: false,
            routed_experts: false,
            experts_from: 0,
            usage: false,
            continuous_usage: false,
            stream: false,
        };
        let found = Value::Object(text_alternatives(&token, &options));
        assert_eq!(found, json!({"y": -2.0, "x": -0.5}));
        options.ids_as_tokens = true;
        assert_eq!(text_alternatives(&token, &options).len(), 4);
    }
}
