//! What is watched while calls pass: how many there are, and which weights answer them.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use episode::{CallId, Ended, Micros, Stamps, VersionSpan};
use store::{Location, SnapshotError, Store, VersionRecord};
use tokio::sync::Notify;

/// Labels that are remembered; more are not asked about.
const LABELS_MAX: usize = 100_000;
/// How often the upstream is asked because of labels that are not the newest.
const DOUBT_EVERY: Duration = Duration::from_secs(1);

/// A call whose end this process is to write. Dropped, it is written, or never will be.
#[derive(Debug)]
pub(crate) struct Open {
    watch: Arc<Watch>,
    call: CallId,
}

impl Drop for Open {
    fn drop(&mut self) {
        lock(&self.watch.open).remove(&self.call);
    }
}

/// The watch over a proxy's calls.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    begun: AtomicU64,
    in_flight: AtomicI64,
    ended: Mutex<BTreeMap<&'static str, u64>>,
    /// Calls whose ends are not on disk yet.
    open: Mutex<HashSet<CallId>>,
    /// When it was last read what others told of versions.
    read: tokio::sync::Mutex<Option<Instant>>,
    pub(crate) versions: Versions,
}

impl Watch {
    /// A call began; gives the version that was said to be current.
    pub(crate) fn begun(&self) -> Option<String> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.versions.stamp()
    }

    /// This process is to write the end of a call.
    pub(crate) fn open(self: &Arc<Self>, call: CallId) -> Open {
        lock(&self.open).insert(call);
        Open { watch: Arc::clone(self), call }
    }

    /// The calls whose ends this process is to write.
    pub(crate) fn opened(&self) -> Vec<CallId> {
        lock(&self.open).iter().copied().collect()
    }

    /// A call has ended: counts it, stamps it, and looks at the versions that it names.
    pub(crate) fn ended(&self, ended: &mut Ended, start: Option<String>) {
        *lock(&self.ended).entry(ended.outcome.as_str()).or_default() += 1;
        self.versions.seen(spans(ended).map(|span| span.version.as_str()), ended.ended_at);
        ended.stamps = Stamps { start, end: self.versions.stamp() };
    }

    /// Lets the stamp of a call that has ended stand for what the upstream does not say. Where
    /// others may have said meanwhile that weights changed, they are asked first.
    pub(crate) async fn fill(&self, store: &Store, ended: &mut Ended) {
        if spans(ended).next().is_some() || ended.stamps.constant().is_none() {
            return;
        }
        match self.learn(store).await {
            Ok(true) => ended.stamps.end = self.versions.stamp(),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "whether the weights changed during a call is not known");
                ended.stamps.end = None;
            }
        }
        stand_in(ended);
    }

    /// Learns what other processes have told of versions by now, where several may record into the
    /// store; gives whether they may. Those who ask at once ask once.
    pub(crate) async fn learn(&self, store: &Store) -> Result<bool, SnapshotError> {
        if matches!(store.location(), Location::File(_)) {
            return Ok(false);
        }
        let asked = Instant::now();
        let mut read = self.read.lock().await;
        if read.is_none_or(|read| read < asked) {
            let begun = Instant::now();
            let versions = store.snapshot().await?.current_versions().await?;
            self.versions.learn(versions);
            *read = Some(begun);
        }
        Ok(true)
    }

    /// A call is gone, however it ended.
    pub(crate) fn gone(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Calls begun, in flight, and ended by their outcome.
    pub(crate) fn counts(&self) -> (u64, i64, BTreeMap<&'static str, u64>) {
        let ended = lock(&self.ended).clone();
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        (self.begun.load(Ordering::Relaxed), in_flight, ended)
    }
}

/// Makes spans of a stamp that did not change.
fn stand_in(ended: &mut Ended) {
    let Some(label) = ended.stamps.constant().map(str::to_owned) else { return };
    for choice in &mut ended.choices {
        let end = choice.token_ids.as_ref().map_or(0, |ids| ids.len() as u32);
        let span = VersionSpan { version: label.clone(), start: 0, end };
        choice.versions.extend((end > 0).then_some(span));
    }
}

fn spans(ended: &Ended) -> impl Iterator<Item = &VersionSpan> {
    ended.choices.iter().flat_map(|choice| &choice.versions)
}

/// What is known of the weights.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    held: Mutex<Held>,
    /// Somebody should ask the upstream.
    ask: Notify,
}

#[derive(Debug, Default)]
struct Held {
    /// The label that was said to be current, and when.
    said: Option<(Micros, String)>,
    /// The label that was said, served or seen first, last of all, and when.
    newest: Option<(Micros, String)>,
    /// The label that the upstream was last found to serve.
    served: Option<String>,
    known: HashSet<String>,
    /// Labels that nobody has written down yet, and when they were seen.
    fresh: Vec<(String, Micros)>,
    /// When the upstream was last to be asked because of a label that is not the newest.
    doubted: Option<Instant>,
}

