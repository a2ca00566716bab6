//! Pages that the device has no room for, in the host's memory.
//!
//! A page that is reused on the device goes to a *place* on the host under the key that it was
//! published under, with the number of its contents, so that the pages behind it are found too. A
//! sequence that starts with the same tokens has it copied back instead of computing it. It keeps
//! its place until that is needed for another page; the one that was not wanted for longest goes
//! first.
//!
//! The pool only decides. The copies are made in the order of its decisions when the next step is
//! launched ([`PagePool::take_moves`]), so a place or a page may be given away while an earlier
//! copy from it still waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kernels::{PAGE, PageMove, PageMoves, Placement};

use super::attempts::Users;
use super::{KeptRank, PageKey, PagePool, Published};
use crate::model::cache::SequenceCache;

/// The places of pages on the host.
#[derive(Debug, Default)]
pub(crate) struct HostPool {
    places: Vec<Option<HostPage>>,
    blank: Vec<u32>,
    /// Used places by their rank, whose moment is the one at which they were last wanted; the first
    /// goes first.
    used: BTreeMap<KeptRank, u32>,
    by_key: HashMap<PageKey, u32>,
    moments: u64,
    /// Pages that are to be on the host before they are reused.
    ahead: usize,
    /// Copies that the next step waits for, in their order.
    moves: Vec<PageMove>,
    /// Pages that were copied to the host so far, and from there.
    copied: HostCopies,
}

/// Pages that were copied since this was last asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCopies {
    pub(crate) saved: usize,
    pub(crate) fetched: usize,
}

#[derive(Debug)]
struct HostPage {
    key: PageKey,
    number: u64,
    users: Users,
    rank: KeptRank,
}

impl HostPool {
    /// A pool of `count` blank places; none if nothing is kept on the host. A step may reuse up to
    /// `ahead` pages of the device.
    fn new(count: usize, ahead: usize) -> HostPool {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        HostPool {
            places: (0..count).map(|_| None).collect(),
            blank: (0..count).rev().collect(),
            ahead,
            ..HostPool::default()
        }
    }

    fn is_on(&self) -> bool {
        !self.places.is_empty()
    }

    /// The contents that have a key, if they have a place.
    fn find(&self, key: &PageKey) -> Option<&HostPage> {
        let place = self.by_key.get(key)?;
        self.places[*place as usize].as_ref()
    }

    /// Gives published contents a place, unless they have one. Returns the new place.
    fn add(&mut self, published: &Published) -> Option<u32> {
        let Published { key, number, users, .. } = published;
        if !self.is_on() || self.by_key.contains_key(key) {
            return None;
        }

        let place = match self.blank.pop() {
            Some(place) => place,
            None => {
                let (_, place) = self.used.pop_first()?;
                let before = self.places[place as usize].take();
                if let Some(page) = before {
                    self.by_key.remove(&page.key);
                }
                place
            }
        };

        self.by_key.insert(key.clone(), place);
        let rank = KeptRank::default();
        let page = HostPage { key: key.clone(), number: *number, users: users.clone(), rank };
        self.places[place as usize] = Some(page);
        self.want(place);
        self.copied.saved += 1;
        Some(place)
    }

    /// Notes that the contents of a place are wanted.
    fn want(&mut self, place: u32) {
        self.moments += 1;
        let Some(page) = &mut self.places[place as usize] else { return };
        self.used.remove(&page.rank);
        page.rank = page.users.rank(self.moments);
        self.used.insert(page.rank, place);
    }

    /// Notes that a sequence uses contents.
    pub(super) fn note_user(&mut self, key: &PageKey, attempt: Option<&Arc<str>>) {
        let Some(place) = self.by_key.get(key).copied() else { return };
        let page = self.places[place as usize].as_mut();
        if page.is_some_and(|page| page.users.add(attempt)) {
            self.want(place);
        }
    }

    /// Gives the contents that only this attempt used away before all others.
    pub(super) fn close_attempt(&mut self, attempt: &str) {
        for (place, page) in (0..).zip(&mut self.places) {
            let Some(page) = page else { continue };
            if page.users.close(attempt) {
                self.used.remove(&page.rank);
                page.rank = page.users.rank(page.rank.since);
                self.used.insert(page.rank, place);
            }
        }
    }

