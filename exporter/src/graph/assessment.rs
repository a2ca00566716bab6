//! Assesses one choice: which of its tokens may be trained, and why it is less than exact.

use std::collections::{BTreeSet, HashMap};

use episode::{Choice, Fidelity, Outcome};
use serde_json::Value;
use wire::{EffectiveSampling, LogprobFit};

use crate::graph::descendants::Descendants;
use crate::graph::forest::Forest;
use crate::graph::node::{Node, PerNode};
use crate::graph::scan::are_ids;
use crate::notes::reason::Reason;

/// Lowest logprob that is a number. Servers that cannot send NaN or infinity in JSON send a smaller
/// one.
const LOGPROB_FLOOR: f32 = -9999.0;

/// Highest logprob that can be: 0, with room for the rounding of servers that sum in 32 bits.
const LOGPROB_CEILING: f32 = 1e-5;

/// Returns true for a logprob that stands for "not known".
pub(crate) fn is_missing(logprob: f32) -> bool {
    !logprob.is_finite() || logprob <= LOGPROB_FLOOR
}

/// The trainable tokens of one choice, and the reasons against the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Assessment {
    /// True where its tokens may be trained, except those without a logprob.
    pub(crate) trainable: bool,
    /// Number of tokens that may be trained.
    pub(crate) tokens: usize,
    /// Reasons why the choice is less than exact.
    pub(crate) reasons: BTreeSet<Reason>,
}

/// The parameters that calls of an episode were sampled with, by the text that they were recorded
/// as. Most calls have the same ones, which are read once.
#[derive(Default)]
struct RecordedSampling<'a>(HashMap<&'a str, Option<EffectiveSampling>>);

/// Assesses one choice by itself. Of its place in the forest only `is_extended` matters: the prompt
/// of a later call goes on from its tokens.
fn assess<'a>(
    node: &Node<'a>,
    sampling: &mut RecordedSampling<'a>,
    is_extended: bool,
) -> Assessment {
    let Some(choice) = node.choice.filter(|_| node.has_ids) else {
        let impossible = has_impossible_values(node).then_some(Reason::ImpossibleValues);
        let outcome = outcome_reason(node.ended.outcome);
        let reasons = outcome.into_iter().chain([Reason::NoTokenIds]).chain(impossible);
        return Assessment { reasons: reasons.collect(), ..Assessment::default() };
    };

    let counts_agree = choice.logprobs.len() == node.sampled.len();
    let known = choice.logprobs.iter().filter(|logprob| !is_missing(**logprob)).count();
    let redacted = redacted_tokens(choice);
    let lost_ids = parser_lost_ids(node);
    let is_impossible = has_impossible_values(node);
    // What a recording answered was sampled there, and is trained there.
    let is_replayed = node.ended.replayed.is_some();
    // Each reason with the condition under which it holds.
    let found = [
        (Reason::NothingSampled, node.sampled.is_empty()),
        (Reason::LogprobCountDiffers, !counts_agree),
        (
            Reason::LogprobMissing,
            counts_agree && known + redacted.unwrap_or(0) < node.sampled.len(),
        ),
        (Reason::Redacted, redacted.is_some()),
        (Reason::Replayed, is_replayed),
        (Reason::Mapped, choice.fidelity == Fidelity::Mapped),
        (Reason::TokenCountDiffers, usage_differs(node)),
        (Reason::ParserLostIds, lost_ids),
        (Reason::ImpossibleValues, is_impossible),
    ];
    let reasons = found
        .into_iter()
        .filter_map(|(reason, holds)| holds.then_some(reason))
        .chain(outcome_reason(node.ended.outcome))
        .chain(sampling.logprob_reason(node))
        .collect();

    let is_whole = match node.ended.outcome {
        Outcome::Complete => !lost_ids,
        // The agent went on from what a server gave before it failed.
        Outcome::UpstreamFailed => is_extended,
        _ => false,
    };
    let trainable = counts_agree && known > 0 && is_whole && !is_impossible && !is_replayed;
    Assessment { trainable, tokens: if trainable { known } else { 0 }, reasons }
}

/// Assesses one choice by itself, of no episode.
pub(crate) fn assess_alone(node: &Node<'_>) -> Assessment {
    assess(node, &mut RecordedSampling::default(), false)
}

/// Assesses every choice of an episode, with what the calls around it show of it.
pub(crate) fn assess_all(forest: &Forest<'_>, descendants: &Descendants) -> PerNode<Assessment> {
    let mut sampling = RecordedSampling::default();
    let assessed = forest.nodes.entries().map(|(id, node)| {
        let is_extended = !descendants[id].children.is_empty();
        let mut assessment = assess(node, &mut sampling, is_extended);
        let is_complete = node.ended.outcome == Outcome::Complete;
        if is_complete && descendants[id].superseded && !descendants.is_continued(id) {
            assessment.reasons.insert(Reason::DeliveryUncertain);
        }
        assessment
    });
    assessed.collect()
}

