//! Differences between the logprobs that a trainer computed and those that were recorded.

use std::collections::{BTreeMap, HashMap};

use episode::{Annotation, Call, CallId, Choice};
use serde::Serialize;

/// The stream that is compared with the recorded logprobs.
const TRAINER_LOGPROBS: &str = "trainer_logprobs";

/// The difference between two logprobs of the same tokens: the trainer's, less the recorded one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainerGap {
    /// Label of the trainer's weights.
    pub version: String,
    /// Label of the weights that sampled the tokens; none where the server did not name them.
    pub sampled_by: Option<String>,
    /// Number of tokens.
    pub tokens: u64,
    /// Mean of the differences.
    pub mean: f64,
    /// Mean of their amounts.
    pub mean_abs: f64,
    /// The largest amount.
    pub max_abs: f64,
}

/// Compares the annotations `trainer_logprobs` of one attempt with the logprobs of its calls, by
/// the versions of both. Tokens that lack one of the two are left out.
pub fn trainer_gaps(calls: &[Call], annotations: &[Annotation]) -> Vec<TrainerGap> {
    let choices: HashMap<(CallId, u32), &Choice> = calls
        .iter()
        .filter_map(|call| Some((call.begun.call_id, call.ended.as_ref()?)))
        .flat_map(|(id, ended)| ended.choices.iter().map(move |c| ((id, c.index), c)))
        .collect();

    let mut gaps: BTreeMap<(&str, Option<&str>), TrainerGap> = BTreeMap::new();
    for annotation in annotations.iter().filter(|a| a.name == TRAINER_LOGPROBS) {
        let Some(choice) = choices.get(&(annotation.call, annotation.choice)) else { continue };
        for (at, value) in (annotation.start..).zip(&annotation.values) {
            let recorded = choice.logprobs.get(at as usize).copied().unwrap_or(f32::NAN);
            let difference = f64::from(*value) - f64::from(recorded);
            if difference.is_finite() {
                let versions = (annotation.version.as_str(), version_at(choice, at));
                gaps.entry(versions).or_insert_with(|| TrainerGap::new(versions)).add(difference);
            }
        }
    }
    gaps.into_values().map(TrainerGap::of_sums).collect()
}

fn version_at(choice: &Choice, token: u32) -> Option<&str> {
    let span = choice.versions.iter().find(|span| (span.start..span.end).contains(&token))?;
    Some(&span.version)
}

impl TrainerGap {
    fn new((version, sampled_by): (&str, Option<&str>)) -> Self {
        Self {
            version: version.to_owned(),
            sampled_by: sampled_by.map(str::to_owned),
            tokens: 0,
            mean: 0.0,
            mean_abs: 0.0,
            max_abs: 0.0,
        }
    }

    /// Adds a token. The means are sums until all tokens are added.
    fn add(&mut self, difference: f64) {
        self.tokens += 1;
        self.mean += difference;
        self.mean_abs += difference.abs();
        self.max_abs = self.max_abs.max(difference.abs());
    }

    fn of_sums(self) -> Self {
        let tokens = self.tokens as f64;
        Self { mean: self.mean / tokens, mean_abs: self.mean_abs / tokens, ..self }
    }
}

#[cfg(test)]
mod tests {
    use episode::VersionSpan;

    use super::*;
    use crate::tests::fixture::{call, reply};

    #[test]
    fn differences_are_told_by_both_versions() {
        let mut turn = call(1, &[1], &[&[2, 3, 4, 5]]);
        let choice = &mut reply(&mut turn).choices[0];
        choice.logprobs = vec![-1.0, -1.0, f32::NAN, -1.0];
        choice.versions = vec![VersionSpan { version: "6".to_owned(), start: 0, end: 2 }];
        let said = |name: &str, start, values: &[f32]| Annotation {
            call: turn.begun.call_id,
            choice: 0,
            name: name.to_owned(),
            version: "7".to_owned(),
            start,
            values: values.to_owned(),
            at: 1,
        };
        let all = [
            said(TRAINER_LOGPROBS, 0, &[-0.5, -1.25, -3.0, -3.0, -9.0]),
            said("entropies", 0, &[9.0]),
        ];
        let gap = |sampled_by: Option<&str>, tokens, mean, mean_abs, max_abs| {
            let sampled_by = sampled_by.map(str::to_owned);
            TrainerGap { version: "7".to_owned(), sampled_by, tokens, mean, mean_abs, max_abs }
        };
        let expected = [gap(None, 1, -2.0, 2.0, 2.0), gap(Some("6"), 2, 0.125, 0.375, 0.5)];
        assert_eq!(trainer_gaps(&[turn], &all), expected);
        assert_eq!(trainer_gaps(&[], &all), []);
    }
}