impl Versions {
    /// What a store knows, in the order in which it was told.
    pub(crate) fn remember(&self, versions: Vec<VersionRecord>) {
        let mut held = lock(&self.held);
        let said = versions.iter().filter(|version| version.said_at.is_some());
        let said = said.max_by_key(|version| version.said_at);
        held.said = said.and_then(|said| Some((said.said_at?, said.label.clone())));
        let served = versions.iter().filter(|version| version.served_at.is_some());
        held.served = served.max_by_key(|version| version.served_at).map(|v| v.label.clone());
        let newest = versions.iter().max_by_key(|version| version.told_at());
        held.newest = newest.map(|version| (version.told_at(), version.label.clone()));
        held.known = versions.into_iter().map(|version| version.label).collect();
    }

    /// `label` is said to be current.
    pub(crate) fn said(&self, label: String, at: Micros) {
        let mut held = lock(&self.held);
        held.known.insert(label.clone());
        held.newest = Some((at, label.clone()));
        held.said = Some((at, label));
    }

    /// What others told last, as far as it is later than what was told here.
    fn learn(&self, versions: Vec<VersionRecord>) {
        let mut held = lock(&self.held);
        let later = |known: &Option<(Micros, String)>, at| known.as_ref().is_none_or(|k| k.0 < at);
        for version in versions {
            let (told_at, label) = (version.told_at(), version.label);
            if let Some(at) = version.said_at.filter(|at| later(&held.said, *at)) {
                held.said = Some((at, label.clone()));
            }
            if later(&held.newest, told_at) {
                held.newest = Some((told_at, label.clone()));
            }
            held.known.insert(label);
        }
    }

    /// The label that is current, by whoever says so.
    pub(crate) fn newest(&self) -> Option<String> {
        lock(&self.held).newest.as_ref().map(|(_, label)| label.clone())
    }