    /// Forgets all contents. Copies that wait are made all the same: a sequence may hold the page.
    fn clear(&mut self) {
        self.by_key.clear();
        for place in std::mem::take(&mut self.used).into_values() {
            self.places[place as usize] = None;
            self.blank.push(place);
        }
    }
}

impl PagePool {
    /// The same pool with `places` for pages on the host, of which a step may reuse up to `ahead`
    /// on the device. Not for hybrids, whose states are not copied.
    pub(crate) fn with_host(self, places: usize, ahead: usize) -> PagePool {
        debug_assert!(places == 0 || !self.is_hybrid());
        PagePool { host: HostPool::new(places, ahead), ..self }
    }

    /// All places on the host, and those in use.
    pub(crate) fn host_places(&self) -> [usize; 2] {
        [self.host.places.len(), self.host.used.len()]
    }

    /// Takes the counts of copies since the last call.
    pub(crate) fn take_host_copies(&mut self) -> HostCopies {
        std::mem::take(&mut self.host.copied)
    }

    /// The number under which contents are published: that of equal contents on the host, whose
    /// followers are then found, or a new one.
    pub(super) fn number_for(&mut self, key: &PageKey) -> u64 {
        match self.host.find(key) {
            Some(page) => page.number,
            None => self.next_number(),
        }
    }

    /// Has a page copied to the host before it gets new contents.
    pub(super) fn save(&mut self, page: u32, published: &Published) {
        if let Some(place) = self.host.add(published) {
            self.host.moves.push(PageMove { page, place, to: Placement::Host });
        }
    }

    /// Forgets all pages on the host.
    pub(super) fn clear_host(&mut self) {
        self.host.clear();
    }

    /// Extends `cache`, which begins, with pages that continue `tokens` and are on the host. They
    /// are copied to pages of the device. Returns the positions gained.
    pub(crate) fn fetch(&mut self, cache: &mut SequenceCache, tokens: &[u32]) -> usize {
        let (start, mut wanted) = (cache.len, Vec::new());
        while self.host.is_on() && PagePool::could_share(cache, tokens) {
            let Some(key) = self.next_key(cache, tokens) else { break };
            let page = match self.published.get(&key).copied() {
                Some(page) => {
                    self.hold(page);
                    page
                }
                None => {
                    let Some(page) = self.copy_back(&key) else { break };
                    wanted.extend(self.host.by_key.get(&key));
                    page
                }
            };
            self.note_user(page, cache.attempt.as_ref());
            cache.pages.push(page);
            cache.len += PAGE;
            self.advance_link(cache, page);
        }

        // The end of a chain is of no use without its beginning, so it goes first.
        wanted.into_iter().rev().for_each(|place| self.host.want(place));
        cache.len - start
    }

    /// Copies contents back from the host, if they are there, and publishes them. Returns their
    /// page, which is held once.
    fn copy_back(&mut self, key: &PageKey) -> Option<u32> {
        let place = *self.host.by_key.get(key)?;
        // What is copied to the host to make room takes this place last.
        self.host.want(place);
        let page = self.take()?;
        let Some(HostPage { number, users, .. }) = self.host.find(key) else {
            self.release_page(page);
            return None;
        };
        let (number, users) = (*number, users.clone());
        self.host.moves.push(PageMove { page, place, to: Placement::Device });
        self.host.copied.fetched += 1;
        self.published.insert(key.clone(), page);
        let published = Published { key: key.clone(), number, users, state: None };
        self.pages[page as usize].published = Some(published);
        Some(page)
    }

    /// Takes the copies that are to be made for the step that is launched next. Pages that later
    /// steps would reuse are copied beside it.
    pub(crate) fn take_moves(&mut self) -> PageMoves {
        let before = std::mem::take(&mut self.host.moves);
        if !self.host.is_on() {
            return PageMoves { before, ..PageMoves::default() };
        }
        let count = self.host.ahead.saturating_sub(self.blank.len());
        for page in self.kept.values().take(count) {
            let published = self.pages[*page as usize].published.as_ref();
            let place = published.and_then(|published| self.host.add(published));
            let to = Placement::Host;
            self.host.moves.extend(place.map(|place| PageMove { page: *page, place, to }));
        }
        PageMoves { before, beside: std::mem::take(&mut self.host.moves) }
    }
}
