//! The feed, written: what is handed out to whom, and what became of it. One transaction each.
//!
//! Attempts that are closed are numbered in that order, those with calls under way when these have
//! ended; a consumer has a row for each that it was ever handed. Several processes may hand out of
//! one database: whoever writes here holds a lock of the database's until its transaction ends, so
//! that positions show in their order and nothing is handed out twice.

use episode::{EpisodeId, Micros};

use crate::commit::{CommitError, Verdict};
use crate::fields::Row;
use crate::link::Link;
use crate::query::query;

/// Held by whoever writes to the feed. Numbers above are those of writers.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1383034988, -1)";

/// Attempts that are handed out together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// The last position of its attempts, by which it is told from others.
    pub position: i64,
    /// The store's keys of the attempts, in the order of their positions.
    pub keys: Vec<i64>,
    /// Those that were handed out together with these before and are not handed out now.
    pub peers: Vec<i64>,
    /// How many there were when they were handed out first. Fewer keys and peers than that mean
    /// that some were pruned.
    pub size: usize,
    /// Whether it is a group that was not complete in time.
    pub late: bool,
}

/// Items that are to be held for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What its reader calls it.
    pub id: String,
    /// For whom.
    pub consumer: String,
    /// What it holds.
    pub items: Vec<Item>,
    /// When it ends.
    pub until: Micros,
    /// The time.
    pub at: Micros,
}

/// What becomes of what a lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is done.
    Acked,
    /// Its reader gives it back, to be handed out again from this time on.
    Returned(Micros),
    /// It was not sent; it is handed out again.
    Unsent,
    /// It is held until this time.
    Renewed(Micros),
    /// It is not for this consumer, for this reason.
    Dropped(&'static str),
}

/// Which of the attempts that a lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// All of them.
    All,
    /// These, by the store's keys.
    Keys(Vec<i64>),
    /// These, by their names.
    Episodes(Vec<(EpisodeId, u32)>),
}

/// A statement about a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub lease: String,
    /// What of it.
    pub held: Held,
    /// What becomes of that.
    pub fate: Fate,
    /// The time.
    pub at: Micros,
}

/// What is written to the feed.
#[derive(Debug, Clone)]
pub(crate) enum FeedRecord {
    /// A consumer begins behind this position, if it is new.
    Begin(String, i64),
    Lease(Lease),
    Settle(Settlement),
    /// Attempts that wait no longer, by their keys, and when they were finished.
    Finish(Vec<(i64, Micros)>),
}

/// Writes a record of the feed.
pub(crate) async fn write_feed(link: &mut Link, record: &FeedRecord) -> Verdict {
    lock(link).await?;
    match record {
        FeedRecord::Begin(consumer, floor) => {
            let new = "INSERT INTO consumer (consumer, floor) VALUES ($1, $2) \
                       ON CONFLICT DO NOTHING";
            Ok(query(new).bind(consumer).bind(*floor).execute(link).await?)
        }
        FeedRecord::Lease(lease) => write_lease(link, lease).await,
        FeedRecord::Settle(settlement) => settle(link, settlement).await,
        FeedRecord::Finish(attempts) => Ok(finish_waiting(link, attempts).await?),
    }
}

/// Gives an attempt that was closed its position. One with calls under way has none yet: a reader
/// who passes a position does not come back to it.
pub(crate) async fn finish(link: &mut Link, key: i64) -> Result<(), sqlx::Error> {
    lock(link).await?;
    let waits = "INSERT INTO waiting (episode_key) SELECT e.episode_key FROM episode e \
        WHERE e.episode_key = $1 AND EXISTS (SELECT 1 FROM call c \
            WHERE c.episode_key = e.episode_key AND c.outcome IS NULL) \
        AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.episode_key = e.episode_key) \
        ON CONFLICT DO NOTHING";
    query(waits).bind(key).execute(link).await?;
    number(link, key, None).await
}

async fn finish_waiting(link: &mut Link, attempts: &[(i64, Micros)]) -> Result<(), sqlx::Error> {
    for (key, at) in attempts {
        query("DELETE FROM waiting WHERE episode_key = $1").bind(*key).execute(link).await?;
        number(link, *key, Some(*at)).await?;
    }
    Ok(())
}

