//! Whatever conversations send, in whatever order, comes back byte for byte and id for id.

use episode::{CallEnd, CallId, CallStart};
use proptest::prelude::*;
use uuid::Uuid;

use crate::site::{Site, on_both};
use crate::tests::{begun, ended};
use crate::{Location, PruneFilter, Selection, Snapshot, backup, plan_prune, prune, verify};

/// A change that an agent makes to its conversation before it calls.
#[derive(Debug, Clone)]
enum Step {
    /// Says something more.
    Grow(u8),
    /// Changes what was said, somewhere in the middle.
    Edit(u16, u8),
    /// Begins anew with little of what was there.
    Compact(u8),
    /// Sends the same again.
    Repeat,
    /// Sends bytes that are no text.
    Noise(Vec<u8>),
    /// The recorder is stopped and started.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        8 => any::<u8>().prop_map(Step::Grow),
        2 => any::<(u16, u8)>().prop_map(|(at, seed)| Step::Edit(at, seed)),
        1 => any::<u8>().prop_map(Step::Compact),
        1 => Just(Step::Repeat),
        1 => proptest::collection::vec(any::<u8>(), 0..3000).prop_map(Step::Noise),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec((0usize..3, step), 1..40)
}

/// A conversation: its text, and its tokens.
#[derive(Debug, Clone, Default)]
struct Talk {
    text: Vec<u8>,
    tokens: Vec<u32>,
}

/// Something to say that differs by `seed`.
fn words(seed: u8) -> Vec<u8> {
    let word = |n: u32| format!("word{} ", n.wrapping_mul(u32::from(seed) + 7) % 977);
    (0..u32::from(seed) * 4).map(word).collect::<String>().into_bytes()
}

impl Talk {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Grow(seed) => {
                self.text.extend(words(*seed));
                self.tokens.extend((0..u32::from(*seed) * 3).map(|n| n * u32::from(*seed)));
            }
            Step::Edit(at, seed) if !self.text.is_empty() => {
                let at = usize::from(*at) % self.text.len();
                self.text.splice(at..at, words(*seed));
                let at = at.min(self.tokens.len());
                self.tokens.insert(at, u32::MAX - u32::from(*seed));
            }
            Step::Compact(seed) => {
                self.text.truncate(100);
                self.text.extend(words(*seed));
                self.tokens.truncate(30);
            }
            Step::Noise(bytes) => self.text.clone_from(bytes),
            Step::Edit(..) | Step::Repeat | Step::Restart => {}
        }
    }

    /// The call that it makes, and what is sampled in it.
    fn call(&self, at: i64) -> (CallStart, CallEnd) {
        let begun = CallStart {
            call_id: CallId(Uuid::now_v7()),
            request: self.text.clone().into(),
            ..begun("e", at)
        };
        let mut ended = ended(begun.call_id);
        let event = |word: &[u8]| [b"data: {\"delta\":\"", word, b"\"}\n\n"].concat();
        let reply: Vec<u8> = self.text.split(|b| *b == b' ').take(50).flat_map(event).collect();
        ended.reply = reply.into();
        ended.prompts = vec![self.tokens.clone(), self.tokens.iter().rev().copied().collect()];
        ended.choices[0].token_ids = Some(self.tokens.iter().take(7).copied().collect());
        (begun, ended)
    }
}

async fn comes_back(site: &Site, steps: &[(usize, Step)]) {
    let (mut store, mut writer) = site.open().await;
    let mut talks = vec![Talk::default(); 3];
    let mut calls = Vec::new();
    for (at, (talk, step)) in (0..).zip(steps) {
        let talk = *talk;
        if matches!(step, Step::Restart) {
            drop(store);
            writer.finish().await;
            (store, writer) = site.open().await;
        }
        talks[talk].take(step);
        let (begun, ended) = talks[talk].call(at);
        store.begin(begun.clone()).await.done().await.unwrap();
        store.end(ended.clone()).await.done().await.unwrap();
        let sampled = ended.choices[0].token_ids.clone().unwrap();
        talks[talk].tokens.extend(sampled);
        calls.push((begun, ended));
    }
    drop(store);
    writer.finish().await;
    let mut snapshot = site.snapshot().await;
    let episode = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
    let found = snapshot.calls(&episode).await.unwrap();
    assert_eq!(found.len(), calls.len());
    for (found, (begun, ended)) in found.iter().zip(&calls) {
        assert_eq!((&found.begun, found.ended.as_ref()), (begun, Some(ended)));
        assert_eq!(snapshot.call(begun.call_id).await.unwrap().as_ref(), Some(found));
    }
    drop(snapshot);
    let report = verify(&site.at).await.unwrap();
    assert_eq!((report.damage, report.calls as usize), (Vec::new(), calls.len()));
}

/// Each conversation is an episode; the first one goes.
async fn the_rest_stays(site: &Site, steps: &[(usize, Step)]) {
    let (store, writer) = site.open().await;
    let mut talks = vec![Talk::default(); 3];
    let mut kept = Vec::new();
    for (at, (talk, step)) in (0..).zip(steps) {
        talks[*talk].take(step);
        let (mut begun, ended) = talks[*talk].call(at);
        begun.tag.episode = ["a", "b", "c"][*talk].parse().unwrap();
        store.begin(begun.clone()).await.done().await.unwrap();
        store.end(ended.clone()).await.done().await.unwrap();
        if *talk > 0 {
            kept.push((begun, ended));
        }
    }
    drop(store);
    writer.finish().await;
    let which = PruneFilter { episode: Some("a".parse().unwrap()), ..PruneFilter::default() };
    let plan = plan_prune(&site.at, &which).await.unwrap();
    assert_eq!(prune(&site.at, &which).await.unwrap().plan, plan);
    holds(&site.at, &kept).await;
    if let Location::File(path) = &site.at {
        let copy = path.with_extension("copy");
        backup(&site.at, &copy).await.unwrap();
        holds(&copy.into(), &kept).await;
    }
}

/// Checks that a store holds these calls and nothing else.
async fn holds(at: &Location, kept: &[(CallStart, CallEnd)]) {
    let report = verify(at).await.unwrap();
    assert_eq!((report.damage, report.calls as usize), (Vec::new(), kept.len()));
    let mut snapshot = Snapshot::open(at).await.unwrap();
    for (begun, ended) in kept {
        let found = snapshot.call(begun.call_id).await.unwrap().unwrap();
        assert_eq!((&found.begun, found.ended.as_ref()), (begun, Some(ended)));
    }
}

fn on_each(test: impl AsyncFn(Site)) {
    tokio::runtime::Runtime::new().unwrap().block_on(on_both(test));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_call_comes_back(steps in steps()) {
        on_each(async |site| comes_back(&site, &steps).await);
    }

    #[test]
    fn what_is_not_pruned_comes_back(steps in steps()) {
        on_each(async |site| the_rest_stays(&site, &steps).await);
    }
}
