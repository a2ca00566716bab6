//! An index of the token paths of an episode by their hashes. It finds the call that a prompt
//! continues.
//!
//! A path is a prompt and the tokens sampled after it. Its rolling hash is kept where a prompt
//! ended, where the path itself ends, and every so many tokens, so that a prompt that leaves a path
//! in its middle shares at least what came before.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

/// Tokens between two marks of a path.
const MARK_EVERY: usize = 1024;
/// Parents in a row, above which a prompt is stored whole.
const DEPTH_MAX: u32 = 128;
/// Marks that are kept for an episode.
const MARKS_MAX: usize = 1 << 16;
/// The largest prime below 2^61.
const PRIME: u64 = (1 << 61) - 1;

/// Two polynomial hashes modulo [`PRIME`], so that no two paths collide by chance.
type PathHash = [u64; 2];

/// The first to the fourth power of a base.
type Powers = [u64; 4];

/// The paths of an episode.
#[derive(Debug)]
pub(crate) struct PathIndex {
    /// Random and secret, so that nobody can send two prompts that look alike.
    bases: [Powers; 2],
    marks: HashMap<PathHash, PathMark>,
    /// The number of marks at each length that is no multiple of [`MARK_EVERY`].
    odd_lengths: BTreeMap<usize, u32>,
}

/// A beginning of a path: the first call that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathMark {
    pub(crate) call_key: i64,
    pub(crate) choice: u32,
    /// Tokens up to here.
    pub(crate) shared: usize,
    /// Parents that lead to the call's own prompt.
    pub(crate) depth: u32,
}

/// A prompt that was looked up.
#[derive(Debug, Clone)]
pub(crate) struct PromptMatch {
    /// The longest known beginning.
    pub(crate) parent: Option<PathMark>,
    /// Tokens of the prompt.
    length: usize,
    /// The hashes at the lengths that have, or should have, a mark.
    hashes: Vec<(usize, PathHash)>,
    end: PathHash,
}

/// A choice whose path is added to the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathEnd<'a> {
    pub(crate) call_key: i64,
    pub(crate) choice: u32,
    /// Parents that lead to the choice's prompt.
    pub(crate) depth: u32,
    pub(crate) sampled: &'a [u32],
}

impl PromptMatch {
    /// The number of parents that lead to the prompt.
    pub(crate) fn depth(&self) -> u32 {
        self.parent.map_or(0, |parent| parent.depth + 1)
    }

    /// Tokens that the prompt shares with its parent's path.
    pub(crate) fn shared(&self) -> usize {
        self.parent.map_or(0, |parent| parent.shared)
    }
}

