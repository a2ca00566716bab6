//! The pool of pages of keys and values, with prefix caching.
//!
//! A page has sixteen positions. It is *held* by the sequences whose tokens it stands for; *kept*
//! if nobody holds it and its contents may be reused; *blank* otherwise. A full page is published
//! under its predecessor and its own sixteen ids, so that a sequence that begins with the same
//! tokens takes it instead of computing it. The first page of a chain is published under the number
//! of the weights and the request's salt, so other weights and other salts share nothing.
//!
//! Keys are compared whole, not by hash, so two prompts are never confused.
//!
//! In a hybrid, a sequence can begin behind a page only if the recurrent state at its end is kept.
//! A state is much larger than a page, so few are ([`kept`]).
//!
//! Contents that the device has no room for may go to the host's memory ([`host`]). Those that only
//! one attempt of an episode used go first once it is closed ([`attempts`]).

use std::collections::{BTreeMap, HashMap};

use kernels::PAGE;

use super::states::StatePool;
use crate::model::cache::{ChainLink, SequenceCache};
use attempts::Users;
use host::HostPool;

/// The key of a published page: its predecessor and its ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageKey {
    link: ChainLink,
    ids: [u32; PAGE],
}

/// The order in which kept contents are given away: those of closed attempts first, then by the
/// moment of their release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct KeptRank {
    /// False if only a closed attempt used them.
    may_return: bool,
    since: u64,
}

/// Published contents.
#[derive(Debug)]
struct Published {
    key: PageKey,
    /// The number of the contents, by which a following page refers to them.
    number: u64,
    users: Users,
    /// The slot with the recurrent state at the end of the page, if it is kept.
    state: Option<u32>,
}

#[derive(Debug, Default)]
struct PageState {
    /// Sequences that hold the page.
    holders: u32,
    published: Option<Published>,
    /// Its rank, while it is kept.
    rank: KeptRank,
}

/// All pages of an engine.
#[derive(Debug)]
pub(crate) struct PagePool {
    pages: Vec<PageState>,
    blank: Vec<u32>,
    /// Kept pages by their rank; the first goes first.
    kept: BTreeMap<KeptRank, u32>,
    published: HashMap<PageKey, u32>,
    states: StatePool,
    host: HostPool,
    sharing: bool,
    /// A counter of moments and of contents.
    counter: u64,
}

impl PagePool {
    /// A pool of `count` blank pages; without `sharing` nothing is published.
    pub(crate) fn new(count: usize, sharing: bool) -> PagePool {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        PagePool {
            pages: (0..count).map(|_| PageState::default()).collect(),
            blank: (0..count).rev().collect(),
            kept: BTreeMap::new(),
            published: HashMap::new(),
            states: StatePool::default(),
            host: HostPool::default(),
            sharing,
            counter: 0,
        }
    }

    /// The same pool for a hybrid with so many slots of recurrent states.
    pub(crate) fn with_states(self, slots: usize) -> PagePool {
        PagePool { states: StatePool::new(slots), ..self }
    }

    /// All slots of recurrent states.
    pub(crate) fn states_total(&self) -> usize {
        self.states.total()
    }

    /// Slots of recurrent states that no sequence holds.
    #[cfg(test)]
    pub(crate) fn states_available(&self) -> usize {
        self.states.available()
    }

    /// Recurrent states that are kept and that no sequence holds.
    #[cfg(test)]
    pub(crate) fn states_kept(&self) -> usize {
        self.states.idle()
    }

    /// True for a model with recurrent states.
    fn is_hybrid(&self) -> bool {
        self.states.total() > 0
    }

    /// All pages.
    pub(crate) fn total(&self) -> usize {
        self.pages.len()
    }

    /// Pages that no sequence holds.
    pub(crate) fn available(&self) -> usize {
        self.blank.len() + self.kept.len()
    }

    /// Pages that `cache` still needs to have room for `positions`.
    pub(crate) fn missing(cache: &SequenceCache, positions: usize) -> usize {
        positions.div_ceil(PAGE).saturating_sub(cache.pages.len())
    }

