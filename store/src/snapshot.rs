//! A read-only view of the store at one moment.
//!
//! `calls` reads calls back whole, `summary` counts them, `rows` decodes rows. `condition` and
//! `portion` say which attempts. `sealed` finds the calls of attempts that are in segments, whose
//! folder and catalog are in `catalog`; `away` brings their files back from a bucket.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use episode::{Annotation, AttemptId, CallId, ChainHead, Comment, Micros, Reward, RewardScope};

use crate::attempts::attempt_of;
use crate::chain;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::location::Location;
use crate::open;
use crate::snapshot::condition::Condition;
use crate::snapshot::room::{COPIES, Loan, ReadingRoom};
use crate::snapshot::rows::{annotation_of, comment_of, episode_of, reward_of};
use crate::snapshot::sealed::{CallsHolder, OpenSegments, StorePart};
use crate::types::{AttemptRecord, Selection};

pub(crate) mod away;
pub(crate) mod calls;
pub(crate) mod catalog;
pub(crate) mod condition;
pub(crate) mod portion;
pub(crate) mod room;
pub(crate) mod rows;
pub(crate) mod sealed;
pub(crate) mod summary;

/// The condition on an open attempt `e` that has terms of its own. It is that of an index: a start
/// reads these attempts and no others.
const WITH_TERMS: &str = "e.closed_at IS NULL AND (e.force_sampling IS NOT NULL \
    OR e.continues IS NOT NULL OR e.calls_max IS NOT NULL OR e.tokens_max IS NOT NULL \
    OR e.seconds_max IS NOT NULL OR e.keyed = 1)";

/// The rows of episodes `e`, as `episode_of` reads them. A condition follows.
pub(crate) const EPISODE: &str = "SELECT e.*, EXISTS (SELECT 1 FROM mark m \
    WHERE m.episode_key = e.episode_key) AS marked FROM episode e";

/// Annotations with the ids of their calls.
pub(crate) const ANNOTATIONS: &str =
    "SELECT c.call_id, a.* FROM annotation a JOIN call c USING (call_key)";

/// Annotations that came after the calls left for a segment.
const LATE_OF_EPISODE: &str =
    "SELECT * FROM late_annotation WHERE episode_key = $1 ORDER BY late_annotation_key";
const LATE_OF_CALL: &str =
    "SELECT * FROM late_annotation WHERE call_id = $1 ORDER BY late_annotation_key";

/// A view of one moment of a store: later commits do not show.
#[derive(Debug)]
pub struct Snapshot {
    /// The store itself.
    own: StorePart,
    /// The segments that were opened for attempts that are not in the store itself.
    segments: OpenSegments,
    /// The lender of the memory for calls; `None` for a process that only reads.
    room: Option<Arc<dyn ReadingRoom>>,
    /// The memory of the attempts that were read.
    loans: Vec<Loan>,
    /// Copies of what is new in an attempt for which memory is borrowed with its calls.
    log_copies: u64,
    /// Copies of the longest body of an attempt, likewise.
    body_copies: u64,
}

impl Snapshot {
    /// Opens the store at a location for reading and fixes the moment.
    ///
    /// # Errors
    /// [`SnapshotError`] when there is no store, or it cannot be read.
    pub async fn open(at: impl Into<Location>) -> Result<Self, SnapshotError> {
        Self::of(open::for_reading(&at.into()).await?).await
    }

    /// Opens a store as [`Snapshot::open`] does, but reads a file in the caller's own thread. That
    /// is faster, and blocks the thread: it is meant for a process that does nothing else.
    ///
    /// # Errors
    /// As [`Snapshot::open`].
    pub async fn open_here(at: impl Into<Location>) -> Result<Self, SnapshotError> {
        Self::of(open::for_local_reading(&at.into()).await?).await
    }

    /// Opens a segment as the store that it is.
    pub(crate) async fn of_segment(path: &Path) -> Result<Self, SnapshotError> {
        Self::of(away::open_segment(path, false).await?).await
    }

    async fn of(mut connection: StoreConnection) -> Result<Self, SnapshotError> {
        // The transaction stays open as long as the snapshot: it is what fixes the moment.
        connection.begin_snapshot().await?;
        let (own, segments) = (StorePart::new(connection), OpenSegments::default());
        let (loans, body_copies) = (Vec::new(), COPIES);
        Ok(Self { own, segments, room: None, loans, log_copies: 0, body_copies })
    }

    pub(crate) fn connection(&mut self) -> &mut StoreConnection {
        &mut self.own.connection
    }

    pub(crate) fn connection_ref(&self) -> &StoreConnection {
        &self.own.connection
    }

