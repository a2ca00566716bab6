//! The feed against a model that keeps all attempts in a list, and looks at all of them each time.

use std::collections::{BTreeMap, BTreeSet};

use episode::{AttemptId, Micros, Reward, RewardScope, Tag};
use proptest::prelude::*;

use crate::database::query::query;
use crate::feed::tests::{LATE, named, ready, wanted};
use crate::feed::types::*;
use crate::site::Site;
use crate::tests::announced;
use crate::{Announcement, Durability, PruneFilter, Selection, Store, prune};

/// The length of a lease.
const LEASE: Micros = 10;
/// Consumers, by number.
const CONSUMERS: [&str; 2] = ["t", "u"];

/// A change of the feed.
#[derive(Debug, Clone)]
enum Change {
    /// An attempt of a group, a task and a size that its group is announced with.
    Finish(Option<u8>, u8, Option<u32>),
    Reward(usize),
    /// The items of a question, as many as this, for a consumer.
    Take(usize, usize, usize),
    /// Of a lease: what it still holds, or one attempt of it.
    Settle(usize, bool, Disposition),
    Prune(usize),
    Sleep,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let group = prop::option::weighted(0.8, 0..3_u8);
    let fates = vec![
        Disposition::Acked,
        Disposition::Dropped("stale"),
        Disposition::Returned(0),
        Disposition::Returned(LEASE),
        Disposition::Unsent,
        Disposition::Renewed(LEASE),
    ];

    let settle = (0..9_usize, any::<bool>(), prop::sample::select(fates));
    let one = prop_oneof![
        8 => (group, 0..2_u8, prop::option::weighted(0.2, 2..4_u32))
            .prop_map(|(group, task, size)| Change::Finish(group, task, size)),
        2 => (0..20_usize).prop_map(Change::Reward),
        6 => (0..9_usize, 0..2_usize, 1..4_usize).prop_map(|(q, c, n)| Change::Take(q, c, n)),
        6 => settle.prop_map(|(lease, is_one, fate)| Change::Settle(lease, is_one, fate)),
        1 => (0..20_usize).prop_map(Change::Prune),
        2 => Just(Change::Sleep),
    ];
    prop::collection::vec(one, 1..40)
}

/// The questions that readers ask.
fn question(number: usize, consumer: &str, now: Micros) -> FeedQuery {
    let group = |size, wait| FeedUnit::Group(GroupLimits { size, wait });
    let of = |unit| wanted(consumer, unit, now);
    let task = || Selection { task: Some("t0".parse().unwrap()), ..Selection::default() };
    match number {
        0 => of(FeedUnit::Episode),
        1 => FeedQuery { selection: task(), ..of(FeedUnit::Episode) },
        2 => of(group(None, None)),
        3 => of(group(Some(2), None)),
        4 => of(group(Some(3), Some(2 * LEASE))),
        5 => FeedQuery { rewarded: true, ..of(group(Some(2), None)) },
        6 => FeedQuery { selection: task(), ..of(group(Some(2), None)) },
        7 => FeedQuery { rewarded: true, ..of(FeedUnit::Episode) },
        _ => {
            let selection =
                Selection { group: Some("g1".parse().unwrap()), ..Selection::default() };
            FeedQuery { selection, ..of(group(Some(2), None)) }
        }
    }
}

#[derive(Debug, Clone)]
struct Finished {
    name: String,
    key: i64,
    position: i64,
    group: Option<String>,
    task: String,
    at: Micros,
    is_rewarded: bool,
}

/// The fate of an attempt at a consumer.
#[derive(Debug, Clone)]
struct Handed {
    item: i64,
    lease: usize,
    /// `None` where it is settled.
    free_at: Option<Micros>,
    is_returned: bool,
}

/// A reader's question, and how many of the items it leases.
struct Taking {
    number: usize,
    consumer: usize,
    some: usize,
}

/// The fate of what a lease holds, or of the first of it.
struct Settling {
    lease: usize,
    is_one: bool,
    fate: Disposition,
}