/// Gives an attempt that does not wait its position, if it has none.
async fn number(link: &mut Link, key: i64, at: Option<Micros>) -> Result<(), sqlx::Error> {
    let finished = "INSERT INTO finished (episode_key, finished_at) \
        SELECT e.episode_key, coalesce($2, e.closed_at) FROM episode e \
        WHERE e.episode_key = $1 \
        AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.episode_key = e.episode_key) \
        AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.episode_key = e.episode_key)";
    query(finished).bind(key).bind(at).execute(link).await
}

async fn lock(link: &mut Link) -> Result<(), sqlx::Error> {
    match link {
        Link::Server(_) => query(LOCK).execute(link).await,
        Link::File(_) | Link::Near(_) => Ok(()),
    }
}

/// All of it or nothing: what another reader took meanwhile refuses the whole.
async fn write_lease(link: &mut Link, lease: &Lease) -> Verdict {
    let mut again = 0;
    for key in lease.items.iter().flat_map(|item| &item.keys) {
        let free = "SELECT d.episode_key IS NOT NULL AS again FROM finished f \
            LEFT JOIN delivery d ON d.consumer = $1 AND d.episode_key = f.episode_key \
            WHERE f.episode_key = $2 AND (d.episode_key IS NULL OR d.free_at <= $3)";
        let free = query(free).bind(&lease.consumer).bind(*key).bind(lease.at);
        let row = free.fetch_optional(link).await?.ok_or(CommitError::Taken)?;
        again += i64::from(row.first::<bool>()?);
    }
    let mut all = 0;
    for item in &lease.items {
        for key in &item.keys {
            all += 1;
            // With whom it was handed out first, it stays.
            let held = "INSERT INTO delivery (consumer, episode_key, item, item_size, lease, \
                free_at, state, changed_at) VALUES ($1, $2, $3, $4, $5, $6, 'leased', $7) \
                ON CONFLICT (consumer, episode_key) DO UPDATE SET lease = excluded.lease, \
                free_at = excluded.free_at, state = 'leased', changed_at = excluded.changed_at";
            let held = query(held).bind(&lease.consumer).bind(*key).bind(item.position);
            let held = held.bind(item.size as i64).bind(&lease.id).bind(lease.until);
            held.bind(lease.at).execute(link).await?;
        }
    }
    count(link, &lease.consumer, ("delivered", all)).await?;
    Ok(count(link, &lease.consumer, ("redelivered", again)).await?)
}

/// Who holds what a lease took and never sent: nobody. Its reader cannot speak of that; no path of
/// a request can name it.
fn unsent(lease: &str) -> String {
    format!("unsent from {lease}")
}

async fn settle(link: &mut Link, settlement: &Settlement) -> Verdict {
    let Settlement { lease, fate, at, .. } = settlement;
    if lease.is_empty() {
        // What was given back unsent is under this name where an earlier version wrote it.
        return Err(CommitError::NoLease(String::new()));
    }
    let Spoken { consumer, open } = spoken(link, settlement).await?;
    let (state, free_at) = fate.state(*at);
    let holder = if *fate == Fate::Unsent { unsent(lease) } else { lease.clone() };
    for key in &open {
        let now = "UPDATE delivery SET lease = $3, state = $4, free_at = $5, changed_at = $6 \
                   WHERE consumer = $1 AND episode_key = $2";
        let now = query(now).bind(&consumer).bind(*key).bind(&holder).bind(&state);
        now.bind(free_at).bind(*at).execute(link).await?;
    }
    if let Some(what) = fate.counted() {
        count(link, &consumer, (&what, open.len() as i64)).await?;
    }
    if free_at.is_none() { Ok(raise_floor(link, &consumer).await?) } else { Ok(()) }
}

/// What a settlement speaks of.
struct Spoken {
    consumer: String,
    /// The attempts that are not settled.
    open: Vec<i64>,
}

/// Finds what a settlement speaks of. Who speaks of all of a lease does not speak of what was given
/// back out of it.
async fn spoken(link: &mut Link, settlement: &Settlement) -> Result<Spoken, CommitError> {
    let Settlement { lease, held, fate, .. } = settlement;
    let rows = query("SELECT consumer, episode_key, free_at, state FROM delivery WHERE lease = $1")
        .bind(lease)
        .fetch_all(link)
        .await?;
    let named = keys(link, held).await?;
    let (mut consumer, mut open) = (None, Vec::new());
    for row in &rows {
        let key: i64 = row.try_get("episode_key")?;
        let is_back = named.is_none() && row.try_get::<String>("state")? == "returned";
        let is_held = match fate {
            // Said again.
            Fate::Returned(_) => true,
            _ => !is_back,
        };
        if is_held && named.as_ref().is_none_or(|named| named.contains(&key)) {
            consumer = Some(row.try_get::<String>("consumer")?);
            let free_at = row.try_get::<Option<Micros>>("free_at")?;
            open.extend(free_at.filter(|_| !is_back).map(|_| key));
        }
    }
    let consumer = consumer.ok_or_else(|| CommitError::NoLease(lease.clone()))?;
    Ok(Spoken { consumer, open })
}

