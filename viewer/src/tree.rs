//! One attempt as turns, threaded as an export would thread it.

mod comments;
mod siblings;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use episode::{Body, Call, CallId, EpisodeId, Provenance, Reward, RewardScope};
use exporter::{ChoiceLink, Finding, diagnose_tree, whole_requests};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{EpisodeSummary, Selection, Snapshot};
use wire::{Conversation, ConversationReader};

use self::siblings::{replays, siblings};
use crate::bounds::MESSAGE_COPIES;
use crate::call::CallView;
use crate::episodes::EpisodeView;
use crate::error::ViewError;
use crate::messages::first_links;
use crate::parameters::Parameters;
use crate::time::{milliseconds, seconds};
use crate::turn::{TurnMaker, TurnView, model, replayed};
use crate::weights::VersionTable;

pub use self::comments::CommentView;
pub use self::siblings::SiblingView;

/// An attempt with its turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeTree {
    /// The attempt.
    pub episode: EpisodeView,
    /// The numbers of all attempts at the episode.
    pub attempts: Vec<u32>,
    /// `exact`, `usable` or `unusable`.
    pub verdict: String,
    /// The reasons why it is not exact.
    pub reasons: Vec<FindingView>,
    /// Paths from a root to a leaf.
    pub trajectories: u64,
    /// Sampled tokens with an id.
    pub sampled_tokens: u64,
    /// Those of them that may be trained.
    pub trainable_tokens: u64,
    /// The turns, in the order in which the calls began.
    pub turns: Vec<TurnView>,
    /// Calls without a turn.
    pub others: Vec<OtherCall>,
    /// Histories that were left, as in the table of forks.
    pub forks: Vec<Value>,
    /// The rewards, in the order in which they were given.
    pub rewards: Vec<RewardView>,
    /// Comments of people, in the order in which they were given.
    #[serde(default)]
    pub comments: Vec<CommentView>,
    /// Other attempts that go on from the same turn of the same recording.
    #[serde(default)]
    pub siblings: Vec<SiblingView>,
    /// Attempts whose calls this one answers.
    #[serde(default)]
    pub replays: Vec<SiblingView>,
    /// Only if messages are asked for: the calls with a turn, each with the messages that are new
    /// in its first one, and without tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<Vec<CallView>>,
}

impl EpisodeTree {
    /// The calls that were read with their messages, by their ids.
    pub fn calls_by_id(&self) -> HashMap<&str, &CallView> {
        let calls = self.calls.iter().flatten();
        calls.map(|call| (call.call_id.as_str(), call)).collect()
    }

    /// True for a recording of what was said alone: the server told no ids.
    pub fn is_text_only(&self) -> bool {
        let is_counted = self.turns.iter().any(|turn| turn.counted_tokens.is_some());
        is_counted && self.episode.with_ids == 0 && self.sampled_tokens == 0
    }
}

/// A reason why an attempt is not exact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingView {
    /// The word for it.
    pub reason: String,
    /// The meaning of the word.
    #[serde(default)]
    pub meaning: String,
    /// The calls that it is about; none if it is about the whole attempt.
    pub calls: Vec<String>,
}

/// A call without a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct OtherCall {
    pub number: u32,
    pub call_id: String,
    pub method: String,
    pub path: String,
    pub route: String,
    pub model: Option<String>,
    pub client: Option<String>,
    pub agent: Option<String>,
    pub started_at: f64,
    pub first_byte_ms: Option<f64>,
    pub duration_ms: Option<f64>,
    pub status: Option<u16>,
    pub outcome: Option<String>,
    pub error: Option<String>,
    #[serde(default)]
    pub replayed: Option<String>,
}

/// A reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct RewardView {
    pub name: String,
    pub value: Option<f64>,
    pub source: String,
    pub scope: String,
    pub call_id: Option<String>,
    pub choice: Option<u32>,
    pub start: Option<u32>,
    pub end: Option<u32>,
    pub given_at: f64,
    #[serde(default)]
    pub given_by: Option<String>,
    #[serde(default)]
    pub given_from: Option<String>,
    #[serde(default)]
    pub key_name: Option<String>,
    #[serde(default)]
    pub over_calls: Option<u64>,
    #[serde(default)]
    pub over_chain: Option<String>,
}

