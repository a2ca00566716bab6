//! Admission by version: how many attempts may be under way before a consumer has trained on them.
//!
//! The table `admitted` has the attempts that began and that the consumer has not settled. All
//! processes that record into one database count the same rows, under the lock of the feed.

use std::collections::{HashMap, HashSet};

use episode::{AttemptId, GroupId, Micros};

use crate::attempts::attempt_of;
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;

/// Time in which the first call of an admitted attempt makes its episode. An attempt without one is
/// forgotten then: its call was refused, or its episode was pruned.
const FIRST_CALL_US: Micros = 60_000_000;

/// A rule by which attempts may begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRule {
    /// The consumer of the feed that trains on them.
    pub consumer: String,
    /// Attempts that it trains on between two versions of the weights.
    pub batch_attempts: u32,
    /// The most versions between the beginning of an attempt and its training.
    pub max_versions: u32,
    /// True if groups begin as a whole, and attempts without a group are not counted.
    pub whole_groups: bool,
    /// Attempts in a group that was announced without its size.
    pub group_size: Option<u32>,
    /// Longest wait of a first call, in microseconds.
    pub wait: Micros,
    /// Time without a call after which an open attempt no longer counts, in microseconds.
    pub idle: Micros,
    /// The time at which the rule was set.
    pub set_at: Micros,
}

impl AdmissionRule {
    /// The most attempts that may be under way.
    pub fn limit(&self) -> u64 {
        u64::from(self.batch_attempts) * (u64::from(self.max_versions) + 1)
    }
}

/// An attempt that would begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionCandidate {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its group.
    pub group: Option<GroupId>,
}

/// Counts of the attempts that a rule counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdmissionCounts {
    /// Open attempts.
    pub open: u64,
    /// Closed attempts that the consumer has not settled.
    pub finished: u64,
    /// Open attempts that no longer count because they had no call for long.
    pub idle: u64,
    /// The places that are taken: open and finished attempts, and the rest of groups that began.
    pub taken: u64,
}

/// Places by the attempts and groups that take them.
#[derive(Debug, Default)]
struct Places {
    taken: u64,
    /// Members of each group that began, and its size.
    groups: HashMap<String, (u64, u64)>,
}

impl Places {
    /// Counts an attempt. A group takes all its places with its first member.
    fn add(&mut self, group: Option<(&str, u64)>) {
        let Some((group, size)) = group else {
            self.taken += 1;
            return;
        };
        let (members, of) = self.groups.entry(group.to_owned()).or_insert((0, size));
        if members.is_multiple_of(*of) {
            self.taken += *of;
        }
        *members += 1;
    }

    /// Counts an attempt if there is a place for it; returns whether there is.
    fn admit(&mut self, group: Option<(&str, u64)>, limit: u64) -> bool {
        let has_place = group
            .and_then(|(group, _)| self.groups.get(group))
            .is_some_and(|(members, size)| !members.is_multiple_of(*size));
        // A group that is larger than the limit begins alone.
        let places = group.map_or(1, |(_, size)| size);
        if !has_place && self.taken > 0 && self.taken + places > limit {
            return false;
        }
        self.add(group);
        true
    }
}

/// The condition that a consumer, `$1`, has settled the attempt of a row of `admitted`, `a`, or
/// began after it.
const SETTLED: &str = "EXISTS (SELECT 1 FROM finished f \
    LEFT JOIN delivery d ON d.consumer = $1 AND d.episode_key = f.episode_key \
    WHERE f.episode_key = e.episode_key \
    AND ((d.episode_key IS NOT NULL AND d.free_at IS NULL) \
        OR (f.position <= coalesce((SELECT floor FROM consumer WHERE consumer = $1), 0) \
            AND NOT EXISTS (SELECT 1 FROM unsettled u \
                WHERE u.consumer = $1 AND u.episode_key = f.episode_key))))";

