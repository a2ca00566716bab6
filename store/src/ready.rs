//! The feed, read: what could be handed out now, and how much waits.

use std::collections::BTreeMap;

use episode::{CallId, Micros};

use crate::feed::{Item, highest};
use crate::fields::Row;
use crate::query::query;
use crate::ready_look::Look;
use crate::rows::episode_of;
use crate::snapshot::{EpisodeRecord, Selection, Snapshot, SnapshotError};

/// What is handed out together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// One attempt.
    #[default]
    Episode,
    /// A group of attempts.
    Group(Cut),
}

/// Where a group ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// How many attempts make a group that was announced without its size.
    pub size: Option<u32>,
    /// How long to wait for the others once the first one is finished, in microseconds.
    pub wait: Option<Micros>,
}

/// What a reader wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Who it reads for; none for a reader that keeps a cursor of its own.
    pub consumer: Option<String>,
    /// Only what lies behind this position; for a consumer its own floor counts.
    pub after: i64,
    /// What is an item.
    pub unit: Unit,
    /// Which episodes.
    pub selection: Selection,
    /// Only attempts that were given a reward.
    pub rewarded: bool,
    /// Items at most.
    pub limit: u32,
    /// Calls that are known to be under way still: a consumer's attempts wait for them, however
    /// long.
    pub open: Vec<CallId>,
    /// The time.
    pub now: Micros,
}

/// What waits for a consumer, and what became of the rest, in attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerCounts {
    /// Its name.
    pub consumer: String,
    /// Finished, and neither leased nor settled.
    pub depth: u64,
    /// When the oldest of these was finished.
    pub oldest: Option<Micros>,
    /// Leased now.
    pub leased: u64,
    /// How often what happened: see the table `tally`.
    pub tally: BTreeMap<String, u64>,
}

/// The part of a group that may be handed out: free members that were never handed out, or those
/// that were handed out together before.
struct Part {
    group: String,
    /// How they were handed out before; 0 if never.
    item: i64,
    size: Option<i64>,
    since: Micros,
}

