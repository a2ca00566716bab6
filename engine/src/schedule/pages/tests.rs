//! The pool against a plain model of it.

use std::sync::Arc;

use kernels::{PageMove, Placement};
use proptest::prelude::*;

use super::*;
use crate::model::cache::CacheScope;

fn scope(weights: u64, salt: Option<&str>) -> Arc<CacheScope> {
    Arc::new(CacheScope { weights, adapter: None, salt: salt.map(Into::into) })
}

fn cache() -> SequenceCache {
    SequenceCache::new(scope(1, None))
}

/// Does what a step does: takes published pages, computes the rest, publishes it.
fn compute(pages: &mut PagePool, cache: &mut SequenceCache, tokens: &[u32]) -> usize {
    let hits = pages.share(cache, tokens);
    assert!(pages.grow(cache, tokens.len()));
    cache.len = tokens.len();
    pages.publish(cache, tokens);
    hits
}

fn ids(count: u32) -> Vec<u32> {
    (0..count).collect()
}

#[test]
fn a_second_sequence_takes_full_pages_but_not_the_last_token() {
    let mut pages = PagePool::new(16, true);
    let (mut first, mut second, mut third) = (cache(), cache(), cache());
    assert_eq!(compute(&mut pages, &mut first, &ids(48)), 0);
    assert_eq!(compute(&mut pages, &mut second, &ids(48)), 32);
    assert_eq!(first.pages[..2], second.pages[..2]);
    assert_eq!(compute(&mut pages, &mut third, &ids(49)), 48);
    assert_eq!(pages.available(), 16 - 4);
    // The third page was computed twice, and one of the two is enough.
    assert_eq!(first.pages, second.pages);
    for cache in [first, second, third] {
        pages.release(cache);
    }
    assert_eq!(pages.available(), 16);
}

#[test]
fn other_tokens_versions_and_salts_share_nothing() {
    let mut pages = PagePool::new(64, true);
    compute(&mut pages, &mut cache(), &ids(40));
    let mut other = ids(40);
    other[3] = 1000;
    assert_eq!(compute(&mut pages, &mut cache(), &other), 0);
    other = ids(40);
    other[20] = 1000;
    assert_eq!(compute(&mut pages, &mut cache(), &other), 16);
    // The same sixteen ids in another place are other contents.
    assert_eq!(compute(&mut pages, &mut cache(), &ids(40)[16..]), 0);
    let mut of = |scope| compute(&mut pages, &mut SequenceCache::new(scope), &ids(40));
    assert_eq!(of(scope(1, None)), 32);
    assert_eq!(of(scope(2, None)), 0);
    assert_eq!(of(scope(1, Some("s"))), 0);
    assert_eq!(of(scope(1, Some("s"))), 32);
    assert_eq!(of(scope(1, Some("t"))), 0);
}

#[test]
fn the_longest_unused_go_first_from_the_end_of_a_chain() {
    let mut pages = PagePool::new(6, true);
    let (mut old, mut new) = (cache(), cache());
    compute(&mut pages, &mut old, &ids(48));
    compute(&mut pages, &mut new, &[7; 48]);
    pages.release(old);
    pages.release(new);
    let mut third = cache();
    assert_eq!(compute(&mut pages, &mut third, &[9; 17]), 0);
    assert_eq!(pages.share(&mut cache(), &ids(48)), 16);
    pages.release(third);
    assert_eq!(pages.share(&mut cache(), &[7; 48]), 32);
}

#[test]
fn without_sharing_nothing_is_found_again() {
    let mut pages = PagePool::new(8, false);
    let mut first = cache();
    compute(&mut pages, &mut first, &ids(40));
    assert!(pages.next_key(&first, &ids(64)).is_none());
    pages.release(first);
    assert_eq!(compute(&mut pages, &mut cache(), &ids(40)), 0);
}

#[test]
fn a_cache_grows_by_what_is_there_or_not_at_all() {
    let mut pages = PagePool::new(3, true);
    let (mut first, mut second) = (cache(), cache());
    assert!(pages.grow(&mut first, 17));
    assert!(!pages.grow(&mut second, 17));
    assert_eq!((second.pages.len(), pages.available()), (0, 1));
    assert!(pages.grow(&mut first, 48));
    assert!(!pages.grow(&mut first, 49));
}

/// As [`compute`], for a sequence that starts: also takes what is on the host. Returns the tokens
/// found there.
fn start(pages: &mut PagePool, scope: Arc<CacheScope>, tokens: &[u32]) -> usize {
    let mut cache = SequenceCache::new(scope);
    pages.share(&mut cache, tokens);
    let hits = pages.fetch(&mut cache, tokens);
    assert!(pages.grow(&mut cache, tokens.len()));
    cache.len = tokens.len();
    pages.publish(&mut cache, tokens);
    pages.release(cache);
    hits
}

