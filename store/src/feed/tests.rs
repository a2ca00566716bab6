//! Tests of what is handed out, to whom, and how often.

use std::collections::BTreeSet;

use episode::{AttemptId, CallId, Micros, Reward, RewardScope, Tag, TagSource};
use proptest::prelude::*;

use crate::error::{CommitError, CommitResult};
use crate::feed::types::*;
use crate::site::{Site, on_both};
use crate::tests::{announced, begun, ended};
use crate::{Announcement, PruneFilter, Selection, Store, prune, verify};

/// Long after every call: none is waited for.
pub(super) const LATE: Micros = 1_000_000_000;

pub(super) fn named(episode: &str, group: Option<&str>) -> Tag {
    Tag {
        episode: episode.parse().unwrap(),
        attempt: 0,
        group: group.map(|group| group.parse().unwrap()),
        task: None,
        labels: Vec::new(),
        source: TagSource::Control,
    }
}

/// Announces an attempt and closes it at a time.
async fn finish_at(store: &Store, episode: &str, group: Option<&str>, at: Micros) {
    store.announce(announced(named(episode, group))).await.unwrap();
    store
        .close(AttemptId { episode: episode.parse().unwrap(), attempt: 0 }, at, None)
        .await
        .unwrap();
}

pub(super) fn wanted(consumer: &str, unit: FeedUnit, now: Micros) -> FeedQuery {
    FeedQuery { consumer: Some(consumer.to_owned()), unit, limit: 100, now, ..FeedQuery::default() }
}

/// Lists what is ready, once attempts that wait no longer have their positions.
pub(super) async fn ready(store: &Store, wanted: &FeedQuery) -> Vec<FeedItem> {
    let finished = store.snapshot().await.unwrap().finished_since(&wanted.open, wanted.now).await;
    store.finish(finished.unwrap()).await.unwrap();
    if let Some(consumer) = &wanted.consumer {
        store.begin_consumer(consumer, wanted.after).await.unwrap();
        while store.snapshot().await.unwrap().is_behind(consumer).await.unwrap() {
            store.fill_consumer(consumer).await.unwrap();
        }
    }
    let mut snapshot = store.snapshot().await.unwrap();
    let items = snapshot.ready(wanted).await.unwrap();
    if wanted.consumer.is_some() && items.len() < wanted.limit as usize {
        let counted = snapshot.backlog(wanted).await.unwrap().ready as usize;
        let keys: usize = items.iter().map(|item| item.keys.len()).sum();
        assert_eq!(counted, keys, "what is counted as ready is what is handed out");
    }
    items
}

/// The counts of the consumer `t`.
async fn counts(store: &Store, now: Micros) -> ConsumerCounts {
    let asked = wanted("t", FeedUnit::Episode, now);
    store.snapshot().await.unwrap().consumer_counts("t".to_owned(), &asked).await.unwrap()
}

async fn names(store: &Store, items: &[FeedItem]) -> Vec<String> {
    let mut names = Vec::new();
    let mut snapshot = store.snapshot().await.unwrap();
    for item in items {
        let attempts = snapshot.attempts(&item.keys).await.unwrap();
        let all: Vec<_> = attempts.iter().map(|attempt| attempt.id.as_str()).collect();
        names.push(all.join("+"));
    }
    names
}

/// The attempts `a` and `b`, finished at once and leased as `one`.
async fn two_leased(store: &Store, wanted: &FeedQuery) -> Vec<FeedItem> {
    finish_at(store, "a", None, 10).await;
    finish_at(store, "b", None, 10).await;
    lease(store, "one", wanted, 100).await.unwrap()
}

async fn lease(
    store: &Store,
    id: &str,
    wanted: &FeedQuery,
    length: Micros,
) -> Result<Vec<FeedItem>, CommitError> {
    let consumer = wanted.consumer.clone().unwrap();
    store.begin_consumer(&consumer, 0).await?;
    let items = ready(store, wanted).await;
    let (at, until) = (wanted.now, wanted.now + length);
    let lease = Lease { id: id.to_owned(), consumer, items: items.clone(), until, at };
    store.lease(lease).await.map(|()| items)
}

async fn say(store: &Store, lease: &str, disposition: Disposition, at: Micros) -> CommitResult {
    store
        .settle(Settlement { lease: lease.to_owned(), part: LeasePart::All, disposition, at })
        .await
}

