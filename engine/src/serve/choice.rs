//! One choice of a reply: tokens in, text out.

use serde::Serialize;
use template::{Detokenizer, TokenNames, Tokenizer};
use tokio::sync::mpsc::Receiver;

use super::error::ApiError;
use super::request::Show;
use crate::sample::Scores;
use crate::sequence::{End, Finish, Output, PromptFacts, StopRules};

/// A token as a logprob entry shows it.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) logprob: f64,
    /// Under the distribution that was sampled from.
    pub(super) processed: f64,
    /// Under the model's own distribution.
    pub(super) raw: f64,
    pub(super) rank: usize,
    /// The token itself, then the likeliest others.
    pub(super) top: Vec<Alternative>,
}

/// A token that could have been there.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) logprob: f64,
    pub(super) rank: usize,
}

/// The end of a choice that came to one of its own.
pub(super) fn ended(end: Option<End>) -> Result<End, ApiError> {
    let end = end.ok_or_else(ApiError::internal)?;
    match &end.finish {
        Finish::Failed(reason) => Err(ApiError::failed(reason)),
        _ => Ok(end),
    }
}

/// What an output added to a choice.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    /// Empty unless logprobs are shown.
    pub(super) tokens: Vec<Named>,
    /// With the first piece of a choice only.
    pub(super) prompt: Option<PromptFacts>,
    pub(super) end: Option<End>,
}

/// What each choice of a reply adds up to.
pub(super) async fn gather(
    mut choices: Vec<Choice>,
    tokenizer: &Tokenizer,
    mut outputs: Receiver<Output>,
) -> Vec<Piece> {
    let mut whole = vec![Piece::default(); choices.len()];
    while let Some(output) = outputs.recv().await {
        let index = output.index;
        let Some(choice) = choices.get_mut(index) else { continue };
        let piece = choice.take(tokenizer, output);
        whole[index].add(piece);
    }
    whole
}

impl Piece {
    /// Takes in what came after it.
    pub(super) fn add(&mut self, piece: Piece) {
        self.text.push_str(&piece.text);
        self.ids.extend(piece.ids);
        self.tokens.extend(piece.tokens);
        self.prompt = piece.prompt.or(self.prompt.take());
        self.end = piece.end.or(self.end.take());
    }

    /// Takes back what was sampled; how it ended stays.
    pub(super) fn mute(&mut self) {
        self.text.clear();
        self.ids.clear();
        self.tokens.clear();
    }

    /// Tokens of the prompt that came from a cache.
    pub(super) fn cached_tokens(&self) -> usize {
        self.prompt.as_ref().map_or(0, |prompt| prompt.cached_tokens)
    }
}

/// What ended a reply, where it was not the end-of-sequence token.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum StopReason {
    Id(u32),
    Text(String),
}

/// Which weights sampled a run of tokens.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WeightVersion {
    version: String,
    /// The model's own weights, where an adapter was added to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_version: Option<String>,
    start: usize,
    end: usize,
}

impl End {
    pub(super) fn finish_reason(&self) -> &'static str {
        match self.finish {
            Finish::Eos | Finish::StopId(_) | Finish::StopText { .. } => "stop",
            Finish::Length => "length",
            Finish::Aborted => "abort",
            Finish::Failed(_) => "error",
        }
    }

    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        match &self.finish {
            Finish::StopId(id) => Some(StopReason::Id(*id)),
            Finish::StopText { text, .. } => Some(StopReason::Text(text.clone())),
            Finish::Eos | Finish::Length | Finish::Aborted | Finish::Failed(_) => None,
        }
    }

    pub(super) fn weight_versions(&self, show: &Show) -> Option<Vec<WeightVersion>> {
        show.weight_versions.then(|| self.spans())
    }

    /// Which weights sampled which tokens.
    pub(super) fn spans(&self) -> Vec<WeightVersion> {
        let spans = self.versions.iter().map(|span| WeightVersion {
            version: span.version.to_string(),
            base_version: span.base.as_deref().map(str::to_owned),
            start: span.start,
            end: span.end,
        });
        spans.collect()
    }
}

