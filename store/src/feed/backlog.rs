//! The backlog of a reader: what could be handed out now, and what waits for something else.

use episode::Micros;

use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::feed::candidates::CandidateQuery;
use crate::feed::places::counted;
use crate::feed::types::{Backlog, ConsumerCounts, FeedQuery, FeedUnit, GroupLimits, WaitingGroup};
use crate::snapshot::Snapshot;

/// Groups that wait, of which a backlog names the fullest.
const FULLEST_MAX: i64 = 3;

/// The attempts that a query selects, whatever they wait for. `$8` is 1 where only groups count.
const SELECTED: &str = "SELECT count(*) AS selected, \
    count(*) FILTER (WHERE e.group_id IS NULL) AS ungrouped, \
    count(*) FILTER (WHERE ($8 = 0 OR e.group_id IS NOT NULL) AND NOT EXISTS \
        (SELECT 1 FROM reward r WHERE r.episode_key = f.episode_key AND r.call_id IS NULL \
        AND r.name = 'reward')) AS unrewarded";

/// The attempts that a consumer gave back for later.
const DELAYED: &str = "SELECT count(*) FROM delivery \
    WHERE consumer = $1 AND state = 'returned' AND free_at > $2";

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

        let leased = "SELECT count(*) FROM delivery d JOIN finished f \
            ON f.episode_key = d.episode_key \
            WHERE d.consumer = $1 AND d.state = 'leased' AND d.free_at > $2 \
            AND f.position > (SELECT floor FROM consumer WHERE consumer = $1)";
        let leased = query(leased).bind(&consumer).bind(asked.now);
        let leased = leased.scalar::<i64>(self.connection()).await?.unsigned_abs();
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
        let parts = parts(is_free);
        let bind = |select: String| bind_limits(is_free, limits, query(select));

        let totals = format!(
            "SELECT CAST(coalesce(sum(q.ready), 0) AS BIGINT) AS ready, \
             min(CASE WHEN q.ready > 0 THEN q.since END) AS oldest, \
             count(*) FILTER (WHERE q.members > q.ready) AS groups FROM ({parts}) AS q"
        );
        let row = bind(totals).fetch_one(self.connection()).await?;
        (found.ready, found.oldest) = (count(&row, "ready")?, row.try_get("oldest")?);
        found.groups = count(&row, "groups")?;
        if found.groups == 0 {
            return Ok(());
        }

        let fullest = format!(
            "SELECT q.group_id, q.have, q.size FROM ({parts}) AS q WHERE q.members > q.ready \
             ORDER BY q.size IS NULL, q.size - q.have, q.group_id LIMIT $10"
        );
        let rows = bind(fullest).bind(FULLEST_MAX).fetch_all(self.connection()).await?;
        found.fullest = rows.iter().map(waiting_group).collect::<Result<_, _>>()?;
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

        let select = format!("{SELECTED} {}", selected.sql());
        let select = selected.bind(query(select)).bind(i64::from(by_group));
        let row = select.fetch_one(self.connection()).await?;
        let ungrouped = if by_group { count(&row, "ungrouped")? } else { 0 };
        let selected = count(&row, "selected")? - ungrouped;
        if let Some(consumer) = &wanted.consumer {
            let delayed = query(DELAYED).bind(consumer).bind(wanted.now);
            found.delayed = delayed.scalar::<i64>(self.connection()).await?.unsigned_abs();
        }

        found.ungrouped = ungrouped;
        found.unrewarded = if wanted.rewarded { count(&row, "unrewarded")? } else { 0 };
        found.waiting = selected.saturating_sub(found.ready) + found.delayed;
        Ok(())
    }
}

/// The parts of groups, each with the members that are ready, and with those that take a place and
/// are not (`have`). The values are those of the candidates, then those of [`bind_limits`].
fn parts(is_free: &CandidateQuery<'_>) -> String {
    let members = format!(
        "SELECT e.group_id, coalesce(d.item, 0) AS item, coalesce(s.size, $8) AS size, \
         f.finished_at, f.position, {} {} AND e.group_id IS NOT NULL",
        is_free.placed(),
        is_free.sql()
    );
    let numbered = format!(
        "SELECT x.*, {} FROM ({members}) AS x",
        counted("x.group_id, x.item", "x.position")
    );
    format!(
        "SELECT c.group_id, min(c.size) AS size, count(*) AS members, \
         min(c.finished_at) AS since, min(c.places % coalesce(c.size, c.places + 1)) AS have, \
         CASE WHEN c.item > 0 OR min(c.finished_at) <= $9 THEN count(*) \
         ELSE count(*) FILTER (WHERE c.ahead / c.size < c.places / c.size) END AS ready \
         FROM ({numbered}) AS c GROUP BY c.group_id, c.item"
    )
}

/// Binds the values of candidates, `$8` and `$9`.
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
