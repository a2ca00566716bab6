//! Data of the sampling that a trainer reuses: the experts of each token, and the ids that
//! truncated sampling could choose from.

use crate::formats::sample::Sample;
use crate::rows::token_data::Experts;

/// Most ids of one token in rows of one length, so that one token with thousands does not make all
/// others as long.
const MOST_KEPT: usize = 1024;

/// Experts of the leading tokens of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpertRouting {
    pub(crate) layers: usize,
    /// Number of experts of a layer.
    pub(crate) experts: usize,
    /// Experts token by token, layer by layer: `[tokens, layers, experts]`.
    pub(crate) values: Vec<u16>,
}

impl ExpertRouting {
    /// Returns the number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.values.len() / self.width().max(1)
    }

    fn width(&self) -> usize {
        self.layers * self.experts
    }

    /// Cuts off or fills up with zeros to this number of tokens.
    fn resized(mut self, tokens: usize) -> Self {
        self.values.resize(tokens * self.width(), 0);
        self
    }
}

impl Sample {
    /// Returns the experts of the leading tokens. Gives none where one of them lacks that a trained
    /// token depends on, since a replay would take the zeros for experts, and where the server does
    /// not report the number of layers.
    pub(crate) fn routing(&self) -> Option<ExpertRouting> {
        let recorded = self.row.token_data.experts.as_ref()?;
        let &[layers, experts] = recorded.shape.as_slice() else { return None };
        let known = known_tokens(recorded);
        let last_trained = self.row.tokens.loss_mask.iter().rposition(|mask| *mask == 1)?;
        if known == 0 || known < last_trained {
            return None;
        }
        let values = recorded.values[..known * recorded.width()].to_vec();
        Some(ExpertRouting { layers, experts, values })
    }

    /// Returns the experts of every token. The last ones, after which nothing was sampled, are
    /// zeros.
    pub(crate) fn routing_of_all(&self) -> Option<ExpertRouting> {
        Some(self.routing()?.resized(self.row.tokens.input_ids.len()))
    }

    /// Returns the experts of every token but the last; none where one of them has none.
    pub(crate) fn routing_of_inputs(&self) -> Option<ExpertRouting> {
        let inputs = self.row.tokens.input_ids.len().saturating_sub(1);
        let routing = self.routing().filter(|routing| routing.tokens() >= inputs)?;
        Some(routing.resized(inputs))
    }

    /// Returns the ids that sampling could choose from, of all tokens of the completion in one
    /// list.
    pub(crate) fn kept_ids(&self) -> Option<Vec<i32>> {
        let kept = self.row.token_data.kept.as_ref()?;
        let before: usize = kept.lengths[..self.prompt_len()].iter().sum();
        Some(kept.values[before..].to_vec())
    }

    /// Returns the offset in [`Self::kept_ids`] of each token of the completion, and the end.
    pub(crate) fn kept_offsets(&self) -> Option<Vec<i32>> {
        let kept = self.row.token_data.kept.as_ref()?;
        let mut offsets = vec![0];
        let mut end = 0;
        for length in &kept.lengths[self.prompt_len()..] {
            end += *length;
            offsets.push(i32::try_from(end).unwrap_or(i32::MAX));
        }
        Some(offsets)
    }

    /// Returns the ids that sampling could choose from at trained tokens, in one list, and their
    /// number at each token of the row.
    pub(crate) fn kept_of_trained(&self) -> Option<(Vec<i32>, Vec<usize>)> {
        let kept = self.row.token_data.kept.as_ref()?;
        let (mut ids, mut counts, mut end) = (Vec::new(), Vec::new(), 0);
        for (length, mask) in kept.lengths.iter().zip(&self.row.tokens.loss_mask) {
            let here = end..end + *length;
            end = here.end;
            let taken = if *mask == 1 { &kept.values[here] } else { &[] };
            ids.extend_from_slice(taken);
            counts.push(taken.len());
        }
        Some((ids, counts))
    }

    /// Returns the ids that sampling could choose from, a row for each token of the completion. All
    /// rows are as long as the longest: -1 fills up, and stands alone where nothing is recorded.
    pub(crate) fn kept_rows(&self) -> Option<Vec<Vec<i32>>> {
        let kept = self.row.token_data.kept.as_ref()?;
        let lengths = &kept.lengths[self.prompt_len()..];
        let width = lengths.iter().copied().max().filter(|width| *width <= MOST_KEPT)?;
        let mut values = self.kept_ids()?.into_iter();
        let rows = lengths.iter().map(|length| {
            let mut row: Vec<i32> = values.by_ref().take(*length).collect();
            row.resize(width, -1);
            row
        });
        Some(rows.collect())
    }
}

/// Counts the leading tokens whose experts are recorded.
fn known_tokens(experts: &Experts) -> usize {
    experts.known.iter().position(|known| *known == 0).unwrap_or(experts.known.len())
}
