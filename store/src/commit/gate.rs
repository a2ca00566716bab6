//! The gate of an attempt: which calls may begin. A call that the gate refuses leaves no trace in
//! the attempt, because it need not be of its agent.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use episode::{CallStart, Micros, Tag};

use crate::commit::episode_row::{EpisodeRow, budget_of};
use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::error::CommitError;
use crate::types::Budget;

/// Microseconds of a second.
const SECOND: Micros = 1_000_000;

/// The gate of an attempt, as the writer knows it. It is read again after every change over the
/// control listener.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The hash of the group, task and labels that were let in last.
    words: u64,
    is_keyed: bool,
    opened_at: Micros,
    budget: Budget,
    /// `None` while nothing is to be counted.
    spent: Option<Spent>,
    /// The keys that calls came with.
    keys: HashMap<String, KeyGate>,
}

/// The budget of one key.
#[derive(Debug)]
struct KeyGate {
    budget: Budget,
    spent: Spent,
}

/// Calls that have begun, and tokens that were sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Spent {
    calls: u64,
    tokens: u64,
}

impl Gate {
    /// The gate of an attempt that calls with the words of `tag` may enter. `default` is the budget
    /// of attempts that were announced without one.
    pub(crate) async fn read(
        connection: &mut StoreConnection,
        tag: &Tag,
        row: &EpisodeRow,
        default: Budget,
    ) -> Result<Self, sqlx::Error> {
        let budget = row.budget.or(default);
        let spent = match budget.counts() {
            true => Some(count_spent(connection, row.key, None).await?),
            false => None,
        };
        Ok(Self {
            words: words_of(tag),
            is_keyed: row.is_keyed,
            opened_at: row.opened_at,
            budget,
            spent,
            keys: HashMap::new(),
        })
    }

    /// True if calls with the words of `tag` were let in before.
    pub(crate) fn knows(&self, tag: &Tag) -> bool {
        self.words == words_of(tag)
    }

    /// True if every call with known words may enter.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_keyed && self.budget == Budget::default()
    }

    /// Lets a call in, and counts it; or says why not.
    pub(crate) async fn enter(
        &mut self,
        connection: &mut StoreConnection,
        episode_key: i64,
        begun: &CallStart,
        key: Option<&str>,
    ) -> Result<(), CommitError> {
        let tag = &begun.tag;
        self.check_key(connection, episode_key, tag, key).await?;

        let age = begun.started_at.saturating_sub(self.opened_at);
        if let Some(seconds) = self.budget.seconds
            && age >= i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(SECOND)
        {
            return Err(CommitError::Spent(seconds, "seconds"));
        }
        self.budget.check(self.spent.unwrap_or_default())?;
        let of_key = key.and_then(|key| self.keys.get_mut(key));
        if let Some(of_key) = &of_key {
            of_key.budget.check(of_key.spent)?;
        }

        // Only now: a call that is refused counts nowhere.
        for spent in self.spent.iter_mut().chain(of_key.map(|of_key| &mut of_key.spent)) {
            spent.calls += 1;
        }
        Ok(())
    }

    /// Checks that a keyed attempt gets a key that was made for it and holds.
    async fn check_key(
        &mut self,
        connection: &mut StoreConnection,
        episode_key: i64,
        tag: &Tag,
        key: Option<&str>,
    ) -> Result<(), CommitError> {
        let Some(key) = key else {
            return match self.is_keyed {
                true => Err(CommitError::NeedsKey(tag.episode.clone())),
                false => Ok(()),
            };
        };
        if self.keys.contains_key(key) {
            return Ok(());
        }

        let found = query("SELECT * FROM api_key WHERE key_id = $1")
            .bind(key)
            .fetch_optional(&mut *connection)
            .await?;
        // Its episode was pruned, it was made for another store, or by a version that kept no keys.
        let row = found.ok_or(CommitError::Revoked)?;
        if row.try_get::<Option<Micros>>("revoked_at")?.is_some() {
            return Err(CommitError::Revoked);
        }
        let budget = Budget { seconds: None, ..budget_of(&row)? };
        let spent = match budget.counts() {
            true => count_spent(connection, episode_key, Some(key)).await?,
            false => Spent::default(),
        };
        self.keys.insert(key.to_owned(), KeyGate { budget, spent });
        Ok(())
    }

    /// Counts the tokens of a call that has ended.
    pub(crate) fn add_tokens(&mut self, key: Option<&str>, tokens: u64) {
        let of_key = key.and_then(|key| self.keys.get_mut(key)).map(|of_key| &mut of_key.spent);
        for spent in self.spent.iter_mut().chain(of_key) {
            spent.tokens = spent.tokens.saturating_add(tokens);
        }
    }
}