impl PathIndex {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        let powers = |n: u64| {
            let base = random.hash_one(n) % (PRIME - 1_000_000) + 1_000_000;
            let square = multiply(base, base);
            [base, square, multiply(square, base), multiply(square, square)]
        };
        Self { bases: [powers(0), powers(1)], marks: HashMap::new(), odd_lengths: BTreeMap::new() }
    }

    /// Looks a prompt up. A parent that is too deep is left out.
    pub(crate) fn find(&self, prompt: &[u32]) -> PromptMatch {
        let (mut hashes, mut end) = (Vec::new(), [0, 0]);
        let mut odd_lengths = self.odd_lengths.keys().copied().peekable();
        // Later marks are longer, so the last one that is found wins.
        let (mut parent, mut length) = (None, 0);
        loop {
            let even = (length / MARK_EVERY + 1) * MARK_EVERY;
            let next = odd_lengths.peek().map_or(even, |odd| even.min(*odd));
            let Some(run) = prompt.get(length..next) else { break };
            odd_lengths.next_if_eq(&next);
            end = self.hash_on(end, run);
            length = next;
            let found = self.marks.get(&end).filter(|mark| mark.shared == length);
            parent = found.copied().or(parent);
            hashes.push((length, end));
        }
        end = self.hash_on(end, &prompt[length..]);

        let parent = parent.filter(|mark| mark.depth < DEPTH_MAX);
        PromptMatch { parent, length: prompt.len(), hashes, end }
    }

    /// Adds the path of a choice whose prompt was looked up as `prompt`.
    pub(crate) fn add(&mut self, prompt: &PromptMatch, path: PathEnd<'_>) {
        if self.marks.len() > MARKS_MAX {
            self.marks.clear();
            self.odd_lengths.clear();
        }
        let PathEnd { call_key, choice, depth, sampled } = path;
        let mark = |shared| PathMark { call_key, choice, shared, depth };

        // The prompt: its parent has the marks up to where they part.
        for (length, hash) in &prompt.hashes {
            if *length > prompt.shared() {
                self.insert(*hash, mark(*length));
            }
        }
        self.insert(prompt.end, mark(prompt.length));

        // The sampled tokens behind it.
        let (mut end, mut length, mut rest) = (prompt.end, prompt.length, sampled);
        while !rest.is_empty() {
            let (run, behind) = rest.split_at(rest.len().min(MARK_EVERY - length % MARK_EVERY));
            (end, length, rest) = (self.hash_on(end, run), length + run.len(), behind);
            self.insert(end, mark(length));
        }
    }

    /// The memory that this occupies, roughly, in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.marks.capacity() * (size_of::<(PathHash, PathMark)>() + 1)
            + self.odd_lengths.len() * 32
    }

    /// Inserts a mark, unless the path has one: the first call to have it has the fewest parents.
    fn insert(&mut self, hash: PathHash, mark: PathMark) {
        if mark.shared == 0 || self.marks.contains_key(&hash) {
            return;
        }
        self.marks.insert(hash, mark);
        if !mark.shared.is_multiple_of(MARK_EVERY) {
            *self.odd_lengths.entry(mark.shared).or_default() += 1;
        }
    }

    /// The hash of a path that has this one and goes on with `ids`.
    fn hash_on(&self, hash: PathHash, ids: &[u32]) -> PathHash {
        let [first, second] = hash;
        [hash_on(first, &self.bases[0], ids), hash_on(second, &self.bases[1], ids)]
    }
}

/// Appends ids to a polynomial hash: `hash * base + id + 1` for each. Four at a time, since each
/// step of one waits for the one before it.
fn hash_on(hash: u64, powers: &Powers, ids: &[u32]) -> u64 {
    let digit = |id: u32| u64::from(id) + 1;
    let times = |value: u64, power: usize| u128::from(value) * u128::from(powers[power - 1]);
    let (fours, rest) = ids.as_chunks::<4>();
    let hash = fours.iter().fold(hash, |hash, &[a, b, c, d]| {
        let older = times(hash, 4) + times(digit(a), 3) + times(digit(b), 2) + times(digit(c), 1);
        modulo(older + u128::from(digit(d)))
    });
    rest.iter().fold(hash, |hash, id| modulo(times(hash, 1) + u128::from(digit(*id))))
}

/// The product modulo [`PRIME`].
fn multiply(a: u64, b: u64) -> u64 {
    modulo(u128::from(a) * u128::from(b))
}

/// A value below 2^126, modulo [`PRIME`]: 2^61 is one more.
fn modulo(value: u128) -> u64 {
    let prime = u128::from(PRIME);
    let folded = (value & prime) + (value >> 61);
    reduce(((folded & prime) + (folded >> 61)) as u64)
}

