//! Writing the feed: positions, leases and settlements, one transaction each.
//!
//! Several processes may hand out of one database. Each transaction here holds a lock of the
//! database until it ends, so that positions appear in their order and nothing is handed out twice.

use std::collections::BTreeMap;

use episode::Micros;

use crate::attempts::find_attempt;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::{CommitError, CommitResult};
use crate::feed::admission::{admit, set_rule};
use crate::feed::lock::lock;
use crate::feed::types::{Disposition, FeedRecord, Lease, LeasePart, Settlement};
use crate::feed::unsettled::{fill, follow, take_out};

/// Writes a change of the feed.
pub(crate) async fn write_feed(
    connection: &mut StoreConnection,
    record: &FeedRecord,
) -> CommitResult {
    lock(connection).await?;
    match record {
        FeedRecord::Begin(consumer, floor) => {
            let insert = "INSERT INTO consumer (consumer, floor) VALUES ($1, $2) \
                          ON CONFLICT DO NOTHING";
            Ok(query(insert).bind(consumer).bind(*floor).execute(connection).await?)
        }
        FeedRecord::Fill(consumer) => Ok(fill(connection, consumer).await?),
        FeedRecord::Lease(lease) => write_lease(connection, lease).await,
        FeedRecord::Settle(settlement) => settle(connection, settlement).await,
        FeedRecord::Finish(attempts) => Ok(finish_waiting(connection, attempts).await?),
        FeedRecord::Rule(rule) => Ok(set_rule(connection, rule.as_ref()).await?),
        FeedRecord::Admit(candidates, at) => Ok(admit(connection, candidates, *at).await?),
    }
}

/// Gives a closed attempt its position. One with calls under way has to wait: a reader who passes
/// its position would not come back to it.
pub(crate) async fn number_closed(
    connection: &mut StoreConnection,
    key: i64,
) -> Result<(), sqlx::Error> {
    lock(connection).await?;
    let insert_waiting = "INSERT INTO waiting (episode_key) SELECT e.episode_key FROM episode e \
        WHERE e.episode_key = $1 AND EXISTS (SELECT 1 FROM call c \
            WHERE c.episode_key = e.episode_key AND c.outcome IS NULL) \
        AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.episode_key = e.episode_key) \
        ON CONFLICT DO NOTHING";
    query(insert_waiting).bind(key).execute(connection).await?;
    number(connection, key, None).await
}

/// Gives positions to attempts that wait no longer.
async fn finish_waiting(
    connection: &mut StoreConnection,
    attempts: &[(i64, Micros)],
) -> Result<(), sqlx::Error> {
    for (key, at) in attempts {
        query("DELETE FROM waiting WHERE episode_key = $1").bind(*key).execute(connection).await?;
        number(connection, *key, Some(*at)).await?;
    }
    Ok(())
}

/// Gives an attempt that does not wait its position, if it has none.
async fn number(
    connection: &mut StoreConnection,
    key: i64,
    at: Option<Micros>,
) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO finished (episode_key, finished_at) \
        SELECT e.episode_key, coalesce($2, e.closed_at) FROM episode e \
        WHERE e.episode_key = $1 \
        AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.episode_key = e.episode_key) \
        AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.episode_key = e.episode_key)";
    query(insert).bind(key).bind(at).execute(connection).await
}

/// Leases all of the items or none: one that another reader leased meanwhile refuses the whole.
async fn write_lease(connection: &mut StoreConnection, lease: &Lease) -> CommitResult {
    // All items are checked before any is written.
    let (mut redelivered, mut fresh) = (0, BTreeMap::new());
    for key in lease.items.iter().flat_map(|item| &item.keys) {
        let free = "SELECT u.item, u.group_id FROM unsettled u WHERE u.consumer = $1 \
            AND u.episode_key = $2 AND u.free_at <= $3";
        let row = query(free)
            .bind(&lease.consumer)
            .bind(*key)
            .bind(lease.at)
            .fetch_optional(connection)
            .await?
            .ok_or(CommitError::Taken)?;
        match row.try_get::<i64>("item")? {
            0 => *fresh.entry(row.try_get("group_id")?).or_default() += 1,
            _ => redelivered += 1,
        }
    }

    let mut delivered = 0;
    for item in &lease.items {
        for key in &item.keys {
            delivered += 1;
            // On conflict the item stays: an attempt keeps the peers that it was first handed out
            // with.
            let upsert = "INSERT INTO delivery (consumer, episode_key, item, item_size, lease, \
                free_at, state, changed_at) VALUES ($1, $2, $3, $4, $5, $6, 'leased', $7) \
                ON CONFLICT (consumer, episode_key) DO UPDATE SET lease = excluded.lease, \
                free_at = excluded.free_at, state = 'leased', changed_at = excluded.changed_at";
            query(upsert)
                .bind(&lease.consumer)
                .bind(*key)
                .bind(item.position)
                .bind(item.size as i64)
                .bind(&lease.id)
                .bind(lease.until)
                .bind(lease.at)
                .execute(connection)
                .await?;
        }
    }

    take_out(connection, &lease.consumer, &fresh).await?;
    follow(connection, &lease.consumer, &lease.id).await?;
    count(connection, &lease.consumer, "delivered", delivered).await?;
    Ok(count(connection, &lease.consumer, "redelivered", redelivered).await?)
}