/// An attempt that began.
struct Admitted {
    attempt: AttemptId,
    group: Option<String>,
    /// The size that its group was announced with.
    size: Option<i64>,
    /// True if it has an episode, as it does from its first call on.
    has_episode: bool,
    is_closed: bool,
    is_settled: bool,
    admitted_at: Micros,
    /// The beginning of its last call.
    called_at: Option<Micros>,
}

/// The state of an admitted attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    Finished,
    Idle,
    /// It is settled, or never began: it is forgotten.
    Over,
}

impl Admitted {
    fn of(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            attempt: attempt_of(row)?,
            group: row.try_get("group_id")?,
            size: row.try_get("size")?,
            has_episode: row.try_get("has_episode")?,
            is_closed: row.try_get("is_closed")?,
            is_settled: row.try_get("is_settled")?,
            admitted_at: row.try_get("admitted_at")?,
            called_at: row.try_get("called_at")?,
        })
    }

    fn standing(&self, rule: &AdmissionRule, now: Micros) -> Standing {
        let seen_at = self.called_at.unwrap_or_default().max(self.admitted_at);
        let is_counted = self.group.is_some() || !rule.whole_groups;
        let is_lost = !self.has_episode && now - self.admitted_at > FIRST_CALL_US;
        match () {
            () if self.is_settled || is_lost || !is_counted => Standing::Over,
            () if self.is_closed => Standing::Finished,
            () if now - seen_at > rule.idle => Standing::Idle,
            () => Standing::Open,
        }
    }

    /// The group that begins as a whole, and its size.
    fn whole_group(&self, rule: &AdmissionRule) -> Option<(&str, u64)> {
        whole_group(rule, self.group.as_deref(), self.size)
    }
}

/// The group that begins as a whole, and its size. One whose size nobody said begins one by one.
fn whole_group<'a>(
    rule: &AdmissionRule,
    group: Option<&'a str>,
    announced: Option<i64>,
) -> Option<(&'a str, u64)> {
    let group = group.filter(|_| rule.whole_groups)?;
    let announced = announced.map(i64::unsigned_abs);
    let size = announced.or(rule.group_size.map(u64::from)).filter(|size| *size > 0)?;
    Some((group, size))
}

impl Snapshot {
    /// The rule by which attempts may begin, if there is one.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn admission_rule(&mut self) -> Result<Option<AdmissionRule>, SnapshotError> {
        Ok(rule(self.connection()).await?)
    }

    /// The attempts that a rule counts, in numbers.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn admission_counts(
        &mut self,
        rule: &AdmissionRule,
        now: Micros,
    ) -> Result<AdmissionCounts, SnapshotError> {
        let (mut counts, mut places) = (AdmissionCounts::default(), Places::default());
        for one in all_admitted(self.connection(), rule).await? {
            match one.standing(rule, now) {
                Standing::Open => counts.open += 1,
                Standing::Finished => counts.finished += 1,
                Standing::Idle => counts.idle += 1,
                Standing::Over => {}
            }
            if matches!(one.standing(rule, now), Standing::Open | Standing::Finished) {
                places.add(one.whole_group(rule));
            }
        }
        counts.taken = places.taken;
        Ok(counts)
    }

    /// The attempts that were admitted and are not settled.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn admitted(&mut self) -> Result<HashSet<AttemptId>, SnapshotError> {
        let rows = query("SELECT episode_id, attempt FROM admitted");
        let rows = rows.fetch_all(self.connection()).await?;
        Ok(rows.iter().map(attempt_of).collect::<Result<_, _>>()?)
    }
}

async fn rule(connection: &mut StoreConnection) -> Result<Option<AdmissionRule>, sqlx::Error> {
    let row = query("SELECT * FROM admission").fetch_optional(connection).await?;
    let Some(row) = row else { return Ok(None) };
    let number = |name: &str| row.try_get::<i64>(name).map(narrow);
    Ok(Some(AdmissionRule {
        consumer: row.try_get("consumer")?,
        batch_attempts: number("batch_attempts")?,
        max_versions: number("max_versions")?,
        whole_groups: number("whole_groups")? > 0,
        group_size: row.try_get::<Option<i64>>("group_size")?.map(narrow),
        wait: row.try_get("wait_us")?,
        idle: row.try_get("idle_us")?,
        set_at: row.try_get("set_at")?,
    }))
}