/// A value below twice [`PRIME`], modulo it.
fn reduce(value: u64) -> u64 {
    if value >= PRIME { value - PRIME } else { value }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn added(
        paths: &mut PathIndex,
        key: i64,
        prompt: &[u32],
        sampled: &[u32],
    ) -> Option<(i64, usize)> {
        let matched = paths.find(prompt);
        let depth = matched.depth();
        paths.add(&matched, PathEnd { call_key: key, choice: 0, depth, sampled });
        matched.parent.map(|parent| (parent.call_key, parent.shared))
    }

    #[test]
    fn a_prompt_goes_on_from_the_longest_path_that_it_starts_with() {
        let mut paths = PathIndex::new();
        assert_eq!(added(&mut paths, 1, &[1, 2], &[3]), None);
        assert_eq!(added(&mut paths, 2, &[1, 2, 3, 4], &[5]), Some((1, 3)));
        assert_eq!(added(&mut paths, 3, &[1, 2, 9], &[]), Some((1, 2)), "it shares the prompt");
        assert_eq!(added(&mut paths, 4, &[1, 2, 3, 4, 5], &[6]), Some((2, 5)));
        assert_eq!(added(&mut paths, 5, &[1, 2, 3, 4, 6], &[6]), Some((2, 4)));
        assert_eq!(added(&mut paths, 6, &[2], &[6]), None);
        assert_eq!(added(&mut paths, 7, &[], &[]), None);
    }

    #[test]
    fn a_prompt_that_leaves_a_long_path_shares_what_came_before() {
        let mut paths = PathIndex::new();
        let long: Vec<u32> = (0..5000).collect();
        added(&mut paths, 1, &long, &[7]);
        let left = [&long[..4000], &[1, 2, 3]].concat();
        assert_eq!(added(&mut paths, 2, &left, &[]), Some((1, 3072)));
    }

    #[test]
    fn chains_have_an_end() {
        let mut paths = PathIndex::new();
        let mut deepest = 0;
        let path: Vec<u32> = (0..600).collect();
        for key in 0..300 {
            let matched = paths.find(&path[..2 * key + 1]);
            deepest = deepest.max(matched.depth());
            let sampled = &path[2 * key + 1..2 * key + 2];
            let (call_key, depth) = (key as i64, matched.depth());
            paths.add(&matched, PathEnd { call_key, choice: 0, depth, sampled });
        }
        assert_eq!(deepest, DEPTH_MAX);
    }

    proptest! {
        #[test]
        fn a_hash_is_that_of_one_id_after_the_other(
            ids in proptest::collection::vec(any::<u32>(), 0..40),
            cut in 0_usize..40,
        ) {
            let paths = PathIndex::new();
            let one_by_one = ids.iter().fold([0, 0], |hash, id| paths.hash_on(hash, &[*id]));
            let (before, after) = ids.split_at(cut.min(ids.len()));
            prop_assert_eq!(paths.hash_on(paths.hash_on([0, 0], before), after), one_by_one);
            let plain = |n: usize| ids.iter().fold(0_u128, |hash, id| {
                (hash * u128::from(paths.bases[n][0]) + u128::from(*id) + 1) % u128::from(PRIME)
            });
            prop_assert_eq!(one_by_one.map(u128::from), [plain(0), plain(1)]);
        }

        #[test]
        fn what_is_shared_is_equal(paths in proptest::collection::vec(
            (proptest::collection::vec(0u32..2, 0..12), proptest::collection::vec(0u32..2, 0..4)),
            0..20,
        )) {
            let mut index = PathIndex::new();
            for (key, (prompt, sampled)) in paths.iter().enumerate() {
                let matched = index.find(prompt);
                if let Some(parent) = matched.parent {
                    let (before, after) = &paths[parent.call_key as usize];
                    let path = [before.as_slice(), after].concat();
                    prop_assert_eq!(&path[..parent.shared], &prompt[..parent.shared]);
                }
                let whole = |path: &[u32]| prompt.starts_with(path).then_some(path.len());
                let before = paths[..key].iter().map(|(a, b)| [a.as_slice(), b].concat());
                let longest = before.filter_map(|path| whole(&path));
                prop_assert!(matched.parent.map_or(0, |p| p.shared) >= longest.max().unwrap_or(0));
                let depth = matched.depth();
                index.add(&matched, PathEnd { call_key: key as i64, choice: 0, depth, sampled });
            }
        }
    }
}