#[derive(Default)]
struct FeedModel {
    attempts: Vec<Finished>,
    sizes: BTreeMap<String, u32>,
    handed: [BTreeMap<i64, Handed>; 2],
    /// The consumers of leases.
    leases: Vec<usize>,
}

/// A part of a group, or an attempt alone: the item, and the keys of those that are ready.
type Ready = BTreeSet<(i64, Vec<i64>)>;

impl FeedModel {
    /// The attempts that a question selects and nobody holds.
    fn selected(&self, consumer: usize, asked: &FeedQuery) -> Vec<&Finished> {
        let is_free = |one: &&Finished| {
            let handed = self.handed[consumer].get(&one.key);
            handed.is_none_or(|handed| handed.free_at.is_some_and(|at| at <= asked.now))
        };
        let is_asked = |one: &&Finished| {
            let Selection { group, task, .. } = &asked.selection;
            group.as_ref().is_none_or(|group| one.group.as_deref() == Some(group.as_str()))
                && task.as_ref().is_none_or(|task| one.task == task.as_str())
        };
        self.attempts.iter().filter(is_free).filter(is_asked).collect()
    }

    /// The items that are ready, and the groups that wait, with their members and sizes.
    fn look(&self, consumer: usize, asked: &FeedQuery) -> (Ready, Vec<WaitingGroup>) {
        let mut all = self.selected(consumer, asked);
        all.retain(|one| one.is_rewarded || !asked.rewarded);
        let FeedUnit::Group(limits) = asked.unit else {
            return (all.iter().map(|one| (one.position, vec![one.key])).collect(), Vec::new());
        };
        let mut parts: BTreeMap<(&str, i64), Vec<&Finished>> = BTreeMap::new();
        for one in &all {
            let item = self.handed[consumer].get(&one.key).map_or(0, |handed| handed.item);
            let Some(group) = &one.group else { continue };
            parts.entry((group, item)).or_default().push(one);
        }

        let (mut found, mut waiting) = (Ready::new(), Vec::new());
        for ((group, item), members) in parts {
            let keys = |some: &[&Finished]| some.iter().map(|one| one.key).collect::<Vec<_>>();
            if item > 0 {
                found.insert((item, keys(&members)));
                continue;
            }
            let size = self.sizes.get(group).copied().or(limits.size).map(|size| size as usize);
            let since = members.iter().map(|one| one.at).min().unwrap();
            let is_late = limits.wait.is_some_and(|wait| since <= asked.now - wait);
            for set in members.chunks(size.unwrap_or(usize::MAX)) {
                if is_late || Some(set.len()) == size {
                    found.insert((set.last().unwrap().position, keys(set)));
                    continue;
                }
                let (have, size) = (set.len() as u64, size.map(|size| size as u64));
                waiting.push(WaitingGroup { group: group.to_owned(), have, size });
            }
        }
        (found, waiting)
    }

    /// The backlog of a question, without the time of the oldest.
    fn backlog(&self, consumer: usize, asked: &FeedQuery) -> Backlog {
        let selected = self.selected(consumer, asked);
        let by_group = asked.unit != FeedUnit::Episode;
        let is_counted = |one: &&&Finished| one.group.is_some() || !by_group;
        let unrewarded = |one: &&&Finished| asked.rewarded && !one.is_rewarded;
        let is_delayed = |handed: &&Handed| {
            handed.is_returned && handed.free_at.is_some_and(|at| at > asked.now)
        };
        let delayed = self.handed[consumer].values().filter(is_delayed).count() as u64;

        let (found, mut waiting) = self.look(consumer, asked);
        let ready = found.iter().map(|(_, keys)| keys.len() as u64).sum();
        waiting.sort_by_key(|one| {
            (one.size.is_none(), one.size.map(|size| size - one.have), one.group.clone())
        });
        let groups = waiting.len() as u64;
        waiting.truncate(3);
        let counted = selected.iter().filter(is_counted).count() as u64;
        Backlog {
            ready,
            oldest: None,
            waiting: counted - ready + delayed,
            groups,
            fullest: waiting,
            unrewarded: selected.iter().filter(is_counted).filter(unrewarded).count() as u64,
            delayed,
            ungrouped: selected.len() as u64 - counted,
        }
    }