fn narrow(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

async fn all_admitted(
    connection: &mut StoreConnection,
    rule: &AdmissionRule,
) -> Result<Vec<Admitted>, sqlx::Error> {
    let select = format!(
        "SELECT a.episode_id, a.attempt, a.group_id, a.admitted_at, s.size, \
         e.episode_key IS NOT NULL AS has_episode, e.closed_at IS NOT NULL AS is_closed, \
         {SETTLED} AS is_settled, (SELECT max(c.started_at) FROM call c \
            WHERE c.episode_key = e.episode_key) AS called_at \
         FROM admitted a LEFT JOIN group_size s ON s.group_id = a.group_id \
         LEFT JOIN episode e ON e.episode_id = a.episode_id AND e.attempt = a.attempt"
    );
    let rows = query(select).bind(&rule.consumer).fetch_all(connection).await?;
    rows.iter().map(Admitted::of).collect()
}

/// Sets the rule, or lifts it. With a rule, the attempts that began before are counted.
pub(crate) async fn set_rule(
    connection: &mut StoreConnection,
    rule: Option<&AdmissionRule>,
) -> Result<(), sqlx::Error> {
    query("DELETE FROM admission").execute(connection).await?;
    let Some(rule) = rule else {
        return query("DELETE FROM admitted").execute(connection).await;
    };
    let insert = "INSERT INTO admission (admission_key, consumer, batch_attempts, max_versions, \
        whole_groups, group_size, wait_us, idle_us, set_at) \
        VALUES (1, $1, $2, $3, $4, $5, $6, $7, $8)";
    query(insert)
        .bind(&rule.consumer)
        .bind(rule.batch_attempts)
        .bind(rule.max_versions)
        .bind(i64::from(rule.whole_groups))
        .bind(rule.group_size)
        .bind(rule.wait)
        .bind(rule.idle)
        .bind(rule.set_at)
        .execute(connection)
        .await?;

    // One that was announced begins with its first call. One that nobody closes is idle some time
    // after its last call.
    let began = format!(
        "INSERT INTO admitted (episode_id, attempt, group_id, admitted_at) \
         SELECT e.episode_id, e.attempt, e.group_id, e.opened_at FROM episode e \
         WHERE NOT {SETTLED} AND (e.closed_at IS NOT NULL OR EXISTS \
            (SELECT 1 FROM call c WHERE c.episode_key = e.episode_key)) ON CONFLICT DO NOTHING"
    );
    query(began).bind(&rule.consumer).execute(connection).await
}

/// Admits those candidates that the rule lets begin, in their order. Those that were admitted
/// before stay.
pub(crate) async fn admit(
    connection: &mut StoreConnection,
    candidates: &[AdmissionCandidate],
    now: Micros,
) -> Result<(), sqlx::Error> {
    let Some(rule) = rule(connection).await? else { return Ok(()) };
    let (mut places, mut known) = (Places::default(), HashSet::new());
    for one in all_admitted(connection, &rule).await? {
        match one.standing(&rule, now) {
            Standing::Over => forget(connection, &one.attempt).await?,
            standing => {
                if standing != Standing::Idle {
                    places.add(one.whole_group(&rule));
                }
                known.insert(one.attempt);
            }
        }
    }

    let mut sizes = HashMap::new();
    for candidate in candidates {
        if known.contains(&candidate.attempt) {
            continue;
        }
        let group = candidate.group.as_ref().map(GroupId::as_str);
        let announced = match group.filter(|_| rule.whole_groups) {
            Some(group) => announced_size(connection, &mut sizes, group).await?,
            None => None,
        };
        if places.admit(whole_group(&rule, group, announced), rule.limit()) {
            insert(connection, candidate, now).await?;
        }
    }
    Ok(())
}

async fn announced_size(
    connection: &mut StoreConnection,
    sizes: &mut HashMap<String, Option<i64>>,
    group: &str,
) -> Result<Option<i64>, sqlx::Error> {
    if let Some(known) = sizes.get(group) {
        return Ok(*known);
    }
    let select = query("SELECT size FROM group_size WHERE group_id = $1").bind(group);
    let row = select.fetch_optional(connection).await?;
    let size = row.map(|row| row.first::<i64>()).transpose()?;
    sizes.insert(group.to_owned(), size);
    Ok(size)
}

async fn insert(
    connection: &mut StoreConnection,
    candidate: &AdmissionCandidate,
    now: Micros,
) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO admitted (episode_id, attempt, group_id, admitted_at) \
        VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    query(insert)
        .bind(candidate.attempt.episode.as_str())
        .bind(candidate.attempt.attempt)
        .bind(candidate.group.as_ref().map(GroupId::as_str))
        .bind(now)
        .execute(connection)
        .await
}