impl Budget {
    /// True if calls and tokens must be counted.
    fn counts(self) -> bool {
        self.calls.is_some() || self.tokens.is_some()
    }

    /// The same, with the limits of `other` where this one has none.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            calls: self.calls.or(other.calls),
            tokens: self.tokens.or(other.tokens),
            seconds: self.seconds.or(other.seconds),
        }
    }

    fn check(self, spent: Spent) -> Result<(), CommitError> {
        for (limit, spent, unit) in
            [(self.calls, spent.calls, "calls"), (self.tokens, spent.tokens, "sampled tokens")]
        {
            if let Some(limit) = limit.filter(|limit| spent >= *limit) {
                return Err(CommitError::Spent(limit, unit));
            }
        }
        Ok(())
    }
}

/// Counts the recorded calls of an attempt, or of one key, and their sampled tokens.
async fn count_spent(
    connection: &mut StoreConnection,
    episode_key: i64,
    key: Option<&str>,
) -> Result<Spent, sqlx::Error> {
    let count = "SELECT count(*) AS calls, \
                 CAST(coalesce(sum(completion_tokens), 0) AS BIGINT) AS tokens \
                 FROM call WHERE episode_key = $1 AND ($2 IS NULL OR key_id = $2)";
    let row = query(count).bind(episode_key).bind(key).fetch_one(connection).await?;
    let number = |name| Ok::<_, sqlx::Error>(row.try_get::<i64>(name)?.unsigned_abs());
    Ok(Spent { calls: number("calls")?, tokens: number("tokens")? })
}

