//! A choice as it grows out of chunks, and the ids and logprobs that it ends with.

use episode::{Choice, Fidelity, TokenColumn, VersionSpan};
use serde_json::Value;

use super::lenient::Lenient;
use super::list::{Ids, short};
use super::versions::Spans;
use super::vocabulary::Vocabulary;
use crate::bounds::REASON_BYTES_MAX;

/// Bytes of an id with its logprob.
const PAIR_BYTES: usize = size_of::<(u32, Option<f64>)>();

/// A sampled token with its logprob; both are unknown to some servers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SampledToken {
    pub(super) logprob: Option<f64>,
    /// The id, if the server put it beside the logprob.
    pub(super) id: Option<u32>,
    /// The bytes; only kept if there is a vocabulary to find them in.
    pub(super) bytes: Option<Vec<u8>>,
}

/// The facts of a reply that its choices share.
pub(super) struct ReplyContext<'a> {
    /// Number of sampled tokens of the choice, if the server counted only the whole reply.
    pub(super) count: Option<u64>,
    /// The weight version of all tokens, if the server reports no spans.
    pub(super) version: Option<&'a str>,
    /// Gives ids to tokens that come with their bytes only.
    pub(super) vocabulary: Option<&'a Vocabulary>,
}

/// A choice that is not finished.
#[derive(Debug, Default)]
pub(super) struct ChoiceDraft {
    index: u32,
    prompt_index: u32,
    /// Ids that came in a list of their own.
    ids: Option<Vec<u32>>,
    /// Ids that came with their logprobs in one list.
    pairs: Option<Vec<(u32, Option<f64>)>>,
    /// Entries of lists of logprobs.
    tokens: Vec<SampledToken>,
    /// The same entries once more, all of them, from the end of a stream.
    repeated_tokens: Vec<SampledToken>,
    /// The server's count of the tokens that it sampled for this choice.
    count: Option<u64>,
    finish_reason: Option<String>,
    stop_reason: Option<Value>,
    versions: Vec<VersionSpan>,
    /// A part of the choice could not be read.
    has_gap: bool,
    /// Some of the ids in lists of their own could not be read.
    lacks_ids: bool,
    /// Some of the ids beside their logprobs could not be read.
    lacks_pairs: bool,
    /// Some of the logprobs could not be read.
    lacks_logprobs: bool,
    /// The model's end token stopped it, whether or not the server reports that token.
    stopped_by_end_token: bool,
    /// Elements of token columns by name, in the server's spelling, joined by commas.
    token_columns: Vec<(&'static str, String)>,
    /// Bytes that ids, logprobs and spans occupy.
    token_bytes: usize,
    /// Bytes that the token columns occupy.
    column_bytes: usize,
    /// A list of the choice was longer than its bound.
    is_cut: bool,
}

impl ChoiceDraft {
    pub(super) fn new(index: u32, prompt_index: u32) -> Self {
        Self { index, prompt_index, ..Self::default() }
    }

    pub(super) fn has_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Marks that a part of the choice is lost: ids and logprobs no longer stand side by side.
    pub(super) fn mark_gap(&mut self) {
        self.has_gap = true;
    }

    /// Notes whether a list of the choice was longer than its bound.
    pub(super) fn note_cut(&mut self, is_cut: bool) {
        self.is_cut |= is_cut;
    }

    /// Returns true if a list of the choice was longer than its bound.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Bytes that ids, logprobs and spans occupy.
    pub(super) fn token_bytes(&self) -> usize {
        self.token_bytes
    }

    /// Bytes that the token columns occupy.
    pub(super) fn column_bytes(&self) -> usize {
        self.column_bytes
    }

    /// Forgets what was sampled, and goes on to notice how the choice ends.
    pub(super) fn drop_tokens(&mut self) {
        self.has_gap = true;
        self.drop_lists();
        self.drop_columns();
        self.versions = Vec::new();
    }

    /// Forgets the token columns.
    pub(super) fn drop_columns(&mut self) {
        (self.token_columns, self.column_bytes) = (Vec::new(), 0);
    }

    fn drop_lists(&mut self) {
        (self.ids, self.pairs) = (None, None);
        (self.tokens, self.repeated_tokens) = (Vec::new(), Vec::new());
        self.token_bytes = 0;
    }

    /// Takes a list of ids, or notes that one is lost.
    pub(super) fn take_ids(&mut self, ids: Lenient<Ids>) {
        match ids {
            Lenient::Value(ids) => self.add_ids(ids),
            Lenient::Other => self.lacks_ids = true,
            Lenient::Absent => {}
        }
    }

    pub(super) fn add_ids(&mut self, ids: Ids) {
        self.is_cut |= ids.is_cut;
        self.lacks_ids |= ids.is_damaged;
        self.token_bytes += ids.items.len() * size_of::<u32>();
        self.ids.get_or_insert_default().extend(ids.items);
    }

