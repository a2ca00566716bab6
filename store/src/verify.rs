//! Checking a store: the database's own checks, then every row against what its neighbors say of
//! it.
//!
//! Damage is named and stepped over. Memory is bounded by the largest episode.

use std::fmt::{self, Display};

use crate::link::Link;
use crate::location::Location;
use crate::query::query;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::verify_episode::Examined;

/// What is named in one report of each kind; what is beyond is counted.
const NAMED_MAX: usize = 1000;
/// What one check of the whole store names.
const NAMED_AT_ONCE: i64 = 100;
/// Length of the secret that keys are signed with, in bytes.
const SECRET_BYTES: i64 = 32;

/// What a check of a whole store found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Attempts at episodes.
    pub episodes: u64,
    /// Calls.
    pub calls: u64,
    /// Request and reply bodies, each compared with its hash where it has one.
    pub bodies: u64,
    /// Prompts, each put together and compared with its hash where it has one.
    pub prompts: u64,
    /// Choices.
    pub choices: u64,
    /// Stretches of reels.
    pub segments: u64,
    /// Calls without an end: they run still, or the recorder died with them. No damage. The first
    /// thousand.
    pub holes: Vec<Place>,
    /// Calls without an end, those that are not named included.
    pub holes_found: u64,
    /// What is broken. The first thousand.
    pub damage: Vec<Damage>,
    /// How much is broken, what is not named included.
    pub damage_found: u64,
}

/// A place in a store, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Episode and attempt.
    pub episode: Option<(String, i64)>,
    /// The call.
    pub call: Option<String>,
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Where.
    pub place: Place,
    /// What is wrong, in words.
    pub what: String,
}

impl Verified {
    /// Whether nothing is broken.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damage_found == 0
    }

    pub(crate) fn broken(&mut self, place: Place, what: String) {
        self.damage_found += 1;
        if self.damage.len() < NAMED_MAX {
            self.damage.push(Damage { place, what });
        }
    }

    pub(crate) fn hole(&mut self, place: Place) {
        self.holes_found += 1;
        if self.holes.len() < NAMED_MAX {
            self.holes.push(place);
        }
    }

    fn store(&mut self, what: impl Into<String>) {
        self.broken(Place::default(), what.into());
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.episode {
            None => f.write_str("the store")?,
            Some((id, attempt)) => write!(f, "episode `{id}` attempt {attempt}")?,
        }
        self.call.as_ref().map_or(Ok(()), |call| write!(f, ", call `{call}`"))
    }
}

impl Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Checks the store that is `at` a place, which may be written to meanwhile: what is checked is
/// one moment.
///
/// # Errors
/// [`SnapshotError`] when there is no store, or it is too damaged to be opened at all.
pub async fn verify(at: impl Into<Location>) -> Result<Verified, SnapshotError> {
    let mut snapshot = Snapshot::open(at).await?;
    let mut report = Verified::default();
    // The pages of a server are the server's to check.
    if let Link::File(_) | Link::Near(_) = snapshot.connection() {
        check_file(&mut snapshot, &mut report).await;
    }
    check_references(&mut snapshot, &mut report).await;
    check_strays(&mut snapshot, &mut report).await;
    let episodes = "SELECT episode_key FROM episode ORDER BY episode_key";
    let keys = match query(episodes).scalars::<i64>(snapshot.connection()).await {
        Ok(keys) => keys,
        Err(error) => {
            report.store(format!("its episodes cannot be listed: {error}"));
            return Ok(report);
        }
    };
    for key in keys {
        report.episodes += 1;
        Examined::new(snapshot.connection(), &mut report, key).examine().await;
    }
    Ok(report)
}

/// What SQLite itself says of pages and indexes.
async fn check_file(snapshot: &mut Snapshot, report: &mut Verified) {
    let pages = format!("PRAGMA integrity_check({NAMED_AT_ONCE})");
    match query(pages).scalars::<String>(snapshot.connection()).await {
        Err(error) => report.store(format!("SQLite cannot check it: {error}")),
        Ok(lines) => lines.iter().filter(|line| *line != "ok").for_each(|line| {
            report.store(format!("SQLite says: {}", line.replace('\n', ", ")));
        }),
    }
}

/// What points at what: table, its key, the column that points, the table that it points at.
const REFERENCES: [[&str; 4]; 15] = [
    ["label", "label_key", "episode_key", "episode"],
    ["mark", "writer", "episode_key", "episode"],
    ["reel", "reel_key", "episode_key", "episode"],
    ["reward", "reward_key", "episode_key", "episode"],
    ["call", "call_key", "episode_key", "episode"],
    ["call", "call_key", "request_body", "body"],
    ["call", "call_key", "reply_body", "body"],
    ["call", "call_key", "reel_key", "reel"],
    ["segment", "segment_key", "reel_key", "reel"],
    ["body", "body_key", "reel_key", "reel"],
    ["body", "body_key", "base_key", "body"],
    ["prompt", "call_key", "call_key", "call"],
    ["prompt", "call_key", "parent_key", "call"],
    ["choice", "choice_key", "call_key", "call"],
    ["side", "call_key", "call_key", "call"],
];

/// What points at nothing. The databases check most of it themselves when it is written.
async fn check_references(snapshot: &mut Snapshot, report: &mut Verified) {
    for [table, key, column, parent] in REFERENCES {
        let lost = format!(
            "SELECT c.{key} FROM {table} c LEFT JOIN {parent} p ON p.{parent}_key = c.{column} \
             WHERE c.{column} IS NOT NULL AND p.{parent}_key IS NULL ORDER BY 1 \
             LIMIT {NAMED_AT_ONCE}"
        );
        match query(lost).scalars::<i64>(snapshot.connection()).await {
            Err(error) => report.store(format!("what its `{table}` points at is unknown: {error}")),
            Ok(keys) => keys.iter().for_each(|key| {
                report.store(format!("`{table}` {key} points at a `{parent}` that is not there"));
            }),
        }
    }
}

/// What belongs to nothing, and what belongs to the store as a whole.
async fn check_strays(snapshot: &mut Snapshot, report: &mut Verified) {
    let strays = "SELECT body_key FROM body EXCEPT SELECT request_body FROM call \
                  EXCEPT SELECT reply_body FROM call ORDER BY 1 LIMIT $1";
    match query(strays).bind(NAMED_AT_ONCE).scalars::<i64>(snapshot.connection()).await {
        Err(error) => report.store(format!("its bodies cannot be listed: {error}")),
        Ok(keys) => keys.iter().for_each(|key| {
            report.store(format!("`body` {key} belongs to no call: a call is lost"));
        }),
    }
    let secret = "SELECT CAST(length(value) AS BIGINT) FROM setting WHERE name = 'key'";
    match query(secret).scalars::<i64>(snapshot.connection()).await.as_deref() {
        Ok([SECRET_BYTES]) => {}
        Err(error) => report.store(format!("its settings cannot be read: {error}")),
        Ok(_) => report.store("the secret in `setting` that API keys are signed with is lost"),
    }
}

#[cfg(test)]
mod tests;