impl Item {
    /// Attempts that were never handed out, by their keys in the order of their positions.
    pub fn new(position: i64, keys: Vec<i64>) -> Self {
        let size = keys.len();
        Self { position, keys, size, ..Self::default() }
    }
}

impl Fate {
    /// The state that it leads to, and when the attempt is free again.
    fn state(&self, at: Micros) -> (String, Option<Micros>) {
        match self {
            Self::Acked => ("acked".to_owned(), None),
            Self::Returned(free_at) => ("returned".to_owned(), Some(*free_at)),
            Self::Unsent => ("returned".to_owned(), Some(at)),
            Self::Renewed(until) => ("leased".to_owned(), Some(*until)),
            Self::Dropped(why) => (format!("dropped:{why}"), None),
        }
    }

    /// What it is counted as.
    fn counted(&self) -> Option<String> {
        match self {
            Self::Acked => Some("acked".to_owned()),
            Self::Returned(_) => Some("nacked".to_owned()),
            Self::Dropped(why) => Some(format!("dropped:{why}")),
            Self::Unsent | Self::Renewed(_) => None,
        }
    }
}

/// The keys that are named; none where all are.
async fn keys(link: &mut Link, held: &Held) -> Result<Option<Vec<i64>>, CommitError> {
    let episodes = match held {
        Held::All => return Ok(None),
        Held::Keys(keys) => return Ok(Some(keys.clone())),
        Held::Episodes(episodes) => episodes,
    };
    let mut keys = Vec::with_capacity(episodes.len());
    for (episode, attempt) in episodes {
        let key = "SELECT episode_key FROM episode WHERE episode_id = $1 AND attempt = $2";
        let row = query(key).bind(episode.as_str()).bind(*attempt).fetch_optional(link).await?;
        let unknown = || CommitError::Unknown(episode.clone(), *attempt);
        keys.push(row.ok_or_else(unknown)?.first()?);
    }
    Ok(Some(keys))
}

async fn count(
    link: &mut Link,
    consumer: &str,
    (what, attempts): (&str, i64),
) -> Result<(), sqlx::Error> {
    if attempts == 0 {
        return Ok(());
    }
    let more = "INSERT INTO tally (consumer, what, attempts) VALUES ($1, $2, $3) \
        ON CONFLICT (consumer, what) DO UPDATE SET attempts = tally.attempts + excluded.attempts";
    query(more).bind(consumer).bind(what).bind(attempts).execute(link).await
}

/// Moves a consumer's floor up to the first attempt that is not settled: what lies below is not
/// looked at again.
async fn raise_floor(link: &mut Link, consumer: &str) -> Result<(), sqlx::Error> {
    let open = "SELECT f.position FROM finished f LEFT JOIN delivery d \
        ON d.consumer = $1 AND d.episode_key = f.episode_key \
        WHERE f.position > (SELECT floor FROM consumer WHERE consumer = $1) \
        AND (d.episode_key IS NULL OR d.free_at IS NOT NULL) ORDER BY f.position LIMIT 1";
    let open = query(open).bind(consumer).fetch_optional(link).await?;
    let floor = match open {
        Some(row) => row.first::<i64>()? - 1,
        None => highest(link).await?,
    };
    let raise = "UPDATE consumer SET floor = $2 WHERE consumer = $1 AND floor < $2";
    query(raise).bind(consumer).bind(floor).execute(link).await
}

/// The last position that was given.
pub(crate) async fn highest(link: &mut Link) -> Result<i64, sqlx::Error> {
    let last = "SELECT position FROM finished ORDER BY position DESC LIMIT 1";
    let row: Option<Row> = query(last).fetch_optional(link).await?;
    row.map_or(Ok(0), |row| row.first())
}

#[cfg(test)]
mod tests;
