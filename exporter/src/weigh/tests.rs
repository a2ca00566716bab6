//! The losses that trainers make of rows are those of episodes.

use std::collections::BTreeMap;

use episode::{Call, VersionSpan};
use proptest::prelude::*;

use super::{PathFilter, weigh};
use crate::graph::derive::derive;
use crate::notes::{Notes, VersionMismatch};
use crate::rows::builder::{RowExtras, rows};
use crate::rows::row::Row;
use crate::tests::fixture::{call, episode, reply, rows_of};
use crate::tests::properties::{Place, plans, recorded, trainable, trained};
use crate::weigh::versions::VersionFilter;

/// One episode of a group: its reward, and its calls.
type Played = (&'static str, f64, Vec<Call>);

/// A batch as a trainer has it.
struct Batch {
    rows: Vec<Row>,
    /// For each row of which episode it is.
    episodes: Vec<usize>,
}

impl Batch {
    /// The rows that train; those with weight 0 are left out.
    fn new(played: &[Played]) -> Self {
        let mut batch = Self { rows: Vec::new(), episodes: Vec::new() };
        for (number, (group, reward, calls)) in played.iter().enumerate() {
            let mut episode = episode(calls.clone());
            episode.record.id = format!("e{number}").parse().unwrap();
            episode.record.group = Some(group.parse().unwrap());
            for mut row in rows_of(&episode).into_iter().filter(|r| r.tokens.trained() > 0) {
                row.reward = Some(*reward);
                batch.rows.push(row);
                batch.episodes.push(number);
            }
        }
        batch
    }

    /// Reward minus the mean over the episodes of the group, all from the rows' columns.
    fn advantages(&self) -> Vec<f64> {
        let mut rewards: BTreeMap<_, BTreeMap<_, f64>> = BTreeMap::new();
        for row in &self.rows {
            let of_group = rewards.entry(row.group_id.clone()).or_default();
            of_group.insert((row.episode_id.clone(), row.attempt), row.reward.unwrap());
        }
        let mean = |of: &BTreeMap<_, f64>| of.values().sum::<f64>() / of.len() as f64;
        let of = |row: &Row| row.reward.unwrap() - mean(&rewards[&row.group_id]);
        self.rows.iter().map(of).collect()
    }

    /// S(r): the summed token losses of each row.
    fn sums(&self) -> Vec<f64> {
        let of = |(row, advantage): (&Row, f64)| -> f64 {
            trained(row).iter().map(|place| advantage * ratio(place)).sum()
        };
        self.rows.iter().zip(self.advantages()).map(of).collect()
    }

    fn weight(&self) -> f64 {
        self.rows.iter().map(|row| row.row_weight).sum()
    }

    /// The table of docs/rewards.md: per token, per sequence, per episode.
    fn losses(&self) -> [f64; 3] {
        let sums = self.sums();
        let all: f64 = sums.iter().sum();
        let tokens: usize = self.rows.iter().map(|row| row.tokens.trained()).sum();
        let weighed = self.rows.iter().zip(&sums);
        let weighed = weighed.map(|(row, sum)| row.row_weight * sum / row.tokens.trained() as f64);
        [all / tokens as f64, weighed.sum::<f64>() / self.weight(), all / LONGEST / self.weight()]
    }

    /// The same where a trainer only takes means over rows, by a factor for each row's advantage.
    fn losses_by_factor(&self) -> [f64; 3] {
        let (rows, episodes) = (self.rows.len() as f64, self.weight());
        let mean_of = |of: fn(&Row, f64) -> f64, factor: &dyn Fn(&Row) -> f64| {
            let each = self.rows.iter().zip(self.sums());
            each.map(|(row, sum)| of(row, sum * factor(row))).sum::<f64>() / rows
        };
        let mean = |row: &Row, sum: f64| sum / row.tokens.trained() as f64;
        let sequence = mean_of(mean, &|row| row.row_weight * rows / episodes);
        let episode = mean_of(|_, sum| sum / LONGEST, &|_| rows / episodes);
        [self.losses()[0], sequence, episode]
    }
}

/// The constant L of Dr. GRPO.
const LONGEST: f64 = 16.0;

/// The loss of a token but for the advantage: any number that differs from token to token.
fn ratio((call, choice, place): &Place) -> f64 {
    let seed: u32 = call.bytes().map(u32::from).sum();
    f64::from((seed * 31 + choice * 17 + *place as u32 * 7) % 23) / 10.0 - 1.1
}

/// The three losses straight from the calls: no row, no mask, no weight.
fn reference(played: &[Played]) -> [f64; 3] {
    let mut rewards: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let trains: Vec<_> = played.iter().filter(|(_, _, c)| !trainable(c).is_empty()).collect();
    for (group, reward, _) in &trains {
        rewards.entry(*group).or_default().push(*reward);
    }
    let mut episodes = Vec::new();
    for (group, reward, calls) in &trains {
        let of_group = &rewards[group];
        let baseline = of_group.iter().sum::<f64>() / of_group.len() as f64;
        let losses: Vec<f64> =
            trainable(calls).iter().map(|p| (reward - baseline) * ratio(p)).collect();
        episodes.push((losses.iter().sum::<f64>(), losses.len() as f64));
    }
    let count = episodes.len() as f64;
    let all: f64 = episodes.iter().map(|(sum, _)| sum).sum();
    let tokens: f64 = episodes.iter().map(|(_, tokens)| tokens).sum();
    let means: f64 = episodes.iter().map(|(sum, tokens)| sum / tokens).sum();
    [all / tokens, means / count, all / LONGEST / count]
}

fn assert_equal(found: [f64; 3], expected: [f64; 3]) {
    for (found, expected) in found.into_iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }
}