    /// Gives `cache` room for `positions`. Returns false, and gives nothing, if there are too few
    /// pages.
    pub(crate) fn grow(&mut self, cache: &mut SequenceCache, positions: usize) -> bool {
        let missing = PagePool::missing(cache, positions);
        if missing > self.available() {
            return false;
        }
        cache.pages.extend((0..missing).map_while(|_| self.take()));
        true
    }

    /// Extends `cache` with published pages that continue `tokens`. Returns the positions gained.
    /// The last token is never covered, because its logits are needed.
    pub(crate) fn share(&mut self, cache: &mut SequenceCache, tokens: &[u32]) -> usize {
        if !PagePool::could_share(cache, tokens) {
            return 0;
        }
        let (found, _) = self.continuation(cache, tokens);
        let taken = self.usable(&found);
        cache.state.branch = (taken < found.len()).then(|| cache.len + found.len() * PAGE);
        for page in &found[..taken] {
            self.hold(*page);
            self.note_user(*page, cache.attempt.as_ref());
            cache.pages.push(*page);
            cache.len += PAGE;
            self.advance_link(cache, *page);
        }
        if let Some(slot) = found[..taken].last().and_then(|page| self.state_of(*page)) {
            self.begin_at(cache, slot);
        }
        taken * PAGE
    }

    /// The published pages that continue `tokens` behind `cache`, and the link of the page behind
    /// them.
    fn continuation(&self, cache: &SequenceCache, tokens: &[u32]) -> (Vec<u32>, Option<ChainLink>) {
        let (mut found, mut link) = (Vec::new(), cache.link.clone().filter(|_| self.sharing));
        while cache.len + (found.len() + 1) * PAGE < tokens.len() {
            let key = PagePool::key(link.as_ref(), tokens, cache.published + found.len());
            let Some(page) = key.and_then(|key| self.published.get(&key)) else { break };
            let published = self.pages[*page as usize].published.as_ref();
            link = published.map(|published| ChainLink::After(published.number));
            found.push(*page);
        }
        (found, link)
    }

    /// The number of pages that a sequence can take: in a hybrid, those up to the last one whose
    /// state is kept.
    fn usable(&self, pages: &[u32]) -> usize {
        match self.is_hybrid() {
            true => {
                pages.iter().rposition(|page| self.state_of(*page).is_some()).map_or(0, |i| i + 1)
            }
            false => pages.len(),
        }
    }

    /// Returns true if `cache` could take a whole page next and still leave the last of `tokens` to
    /// be computed.
    pub(crate) fn could_share(cache: &SequenceCache, tokens: &[u32]) -> bool {
        cache.len + PAGE < tokens.len() && cache.pages.len() * PAGE == cache.len
    }

    /// The key under which the next full page of `cache` will be published, if its ids are known.
    fn next_key(&self, cache: &SequenceCache, tokens: &[u32]) -> Option<PageKey> {
        PagePool::key(cache.link.as_ref().filter(|_| self.sharing), tokens, cache.published)
    }

    /// The key of the page `index` of `tokens` behind its predecessor.
    fn key(link: Option<&ChainLink>, tokens: &[u32], index: usize) -> Option<PageKey> {
        let ids = tokens.get(index * PAGE..)?.first_chunk::<PAGE>()?;
        Some(PageKey { link: link?.clone(), ids: *ids })
    }

    /// The keys of the pages of `tokens` that a sequence begins to compute, and that others which
    /// need them wait for: the next one; in a hybrid also the first one that nobody has published,
    /// because a sequence may have to compute pages before it once more, to get to its state.
    pub(crate) fn next_keys(&self, cache: &SequenceCache, tokens: &[u32]) -> Vec<PageKey> {
        let mut keys: Vec<PageKey> = self.next_key(cache, tokens).into_iter().collect();
        if self.is_hybrid() && PagePool::could_share(cache, tokens) {
            let (found, link) = self.continuation(cache, tokens);
            keys.extend(PagePool::key(link.as_ref(), tokens, cache.published + found.len()));
        }
        keys
    }