    /// Episodes sorted by group (those without one last), then id, then attempt.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episodes(
        &mut self,
        selection: &Selection,
    ) -> Result<Vec<AttemptRecord>, SnapshotError> {
        self.episodes_where(&Condition::of(selection)).await
    }

    /// The same of those that satisfy a condition.
    pub(crate) async fn episodes_where(
        &mut self,
        chosen: &Condition,
    ) -> Result<Vec<AttemptRecord>, SnapshotError> {
        let select = format!(
            "{EPISODE} WHERE {} ORDER BY group_id IS NULL, group_id, episode_id, attempt",
            chosen.sql
        );
        let rows = chosen.query(select).fetch_all(self.connection()).await?;

        // All labels in one statement, however many episodes there are.
        let select = format!(
            "SELECT l.episode_key, l.name, l.value FROM label l JOIN episode e \
             USING (episode_key) WHERE {} ORDER BY l.label_key",
            chosen.sql
        );
        let label_rows = chosen.query(select).fetch_all(self.connection()).await?;
        let mut labels: HashMap<i64, Vec<(String, String)>> = HashMap::new();
        for row in &label_rows {
            labels.entry(row.try_get("episode_key")?).or_default().push(label_of(row)?);
        }

        let mut episodes = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut record = episode_of(row)?;
            record.labels = labels.remove(&record.key).unwrap_or_default();
            episodes.push(record);
        }
        Ok(episodes)
    }

    /// The attempt that holds a call of a part.
    pub(crate) async fn attempt_with(
        &mut self,
        call: CallId,
    ) -> Result<Option<AttemptRecord>, SnapshotError> {
        let select = "SELECT e.episode_id, e.attempt FROM episode e JOIN call c \
                      USING (episode_key) WHERE c.call_id = $1";
        let part = self.part_with(call).await?;
        let of_call = query(select).bind(call.to_string());
        let Some(row) = of_call.fetch_optional(&mut part.connection).await? else {
            return Ok(None);
        };

        // The part may be a segment: what is said of the attempt is in the store.
        let (id, attempt): (String, i64) = (row.try_get("episode_id")?, row.try_get("attempt")?);
        let row = query(format!("{EPISODE} WHERE e.episode_id = $1 AND e.attempt = $2"));
        let row = row.bind(id).bind(attempt).fetch_optional(self.connection()).await?;
        match row {
            None => Ok(None),
            Some(row) => Ok(Some(self.with_labels(episode_of(&row)?).await?)),
        }
    }

    /// Adds the labels of an episode to its record.
    pub(crate) async fn with_labels(
        &mut self,
        mut record: AttemptRecord,
    ) -> Result<AttemptRecord, sqlx::Error> {
        let select = "SELECT name, value FROM label WHERE episode_key = $1 ORDER BY label_key";
        let rows = query(select).bind(record.key).fetch_all(self.connection()).await?;
        record.labels = rows.iter().map(label_of).collect::<Result<_, _>>()?;
        Ok(record)
    }

    /// The open attempts with a wish of their own: forced sampling, or a mode in which their
    /// prompts are sent as ids. Their labels are not read.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn wishing_attempts(&mut self) -> Result<Vec<AttemptRecord>, SnapshotError> {
        let rows = query(wishing()).fetch_all(self.connection()).await?;
        rows.iter().map(episode_of).collect()
    }

    /// The open attempts whose calls a recording answers. Their labels are not read.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn replaying_attempts(&mut self) -> Result<Vec<AttemptRecord>, SnapshotError> {
        let select = format!("{EPISODE} WHERE e.closed_at IS NULL AND e.replay IS NOT NULL");
        let rows = query(select).fetch_all(self.connection()).await?;
        rows.iter().map(episode_of).collect()
    }

    /// The attempts whose calls a recording answers, by their names.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn replays_of(
        &mut self,
        source: &AttemptId,
    ) -> Result<Vec<AttemptRecord>, SnapshotError> {
        self.episodes_where(&Condition::of_replays(source)).await
    }

    /// The open attempts of which something has a budget: they, or a key of theirs.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn budgeted_attempts(&mut self) -> Result<Vec<AttemptId>, SnapshotError> {
        let rows = query(budgeted()).fetch_all(self.connection()).await?;
        Ok(rows.iter().map(attempt_of).collect::<Result<_, _>>()?)
    }

    /// The value under `name` in the store's settings.
    pub(crate) async fn setting(&mut self, name: &str) -> Result<Option<Vec<u8>>, SnapshotError> {
        let row = query("SELECT value FROM setting WHERE name = $1")
            .bind(name)
            .fetch_optional(self.connection())
            .await?;
        Ok(row.map(|row| row.first()).transpose()?)
    }

    /// The last reward of a name that each attempt was given as a whole, up to the time `until`, by
    /// the attempt's key; null where the attempt could not be scored. Those of `keys` are read, or
    /// all.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn episode_rewards(
        &mut self,
        name: &str,
        until: Micros,
        keys: Option<&[i64]>,
    ) -> Result<BTreeMap<i64, Option<f64>>, SnapshotError> {
        let conditions = match keys {
            Some(keys) => Condition::of_keys(keys).collect(),
            None => vec![Condition::of(&Selection::default())],
        };
        let mut rewards = BTreeMap::new();
        for mut chosen in conditions {
            let (name, until) = (chosen.value(name), chosen.value(until));
            let select = format!(
                "SELECT e.episode_key, e.value FROM reward e WHERE e.call_id IS NULL \
                 AND e.name = {name} AND e.given_at <= {until} AND {} ORDER BY e.reward_key",
                chosen.sql
            );
            for row in chosen.query(select).fetch_all(self.connection()).await? {
                // A later reward of an attempt replaces an earlier one.
                rewards.insert(row.try_get("episode_key")?, row.try_get("value")?);
            }
        }
        Ok(rewards)
    }

    /// The number of tokens that the choice of a span sampled; `None` where the scope is no span,
    /// the call has not ended, or its ids are not known.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn sampled(&mut self, scope: RewardScope) -> Result<Option<u32>, SnapshotError> {
        let RewardScope::Tokens { call, choice, .. } = scope else { return Ok(None) };
        let part = self.part_with(call).await?;
        let row = query(
            "SELECT k.tokens FROM choice k JOIN call c USING (call_key) \
             WHERE c.call_id = $1 AND k.choice_index = $2",
        )
        .bind(call.to_string())
        .bind(i64::from(choice))
        .fetch_optional(&mut part.connection)
        .await?;
        let tokens: Option<i64> = row.map(|row| row.try_get("tokens")).transpose()?.flatten();
        Ok(tokens.and_then(|tokens| u32::try_from(tokens).ok()))
    }

    /// All rewards of one attempt, in the order in which they were given.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn rewards(&mut self, record: &AttemptRecord) -> Result<Vec<Reward>, SnapshotError> {
        let rows = query(
            "SELECT scope, call_id, choice_index, token_start, token_end, name, value, source, \
             given_at, given_by, given_from, key_name, over_calls, over_chain \
             FROM reward WHERE episode_key = $1 ORDER BY reward_key",
        )
        .bind(record.key)
        .fetch_all(self.connection())
        .await?;
        rows.iter().map(reward_of).collect()
    }

    /// The chain of one attempt, over all calls that have ended.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn chain(&mut self, record: &AttemptRecord) -> Result<ChainHead, SnapshotError> {
        let CallsHolder { part, key, .. } = self.holder(record.key).await?;
        Ok(chain::head(&mut part.connection, key).await?)
    }

    /// All annotations of the calls of one attempt, in the order in which they were given.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read or a stream does not decode.
    pub async fn annotations(
        &mut self,
        record: &AttemptRecord,
    ) -> Result<Vec<Annotation>, SnapshotError> {
        let CallsHolder { part, key, is_segment } = self.holder(record.key).await?;
        let mut rows = Vec::new();
        if part.has_annotations().await? {
            let of_episode =
                format!("{ANNOTATIONS} WHERE c.episode_key = $1 ORDER BY a.annotation_key");
            rows = query(of_episode).bind(key).fetch_all(&mut part.connection).await?;
        }
        if is_segment {
            let late = query(LATE_OF_EPISODE).bind(record.key);
            rows.extend(late.fetch_all(self.connection()).await?);
        }
        rows.iter().map(annotation_of).collect()
    }

    /// All comments on one attempt, in the order in which they were given.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn comments(
        &mut self,
        record: &AttemptRecord,
    ) -> Result<Vec<Comment>, SnapshotError> {
        let of_episode = "SELECT * FROM comment WHERE episode_key = $1 ORDER BY comment_key";
        let rows = query(of_episode).bind(record.key).fetch_all(self.connection()).await?;
        rows.iter().map(comment_of).collect()
    }

    /// All annotations of one call, in the order in which they were given.
    ///
    /// # Errors
    /// As [`Snapshot::annotations`].
    pub async fn call_annotations(
        &mut self,
        call: CallId,
    ) -> Result<Vec<Annotation>, SnapshotError> {
        let of_call = format!("{ANNOTATIONS} WHERE c.call_id = $1 ORDER BY a.annotation_key");
        let part = self.part_with(call).await?;
        let id = call.to_string();
        let mut rows = query(of_call).bind(id.clone()).fetch_all(&mut part.connection).await?;
        rows.extend(query(LATE_OF_CALL).bind(id).fetch_all(self.connection()).await?);
        rows.iter().map(annotation_of).collect()
    }
}

/// The statement of [`Snapshot::wishing_attempts`].
pub(crate) fn wishing() -> String {
    format!(
        "{EPISODE} WHERE {WITH_TERMS} \
         AND (e.force_sampling IS NOT NULL OR e.continues IS NOT NULL)"
    )
}

/// The statement of [`Snapshot::budgeted_attempts`].
pub(crate) fn budgeted() -> String {
    format!(
        "SELECT e.episode_id, e.attempt FROM episode e WHERE {WITH_TERMS} \
         AND (e.calls_max IS NOT NULL OR e.tokens_max IS NOT NULL OR e.seconds_max IS NOT NULL \
         OR EXISTS (SELECT 1 FROM api_key k WHERE k.episode_key = e.episode_key \
         AND (k.calls_max IS NOT NULL OR k.tokens_max IS NOT NULL)))"
    )
}

fn label_of(row: &Row) -> Result<(String, String), sqlx::Error> {
    Ok((row.try_get("name")?, row.try_get("value")?))
}