async fn settle(connection: &mut StoreConnection, settlement: &Settlement) -> CommitResult {
    let Settlement { lease, disposition, at, .. } = settlement;
    if lease.is_empty() {
        // An earlier version gave returned attempts that were never sent this name.
        return Err(CommitError::NoLease(String::new()));
    }

    let LeasedAttempts { consumer, unsettled } = leased_attempts(connection, settlement).await?;
    let free_at = disposition.free_at(*at);
    let holder = if *disposition == Disposition::Unsent { unsent(lease) } else { lease.clone() };
    for key in &unsettled {
        let update = "UPDATE delivery SET lease = $3, state = $4, free_at = $5, changed_at = $6 \
                      WHERE consumer = $1 AND episode_key = $2";
        query(update)
            .bind(&consumer)
            .bind(*key)
            .bind(&holder)
            .bind(disposition.state())
            .bind(free_at)
            .bind(*at)
            .execute(connection)
            .await?;
    }

    if let Some(event) = disposition.event() {
        count(connection, &consumer, &event, unsettled.len() as i64).await?;
    }
    Ok(follow(connection, &consumer, &holder).await?)
}

/// The holder of attempts that a lease took and never sent. Their reader cannot settle them: no
/// path of a request can contain this name.
fn unsent(lease: &str) -> String {
    format!("unsent from {lease}")
}

/// The attempts of a lease that a settlement names.
struct LeasedAttempts {
    consumer: String,
    /// Those of them that are not settled.
    unsettled: Vec<i64>,
}

/// Finds the attempts that a settlement names. A settlement of all of a lease leaves out those that
/// were returned from it.
async fn leased_attempts(
    connection: &mut StoreConnection,
    settlement: &Settlement,
) -> Result<LeasedAttempts, CommitError> {
    let Settlement { lease, part, disposition, .. } = settlement;
    let rows = query("SELECT consumer, episode_key, free_at, state FROM delivery WHERE lease = $1")
        .bind(lease)
        .fetch_all(connection)
        .await?;
    let named = named_keys(connection, part).await?;

    let (mut consumer, mut unsettled) = (None, Vec::new());
    for row in &rows {
        let key: i64 = row.try_get("episode_key")?;
        if named.as_ref().is_some_and(|named| !named.contains(&key)) {
            continue;
        }

        // Returning what was returned before is a repetition, and no error.
        let is_returned = named.is_none() && row.try_get::<String>("state")? == "returned";
        if is_returned && !matches!(disposition, Disposition::Returned(_)) {
            continue;
        }
        consumer = Some(row.try_get::<String>("consumer")?);
        let is_settled = row.try_get::<Option<Micros>>("free_at")?.is_none();
        if !is_settled && !is_returned {
            unsettled.push(key);
        }
    }
    let consumer = consumer.ok_or_else(|| CommitError::NoLease(lease.clone()))?;
    Ok(LeasedAttempts { consumer, unsettled })
}

/// The keys that a part names; `None` where it is all of the lease.
async fn named_keys(
    connection: &mut StoreConnection,
    part: &LeasePart,
) -> Result<Option<Vec<i64>>, CommitError> {
    let attempts = match part {
        LeasePart::All => return Ok(None),
        LeasePart::Keys(keys) => return Ok(Some(keys.clone())),
        LeasePart::Attempts(attempts) => attempts,
    };
    let mut keys = Vec::with_capacity(attempts.len());
    for attempt in attempts {
        keys.push(find_attempt(connection, attempt).await?);
    }
    Ok(Some(keys))
}

impl Disposition {
    /// The state of the attempts in the table `delivery`.
    fn state(&self) -> String {
        match self {
            Self::Acked => "acked".to_owned(),
            Self::Returned(_) | Self::Unsent => "returned".to_owned(),
            Self::Renewed(_) => "leased".to_owned(),
            Self::Dropped(reason) => format!("dropped:{reason}"),
        }
    }

    /// The time from which the attempts may be handed out again; `None` where they are settled.
    fn free_at(&self, now: Micros) -> Option<Micros> {
        match self {
            Self::Returned(free_at) => Some(*free_at),
            Self::Unsent => Some(now),
            Self::Renewed(until) => Some(*until),
            Self::Acked | Self::Dropped(_) => None,
        }
    }

    /// The event in the table `tally`.
    fn event(&self) -> Option<String> {
        match self {
            Self::Acked => Some("acked".to_owned()),
            Self::Returned(_) => Some("nacked".to_owned()),
            Self::Dropped(reason) => Some(format!("dropped:{reason}")),
            Self::Unsent | Self::Renewed(_) => None,
        }
    }
}

/// Adds to a consumer's count of an event.
async fn count(
    connection: &mut StoreConnection,
    consumer: &str,
    event: &str,
    attempts: i64,
) -> Result<(), sqlx::Error> {
    if attempts == 0 {
        return Ok(());
    }
    let add = "INSERT INTO tally (consumer, what, attempts) VALUES ($1, $2, $3) \
        ON CONFLICT (consumer, what) DO UPDATE SET attempts = tally.attempts + excluded.attempts";
    query(add).bind(consumer).bind(event).bind(attempts).execute(connection).await
}

/// The last position that was given; 0 if there is none.
pub(crate) async fn last_position(connection: &mut StoreConnection) -> Result<i64, sqlx::Error> {
    let last = "SELECT position FROM finished ORDER BY position DESC LIMIT 1";
    let row: Option<Row> = query(last).fetch_optional(connection).await?;
    row.map_or(Ok(0), |row| row.first())
}