impl Snapshot {
    /// Whether a consumer is known.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn has_consumer(&mut self, consumer: &str) -> Result<bool, SnapshotError> {
        Ok(self.floor(consumer).await?.is_some())
    }

    /// The last position that was given.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_position(&mut self) -> Result<i64, SnapshotError> {
        Ok(highest(self.connection()).await?)
    }

    /// Items that could be handed out now, in the order of their positions.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn ready(&mut self, wanted: &Wanted) -> Result<Vec<Item>, SnapshotError> {
        let floor = match &wanted.consumer {
            Some(consumer) => self.floor(consumer).await?.unwrap_or(wanted.after),
            None => wanted.after,
        };
        let held = self.with_open_calls(&wanted.open).await?;
        let look = Look { wanted, floor, held };
        match (wanted.unit, &wanted.consumer) {
            (Unit::Episode, _) => self.single(&look).await,
            (Unit::Group(cut), Some(_)) => self.groups(&look, cut).await,
            (Unit::Group(cut), None) => self.past_groups(&Look { floor: 0, ..look }, cut).await,
        }
    }

    async fn floor(&mut self, consumer: &str) -> Result<Option<i64>, sqlx::Error> {
        let floor = query("SELECT floor FROM consumer WHERE consumer = $1").bind(consumer);
        let row = floor.fetch_optional(self.connection()).await?;
        row.map(|row| row.first()).transpose()
    }

    async fn single(&mut self, look: &Look<'_>) -> Result<Vec<Item>, SnapshotError> {
        let free = look.free();
        let all = format!("SELECT f.position, f.episode_key {free} ORDER BY f.position LIMIT $8");
        let all = look.bind(query(all)).bind(look.wanted.limit);
        let rows = all.fetch_all(self.connection()).await?;
        let item =
            |row: &Row| Ok(Item::new(row.try_get("position")?, vec![row.try_get("episode_key")?]));
        rows.iter().map(item).collect()
    }

    async fn groups(&mut self, look: &Look<'_>, cut: Cut) -> Result<Vec<Item>, SnapshotError> {
        let (wanted, free) = (look.wanted, look.free());
        // No group is so old.
        let overdue = cut.wait.map_or(Micros::MIN, |wait| wanted.now.saturating_sub(wait));
        let parts = format!(
            "SELECT e.group_id, coalesce(d.item, 0) AS item, \
             coalesce(min(s.size), $8) AS size, min(f.finished_at) AS since \
             {free} AND e.group_id IS NOT NULL GROUP BY e.group_id, coalesce(d.item, 0) \
             HAVING coalesce(d.item, 0) > 0 OR count(*) >= coalesce(min(s.size), $8) \
             OR min(f.finished_at) <= $9 ORDER BY max(f.position) LIMIT $10"
        );
        let parts = look.bind(query(parts)).bind(cut.size.map(i64::from));
        let parts = parts.bind(overdue).bind(wanted.limit).fetch_all(self.connection()).await?;
        let mut items = Vec::new();
        for row in &parts {
            let part = part_of(row)?;
            let members = format!(
                "SELECT f.position, f.episode_key {free} AND e.group_id = $8 \
                 AND coalesce(d.item, 0) = $9 ORDER BY f.position"
            );
            let members = look.bind(query(members)).bind(&part.group).bind(part.item);
            let members = places(&members.fetch_all(self.connection()).await?)?;
            let mut cut = part.cut(&members, part.since <= overdue);
            if part.item > 0 {
                self.complete(&part, wanted.consumer.as_deref(), &mut cut).await?;
            }
            items.extend(cut);
        }
        items.truncate(wanted.limit as usize);
        Ok(items)
    }

    /// Adds those with whom items were handed out before: attempts are compared with the whole of
    /// their group, however much of it comes back.
    async fn complete(
        &mut self,
        part: &Part,
        consumer: Option<&str>,
        items: &mut [Item],
    ) -> Result<(), sqlx::Error> {
        let together = "SELECT d.episode_key, d.item_size FROM episode e JOIN delivery d \
            ON d.consumer = $1 AND d.episode_key = e.episode_key \
            WHERE e.group_id = $2 AND d.item = $3 ORDER BY d.episode_key";
        let together = query(together).bind(consumer).bind(&part.group).bind(part.item);
        for row in together.fetch_all(self.connection()).await? {
            let key = row.try_get("episode_key")?;
            let size = row.try_get::<Option<i64>>("item_size")?.unwrap_or_default();
            for item in items.iter_mut() {
                item.peers.extend((!item.keys.contains(&key)).then_some(key));
                item.size = item.size.max(usize::try_from(size).unwrap_or_default());
            }
        }
        for item in items {
            item.size = item.size.max(item.keys.len() + item.peers.len());
        }
        Ok(())
    }

    /// Groups whose last attempt lies behind the cursor, as they were complete first.
    async fn past_groups(&mut self, look: &Look<'_>, cut: Cut) -> Result<Vec<Item>, SnapshotError> {
        let (wanted, free) = (look.wanted, look.free());
        let numbered = format!(
            "SELECT e.group_id, f.position, f.episode_key, coalesce(s.size, $8) AS size, \
             (row_number() OVER (PARTITION BY e.group_id ORDER BY f.position) - 1) \
             / coalesce(s.size, $8) AS number {free} AND e.group_id IN (SELECT x.group_id \
             FROM finished y JOIN episode x ON x.episode_key = y.episode_key \
             WHERE y.position > $9)"
        );
        let whole = format!(
            "SELECT m.group_id, m.number, max(m.position) AS last FROM ({numbered}) AS m \
             GROUP BY m.group_id, m.number HAVING count(*) = min(m.size) \
             AND max(m.position) > $9 ORDER BY last LIMIT $10"
        );
        let members = format!(
            "SELECT n.position, n.episode_key, w.last FROM ({numbered}) AS n JOIN ({whole}) AS w \
             ON w.group_id = n.group_id AND w.number = n.number ORDER BY w.last, n.position"
        );
        let members = look.bind(query(members)).bind(cut.size.map(i64::from));
        let members = members.bind(wanted.after).bind(wanted.limit);
        let mut items: Vec<Item> = Vec::new();
        for row in members.fetch_all(self.connection()).await? {
            let (position, key) = (row.try_get("last")?, row.try_get("episode_key")?);
            match items.last_mut().filter(|item| item.position == position) {
                Some(item) => item.keys.push(key),
                None => items.push(Item::new(position, vec![key])),
            }
        }
        items.iter_mut().for_each(|item| item.size = item.keys.len());
        Ok(items)
    }

    /// Attempts by the store's keys, sorted by episode and attempt; without those that are gone.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn attempts(&mut self, keys: &[i64]) -> Result<Vec<EpisodeRecord>, SnapshotError> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let one = "SELECT e.*, EXISTS (SELECT 1 FROM mark m \
                       WHERE m.episode_key = e.episode_key) AS marked \
                       FROM episode e WHERE e.episode_key = $1";
            if let Some(row) = query(one).bind(*key).fetch_optional(self.connection()).await? {
                found.push(self.labeled(episode_of(&row)?).await?);
            }
        }
        found.sort_by(|a, b| (&a.id, a.attempt).cmp(&(&b.id, b.attempt)));
        Ok(found)
    }

    /// What waits for each consumer, by name.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn consumers(&mut self, now: Micros) -> Result<Vec<ConsumerCounts>, SnapshotError> {
        let all = query("SELECT consumer FROM consumer ORDER BY consumer");
        let mut found = Vec::new();
        for consumer in all.scalars::<String>(self.connection()).await? {
            found.push(self.consumer(consumer, now).await?);
        }
        Ok(found)
    }

    async fn consumer(
        &mut self,
        consumer: String,
        now: Micros,
    ) -> Result<ConsumerCounts, SnapshotError> {
        let waiting = "SELECT count(*) FILTER (WHERE d.episode_key IS NULL \
                OR d.state = 'returned' OR d.free_at <= $2) AS depth, \
            min(f.finished_at) FILTER (WHERE d.episode_key IS NULL \
                OR d.state = 'returned' OR d.free_at <= $2) AS oldest, \
            count(*) FILTER (WHERE d.state = 'leased' AND d.free_at > $2) AS leased \
            FROM finished f LEFT JOIN delivery d \
            ON d.consumer = $1 AND d.episode_key = f.episode_key \
            WHERE f.position > (SELECT floor FROM consumer WHERE consumer = $1)";
        let row = query(waiting).bind(&consumer).bind(now).fetch_one(self.connection()).await?;
        let tally = query("SELECT what, attempts FROM tally WHERE consumer = $1 ORDER BY what");
        let tally = tally.bind(&consumer).fetch_all(self.connection()).await?;
        let of = |row: &Row| Ok((row.try_get("what")?, count(row, "attempts")?));
        Ok(ConsumerCounts {
            depth: count(&row, "depth")?,
            oldest: row.try_get("oldest")?,
            leased: count(&row, "leased")?,
            tally: tally.iter().map(of).collect::<Result<_, sqlx::Error>>()?,
            consumer,
        })
    }
}