/// The hash of the group, task and labels of a tag.
pub(crate) fn words_of(tag: &Tag) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&tag.group, &tag.task, &tag.labels).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use episode::{AttemptId, CallStart, GroupId, Outcome, Tag};

    use crate::error::CommitResult;
    use crate::site::on_both;
    use crate::tests::{announced, begun, ended};
    use crate::types::{Announcement, ApiKeyRecord, Budget, Limits};
    use crate::{CommitError, Durability, PruneFilter, Selection, Store};

    async fn begin(store: &Store, begun: CallStart, key: Option<&str>) -> CommitResult {
        store.begin_with_key(begun, key.map(str::to_owned)).await.done().await
    }

    fn bare(episode: &str, at: i64) -> CallStart {
        let mut begun = begun(episode, at);
        (begun.tag.group, begun.tag.labels) = (None, Vec::new());
        begun
    }

    fn key(id: &str, attempt: u32, calls: Option<u64>) -> ApiKeyRecord {
        ApiKeyRecord {
            id: id.to_owned(),
            attempt: AttemptId { episode: "a".parse().unwrap(), attempt },
            made_at: 1,
            expires_at: 100,
            budget: Budget { calls, ..Budget::default() },
        }
    }

    async fn group_of(store: &Store, episode: &str) -> Option<GroupId> {
        let selection =
            Selection { episode: Some(episode.parse().unwrap()), ..Selection::default() };
        let mut snapshot = store.snapshot().await.unwrap();
        snapshot.episodes(&selection).await.unwrap().remove(0).group
    }

    #[tokio::test]
    async fn an_episode_with_a_key_takes_only_calls_with_one() {
        on_both(async |site| {
            let (store, _writer) = site.open().await;
            begin(&store, bare("a", 1), None).await.unwrap();
            store.add_key(key("k1", 0, None)).await.unwrap();
            store.add_key(key("k2", 0, Some(1))).await.unwrap();
            let refused = begin(&store, bare("a", 2), None).await;
            assert!(matches!(refused, Err(CommitError::NeedsKey(_))));
            let mut other_attempt = bare("a", 2);
            other_attempt.tag.attempt = 5;
            let refused = begin(&store, other_attempt, None).await;
            assert!(matches!(refused, Err(CommitError::NeedsKey(_))));
            let refused = begin(&store, bare("a", 2), Some("unknown")).await;
            assert!(matches!(refused, Err(CommitError::Revoked)));

            begin(&store, bare("a", 3), Some("k1")).await.unwrap();
            begin(&store, bare("a", 4), Some("k2")).await.unwrap();
            let refused = begin(&store, bare("a", 5), Some("k2")).await;
            assert!(matches!(refused, Err(CommitError::Spent(1, "calls"))));
            let attempt: AttemptId = key("k1", 0, None).attempt;
            let unknown = store.revoke_keys(attempt.clone(), Some("k3".to_owned()), 6).await;
            assert!(matches!(unknown, Err(CommitError::UnknownKey(_))));
            store.revoke_keys(attempt.clone(), Some("k1".to_owned()), 6).await.unwrap();
            let refused = begin(&store, bare("a", 7), Some("k1")).await;
            assert!(matches!(refused, Err(CommitError::Revoked)));

            let mut snapshot = store.snapshot().await.unwrap();
            let counted = snapshot.budgeted_attempts().await.unwrap();
            assert_eq!(counted, std::slice::from_ref(&attempt));
            let summaries = snapshot.summaries(&Selection::default()).await.unwrap();
            assert_eq!((summaries.len(), summaries[0].calls), (1, 3), "a refusal leaves no trace");
            store.close(attempt, 8, None).await.unwrap();
            let late = store.add_key(key("k4", 0, None)).await;
            assert!(matches!(late, Err(CommitError::Closed(..))));
        })
        .await;
    }

    #[tokio::test]
    async fn what_was_announced_stands_and_its_group_takes_nobody_else() {
        on_both(async |site| {
            let (store, _writer) = site.open().await;
            // The tag of `begun` names the group `g` and a label.
            for episode in ["a", "b"] {
                begin(&store, begun(episode, 1), None).await.unwrap();
            }
            let real = |group: &str| {
                let mut tag: Tag = bare("a", 2).tag;
                tag.group = Some(group.parse().unwrap());
                announced(tag)
            };
            store.announce(real("g")).await.unwrap();
            assert_eq!(group_of(&store, "a").await.unwrap().as_str(), "g");
            assert_eq!(group_of(&store, "b").await, None, "it was not announced");
            for (episode, kind) in [("a", "label"), ("b", "group"), ("c", "group")] {
                let refused = begin(&store, begun(episode, 3), None).await;
                let is_expected =
                    matches!(&refused, Err(CommitError::Announced(found, _)) if *found == kind);
                assert!(is_expected, "{episode}: {refused:?}");
            }
            begin(&store, bare("a", 4), None).await.unwrap();
            let conflict = store.announce(real("h")).await;
            assert!(matches!(conflict, Err(CommitError::Announced("group", _))));
            assert_eq!(group_of(&store, "a").await.unwrap().as_str(), "g");
        })
        .await;
    }

    #[tokio::test]
    async fn a_budget_outlives_the_writer() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            let budget = Budget { tokens: Some(4), calls: Some(9), seconds: Some(10) };
            let announcement = announced(bare("a", 1).tag);
            store.announce(Announcement { budget, ..announcement }).await.unwrap();
            let spend = async |store: &Store, at| {
                let begun = bare("a", at);
                let mut end = ended(begun.call_id);
                end.usage.completion = Some(2);
                begin(store, begun, None).await?;
                store.end(end).await.done().await
            };
            spend(&store, 6).await.unwrap();
            drop(store);
            writer.finish().await;

            let (store, writer) = site.open().await;
            spend(&store, 7).await.unwrap();
            let spent = spend(&store, 8).await;
            assert!(matches!(spent, Err(CommitError::Spent(4, "sampled tokens"))), "{spent:?}");
            let late = spend(&store, 10_000_006).await;
            assert!(matches!(late, Err(CommitError::Spent(10, "seconds"))), "{late:?}");
            let budget = Budget { calls: Some(1), ..Budget::default() };
            store.set_limits(Limits { budget, ..Limits::default() }).await.unwrap();
            begin(&store, bare("b", 1), None).await.unwrap();
            let spent = begin(&store, bare("b", 2), None).await;
            assert!(matches!(spent, Err(CommitError::Spent(1, "calls"))), "{spent:?}");
            drop(store);
            writer.finish().await;
        })
        .await;
    }

    #[tokio::test]
    async fn a_call_that_was_cut_has_ended_and_the_store_is_sound() {
        on_both(async |site| {
            let (store, _writer) = site.open().await;
            let (cut, whole) = (bare("a", 1), bare("a", 2));
            for begun in [&cut, &whole] {
                begin(&store, begun.clone(), None).await.unwrap();
            }
            store.end(ended(whole.call_id)).await.done().await.unwrap();
            store.cut(vec![cut.call_id, whole.call_id], 5).await.unwrap();
            let late = store.end(ended(cut.call_id)).await.done().await;
            assert!(matches!(late, Err(CommitError::NotBegun(_))));
            let mut snapshot = store.snapshot().await.unwrap();
            let call = snapshot.call(cut.call_id).await.unwrap().unwrap();
            assert_eq!(call.ended.unwrap().outcome, Outcome::ClientGone);
            let call = snapshot.call(whole.call_id).await.unwrap().unwrap();
            assert_eq!(call.ended, Some(ended(whole.call_id)), "one that has ended stays");
            let damage = crate::verify(&site.at).await.unwrap().damage;
            assert!(damage.is_empty(), "{damage:?}");
        })
        .await;
    }

    async fn labels_of(store: &Store, episode: &str) -> Vec<(String, String)> {
        let selection =
            Selection { episode: Some(episode.parse().unwrap()), ..Selection::default() };
        store.snapshot().await.unwrap().episodes(&selection).await.unwrap().remove(0).labels
    }

    #[tokio::test]
    async fn a_refusal_leaves_no_trace() {
        on_both(async |site| {
            let (store, _writer) = site.open().await;
            store.add_key(key("k1", 0, Some(0))).await.unwrap();
            let spent = begin(&store, begun("a", 1), Some("k1")).await;
            assert!(matches!(spent, Err(CommitError::Spent(0, "calls"))), "{spent:?}");
            assert_eq!((group_of(&store, "a").await, labels_of(&store, "a").await), (None, vec![]));
            let refused = begin(&store, begun("new", 1), Some("k2")).await;
            assert!(matches!(refused, Err(CommitError::Revoked)), "{refused:?}");
            let all = store.snapshot().await.unwrap().episodes(&Selection::default()).await;
            assert_eq!(all.unwrap().len(), 1, "no attempt was made for it");

            begin(&store, bare("b", 1), None).await.unwrap();
            let mut many = bare("b", 2);
            let label = |n: usize| (format!("l{n}"), "x".to_owned());
            many.tag.labels = (0..101).map(label).collect();
            let refused = begin(&store, many, None).await;
            assert!(matches!(refused, Err(CommitError::TooManyLabels(_))), "{refused:?}");
            assert_eq!(labels_of(&store, "b").await, []);

            let mut tag = bare("b", 3).tag;
            tag.group = Some("first".parse().unwrap());
            store.announce(announced(tag.clone())).await.unwrap();
            tag.labels = vec![label(1)];
            tag.task = Some("t".parse().unwrap());
            tag.group = Some("second".parse().unwrap());
            assert!(store.announce(announced(tag)).await.is_err());
            assert_eq!(labels_of(&store, "b").await, []);
            assert_eq!(group_of(&store, "b").await.unwrap().as_str(), "first");

            begin(&store, bare("c", 1), None).await.unwrap();
            store.close("c/0".parse().unwrap(), 4, None).await.unwrap();
            assert!(begin(&store, begun("c", 5), None).await.is_err());
            assert_eq!((group_of(&store, "c").await, labels_of(&store, "c").await), (None, vec![]));
        })
        .await;
    }

    #[tokio::test]
    async fn where_calls_may_be_lost_keys_and_budgets_hold_all_the_same() {
        on_both(async |site| {
            let (store, _writer) = site.open_as(Durability::Relaxed).await;
            let two = Budget { calls: Some(2), ..Budget::default() };
            let announcement = announced(bare("b", 1).tag);
            store.announce(Announcement { budget: two, ..announcement }).await.unwrap();
            for at in 1..=2 {
                begin(&store, bare("b", at), None).await.unwrap();
            }
            let spent = begin(&store, bare("b", 3), None).await;
            assert!(matches!(spent, Err(CommitError::Spent(2, "calls"))), "{spent:?}");

            for at in 1..=3 {
                begin(&store, bare("a", at), None).await.unwrap();
            }
            store.add_key(key("k1", 0, None)).await.unwrap();
            let refused = begin(&store, bare("a", 4), None).await;
            assert!(matches!(refused, Err(CommitError::NeedsKey(_))), "{refused:?}");
            begin(&store, bare("a", 5), Some("k1")).await.unwrap();
            let attempt = key("k1", 0, None).attempt;
            store.revoke_keys(attempt, None, 6).await.unwrap();
            let refused = begin(&store, bare("a", 7), Some("k1")).await;
            assert!(matches!(refused, Err(CommitError::Revoked)), "{refused:?}");

            begin(&store, bare("c", 1), None).await.unwrap();
            let mut named = bare("c", 2).tag;
            named.task = Some("t".parse().unwrap());
            store.announce(announced(named)).await.unwrap();
            let mut other = bare("c", 3);
            other.tag.task = Some("u".parse().unwrap());
            let refused = begin(&store, other, None).await;
            assert!(matches!(refused, Err(CommitError::Announced("task", _))), "{refused:?}");
        })
        .await;
    }

    #[tokio::test]
    async fn a_key_of_a_pruned_episode_opens_nothing() {
        on_both(async |site| {
            let (store, writer) = site.open().await;
            store.add_key(key("k1", 0, None)).await.unwrap();
            begin(&store, bare("a", 1), Some("k1")).await.unwrap();
            store.close("a/0".parse().unwrap(), 2, None).await.unwrap();
            drop(store);
            writer.finish().await;
            crate::prune(&site.at, &PruneFilter { now: 3, ..PruneFilter::default() })
                .await
                .unwrap();

            let (store, _writer) = site.open().await;
            let refused = begin(&store, bare("a", 4), Some("k1")).await;
            assert!(matches!(refused, Err(CommitError::Revoked)), "{refused:?}");
        })
        .await;
    }
}
