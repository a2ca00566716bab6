//! Some episodes of a store as a store of their own.
//!
//! The rows are copied as they are, under their keys, one attempt after the other. Those of the
//! feed's readers, of API keys and of the key that signs them are not: they are the server's.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use episode::{EpisodeId, GroupId};

use crate::database::connection::StoreConnection;
use crate::database::offloaded::{OffloadedConnection, offload};
use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::database::value::Value;
use crate::location::Location;
use crate::maintenance::backup::{BackupError, NewFile};
use crate::snapshot::Snapshot;
use crate::sqlite;

/// The attempts to copy: those that any of the names selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtractFilter {
    /// Episodes, and the attempt at each; `None` is all of them.
    pub episodes: Vec<(EpisodeId, Option<u32>)>,
    /// Groups.
    pub groups: Vec<GroupId>,
}

/// The copy that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtractReport {
    /// Its attempts.
    pub attempts: u64,
    /// Their calls.
    pub calls: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Tables with the key of an episode in each row; `episode` is the first.
const OF_EPISODE: [&str; 7] =
    ["episode", "label", "reward", "comment", "mark", "finished", "waiting"];
/// Those of them that say something of the attempt.
const SAID: [&str; 3] = ["label", "reward", "comment"];
/// Keys of a sealed attempt are moved beyond those of all others by this power of two.
const SHIFT_BITS: u32 = 40;
/// Tables with the key of a call in each row; `call` is the first.
const OF_CALL: [&str; 6] = ["call", "prompt", "choice", "side", "annotation", "link"];

const ATTEMPTS: &str = "SELECT episode_key FROM episode \
    WHERE episode_id = $1 AND ($2 IS NULL OR attempt = $2)";
const MEMBERS: &str = "SELECT episode_key FROM episode WHERE group_id = $1";
const CALLS: &str = "SELECT call_key FROM call WHERE episode_key = $1 ORDER BY call_key";
const BODIES: &str = "body_key IN (SELECT request_body FROM call WHERE call_key = $1 \
    UNION SELECT reply_body FROM call WHERE call_key = $1)";
const SEGMENTS: &str = "SELECT segment_key FROM segment WHERE reel_key IN \
    (SELECT reel_key FROM reel WHERE episode_key = $1) ORDER BY segment_key";
const GROUP_SIZES: &str = "group_id = (SELECT group_id FROM episode WHERE episode_key = $1)";

/// Copies attempts of the store at a location to a new file `to`: one moment of them. The file gets
/// its name when it is whole and synced, not before.
///
/// # Errors
/// [`BackupError`] when there is something at `to`, the store has no such attempt, or the copy
/// cannot be made.
pub async fn extract(
    from: impl Into<Location>,
    which: &ExtractFilter,
    to: &Path,
) -> Result<ExtractReport, BackupError> {
    let from = from.into();
    let new = NewFile::beside(to)?;
    let mut source = Snapshot::open(&from).await?;
    let attempts = which.keys(source.connection()).await?;
    let calls = copy_attempts(source, &attempts, new.path()).await?;
    Ok(ExtractReport { attempts: attempts.len() as u64, calls, bytes: new.keep()? })
}

/// Copies attempts by their keys to a store in the empty file at `path`. Returns their calls.
pub(crate) async fn copy_attempts(
    source: Snapshot,
    attempts: &BTreeSet<i64>,
    path: PathBuf,
) -> Result<u64, BackupError> {
    let local = offload(move || sqlite::open::for_filling(&path)).await??;
    let target = StoreConnection::Offloaded(OffloadedConnection::new(local));
    let mut copy = Copier::between(source, target);
    copy.target.begin().await?;
    let which = "version_key >= $1";
    copy.own(Rows { table: "version", which, key: 0, moved: None }).await?;
    for attempt in attempts {
        copy.attempt(*attempt).await?;
    }
    copy.target.commit().await?;
    copy.check().await?;

    let Copier { source, target, calls, .. } = copy;
    drop(source);
    // The last connection that closes leaves nothing beside the file.
    target.close().await?;
    Ok(calls)
}

