//! Numbers over time, and by policy version.

mod usage;

use std::collections::{BTreeMap, HashMap};

use episode::{Micros, version_number};
use exporter::mean;
use serde::{Deserialize, Serialize};
use store::{CallRow, EpisodeFilter, PastCalls, Score, Snapshot};

pub use self::usage::{AttemptUsage, ModelUsage};

use self::usage::UsageTable;
use crate::bounds::{BUCKETS, BUCKETS_MAX, STATS_CALLS_MAX, STATS_ROWS};
use crate::error::ViewError;
use crate::parameters::Parameters;
use crate::time::{milliseconds, seconds};
use crate::weights::VersionTable;

/// Numbers over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct Stats {
    pub from: f64,
    pub to: f64,
    pub bucket_s: f64,
    pub buckets: Vec<TimeBucket>,
    pub outcomes: BTreeMap<String, u64>,
    pub versions: Vec<VersionStats>,
    pub totals: Totals,
    #[serde(default)]
    pub models: Vec<ModelUsage>,
    /// Only if it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Vec<AttemptUsage>>,
    pub truncated: bool,
}

/// The numbers of a part of the time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct TimeBucket {
    pub at: f64,
    pub calls: u64,
    pub failed: u64,
    pub episodes: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub first_byte_ms: Option<f64>,
    pub first_byte_p95_ms: Option<f64>,
    pub duration_ms: Option<f64>,
    pub duration_p95_ms: Option<f64>,
    pub staleness: Option<f64>,
    pub scored: u64,
    pub reward: Option<f64>,
}

/// The numbers of a policy version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct VersionStats {
    pub number: Option<i64>,
    pub label: String,
    pub first_seen: Option<f64>,
    pub calls: u64,
    pub completion_tokens: u64,
    pub scored: u64,
    pub reward: Option<f64>,
    pub solved: Option<f64>,
}

/// Sums over the whole time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct Totals {
    pub episodes: u64,
    pub open: u64,
    pub calls: u64,
    pub failed: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub scored: u64,
    pub reward: Option<f64>,
    #[serde(default)]
    pub first_byte_ms: Option<f64>,
    #[serde(default)]
    pub first_byte_p95_ms: Option<f64>,
    #[serde(default)]
    pub duration_ms: Option<f64>,
    #[serde(default)]
    pub duration_p95_ms: Option<f64>,
}

/// The question.
struct Wanted {
    filter: EpisodeFilter,
    buckets: u32,
    solved_at: f64,
}

/// Reads the calls and scores of a time, and counts them.
pub(crate) async fn stats(
    snapshot: &mut Snapshot,
    mut parameters: Parameters,
) -> Result<Stats, ViewError> {
    let wanted = Wanted {
        buckets: parameters.number("buckets", 1, BUCKETS_MAX)?.unwrap_or(BUCKETS),
        solved_at: parameters.finite("solved_at")?.unwrap_or(1.0),
        filter: parameters.filter()?,
    };
    let has_usage = parameters.flag("usage")?;
    parameters.end()?;

    let weights = VersionTable(snapshot.versions().await?);
    let scores = snapshot.scores(&wanted.filter).await?;
    let ReadCalls { calls, usage, truncated } = read_calls(snapshot, &wanted.filter).await?;
    let range = TimeRange::of(&wanted, &calls, &scores);
    Ok(Stats {
        from: seconds(range.from),
        to: seconds(range.to()),
        bucket_s: seconds(range.step),
        buckets: range.buckets(&calls, &scores, &weights),
        outcomes: outcomes(&calls),
        versions: versions(&calls, &scores, &weights, wanted.solved_at),
        totals: totals(&calls, &scores),
        models: usage.models(),
        usage: has_usage.then(|| usage.attempts()),
        truncated,
    })
}

/// The calls of a time.
#[derive(Default)]
struct ReadCalls {
    /// The newest first.
    calls: Vec<CallNumbers>,
    usage: UsageTable,
    /// True if there are more than are read.
    truncated: bool,
}

async fn read_calls(
    snapshot: &mut Snapshot,
    filter: &EpisodeFilter,
) -> Result<ReadCalls, ViewError> {
    let mut read = ReadCalls::default();
    let mut past = PastCalls::of(filter.clone());
    loop {
        let rows = snapshot.calls_before(&mut past, STATS_ROWS).await?;
        if rows.is_empty() {
            return Ok(read);
        }
        rows.iter().for_each(|row| read.usage.add(row));
        read.calls.extend(rows.into_iter().map(CallNumbers::of));
        if read.calls.len() >= STATS_CALLS_MAX {
            read.truncated = true;
            return Ok(read);
        }
    }
}