impl Part {
    /// The items that its members make, each with its position.
    fn cut(&self, members: &[(i64, i64)], overdue: bool) -> Vec<Item> {
        let item = |members: &[(i64, i64)], late| {
            let position = members.last().map_or(0, |member| member.0);
            let keys = members.iter().map(|member| member.1).collect();
            Item { late, ..Item::new(position, keys) }
        };
        if self.item > 0 {
            return vec![Item { position: self.item, ..item(members, false) }];
        }
        let size = self.size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
        let Some(size) = size else { return vec![item(members, true)] };
        let chunks = members.chunks(size).filter(|chunk| chunk.len() == size || overdue);
        chunks.map(|chunk| item(chunk, chunk.len() < size)).collect()
    }
}

fn part_of(row: &Row) -> Result<Part, sqlx::Error> {
    Ok(Part {
        group: row.try_get("group_id")?,
        item: row.try_get("item")?,
        size: row.try_get("size")?,
        since: row.try_get("since")?,
    })
}

/// Positions and keys.
fn places(rows: &[Row]) -> Result<Vec<(i64, i64)>, sqlx::Error> {
    rows.iter().map(|row| Ok((row.try_get("position")?, row.try_get("episode_key")?))).collect()
}

fn count(row: &Row, name: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64>(name)?.unsigned_abs())
}
