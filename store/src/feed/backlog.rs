//! The backlog of a reader: what could be handed out now, and what waits for something else.

use episode::Micros;

use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::feed::candidates::{CandidateQuery, OPEN_GROUPS};
use crate::feed::places::counted;
use crate::feed::types::{Backlog, ConsumerCounts, FeedQuery, FeedUnit, GroupLimits, WaitingGroup};
use crate::snapshot::Snapshot;

/// Groups that wait, of which a backlog names the fullest.
const FULLEST_MAX: i64 = 3;

/// Groups that are compared as to how full they are.
const NEAREST_MAX: usize = 16;

/// Free attempts at the lowest positions, of which the oldest is looked for. Positions have nearly
/// the order of finishing.
const FIRST_MAX: usize = 100;

/// The attempts that a query selects, whatever they wait for. `$7` is 1 where only groups count.
const SELECTED: &str = "SELECT count(*) AS selected, \
    count(*) FILTER (WHERE e.group_id IS NULL) AS ungrouped, \
    count(*) FILTER (WHERE ($7 = 0 OR e.group_id IS NOT NULL) AND NOT EXISTS \
        (SELECT 1 FROM reward r WHERE r.episode_key = f.episode_key AND r.call_id IS NULL \
        AND r.name = 'reward')) AS unrewarded";

/// The attempts that a consumer holds now, and those that it gave back for later.
const HELD: &str = "SELECT count(*) FILTER (WHERE d.state = 'leased') AS leased, \
    count(*) FILTER (WHERE d.state = 'returned') AS delayed FROM unsettled u \
    JOIN delivery d ON d.consumer = u.consumer AND d.episode_key = u.episode_key \
    WHERE u.consumer = $1 AND u.item > 0 AND u.free_at > $2";

/// The sums of a consumer, with the attempts that were handed out before and that nobody holds.
const SUMS: &str = "SELECT c.alone, c.grouped, c.group_count, \
    (SELECT count(*) FROM unsettled u WHERE u.consumer = $1 AND u.item > 0 AND u.free_at <= $2 \
        AND u.group_id IS NULL) AS alone_again, \
    (SELECT count(*) FROM unsettled u WHERE u.consumer = $1 AND u.item > 0 AND u.free_at <= $2 \
        AND u.group_id IS NOT NULL) AS grouped_again FROM consumer c WHERE c.consumer = $1";

/// The finished attempts of a consumer that nobody holds.
#[derive(Debug, Default)]
struct BacklogSums {
    alone: u64,
    grouped: u64,
    /// Groups with attempts that were never handed out.
    groups: u64,
}