impl ExtractFilter {
    /// The keys of the attempts.
    async fn keys(&self, source: &mut StoreConnection) -> Result<BTreeSet<i64>, BackupError> {
        let mut keys = BTreeSet::new();
        for (id, attempt) in &self.episodes {
            let found = query(ATTEMPTS).bind(id.as_str()).bind(*attempt);
            let found = found.scalars::<i64>(source).await?;
            if found.is_empty() {
                return Err(BackupError::Missing(match attempt {
                    Some(attempt) => format!("episode `{id}` attempt {attempt}"),
                    None => format!("episode `{id}`"),
                }));
            }
            keys.extend(found);
        }

        for group in &self.groups {
            let found = query(MEMBERS).bind(group.as_str()).scalars::<i64>(source).await?;
            if found.is_empty() {
                return Err(BackupError::Missing(format!("group `{group}`")));
            }
            keys.extend(found);
        }
        Ok(keys)
    }
}

/// A copy under way.
pub(super) struct Copier {
    source: Snapshot,
    pub(super) target: StoreConnection,
    columns: HashMap<&'static str, Arc<[CopiedColumn]>>,
    calls: u64,
    /// Sealed attempts that were copied.
    sealed: i64,
}

/// Rows to copy.
#[derive(Clone, Copy)]
struct Rows {
    table: &'static str,
    which: &'static str,
    key: i64,
    /// The keys that rows of a segment get, where they are of one: its keys are its own.
    moved: Option<Moved>,
}

/// The keys that rows get in a copy, where those that they have may be of others.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    pub(super) episode_key: i64,
    /// Added to all other keys.
    pub(super) shift: i64,
}

impl Copier {
    pub(super) fn between(source: Snapshot, target: StoreConnection) -> Self {
        Self { source, target, columns: HashMap::new(), calls: 0, sealed: 0 }
    }

    /// Copies the calls of an attempt and what is said of it to another that is there.
    pub(super) async fn contents(&mut self, key: i64, moved: Moved) -> Result<(), BackupError> {
        for table in SAID {
            let moved = Some(moved);
            self.own(Rows { table, which: "episode_key = $1", key, moved }).await?;
        }
        self.calls(key, key, Some(moved)).await
    }

    /// Copies an attempt with all that belongs to it.
    async fn attempt(&mut self, key: i64) -> Result<(), BackupError> {
        for table in OF_EPISODE {
            self.own(Rows { table, which: "episode_key = $1", key, moved: None }).await?;
        }
        self.own(Rows { table: "group_size", which: GROUP_SIZES, key, moved: None }).await?;

        let holder = self.source.holder(key).await?;
        let (there, is_sealed) = (holder.key, holder.is_segment);
        let moved = is_sealed.then(|| {
            self.sealed += 1;
            Moved { episode_key: key, shift: self.sealed << SHIFT_BITS }
        });
        self.calls(key, there, moved).await
    }

    /// Copies the calls of an attempt, whose key is `there` where they are. Larger rows are read
    /// one by one.
    async fn calls(
        &mut self,
        key: i64,
        there: i64,
        moved: Option<Moved>,
    ) -> Result<(), BackupError> {
        let of = |table, which, key| Rows { table, which, key, moved };
        self.held(key, of("reel", "episode_key = $1", there)).await?;
        for segment in self.keys(key, SEGMENTS, there).await? {
            self.held(key, of("segment", "segment_key = $1", segment)).await?;
        }
        for call in self.keys(key, CALLS, there).await? {
            self.calls += 1;
            for table in OF_CALL {
                self.held(key, of(table, "call_key = $1", call)).await?;
            }
            self.held(key, of("body", BODIES, call)).await?;
        }
        Ok(())
    }

    /// Keys of rows of an attempt, where its calls are.
    async fn keys(
        &mut self,
        key: i64,
        select: &'static str,
        there: i64,
    ) -> Result<Vec<i64>, BackupError> {
        let holder = self.source.holder(key).await?;
        Ok(query(select).bind(there).scalars(&mut holder.part.connection).await?)
    }