#[tokio::test]
async fn what_is_not_acked_in_time_is_handed_out_again() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        for episode in ["a", "b", "c"] {
            finish_at(&store, episode, None, 10).await;
        }
        let at = |now| FeedQuery { limit: 2, ..wanted("t", FeedUnit::Episode, LATE + now) };
        let first = lease(&store, "one", &at(0), 100).await.unwrap();
        assert_eq!(names(&store, &first).await, ["a", "b"]);
        let second = lease(&store, "two", &at(1), 50).await.unwrap();
        assert_eq!(names(&store, &second).await, ["c"]);
        assert!(ready(&store, &at(2)).await.is_empty());
        let part = LeasePart::Attempts(vec!["a/0".parse().unwrap()]);
        let ack = |part| Settlement {
            lease: "one".into(),
            part,
            disposition: Disposition::Acked,
            at: LATE + 3,
        };
        store.settle(ack(part.clone())).await.unwrap();
        store.settle(ack(part)).await.unwrap();
        assert_eq!(names(&store, &ready(&store, &at(51)).await).await, ["c"]);
        assert_eq!(names(&store, &ready(&store, &at(100)).await).await, ["b", "c"]);
        // Late, but nobody else has it.
        say(&store, "two", Disposition::Acked, LATE + 101).await.unwrap();
        assert_eq!(
            names(&store, &lease(&store, "three", &at(102), 10).await.unwrap()).await,
            ["b"]
        );
        let lost = say(&store, "one", Disposition::Returned(0), LATE + 103).await;
        assert!(lost.is_ok(), "the lease still holds what was acked");
        assert!(ready(&store, &at(104)).await.is_empty(), "and took nothing from another");
        say(&store, "three", Disposition::Acked, LATE + 105).await.unwrap();
        let none = say(&store, "four", Disposition::Acked, LATE).await.unwrap_err();
        assert!(matches!(none, CommitError::NoLease(_)), "{none}");
        let counts = self::counts(&store, LATE).await;
        assert_eq!((counts.backlog.ready, counts.leased, counts.backlog.oldest), (0, 0, None));
        let told: Vec<_> = counts.tally.iter().map(|(what, n)| (what.as_str(), *n)).collect();
        assert_eq!(told, [("acked", 3), ("delivered", 4), ("redelivered", 1)]);
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn leases_and_acks_outlive_the_writer() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        finish_at(&store, "a", None, 10).await;
        finish_at(&store, "b", None, 11).await;
        let now = |now| wanted("t", FeedUnit::Episode, LATE + now);
        lease(&store, "one", &now(0), 100).await.unwrap();
        let part = LeasePart::Attempts(vec!["b/0".parse().unwrap()]);
        let ack =
            Settlement { lease: "one".into(), part, disposition: Disposition::Acked, at: LATE };
        store.settle(ack).await.unwrap();
        drop(store);
        writer.finish().await;
        let (store, writer) = site.open().await;
        assert!(ready(&store, &now(99)).await.is_empty());
        assert_eq!(names(&store, &ready(&store, &now(100)).await).await, ["a"]);
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_lease_of_what_another_took_holds_nothing() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        finish_at(&store, "a", None, 10).await;
        finish_at(&store, "b", None, 11).await;
        let at = |limit| FeedQuery { limit, ..wanted("t", FeedUnit::Episode, LATE) };
        let both = ready(&store, &at(2)).await;
        lease(&store, "one", &at(1), 100).await.unwrap();
        let (id, consumer, until) = ("two".to_owned(), "t".to_owned(), LATE + 100);
        let taken = Lease { id, consumer, items: both, until, at: LATE };
        assert!(matches!(store.lease(taken).await, Err(CommitError::Taken)));
        assert_eq!(names(&store, &ready(&store, &at(2)).await).await, ["b"]);
        // Another consumer is another matter.
        let other = FeedQuery { consumer: Some("u".into()), ..at(2) };
        assert_eq!(names(&store, &ready(&store, &other).await).await, ["a", "b"]);
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn groups_are_cut_by_their_size_and_stay_together() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        store
            .announce(Announcement { group_size: Some(2), ..announced(named("a1", Some("known"))) })
            .await
            .unwrap();
        for (at, (episode, group)) in (10..).zip([
            ("a1", "known"),
            ("b1", "told"),
            ("b2", "told"),
            ("a2", "known"),
            ("b3", "told"),
            ("b4", "told"),
            ("a3", "known"),
            ("b5", "told"),
            ("b6", "told"),
            ("b7", "told"),
        ]) {
            finish_at(&store, episode, Some(group), at).await;
        }
        finish_at(&store, "alone", None, 30).await;
        let cut = FeedUnit::Group(GroupLimits { size: Some(3), wait: None });
        let at = |now| wanted("t", cut, LATE + now);
        let found = lease(&store, "one", &at(0), 100).await.unwrap();
        assert_eq!(names(&store, &found).await, ["a1+a2", "b1+b2+b3", "b4+b5+b6"]);
        assert!(ready(&store, &at(50)).await.is_empty());
        // What was together comes again together, whatever came later.
        finish_at(&store, "a4", Some("known"), 40).await;
        let found = ready(&store, &at(100)).await;
        let again = ["a1+a2", "b1+b2+b3", "b4+b5+b6", "a3+a4"];
        assert_eq!(names(&store, &found).await, again);
        // A reader with a cursor sees the same cuts.
        let past = |after| FeedQuery { consumer: None, after, ..at(0) };
        let found = ready(&store, &past(0)).await;
        let whole = ["a1+a2", "b1+b2+b3", "b4+b5+b6", "a3+a4"];
        assert_eq!(names(&store, &found).await, whole);
        let rest = ready(&store, &past(found[1].position)).await;
        assert_eq!(rest, found[2..]);
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn what_waits_is_counted_apart_and_said_what_for() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        for (at, (episode, group)) in (10..).zip([
            ("a1", Some("a")),
            ("a2", Some("a")),
            ("a3", Some("a")),
            ("b1", Some("b")),
            ("c1", Some("c")),
            ("c2", Some("c")),
            ("alone", None),
        ]) {
            finish_at(&store, episode, group, at).await;
        }
        let backlog =
            async |asked: &FeedQuery| store.snapshot().await.unwrap().backlog(asked).await.unwrap();
        let group = |group: &str, have, size| WaitingGroup { group: group.to_owned(), have, size };
        let of = |size, wait| wanted("t", FeedUnit::Group(GroupLimits { size, wait }), LATE);
        assert_eq!(ready(&store, &of(Some(2), None)).await.len(), 2);

        let found = backlog(&of(Some(2), None)).await;
        assert_eq!((found.ready, found.oldest), (4, Some(10)));
        assert_eq!((found.waiting, found.groups, found.ungrouped), (2, 2, 1));
        assert_eq!(found.fullest, [group("a", 1, Some(2)), group("b", 1, Some(2))]);

        // A group whose size nobody said waits forever; one that is overdue does not wait.
        let found = backlog(&of(None, None)).await;
        assert_eq!((found.ready, found.oldest, found.waiting, found.groups), (0, None, 6, 3));
        assert_eq!(found.fullest[0], group("a", 3, None));
        assert_eq!(backlog(&of(Some(2), Some(1))).await.ready, 6);

        // A reader with a cursor meets the same groups.
        let past = FeedQuery { consumer: None, after: 5, ..of(Some(2), None) };
        let found = backlog(&past).await;
        assert_eq!((found.groups, found.fullest.len()), (2, 2));

        let rewarded = FeedQuery { rewarded: true, ..of(Some(2), None) };
        let found = backlog(&rewarded).await;
        assert_eq!((found.ready, found.waiting, found.unrewarded), (0, 6, 6));

        let held = lease(&store, "one", &of(Some(2), None), 100).await.unwrap();
        assert_eq!(held.len(), 2);
        say(&store, "one", Disposition::Returned(LATE + 50), LATE).await.unwrap();
        let found = backlog(&of(Some(2), None)).await;
        assert_eq!((found.ready, found.delayed, found.waiting), (0, 4, 6));
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_part_of_a_group_comes_back_with_its_peers() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        for (at, episode) in (10..).zip(["a", "b", "c", "d"]) {
            finish_at(&store, episode, Some("g"), at).await;
        }
        let cut = FeedUnit::Group(GroupLimits { size: Some(4), wait: None });
        let at = |now| wanted("t", cut, LATE + now);
        let whole = lease(&store, "one", &at(0), 100).await.unwrap();
        let keys = whole[0].keys.clone();
        assert_eq!((keys.len(), whole[0].size, whole[0].peers.len()), (4, 4, 0));
        let some = |keys: &[i64], disposition| {
            let part = LeasePart::Keys(keys.to_vec());
            Settlement { lease: "one".into(), part, disposition, at: LATE }
        };
        store.settle(some(&keys[..1], Disposition::Acked)).await.unwrap();
        store.settle(some(&keys[2..], Disposition::Returned(LATE))).await.unwrap();
        let part = lease(&store, "two", &at(1), 100).await.unwrap();
        let position = whole[0].position;
        let of = |free: &[i64], peers: &[i64]| FeedItem {
            position,
            keys: free.to_vec(),
            peers: peers.to_vec(),
            size: 4,
            late: false,
        };
        assert_eq!(part, [of(&keys[2..], &keys[..2])]);
        assert_eq!(ready(&store, &at(100)).await, [of(&keys[1..2], &[keys[0], keys[2], keys[3]])]);
        // Alone, it is still one of four.
        let single = FeedQuery { limit: 1, ..wanted("t", FeedUnit::Episode, LATE + 100) };
        assert_eq!(lease(&store, "three", &single, 1).await.unwrap()[0].keys, keys[1..2]);
        drop(store);
        writer.finish().await;
        let which = PruneFilter { episode: Some("a".parse().unwrap()), ..PruneFilter::default() };
        prune(&site.at, &which).await.unwrap();
        let (store, writer) = site.open().await;
        let left = ready(&store, &at(200)).await;
        assert_eq!(left, [of(&keys[1..], &[])], "one of the four is missing, and that shows");
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_group_that_does_not_get_whole_is_late() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        finish_at(&store, "a", Some("g"), 10).await;
        finish_at(&store, "b", Some("g"), 500).await;
        let cut = |size, wait| FeedUnit::Group(GroupLimits { size, wait });
        let at = |unit, now| wanted("t", unit, now);
        for (size, late) in [(Some(3), true), (None, true), (Some(2), false)] {
            let found = ready(&store, &at(cut(size, Some(LATE)), 10 + LATE)).await;
            assert_eq!((names(&store, &found).await, found[0].late), (vec!["a+b".into()], late));
            let early = ready(&store, &at(cut(size, Some(LATE)), 9 + LATE)).await;
            assert_eq!(early.is_empty(), late, "{size:?}");
        }
        assert!(ready(&store, &at(cut(None, None), 9 * LATE)).await.is_empty());
        drop(store);
        writer.finish().await;
    })
    .await;
}