/// The numbers of a call.
struct CallNumbers {
    episode_key: i64,
    started_at: Micros,
    ended_at: Option<Micros>,
    first_byte_ms: Option<f64>,
    duration_ms: Option<f64>,
    outcome: String,
    prompt_tokens: u64,
    completion_tokens: u64,
    version: Option<String>,
}

impl CallNumbers {
    fn of(row: CallRow) -> Self {
        Self {
            episode_key: row.episode_key,
            started_at: row.started_at,
            ended_at: row.ended_at,
            first_byte_ms: row.first_byte_at.map(|at| milliseconds(row.started_at, at)),
            duration_ms: row.ended_at.map(|at| milliseconds(row.started_at, at)),
            outcome: row.outcome.unwrap_or_else(|| "running".to_owned()),
            prompt_tokens: row.prompt_tokens.unwrap_or(0),
            completion_tokens: row.completion_tokens.unwrap_or(0),
            version: row.version,
        }
    }

    fn is_failed(&self) -> bool {
        !matches!(self.outcome.as_str(), "complete" | "running")
    }
}

/// Shortest part: a recording of a few seconds has fewer parts than were asked for.
const STEP_MIN: Micros = 1_000_000;

/// `length / parts`, rounded up.
fn round_up(length: Micros, parts: Micros) -> Micros {
    (length + parts - 1) / parts
}

/// A time in parts of one length.
struct TimeRange {
    from: Micros,
    step: Micros,
    parts: usize,
}

impl TimeRange {
    /// The time that was asked for, else from the first to the last of what there is.
    fn of(wanted: &Wanted, calls: &[CallNumbers], scores: &[Score]) -> Self {
        let started = calls.iter().map(|call| call.started_at);
        let times = started.chain(scores.iter().map(|score| score.opened_at));
        let first = wanted.filter.since.or_else(|| times.clone().min()).unwrap_or(0);
        let last = wanted.filter.until.or_else(|| times.max().map(|last| last + 1));
        let length = last.unwrap_or(first + 1).saturating_sub(first).max(1);
        let step = round_up(length, wanted.buckets.into()).max(STEP_MIN);
        Self { from: first, step, parts: round_up(length, step) as usize }
    }

    fn to(&self) -> Micros {
        self.from + self.step * self.parts as Micros
    }

    fn part(&self, at: Micros) -> Option<usize> {
        let part = usize::try_from((at - self.from).checked_div(self.step)?).ok()?;
        (at >= self.from && part < self.parts).then_some(part)
    }

    fn buckets(
        &self,
        calls: &[CallNumbers],
        scores: &[Score],
        weights: &VersionTable,
    ) -> Vec<TimeBucket> {
        let newest = weights.newest_by_time();
        let mut parts: Vec<PartNumbers> = Vec::new();
        parts.resize_with(self.parts, PartNumbers::default);
        for call in calls {
            if let Some(part) = self.part(call.started_at) {
                parts[part].add(call, &newest);
            }
        }
        for score in scores {
            if let Some(part) = self.part(score.opened_at) {
                parts[part].episodes += 1;
                parts[part].rewards.extend(score.reward);
            }
        }
        let starts = (0..).map(|part: Micros| seconds(self.from + part * self.step));
        parts.into_iter().zip(starts).map(|(part, at)| part.bucket(at)).collect()
    }
}

/// The parts of a bucket.
#[derive(Default)]
struct PartNumbers {
    bucket: TimeBucket,
    episodes: u64,
    first_bytes: Vec<f64>,
    durations: Vec<f64>,
    staleness: Vec<f64>,
    rewards: Vec<f64>,
}

impl PartNumbers {
    fn add(&mut self, call: &CallNumbers, newest: &[(Micros, i64)]) {
        self.bucket.calls += 1;
        self.bucket.failed += u64::from(call.is_failed());
        self.bucket.prompt_tokens += call.prompt_tokens;
        self.bucket.completion_tokens += call.completion_tokens;
        self.first_bytes.extend(call.first_byte_ms);
        self.durations.extend(call.duration_ms);
        self.staleness.extend(staleness(call, newest));
    }

