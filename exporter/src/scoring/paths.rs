//! Paths that are scored, those of an attempt, each with the spans that were sampled on it.

use std::collections::BTreeMap;

use bytes::Bytes;
use episode::{Call, CallEnd, Choice, Route};
use serde_json::Value;
use store::{AttemptRecord, Snapshot, SnapshotError};

use crate::graph::assessment::{is_missing, kv_cache, temperature};
use crate::graph::derive::{Derived, derive};
use crate::graph::node::{Node, NodeId};
use crate::graph::paths::PathId;
use crate::graph::scan::{RecordedAttempt, scan};
use crate::scoring::hash::hash_of;

/// One path of an attempt, from a root of its history to a leaf.
#[derive(Debug, Clone, PartialEq)]
pub struct ScorePath {
    /// Name of the row in exports: episode, attempt, index.
    pub trajectory_id: String,
    /// Episode and attempt.
    pub attempt: String,
    /// Ids of the whole path.
    pub ids: Vec<u32>,
    /// The sampled spans, in order. A span that several paths hold is in the first of them.
    pub spans: Vec<SampledSpan>,
}

/// The sampled tokens of one choice within its path.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledSpan {
    /// The call.
    pub call_id: String,
    /// Index of the choice in its call.
    pub choice: u32,
    /// Position of the first sampled token in the path.
    pub start: usize,
    /// One logprob a token; NaN where it is not known.
    pub recorded: Vec<f32>,
    /// Label of the weights that sampled it; none where several did, or nobody says.
    pub version: Option<String>,
    /// Name of the engine; none with one upstream.
    pub engine: Option<String>,
    /// Name of the model or the adapter.
    pub model: String,
    /// The way in which it was sampled, and what its logprobs are said to be.
    pub sampling: StatedSampling,
    /// True where the call continues another call of the path.
    pub continues: bool,
    /// True where experts were recorded.
    pub has_experts: bool,
    /// The request, for calls of the chat route.
    pub chat: Option<Bytes>,
    /// Texts of the answer.
    pub texts: Vec<String>,
}

/// The sampling of a call as far as it decides logprobs. Parameters that do nothing are none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatedSampling {
    /// Kind of the logprobs: `processed`, `temperature`, `raw` or `unknown`.
    pub kind: String,
    /// The temperature; none where it is not known.
    pub temperature: Option<f64>,
    /// The mass of nucleus sampling.
    pub top_p: Option<f64>,
    /// The number of ids that are kept.
    pub top_k: Option<usize>,
    /// The least probability, as a share of the largest, that is kept.
    pub min_p: Option<f64>,
    /// True where something else bends the distribution: a penalty, a bias, a form.
    pub is_bent: bool,
    /// The numbers of the KV cache, where they are not the model's own.
    pub kv_cache: Option<String>,
}

impl SampledSpan {
    /// Returns one past the last token.
    pub fn end(&self) -> usize {
        self.start + self.recorded.len()
    }
}

impl ScorePath {
    /// Returns the hash of its ids, by which scores of them are known.
    pub fn ids_hash(&self) -> String {
        hash_of(self.ids.iter().copied())
    }

    /// Returns the sampled ids of the spans whose texts are known, each with these texts.
    pub fn told(&self) -> impl Iterator<Item = (&[u32], &[String])> {
        let known = self.spans.iter().filter(|span| !span.texts.is_empty());
        known.map(|span| (&self.ids[span.start..span.end()], span.texts.as_slice()))
    }
}

/// Reads the paths of an attempt. None where it cannot be read back.
///
/// # Errors
/// [`SnapshotError`] when the store cannot be read.
pub async fn read_paths(
    snapshot: &mut Snapshot,
    record: AttemptRecord,
) -> Result<Option<Vec<ScorePath>>, SnapshotError> {
    Ok(read_attempt(snapshot, record).await?.as_ref().map(score_paths))
}