/// Two episodes of one group: one of two rows (three and one trained tokens), one of one row.
fn two_episodes() -> Vec<Played> {
    let forked = vec![
        call(1, &[1], &[&[2, 3]]),
        call(2, &[1, 2, 3, 4], &[&[5]]),
        call(3, &[1, 2, 3, 6], &[&[7]]),
    ];
    vec![("g", 1.0, forked), ("g", 0.0, vec![call(4, &[1], &[&[8, 9]])])]
}

#[test]
fn rows_make_the_losses_of_their_episodes() {
    let played = two_episodes();
    let batch = Batch::new(&played);
    let weights: Vec<f64> = batch.rows.iter().map(|row| row.row_weight).collect();
    assert_eq!(weights, [0.75, 0.25, 1.0]);
    assert_eq!(batch.advantages(), [0.5, 0.5, -0.5]);
    assert_equal(batch.losses(), reference(&played));
    assert_equal(batch.losses_by_factor(), reference(&played));
}

#[test]
fn without_weights_an_episode_of_many_rows_counts_more() {
    let played = two_episodes();
    let batch = Batch::new(&played);
    let rows = batch.rows.iter().zip(batch.sums());
    let mean: f64 = rows.map(|(row, sum)| sum / row.tokens.trained() as f64).sum::<f64>() / 3.0;
    let [_, per_sequence, per_episode] = reference(&played);
    assert!((mean - per_sequence).abs() > 1e-3);
    assert!((batch.sums().iter().sum::<f64>() / LONGEST / 3.0 - per_episode).abs() > 1e-3);
    let over_rows = batch.rows.iter().map(|row| row.reward.unwrap()).sum::<f64>() / 3.0;
    assert!((over_rows - 0.5).abs() > 0.1, "a baseline over rows is another one");
}

proptest! {
    #[test]
    fn any_batch_makes_the_losses_of_its_episodes(
        batch in prop::collection::vec((plans(), 0..2usize, -2..3i8), 1..5),
    ) {
        let played: Vec<Played> = batch
            .iter()
            .map(|(plans, group, reward)| {
                (["g", "h"][*group], f64::from(*reward), recorded(plans))
            })
            .collect();
        let batch = Batch::new(&played);
        prop_assume!(!batch.rows.is_empty());
        assert_equal(batch.losses(), reference(&played));
        assert_equal(batch.losses_by_factor(), reference(&played));
    }
}

/// The rows of calls whose choices were sampled by these versions, as far as they pass the filter.
fn of_versions(labels: &[&[&str]], filter: VersionFilter) -> (Vec<Row>, Notes) {
    // 1 [2] 3 [4], and from the first turn 1 (2) 8 [9].
    let mut calls =
        vec![call(1, &[1], &[&[2]]), call(2, &[1, 2, 3], &[&[4]]), call(3, &[1, 2, 8], &[&[9]])];
    for (call, labels) in calls.iter_mut().zip(labels) {
        let span = |label: &&str| VersionSpan { version: (*label).to_owned(), start: 0, end: 1 };
        reply(call).choices[0].versions = labels.iter().map(span).collect();
    }
    let episode = episode(calls);
    let derived = derive(&episode.calls);
    let wanted = PathFilter { versions: filter, ..PathFilter::default() };
    let (shares, notes) = weigh(&derived, &wanted);
    (rows(&episode, &derived, &shares, RowExtras::default()).collect(), notes)
}

