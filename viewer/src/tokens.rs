//! The tokens of a call: its prompt, then what a choice sampled.

use std::ops::Range;

use episode::{Annotation, Call, CallEnd, Choice};
use exporter::{ChoiceMask, choice_mask};
use serde::{Deserialize, Serialize};
use store::Snapshot;

use crate::call::find;
use crate::error::ViewError;
use crate::parameters::Parameters;
use crate::texts::{TokenTexts, texts_of};
use crate::time::seconds;
use crate::turn::fidelity;
use crate::weights::{SpanView, VersionTable};

/// A part of the tokens of a call, as arrays of one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct TokensView {
    pub call_id: String,
    pub choice: u32,
    pub prompt_tokens: u64,
    pub sampled_tokens: u64,
    pub from: u64,
    pub ids: Vec<u32>,
    pub texts: Vec<Option<String>>,
    pub text_source: Option<String>,
    pub logprobs: Vec<Option<f32>>,
    pub mask: Vec<u8>,
    pub versions: Vec<SpanView>,
    pub fidelity: Option<String>,
    pub logprob_kind: Option<String>,
    pub reasons: Vec<String>,
    pub annotations: Vec<StreamView>,
}

/// Numbers of trainers for a part of the tokens, under one name and version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamView {
    pub name: String,
    pub version: String,
    pub given_at: f64,
    pub values: Vec<Option<f32>>,
}

/// The tokens of one choice behind those of its prompt.
struct ChoiceTokens<'a> {
    call: &'a Call,
    prompt: &'a [u32],
    sampled: &'a [u32],
    choice: Option<&'a Choice>,
    mask: ChoiceMask,
}

/// Reads tokens.
pub(crate) async fn tokens(
    snapshot: &mut Snapshot,
    id: &str,
    mut parameters: Parameters,
    texts: Option<&TokenTexts>,
) -> Result<TokensView, ViewError> {
    let choice = parameters.parsed("choice", "a number from 0")?.unwrap_or(0);
    let from: u64 = parameters.parsed("from", "a number from 0")?.unwrap_or(0);
    let count: Option<u64> = parameters.parsed("count", "a number from 0")?;
    parameters.end()?;

    let call = find(snapshot, id).await?;
    let weights = VersionTable(snapshot.versions().await?);
    let tokens = ChoiceTokens::of(&call, choice)?;
    let spans = tokens.shifted(weights.spans(&call, choice));
    let part = tokens.range(from, count.unwrap_or(u64::MAX));
    let mut view = tokens.part(choice, spans, part.clone(), texts);
    let annotations = snapshot.call_annotations(call.begun.call_id).await?;
    let of_choice = annotations.iter().filter(|annotation| annotation.choice == choice);
    view.annotations = streams(of_choice, &tokens.sampled_part(&part), part.len());
    Ok(view)
}

impl<'a> ChoiceTokens<'a> {
    fn of(call: &'a Call, index: u32) -> Result<Self, ViewError> {
        let ended = call.ended.as_ref();
        let choice = ended.and_then(|ended| find_choice(ended, index));
        let prompt_index = choice.map_or(0, |choice| choice.prompt_index);
        let prompt = ended.and_then(|ended| ended.prompts.get(prompt_index as usize));
        let mask = choice_mask(call, index);
        if choice.is_none() && mask.is_none() && index > 0 {
            let message = format!("the call `{}` has no choice {index}", call.begun.call_id);
            return Err(ViewError::Missing(message));
        }
        Ok(Self {
            call,
            prompt: prompt.map_or(&[], Vec::as_slice),
            sampled: choice.and_then(|choice| choice.token_ids.as_deref()).unwrap_or_default(),
            choice,
            mask: mask.unwrap_or_default(),
        })
    }

    /// Spans of sampled tokens as spans of all tokens.
    fn shifted(&self, spans: Vec<SpanView>) -> Vec<SpanView> {
        let prompt = self.prompt.len() as u32;
        let moved = spans.into_iter().map(|span| SpanView {
            start: span.start + prompt,
            end: span.end + prompt,
            ..span
        });
        moved.collect()
    }

    /// The positions of `count` tokens from `from` on, as far as there are tokens.
    fn range(&self, from: u64, count: u64) -> Range<usize> {
        let all = self.prompt.len() + self.sampled.len();
        let start = usize::try_from(from).unwrap_or(usize::MAX).min(all);
        let end = usize::try_from(from.saturating_add(count)).unwrap_or(usize::MAX).min(all);
        start..end
    }