/// Reads an attempt as turns.
pub(crate) async fn tree(
    snapshot: &mut Snapshot,
    id: &str,
    mut parameters: Parameters,
) -> Result<EpisodeTree, ViewError> {
    let attempt = parameters.parsed("attempt", "a number from 0")?;
    let has_messages = parameters.flag("messages")?;
    parameters.end()?;
    let (attempts, summary) = find(snapshot, id, attempt).await?;

    let record = summary.episode.clone();
    let weights = VersionTable(snapshot.versions().await?);
    let rewards = snapshot.rewards(&record).await?;
    let comments = snapshot.comments(&record).await?;
    let siblings = siblings(snapshot, &record).await?;
    let replays = replays(snapshot, &record).await?;
    if has_messages {
        snapshot.copy_logs(MESSAGE_COPIES);
    }
    let calls = snapshot.calls(&record).await?;

    let (diagnosis, links, calls) = diagnose_tree(record, calls);
    let whole = whole_requests(&calls);
    let maker = TurnMaker::new(&calls, &whole, &weights);
    let said = has_messages.then(|| new_messages(&calls, &whole, &links, &maker, &weights));
    let with_turn: BTreeSet<_> = links.iter().map(|link| link.call_id).collect();
    let numbered = calls.iter().zip(1..);
    let others = numbered.filter(|(call, _)| !with_turn.contains(&call.begun.call_id));

    Ok(EpisodeTree {
        episode: EpisodeView::of(summary),
        attempts,
        verdict: diagnosis.verdict.to_owned(),
        reasons: diagnosis.findings.iter().map(FindingView::of).collect(),
        trajectories: diagnosis.trajectories,
        sampled_tokens: diagnosis.sampled_tokens,
        trainable_tokens: diagnosis.trainable_tokens,
        turns: links.iter().map(|link| maker.turn(link)).collect(),
        others: others.map(|(call, number)| OtherCall::of(call, number)).collect(),
        forks: diagnosis
            .forks
            .iter()
            .map(|fork| serde_json::to_value(fork).unwrap_or_default())
            .collect(),
        rewards: rewards.iter().map(RewardView::of).collect(),
        comments: comments.into_iter().map(CommentView::of).collect(),
        siblings,
        replays,
        calls: said,
    })
}

/// The calls with a turn, each with the messages that are new in its first one.
fn new_messages(
    calls: &[Call],
    whole: &BTreeMap<CallId, Body>,
    links: &[ChoiceLink],
    maker: &TurnMaker<'_>,
    weights: &VersionTable,
) -> Vec<CallView> {
    let first_links = first_links(links);
    let mut reader = ConversationReader::default();
    let mut views = Vec::with_capacity(calls.len());
    for call in calls {
        let begun = &call.begun;
        let Some(link) = first_links.get(&begun.call_id) else { continue };
        let request = whole.get(&begun.call_id).unwrap_or(&begun.request).read();
        let sent = reader.messages(begun.route, &request);
        let new = sent.iter().skip(maker.known_messages(link));
        let messages = new.map(|message| message.value.clone()).collect();
        let sent = Conversation { messages, ..Conversation::default() };
        views.push(CallView::of(call, sent, weights));
    }
    views
}

/// Finds an attempt; the newest one if no number is given. Returns the numbers of all attempts.
pub(crate) async fn find(
    snapshot: &mut Snapshot,
    id: &str,
    attempt: Option<u32>,
) -> Result<(Vec<u32>, EpisodeSummary), ViewError> {
    let missing = || ViewError::no_episode(id, attempt);
    let episode: EpisodeId = id.parse().map_err(|_| missing())?;
    let selection = Selection { episode: Some(episode), ..Selection::default() };
    let records = snapshot.episodes(&selection).await?;
    let attempts = records.iter().map(|record| record.attempt).collect();
    // Attempts are in order: the last one that fits is the newest.
    let mut fitting =
        records.into_iter().filter(|record| attempt.is_none_or(|number| record.attempt == number));
    let record = fitting.next_back().ok_or_else(missing)?;
    Ok((attempts, snapshot.summary(record).await?))
}

impl FindingView {
    fn of(finding: &Finding) -> Self {
        let calls = finding.calls.iter().map(ToString::to_string).collect();
        let reason = finding.reason;
        Self { reason: reason.as_str().to_owned(), meaning: reason.meaning().to_owned(), calls }
    }
}

impl OtherCall {
    fn of(call: &Call, number: u32) -> Self {
        let (begun, ended) = (&call.begun, call.ended.as_ref());

        Self {
            number,
            call_id: begun.call_id.to_string(),
            method: begun.method.clone(),
            path: begun.path.clone(),
            route: begun.route.as_str().to_owned(),
            model: model(call),
            client: begun.lineage.client.clone(),
            agent: begun.lineage.agent.clone(),
            started_at: seconds(begun.started_at),
            first_byte_ms: ended
                .and_then(|ended| ended.first_byte_at)
                .map(|at| milliseconds(begun.started_at, at)),
            duration_ms: ended.map(|ended| milliseconds(begun.started_at, ended.ended_at)),
            status: ended.and_then(|ended| ended.status),
            outcome: ended.map(|ended| ended.outcome.as_str().to_owned()),
            error: ended.and_then(|ended| ended.error.clone()),
            replayed: replayed(call),
        }
    }
}

impl RewardView {
    /// The document of a reward.
    pub(crate) fn of(reward: &Reward) -> Self {
        let (choice, start, end) = match reward.scope {
            RewardScope::Episode | RewardScope::Call(_) => (None, None, None),
            RewardScope::Trajectory { choice, .. } => (Some(choice), None, None),
            RewardScope::Tokens { choice, start, end, .. } => {
                (Some(choice), Some(start), Some(end))
            }
        };
        let Provenance { by, from, key, over } = &reward.provenance;

        Self {
            name: reward.name.clone(),
            value: reward.value,
            source: reward.source.clone(),
            scope: reward.scope.as_str().to_owned(),
            call_id: reward.scope.call().map(|call| call.to_string()),
            choice,
            start,
            end,
            given_at: seconds(reward.at),
            given_by: by.map(|giver| giver.as_str().to_owned()),
            given_from: from.clone(),
            key_name: key.clone(),
            over_calls: over.map(|over| over.calls),
            over_chain: over.map(|over| over.to_string()),
        }
    }
}