fn shown(rows: &[Row]) -> Vec<(&str, Vec<i8>, f64)> {
    let row = |r: &Row| (r.tokens.loss_mask.clone(), r.row_weight);
    rows.iter().map(|r| (r.trajectory_id.as_str(), row(r).0, row(r).1)).collect()
}

#[test]
fn a_path_left_out_gives_its_shared_tokens_to_others() {
    let filter = VersionFilter { max: Some(5), ..VersionFilter::default() };
    let (rows, notes) = of_versions(&[&["5"], &["6"], &["4"]], filter);
    assert_eq!(shown(&rows), [("e/0/1", vec![0, 1, 0, 1], 1.0)]);
    assert_eq!(rows[0].mixed_versions, Some(true));
    assert_eq!(notes.not_of_versions, [(VersionMismatch::AboveMaxVersion, 1)].into());
    // The shared token is too new for both; the second row would have to train it.
    let (rows, notes) = of_versions(&[&["6"], &["5"], &["4"]], filter);
    assert!(rows.is_empty());
    assert_eq!(notes.not_of_versions, [(VersionMismatch::AboveMaxVersion, 2)].into());
    let (rows, _) = of_versions(&[&["4"], &["5"], &["6"]], filter);
    assert_eq!(shown(&rows), [("e/0/0", vec![0, 1, 0, 1], 1.0)]);
}

#[test]
fn a_row_is_judged_by_the_tokens_that_it_trains() {
    let stale = VersionFilter { at: Some(9), staleness_max: Some(2), ..VersionFilter::default() };
    let (rows, notes) = of_versions(&[&["7"], &["8"], &["9"]], stale);
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].mixed_versions, rows[1].mixed_versions), (Some(true), Some(false)));
    assert!(notes.not_of_versions.is_empty());
    let (rows, notes) = of_versions(&[&["6"], &["8"], &["9"]], stale);
    assert!(rows.is_empty(), "whoever holds the first token would train it");
    assert_eq!(notes.not_of_versions, [(VersionMismatch::Stale, 2)].into());
}

#[test]
fn versions_that_are_no_numbers_or_not_known_are_told_apart() {
    let filter = VersionFilter { span_max: Some(0), ..VersionFilter::default() };
    let (rows, notes) = of_versions(&[&["latest"], &["default"], &[]], filter);
    assert!(rows.is_empty());
    assert_eq!(notes.not_of_versions, [(VersionMismatch::VersionNotANumber, 2)].into());
    let (_, notes) = of_versions(&[&["1"], &["1"], &[]], filter);
    assert_eq!(notes.not_of_versions, [(VersionMismatch::VersionUnknown, 1)].into());
    let (rows, notes) = of_versions(&[&["latest"], &["b"], &[]], VersionFilter::default());
    assert!(notes.not_of_versions.is_empty());
    assert_eq!((rows[0].mixed_versions, rows[1].mixed_versions), (Some(true), None));
}

proptest! {
    #[test]
    fn what_passes_a_filter_is_trained_once_and_weighs_one(
        plans in plans(),
        versions in prop::collection::vec(0..3u32, 25),
        bounds in (0..3i64, 0..3i64),
    ) {
        let mut calls = recorded(&plans);
        for (call, version) in calls.iter_mut().zip(versions) {
            for choice in call.ended.iter_mut().flat_map(|ended| &mut ended.choices) {
                choice.versions.iter_mut().for_each(|span| span.version = version.to_string());
            }
        }
        let filter = VersionFilter { min: Some(bounds.0), span_max: Some(bounds.1),
            ..VersionFilter::default() };
        let episode = episode(calls);
        let derived = derive(&episode.calls);
        let wanted = PathFilter { versions: filter, ..PathFilter::default() };
        let (shares, _) = weigh(&derived, &wanted);
        let rows: Vec<_> = rows(&episode, &derived, &shares, RowExtras::default()).collect();
        for row in &rows {
            let least = row.tokens.trained_versions().min().unwrap();
            let most = row.tokens.trained_versions().max().unwrap();
            prop_assert!(least >= bounds.0 && most - least <= bounds.1);
            prop_assert_eq!(row.mixed_versions, Some(least < most));
        }
        let mut all: Vec<Place> = rows.iter().flat_map(trained).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        prop_assert_eq!(all.len(), count, "a token is trained twice");
        let weight: f64 = rows.iter().map(|row| row.row_weight).sum();
        prop_assert!(rows.is_empty() || (weight - 1.0).abs() < 1e-9, "{}", weight);
    }
}
