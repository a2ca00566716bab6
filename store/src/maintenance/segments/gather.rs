//! A store that is made of segments alone: it knows their attempts and finds their calls in them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use episode::ChainHead;
use tempfile::NamedTempFile;

use crate::chain;
use crate::database::connection::StoreConnection;
use crate::database::offloaded::{OffloadedConnection, offload};
use crate::database::query::query;
use crate::database::row::Row;
use crate::database::value::Value;
use crate::location::Location;
use crate::maintenance::extract::{CopiedColumn, columns};
use crate::maintenance::segments::SegmentError;
use crate::maintenance::segments::files::add_file;
use crate::maintenance::segments::late::{LATE, LateKind};
use crate::maintenance::segments::seal::LAST_CALL_FAILED;
use crate::snapshot::away;
use crate::snapshot::catalog::{CatalogEntry, EntryKind, SegmentFolder};
use crate::snapshot::summary::{BY_ATTEMPT, COUNTS};
use crate::sqlite;

/// A file of a catalog that is at hand.
#[derive(Debug, Clone)]
pub struct SegmentAtHand {
    /// Its entry.
    pub entry: CatalogEntry,
    /// The folder that the file is in.
    pub folder: PathBuf,
}

/// A store of segments. Its own file is removed when this is dropped.
#[derive(Debug)]
pub struct GatheredStore {
    file: NamedTempFile,
}

/// Further numbers that are counted of an attempt.
const TIMES: [&str; 3] = ["completion_tokens", "last_call_at", "last_call_failed"];
/// Tables of what is said of an attempt, and their own keys.
const OF_ATTEMPT: [(&str, &[&str]); 3] =
    [("label", &["label_key"]), ("reward", &["reward_key"]), ("comment", &["comment_key"])];
/// Attempts that are sealed later may have lower positions.
const SET_GATHERED: &str = "INSERT INTO setting (name, value) VALUES ('gathered', $1)";
const FORGET_ID: &str = "DELETE FROM setting WHERE name = 'store_id'";
const SET_ID: &str = "INSERT INTO setting (name, value) VALUES ('store_id', $1)";
const FORGET: [&str; 6] = [
    "DELETE FROM comment WHERE episode_key = $1",
    "DELETE FROM sealed WHERE episode_key = $1",
    "DELETE FROM reward WHERE episode_key = $1",
    "DELETE FROM label WHERE episode_key = $1",
    "DELETE FROM finished WHERE episode_key = $1",
    "DELETE FROM episode WHERE episode_key = $1",
];

impl GatheredStore {
    /// Gathers the attempts of segments. Of an attempt that two segments of one store hold, the
    /// later one counts.
    ///
    /// # Errors
    /// [`SegmentError`] when a file cannot be read, or two stores have an attempt of one name.
    pub async fn of(files: &[SegmentAtHand]) -> Result<Self, SegmentError> {
        let file = NamedTempFile::new().map_err(SegmentError::io(std::env::temp_dir()))?;
        let path = file.path().to_owned();
        let local = offload(move || sqlite::open::for_filling(&path)).await??;
        let target = StoreConnection::Offloaded(OffloadedConnection::new(local));

        let stores: HashSet<&str> = files.iter().map(|file| file.entry.store.as_str()).collect();
        let mut gathering = Gathering {
            target,
            columns: HashMap::new(),
            known: HashMap::new(),
            last_key: 0,
            keeps_positions: stores.len() <= 1,
        };
        gathering.target.begin().await?;
        gathering.keep_id(stores.iter().next().filter(|_| stores.len() == 1)).await?;
        for file in files.iter().filter(|file| file.entry.kind == EntryKind::Attempts) {
            gathering.add_segment(file).await?;
        }
        for late in &LATE {
            let mut taken = HashSet::new();
            for file in files.iter().filter(|file| file.entry.kind == late.kind) {
                gathering.add_late(late, file, &mut taken).await?;
            }
        }
        gathering.target.commit().await?;
        gathering.target.close().await?;
        Ok(Self { file })
    }

    /// The location of the store.
    pub fn location(&self) -> Location {
        self.file.path().into()
    }
}

/// An attempt that was gathered.
struct KnownAttempt {
    key: i64,
    store: String,
}