    async fn finish(&mut self, store: &Store, group: Option<u8>, task: u8, size: Option<u32>) {
        let at = 100 + self.attempts.last().map_or(0, |last| last.position);
        let (name, group) = (format!("e{at}"), group.map(|group| format!("g{group}")));
        let task = format!("t{task}");
        let tag = Tag { task: Some(task.parse().unwrap()), ..named(&name, group.as_deref()) };
        let size = size.filter(|_| group.is_some());
        store.announce(Announcement { group_size: size, ..announced(tag) }).await.unwrap();
        if let (Some(group), Some(size)) = (&group, size) {
            self.sizes.entry(group.clone()).or_insert(size);
        }
        store.close(format!("{name}/0").parse().unwrap(), at, None).await.unwrap();
        let last = "SELECT episode_key, position FROM finished ORDER BY position DESC LIMIT 1";
        let mut snapshot = store.snapshot().await.unwrap();
        let row = query(last).fetch_one(snapshot.connection()).await.unwrap();
        let (key, position) = (row.try_get("episode_key"), row.try_get("position"));
        let (key, position) = (key.unwrap(), position.unwrap());
        self.attempts.push(Finished { name, key, position, group, task, at, is_rewarded: false });
    }

    /// Looks as a reader does, and leases some of the items.
    async fn take(&mut self, store: &Store, reader: Taking, now: Micros) {
        let Taking { number, consumer, some } = reader;
        let asked = question(number, CONSUMERS[consumer], now);
        let mut items = ready(store, &asked).await;
        let found: Ready = items.iter().map(|item| (item.position, item.keys.clone())).collect();
        assert_eq!((found, items.len()), (self.look(consumer, &asked).0, items.len()), "{asked:?}");
        items.truncate(some);
        if items.is_empty() {
            return;
        }

        let lease = self.leases.len();
        self.leases.push(consumer);
        for item in &items {
            for key in &item.keys {
                let free_at = Some(now + LEASE);
                let new = Handed { item: item.position, lease, free_at, is_returned: false };
                let handed = self.handed[consumer].entry(*key).or_insert(new.clone());
                *handed = Handed { item: handed.item, ..new };
            }
        }
        let (id, consumer) = (lease.to_string(), CONSUMERS[consumer].to_owned());
        store.lease(Lease { id, consumer, items, until: now + LEASE, at: now }).await.unwrap();
    }

    /// Settles what a lease still holds, or the first of it.
    async fn settle(&mut self, store: &Store, settled: Settling, now: Micros) {
        let Settling { lease, is_one, fate } = settled;
        let Some(consumer) = self.leases.get(lease).copied() else { return };
        let is_held = |handed: &Handed| {
            handed.lease == lease && !handed.is_returned && handed.free_at.is_some()
        };
        let held = self.handed[consumer].iter().filter(|(_, handed)| is_held(handed));
        let mut keys: Vec<i64> = held.map(|(key, _)| *key).collect();
        keys.truncate(if is_one { 1 } else { usize::MAX });
        if keys.is_empty() {
            return;
        }

        let disposition = match fate {
            Disposition::Returned(delay) => Disposition::Returned(now + delay),
            Disposition::Renewed(length) => Disposition::Renewed(now + length),
            other => other,
        };
        for key in &keys {
            let handed = self.handed[consumer].get_mut(key).unwrap();
            (handed.free_at, handed.is_returned) = match disposition {
                Disposition::Acked | Disposition::Dropped(_) => (None, false),
                Disposition::Returned(at) => (Some(at), true),
                Disposition::Unsent => (Some(now), true),
                Disposition::Renewed(until) => (Some(until), false),
            };
        }
        let (lease, part) = (lease.to_string(), LeasePart::Keys(keys));
        store.settle(Settlement { lease, part, disposition, at: now }).await.unwrap();
    }

    fn forget(&mut self, at: usize) -> String {
        let gone = self.attempts.remove(at);
        for handed in &mut self.handed {
            handed.remove(&gone.key);
        }
        gone.name
    }
}

