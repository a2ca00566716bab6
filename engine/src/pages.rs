//! The pages of keys and values: who holds them, and what those that nobody holds still say.
//!
//! A page has sixteen positions. It is *held* by the sequences whose tokens it stands for; *kept*
//! when nobody holds it and its contents may be of use again; *blank* otherwise. A full page is
//! published under the page before it and its own sixteen ids, so that a sequence that begins with
//! the same tokens takes it instead of computing it. The first page of a chain is published under
//! the number of the weights and the request's salt: other weights and other salts share nothing.
//!
//! Keys are compared whole, so no two prompts are ever taken for one another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kernels::PAGE;

use crate::cache::SequenceCache;

/// Where a chain of pages begins: sequences of different origins share nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    /// The number of the weights; a label may be used again, a number never is.
    pub(crate) weights: u64,
    /// The number of the adapter that is added to them.
    pub(crate) adapter: Option<u64>,
    /// What the request gave as `cache_salt`.
    pub(crate) salt: Option<Arc<str>>,
}

/// The place in a chain that a page continues.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Start(Arc<Origin>),
    /// Behind published contents, by the number that they got; numbers are never used again.
    After(u64),
}

/// What a page says: its ids, and the page that they follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    place: Place,
    ids: [u32; PAGE],
}

#[derive(Debug, Default)]
struct Page {
    holders: u32,
    /// What it is published under, and the number of its contents.
    published: Option<(Key, u64)>,
    /// When it was let go of, while it is kept.
    since: u64,
}

/// All pages of an engine.
#[derive(Debug)]
pub(crate) struct Pages {
    pages: Vec<Page>,
    blank: Vec<u32>,
    /// Kept pages by the moment they were let go of, oldest first.
    kept: BTreeMap<u64, u32>,
    published: HashMap<Key, u32>,
    sharing: bool,
    /// Counts moments and contents.
    counter: u64,
}

impl Pages {
    /// `count` blank pages; without `sharing` nothing is published.
    pub(crate) fn new(count: usize, sharing: bool) -> Pages {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Pages {
            pages: (0..count).map(|_| Page::default()).collect(),
            blank: (0..count).rev().collect(),
            kept: BTreeMap::new(),
            published: HashMap::new(),
            sharing,
            counter: 0,
        }
    }

    /// Pages in all.
    pub(crate) fn total(&self) -> usize {
        self.pages.len()
    }

    /// Pages that nobody holds.
    pub(crate) fn available(&self) -> usize {
        self.blank.len() + self.kept.len()
    }

    /// Pages that `cache` lacks before it has room for `positions`.
    pub(crate) fn lacking(cache: &SequenceCache, positions: usize) -> usize {
        positions.div_ceil(PAGE).saturating_sub(cache.pages.len())
    }

    /// Gives `cache` room for `positions`. Gives nothing, and says so, if there are too few pages.
    pub(crate) fn grow(&mut self, cache: &mut SequenceCache, positions: usize) -> bool {
        let lacking = Pages::lacking(cache, positions);
        if lacking > self.available() {
            return false;
        }
        cache.pages.extend((0..lacking).map_while(|_| self.take()));
        true
    }

    /// Takes published pages that go on where `cache` ends, as far as `tokens` go on so. The last
    /// token is never covered: its logits are needed. Returns how many positions that gave.
    pub(crate) fn share(&mut self, cache: &mut SequenceCache, tokens: &[u32]) -> usize {
        let before = cache.len;
        while Pages::could_share(cache, tokens) {
            let Some(page) = self.next(cache, tokens).and_then(|key| self.published.get(&key))
            else {
                break;
            };
            let page = *page;
            self.hold(page);
            cache.pages.push(page);
            cache.len += PAGE;
            self.follow(cache, page);
        }
        cache.len - before
    }

    /// Whether `cache` could take a whole page next and leave the last of `tokens` to be computed.
    pub(crate) fn could_share(cache: &SequenceCache, tokens: &[u32]) -> bool {
        cache.len + PAGE < tokens.len() && cache.pages.len() * PAGE == cache.len
    }

    /// What the page that `cache` fills next will be published under, if that is known already.
    pub(crate) fn next(&self, cache: &SequenceCache, tokens: &[u32]) -> Option<Key> {
        let place = cache.place.as_ref().filter(|_| self.sharing)?;
        let ids = tokens.get(cache.published * PAGE..)?.first_chunk::<PAGE>()?;
        Some(Key { place: place.clone(), ids: *ids })
    }

    /// Publishes the pages of `cache` that are full by now; `tokens` is what they say.
    ///
    /// Where another sequence was faster, its page takes the place of ours: equal tokens have equal
    /// bits, whoever computed them.
    pub(crate) fn publish(&mut self, cache: &mut SequenceCache, tokens: &[u32]) {
        while (cache.published + 1) * PAGE <= cache.len {
            let Some(key) = self.next(cache, tokens) else { return };
            let at = cache.published;
            let own = cache.pages[at];
            match self.published.get(&key) {
                Some(&other) => {
                    self.hold(other);
                    self.let_go(own);
                    cache.pages[at] = other;
                }
                None => {
                    let number = self.count();
                    self.published.insert(key.clone(), own);
                    self.pages[own as usize].published = Some((key, number));
                }
            }
            self.follow(cache, cache.pages[at]);
        }
    }

    /// Takes all pages of a cache back. The end of a chain is let go of first, so that it is also
    /// forgotten first: a page without those before it is of no use.
    pub(crate) fn release(&mut self, cache: SequenceCache) {
        for page in cache.pages.into_iter().rev() {
            self.let_go(page);
        }
    }

    /// Forgets what pages say: nothing that was published so far is found again. Those that hold
    /// pages keep them.
    pub(crate) fn forget(&mut self) {
        self.published.clear();
        self.blank.extend(std::mem::take(&mut self.kept).into_values());
        self.pages.iter_mut().for_each(|page| page.published = None);
    }

    /// Moves the place of `cache` behind its published page `page`.
    fn follow(&self, cache: &mut SequenceCache, page: u32) {
        cache.published += 1;
        if let Some((_, number)) = &self.pages[page as usize].published {
            cache.place = Some(Place::After(*number));
        }
    }

    /// A page for new contents: a blank one, or the one that was let go of the longest ago.
    fn take(&mut self) -> Option<u32> {
        let page = match self.blank.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.kept.pop_first()?;
                if let Some((key, _)) = self.pages[page as usize].published.take() {
                    self.published.remove(&key);
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
            self.kept.remove(&page.since);
        }
        page.holders += 1;
    }

    fn let_go(&mut self, index: u32) {
        let moment = self.count();
        let page = &mut self.pages[index as usize];
        page.holders = page.holders.saturating_sub(1);
        if page.holders > 0 {
            return;
        }
        if page.published.is_some() {
            page.since = moment;
            self.kept.insert(moment, index);
        } else {
            self.blank.push(index);
        }
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }
}

#[cfg(test)]
mod tests;
