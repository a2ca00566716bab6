//! An index of paths by their content: which of them is the longest that a prompt starts with.

use std::collections::{BTreeSet, HashMap};

/// A path of symbols in two parts: what was asked, then what was answered.
pub(crate) type Parts<'a> = (&'a [u32], &'a [u32]);

/// Paths by their lengths and their last symbols.
#[derive(Debug, Default)]
pub(crate) struct Index<'a> {
    paths: Vec<Option<Parts<'a>>>,
    by_end: HashMap<(usize, u64), Vec<usize>>,
    lengths: BTreeSet<usize>,
}

/// How many of the last symbols of a path point at it. Few paths of one length end alike, and those
/// that do and are no prefix mostly differ near their beginnings.
const END: usize = 8;

impl<'a> Index<'a> {
    /// An index of the given paths, each known by its place in the list. Its time follows their
    /// number, not their lengths.
    pub(crate) fn new(paths: impl Iterator<Item = Option<Parts<'a>>>) -> Self {
        // Where nothing was answered, nothing is continued: the next call is a new try.
        let paths: Vec<_> = paths.map(|path| path.filter(|path| !path.1.is_empty())).collect();
        let mut index = Self { paths, ..Self::default() };
        for (place, path) in index.paths.iter().enumerate() {
            let Some((asked, answered)) = path else { continue };
            let length = asked.len() + answered.len();
            let before =
                &asked[asked.len() - END.saturating_sub(answered.len()).min(asked.len())..];
            let answered = &answered[answered.len().saturating_sub(END)..];
            let hash = before.iter().chain(answered).fold(SEED, |hash, s| extend(hash, *s));
            index.by_end.entry((length, hash)).or_default().push(place);
            index.lengths.insert(length);
        }
        index
    }

    /// All paths of the greatest length that are a prefix of `prompt`, in order.
    pub(crate) fn longest(&self, prompt: &[u32]) -> Vec<usize> {
        for length in self.lengths.range(..=prompt.len()).rev() {
            let end = &prompt[length.saturating_sub(END)..*length];
            let hash = end.iter().fold(SEED, |hash, symbol| extend(hash, *symbol));
            let Some(found) = self.by_end.get(&(*length, hash)) else { continue };
            // The end only points; all symbols decide.
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

    #[test]
    fn paths_that_end_alike_are_told_apart_by_their_beginnings() {
        let path = |first: u32, n: u32| -> Vec<u32> { (0..n).map(|i| i * first).collect() };
        let alike = |first: u32| [path(first, 5), vec![7; 20]].concat();
        let (one, other) = (alike(1), alike(2));
        let split =
            [(&one[..24], &one[24..]), (&other[..3], &other[3..]), (&one[..10], &one[10..])];
        let index = Index::new(split.into_iter().map(Some));
        assert_eq!(index.longest(&[&one[..], &[1]].concat()), [0, 2]);
        assert_eq!(index.longest(&other), [1]);
        assert_eq!(index.longest(&alike(3)), [0; 0]);
    }

    proptest::proptest! {
        #[test]
        fn what_is_found_is_what_a_search_finds(
            paths in proptest::collection::vec(
                (
                    proptest::collection::vec(0u32..2, 0..12),
                    proptest::collection::vec(0u32..2, 0..12),
                ),
                0..20,
            ),
            prompt in proptest::collection::vec(0u32..2, 0..24),
        ) {
            let index = Index::new(paths.iter().map(|(a, b)| Some((&a[..], &b[..]))));
            let fits = |(a, b): &(Vec<u32>, Vec<u32>)| {
                let path = [&a[..], b].concat();
                (!b.is_empty() && prompt.starts_with(&path)).then_some(path.len())
            };
            let longest = paths.iter().filter_map(fits).max();
            let place = |(i, path)| (longest.is_some() && fits(path) == longest).then_some(i);
            let expected: Vec<usize> = paths.iter().enumerate().filter_map(place).collect();
            proptest::prop_assert_eq!(index.longest(&prompt), expected);
        }
    }
}