    /// Returns true if ids of the choice came.
    pub(super) fn has_ids(&self) -> bool {
        self.ids.is_some() || self.pairs.is_some()
    }

    /// Forgets all ids: the next chunk repeats them.
    pub(super) fn clear_ids(&mut self) {
        (self.lacks_ids, self.lacks_pairs) = (false, false);
        let ids = self.ids.take().map_or(0, |ids| ids.len() * size_of::<u32>());
        let pairs = self.pairs.take().map_or(0, |pairs| pairs.len() * PAIR_BYTES);
        self.token_bytes = self.token_bytes.saturating_sub(ids + pairs);
    }

    /// Adds ids with their logprobs; `None` for one that could not be read.
    pub(super) fn add_pairs(
        &mut self,
        pairs: impl IntoIterator<Item = Option<(u32, Option<f64>)>>,
    ) {
        let list = self.pairs.get_or_insert_default();
        let (before, mut is_damaged) = (list.len(), false);
        list.extend(pairs.into_iter().inspect(|pair| is_damaged |= pair.is_none()).flatten());
        self.token_bytes += (list.len() - before) * PAIR_BYTES;
        self.lacks_pairs |= is_damaged;
    }

    /// Notes whether logprobs of the choice are lost. Its ids are not.
    pub(super) fn note_lost_logprobs(&mut self, is_lost: bool) {
        self.lacks_logprobs |= is_lost;
    }

    pub(super) fn add_tokens(&mut self, tokens: impl IntoIterator<Item = SampledToken>) {
        self.token_bytes += extend_counted(&mut self.tokens, tokens);
    }

    /// Adds tokens that may have come before, in pieces.
    pub(super) fn repeat_tokens(&mut self, tokens: impl IntoIterator<Item = SampledToken>) {
        self.token_bytes += extend_counted(&mut self.repeated_tokens, tokens);
    }

    pub(super) fn set_count(&mut self, count: Option<u64>) {
        self.count = count.or(self.count);
    }

    pub(super) fn prompt_index(&self) -> u32 {
        self.prompt_index
    }

    /// The server's count of the tokens that it sampled for this choice.
    pub(super) fn count(&self) -> Option<u64> {
        self.count
    }

    pub(super) fn set_finish(&mut self, reason: Option<String>, stop: Option<Value>) {
        // Some servers send an empty reason with every chunk.
        let filled = reason.filter(|reason| !reason.is_empty());
        let filled = filled.map(|reason| short(reason, REASON_BYTES_MAX));
        self.finish_reason = filled.or(self.finish_reason.take());
        self.stop_reason = stop.filter(|stop| !stop.is_null()).or(self.stop_reason.take());
    }

    /// Marks that the model's end token stopped the choice.
    pub(super) fn set_stopped_by_end_token(&mut self) {
        self.stopped_by_end_token = true;
    }

    /// Returns true if all sampled tokens are known but the end token that stopped the choice.
    pub(super) fn lacks_end_token(&self) -> bool {
        let known = self.tokens.len() as u64;
        let only_in_logprobs = self.ids.is_none() && self.pairs.is_none() && !self.has_gap;
        let all_have_ids = self.tokens.iter().all(|token| token.id.is_some());
        self.stopped_by_end_token
            && only_in_logprobs
            && all_have_ids
            && self.count == Some(known + 1)
    }

    /// Sets the versions to `spans`.
    pub(super) fn add_spans(&mut self, spans: Spans<'_>) {
        self.is_cut |= spans.is_cut;
        self.set_versions(spans.version_spans());
    }

    pub(super) fn set_versions(&mut self, versions: Vec<VersionSpan>) {
        let bytes = |spans: &[VersionSpan]| -> usize {
            spans.iter().map(|span| size_of::<VersionSpan>() + span.version.len()).sum()
        };
        self.token_bytes = self.token_bytes.saturating_sub(bytes(&self.versions));
        self.token_bytes += bytes(&versions);
        self.versions = versions;
    }

    /// Appends elements to the token column of this name.
    pub(super) fn add_column<'e>(
        &mut self,
        name: &'static str,
        elements: impl IntoIterator<Item = &'e str>,
    ) {
        let known = self.token_columns.iter().position(|(known, _)| *known == name);
        let at = known.unwrap_or(self.token_columns.len());
        if known.is_none() {
            self.token_columns.push((name, String::new()));
        }
        let list = &mut self.token_columns[at].1;
        let before = list.len();
        for element in elements {
            if !list.is_empty() {
                list.push(',');
            }
            list.push_str(element);
        }
        self.column_bytes += list.len() - before;
    }