async fn forget(connection: &mut StoreConnection, attempt: &AttemptId) -> Result<(), sqlx::Error> {
    query("DELETE FROM admitted WHERE episode_id = $1 AND attempt = $2")
        .bind(attempt.episode.as_str())
        .bind(attempt.attempt)
        .execute(connection)
        .await
}

#[cfg(test)]
mod tests {
    use crate::feed::types::{Disposition, FeedItem, Lease, LeasePart, Settlement};
    use crate::site::on_both;
    use crate::tests::{announced, begun};
    use crate::{Store, Writer};

    use super::*;

    fn rule(whole_groups: bool) -> AdmissionRule {
        AdmissionRule {
            consumer: "t".to_owned(),
            batch_attempts: 2,
            max_versions: 1,
            whole_groups,
            group_size: None,
            wait: 0,
            idle: 1000,
            set_at: 1,
        }
    }

    fn candidate(episode: &str, group: Option<&str>) -> AdmissionCandidate {
        AdmissionCandidate {
            attempt: AttemptId { episode: episode.parse().unwrap(), attempt: 0 },
            group: group.map(|group| group.parse().unwrap()),
        }
    }

    /// Admits in order; returns those that are admitted now.
    async fn admit(store: &Store, wanted: &[(&str, Option<&str>)], at: Micros) -> Vec<String> {
        let candidates = wanted.iter().map(|(episode, group)| candidate(episode, *group));
        store.admit(candidates.collect(), at).await.unwrap();
        admitted(store).await
    }

    async fn admitted(store: &Store) -> Vec<String> {
        let all = store.snapshot().await.unwrap().admitted().await.unwrap();
        let mut names: Vec<_> = all.iter().map(|one| one.episode.to_string()).collect();
        names.sort();
        names
    }

    async fn call(store: &Store, episode: &str, at: Micros) {
        let mut start = begun(episode, at);
        start.started_at = at;
        store.begin(start).await.done().await.unwrap();
    }

    /// Closes an attempt without a call under way, and has the consumer ack it.
    async fn train(store: &Store, episode: &str, position: i64) {
        store.announce(announced(begun(episode, 1).tag)).await.unwrap();
        store
            .close(AttemptId { episode: episode.parse().unwrap(), attempt: 0 }, 1, None)
            .await
            .unwrap();
        let selection = crate::Selection {
            episode: Some(episode.parse().unwrap()),
            ..crate::Selection::default()
        };
        let found = store.snapshot().await.unwrap().episodes(&selection).await.unwrap();
        let items = vec![FeedItem::new(position, vec![found[0].key])];
        let (consumer, id) = ("t".to_owned(), episode.to_owned());
        store.begin_consumer("t", 0).await.unwrap();
        store.fill_consumer("t").await.unwrap();
        store.lease(Lease { id: id.clone(), consumer, items, until: 100, at: 1 }).await.unwrap();
        let disposition = Disposition::Acked;
        let done = Settlement { lease: id, part: LeasePart::All, disposition, at: 2 };
        store.settle(done).await.unwrap();
    }