    /// Labels that a reply names. One that is known and not the newest may be that of a trainer
    /// who has gone back: the upstream is to be asked.
    pub(crate) fn seen<'a>(&self, labels: impl Iterator<Item = &'a str>, at: Micros) {
        let mut held = lock(&self.held);
        for label in labels {
            if held.newest.as_ref().is_some_and(|(_, newest)| newest == label) {
                continue;
            }
            if !held.known.contains(label) && held.known.len() < LABELS_MAX {
                held.known.insert(label.to_owned());
                held.newest = Some((at, label.to_owned()));
                held.fresh.push((label.to_owned(), at));
                self.ask.notify_one();
            } else if held.doubted.is_none_or(|last| last.elapsed() >= DOUBT_EVERY) {
                held.doubted = Some(Instant::now());
                self.ask.notify_one();
            }
        }
    }

    /// The upstream says that it serves `label` now; gives whether it served another one before.
    /// Beside adapters, which have labels of their own, it serves the same one all the while.
    pub(crate) fn served(&self, label: &str, at: Micros) -> bool {
        let mut held = lock(&self.held);
        let is_new = held.known.len() < LABELS_MAX && held.known.insert(label.to_owned());
        let before = held.served.replace(label.to_owned());
        let is_other = before.map_or(is_new, |before| before != label);
        if is_other {
            held.newest = Some((at, label.to_owned()));
        }
        is_other
    }

    /// The upstream may have other weights now.
    pub(crate) fn look(&self) {
        self.ask.notify_one();
    }

    /// Waits until there is something to ask; gives the labels that nobody has written down yet.
    pub(crate) async fn fresh(&self) -> Vec<(String, Micros)> {
        self.ask.notified().await;
        std::mem::take(&mut lock(&self.held).fresh)
    }

    fn stamp(&self) -> Option<String> {
        lock(&self.held).said.as_ref().map(|(_, label)| label.clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use episode::{Choice, Outcome, TokenCounts};
    use uuid::Uuid;

    use super::*;

    fn ended(versions: Vec<VersionSpan>) -> Ended {
        let choice = Choice { token_ids: Some(vec![1, 2, 3]), versions, ..Choice::default() };
        Ended {
            call_id: CallId(Uuid::nil()),
            ended_at: 1,
            first_byte_at: None,
            status: Some(200),
            outcome: Outcome::Complete,
            error: None,
            reply: bytes::Bytes::new(),
            model: None,
            prompts: Vec::new(),
            choices: vec![choice, Choice::default()],
            usage: TokenCounts::default(),
            sampled_with: None,
            logprob_kind: "raw".to_owned(),
            translated: None,
            unasked: None,
            stamps: Stamps::default(),
        }
    }

    fn span(version: &str, end: u32) -> VersionSpan {
        VersionSpan { version: version.to_owned(), start: 0, end }
    }

    #[test]
    fn stamps_stand_in_for_what_the_upstream_does_not_say() {
        let watch = Watch::default();
        assert_eq!(watch.begun(), None);
        watch.versions.said("5".to_owned(), 1);
        let start = watch.begun();
        let mut silent = ended(Vec::new());
        watch.ended(&mut silent, start.clone());
        stand_in(&mut silent);
        assert_eq!(silent.choices[0].versions, [span("5", 3)]);
        assert_eq!(silent.choices[1].versions, []);
        let mut told = ended(vec![span("9", 3)]);
        watch.ended(&mut told, start.clone());
        assert_eq!(
            (&told.choices[0].versions, told.stamps.constant()),
            (&vec![span("9", 3)], Some("5"))
        );
        watch.versions.said("6".to_owned(), 2);
        let mut changed = ended(Vec::new());
        watch.ended(&mut changed, start);
        stand_in(&mut changed);
        assert!(changed.choices[0].versions.is_empty());
        assert_eq!(changed.stamps.changed(), Some(("5", "6")));
        watch.gone();
        let (begun, in_flight, by_outcome) = watch.counts();
        assert_eq!((begun, in_flight, by_outcome), (2, 1, [("complete", 3)].into()));
    }

    #[tokio::test]
    async fn a_label_is_fresh_once_and_the_last_one_told_is_the_newest() {
        let versions = Versions::default();
        let old = |label: &str, at, said| VersionRecord {
            label: label.to_owned(),
            first_seen: at,
            said_at: said,
            ..VersionRecord::default()
        };
        versions.remember(vec![old("1", 1, Some(9)), old("2", 2, Some(3)), old("x", 4, None)]);
        assert_eq!(
            (versions.newest().as_deref(), versions.stamp().as_deref()),
            (Some("1"), Some("1"))
        );
        versions.seen(["1", "7", "7"].into_iter(), 10);
        assert_eq!(versions.fresh().await, [("7".to_owned(), 10)]);
        assert_eq!(versions.newest().as_deref(), Some("7"));
        assert_eq!(versions.stamp().as_deref(), Some("1"));
    }

    #[test]
    fn a_call_is_open_until_its_end_is_written() {
        let watch = Arc::new(Watch::default());
        let [first, second] = [1, 2].map(|n| CallId(Uuid::from_u128(n)));
        let (one, two) = (watch.open(first), watch.open(second));
        // That it is gone is not that its end is on disk.
        watch.gone();
        assert_eq!(watch.opened().len(), 2);
        drop(one);
        assert_eq!(watch.opened(), [second]);
        drop(two);
        assert!(watch.opened().is_empty());
    }

    #[test]
    fn what_others_told_counts_when_it_is_later() {
        let versions = Versions::default();
        versions.said("5".to_owned(), 50);
        let told = |label: &str, first_seen, said_at| VersionRecord {
            label: label.to_owned(),
            first_seen,
            said_at,
            ..VersionRecord::default()
        };
        let both = |versions: &Versions| (versions.stamp().unwrap(), versions.newest().unwrap());
        versions.learn(vec![told("4", 10, Some(40)), told("3", 45, None)]);
        assert_eq!(both(&versions), ("5".to_owned(), "5".to_owned()));
        versions.learn(vec![told("5", 20, Some(50)), told("seen-8", 60, None)]);
        assert_eq!(both(&versions), ("5".to_owned(), "seen-8".to_owned()));
        versions.learn(vec![told("6", 55, Some(70)), told("6", 55, Some(70))]);
        assert_eq!(both(&versions), ("6".to_owned(), "6".to_owned()));
    }

    #[tokio::test]
    async fn a_trainer_that_goes_back_is_followed() {
        let versions = Versions::default();
        let newest = |versions: &Versions| versions.newest().unwrap();
        versions.seen(["1"].into_iter(), 1);
        assert_eq!(versions.fresh().await.len(), 1);
        assert!(!versions.served("1", 2), "it is the first that is heard of");
        assert!(versions.served("2", 3) && versions.served("3", 4) && !versions.served("3", 5));
        assert_eq!(newest(&versions), "3");
        // A reply of before: who asks hears that nothing has changed.
        versions.seen(["2"].into_iter(), 6);
        assert!(versions.fresh().await.is_empty(), "the upstream is asked");
        assert!(!versions.served("3", 7));
        assert_eq!(newest(&versions), "3");
        assert!(versions.served("1", 8));
        assert_eq!(newest(&versions), "1");
        // An adapter has a label of its own beside the one that is served.
        versions.seen(["policy-v4"].into_iter(), 9);
        assert!(!versions.served("1", 10));
        assert_eq!(newest(&versions), "policy-v4");
        let old = |label: &str, at, served_at| VersionRecord {
            label: label.to_owned(),
            first_seen: at,
            served_at,
            ..VersionRecord::default()
        };
        let again = Versions::default();
        again.remember(vec![old("1", 1, Some(8)), old("2", 3, Some(3)), old("3", 4, Some(4))]);
        assert_eq!(newest(&again), "1");
        assert!(!again.served("1", 11) && again.served("2", 12));
    }
}
