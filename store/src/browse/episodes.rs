//! Pages of attempts.

use crate::browse::filter::{Conditions, EpisodeFilter, REWARD};
use crate::browse::total::ListTotal;
use crate::database::query::Query;
use crate::error::SnapshotError;
use crate::snapshot::rows::episode_of;
use crate::snapshot::summary::EpisodeSummary;
use crate::snapshot::{EPISODE, Snapshot};
use crate::types::OpenedKey;

/// Attempts that are put into an order for which there is no index: the newest ones.
const SORTED_MAX: u32 = 50_000;

/// A page of a list of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpisodePage {
    /// The order of the list.
    pub order: EpisodeOrder,
    /// True for the largest first.
    pub descending: bool,
    /// Attempts on the page.
    pub limit: u32,
    /// Attempts before the page, behind `after`.
    pub offset: u64,
    /// The last attempt before the list, if it is in the order in which attempts began.
    pub after: Option<OpenedKey>,
}

/// A page of attempts that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedEpisodes {
    /// The attempts, counted.
    pub episodes: Vec<EpisodeSummary>,
    /// The number of all that the filter takes.
    pub total: ListTotal,
    /// The number of them, the newest, that were put into the order; `None` where it is one of all.
    pub sorted: Option<u64>,
}

/// The order of a list of attempts. Nulls are last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EpisodeOrder {
    /// The time at which it began.
    #[default]
    Opened,
    /// The time at which it was closed.
    Closed,
    /// Its id, then its attempt.
    Name,
    /// The newest reward of the whole attempt.
    Reward,
    /// The number of its calls.
    Calls,
    /// The number of its sampled tokens.
    Tokens,
}

impl EpisodeOrder {
    fn sql(self) -> &'static str {
        match self {
            Self::Opened => "e.opened_at",
            Self::Name => "e.episode_id",
            Self::Closed => "e.closed_at",
            Self::Reward => REWARD,
            Self::Calls => {
                "coalesce((SELECT s.calls FROM sealed s WHERE s.episode_key = e.episode_key), \
                 (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key))"
            }
            Self::Tokens => {
                "coalesce((SELECT s.completion_tokens FROM sealed s \
                 WHERE s.episode_key = e.episode_key), (SELECT sum(c.completion_tokens) \
                 FROM call c WHERE c.episode_key = e.episode_key))"
            }
        }
    }
}

impl EpisodeOrder {
    /// True if an index has the order.
    fn is_indexed(self) -> bool {
        matches!(self, Self::Opened | Self::Name)
    }
}

impl Snapshot {
    /// One page of the attempts that a filter takes.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn page(
        &mut self,
        filter: &EpisodeFilter,
        page: EpisodePage,
    ) -> Result<ListedEpisodes, SnapshotError> {
        let total = self.attempts_total(&Conditions::of(filter)).await?;
        let rows = listing(filter, page).fetch_all(self.connection()).await?;

        let mut episodes = Vec::with_capacity(rows.len());
        for row in &rows {
            let episode = self.with_labels(episode_of(row)?).await?;
            episodes.push(self.summary(episode).await?);
        }
        let is_part = !page.order.is_indexed() && total.count > u64::from(SORTED_MAX);
        Ok(ListedEpisodes { episodes, total, sorted: is_part.then_some(SORTED_MAX.into()) })
    }
}

/// The statement of a page.
pub(super) fn listing(filter: &EpisodeFilter, page: EpisodePage) -> Query {
    let mut conditions = Conditions::of(filter);
    if let Some(after) = page.after {
        conditions.add_beyond(after, page.descending);
    }
    let (order, way) = (page.order.sql(), if page.descending { "DESC" } else { "ASC" });
    let (condition, next) = (conditions.sql(), conditions.len() + 1);
    let select = match page.order {
        EpisodeOrder::Opened => {
            format!("{EPISODE} WHERE {condition} ORDER BY {order} {way}, e.episode_key {way}")
        }
        EpisodeOrder::Name => {
            format!("{EPISODE} WHERE {condition} ORDER BY {order} {way}, e.attempt {way}")
        }
        _ => {
            let newest = format!(
                "SELECT e.episode_key FROM episode e WHERE {condition} \
                 ORDER BY e.opened_at DESC, e.episode_key DESC LIMIT {SORTED_MAX}"
            );
            format!(
                "{EPISODE} WHERE e.episode_key IN ({newest}) \
                 ORDER BY {order} {way} NULLS LAST, e.episode_id {way}, e.attempt {way}"
            )
        }
    };

    let offset = i64::try_from(page.offset).unwrap_or(i64::MAX);
    let part = format!("{select} LIMIT ${next} OFFSET ${}", next + 1);
    conditions.query(part).bind(page.limit).bind(offset)
}