/// Closes an attempt in the middle of a call.
async fn close_early(store: &Store, episode: &str, at: Micros) -> CallId {
    let call = begun(episode, 1);
    store.begin(call.clone()).await.done().await.unwrap();
    store
        .close(AttemptId { episode: episode.parse().unwrap(), attempt: 0 }, at, None)
        .await
        .unwrap();
    call.call_id
}

#[tokio::test]
async fn a_lost_call_holds_back_its_own_attempt_and_no_other() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        close_early(&store, "a", 100).await;
        close_early(&store, "g1", 100).await;
        for (episode, group) in [("b", None), ("g2", Some("h")), ("g3", Some("h"))] {
            finish_at(&store, episode, group, 101).await;
        }
        // Said again, it changes nothing.
        store.close("a/0".parse().unwrap(), 102, None).await.unwrap();
        let cursor = |after, now| FeedQuery { limit: 9, after, now, ..FeedQuery::default() };
        let group = |wanted| FeedQuery {
            unit: FeedUnit::Group(GroupLimits { size: Some(2), wait: None }),
            ..wanted
        };
        let now = 110;
        let found = ready(&store, &cursor(0, now)).await;
        assert_eq!(names(&store, &found).await, ["b", "g2", "g3"]);
        let of = wanted("t", FeedUnit::Episode, now);
        assert_eq!(names(&store, &ready(&store, &of).await).await, ["b", "g2", "g3"]);
        let pairs = ready(&store, &group(cursor(0, now))).await;
        assert_eq!(names(&store, &pairs).await, ["g2+g3"]);
        let passed = found[2].position;
        let late = 100 + 10_000_000;
        assert!(ready(&store, &cursor(passed, late - 1)).await.is_empty());
        // Whoever has read on misses nothing.
        let rest = ready(&store, &cursor(passed, late)).await;
        assert_eq!(names(&store, &rest).await, ["a", "g1"]);
        assert_eq!(ready(&store, &wanted("t", FeedUnit::Episode, late)).await.len(), 5);
        let pairs = ready(&store, &group(cursor(passed, late))).await;
        assert_eq!(names(&store, &pairs).await, ["a+g1"], "of one group, too");
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn an_attempt_waits_for_calls_that_are_known_to_run() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let call = close_early(&store, "a", 100).await;
        // Known however many there are.
        let mut open: Vec<CallId> = (0..2500).map(|at| begun("b", 100 + at).call_id).collect();
        open.push(call);
        let at = |now| FeedQuery { open: open.clone(), ..wanted("t", FeedUnit::Episode, now) };
        assert!(ready(&store, &at(9 * LATE)).await.is_empty());
        let mut snapshot = store.snapshot().await.unwrap();
        assert!(snapshot.finished_since(&[], 110).await.unwrap().is_empty());
        store.end(ended(call)).await.done().await.unwrap();
        let mut snapshot = store.snapshot().await.unwrap();
        let done = snapshot.finished_since(&open, LATE).await.unwrap();
        assert_eq!(
            done.iter().map(|done| done.1).collect::<Vec<_>>(),
            [100.max(ended(call).ended_at)]
        );
        assert_eq!(names(&store, &ready(&store, &at(LATE)).await).await, ["a"]);
        let counts = store.snapshot().await.unwrap().finished_since(&[], LATE).await.unwrap();
        assert!(counts.is_empty(), "it waits no longer");
        // What waits can be pruned.
        close_early(&store, "gone", 100).await;
        drop(store);
        writer.finish().await;
        let which =
            PruneFilter { episode: Some("gone".parse().unwrap()), ..PruneFilter::default() };
        prune(&site.at, &which).await.unwrap();
        let (store, writer) = site.open().await;
        assert!(
            store.snapshot().await.unwrap().finished_since(&[], LATE).await.unwrap().is_empty()
        );
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn rewards_and_selections_are_waited_for() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        finish_at(&store, "a", Some("g"), 10).await;
        finish_at(&store, "b", None, 10).await;
        let rewarded = FeedQuery { rewarded: true, ..wanted("t", FeedUnit::Episode, LATE) };
        assert!(ready(&store, &rewarded).await.is_empty());
        let reward = |name: &str| Reward {
            scope: RewardScope::Episode,
            name: name.to_owned(),
            value: None,
            source: "test".to_owned(),
            at: 1,
            provenance: episode::Provenance::default(),
        };
        store.reward("a/0".parse().unwrap(), reward("style")).await.unwrap();
        assert!(ready(&store, &rewarded).await.is_empty());
        store.reward("a/0".parse().unwrap(), reward("reward")).await.unwrap();
        assert_eq!(names(&store, &ready(&store, &rewarded).await).await, ["a"]);
        let group = Selection { group: Some("g".parse().unwrap()), ..Selection::default() };
        let of_group = FeedQuery { selection: group, rewarded: false, ..rewarded };
        assert_eq!(names(&store, &ready(&store, &of_group).await).await, ["a"]);
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn what_loses_its_group_is_handed_out_alone() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        // A call says that it is of a group.
        let mut claimed = begun("a", 1);
        claimed.tag.group = Some("g".parse().unwrap());
        store.begin(claimed.clone()).await.done().await.unwrap();
        store.end(ended(claimed.call_id)).await.done().await.unwrap();
        store.close("a/0".parse().unwrap(), 10, None).await.unwrap();
        let pairs = FeedUnit::Group(GroupLimits { size: Some(1), wait: None });
        let of = |unit| wanted("t", unit, LATE);
        assert_eq!(names(&store, &ready(&store, &of(pairs)).await).await, ["a"]);
        finish_at(&store, "b", Some("g"), 20).await;
        assert_eq!(names(&store, &ready(&store, &of(pairs)).await).await, ["b"]);
        let waits = store.snapshot().await.unwrap().backlog(&of(pairs)).await.unwrap();
        assert_eq!((waits.ready, waits.ungrouped), (1, 1));
        assert_eq!(names(&store, &ready(&store, &of(FeedUnit::Episode)).await).await, ["a", "b"]);
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn pruned_attempts_leave_the_feed_and_take_their_positions() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let at = wanted("t", FeedUnit::Episode, LATE);
        let part = two_leased(&store, &at).await;
        drop(store);
        writer.finish().await;
        for episode in ["a", "b"] {
            let which =
                PruneFilter { episode: Some(episode.parse().unwrap()), ..PruneFilter::default() };
            assert_eq!(prune(&site.at, &which).await.unwrap().plan.candidates.len(), 1);
        }
        assert!(verify(&site.at).await.unwrap().is_clean());
        let (store, writer) = site.open().await;
        let gone = say(&store, "one", Disposition::Acked, LATE).await;
        assert!(matches!(gone, Err(CommitError::NoLease(_))));
        finish_at(&store, "c", None, 20).await;
        let new = ready(&store, &at).await;
        assert!(new[0].position > part[1].position, "{new:?}");
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn what_was_not_sent_is_not_acked_with_the_rest() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        let at = wanted("t", FeedUnit::Episode, LATE);
        let part = two_leased(&store, &at).await;
        let unsent = LeasePart::Keys(part[1].keys.clone());
        let back =
            |disposition, part| Settlement { lease: "one".into(), part, disposition, at: LATE };
        store.settle(back(Disposition::Unsent, unsent)).await.unwrap();
        assert_eq!(names(&store, &ready(&store, &at).await).await, ["b"]);
        store.settle(back(Disposition::Acked, LeasePart::All)).await.unwrap();
        // A lease without a name is none.
        for nobody in ["", "unsent"] {
            let none = say(&store, nobody, Disposition::Acked, LATE).await;
            assert!(matches!(none, Err(CommitError::NoLease(_))), "{none:?}");
        }
        assert_eq!(names(&store, &ready(&store, &at).await).await, ["b"]);
        let dropped = lease(&store, "two", &at, 100).await.unwrap();
        let drop_it = Settlement {
            lease: "two".into(),
            ..back(Disposition::Dropped("stale"), LeasePart::All)
        };
        store.settle(drop_it).await.unwrap();
        assert_eq!((dropped.len(), ready(&store, &at).await.len()), (1, 0));
        let counts = self::counts(&store, LATE).await;
        let told: Vec<_> = counts.tally.iter().map(|(what, n)| (what.as_str(), *n)).collect();
        let expected = [("acked", 1), ("delivered", 3), ("dropped:stale", 1), ("redelivered", 1)];
        assert_eq!(told, expected);
        drop(store);
        writer.finish().await;
    })
    .await;
}