    fn bucket(self, at: f64) -> TimeBucket {
        let first_bytes = sorted(self.first_bytes);
        let durations = sorted(self.durations);
        TimeBucket {
            at,
            episodes: self.episodes,
            first_byte_ms: quantile(&first_bytes, 0.5),
            first_byte_p95_ms: quantile(&first_bytes, 0.95),
            duration_ms: quantile(&durations, 0.5),
            duration_p95_ms: quantile(&durations, 0.95),
            staleness: mean(&self.staleness),
            scored: self.rewards.len() as u64,
            reward: mean(&self.rewards),
            ..self.bucket
        }
    }
}

/// The newest version that was known when a call ended, less the one of its first token.
fn staleness(call: &CallNumbers, newest: &[(Micros, i64)]) -> Option<f64> {
    let own = version_number(call.version.as_deref()?)?;
    let ended = call.ended_at?;
    let known = newest.partition_point(|(at, _)| *at <= ended).checked_sub(1)?;
    Some((newest[known].1 - own).max(0) as f64)
}

fn sorted(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// A quantile of sorted numbers: the nearest rank.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn outcomes(calls: &[CallNumbers]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(call.outcome.clone()).or_insert(0) += 1;
    }
    counts
}

fn totals(calls: &[CallNumbers], scores: &[Score]) -> Totals {
    let rewards: Vec<f64> = scores.iter().filter_map(|score| score.reward).collect();
    let first_bytes = sorted(calls.iter().filter_map(|call| call.first_byte_ms).collect());
    let durations = sorted(calls.iter().filter_map(|call| call.duration_ms).collect());
    Totals {
        episodes: scores.len() as u64,
        open: scores.iter().filter(|score| !score.is_closed).count() as u64,
        calls: calls.len() as u64,
        failed: calls.iter().filter(|call| call.is_failed()).count() as u64,
        prompt_tokens: calls.iter().map(|call| call.prompt_tokens).sum(),
        completion_tokens: calls.iter().map(|call| call.completion_tokens).sum(),
        scored: rewards.len() as u64,
        reward: mean(&rewards),
        first_byte_ms: quantile(&first_bytes, 0.5),
        first_byte_p95_ms: quantile(&first_bytes, 0.95),
        duration_ms: quantile(&durations, 0.5),
        duration_p95_ms: quantile(&durations, 0.95),
    }
}

/// Calls by the version of their first token, and scores by the version of an episode's last call.
fn versions(
    calls: &[CallNumbers],
    scores: &[Score],
    weights: &VersionTable,
    solved_at: f64,
) -> Vec<VersionStats> {
    let mut by_label: BTreeMap<(Option<i64>, &str), VersionStats> = BTreeMap::new();
    // Calls are sorted by time, the newest first.
    let mut last: HashMap<i64, &str> = HashMap::new();
    for call in calls {
        let Some(label) = call.version.as_deref() else { continue };
        last.entry(call.episode_key).or_insert(label);
        let place = by_label.entry((version_number(label), label));
        let stats = place.or_insert_with(|| VersionStats::new(label, weights));
        stats.calls += 1;
        stats.completion_tokens += call.completion_tokens;
    }

    let mut rewards: HashMap<&str, Vec<f64>> = HashMap::new();
    for score in scores {
        if let (Some(label), Some(reward)) = (last.get(&score.episode_key), score.reward) {
            rewards.entry(*label).or_default().push(reward);
        }
    }
    for ((_, label), stats) in &mut by_label {
        let rewards = rewards.get(label).map_or(&[][..], Vec::as_slice);
        let solved: Vec<f64> =
            rewards.iter().map(|reward| f64::from(u8::from(*reward >= solved_at))).collect();
        stats.scored = rewards.len() as u64;
        stats.reward = mean(rewards);
        stats.solved = mean(&solved);
    }
    by_label.into_values().collect()
}

impl VersionStats {
    fn new(label: &str, weights: &VersionTable) -> Self {
        let record = weights.0.iter().find(|record| record.label == label);
        Self {
            number: version_number(label),
            label: label.to_owned(),
            first_seen: record.map(|record| seconds(record.first_seen)),
            calls: 0,
            completion_tokens: 0,
            scored: 0,
            reward: None,
            solved: None,
        }
    }
}