impl Snapshot {
    /// The names of all consumers.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn consumers(&mut self) -> Result<Vec<String>, SnapshotError> {
        let names = query("SELECT consumer FROM consumer ORDER BY consumer");
        Ok(names.scalars(self.connection()).await?)
    }

    /// Counts of a consumer, as a reader of it with this query would meet them.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn consumer_counts(
        &mut self,
        consumer: String,
        asked: &FeedQuery,
    ) -> Result<ConsumerCounts, SnapshotError> {
        let asked = FeedQuery { consumer: Some(consumer.clone()), ..asked.clone() };
        let backlog = self.backlog(&asked).await?;

        let leased = self.held(&consumer, asked.now).await?.0;
        let events = query("SELECT what, attempts FROM tally WHERE consumer = $1 ORDER BY what")
            .bind(&consumer)
            .fetch_all(self.connection())
            .await?;
        let tally = events.iter().map(|row| Ok((row.try_get("what")?, count(row, "attempts")?)));

        let tally = tally.collect::<Result<_, sqlx::Error>>()?;
        Ok(ConsumerCounts { consumer, backlog, leased, tally })
    }

    /// The backlog of a reader. Its `limit` does not count, nor does the cursor of a reader without
    /// a name.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn backlog(&mut self, wanted: &FeedQuery) -> Result<Backlog, SnapshotError> {
        let mut found = Backlog::default();
        let is_free = self.candidates(wanted).await?;
        match wanted.unit {
            FeedUnit::Episode => self.count_single(&is_free, &mut found).await?,
            FeedUnit::Group(limits) => {
                // A group may have members before the cursor.
                let floor = if wanted.consumer.is_some() { is_free.floor } else { 0 };
                let is_free = CandidateQuery { floor, ..is_free };
                self.count_groups(&is_free, limits, &mut found).await?;
            }
        }
        self.count_waiting(wanted, &mut found).await?;
        Ok(found)
    }

    async fn count_single(
        &mut self,
        is_free: &CandidateQuery<'_>,
        found: &mut Backlog,
    ) -> Result<(), sqlx::Error> {
        if is_free.has_sums() && !is_free.query.rewarded {
            let sums = self.sums(is_free.query).await?;
            found.ready =
                (sums.alone + sums.grouped).saturating_sub(self.count_open(is_free).await?);
            let oldest = format!(
                "SELECT min(x.finished_at) FROM (SELECT f.finished_at {} \
                 ORDER BY f.position LIMIT {FIRST_MAX}) AS x",
                is_free.sql()
            );
            found.oldest = is_free.bind(query(oldest)).scalar(self.connection()).await?;
            return Ok(());
        }
        let select =
            format!("SELECT count(*) AS ready, min(f.finished_at) AS oldest {}", is_free.sql());
        let row = is_free.bind(query(select)).fetch_one(self.connection()).await?;
        (found.ready, found.oldest) = (count(&row, "ready")?, row.try_get("oldest")?);
        Ok(())
    }

    async fn count_groups(
        &mut self,
        is_free: &CandidateQuery<'_>,
        limits: GroupLimits,
        found: &mut Backlog,
    ) -> Result<(), sqlx::Error> {
        // The sums say how many groups there are. Only those are read that may be handed out.
        let has_sums = is_free.has_sums() && !is_free.query.rewarded;
        let (some, nearest) = match has_sums {
            true => (is_free.grouped_sql(), nearest(is_free)),
            false => {
                let all = format!("{} AND e.group_id IS NOT NULL", is_free.sql());
                (all.clone(), all)
            }
        };
        let totals = format!(
            "SELECT CAST(coalesce(sum(q.ready), 0) AS BIGINT) AS ready, \
             min(CASE WHEN q.ready > 0 THEN q.since END) AS oldest, \
             count(*) FILTER (WHERE q.members > q.ready) AS groups, \
             count(*) FILTER (WHERE q.item = 0 AND q.members <= q.ready) AS whole \
             FROM ({}) AS q",
            parts(is_free, &some)
        );
        let row = bind_limits(is_free, limits, query(totals)).fetch_one(self.connection()).await?;
        (found.ready, found.oldest) = (count(&row, "ready")?, row.try_get("oldest")?);
        found.groups = match has_sums {
            true => self.sums(is_free.query).await?.groups.saturating_sub(count(&row, "whole")?),
            false => count(&row, "groups")?,
        };
        if found.groups == 0 {
            return Ok(());
        }

        let fullest = format!(
            "SELECT q.group_id, q.have, q.size FROM ({}) AS q WHERE q.members > q.ready \
             ORDER BY q.size IS NULL, q.size - q.have, q.group_id LIMIT {FULLEST_MAX}",
            parts(is_free, &nearest)
        );
        let rows = bind_limits(is_free, limits, query(fullest)).fetch_all(self.connection());
        found.fullest = rows.await?.iter().map(waiting_group).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Counts what is selected and not ready, by what it waits for.
    async fn count_waiting(
        &mut self,
        wanted: &FeedQuery,
        found: &mut Backlog,
    ) -> Result<(), SnapshotError> {
        let by_group = wanted.unit != FeedUnit::Episode;
        let all = FeedQuery { rewarded: false, open: Vec::new(), ..wanted.clone() };
        let mut selected = self.candidates(&all).await?;
        if by_group && wanted.consumer.is_none() {
            selected.floor = 0;
        }

        let (of_all, ungrouped) = if selected.has_sums() && !wanted.rewarded {
            let sums = self.sums(&all).await?;
            (sums.alone + sums.grouped, sums.alone)
        } else {
            let select = format!("{SELECTED} {}", selected.sql());
            let select = selected.bind(query(select)).bind(i64::from(by_group));
            let row = select.fetch_one(self.connection()).await?;
            found.unrewarded = if wanted.rewarded { count(&row, "unrewarded")? } else { 0 };
            (count(&row, "selected")?, count(&row, "ungrouped")?)
        };
        if let Some(consumer) = &wanted.consumer {
            found.delayed = self.held(consumer, wanted.now).await?.1;
        }

        found.ungrouped = if by_group { ungrouped } else { 0 };
        found.waiting = (of_all - found.ungrouped).saturating_sub(found.ready) + found.delayed;
        Ok(())
    }

    /// The attempts that a consumer holds, and those that it gave back for later.
    async fn held(&mut self, consumer: &str, now: Micros) -> Result<(u64, u64), sqlx::Error> {
        let row = query(HELD).bind(consumer).bind(now).fetch_one(self.connection()).await?;
        Ok((count(&row, "leased")?, count(&row, "delayed")?))
    }

    async fn sums(&mut self, wanted: &FeedQuery) -> Result<BacklogSums, sqlx::Error> {
        let sums = query(SUMS).bind(wanted.consumer.as_deref()).bind(wanted.now);
        let Some(row) = sums.fetch_optional(self.connection()).await? else {
            return Ok(BacklogSums::default());
        };
        Ok(BacklogSums {
            alone: count(&row, "alone")? + count(&row, "alone_again")?,
            grouped: count(&row, "grouped")? + count(&row, "grouped_again")?,
            groups: count(&row, "group_count")?,
        })
    }

    /// The free attempts of a consumer that are not ready, because a call is known to be under way.
    async fn count_open(&mut self, is_free: &CandidateQuery<'_>) -> Result<u64, sqlx::Error> {
        let FeedQuery { consumer, now, .. } = is_free.query;
        let mut open = 0;
        for key in &is_free.with_open_calls {
            let select = "SELECT count(*) FROM unsettled u WHERE u.episode_key = $1 \
                          AND u.consumer = $2 AND u.free_at <= $3";
            let select = query(select).bind(*key).bind(consumer.as_deref()).bind(*now);
            open += select.scalar::<i64>(self.connection()).await?.unsigned_abs();
        }
        Ok(open)
    }
}

