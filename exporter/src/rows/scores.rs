//! Scores of a row's tokens under another model than the one that sampled them.

/// The scores of the tokens of a row under one model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowScores {
    /// The name that the scores were given.
    pub(crate) name: String,
    /// One logprob a token; 0.0 for the first, which nothing is before.
    pub(crate) logprobs: Vec<f32>,
    /// The most probable ids at each place, where they were asked for.
    pub(crate) top: Option<TopScores>,
}

/// Ids at each place with their logprobs, the most probable first. The token that stands there is
/// always among them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TopScores {
    /// Number of ids a place, one more than was asked for.
    pub(crate) width: usize,
    /// Place by place; [`NO_ID`] where there are fewer.
    pub(crate) ids: Vec<i32>,
    /// The same; minus infinity where there are fewer.
    pub(crate) logprobs: Vec<f32>,
}

impl TopScores {
    /// Returns the lengths of the lists, one a token.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        vec![self.width; self.ids.len() / self.width.max(1)]
    }
}

/// The number in place of an id that there is not.
pub(crate) const NO_ID: i32 = -1;

impl RowScores {
    /// Estimates the bytes that they take in memory.
    pub(crate) fn bytes(&self) -> usize {
        let top = self.top.as_ref().map_or(0, |top| top.ids.len() * 8);
        self.name.len() + self.logprobs.len() * 4 + top
    }

    /// Returns the ids and logprobs at a place, the most probable first, without what fills up.
    pub(crate) fn at(&self, place: usize) -> impl Iterator<Item = (i32, f32)> {
        let all = self.top.as_ref().map(|top| {
            let span = place * top.width..(place + 1) * top.width;
            let logprobs = top.logprobs.get(span.clone()).unwrap_or_default();
            top.ids.get(span).unwrap_or_default().iter().copied().zip(logprobs.iter().copied())
        });
        all.into_iter().flatten().filter(|(id, _)| *id != NO_ID)
    }
}