/// The sums that the store keeps are those of its rows.
async fn check_sums(store: &Store) {
    let mut snapshot = store.snapshot().await.unwrap();
    let wrong = "SELECT c.consumer FROM consumer c WHERE c.alone <> (SELECT count(*) \
            FROM unsettled u WHERE u.consumer = c.consumer AND u.item = 0 AND u.group_id IS NULL) \
        OR c.grouped <> (SELECT count(*) FROM unsettled u WHERE u.consumer = c.consumer \
            AND u.item = 0 AND u.group_id IS NOT NULL) \
        OR c.group_count <> (SELECT count(DISTINCT u.group_id) FROM unsettled u \
            WHERE u.consumer = c.consumer AND u.item = 0) \
        OR c.group_count <> (SELECT count(*) FROM gathering g WHERE g.consumer = c.consumer) \
        UNION ALL SELECT g.group_id FROM gathering g WHERE g.members <> (SELECT count(*) \
            FROM unsettled u WHERE u.consumer = g.consumer AND u.group_id = g.group_id \
            AND u.item = 0) OR g.size IS DISTINCT FROM (SELECT s.size FROM group_size s \
            WHERE s.group_id = g.group_id)";
    let wrong: Vec<String> = query(wrong).scalars(snapshot.connection()).await.unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The store says of every question what the model says, whatever happens.
async fn compare(site: &Site, changes: Vec<Change>) {
    let (mut store, mut writer) = site.open_as(Durability::Process).await;
    let (mut model, mut now) = (FeedModel::default(), LATE);
    for change in changes {
        match change {
            Change::Finish(group, task, size) => model.finish(&store, group, task, size).await,
            Change::Reward(at) => {
                let Some(at) = at.checked_rem(model.attempts.len()) else { continue };
                model.attempts[at].is_rewarded = true;
                let (name, value, source) = ("reward".to_owned(), None, "test".to_owned());
                let reward = Reward {
                    scope: RewardScope::Episode,
                    name,
                    value,
                    source,
                    at: 1,
                    provenance: episode::Provenance::default(),
                };
                let id =
                    AttemptId { episode: model.attempts[at].name.parse().unwrap(), attempt: 0 };
                store.reward(id, reward).await.unwrap();
            }
            Change::Take(number, consumer, some) => {
                model.take(&store, Taking { number, consumer, some }, now).await;
            }
            Change::Settle(lease, is_one, fate) => {
                model.settle(&store, Settling { lease, is_one, fate }, now).await;
            }
            Change::Prune(at) => {
                let Some(at) = at.checked_rem(model.attempts.len()) else { continue };
                let episode = Some(model.forget(at).parse().unwrap());
                drop(store);
                writer.finish().await;
                let which = PruneFilter { episode, ..PruneFilter::default() };
                assert_eq!(prune(&site.at, &which).await.unwrap().plan.candidates.len(), 1);
                (store, writer) = site.open_as(Durability::Process).await;
            }
            Change::Sleep => now += LEASE,
        }
        check_sums(&store).await;
    }

    for number in 0..9 {
        for (consumer, name) in CONSUMERS.iter().enumerate() {
            let asked = question(number, name, now);
            let items = ready(&store, &asked).await;
            let found: Ready = items.into_iter().map(|item| (item.position, item.keys)).collect();
            assert_eq!(found, model.look(consumer, &asked).0, "{asked:?}");
            let mut snapshot = store.snapshot().await.unwrap();
            let backlog = snapshot.backlog(&asked).await.unwrap();
            let counted = Backlog { oldest: None, ..backlog };
            assert_eq!(counted, model.backlog(consumer, &asked), "{asked:?}");
        }
    }
    drop(store);
    writer.finish().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_feed_of_a_file_is_that_of_the_model(changes in changes()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(&Site::file(), changes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn the_feed_of_a_server_is_that_of_the_model(changes in changes()) {
        let Some(server) = postgres_kit::Server::shared() else { return Ok(()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(&Site::of_server(server), changes));
    }
}