#[tokio::test]
async fn what_was_given_back_is_not_the_rest_of_its_lease() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        for episode in ["a", "b", "c"] {
            finish_at(&store, episode, None, 10).await;
        }
        let at = |now| wanted("t", FeedUnit::Episode, LATE + now);
        lease(&store, "one", &at(0), 100).await.unwrap();
        let some = |episodes: &[&str], disposition| {
            let name = |episode: &&str| AttemptId { episode: episode.parse().unwrap(), attempt: 0 };
            let part = LeasePart::Attempts(episodes.iter().map(name).collect());
            Settlement { lease: "one".into(), part, disposition, at: LATE }
        };
        store.settle(some(&["a"], Disposition::Returned(LATE))).await.unwrap();
        say(&store, "one", Disposition::Renewed(LATE + 500), LATE).await.unwrap();
        assert_eq!(names(&store, &ready(&store, &at(1)).await).await, ["a"]);
        store.settle(some(&["b"], Disposition::Returned(LATE + 50))).await.unwrap();
        say(&store, "one", Disposition::Acked, LATE).await.unwrap();
        assert_eq!(names(&store, &ready(&store, &at(50)).await).await, ["a", "b"]);
        // Said again, it counts once and leaves the delay as it is.
        say(&store, "one", Disposition::Acked, LATE).await.unwrap();
        say(&store, "one", Disposition::Returned(LATE + 400), LATE).await.unwrap();
        assert_eq!(names(&store, &ready(&store, &at(50)).await).await, ["a", "b"]);
        // By its name it may still be spoken of: nobody else has it.
        store.settle(some(&["a"], Disposition::Acked)).await.unwrap();
        assert_eq!(names(&store, &ready(&store, &at(50)).await).await, ["b"]);
        lease(&store, "two", &at(60), 100).await.unwrap();
        say(&store, "two", Disposition::Returned(LATE + 60), LATE + 60).await.unwrap();
        for disposition in [Disposition::Acked, Disposition::Renewed(LATE + 900)] {
            let none = say(&store, "two", disposition, LATE + 60).await;
            assert!(matches!(none, Err(CommitError::NoLease(_))), "all was given back: {none:?}");
        }
        let counts = self::counts(&store, LATE).await;
        assert_eq!((counts.tally["acked"], counts.tally["nacked"]), (2, 3));
        drop(store);
        writer.finish().await;
    })
    .await;
}

