//! Replay: what a trainer uses again of the sampling: experts of each token, and the ids that
//! truncated sampling left.

use super::sample::Sample;
use crate::rows::sides::Experts;

/// Experts of tokens from the first one on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Routing {
    /// Layers, and experts of each.
    pub(crate) inner: [usize; 2],
    /// Token by token.
    pub(crate) values: Vec<u16>,
}

impl Routing {
    /// Number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.values.len() / self.width().max(1)
    }

    fn width(&self) -> usize {
        self.inner.iter().product()
    }

    /// The same of so many tokens: those that are too many taken away, zeros for those that lack.
    fn resized(mut self, tokens: usize) -> Self {
        self.values.resize(tokens * self.width(), 0);
        self
    }
}

impl Sample {
    /// Experts of the first tokens; no token that decides on a trained one is without, or there
    /// are none: a replay would take the zeros that stand for it for experts. None too where the
    /// server does not say how many layers there are.
    pub(crate) fn routing(&self) -> Option<Routing> {
        let experts = self.row.sides.experts.as_ref()?;
        let &[layers, each] = experts.shape.as_slice() else { return None };
        let known = first_known(experts);
        let last = self.row.tokens.loss_mask.iter().rposition(|mask| *mask == 1)?;
        let values = experts.values[..known * experts.width()].to_vec();
        (known > 0 && known >= last).then_some(Routing { inner: [layers, each], values })
    }

    /// The same for a reader that takes those of every token: the last ones, after which nothing
    /// was sampled, are zeros.
    pub(crate) fn routing_of_all(&self) -> Option<Routing> {
        Some(self.routing()?.resized(self.row.tokens.input_ids.len()))
    }

    /// The same for a reader that takes those of every token but the last, and takes no zeros.
    pub(crate) fn routing_of_inputs(&self) -> Option<Routing> {
        let inputs = self.row.tokens.input_ids.len().saturating_sub(1);
        self.routing().filter(|routing| routing.tokens() >= inputs).map(|r| r.resized(inputs))
    }

    /// Ids that sampling could choose from, of all tokens of the completion in one list.
    pub(crate) fn kept_ids(&self) -> Option<Vec<i32>> {
        let kept = self.row.sides.kept.as_ref()?;
        let before: usize = kept.lengths[..self.split()].iter().sum();
        Some(kept.values[before..].to_vec())
    }

    /// Where those of each token of the completion begin, and where the last ones end.
    pub(crate) fn kept_offsets(&self) -> Option<Vec<i32>> {
        let kept = self.row.sides.kept.as_ref()?;
        let mut end = 0;
        let ends = kept.lengths[self.split()..].iter().map(|length| {
            end += *length;
            i32::try_from(end).unwrap_or(i32::MAX)
        });
        Some(std::iter::once(0).chain(ends).collect())
    }
}

/// How many tokens have experts before the first that has none.
fn first_known(experts: &Experts) -> usize {
    experts.known.iter().position(|known| *known == 0).unwrap_or(experts.known.len())
}