/// Returns true where the server reported what cannot be. Such a server is not believed in anything
/// about the choice.
fn has_impossible_values(node: &Node<'_>) -> bool {
    let Some(choice) = node.choice else { return false };
    let prompt = node.ended.prompts.get(choice.prompt_index as usize);
    let ids = [prompt, choice.token_ids.as_ref()];

    choice.logprobs.iter().any(|logprob| *logprob > LOGPROB_CEILING)
        // Those of a node with ids were looked at when it was made.
        || !node.has_ids && ids.into_iter().flatten().any(|ids| !are_ids(ids))
        || choice.has_impossible_versions()
        || node.ended.usage.is_absurd()
}

/// Returns the number of sampled tokens that were taken out because they said a secret; none where
/// neither the choice nor its prompt said one.
fn redacted_tokens(choice: &Choice) -> Option<usize> {
    let column = choice.token_columns.iter().find(|column| column.name == Choice::REDACTED)?;
    let places: Value = serde_json::from_str(&column.json).unwrap_or_default();
    let spans = places["sampled"].as_array().map_or(&[][..], Vec::as_slice);
    let lengths =
        spans.iter().map(|span| Some(span[1].as_u64()?.saturating_sub(span[0].as_u64()?)));
    Some(lengths.flatten().sum::<u64>() as usize)
}

/// Returns the reason that a reply's outcome gives; none for a complete one.
fn outcome_reason(outcome: Outcome) -> Option<Reason> {
    match outcome {
        Outcome::Complete => None,
        Outcome::ClientGone => Some(Reason::ClientGone),
        Outcome::UpstreamFailed => Some(Reason::UpstreamFailed),
        Outcome::Capped => Some(Reason::Capped),
        Outcome::Refused => Some(Reason::Refused),
    }
}

/// Returns true where the server's token counts differ from its ids. A reply that was cut short has
/// no count to compare.
fn usage_differs(node: &Node<'_>) -> bool {
    let ended = node.ended;
    if ended.outcome != Outcome::Complete {
        return false;
    }
    // Servers count a batch of prompts in different ways; only a single prompt is comparable.
    let prompt = match ended.prompts.as_slice() {
        [only] => Some(only.len() as u64),
        _ => None,
    };
    let sampled: Option<u64> = ended
        .choices
        .iter()
        .map(|choice| choice.token_ids.as_ref().map(|ids| ids.len() as u64))
        .sum();
    let pairs = [(ended.usage.prompt, prompt), (ended.usage.completion, sampled)];
    pairs.into_iter().any(|(reported, counted)| {
        reported.zip(counted).is_some_and(|(reported, counted)| reported != counted)
    })
}

/// Returns true where a parser of the server withheld ids. A parser of tool calls or of reasoning
/// holds text back while the reply streams, and some servers never send the ids of that text.
fn parser_lost_ids(node: &Node<'_>) -> bool {
    let ended = node.ended;
    let ids = ended.choices.iter().filter_map(|choice| choice.token_ids.as_ref());
    let counted: u64 = ids.map(|ids| ids.len() as u64).sum();
    let is_short = ended.usage.completion.is_some_and(|reported| reported > counted);
    if ended.outcome != Outcome::Complete || !is_short {
        return false;
    }
    let answers = wire::answers(node.call.begun.route, &ended.reply.read());
    let answer = answers.into_iter().find(|answer| answer.index == node.index);
    answer.is_some_and(|answer| {
        wire::reasoning(&answer.message).is_some() || calls_tools(&answer.message)
    })
}

fn calls_tools(message: &Value) -> bool {
    message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
}

impl<'a> RecordedSampling<'a> {
    /// Returns the reason for logprobs that may not be those of the sampling distribution. Calls
    /// from before the server's choices were recorded are judged by their requests.
    fn logprob_reason(&mut self, node: &Node<'a>) -> Option<Reason> {
        let (begun, ended) = (&node.call.begun, node.ended);
        let kind = &ended.logprob_kind;
        let recorded = ended.sampled_with.as_deref().and_then(|text| {
            self.0.entry(text).or_insert_with(|| EffectiveSampling::from_json(text)).as_ref()
        });
        let fit = match recorded {
            Some(effective) => effective.fit(kind),
            None => LogprobFit::of_recorded_request(
                begun.sampling.as_deref(),
                &begun.request.read(),
                kind,
            ),
        };
        match fit {
            LogprobFit::Yes => None,
            LogprobFit::No => Some(Reason::LogprobsNotOfSamplingDistribution),
            LogprobFit::Unknown => Some(Reason::SamplingUnknown),
        }
    }
}

/// Returns the numbers of the KV cache that the server said, where they are not the model's own.
pub(crate) fn kv_cache(node: &Node<'_>) -> Option<String> {
    let recorded = node.ended.sampled_with.as_deref()?;
    // Most calls have none, and their parameters need not be read.
    let sampling =
        recorded.contains("kv_cache").then(|| EffectiveSampling::from_json(recorded))??;
    sampling.kv_cache().map(str::to_owned)
}

/// Returns the temperature that was used: the one asked for or forced, else the server's default
/// where it is known.
pub(crate) fn temperature(node: &Node<'_>) -> Option<f64> {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    let used = node.ended.sampled_with.as_deref().and_then(parsed);
    let asked = node.call.begun.sampling.as_deref().and_then(parsed);
    let value = used.as_ref().and_then(|used| used.pointer("/temperature/value"));
    let number = value.filter(|value| !value.is_null());
    number.or_else(|| asked.as_ref()?.get("temperature")).and_then(Value::as_f64)
}