#[test]
fn pages_that_were_reused_come_back_from_the_host() {
    let mut pages = PagePool::new(4, true).with_host(32, 0);
    assert_eq!(start(&mut pages, scope(1, None), &ids(60)), 0);
    assert_eq!(start(&mut pages, scope(1, None), &[7; 60]), 0);
    let moves = pages.take_moves();
    assert_eq!((moves.before.len(), moves.beside.len()), (3, 0));
    assert!(moves.before.iter().all(|one| one.to == Placement::Host));

    // Other weights, another salt and another beginning find nothing.
    for (of, tokens) in [(scope(2, None), ids(60)), (scope(1, Some("s")), ids(60))] {
        assert_eq!(start(&mut pages, of, &tokens), 0);
    }
    assert_eq!(start(&mut pages, scope(1, None), &ids(60)[16..]), 0);
    pages.take_moves();
    assert_eq!(start(&mut pages, scope(1, None), &ids(60)), 48);
    let back = pages.take_moves().before;
    let fetched: Vec<u32> =
        back.iter().filter(|one| one.to == Placement::Device).map(|one| one.place).collect();
    // From the places that they were saved to; the end of a chain is saved first.
    let saved: Vec<u32> = moves.before.iter().rev().map(|one| one.place).collect();
    assert_eq!(fetched, saved);
    assert_eq!(pages.take_host_copies().fetched, 3);

    pages.clear_published();
    assert_eq!(start(&mut pages, scope(1, None), &ids(60)), 0);
}

#[test]
fn contents_computed_again_have_their_followers_on_the_host() {
    let mut pages = PagePool::new(4, true).with_host(8, 0);
    start(&mut pages, scope(1, None), &ids(60));
    start(&mut pages, scope(1, None), &[7; 60]);
    // A scored prompt computes all itself. Its pages get the numbers of those on the host.
    let mut scored = cache();
    assert!(pages.grow(&mut scored, 20));
    scored.len = 20;
    pages.publish(&mut scored, &ids(20));
    pages.release(scored);
    assert_eq!(start(&mut pages, scope(1, None), &ids(60)), 32);
}

#[test]
fn the_host_forgets_what_was_not_wanted_for_longest() {
    let mut pages = PagePool::new(1, true).with_host(2, 0);
    let short = |id| [id; 16];
    for id in [1, 2, 3] {
        start(&mut pages, scope(1, None), &short(id));
    }
    assert_eq!(pages.host_places(), [2, 2]);
    // One more token is left to be computed, for which there is no page: only look.
    let mut finds = |id| {
        let mut cache = cache();
        let found = pages.fetch(&mut cache, &[id; 17]);
        pages.release(cache);
        found
    };
    // The first goes to the device, and so the third to the host, in the place of the second.
    assert_eq!([1, 2, 3, 1].map(&mut finds), [16, 0, 16, 16]);
}

#[test]
fn what_a_closed_attempt_alone_used_goes_first() {
    // There is room for two prompts, on the device or on the host.
    for (count, places) in [(6, 0), (3, 6)] {
        let mut pages = PagePool::new(count, true).with_host(places, 0);
        let say = |pages: &mut PagePool, attempt: &str, tokens: &[u32]| {
            let mut cache = cache();
            cache.attempt = Some(attempt.into());
            let found = pages.share(&mut cache, tokens) + pages.fetch(&mut cache, tokens);
            assert!(pages.grow(&mut cache, tokens.len()));
            cache.len = tokens.len();
            pages.publish(&mut cache, tokens);
            pages.release(cache);
            found
        };
        let [old, new, next] = [1, 2, 3].map(|id| [id; 48]);
        say(&mut pages, "old/0", &old);
        say(&mut pages, "new/0", &new);
        pages.close_attempt("new/0");
        say(&mut pages, "next/0", &next);
        if places > 0 {
            say(&mut pages, "more/0", &[4; 48]);
        }
        assert_eq!(say(&mut pages, "old/0", &old), 32, "{count} pages, {places} places");
        assert_eq!(say(&mut pages, "new/1", &new), 0, "{count} pages, {places} places");
    }
}

#[test]
fn what_another_attempt_used_too_does_not_go_first() {
    let mut users = Users::of(Some(&"a/0".into()));
    assert!(!users.close("b/0") && !users.add(Some(&"a/0".into())));
    assert!(users.add(Some(&"a/1".into())) && !users.close("a/0"));
    assert_eq!(users, Users::Any);
    // A closed one that somebody uses again is as good as others.
    let mut closed = Users::of(Some(&"a/0".into()));
    assert!(closed.close("a/0") && closed.rank(9) < users.rank(1));
    assert!(closed.add(Some(&"a/1".into())) && closed.rank(9) > users.rank(1));
    assert_eq!(Users::of(None), Users::Any);
}

#[test]
fn pages_that_are_reused_soon_are_copied_beside_a_step() {
    let mut pages = PagePool::new(4, true).with_host(8, 2);
    start(&mut pages, scope(1, None), &ids(60));
    let moves = pages.take_moves();
    // One page is blank, so the next one would be reused.
    assert_eq!((moves.before.len(), moves.beside.len()), (0, 1));
    start(&mut pages, scope(1, None), &[7; 30]);
    let moves = pages.take_moves();
    assert_eq!((moves.before.len(), moves.beside.len()), (0, 1), "it was saved before");
}

