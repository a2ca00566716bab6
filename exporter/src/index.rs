//! An index of paths by their content: which of them is the longest that a prompt starts with.

use std::collections::{BTreeSet, HashMap};

/// A path of symbols in two parts: what was asked, then what was answered.
pub(crate) type Parts<'a> = (&'a [u32], &'a [u32]);

/// Paths by length and hash.
#[derive(Debug, Default)]
pub(crate) struct Index<'a> {
    paths: Vec<Option<Parts<'a>>>,
    by_hash: HashMap<(usize, u64), Vec<usize>>,
    lengths: BTreeSet<usize>,
}

impl<'a> Index<'a> {
    /// An index of the given paths, each known by its place in the list. Linear in their symbols.
    pub(crate) fn new(paths: impl Iterator<Item = Option<Parts<'a>>>) -> Self {
        // Where nothing was answered, nothing is continued: the next call is a new try.
        let paths: Vec<_> = paths.map(|path| path.filter(|path| !path.1.is_empty())).collect();
        let mut index = Self { paths, ..Self::default() };
        for (place, path) in index.paths.iter().enumerate() {
            let Some((asked, answered)) = path else { continue };
            let length = asked.len() + answered.len();
            let hash = asked.iter().chain(*answered).fold(SEED, |hash, s| extend(hash, *s));
            index.by_hash.entry((length, hash)).or_default().push(place);
            index.lengths.insert(length);
        }
        index
    }

    /// All paths of the greatest length that are a prefix of `prompt`, in order.
    pub(crate) fn longest(&self, prompt: &[u32]) -> Vec<usize> {
        for (length, hash) in self.marks(prompt).into_iter().rev() {
            let Some(found) = self.by_hash.get(&(length, hash)) else { continue };
            // A hash only points; the symbols decide.
            let is_prefix = |place: &usize| {
                self.paths[*place].is_some_and(|(asked, answered)| {
                    prompt.strip_prefix(asked).is_some_and(|rest| rest.starts_with(answered))
                })
            };
            let found: Vec<usize> = found.iter().copied().filter(is_prefix).collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// The hashes of those prefixes of `prompt` that are as long as a path is.
    fn marks(&self, prompt: &[u32]) -> Vec<(usize, u64)> {
        let (mut at, mut hash) = (0, SEED);
        let mark = |length: &usize| {
            hash = prompt[at..*length].iter().fold(hash, |hash, symbol| extend(hash, *symbol));
            at = *length;
            (*length, hash)
        };
        self.lengths.range(..=prompt.len()).map(mark).collect()
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn extend(hash: u64, symbol: u32) -> u64 {
    // One round of splitmix64 over the running state: any change of order or value spreads.
    let mut x = hash.wrapping_add(u64::from(symbol)).wrapping_add(SEED);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_is_found_and_empty_answers_are_not() {
        let paths: [Parts<'_>; 5] =
            [(&[1], &[2]), (&[1, 2], &[3]), (&[1], &[2, 3]), (&[1, 2, 3], &[]), (&[2], &[1])];
        let index = Index::new(paths.into_iter().map(Some).chain([None]));
        assert_eq!(index.longest(&[1, 2, 3, 4]), [1, 2]);
        assert_eq!(index.longest(&[1, 2]), [0]);
        assert_eq!(index.longest(&[1]), [0; 0]);
    }
}
