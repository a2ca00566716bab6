//! Reading the feed: the items that could be handed out now.

use episode::Micros;

use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::feed::candidates::CandidateQuery;
use crate::feed::places::counted;
use crate::feed::types::{FeedItem, FeedQuery, FeedUnit, GroupLimits};
use crate::feed::write::last_position;
use crate::snapshot::Snapshot;
use crate::snapshot::rows::episode_of;
use crate::types::AttemptRecord;

/// Members of a group that may be handed out: those that were never handed out, or those that were
/// handed out together before.
struct GroupPart {
    group: String,
    /// The item as which they were handed out before; 0 if never.
    item: i64,
    size: Option<i64>,
    /// The time at which the first of them was finished.
    since: Micros,
}

/// An attempt with its position.
#[derive(Clone, Copy)]
struct Member {
    position: i64,
    key: i64,
    /// True where it takes a place in its group.
    is_placed: bool,
}

impl Snapshot {
    /// True where a consumer is registered.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn has_consumer(&mut self, consumer: &str) -> Result<bool, SnapshotError> {
        Ok(self.floor(consumer).await?.is_some())
    }

    /// The last position that was given; 0 if there is none.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn last_position(&mut self) -> Result<i64, SnapshotError> {
        Ok(last_position(self.connection()).await?)
    }

    /// Items that could be handed out now, in the order of their positions.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn ready(&mut self, query: &FeedQuery) -> Result<Vec<FeedItem>, SnapshotError> {
        let candidates = self.candidates(query).await?;
        match (query.unit, &query.consumer) {
            (FeedUnit::Episode, _) => self.single(&candidates).await,
            (FeedUnit::Group(limits), Some(_)) => self.groups(&candidates, limits).await,
            (FeedUnit::Group(limits), None) => {
                // A group whose last member lies after the cursor may have members before it.
                let candidates = CandidateQuery { floor: 0, ..candidates };
                self.complete_groups(&candidates, limits).await
            }
        }
    }

    /// Items of one attempt each.
    async fn single(
        &mut self,
        candidates: &CandidateQuery<'_>,
    ) -> Result<Vec<FeedItem>, SnapshotError> {
        let select = format!(
            "SELECT f.position, f.episode_key {} ORDER BY f.position LIMIT $7",
            candidates.sql()
        );
        let rows = candidates
            .bind(query(select))
            .bind(candidates.query.limit)
            .fetch_all(self.connection())
            .await?;
        let item = |row: &Row| {
            Ok(FeedItem::new(row.try_get("position")?, vec![row.try_get("episode_key")?]))
        };
        Ok(rows.iter().map(item).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Groups for a consumer: complete ones, overdue ones, and those that were handed out before.
    async fn groups(
        &mut self,
        candidates: &CandidateQuery<'_>,
        limits: GroupLimits,
    ) -> Result<Vec<FeedItem>, SnapshotError> {
        let wanted = candidates.query;
        // Without a limit no group is overdue: none was finished at the minimum.
        let overdue_at = limits.wait.map_or(Micros::MIN, |wait| wanted.now.saturating_sub(wait));
        let select = format!(
            "SELECT x.group_id, x.item, min(x.size) AS size, min(x.finished_at) AS since \
             FROM (SELECT e.group_id, {} AS item, coalesce(s.size, $7) AS size, \
             f.finished_at, f.position, {} {}) AS x \
             GROUP BY x.group_id, x.item HAVING x.item > 0 OR sum(x.placed) >= min(x.size) \
             OR min(x.finished_at) <= $8 ORDER BY max(x.position) LIMIT $9",
            candidates.item(),
            candidates.placed(),
            candidates.grouped_sql()
        );
        let parts = candidates
            .bind(query(select))
            .bind(limits.size.map(i64::from))
            .bind(overdue_at)
            .bind(wanted.limit)
            .fetch_all(self.connection())
            .await?;

        // A part may be several items, so the limit is applied once more below.
        let mut items = Vec::new();
        for row in &parts {
            let part = GroupPart::of(row)?;
            let members = self.members(candidates, &part).await?;
            let mut of_part = part.items(&members, part.since <= overdue_at);
            if part.item > 0 {
                self.add_peers(&part, wanted.consumer.as_deref(), &mut of_part).await?;
            }
            items.extend(of_part);
        }
        items.truncate(wanted.limit as usize);
        Ok(items)
    }

    /// The members of a part, in the order of their positions.
    async fn members(
        &mut self,
        candidates: &CandidateQuery<'_>,
        part: &GroupPart,
    ) -> Result<Vec<Member>, sqlx::Error> {
        let select = format!(
            "SELECT f.position, f.episode_key, {} {} AND f.group_id = $7 \
             AND f.item = $8 ORDER BY f.position",
            candidates.placed(),
            candidates.sql()
        );
        let rows = candidates
            .bind(query(select))
            .bind(&part.group)
            .bind(part.item)
            .fetch_all(self.connection())
            .await?;
        members_of(&rows)
    }

    /// Adds the attempts with which items were handed out before. Rewards are compared within the
    /// whole group, however much of it is handed out again.
    async fn add_peers(
        &mut self,
        part: &GroupPart,
        consumer: Option<&str>,
        items: &mut [FeedItem],
    ) -> Result<(), sqlx::Error> {
        let select = "SELECT d.episode_key, d.item_size FROM episode e JOIN delivery d \
            ON d.consumer = $1 AND d.episode_key = e.episode_key \
            WHERE e.group_id = $2 AND d.item = $3 ORDER BY d.episode_key";
        let rows = query(select)
            .bind(consumer)
            .bind(&part.group)
            .bind(part.item)
            .fetch_all(self.connection())
            .await?;

        for row in &rows {
            let key = row.try_get("episode_key")?;
            let size = row.try_get::<Option<i64>>("item_size")?.unwrap_or_default();
            for item in items.iter_mut() {
                // Those of the item itself are no peers.
                if !item.keys.contains(&key) {
                    item.peers.push(key);
                }
                item.size = item.size.max(usize::try_from(size).unwrap_or_default());
            }
        }
        for item in items {
            item.size = item.size.max(item.keys.len() + item.peers.len());
        }
        Ok(())
    }

    /// Complete groups whose last attempt lies after the cursor, in the order in which they became
    /// complete. A group of more attempts than its size is several items.
    async fn complete_groups(
        &mut self,
        candidates: &CandidateQuery<'_>,
        limits: GroupLimits,
    ) -> Result<Vec<FeedItem>, SnapshotError> {
        // Members are numbered within their group; `number` is the item of the group they are in.
        let members = format!(
            "SELECT e.group_id, f.position, f.episode_key, coalesce(s.size, $7) AS size, {} \
             {} AND e.group_id IN (SELECT g.group_id FROM finished y \
             JOIN episode g ON g.episode_key = y.episode_key WHERE y.position > $8)",
            candidates.placed(),
            candidates.sql()
        );
        let numbered = format!(
            "SELECT c.*, c.ahead / c.size AS number FROM \
             (SELECT x.*, {} FROM ({members}) AS x) AS c",
            counted("x.group_id", "x.position")
        );
        let complete = format!(
            "SELECT m.group_id, m.number, max(m.position) AS last FROM ({numbered}) AS m \
             GROUP BY m.group_id, m.number HAVING sum(m.placed) = min(m.size) \
             AND max(m.position) > $8 ORDER BY last LIMIT $9"
        );
        let select = format!(
            "SELECT n.episode_key, w.last FROM ({numbered}) AS n JOIN ({complete}) AS w \
             ON w.group_id = n.group_id AND w.number = n.number ORDER BY w.last, n.position"
        );
        let rows = candidates
            .bind(query(select))
            .bind(limits.size.map(i64::from))
            .bind(candidates.query.after)
            .bind(candidates.query.limit)
            .fetch_all(self.connection())
            .await?;

        // Rows of one item follow each other.
        let mut items: Vec<FeedItem> = Vec::new();
        for row in &rows {
            let (position, key) = (row.try_get("last")?, row.try_get("episode_key")?);
            match items.last_mut().filter(|item| item.position == position) {
                Some(item) => item.keys.push(key),
                None => items.push(FeedItem::new(position, vec![key])),
            }
        }
        items.iter_mut().for_each(|item| item.size = item.keys.len());
        Ok(items)
    }

    /// Attempts by the store's keys, sorted by episode and attempt, without those that are gone.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn attempts(&mut self, keys: &[i64]) -> Result<Vec<AttemptRecord>, SnapshotError> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let select = "SELECT e.*, EXISTS (SELECT 1 FROM mark m \
                          WHERE m.episode_key = e.episode_key) AS marked \
                          FROM episode e WHERE e.episode_key = $1";
            if let Some(row) = query(select).bind(*key).fetch_optional(self.connection()).await? {
                found.push(self.with_labels(episode_of(&row)?).await?);
            }
        }
        found.sort_by(|a, b| (&a.id, a.attempt).cmp(&(&b.id, b.attempt)));
        Ok(found)
    }
}