/// The keys of an attempt and of the segment that holds its calls.
struct SealedKeys {
    key: i64,
    file_key: i64,
}

/// A gathering under way.
struct Gathering {
    target: StoreConnection,
    columns: HashMap<&'static str, Vec<CopiedColumn>>,
    known: HashMap<(String, i64), KnownAttempt>,
    last_key: i64,
    /// True where all segments are of one store, whose positions stay.
    keeps_positions: bool,
}

impl Gathering {
    /// Keeps the id of the one store whose positions stay, if there is one.
    async fn keep_id(&mut self, store: Option<&&str>) -> Result<(), SegmentError> {
        query(SET_GATHERED).bind(vec![1_u8]).execute(&mut self.target).await?;
        query(FORGET_ID).execute(&mut self.target).await?;
        if let Some(store) = store {
            query(SET_ID).bind(store.as_bytes().to_vec()).execute(&mut self.target).await?;
        }
        Ok(())
    }

    async fn add_segment(&mut self, file: &SegmentAtHand) -> Result<(), SegmentError> {
        let path = file.path();
        let folder = SegmentFolder::at(&file.folder);
        if file.entry.is_empty() {
            return add_file(&mut self.target, &folder, &file.entry, 0).await.map(drop);
        }
        folder.checked(&file.entry).await?;
        let file_key = add_file(&mut self.target, &folder, &file.entry, 0).await?;

        let mut segment = away::open_segment(&path, false).await?;
        self.copy(&mut segment, Copy::all("group_size")).await?;
        self.add_versions(&mut segment).await?;
        let attempts = "SELECT episode_key, episode_id, attempt FROM episode ORDER BY episode_key";
        for row in query(attempts).fetch_all(&mut segment).await? {
            self.add_attempt(&mut segment, &row, file_key, &file.entry.store).await?;
        }
        Ok(())
    }

    async fn add_attempt(
        &mut self,
        segment: &mut StoreConnection,
        row: &Row,
        file_key: i64,
        store: &str,
    ) -> Result<(), SegmentError> {
        let there: i64 = row.try_get("episode_key")?;
        let name: (String, i64) = (row.try_get("episode_id")?, row.try_get("attempt")?);
        if let Some(known) = self.known.get(&name) {
            if known.store != store {
                return Err(SegmentError::TwoStores(name.0, name.1));
            }
            let key = known.key;
            for forget in FORGET {
                query(forget).bind(key).execute(&mut self.target).await?;
            }
        }

        // Keys of the store that was sealed may be those of others by now.
        self.last_key += 1;
        let key = self.last_key;
        self.known.insert(name, KnownAttempt { key, store: store.to_owned() });
        let of = |table| Copy { table, there: Some(there), own: Some(key), drops: &[] };
        self.copy(segment, of("episode")).await?;
        for (table, drops) in OF_ATTEMPT {
            self.copy(segment, Copy { drops, ..of(table) }).await?;
        }
        let drops: &[&str] = if self.keeps_positions { &[] } else { &["position"] };
        self.copy(segment, Copy { drops, ..of("finished") }).await?;

        let counts = query(format!(
            "SELECT counted.*, {LAST_CALL_FAILED} AS last_call_failed \
             FROM ({COUNTS} e.episode_key = $1 {BY_ATTEMPT}) AS counted"
        ));
        let counts = counts.bind(there);
        let counts = counts.fetch_one(segment).await?;
        let chain = chain::head(segment, there).await?;
        self.add_sealed(SealedKeys { key, file_key }, &counts, chain).await
    }

    async fn add_sealed(
        &mut self,
        keys: SealedKeys,
        counts: &Row,
        chain: ChainHead,
    ) -> Result<(), SegmentError> {
        let insert = "INSERT INTO sealed (episode_key, segment_file_key, reward_key, calls, \
            generations, with_ids, incomplete, refused, prompt_tokens, completion_tokens, \
            last_call_at, last_call_failed, model, chain_calls, chain) \
            VALUES ($1, $2, 0, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
        let mut values = vec![Value::from(keys.key), Value::from(keys.file_key)];
        let names = ["calls", "generations", "with_ids", "incomplete", "refused", "prompt_tokens"];
        for name in names.into_iter().chain(TIMES) {
            values.push(Value::Integer(counts.try_get(name)?));
        }
        values.push(Value::Text(counts.try_get("model")?));
        values.push(Value::from(chain.calls as i64));
        values.push(Value::from(chain.digest.to_vec()));
        Ok(query(insert).bind_all(values).execute(&mut self.target).await?)
    }

