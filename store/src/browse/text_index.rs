//! An index of texts, in a file of its own: which attempts may hold a text.
//!
//! It can be lost without harm: it is made of the store, and says only where to look. It holds the
//! triples of characters of each attempt, without their places, so an attempt that it names may not
//! hold the text, and one that it does not name does not.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crate::browse::filter::{Conditions, EpisodeFilter};
use crate::browse::total::ListTotal;
use crate::database::local::LocalConnection;
use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::snapshot::rows::episode_of;
use crate::snapshot::{EPISODE, Snapshot};
use crate::types::{AttemptRecord, OpenedKey};

/// Characters that are looked up at once.
const GRAM_CHARS: usize = 3;
/// Most triples of a text that are looked up; more would tell little.
const GRAMS_MAX: usize = 64;
/// Time that is waited for another process that writes to the index.
const BUSY_WAIT: Duration = Duration::from_millis(200);

const SCHEMA: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; \
    CREATE TABLE IF NOT EXISTS indexed (episode_key INTEGER PRIMARY KEY, \
    opened_at INTEGER NOT NULL, calls INTEGER NOT NULL) STRICT; \
    CREATE VIRTUAL TABLE IF NOT EXISTS grams USING fts5(text, content='', contentless_delete=1, \
    detail=none, tokenize='trigram case_sensitive 1')";

/// An attempt as an index knows it: another one, or one with another call, is not the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptState {
    /// The store's own key.
    pub key: i64,
    /// The start of its first call.
    pub opened_at: i64,
    /// Its calls.
    pub calls: i64,
    /// True if a call of it has no end.
    pub is_running: bool,
}

impl AttemptState {
    /// Its place among all attempts.
    pub fn place(&self) -> OpenedKey {
        OpenedKey { opened_at: self.opened_at, key: self.key }
    }
}

/// An index of texts.
#[derive(Debug)]
pub struct TextIndex(LocalConnection);

impl TextIndex {
    /// Makes an index at `path`, which only its owner may read, and opens it.
    ///
    /// # Errors
    /// [`SnapshotError`] when it cannot be made.
    pub fn create(path: &Path) -> Result<Self, SnapshotError> {
        let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        made.map_err(sqlx::Error::Io)?;
        let file = LocalConnection::for_writing(path, BUSY_WAIT)?;
        file.run_all(SCHEMA)?;
        Ok(Self(file))
    }

    /// Opens the index at `path`. `None` if there is none, or it cannot be used.
    pub fn open(path: &Path) -> Option<Self> {
        path.is_file().then(|| Self::create(path).ok()).flatten()
    }

    /// Those of these attempts that are indexed as they are now.
    ///
    /// # Errors
    /// [`SnapshotError`] when the index cannot be read.
    pub fn known(&self, attempts: &[AttemptState]) -> Result<HashSet<i64>, SnapshotError> {
        let Some((first, last)) = ends(attempts) else { return Ok(HashSet::new()) };
        let rows = self.0.fetch(
            "SELECT * FROM indexed WHERE episode_key BETWEEN $1 AND $2",
            &[first.into(), last.into()],
            usize::MAX,
        )?;
        let mut indexed: HashMap<i64, (i64, i64)> = HashMap::with_capacity(rows.len());
        for row in &rows {
            let state = (row.named("opened_at")?, row.named("calls")?);
            indexed.insert(row.named("episode_key")?, state);
        }
        let same = |attempt: &&AttemptState| {
            let state = Some(&(attempt.opened_at, attempt.calls));
            !attempt.is_running && indexed.get(&attempt.key) == state
        };
        Ok(attempts.iter().filter(same).map(|attempt| attempt.key).collect())
    }

    /// Of the attempts that are indexed those that may hold a text, which is in lower case: at
    /// least those of `attempts`. `None` where it is too short to be looked up.
    ///
    /// # Errors
    /// [`SnapshotError`] when the index cannot be read.
    pub fn holders(
        &self,
        text: &str,
        attempts: &[AttemptState],
    ) -> Result<Option<HashSet<i64>>, SnapshotError> {
        let chars: Vec<char> = text.chars().collect();
        let grams: BTreeSet<String> =
            chars.windows(GRAM_CHARS).map(|gram| gram.iter().collect()).collect();
        if grams.is_empty() || text.contains('\0') {
            return Ok(None);
        }
        let Some((first, last)) = ends(attempts) else { return Ok(Some(HashSet::new())) };
        let quoted =
            grams.iter().take(GRAMS_MAX).map(|gram| format!("\"{}\"", gram.replace('"', "\"\"")));
        let all = quoted.collect::<Vec<_>>().join(" AND ");
        let rows = self.0.fetch(
            "SELECT rowid FROM grams WHERE grams MATCH $1 AND rowid BETWEEN $2 AND $3",
            &[all.into(), first.into(), last.into()],
            usize::MAX,
        )?;
        let keys: Result<HashSet<i64>, sqlx::Error> =
            rows.iter().map(|row| row.named("rowid")).collect();
        Ok(Some(keys?))
    }