/// Attempts of the groups that may be handed out, and of those that lack the fewest members.
fn nearest(is_free: &CandidateQuery<'_>) -> String {
    format!(
        "{} AND f.group_id IN ({OPEN_GROUPS} \
         UNION SELECT a.group_id FROM (SELECT g.group_id FROM gathering g WHERE g.consumer = $1 \
             AND g.size IS NOT NULL AND (g.size - g.members) > 0 \
             ORDER BY (g.size - g.members), g.group_id LIMIT {NEAREST_MAX}) AS a \
         UNION SELECT b.group_id FROM (SELECT g.group_id FROM gathering g WHERE g.consumer = $1 \
             AND g.size IS NULL AND g.members < coalesce($7, {}) \
             ORDER BY g.members DESC, g.group_id DESC LIMIT {NEAREST_MAX}) AS b)",
        is_free.sql(),
        i64::MAX,
    )
}

/// The parts of groups, each with the members that are ready, and with those that take a place and
/// are not (`have`). `candidates` selects members. The values are those of the candidates, then
/// those of [`bind_limits`].
fn parts(is_free: &CandidateQuery<'_>, candidates: &str) -> String {
    let members = format!(
        "SELECT e.group_id, {} AS item, coalesce(s.size, $7) AS size, \
         f.finished_at, f.position, {} {candidates}",
        is_free.item(),
        is_free.placed(),
    );
    let numbered = format!(
        "SELECT x.*, {} FROM ({members}) AS x",
        counted("x.group_id, x.item", "x.position")
    );
    format!(
        "SELECT c.group_id, c.item, min(c.size) AS size, count(*) AS members, \
         min(c.finished_at) AS since, min(c.places % coalesce(c.size, c.places + 1)) AS have, \
         CASE WHEN c.item > 0 OR min(c.finished_at) <= $8 THEN count(*) \
         ELSE count(*) FILTER (WHERE c.ahead / c.size < c.places / c.size) END AS ready \
         FROM ({numbered}) AS c GROUP BY c.group_id, c.item"
    )
}

/// Binds the values of candidates, `$7` and `$8`.
fn bind_limits(is_free: &CandidateQuery<'_>, limits: GroupLimits, select: Query) -> Query {
    let now = is_free.query.now;
    let overdue_at = limits.wait.map_or(Micros::MIN, |wait| now.saturating_sub(wait));
    is_free.bind(select).bind(limits.size.map(i64::from)).bind(overdue_at)
}

fn waiting_group(row: &Row) -> Result<WaitingGroup, sqlx::Error> {
    let size: Option<i64> = row.try_get("size")?;
    Ok(WaitingGroup {
        group: row.try_get("group_id")?,
        have: count(row, "have")?,
        size: size.map(i64::unsigned_abs),
    })
}

fn count(row: &Row, name: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64>(name)?.unsigned_abs())
}