/// An action of a random run.
#[derive(Clone, Debug)]
enum Act {
    Begin { family: u32, len: usize, salted: bool },
    Extend { which: usize, by: usize },
    End { which: usize },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..3_u32, 1..70_usize, any::<bool>()).prop_map(|(family, len, salted)| Act::Begin {
            family,
            len,
            salted
        }),
        (any::<usize>(), 1..40_usize).prop_map(|(which, by)| Act::Extend { which, by }),
        any::<usize>().prop_map(|which| Act::End { which }),
    ]
}

struct Run {
    pages: PagePool,
    /// The contents of the places on the host.
    on_host: HashMap<u32, (bool, Vec<u32>)>,
    live: Vec<(SequenceCache, Vec<u32>, bool)>,
    /// The last contents of each page, as the model would have written them.
    written: HashMap<u32, (bool, Vec<u32>)>,
}

impl Run {
    /// Takes, grows, "writes" the new positions and publishes, as a step does.
    fn advance(&mut self, index: usize) {
        let (cache, tokens, salted) = &mut self.live[index];
        self.pages.share(cache, tokens);
        if PagePool::missing(cache, tokens.len()) > self.pages.available() {
            return;
        }
        self.pages.fetch(cache, tokens);
        assert!(self.pages.grow(cache, tokens.len()));
        let moves = self.pages.take_moves();
        for PageMove { page, place, to } in moves.before.into_iter().chain(moves.beside.clone()) {
            match to {
                Placement::Host => self.on_host.insert(place, self.written[&page].clone()),
                Placement::Device => self.written.insert(page, self.on_host[&place].clone()),
            };
        }
        for position in cache.len..tokens.len() {
            let held = self.pages.pages[cache.pages[position / PAGE] as usize].holders;
            assert_eq!(held, 1, "a page that others hold is written");
            let page = cache.pages[position / PAGE];
            let is_read = moves.beside.iter().any(|one| one.page == page);
            assert!(!is_read, "a page is written while it is copied");
            let contents = (*salted, tokens[..=position].to_vec());
            self.written.insert(cache.pages[position / PAGE], contents);
        }
        cache.len = tokens.len();
        self.pages.publish(cache, tokens);
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Begin { family, len, salted } => {
                let salt = salted.then_some("s");
                let tokens = (0..len as u32).map(|i| i / 20 * family).collect();
                self.live.push((SequenceCache::new(scope(1, salt)), tokens, salted));
                self.advance(self.live.len() - 1);
            }
            Act::Extend { which, by } if !self.live.is_empty() => {
                let which = which % self.live.len();
                let tokens = &mut self.live[which].1;
                (0..by).for_each(|_| tokens.push(tokens.len() as u32 % 3));
                self.advance(which);
            }
            Act::End { which } if !self.live.is_empty() => {
                let (cache, ..) = self.live.swap_remove(which % self.live.len());
                self.pages.release(cache);
            }
            _ => {}
        }
    }

    fn check(&self) {
        let mut holders: HashMap<u32, u32> = HashMap::new();
        for (cache, tokens, salted) in &self.live {
            assert!(cache.pages.len() * PAGE >= cache.len);
            for (at, page) in cache.pages.iter().enumerate() {
                *holders.entry(*page).or_default() += 1;
                // What a sequence sees is what it would have computed itself, all before included.
                let end = ((at + 1) * PAGE).min(cache.len);
                if end > at * PAGE {
                    let (of, contents) = &self.written[page];
                    assert_eq!((of, &contents[..end]), (salted, &tokens[..end]));
                }
            }
            let mut own = cache.pages.clone();
            own.sort_unstable();
            own.dedup();
            assert_eq!(own.len(), cache.pages.len(), "a page twice in one sequence");
        }
        for (index, page) in self.pages.pages.iter().enumerate() {
            let index = index as u32;
            assert_eq!(page.holders, holders.get(&index).copied().unwrap_or(0));
            let blank = self.pages.blank.iter().filter(|other| **other == index).count();
            let kept = self.pages.kept.values().filter(|other| **other == index).count();
            assert_eq!(blank + kept + usize::from(page.holders > 0), 1, "page {index}");
        }
        let named = self.pages.pages.iter().filter(|page| page.published.is_some()).count();
        assert_eq!(named, self.pages.published.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_page_is_ever_in_two_hands_by_mistake_and_all_come_back(
        acts in proptest::collection::vec(act(), 1..60),
        count in 1..24_usize,
        sharing in any::<bool>(),
        (places, ahead) in (0..12_usize, 0..8_usize),
    ) {
        let pages = PagePool::new(count, sharing).with_host(places, ahead);
        let (on_host, written) = (HashMap::new(), HashMap::new());
        let mut run = Run { pages, on_host, live: Vec::new(), written };
        for act in &acts {
            run.act(act);
            run.check();
        }
        for (cache, ..) in std::mem::take(&mut run.live) {
            run.pages.release(cache);
        }
        prop_assert!(run.pages.host_places()[1] <= places);
        prop_assert_eq!(run.pages.available(), count);
    }
}
