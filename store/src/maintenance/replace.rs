//! The attempts of another file in the place of those here, so that SQLite holds nothing of these
//! any more.
//!
//! An attempt keeps its row, its keys, its position in the feed and what was handed out of it. Its
//! calls and all that is said of it are those of the other file, under keys that no row has.

use std::path::{Path, PathBuf};

use episode::AttemptId;
use thiserror::Error;

use crate::attempts::find_attempt;
use crate::database::connection::StoreConnection;
use crate::database::offloaded::OffloadedConnection;
use crate::database::query::query;
use crate::error::{CommitError, OpenError, SnapshotError};
use crate::maintenance::backup::BackupError;
use crate::maintenance::extract::{Copier, Moved};
use crate::maintenance::prune::remove::remove_calls;
use crate::open;
use crate::snapshot::Snapshot;
use crate::sqlite;
use crate::sqlite::lock::WriterLock;
use crate::sqlite::space::{FreeSpace, rewrite};
use crate::types::Selection;

/// Reason why attempts are not replaced. Unless it says otherwise, nothing was changed.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// The store is recorded to, or cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// One of the two cannot be read.
    #[error(transparent)]
    Read(#[from] SnapshotError),
    /// The rows cannot be copied.
    #[error(transparent)]
    Copy(#[from] BackupError),
    /// The store has no such attempt any more.
    #[error(transparent)]
    Unknown(#[from] CommitError),
    /// A segment never changes.
    #[error("the calls of `{0}` are in a segment, which never changes")]
    Sealed(AttemptId),
    /// Another process wrote meanwhile.
    #[error("another process wrote to the store meanwhile")]
    Changed,
    /// An attempt that stays is based on one that goes.
    #[error("a row of `{0}` is based on an episode that is replaced")]
    Needed(String),
    /// The database refuses.
    #[error("cannot change the store")]
    Database(#[from] sqlx::Error),
}

/// The result of a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplaceReport {
    /// Attempts that were replaced.
    pub attempts: u64,
    /// True if a reader keeps pages of before in the file or its WAL.
    pub is_held: bool,
}

/// A file to which nobody records while attempts in it are replaced.
#[derive(Debug)]
pub struct AttemptReplacer {
    file: OffloadedConnection,
    connection: StoreConnection,
    /// Changes with what any other connection commits.
    version: i64,
    path: PathBuf,
    _lock: WriterLock,
}

/// Changes of the file by other connections.
const VERSION: &str = "PRAGMA data_version";
/// What is said of an attempt, beside its calls.
const SAID: [&str; 3] = [
    "DELETE FROM reward WHERE episode_key = $1",
    "DELETE FROM comment WHERE episode_key = $1",
    "DELETE FROM label WHERE episode_key = $1",
];
/// A key that no row of a table with keys of its own reaches.
const LAST_KEY: &str = "SELECT max(key) FROM (SELECT max(call_key) AS key FROM call \
    UNION ALL SELECT max(body_key) FROM body UNION ALL SELECT max(reel_key) FROM reel \
    UNION ALL SELECT max(segment_key) FROM segment UNION ALL SELECT max(choice_key) FROM choice \
    UNION ALL SELECT max(annotation_key) FROM annotation \
    UNION ALL SELECT max(reward_key) FROM reward UNION ALL SELECT max(label_key) FROM label \
    UNION ALL SELECT max(comment_key) FROM comment UNION ALL SELECT 0)";

impl AttemptReplacer {
    /// Keeps recorders from the store at `path`.
    ///
    /// # Errors
    /// [`ReplaceError`] when there is no store, or another process records to it.
    pub async fn begin(path: &Path) -> Result<Self, ReplaceError> {
        if !path.exists() {
            return Err(OpenError::Missing(path.display().to_string()).into());
        }
        let (local, lock) = open::beside(path, sqlite::open::for_maintenance).await?;
        let file = OffloadedConnection::new(local);
        let mut connection = StoreConnection::Offloaded(file.clone());
        // Pages that rows leave are filled with zeros, and references are checked at the end.
        for setting in
            ["PRAGMA secure_delete = ON", "PRAGMA foreign_keys = OFF", "PRAGMA temp_store = FILE"]
        {
            query(setting).execute(&mut connection).await?;
        }
        let version = query(VERSION).scalar(&mut connection).await?;
        Ok(Self { file, connection, version, path: path.to_owned(), _lock: lock })
    }

    /// The store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts all attempts of the store at `from` in the place of those of their names, all or none,
    /// and rewrites the file.
    ///
    /// # Errors
    /// [`ReplaceError`] when they are not replaced. An error of the database behind that keeps
    /// pages of before in the file.
    pub async fn replace(self, from: &Path) -> Result<ReplaceReport, ReplaceError> {
        let mut source = Snapshot::open(from).await?;
        let attempts = source.episodes(&Selection::default()).await?;
        let mut copier = Copier::between(source, self.connection);
        copier.target.begin().await?;
        if query(VERSION).scalar::<i64>(&mut copier.target).await? != self.version {
            return Err(ReplaceError::Changed);
        }

        let shift = query(LAST_KEY).scalar::<i64>(&mut copier.target).await?;
        for record in &attempts {
            let id = AttemptId { episode: record.id.clone(), attempt: record.attempt };
            let episode_key = find_attempt(&mut copier.target, &id).await?;
            let sealed = query("SELECT 1 FROM sealed WHERE episode_key = $1").bind(episode_key);
            if sealed.fetch_optional(&mut copier.target).await?.is_some() {
                return Err(ReplaceError::Sealed(id));
            }
            remove_calls(&mut copier.target, episode_key).await?;
            for deletion in SAID {
                query(deletion).bind(episode_key).execute(&mut copier.target).await?;
            }
            copier.contents(record.key, Moved { episode_key, shift }).await?;
        }
        match copier.check().await {
            Err(BackupError::Needed(table)) => return Err(ReplaceError::Needed(table)),
            checked => checked?,
        }
        copier.target.commit().await?;

        let is_held = self.file.run(rewrite).await? == FreeSpace::HeldByReader;
        Ok(ReplaceReport { attempts: attempts.len() as u64, is_held })
    }

    /// Rewrites the file, of which nothing is replaced: what a reader kept before goes now.
    ///
    /// # Errors
    /// [`ReplaceError::Database`] when the database refuses.
    pub async fn rewrite(self) -> Result<ReplaceReport, ReplaceError> {
        let is_held = self.file.run(rewrite).await? == FreeSpace::HeldByReader;
        Ok(ReplaceReport { attempts: 0, is_held })
    }
}

#[cfg(test)]
mod tests {
    use episode::CallStart;

    use super::*;
    use crate::database::row::Row;
    use crate::location::Location;
    use crate::site::Site;
    use crate::tests::{begun, comment, ended};
    use crate::writer::edit::StoreEditor;
    use crate::{Store, verify};

    /// Bytes of a piece that is looked for.
    const PIECE: usize = 32;

    /// Records attempts at `episodes`, of which nothing is as in another store with another seed.
    async fn filled(site: &Site, episodes: &[&str], seed: u64) {
        let (store, writer) = site.open().await;
        for episode in episodes {
            said(&store, episode, seed).await;
        }
        drop(store);
        writer.finish().await;
    }

    async fn said(store: &Store, episode: &str, seed: u64) {
        let attempt: AttemptId = format!("{episode}/0").parse().unwrap();
        let (mut said, mut state) = (Vec::new(), seed + u64::from(episode.as_bytes()[0]));
        for turn in 0..4 {
            said.extend((0..3000).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            }));
            let begun = CallStart { request: said.clone().into(), ..begun(episode, turn) };
            let end = ended(begun.call_id);
            store.begin(begun).await.done().await.unwrap();
            store.end(end).await.done().await.unwrap();
        }
        let text = format!("{episode} says what only store {seed} has, at length");
        store.comment(vec![(attempt.clone(), comment(None, Some(&text), None))]).await.unwrap();
        store.close(attempt, 9, None).await.unwrap();
    }

    fn path_of(site: &Site) -> PathBuf {
        let Location::File(path) = &site.at else { unreachable!() };
        path.clone()
    }

    /// Pieces of what was said in attempts at an episode, as the file holds them.
    async fn pieces(site: &Site, episode: &str) -> Vec<Vec<u8>> {
        let mut snapshot = site.snapshot().await;
        let data = "SELECT s.data FROM segment s JOIN reel USING (reel_key) \
            JOIN episode e USING (episode_key) WHERE e.episode_id = $1 \
            UNION ALL SELECT CAST(m.text AS BLOB) FROM comment m \
            JOIN episode e USING (episode_key) WHERE e.episode_id = $1";
        let rows = query(data).bind(episode).fetch_all(snapshot.connection()).await.unwrap();
        let data = rows.iter().map(|row: &Row| row.first::<Vec<u8>>().unwrap());
        data.filter(|data| data.len() > PIECE).map(|data| data[..PIECE].to_vec()).collect()
    }

    fn holds(path: &Path, piece: &[u8]) -> bool {
        let files = path.parent().unwrap().read_dir().unwrap().flatten();
        let mut files = files.map(|entry| std::fs::read(entry.path()).unwrap());
        files.any(|bytes| bytes.windows(piece.len()).any(|window| window == piece))
    }

    async fn calls(site: &Site, episode: &str) -> String {
        let mut snapshot = site.snapshot().await;
        let all = snapshot.episodes(&Selection::default()).await.unwrap();
        let record = all.into_iter().find(|record| record.id.as_str() == episode).unwrap();
        let comments = snapshot.comments(&record).await.unwrap();
        format!("{:?} {comments:?}", snapshot.calls(&record).await.unwrap())
    }

    #[tokio::test]
    async fn nothing_of_a_replaced_attempt_is_left_in_the_file() {
        let (site, other) = (Site::file(), Site::file());
        filled(&site, &["a", "b"], 1).await;
        filled(&other, &["a"], 2).await;
        let (path, mut gone) = (path_of(&site), pieces(&site, "a").await);
        // Replies that are the same stay.
        let same = [pieces(&site, "b").await, pieces(&other, "a").await].concat();
        gone.retain(|piece| !same.contains(piece));
        assert!(gone.len() > 1 && gone.iter().all(|piece| holds(&path, piece)));
        let (b, new) = (calls(&site, "b").await, calls(&other, "a").await);
        let position = site.snapshot().await.last_position().await.unwrap();

        let replacement = AttemptReplacer::begin(&path).await.unwrap();
        let report = replacement.replace(&path_of(&other)).await.unwrap();
        assert_eq!(report, ReplaceReport { attempts: 1, is_held: false });
        let left: Vec<_> = gone.iter().filter(|piece| holds(&path, piece)).collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!((calls(&site, "b").await, calls(&site, "a").await), (b, new));
        assert_eq!(site.snapshot().await.last_position().await.unwrap(), position);
        assert_eq!(verify(&site.at).await.unwrap().damage, []);

        // It is a store that is recorded to, and can be changed again.
        filled(&site, &["c"], 3).await;
        AttemptReplacer::begin(&path).await.unwrap().replace(&path_of(&other)).await.unwrap();
        assert_eq!(verify(&site.at).await.unwrap().damage, []);
    }

    #[tokio::test]
    async fn a_reader_that_keeps_what_was_there_is_told() {
        let (site, other) = (Site::file(), Site::file());
        filled(&site, &["a"], 1).await;
        filled(&other, &["a"], 2).await;
        let reader = site.snapshot().await;
        let replacement = AttemptReplacer::begin(&path_of(&site)).await.unwrap();
        let report = replacement.replace(&path_of(&other)).await.unwrap();
        assert!(report.is_held);
        drop(reader);
        let again = AttemptReplacer::begin(&path_of(&site)).await.unwrap().rewrite().await.unwrap();
        assert_eq!(again, ReplaceReport { attempts: 0, is_held: false });
    }

    #[tokio::test]
    async fn what_is_written_meanwhile_is_never_lost() {
        let (site, other) = (Site::file(), Site::file());
        filled(&site, &["a"], 1).await;
        filled(&other, &["a", "x"], 2).await;
        let before = calls(&site, "a").await;
        let unknown = AttemptReplacer::begin(&path_of(&site)).await.unwrap();
        let unknown = unknown.replace(&path_of(&other)).await;
        assert!(matches!(unknown, Err(ReplaceError::Unknown(_))), "{unknown:?}");
        assert_eq!(calls(&site, "a").await, before);

        let replacement = AttemptReplacer::begin(&path_of(&site)).await.unwrap();
        let late = vec![("a/0".parse().unwrap(), comment(None, Some("late"), None))];
        StoreEditor::open(&site.at).await.unwrap().comment(late).await.unwrap();
        let changed = replacement.replace(&path_of(&other)).await;
        assert!(matches!(changed, Err(ReplaceError::Changed)), "{changed:?}");
        assert!(calls(&site, "a").await.contains("late"));

        let (store, writer) = site.open().await;
        let refused = AttemptReplacer::begin(&path_of(&site)).await;
        assert!(matches!(refused, Err(ReplaceError::Open(OpenError::InUse(..)))));
        drop(store);
        writer.finish().await;
    }
}