    /// Copies rows of the store itself.
    async fn own(&mut self, rows: Rows) -> Result<(), BackupError> {
        let columns = self.columns(rows.table).await?;
        let found = rows.select().fetch_all(self.source.connection()).await?;
        Ok(self.write(rows, &columns, found).await?)
    }

    /// Copies rows of an attempt from where its calls are.
    async fn held(&mut self, attempt: i64, rows: Rows) -> Result<(), BackupError> {
        let columns = self.columns(rows.table).await?;
        let holder = self.source.holder(attempt).await?;
        let found = rows.select().fetch_all(&mut holder.part.connection).await?;
        Ok(self.write(rows, &columns, found).await?)
    }

    async fn columns(&mut self, table: &'static str) -> Result<Arc<[CopiedColumn]>, sqlx::Error> {
        if let Some(known) = self.columns.get(table) {
            return Ok(Arc::clone(known));
        }
        let found: Arc<[CopiedColumn]> = columns(&mut self.target, table).await?.into();
        self.columns.insert(table, Arc::clone(&found));
        Ok(found)
    }

    async fn write(
        &mut self,
        rows: Rows,
        columns: &[CopiedColumn],
        found: Vec<Row>,
    ) -> Result<(), sqlx::Error> {
        let names = names(columns);
        let places: Vec<String> = (1..=columns.len()).map(|at| format!("${at}")).collect();
        // The size of a group may have been copied with another attempt.
        let conflict = if rows.table == "group_size" { " ON CONFLICT DO NOTHING" } else { "" };
        let table = rows.table;
        let insert =
            format!("INSERT INTO {table} ({names}) VALUES ({}){conflict}", places.join(", "));
        for row in found {
            let values: Result<Vec<Value>, sqlx::Error> = columns
                .iter()
                .map(|column| column.of(&row).map(|value| rows.moved_value(column, value)))
                .collect();
            query(insert.clone()).bind_all(values?).execute(&mut self.target).await?;
        }
        Ok(())
    }

    /// Checks that nothing refers to a row that was not copied.
    pub(super) async fn check(&mut self) -> Result<(), BackupError> {
        let dangling = query("PRAGMA foreign_key_check").fetch_optional(&mut self.target).await?;
        match dangling {
            Some(row) => Err(BackupError::Needed(row.try_get("table")?)),
            None => Ok(()),
        }
    }
}

impl Rows {
    fn select(&self) -> Query {
        let Self { table, which, key, .. } = self;
        query(format!("SELECT * FROM {table} WHERE {which}")).bind(*key)
    }

    /// The value of a column in the copy.
    fn moved_value(&self, column: &CopiedColumn, value: Value) -> Value {
        let Some(moved) = self.moved else { return value };
        match (column.name.as_str(), value) {
            ("episode_key", _) => moved.episode_key.into(),
            (name, Value::Integer(Some(key)))
                if name.ends_with("_key") || name == "request_body" || name == "reply_body" =>
            {
                (key + moved.shift).into()
            }
            (_, value) => value,
        }
    }
}

fn names(columns: &[CopiedColumn]) -> String {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    names.join(", ")
}

/// A column of a table.
pub(crate) struct CopiedColumn {
    pub(crate) name: String,
    /// As SQLite declares it.
    declared: String,
}

/// The columns of a table of a file.
pub(crate) async fn columns(
    file: &mut StoreConnection,
    table: &str,
) -> Result<Vec<CopiedColumn>, sqlx::Error> {
    let select = query("SELECT name, type FROM pragma_table_info($1) ORDER BY cid").bind(table);
    let rows = select.fetch_all(file).await?;
    let column =
        |row: &Row| Ok(CopiedColumn { name: row.try_get("name")?, declared: row.try_get("type")? });
    rows.iter().map(column).collect()
}

/// The value of a column; none where a segment of an earlier version lacks it.
fn if_there<T>(read: Result<Option<T>, sqlx::Error>) -> Result<Option<T>, sqlx::Error> {
    match read {
        Err(sqlx::Error::ColumnNotFound(_)) => Ok(None),
        read => read,
    }
}