/// A reader's next act.
#[derive(Debug, Clone)]
enum Deed {
    Finish,
    Take(u32),
    Ack(usize),
    Nack(usize),
    Renew(usize),
    Sleep,
    Restart,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        4 => Just(Deed::Finish),
        4 => (1..4u32).prop_map(Deed::Take),
        3 => (0..9usize).prop_map(Deed::Ack),
        1 => (0..9usize).prop_map(Deed::Nack),
        1 => (0..9usize).prop_map(Deed::Renew),
        2 => Just(Deed::Sleep),
        1 => Just(Deed::Restart),
    ];
    prop::collection::vec(deed, 1..40)
}

/// The length of a lease of the model, and of a sleep.
const LEASE: Micros = 10;

/// The state that should have come of what readers did.
#[derive(Default)]
struct Model {
    /// Names, keys, and when they end.
    leases: Vec<(String, Vec<i64>, Micros)>,
    acked: Vec<i64>,
    /// Items that were given back and not handed out again, and how many ever were.
    back: BTreeSet<i64>,
    nacked: usize,
}

impl Model {
    async fn take(&mut self, store: &Store, limit: u32, now: Micros) {
        let take = FeedQuery { limit, ..wanted("t", FeedUnit::Episode, now) };
        let id = format!("l{}", self.leases.len());
        let items = lease(store, &id, &take, LEASE).await.unwrap();
        let keys: Vec<i64> = items.into_iter().flat_map(|item| item.keys).collect();
        for key in &keys {
            assert!(!self.acked.contains(key), "{key} was acked");
            let part = |l: &&(String, Vec<i64>, Micros)| l.2 > now && l.1.contains(key);
            assert!(self.leases.iter().find(part).is_none(), "{key} is part");
            self.back.remove(key);
        }
        self.leases.push((id, keys, now + LEASE));
    }