/// The state of one choice.
pub(super) struct Choice {
    detokenizer: Detokenizer,
    names: Option<TokenNames>,
    text: String,
    /// Bytes of the text that were given out.
    given: usize,
    /// Bytes held back because they could be the start of a stop text.
    hold: usize,
    /// Whether what ended the reply is part of its text.
    includes_stop: bool,
    /// Tokens so far.
    pub(super) count: usize,
    /// Tokens of the prompt that came from a cache.
    pub(super) cached_tokens: usize,
    pub(super) ended: bool,
}

impl Choice {
    pub(super) fn new(stops: &StopRules, show: &Show) -> Choice {
        let longest = stops.texts.iter().map(String::len).max().unwrap_or(0);
        Choice {
            detokenizer: Detokenizer::new(stops.skip_special_tokens),
            names: show.logprobs.map(|_| TokenNames::default()),
            text: String::new(),
            given: 0,
            hold: if stops.include_text { 0 } else { longest.saturating_sub(1) },
            includes_stop: stops.include_text,
            count: 0,
            cached_tokens: 0,
            ended: false,
        }
    }

    /// Takes an output in. What it adds to the text may be less than its tokens say, and more comes
    /// later.
    pub(super) fn take(&mut self, tokenizer: &Tokenizer, output: Output) -> Piece {
        let mut piece = Piece { prompt: output.prompt, end: output.end, ..Piece::default() };
        if let Some(prompt) = &piece.prompt {
            self.cached_tokens = prompt.cached_tokens;
        }
        let finish = piece.end.as_ref().map(|end| &end.finish);
        let at_token = matches!(finish, Some(Finish::Eos | Finish::StopId(_)));
        let silent = at_token && !self.includes_stop;
        let spoken = output.tokens.len() - usize::from(silent && !output.tokens.is_empty());
        for (index, token) in output.tokens.into_iter().enumerate() {
            if index < spoken {
                self.text.push_str(&self.detokenizer.push(tokenizer, token.id));
            }
            piece.ids.push(token.id);
            if let (Some(names), Some(scores)) = (&mut self.names, &token.scores) {
                piece.tokens.push(named(names, tokenizer, token.id, scores));
            }
        }
        if let Some(Finish::StopText { at, .. }) = finish {
            self.text.truncate(*at);
        }
        self.count += piece.ids.len();
        self.ended = piece.end.is_some();
        piece.text = self.release();
        piece
    }

    fn release(&mut self) -> String {
        let mut until = self.text.len();
        if !self.ended {
            until = until.saturating_sub(self.hold);
            while !self.text.is_char_boundary(until) {
                until -= 1;
            }
        }
        let new = self.text.get(self.given..until).unwrap_or_default().to_owned();
        self.given = self.given.max(until);
        new
    }
}

/// Names the token `id` and its alternatives.
pub(super) fn named(
    names: &mut TokenNames,
    tokenizer: &Tokenizer,
    id: u32,
    scores: &Scores,
) -> Named {
    let others = scores.top.iter().filter(|one| one.id != id);
    let others = others.map(|one| Alternative {
        id: one.id,
        name: names.peek(tokenizer, one.id),
        logprob: shown(one.logprob),
        rank: one.rank,
    });
    let mut top: Vec<Alternative> = others.collect();
    let name = names.push(tokenizer, id);
    let (logprob, rank) = (shown(scores.logprob), scores.rank);
    top.insert(0, Alternative { id, name: name.clone(), logprob, rank });
    let (processed, raw) = (shown(scores.processed), shown(scores.raw));
    Named { id, name, logprob, processed, raw, rank, top }
}

/// JSON has no infinity, so what was filtered out has this number, as in vLLM.
fn shown(logprob: f32) -> f64 {
    f64::from(logprob.max(-9999.0))
}