    /// The sampled tokens of a part, counted from the first sampled one.
    fn sampled_part(&self, part: &Range<usize>) -> Range<usize> {
        let prompt = self.prompt.len();
        part.start.saturating_sub(prompt)..part.end.saturating_sub(prompt)
    }

    fn part(
        &self,
        choice: u32,
        versions: Vec<SpanView>,
        part: Range<usize>,
        texts: Option<&TokenTexts>,
    ) -> TokensView {
        let prompt = self.prompt.len();
        let id = |at: usize| if at < prompt { self.prompt[at] } else { self.sampled[at - prompt] };
        let ids: Vec<u32> = part.clone().map(id).collect();
        let (texts, text_source) = self.texts(&ids, part.start, texts);

        let sampled = |at: usize| at.checked_sub(prompt);
        let logprob = |at: usize| {
            let logprobs = &self.choice?.logprobs;
            logprobs.get(sampled(at)?).copied().filter(|logprob| logprob.is_finite())
        };
        let mask =
            |at: usize| sampled(at).and_then(|at| self.mask.trainable.get(at)) == Some(&true);
        TokensView {
            call_id: self.call.begun.call_id.to_string(),
            choice,
            prompt_tokens: prompt as u64,
            sampled_tokens: self.sampled.len() as u64,
            from: part.start as u64,
            ids,
            texts,
            text_source: text_source.map(str::to_owned),
            logprobs: part.clone().map(logprob).collect(),
            mask: part.map(|at| u8::from(mask(at))).collect(),
            versions,
            fidelity: self.choice.and_then(fidelity),
            logprob_kind: self.call.ended.as_ref().map(|ended| ended.logprob_kind.clone()),
            reasons: self.mask.reasons.iter().map(|reason| reason.as_str().to_owned()).collect(),
            annotations: Vec::new(),
        }
    }

    /// The texts of a part of the tokens: by a tokenizer, else as far as the reply has them.
    fn texts(
        &self,
        ids: &[u32],
        start: usize,
        texts: Option<&TokenTexts>,
    ) -> (Vec<Option<String>>, Option<&'static str>) {
        if let Some(texts) = texts.and_then(|texts| texts.of(ids)) {
            return (texts, Some("tokenizer"));
        }
        let known = self.listed_texts().unwrap_or_default();
        let source = known.iter().any(Option::is_some).then_some("logprobs");
        let of = |at: usize| known.get(at.checked_sub(self.prompt.len())?)?.clone();
        ((start..start + ids.len()).map(of).collect(), source)
    }

    /// The texts of the sampled tokens that the call's own reply lists.
    fn listed_texts(&self) -> Option<Vec<Option<String>>> {
        let (ended, choice) = (self.call.ended.as_ref()?, self.choice?);
        if self.sampled.is_empty() {
            return None;
        }
        let lists = wire::listed_tokens(self.call.begun.route, &ended.reply.read());
        let listed = lists.get(&choice.index)?;
        Some(texts_of(wire::bytes_of_ids(listed, self.sampled)))
    }
}

/// The streams of annotations in a part of `length` tokens, whose last ones are the sampled tokens
/// `sampled`. Of several numbers for a token the last counts.
fn streams<'a>(
    annotations: impl Iterator<Item = &'a Annotation>,
    sampled: &Range<usize>,
    length: usize,
) -> Vec<StreamView> {
    let mut streams: Vec<StreamView> = Vec::new();
    for Annotation { name, version, start, values, at, .. } in annotations {
        let known = streams.iter().position(|s| s.name == *name && s.version == *version);
        let place = known.unwrap_or_else(|| {
            let values = vec![None; length];
            streams.push(StreamView {
                name: name.clone(),
                version: version.clone(),
                given_at: 0.0,
                values,
            });
            streams.len() - 1
        });

        streams[place].given_at = seconds(*at);
        for (token, value) in (*start as usize..).zip(values).filter(|(_, v)| v.is_finite()) {
            if sampled.contains(&token) {
                let prompt = length - sampled.len();
                streams[place].values[prompt + token - sampled.start] = Some(*value);
            }
        }
    }
    streams
}

fn find_choice(ended: &CallEnd, index: u32) -> Option<&Choice> {
    ended.choices.iter().find(|choice| choice.index == index)
}