    /// Publishes the full pages of `cache`, whose ids are `tokens`.
    ///
    /// If another sequence published the same contents first, its page replaces ours: equal tokens
    /// have equal bits, whoever computed them.
    pub(crate) fn publish(&mut self, cache: &mut SequenceCache, tokens: &[u32]) {
        self.publish_pages(cache, tokens);
        self.keep_states(cache, tokens.len());
    }

    fn publish_pages(&mut self, cache: &mut SequenceCache, tokens: &[u32]) {
        while (cache.published + 1) * PAGE <= cache.len {
            let Some(key) = self.next_key(cache, tokens) else { return };
            let at = cache.published;
            let own = cache.pages[at];

            match self.published.get(&key) {
                Some(&other) => {
                    self.hold(other);
                    self.note_user(other, cache.attempt.as_ref());
                    self.release_page(own);
                    cache.pages[at] = other;
                }
                None => {
                    let number = self.number_for(&key);
                    self.published.insert(key.clone(), own);
                    let users = Users::of(cache.attempt.as_ref());
                    let published = Published { key, number, users, state: None };
                    self.pages[own as usize].published = Some(published);
                }
            }
            self.advance_link(cache, cache.pages[at]);
        }
    }

    /// Takes back the positions of a cache behind the first `positions`, and the pages that only
    /// they need. None of these is published.
    pub(crate) fn shrink(&mut self, cache: &mut SequenceCache, positions: usize) {
        cache.len = cache.len.min(positions);
        for page in cache.pages.split_off(cache.len.div_ceil(PAGE)).into_iter().rev() {
            self.release_page(page);
        }
    }

    /// Takes all pages of a cache back. The end of a chain is released first, so that it is also
    /// reused first: a page without its predecessors is of no use.
    pub(crate) fn release(&mut self, mut cache: SequenceCache) {
        self.release_states(&mut cache.state);
        for page in cache.pages.into_iter().rev() {
            self.release_page(page);
        }
    }

    /// Clears the prefix cache, on the host too: nothing that was published so far is found again.
    /// Held pages stay held.
    pub(crate) fn clear_published(&mut self) {
        self.published.clear();
        self.clear_host();
        self.blank.extend(std::mem::take(&mut self.kept).into_values());
        for page in &mut self.pages {
            let state = page.published.take().and_then(|published| published.state);
            state.into_iter().for_each(|slot| self.states.forget(slot));
        }
    }

    /// Moves the link of `cache` behind its published page `page`.
    fn advance_link(&self, cache: &mut SequenceCache, page: u32) {
        cache.published += 1;
        if let Some(published) = &self.pages[page as usize].published {
            cache.link = Some(ChainLink::After(published.number));
        }
    }

    /// Returns a page for new contents: a blank one, or the kept one that was released first.
    fn take(&mut self) -> Option<u32> {
        let page = match self.blank.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.kept.pop_first()?;
                if let Some(published) = self.pages[page as usize].published.take() {
                    self.published.remove(&published.key);
                    self.save(page, &published);
                    published.state.into_iter().for_each(|slot| self.states.forget(slot));
                }
                page
            }
        };
        self.pages[page as usize].holders = 1;
        Some(page)
    }

    fn hold(&mut self, index: u32) {
        let page = &mut self.pages[index as usize];
        if page.holders == 0 {
            self.kept.remove(&page.rank);
        }
        page.holders += 1;
    }

    fn release_page(&mut self, index: u32) {
        let moment = self.next_number();
        let page = &mut self.pages[index as usize];
        page.holders = page.holders.saturating_sub(1);
        if page.holders > 0 {
            return;
        }
        if let Some(published) = &page.published {
            page.rank = published.users.rank(moment);
            self.kept.insert(page.rank, index);
        } else {
            self.blank.push(index);
        }
    }

    fn next_number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }
}

mod attempts;
pub(crate) mod host;
mod kept;
#[cfg(test)]
mod tests;