    /// Indexes an attempt by all that was said in it, in lower case.
    ///
    /// # Errors
    /// [`SnapshotError`] when the index cannot be written.
    pub fn put(&self, attempt: AttemptState, text: &str) -> Result<(), SnapshotError> {
        let key = attempt.key;
        self.0.run("BEGIN IMMEDIATE")?;
        let written = (|| {
            self.0.fetch("DELETE FROM grams WHERE rowid = $1", &[key.into()], 0)?;
            let values = [key.into(), text.replace('\0', " ").into()];
            self.0.fetch("INSERT INTO grams (rowid, text) VALUES ($1, $2)", &values, 0)?;
            let row = "INSERT OR REPLACE INTO indexed VALUES ($1, $2, $3)";
            let values = [key.into(), attempt.opened_at.into(), attempt.calls.into()];
            self.0.fetch(row, &values, 0)
        })();
        self.0.run(if written.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        written.map(drop).map_err(SnapshotError::from)
    }
}

/// The least and the largest key of attempts, if there are any.
fn ends(attempts: &[AttemptState]) -> Option<(i64, i64)> {
    let keys = attempts.iter().map(|attempt| attempt.key);
    Some((keys.clone().min()?, keys.max()?))
}

impl Snapshot {
    /// The attempts that a filter takes, the newest first: at most `limit`, from behind `after`.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn states(
        &mut self,
        filter: &EpisodeFilter,
        after: Option<OpenedKey>,
        limit: u32,
    ) -> Result<Vec<AttemptState>, SnapshotError> {
        let states = next_states(filter, after, limit);
        let rows = states.fetch_all(self.connection()).await?;
        let state = |row: &Row| {
            Ok(AttemptState {
                key: row.try_get("episode_key")?,
                opened_at: row.try_get("opened_at")?,
                calls: row.try_get("calls")?,
                is_running: row.try_get("running")?,
            })
        };
        rows.iter().map(state).collect()
    }

    /// The number of the attempts that a filter takes.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn count(&mut self, filter: &EpisodeFilter) -> Result<ListTotal, SnapshotError> {
        self.attempts_total(&Conditions::of(filter)).await
    }

    /// The attempt of a key.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read, or has no such attempt.
    pub async fn attempt_of_key(&mut self, key: i64) -> Result<AttemptRecord, SnapshotError> {
        let select = format!("{EPISODE} WHERE e.episode_key = $1");
        let row = query(select).bind(key).fetch_one(self.connection()).await?;
        Ok(self.with_labels(episode_of(&row)?).await?)
    }
}

/// The statement of the next attempts behind `after` that a filter takes.
pub(super) fn next_states(filter: &EpisodeFilter, after: Option<OpenedKey>, limit: u32) -> Query {
    let mut conditions = Conditions::of(filter);
    if let Some(after) = after {
        conditions.add_beyond(after, true);
    }
    let select = format!(
        "SELECT e.episode_key, e.opened_at, \
         coalesce((SELECT s.calls FROM sealed s WHERE s.episode_key = e.episode_key), \
         (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key)) AS calls, \
         EXISTS (SELECT 1 FROM call c WHERE c.episode_key = e.episode_key \
         AND c.ended_at IS NULL) AS running \
         FROM episode e WHERE {} ORDER BY e.opened_at DESC, e.episode_key DESC LIMIT ${}",
        conditions.sql(),
        conditions.len() + 1
    );
    conditions.query(select).bind(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(key: i64) -> AttemptState {
        AttemptState { key, opened_at: 10 * key, calls: 2, is_running: false }
    }

    #[test]
    fn an_attempt_that_holds_a_text_is_always_named() {
        let folder = tempfile::tempdir().unwrap();
        let index = TextIndex::create(&folder.path().join("text")).unwrap();
        index.put(state(1), "the quick brown fox \"jumps\"").unwrap();
        index.put(state(2), "größe über alles\nand more").unwrap();
        let both = [state(1), state(2)];
        let holders = |text: &str| index.holders(text, &both).unwrap().unwrap();
        assert_eq!(holders("quick b"), [1].into());
        assert_eq!(holders("\"jumps\""), [1].into());
        assert_eq!(holders("größe"), [2].into());
        assert_eq!(holders("nothing"), [].into());
        assert_eq!(index.holders("qu", &both).unwrap(), None);
    }

    #[test]
    fn an_attempt_that_went_on_is_known_once_indexed_again() {
        let folder = tempfile::tempdir().unwrap();
        let index = TextIndex::create(&folder.path().join("text")).unwrap();
        index.put(state(1), "before").unwrap();
        let longer = AttemptState { calls: 3, ..state(1) };
        let running = AttemptState { is_running: true, ..state(1) };
        let other = AttemptState { opened_at: 7, ..state(1) };
        assert_eq!(index.known(&[state(1)]).unwrap(), [1].into());
        assert_eq!(index.known(&[longer, state(2)]).unwrap(), [].into());
        assert_eq!(index.known(&[running]).unwrap(), [].into());
        assert_eq!(index.known(&[other]).unwrap(), [].into());

        index.put(longer, "afterwards").unwrap();
        assert_eq!(index.known(&[longer]).unwrap(), [1].into());
        assert_eq!(index.holders("before", &[longer]).unwrap(), Some([].into()));
    }

    #[test]
    fn what_is_no_index_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        assert!(TextIndex::open(&path).is_none() && !path.exists());
        std::fs::write(&path, "not a database, but long enough to be taken for one").unwrap();
        assert!(TextIndex::open(&path).is_none());
    }
}