    async fn counts(store: &Store, rule: &AdmissionRule, now: Micros) -> AdmissionCounts {
        store.snapshot().await.unwrap().admission_counts(rule, now).await.unwrap()
    }

    async fn end(store: Store, writer: Writer) {
        drop(store);
        writer.finish().await;
    }

    #[tokio::test]
    async fn no_more_attempts_begin_than_are_trained_in_time() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            assert!(admit(&store, &[("a", None)], 1).await.is_empty(), "there is no rule");
            store.set_admission(Some(rule(false))).await.unwrap();
            assert_eq!(
                store.snapshot().await.unwrap().admission_rule().await.unwrap(),
                Some(rule(false))
            );
            let all = ["a", "b", "c", "d", "e"].map(|name| (name, None));
            assert_eq!(admit(&store, &all, 1).await, ["a", "b", "c", "d"]);
            assert_eq!(admit(&store, &[("e", None)], 2).await, ["a", "b", "c", "d"]);

            // One that is closed counts until it is settled.
            train(&store, "a", 1).await;
            assert_eq!(admit(&store, &[("e", None)], 3).await, ["b", "c", "d", "e"]);
            store.set_admission(None).await.unwrap();
            assert!(admitted(&store).await.is_empty());
            end(store, writer).await;
        })
        .await;
    }

    #[tokio::test]
    async fn attempts_that_began_before_the_rule_count() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            call(&store, "a", 1).await;
            train(&store, "b", 1).await;
            store.announce(announced(begun("c", 1).tag)).await.unwrap();
            store.set_admission(Some(rule(false))).await.unwrap();
            assert_eq!(admitted(&store).await, ["a"]);
            let open = AdmissionCounts { open: 1, taken: 1, ..AdmissionCounts::default() };
            assert_eq!(counts(&store, &rule(false), 500).await, open);
            end(store, writer).await;
        })
        .await;
    }

    #[tokio::test]
    async fn an_attempt_without_calls_for_long_takes_no_place() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            store.set_admission(Some(rule(false))).await.unwrap();
            let all = ["a", "b", "c", "d"].map(|name| (name, None));
            admit(&store, &all, 1).await;
            for name in ["a", "b", "c"] {
                call(&store, name, 1).await;
            }
            let late = 2000;
            let found = counts(&store, &rule(false), late).await;
            assert_eq!((found.idle, found.taken), (4, 0));
            call(&store, "a", late).await;
            assert_eq!(counts(&store, &rule(false), late).await.open, 1, "it came back");
            // One that never had a call is forgotten.
            assert_eq!(admit(&store, &[], FIRST_CALL_US + 2).await, ["a", "b", "c"]);
            end(store, writer).await;
        })
        .await;
    }

    #[tokio::test]
    async fn a_group_begins_as_a_whole() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            let whole = AdmissionRule { group_size: Some(2), ..rule(true) };
            store.set_admission(Some(whole.clone())).await.unwrap();
            let (g, h, i) = (Some("g"), Some("h"), Some("i"));
            let wanted = [("a", g), ("b", h), ("c", i), ("d", g)];
            // Two groups take all places with their first members; a third one has to wait.
            assert_eq!(admit(&store, &wanted, 1).await, ["a", "b", "d"]);
            let found = counts(&store, &whole, 1).await;
            assert_eq!((found.open, found.taken), (3, 4));
            // The rest of a group begins; the same name again is another group.
            let rest = [("e", g), ("f", h), ("k", h)];
            assert_eq!(admit(&store, &rest, 2).await, ["a", "b", "d", "f"]);
            let large = AdmissionRule { group_size: Some(9), ..rule(true) };
            store.set_admission(None).await.unwrap();
            store.set_admission(Some(large)).await.unwrap();
            let wanted = [("a", g), ("b", h), ("c", g)];
            assert_eq!(admit(&store, &wanted, 1).await, ["a", "c"], "never alone would be never");
            end(store, writer).await;
        })
        .await;
    }
}
