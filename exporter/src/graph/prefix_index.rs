//! An index that finds the longest recorded path that a prompt starts with.

use std::collections::{BTreeSet, HashMap};

use crate::graph::node::NodeId;

/// A path of symbols (token ids or message numbers) in two parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SymbolPath<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) answer: &'a [u32],
}

/// Paths by their lengths and their last symbols.
#[derive(Debug, Default)]
pub(crate) struct PrefixIndex<'a> {
    /// The path of each node; none where nothing can continue it.
    paths: Vec<Option<SymbolPath<'a>>>,
    by_end: HashMap<PathEnd, Vec<NodeId>>,
    lengths: BTreeSet<usize>,
}

/// Length of a path and the hash of its last symbols.
type PathEnd = (usize, u64);

/// Number of last symbols that are hashed. Few paths of one length end alike, and those that do and
/// are no prefix mostly differ near their beginnings.
const HASHED_SYMBOLS: usize = 8;

impl<'a> PrefixIndex<'a> {
    /// Indexes one path for each node, in the order of the nodes. Takes time in the number of
    /// paths, not in their lengths.
    pub(crate) fn new(paths: impl Iterator<Item = Option<SymbolPath<'a>>>) -> Self {
        // Nothing continues an empty answer: the next call is a new try.
        let paths: Vec<_> = paths.map(|path| path.filter(|path| !path.answer.is_empty())).collect();
        let mut index = Self { paths, ..Self::default() };

        for (node, path) in index.paths.iter().enumerate() {
            let Some(path) = path else { continue };
            let length = path.prompt.len() + path.answer.len();
            index.by_end.entry((length, path.end_hash())).or_default().push(NodeId(node));
            index.lengths.insert(length);
        }
        index
    }

    /// Returns all nodes whose paths are the longest prefix of `prompt`, in order.
    pub(crate) fn longest_prefixes(&self, prompt: &[u32]) -> Vec<NodeId> {
        for length in self.lengths.range(..=prompt.len()).rev() {
            let end = &prompt[length.saturating_sub(HASHED_SYMBOLS)..*length];
            let Some(candidates) = self.by_end.get(&(*length, hash(end.iter()))) else { continue };
            // The hash only finds candidates; all symbols decide.
            let found: Vec<NodeId> = candidates
                .iter()
                .copied()
                .filter(|node| self.paths[node.0].is_some_and(|path| path.is_prefix_of(prompt)))
                .collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }
}

impl SymbolPath<'_> {
    fn end_hash(self) -> u64 {
        let from_prompt = HASHED_SYMBOLS.saturating_sub(self.answer.len());
        let prompt_end = &self.prompt[self.prompt.len().saturating_sub(from_prompt)..];
        let answer_end = &self.answer[self.answer.len().saturating_sub(HASHED_SYMBOLS)..];
        hash(prompt_end.iter().chain(answer_end))
    }

    fn is_prefix_of(self, prompt: &[u32]) -> bool {
        prompt.strip_prefix(self.prompt).is_some_and(|rest| rest.starts_with(self.answer))
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn hash<'s>(symbols: impl Iterator<Item = &'s u32>) -> u64 {
    symbols.fold(SEED, |hash, symbol| extend(hash, *symbol))
}

/// Mixes a symbol into a hash by one round of splitmix64 (Steele et al., 2014).
fn extend(hash: u64, symbol: u32) -> u64 {
    let mut x = hash.wrapping_add(u64::from(symbol)).wrapping_add(SEED);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path<'a>((prompt, answer): (&'a [u32], &'a [u32])) -> Option<SymbolPath<'a>> {
        Some(SymbolPath { prompt, answer })
    }

    fn longest(index: &PrefixIndex<'_>, prompt: &[u32]) -> Vec<usize> {
        index.longest_prefixes(prompt).into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn the_longest_prefix_is_found_and_empty_answers_are_not() {
        let paths: [(&[u32], &[u32]); 5] =
            [(&[1], &[2]), (&[1, 2], &[3]), (&[1], &[2, 3]), (&[1, 2, 3], &[]), (&[2], &[1])];
        let index = PrefixIndex::new(paths.into_iter().map(path).chain([None]));
        assert_eq!(longest(&index, &[1, 2, 3, 4]), [1, 2]);
        assert_eq!(longest(&index, &[1, 2]), [0]);
        assert_eq!(longest(&index, &[1]), [0; 0]);
    }

    #[test]
    fn paths_that_end_alike_are_told_apart_by_their_beginnings() {
        let multiples = |n: u32| -> Vec<u32> { (0..5).map(|i| i * n).collect() };
        let alike = |first: u32| [multiples(first), vec![7; 20]].concat();
        let (one, other) = (alike(1), alike(2));
        let split =
            [(&one[..24], &one[24..]), (&other[..3], &other[3..]), (&one[..10], &one[10..])];
        let index = PrefixIndex::new(split.into_iter().map(path));
        assert_eq!(longest(&index, &[&one[..], &[1]].concat()), [0, 2]);
        assert_eq!(longest(&index, &other), [1]);
        assert_eq!(longest(&index, &alike(3)), [0; 0]);
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
            let index = PrefixIndex::new(paths.iter().map(|(a, b)| path((&a[..], &b[..]))));
            let fits = |(a, b): &(Vec<u32>, Vec<u32>)| {
                let path = [&a[..], b].concat();
                (!b.is_empty() && prompt.starts_with(&path)).then_some(path.len())
            };
            let most = paths.iter().filter_map(fits).max();
            let place = |(i, path)| (most.is_some() && fits(path) == most).then_some(i);
            let expected: Vec<usize> = paths.iter().enumerate().filter_map(place).collect();
            proptest::prop_assert_eq!(longest(&index, &prompt), expected);
        }
    }
}