impl GroupPart {
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            group: row.try_get("group_id")?,
            item: row.try_get("item")?,
            size: row.try_get("size")?,
            since: row.try_get("since")?,
        })
    }

    /// The items that the part's members make. Those that take no place are in the item of the next
    /// that does.
    fn items(&self, members: &[Member], is_overdue: bool) -> Vec<FeedItem> {
        if self.item > 0 {
            return vec![FeedItem { position: self.item, ..item_of(members) }];
        }
        let size = self.size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
        let Some(size) = size else {
            return vec![FeedItem { late: true, ..item_of(members) }];
        };

        let mut items = Vec::new();
        let mut rest = members;
        while !rest.is_empty() {
            let places = rest.iter().enumerate().filter(|(_, member)| member.is_placed);
            let last = places.map(|(at, _)| at).nth(size - 1);
            let (item, others) = rest.split_at(last.map_or(rest.len(), |last| last + 1));
            if last.is_some() || is_overdue {
                items.push(FeedItem { late: last.is_none(), ..item_of(item) });
            }
            rest = others;
        }
        items
    }
}

/// An item of members that were never handed out.
fn item_of(members: &[Member]) -> FeedItem {
    let position = members.last().map_or(0, |member| member.position);
    FeedItem::new(position, members.iter().map(|member| member.key).collect())
}

fn members_of(rows: &[Row]) -> Result<Vec<Member>, sqlx::Error> {
    rows.iter()
        .map(|row| {
            Ok(Member {
                position: row.try_get("position")?,
                key: row.try_get("episode_key")?,
                is_placed: row.try_get::<i64>("placed")? == 1,
            })
        })
        .collect()
}
