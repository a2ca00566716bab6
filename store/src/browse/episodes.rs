//! Pages of attempts.

use crate::browse::filter::{Conditions, EpisodeFilter, REWARD};
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;
use crate::snapshot::rows::episode_of;
use crate::snapshot::summary::EpisodeSummary;

/// A page of a list of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpisodePage {
    /// The order of the list.
    pub order: EpisodeOrder,
    /// True for the largest first.
    pub descending: bool,
    /// Attempts on the page.
    pub limit: u32,
    /// Attempts before the page.
    pub offset: u64,
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
            Self::Closed => "e.closed_at",
            Self::Name => "e.episode_id",
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

impl Snapshot {
    /// One page of the attempts that a filter takes, counted, and the number of all of them.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn page(
        &mut self,
        filter: &EpisodeFilter,
        page: EpisodePage,
    ) -> Result<(Vec<EpisodeSummary>, u64), SnapshotError> {
        let conditions = Conditions::of(filter);
        let condition = conditions.sql();
        let count = conditions.query(format!("SELECT count(*) FROM episode e WHERE {condition}"));
        let total: i64 = count.scalar(self.connection()).await?;

        let (order, way) = (page.order.sql(), if page.descending { "DESC" } else { "ASC" });
        let next = conditions.len() + 1;
        let select = format!(
            "SELECT e.*, EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key) \
             AS marked FROM episode e WHERE {condition} ORDER BY {order} {way} NULLS LAST, \
             e.episode_id {way}, e.attempt {way} LIMIT ${next} OFFSET ${}",
            next + 1
        );
        let offset = i64::try_from(page.offset).unwrap_or(i64::MAX);
        let listing = conditions.query(select).bind(page.limit).bind(offset);
        let rows = listing.fetch_all(self.connection()).await?;

        let mut summaries = Vec::with_capacity(rows.len());
        for row in &rows {
            let episode = self.with_labels(episode_of(row)?).await?;
            summaries.push(self.summary(episode).await?);
        }
        Ok((summaries, total.unsigned_abs()))
    }
}