    async fn say(&mut self, store: &Store, at: usize, disposition: Disposition, now: Micros) {
        let Self { leases, acked, back, nacked } = self;
        let later: Vec<i64> = leases[at + 1..].iter().flat_map(|l| l.1.clone()).collect();
        let said = say(store, &leases[at].0, disposition.clone(), now).await;
        let mut own = leases[at].1.clone();
        own.retain(|key| !later.contains(key));
        let any = !own.is_empty();
        let was_back = any && own.iter().all(|key| back.contains(key));
        own.retain(|key| !back.contains(key));
        let is_nack = matches!(disposition, Disposition::Returned(_));
        assert_eq!(said.is_ok(), any && (is_nack || !was_back), "{disposition:?} {said:?}");
        match disposition {
            Disposition::Acked => acked.extend(own),
            Disposition::Returned(_) => {
                own.retain(|key| !acked.contains(key));
                *nacked += own.len();
                back.extend(own);
                leases[at].2 = leases[at].2.min(now);
            }
            _ if own.is_empty() => {}
            _ => (leases[at].1, leases[at].2) = (own, now + LEASE),
        }
    }
}

/// Does what the deeds say; whatever they are, nothing is part twice at a time, what was acked
/// never comes again, and all is there in the end.
async fn act(site: &Site, deeds: Vec<Deed>) {
    let (mut store, mut writer) = site.open().await;
    store.begin_consumer("t", 0).await.unwrap();
    let (mut now, mut made, mut model) = (LATE, 0, Model::default());
    for deed in deeds {
        match deed {
            Deed::Finish => {
                made += 1;
                finish_at(&store, &format!("e{made}"), None, 1).await;
            }
            Deed::Take(limit) => model.take(&store, limit, now).await,
            Deed::Ack(at) | Deed::Nack(at) | Deed::Renew(at) => {
                let Some(at) = at.checked_rem(model.leases.len()) else { continue };
                let disposition = match deed {
                    Deed::Ack(_) => Disposition::Acked,
                    Deed::Nack(_) => Disposition::Returned(now),
                    _ => Disposition::Renewed(now + LEASE),
                };
                model.say(&store, at, disposition, now).await;
            }
            Deed::Sleep => now += LEASE,
            Deed::Restart => {
                drop(store);
                writer.finish().await;
                (store, writer) = site.open().await;
            }
        }
    }
    check_end(&store, (now + 2 * LEASE, made), model.acked).await;
    let counts = self::counts(&store, now).await;
    assert_eq!(counts.tally.get("nacked").copied().unwrap_or(0), model.nacked as u64);
    drop(store);
    writer.finish().await;
}

