//! What `/generate` answers, whole or as a stream in which each event has all so far.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::super::choice::{Choice, Named, Piece, WeightVersion, ended};
use super::super::error::ApiError;
use super::super::logprobs::PromptTokens;
use super::super::request::Show;
use super::super::sse::{Events, Ready};
use super::super::submit::State;
use crate::sequence::{End, Finish, Output, StopRules};

/// What the reply needs to know of the call.
pub(super) struct Call {
    pub(super) state: Arc<State>,
    pub(super) id: String,
    pub(super) n: usize,
    pub(super) show: Show,
    pub(super) prompt: Arc<[u32]>,
    pub(super) stops: Arc<StopRules>,
    /// The first position of the prompt whose token is scored.
    pub(super) scored: Option<usize>,
    /// Whether what is sampled is not told.
    pub(super) is_silent: bool,
    /// Whether tokens of logprobs come with their texts.
    pub(super) with_text: bool,
    pub(super) started: Instant,
}

/// A logprob, the id and the text, if texts are told.
type Scored = (Option<f64>, u32, Option<String>);

/// The likeliest tokens of each position of a prompt, but for the first.
type Tops = Vec<Option<Vec<Scored>>>;

#[derive(Debug, Serialize)]
pub(super) struct Generated {
    text: String,
    output_ids: Vec<u32>,
    meta_info: MetaInfo,
    /// Which of several choices it is, in a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}

#[derive(Debug, Serialize)]
struct MetaInfo {
    id: String,
    finish_reason: Option<Reason>,
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
    /// The label of the weights that sampled the last token, which is told at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_version: Option<String>,
    weight_versions: Option<Vec<WeightVersion>>,
    e2e_latency: f64,
    #[serde(flatten)]
    logprobs: Option<Logprobs>,
}

#[derive(Debug, Serialize)]
struct Logprobs {
    input_token_logprobs: Vec<Scored>,
    output_token_logprobs: Vec<Scored>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: Option<Tops>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<Vec<Vec<Scored>>>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Reason {
    Stop { matched: Matched },
    Length { length: usize },
    Abort { message: &'static str },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Matched {
    Id(Option<u32>),
    Text(String),
}

impl Call {
    /// The reply of a choice with all that it said, or why there is none.
    pub(super) fn reply(&self, index: usize, mut piece: Piece) -> Result<Generated, ApiError> {
        piece.end = Some(ended(piece.end)?);
        if self.is_silent {
            piece.mute();
        }
        let index = (self.n > 1).then_some(index);
        Ok(Generated { index, ..self.told(&piece) })
    }

    fn told(&self, piece: &Piece) -> Generated {
        Generated {
            text: piece.text.clone(),
            output_ids: piece.ids.clone(),
            meta_info: MetaInfo {
                id: self.id.clone(),
                finish_reason: piece.end.as_ref().and_then(|end| self.reason(end, &piece.ids)),
                prompt_tokens: self.prompt.len(),
                completion_tokens: piece.ids.len(),
                cached_tokens: piece.cached_tokens(),
                weight_version: piece.end.as_ref().map(|end| self.version(end)),
                weight_versions: piece.end.as_ref().map(End::spans),
                e2e_latency: self.started.elapsed().as_secs_f64(),
                logprobs: self.logprobs(piece),
            },
            index: None,
        }
    }

    fn version(&self, end: &End) -> String {
        let last = end.versions.last();
        let version =
            last.map_or_else(|| self.state.gate.board.read().version, |s| s.version.clone());
        version.to_string()
    }

    fn reason(&self, end: &End, ids: &[u32]) -> Option<Reason> {
        Some(match &end.finish {
            _ if self.is_silent => Reason::Length { length: 0 },
            Finish::Eos => Reason::Stop { matched: Matched::Id(ids.last().copied()) },
            Finish::StopId(id) => Reason::Stop { matched: Matched::Id(Some(*id)) },
            Finish::StopText { text, .. } => Reason::Stop { matched: Matched::Text(text.clone()) },
            Finish::Length => Reason::Length { length: ids.len() },
            Finish::Aborted => Reason::Abort { message: "Aborted" },
            Finish::Failed(_) => return None,
        })
    }

    fn logprobs(&self, piece: &Piece) -> Option<Logprobs> {
        let count = self.show.logprobs?;
        let tops = count > 0;
        let output: Vec<Scored> = piece.tokens.iter().map(|token| self.scored(token)).collect();
        let output_tops = piece.tokens.iter().map(|token| self.top(token, count)).collect();
        let (input, input_tops) = self.input(piece, count).unwrap_or_default();
        Some(Logprobs {
            input_token_logprobs: input,
            output_token_logprobs: output,
            input_top_logprobs: tops.then_some(input_tops),
            output_top_logprobs: tops.then_some(output_tops),
        })
    }

    /// The scores of the prompt. Nothing is said of the first token that is told of.
    fn input(&self, piece: &Piece, count: usize) -> Option<(Vec<Scored>, Tops)> {
        let start = self.scored?;
        let scores = piece.prompt.as_ref()?.scores.as_deref()?;
        let tokens = PromptTokens::new(&self.state.card.tokenizer, &self.prompt, scores);
        let (first_name, rest) = match start {
            0 => (tokens.first_name(), tokens.rest()),
            _ => (&*tokens.rest().get(start - 1)?.name, tokens.rest().get(start..)?),
        };
        let first = (None, *self.prompt.get(start)?, self.text(first_name));
        let scored = rest.iter().map(|token| self.scored(token));
        let tops = rest.iter().map(|token| Some(self.top(token, count)));
        let all = std::iter::once(first).chain(scored).collect();
        Some((all, std::iter::once(None).chain(tops).collect()))
    }

    fn scored(&self, token: &Named) -> Scored {
        (Some(token.logprob), token.id, self.text(&token.name))
    }

    /// The likeliest tokens.
    fn top(&self, token: &Named, count: usize) -> Vec<Scored> {
        let mut top: Vec<_> = token.top.iter().collect();
        // The token itself is the first whatever its rank.
        top.sort_by_key(|one| one.rank);
        let scored = |one: &&_| {
            let one: &super::super::choice::Alternative = one;
            (Some(one.logprob), one.id, self.text(&one.name))
        };
        top.iter().take(count).map(scored).collect()
    }

    fn text(&self, name: &str) -> Option<String> {
        self.with_text.then(|| name.to_owned())
    }
}

/// The events of one call.
pub(super) struct GenerateEvents {
    call: Call,
    choices: Vec<(Choice, Piece)>,
}

impl GenerateEvents {
    pub(super) fn new(call: Call) -> GenerateEvents {
        let choice = |_| (Choice::new(&call.stops, &call.show), Piece::default());
        GenerateEvents { choices: (0..call.n).map(choice).collect(), call }
    }
}

impl Events for GenerateEvents {
    fn output(&mut self, output: Output, ready: &mut Ready) {
        let index = output.index;
        let Some((choice, whole)) = self.choices.get_mut(index) else { return };
        let mut piece = choice.take(&self.call.state.card.tokenizer, output);
        if self.call.is_silent {
            piece.mute();
        }
        whole.add(piece);
        let index = (self.call.n > 1).then_some(index);
        ready.push(&Generated { index, ..self.call.told(whole) });
    }

    fn end(&mut self, _: &mut Ready) {}

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|(choice, _)| choice.ended)
    }
}