    /// Versions that no earlier segment had.
    async fn add_versions(&mut self, segment: &mut StoreConnection) -> Result<(), SegmentError> {
        let known = "SELECT label, checksum FROM version";
        let mut seen = HashSet::new();
        for row in query(known).fetch_all(&mut self.target).await? {
            seen.insert(version_of(&row)?);
        }
        let all = "SELECT version_key, label, checksum FROM version ORDER BY version_key";
        for row in query(all).fetch_all(segment).await? {
            if seen.insert(version_of(&row)?) {
                let there = Some(row.try_get("version_key")?);
                let drops = &["version_key"];
                self.copy(segment, Copy { table: "version", there, own: None, drops }).await?;
            }
        }
        Ok(())
    }

    async fn add_late(
        &mut self,
        late: &LateKind,
        file: &SegmentAtHand,
        taken: &mut HashSet<(String, String, i64, i64)>,
    ) -> Result<(), SegmentError> {
        let path = file.path();
        if file.entry.is_empty() {
            return Ok(());
        }
        file.entry.check(&path)?;
        let lines = File::open(&path).map_err(SegmentError::io(&path))?;
        for line in BufReader::new(lines).lines() {
            let line = line.map_err(SegmentError::io(&path))?;
            let row = late.read(&line);
            let row = row.map_err(|why| SegmentError::entry(&path, why))?;
            let store = file.entry.store.clone();
            if taken.insert((store, row.episode.clone(), row.attempt, row.key)) {
                late.add(row, &mut self.target).await?;
            }
        }
        Ok(())
    }

    /// Copies rows of a table under another key of their attempt.
    async fn copy(&mut self, from: &mut StoreConnection, copy: Copy) -> Result<(), sqlx::Error> {
        let Copy { table, there, own, drops } = copy;
        if !self.columns.contains_key(table) {
            let found = columns(&mut self.target, table).await?;
            self.columns.insert(table, found);
        }
        let columns: Vec<&CopiedColumn> = self.columns[table]
            .iter()
            .filter(|column| !drops.contains(&column.name.as_str()))
            .collect();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let places: Vec<String> = (1..=columns.len()).map(|at| format!("${at}")).collect();

        let key = if own.is_some() { "episode_key" } else { "version_key" };
        let condition = if there.is_some() { format!("{key} = $1") } else { "true".to_owned() };
        let select = format!("SELECT * FROM {table} WHERE {condition}");
        let select = if drops.is_empty() {
            select
        } else {
            // In the order in which they were given.
            format!("{select} ORDER BY {}", drops[0])
        };
        let insert = format!(
            "INSERT INTO {table} ({}) VALUES ({}) ON CONFLICT DO NOTHING",
            names.join(", "),
            places.join(", ")
        );
        let select = query(select);
        let select = if let Some(there) = there { select.bind(there) } else { select };
        for row in select.fetch_all(from).await? {
            let value = |column: &&CopiedColumn| match (own, column.name.as_str()) {
                (Some(own), "episode_key") => Ok(Value::from(own)),
                _ => column.of(&row),
            };
            let values: Result<Vec<Value>, sqlx::Error> = columns.iter().map(value).collect();
            query(insert.clone()).bind_all(values?).execute(&mut self.target).await?;
        }
        Ok(())
    }
}

fn version_of(row: &Row) -> Result<(String, Option<String>), sqlx::Error> {
    Ok((row.try_get("label")?, row.try_get("checksum")?))
}

/// Rows to copy.
struct Copy {
    table: &'static str,
    /// The key of their attempt, or their own, where they are; `None` for all rows.
    there: Option<i64>,
    /// The key of their attempt in the copy.
    own: Option<i64>,
    /// Columns that are not copied. Rows come in the order of the first.
    drops: &'static [&'static str],
}

impl Copy {
    fn all(table: &'static str) -> Self {
        Self { table, there: None, own: None, drops: &[] }
    }
}

impl SegmentAtHand {
    fn path(&self) -> PathBuf {
        Path::new(&self.folder).join(&self.entry.file)
    }
}