/// All that was made is acked or there to be handed out, and so it is counted.
async fn check_end(store: &Store, (now, made): (Micros, usize), mut acked: Vec<i64>) {
    let left =
        ready(store, &FeedQuery { limit: 1000, ..wanted("t", FeedUnit::Episode, now) }).await;
    acked.sort_unstable();
    acked.dedup();
    assert_eq!(left.len() + acked.len(), made, "none is lost");
    let counts = self::counts(store, now).await;
    assert_eq!((counts.backlog.ready, counts.leased), (left.len() as u64, 0));
    assert_eq!(counts.tally.get("acked").copied().unwrap_or(0), acked.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_readers_do_nothing_is_lost_or_held_twice(deeds in deeds()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(act(&Site::file(), deeds));
    }
}

/// An event while a reader goes on by its cursor.
#[derive(Debug, Clone)]
enum Event {
    /// An attempt is closed, its call over, or in the middle of it.
    Closed,
    ClosedEarly,
    /// A call of those ends.
    Ended(usize),
    Read(u32),
    Sleep(Micros),
}

fn happenings() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => Just(Event::Closed),
        2 => Just(Event::ClosedEarly),
        2 => (0..9usize).prop_map(Event::Ended),
        4 => (1..4u32).prop_map(Event::Read),
        2 => prop::sample::select(vec![1, 4_000_000, 11_000_000]).prop_map(Event::Sleep),
    ];
    prop::collection::vec(event, 1..40)
}

