//! Lists of attempts.

use std::collections::BTreeMap;

use episode::{GroupId, Replay, TaskId};
use serde::{Deserialize, Serialize};
use store::{
    AttemptRecord, EpisodeOrder, EpisodePage, EpisodeSummary, ListedEpisodes, OpenedKey, Snapshot,
};

use crate::beginnings::{BeginningReader, Beginnings, KeptBeginnings};
use crate::bounds::{LIST_LABEL_BYTES_MAX, LIST_LABELS_MAX};
use crate::error::ViewError;
use crate::parameters::{Parameters, newest_first};
use crate::time::seconds;

/// A page of attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpisodeList {
    /// Attempts that the filters take, on all pages.
    pub total: u64,
    /// True if there are more than these.
    #[serde(default)]
    pub total_is_least: bool,
    /// The attempts that were put into the order, the newest ones; `None` for all.
    #[serde(default)]
    pub sorted: Option<u64>,
    /// The attempts of the page.
    pub episodes: Vec<EpisodeView>,
    /// The `cursor` of the next page; `None` at the end, and where the order is not that in which
    /// attempts began.
    #[serde(default)]
    pub next: Option<String>,
}

/// An attempt in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct EpisodeView {
    pub episode_id: String,
    pub attempt: u32,
    pub group_id: Option<String>,
    pub task_id: Option<String>,
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub labels_left_out: u64,
    pub source: String,
    pub state: String,
    pub opened_at: f64,
    pub closed_at: Option<f64>,
    pub last_call_at: Option<f64>,
    pub model: Option<String>,
    pub calls: u64,
    pub generations: u64,
    pub with_ids: u64,
    pub incomplete: u64,
    #[serde(default)]
    pub refused: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub reward: Option<f64>,
    pub may_lack_calls: bool,
    #[serde(default)]
    pub replay: Option<ReplayView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_answer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// The recording that answers the calls of an attempt: all of them, or those of its first turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct ReplayView {
    pub episode_id: String,
    pub attempt: u32,
    pub until: Option<u32>,
    pub mode: String,
}

const ORDERS: [(&str, EpisodeOrder); 6] = [
    ("opened", EpisodeOrder::Opened),
    ("closed", EpisodeOrder::Closed),
    ("name", EpisodeOrder::Name),
    ("reward", EpisodeOrder::Reward),
    ("calls", EpisodeOrder::Calls),
    ("tokens", EpisodeOrder::Tokens),
];

/// Lists attempts.
pub(crate) async fn episodes(
    snapshot: &mut Snapshot,
    mut parameters: Parameters,
    kept: &KeptBeginnings,
) -> Result<EpisodeList, ViewError> {
    let filter = parameters.filter()?;
    let order = parameters.order(&ORDERS)?;
    let (limit, offset) = parameters.part()?;
    let has_text = parameters.flag("text")?;
    let after = parameters.place()?;
    let mut page = EpisodePage { after, ..newest_first(limit, offset) };
    if let Some((order, descending)) = order {
        page = EpisodePage { order, descending, ..page };
    }
    parameters.end()?;
    let is_by_time = page.order == EpisodeOrder::Opened;
    if after.is_some() && !is_by_time {
        let message = "`cursor` goes on with the order in which attempts began alone";
        return Err(ViewError::Parameter(message.to_owned()));
    }

    let ListedEpisodes { episodes: found, total, sorted } = snapshot.page(&filter, page).await?;
    let last = found.last().filter(|_| is_by_time && found.len() == limit as usize);
    let next = last.map(|last| {
        let OpenedKey { opened_at, key } = last.episode.place();
        format!("{opened_at}.{key}")
    });
    let mut reader = match has_text {
        true => BeginningReader::start(snapshot, kept).await,
        false => None,
    };
    let mut episodes = Vec::with_capacity(found.len());
    for summary in found {
        let said = match &mut reader {
            Some(reader) => reader.read(&summary).await?,
            None => Beginnings::default(),
        };
        let Beginnings { first_prompt, last_answer, last_error } = said;
        let view = EpisodeView::in_list(summary);
        episodes.push(EpisodeView { first_prompt, last_answer, last_error, ..view });
    }
    Ok(EpisodeList { total: total.count, total_is_least: total.is_least, sorted, episodes, next })
}

impl EpisodeView {
    /// The document of a summary in a list, with a part of its labels: an agent may have given it
    /// a hundred long ones.
    pub(crate) fn in_list(mut summary: EpisodeSummary) -> Self {
        let all = std::mem::take(&mut summary.episode.labels);
        let (count, mut bytes) = (all.len(), 0);
        let fit = all.into_iter().filter(|(name, value)| {
            let with = bytes + name.len() + value.len();
            let fits = with <= LIST_LABEL_BYTES_MAX;
            bytes = if fits { with } else { bytes };
            fits
        });
        let mut view = Self::of(summary);
        view.labels = fit.take(LIST_LABELS_MAX).collect();
        view.labels_left_out = (count - view.labels.len()) as u64;
        view
    }

    /// The document of a summary.
    pub(crate) fn of(summary: EpisodeSummary) -> Self {
        let EpisodeSummary { episode, .. } = summary;
        let state = state_of(&episode);

        Self {
            episode_id: episode.id.to_string(),
            attempt: episode.attempt,
            group_id: episode.group.as_ref().map(GroupId::to_string),
            task_id: episode.task.as_ref().map(TaskId::to_string),
            labels: episode.labels.into_iter().collect(),
            labels_left_out: 0,
            source: episode.source.as_str().to_owned(),
            state,
            opened_at: seconds(episode.opened_at),
            closed_at: episode.closed_at.map(seconds),
            last_call_at: summary.last_call_at.map(seconds),
            model: summary.model,
            calls: summary.calls,
            generations: summary.generations,
            with_ids: summary.with_ids,
            incomplete: summary.incomplete,
            refused: summary.refused,
            prompt_tokens: summary.prompt_tokens,
            completion_tokens: summary.completion_tokens,
            reward: summary.reward,
            may_lack_calls: episode.may_lack_calls,
            replay: episode.replay.as_ref().map(ReplayView::of),
            first_prompt: None,
            last_answer: None,
            last_error: None,
        }
    }
}

impl ReplayView {
    fn of(replay: &Replay) -> Self {
        Self {
            episode_id: replay.source.episode.to_string(),
            attempt: replay.source.attempt,
            until: replay.until,
            mode: replay.mode.as_str().to_owned(),
        }
    }
}

/// The state of an attempt: `open`, `closed`, or how it ended.
pub(crate) fn state_of(episode: &AttemptRecord) -> String {
    match (&episode.status, episode.closed_at) {
        (Some(status), _) => status.clone(),
        (None, Some(_)) => "closed".to_owned(),
        (None, None) => "open".to_owned(),
    }
}