impl CopiedColumn {
    /// The value of the column in a row of either database.
    pub(crate) fn of(&self, row: &Row) -> Result<Value, sqlx::Error> {
        let name = self.name.as_str();
        Ok(match self.declared.as_str() {
            "INTEGER" => Value::Integer(if_there(row.try_get(name))?),
            "REAL" => Value::Real(if_there(row.try_get(name))?),
            "TEXT" => Value::Text(if_there(row.try_get(name))?),
            _ => Value::Bytes(if_there(row.try_get(name))?),
        })
    }
}

#[cfg(test)]
mod tests {
    use episode::{Annotation, AttemptId, Call, CallId, Reward, RewardScope};

    use super::*;
    use crate::site::{Site, on_both};
    use crate::tests::{begun, comment, ended};
    use crate::{ApiKeyRecord, Budget, Selection, Snapshot, Store, VersionRecord, open, verify};

    /// Records four calls of an attempt, each with the history before it, the last without an end.
    async fn talk(store: &Store, episode: &str, attempt: u32) -> CallId {
        let mut last = CallId(uuid::Uuid::nil());
        for turn in 0..4 {
            let said = "what was said before; ".repeat(20 * (turn + 1));
            let mut begun = begun(episode, turn as i64);
            begun.tag.attempt = attempt;
            begun.tag.group = Some(if episode == "c" { "h" } else { "g" }.parse().unwrap());
            begun.request = format!("{episode}: {said}").into();
            let mut end = ended(begun.call_id);
            end.prompts[0] = (0..600 + 40 * turn as u32).collect();
            last = begun.call_id;
            store.begin(begun).await.done().await.unwrap();
            if turn < 3 {
                store.end(end).await.done().await.unwrap();
            }
        }
        last
    }

    /// Three episodes, one of them with two attempts, and all that can be said of one.
    async fn filled(site: &Site) {
        let (store, writer) = site.open().await;
        for (episode, attempt) in [("a", 0), ("b", 0), ("b", 1), ("c", 0)] {
            let call = talk(&store, episode, attempt).await;
            let id: AttemptId = format!("{episode}/{attempt}").parse().unwrap();
            let reward = Reward {
                scope: RewardScope::Episode,
                name: "reward".into(),
                value: Some(0.25),
                source: "test".into(),
                at: 6,
                provenance: episode::Provenance::default(),
            };
            store.reward(id.clone(), reward).await.unwrap();
            let annotation = Annotation {
                call,
                choice: 0,
                name: "trainer_logprobs".into(),
                version: "7".into(),
                start: 0,
                values: vec![-0.5, 0.0],
                at: 6,
            };
            store.annotate(vec![annotation]).await.unwrap();
            let comment = comment(Some(call), Some("good"), Some(0.5));
            store.comment(vec![(id, comment)]).await.unwrap();
        }
        let attempt: AttemptId = "c/0".parse().unwrap();
        let budget = Budget::default();
        let key = ApiKeyRecord { id: "k".into(), attempt, made_at: 1, expires_at: 100, budget };
        store.add_key(key).await.unwrap();
        let version = VersionRecord { label: "3".into(), ..VersionRecord::default() };
        store.version(version).await.unwrap();
        store.probe().await.unwrap();
        drop(store);
        writer.finish().await;
    }

    /// All that is recorded of the attempts of a store, by their names.
    async fn recorded(snapshot: &mut Snapshot) -> Vec<(String, Vec<Call>, String)> {
        let mut found = Vec::new();
        for record in snapshot.episodes(&Selection::default()).await.unwrap() {
            let calls = snapshot.calls(&record).await.unwrap();
            let rewards = snapshot.rewards(&record).await.unwrap();
            let annotations = snapshot.annotations(&record).await.unwrap();
            let name = format!("{}/{}", record.id, record.attempt);
            let comments = snapshot.comments(&record).await.unwrap();
            let said = format!("{record:?} {rewards:?} {annotations:?} {comments:?}");
            found.push((name, calls, said));
        }
        found
    }

    fn of_episode(id: &str, attempt: Option<u32>) -> ExtractFilter {
        let episodes = vec![(id.parse().unwrap(), attempt)];
        ExtractFilter { episodes, ..ExtractFilter::default() }
    }