/// Reads an attempt. None where it cannot be read back.
pub(crate) async fn read_attempt(
    snapshot: &mut Snapshot,
    record: AttemptRecord,
) -> Result<Option<RecordedAttempt>, SnapshotError> {
    match scan(snapshot, record, None).await {
        Ok((attempt, _)) => Ok(Some(attempt)),
        Err(SnapshotError::Decode { .. } | SnapshotError::Word(..)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the paths of an attempt with ids. Paths that hold no span of their own are left out.
pub(crate) fn score_paths(attempt: &RecordedAttempt) -> Vec<ScorePath> {
    let derived = derive(&attempt.calls);
    let name = format!("{}/{}", attempt.record.id, attempt.record.attempt);
    let paths = derived.paths.ids().filter_map(|id| score_path(&derived, id, &name));
    paths.collect()
}

fn score_path(derived: &Derived<'_>, id: PathId, attempt: &str) -> Option<ScorePath> {
    let path = &derived.paths[id];
    let leaf = &derived.forest.nodes[path.leaf()];
    if path.retokenized.is_some() || !leaf.has_ids {
        return None;
    }
    let own = |node: &&NodeId| derived.paths.first_of(**node) == id;
    let spans: Vec<_> =
        path.nodes.iter().filter(own).filter_map(|node| sampled_span(derived, *node)).collect();

    let ids = leaf.prompt.iter().chain(leaf.sampled).copied().collect();
    let trajectory_id = format!("{attempt}/{}", id.0);
    (!spans.is_empty()).then(|| ScorePath {
        trajectory_id,
        attempt: attempt.to_owned(),
        ids,
        spans,
    })
}

fn sampled_span(derived: &Derived<'_>, id: NodeId) -> Option<SampledSpan> {
    let node = &derived.forest.nodes[id];
    // What was given again is scored where it was sampled.
    let choice = node.choice.filter(|_| node.has_ids && node.newly_sampled() > 0)?;
    let count = node.sampled.len();
    let known = |logprob: &f32| if is_missing(*logprob) { f32::NAN } else { *logprob };
    let recorded = match choice.logprobs.len() == count {
        true => choice.logprobs.iter().map(known).collect(),
        // The counts differ, so no logprob is known to belong to a token.
        false => vec![f32::NAN; count],
    };

    let begun = &node.call.begun;
    let is_chat = begun.route == Route::Chat || node.ended.translated == Some(Route::Chat);
    Some(SampledSpan {
        call_id: node.call_id().to_string(),
        choice: node.index,
        start: node.prompt.len(),
        recorded,
        version: version(node, choice),
        engine: node.ended.engine.clone(),
        model: node.model().to_owned(),
        sampling: stated(node),
        continues: derived.forest.parent(id).is_some(),
        has_experts: choice.token_columns.iter().any(|column| column.name == "routed_experts"),
        chat: is_chat.then(|| node.request.read()),
        texts: answer_texts(node.call, node.ended, node.index),
    })
}

/// Returns the label of the weights, if one label is that of all tokens.
fn version(node: &Node<'_>, choice: &Choice) -> Option<String> {
    let mut labels = choice.versions.iter().map(|span| span.version.as_str());
    match (labels.next(), labels.next()) {
        (Some(only), None) => Some(only.to_owned()),
        (None, _) => node.ended.stamps.constant().map(str::to_owned),
        _ => None,
    }
}

fn stated(node: &Node<'_>) -> StatedSampling {
    let used: BTreeMap<String, Value> = node
        .ended
        .sampled_with
        .as_deref()
        .and_then(|t| serde_json::from_str(t).ok())
        .unwrap_or_default();
    let number = |name: &str| used.get(name)?.get("value")?.as_f64();

    StatedSampling {
        kind: node.ended.logprob_kind.clone(),
        temperature: temperature(node),
        top_p: number("top_p").filter(|p| *p < 1.0),
        top_k: number("top_k").filter(|k| *k >= 1.0).map(|k| k as usize),
        min_p: number("min_p").filter(|p| *p > 0.0),
        is_bent: used.iter().any(|(name, entry)| bends(name, entry)),
        kv_cache: kv_cache(node),
    }
}

/// Returns true where a recorded parameter changes the distribution in a way that scores do not
/// show: one that is neither a temperature nor a truncation, and not neutral.
fn bends(name: &str, entry: &Value) -> bool {
    if matches!(name, "temperature" | "top_p" | "top_k" | "min_p") || entry["source"] == "unknown" {
        return false;
    }
    let one =
        format!("{{{name:?}:{entry},\"temperature\":{{\"value\":1,\"source\":\"request\"}}}}");
    let read = wire::EffectiveSampling::from_json(&one);
    read.is_none_or(|sampling| sampling.fit("raw") == wire::LogprobFit::No)
}

/// Returns the content and the reasoning of an answer, as a client reads them.
fn answer_texts(call: &Call, ended: &CallEnd, index: u32) -> Vec<String> {
    let answers = wire::answers(call.begun.route, &ended.reply.read());
    let Some(answer) = answers.into_iter().find(|answer| answer.index == index) else {
        return Vec::new();
    };
    let content = wire::content_text(answer.message.get("content"));
    let reasoning = wire::reasoning(&answer.message).map(str::to_owned);
    content.into_iter().chain(reasoning).filter(|text| !text.trim().is_empty()).collect()
}