/// Reads on and on; whatever happens meanwhile, each attempt comes once, and those that wait for
/// nothing come as soon as they are asked for, and none before its calls have ended or are lost.
async fn read_on(site: &Site, events: Vec<Event>) {
    let (store, writer) = site.open().await;
    let (mut now, mut made, mut running) = (1_000, 0, Vec::new());
    let (mut cursor, mut seen, mut free) = (0, Vec::new(), BTreeSet::new());
    for event in events.into_iter().chain([Event::Sleep(11_000_000), Event::Read(1000)]) {
        now += 1;
        match event {
            Event::Closed | Event::ClosedEarly => {
                made += 1;
                let name = format!("e{made}");
                if matches!(event, Event::Closed) {
                    finish_at(&store, &name, None, now).await;
                    free.insert(name);
                } else {
                    running.push((close_early(&store, &name, now).await, name, now));
                }
            }
            Event::Ended(at) => {
                let Some(at) = at.checked_rem(running.len()) else { continue };
                let (call, name, _) = running.swap_remove(at);
                store.end(ended(call)).await.done().await.unwrap();
                // It may have been given up before.
                if !seen.contains(&name) {
                    free.insert(name);
                }
            }
            Event::Read(limit) => {
                let wanted = FeedQuery { limit, after: cursor, now, ..FeedQuery::default() };
                let items = ready(&store, &wanted).await;
                cursor = items.last().map_or(cursor, |item| item.position);
                let names = names(&store, &items).await;
                free.retain(|name| !names.contains(name));
                for (_, name, closed) in &running {
                    assert!(now >= closed + 10_000_000 || !names.contains(name), "{name} is early");
                }
                assert!(items.len() == limit as usize || free.is_empty(), "{free:?} had to wait");
                seen.extend(names);
            }
            Event::Sleep(time) => now += time,
        }
    }
    seen.sort();
    let mut all: Vec<String> = (1..=made).map(|n| format!("e{n}")).collect();
    all.sort();
    assert_eq!(seen, all);
    drop(store);
    writer.finish().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_reader_who_goes_on_by_its_cursor_gets_each_attempt_once(events in happenings()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(read_on(&Site::file(), events));
    }
}

#[tokio::test]
async fn two_writers_of_one_database_hand_out_nothing_twice() {
    let Some(server) = postgres_kit::Server::shared() else { return };
    let site = Site::of_server(server);
    let writers = [site.open().await, site.open().await];
    for at in 0..40 {
        finish_at(&writers[at % 2].0, &format!("e{at}"), None, 10).await;
    }
    let readers = writers.iter().enumerate().map(|(which, (store, _))| async move {
        let mut seen = Vec::new();
        for turn in 0..200 {
            let at = FeedQuery { limit: 3, ..wanted("t", FeedUnit::Episode, LATE) };
            match lease(store, &format!("{which}-{turn}"), &at, 100).await {
                Ok(items) => seen.extend(items.into_iter().map(|item| item.position)),
                Err(CommitError::Taken) => {}
                Err(other) => panic!("{other}"),
            }
        }
        seen
    });
    let seen = futures_of(readers.collect()).await;
    let mut all = seen.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), seen.iter().map(Vec::len).sum::<usize>()), (40, 40));
    for (store, writer) in writers {
        drop(store);
        writer.finish().await;
    }
}

/// Both at once.
async fn futures_of<F: Future>(mut two: Vec<F>) -> Vec<F::Output> {
    let (second, first) = (two.pop().unwrap(), two.pop().unwrap());
    let (first, second) = tokio::join!(first, second);
    vec![first, second]
}

/// Announces an attempt at an episode of the group `g`, of a size of 2, and closes it.
async fn finish_run(store: &Store, episode: &str, attempt: u32, status: &str, at: Micros) {
    let tag = Tag { attempt, ..named(episode, Some("g")) };
    let announced = Announcement { group_size: Some(2), ..announced(tag) };
    store.announce(announced).await.unwrap();
    let id = AttemptId { episode: episode.parse().unwrap(), attempt };
    store.close(id, at, Some(status.to_owned())).await.unwrap();
}

#[tokio::test]
async fn a_try_that_the_infrastructure_failed_takes_no_place() {
    on_both(async |site| {
        let (store, writer) = site.open().await;
        finish_run(&store, "a", 0, "infrastructure_failed", 10).await;
        finish_run(&store, "b", 0, "completed", 11).await;
        let cut = FeedUnit::Group(GroupLimits::default());
        let filtered = FeedQuery { failed_take_no_place: true, ..wanted("t", cut, LATE) };
        let cursor = FeedQuery { consumer: None, ..filtered.clone() };
        for asked in [&filtered, &cursor] {
            assert!(ready(&store, asked).await.is_empty());
            let waits = store.snapshot().await.unwrap().backlog(asked).await.unwrap();
            assert_eq!((waits.fullest[0].have, waits.fullest[0].size), (1, Some(2)));
        }
        let plain = wanted("t", cut, LATE);
        assert_eq!(names(&store, &ready(&store, &plain).await).await, ["a+b"]);

        // Run again, it takes no place for anybody who has not been handed it.
        finish_run(&store, "a", 1, "completed", 12).await;
        for asked in [&filtered, &cursor, &plain] {
            assert_eq!(names(&store, &ready(&store, asked).await).await, ["a+a+b"]);
        }
        finish_run(&store, "c", 0, "completed", 13).await;
        finish_run(&store, "d", 0, "failed", 14).await;
        let places = store.snapshot().await.unwrap().group_places(None, false).await.unwrap();
        let sets: Vec<_> = places.values().map(|place| (place.set, place.is_member)).collect();
        assert_eq!(sets, [(0, false), (0, true), (0, true), (1, true), (1, true)]);
        drop(store);
        writer.finish().await;
    })
    .await;
}