    #[tokio::test]
    async fn a_copy_has_these_attempts_and_all_of_them() {
        on_both(async |site| {
            filled(&site).await;
            let folder = tempfile::tempdir().unwrap();
            let mut all = recorded(&mut site.snapshot().await).await;
            all.retain(|(name, ..)| name == "b/1" || name == "c/0");

            let to = folder.path().join("some.db");
            let mut which = of_episode("b", Some(1));
            which.groups.push("h".parse().unwrap());
            let report = extract(&site.at, &which, &to).await.unwrap();
            assert_eq!((report.attempts, report.calls), (2, 8));
            assert_eq!(report.bytes, to.metadata().unwrap().len());
            let left = folder.path().read_dir().unwrap().flatten();
            assert_eq!(left.map(|file| file.path()).collect::<Vec<_>>(), std::slice::from_ref(&to));

            let mut snapshot = Snapshot::open(&to).await.unwrap();
            assert_eq!(recorded(&mut snapshot).await, all);
            assert_eq!(snapshot.versions().await.unwrap().len(), 1);
            assert!(verify(&to).await.unwrap().is_clean());
        })
        .await;
    }

    #[tokio::test]
    async fn the_servers_own_rows_stay_with_it() {
        on_both(async |site| {
            filled(&site).await;
            let folder = tempfile::tempdir().unwrap();
            let to = folder.path().join("some.db");
            extract(&site.at, &of_episode("c", None), &to).await.unwrap();

            let mut copy = open::for_reading(&to.into()).await.unwrap();
            for table in ["api_key", "consumer", "delivery", "admission", "admitted"] {
                let count = query(format!("SELECT count(*) FROM {table}"));
                assert_eq!(count.scalar::<i64>(&mut copy).await.unwrap(), 0, "{table}");
            }
            let settings = query("SELECT name FROM setting ORDER BY name");
            let settings = settings.scalars::<String>(&mut copy).await.unwrap();
            assert_eq!(settings, ["self_contained", "store_id"], "which every new store has");
        })
        .await;
    }

    #[tokio::test]
    async fn a_copy_is_a_store_that_is_recorded_to() {
        let site = Site::file();
        filled(&site).await;
        let folder = tempfile::tempdir().unwrap();
        let copy = Site::at(folder.path().join("some.db"));
        let Location::File(to) = &copy.at else { unreachable!() };
        extract(&site.at, &of_episode("a", None), to).await.unwrap();

        let (store, writer) = copy.open().await;
        talk(&store, "a", 0).await;
        talk(&store, "new", 0).await;
        drop(store);
        writer.finish().await;
        let counts = recorded(&mut copy.snapshot().await).await;
        let counts: Vec<usize> = counts.iter().map(|(_, calls, _)| calls.len()).collect();
        assert_eq!(counts, [8, 4]);
        assert!(verify(&copy.at).await.unwrap().is_clean());
    }

    #[tokio::test]
    async fn what_is_not_there_is_told_and_leaves_nothing() {
        let site = Site::file();
        filled(&site).await;
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("some.db");
        let refused = extract(&site.at, &of_episode("a", Some(7)), &to).await.unwrap_err();
        assert_eq!(refused.to_string(), "the store has no episode `a` attempt 7");
        let groups = vec!["none".parse().unwrap()];
        let which = ExtractFilter { groups, ..ExtractFilter::default() };
        let refused = extract(&site.at, &which, &to).await.unwrap_err();
        assert_eq!(refused.to_string(), "the store has no group `none`");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[tokio::test]
    async fn an_attempt_is_not_torn_from_what_it_is_based_on() {
        let site = Site::file();
        filled(&site).await;
        let mut connection = open::for_editing(&site.at).await.unwrap();
        let leans = "UPDATE prompt SET parent_key = (SELECT max(call_key) FROM call), \
                     parent_choice = 0 WHERE call_key = (SELECT min(call_key) FROM call)";
        query(leans).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();

        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("some.db");
        let refused = extract(&site.at, &of_episode("a", None), &to).await;
        assert!(matches!(refused, Err(BackupError::Needed(table)) if table == "prompt"));
        assert!(!to.exists());
    }
}