    /// The finished choice.
    pub(super) fn finish(mut self, context: &ReplyContext<'_>) -> Choice {
        // After a gap, lists of tokens no longer match each other.
        if self.has_gap {
            self.drop_lists();
            self.drop_columns();
        }
        self.drop_damaged();

        // Ids that no vocabulary has are as good as none.
        let is_known = |id: &u32| context.vocabulary.is_none_or(|words| words.may_have(*id));
        let known = self.known_ids(context).filter(|(ids, _)| ids.iter().all(is_known));
        let (token_ids, fidelity) = match known {
            Some((ids, fidelity)) => (Some(ids), fidelity),
            None => (None, Fidelity::Exact),
        };
        let logprobs = self.logprobs(token_ids.as_deref());
        let tokens = token_ids.as_ref().map_or(logprobs.len(), Vec::len) as u32;
        // A version of the whole reply holds for every token, unless there are spans.
        let versions = match (self.versions.is_empty(), context.version) {
            (true, Some(version)) if tokens > 0 => {
                vec![VersionSpan { version: version.to_owned(), start: 0, end: tokens }]
            }
            _ => self.versions,
        };

        Choice {
            index: self.index,
            prompt_index: self.prompt_index,
            token_ids,
            logprobs,
            finish_reason: self.finish_reason,
            stop_reason: self.stop_reason.map(text_of),
            versions,
            fidelity,
            token_columns: self
                .token_columns
                .into_iter()
                .map(|(name, elements)| column(name, &elements))
                .collect(),
        }
    }

    /// Forgets the lists of ids of which a part is lost. The other lists may have them all.
    fn drop_damaged(&mut self) {
        if self.lacks_ids {
            self.ids = None;
        }
        if self.lacks_pairs {
            self.pairs = None;
        }
    }

    /// The sampled ids and how they are known. Ids in a list of logprobs count only if the server's
    /// own count says that none is missing.
    fn known_ids(&self, context: &ReplyContext<'_>) -> Option<(Vec<u32>, Fidelity)> {
        if let Some(pairs) = &self.pairs {
            return Some((pairs.iter().map(|(id, _)| *id).collect(), Fidelity::Exact));
        }
        if let Some(ids) = &self.ids {
            return Some((ids.clone(), Fidelity::Exact));
        }

        let count = self.count.or(context.count);
        let is_complete = count == Some(self.tokens.len() as u64) && !self.tokens.is_empty();
        if !is_complete && !self.lacks_end_token() {
            return None;
        }
        let in_logprobs: Option<Vec<u32>> = self.tokens.iter().map(|token| token.id).collect();
        if let Some(ids) = in_logprobs {
            return Some((ids, Fidelity::Exact));
        }

        // Some tokens have bytes only. One that the vocabulary lacks spoils the whole list.
        let vocabulary = context.vocabulary?;
        let found =
            |token: &SampledToken| token.id.or_else(|| vocabulary.id_of(token.bytes.as_deref()?));
        let mapped: Option<Vec<u32>> = self.tokens.iter().map(found).collect();
        mapped.map(|ids| (ids, Fidelity::Mapped))
    }

    /// One logprob for each id; NaN for an unknown one. A server that lost some of its entries does
    /// not say which. Only the loss of the last one, of the stop token, can be recognized.
    fn logprobs(&self, ids: Option<&[u32]>) -> Vec<f32> {
        if let Some(pairs) = &self.pairs {
            return pairs.iter().map(|(_, logprob)| narrow(*logprob)).collect();
        }
        let Some(ids) = ids else {
            return self.tokens.iter().map(|token| narrow(token.logprob)).collect();
        };

        let fits = |list: &&Vec<SampledToken>| list.len() == ids.len();
        if let Some(list) = [&self.tokens, &self.repeated_tokens].into_iter().find(fits) {
            return list.iter().map(|token| narrow(token.logprob)).collect();
        }

        // Some servers leave the stop token out of the logprobs, but not out of the ids.
        let stop_id = self.stop_reason.as_ref().and_then(Value::as_u64);
        let lost_only_stop = self.tokens.len() + 1 == ids.len()
            && !self.lacks_logprobs
            && stop_id.is_some()
            && stop_id == ids.last().map(|id| u64::from(*id));
        match lost_only_stop {
            true => {
                let given = self.tokens.iter().map(|token| narrow(token.logprob));
                given.chain([f32::NAN]).collect()
            }
            false => vec![f32::NAN; ids.len()],
        }
    }
}

/// Adds tokens to a list; returns the number of bytes that they occupy.
fn extend_counted(
    list: &mut Vec<SampledToken>,
    tokens: impl IntoIterator<Item = SampledToken>,
) -> usize {
    let before = list.len();
    list.extend(tokens);
    let bytes_of = |token: &SampledToken| token.bytes.as_ref().map_or(0, Vec::len);
    list[before..].iter().map(|token| size_of::<SampledToken>() + bytes_of(token)).sum()
}

fn column(name: &str, elements: &str) -> TokenColumn {
    TokenColumn { name: name.to_owned(), json: format!("[{elements}]") }
}

fn text_of(stop: Value) -> String {
    match stop {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// A logprob as float32. Servers widen float32 to double, so this loses nothing.
fn narrow(logprob: Option<f64>) -> f32 {
    logprob.map_or(f32::NAN, |value| value as f32)
}
