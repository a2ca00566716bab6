//! Which call a prompt goes on from: an index of the token paths of an episode by their hashes.
//!
//! A path is a prompt and what was sampled after it. Its hash is kept where a prompt ended, where
//! it ends itself, and every so many tokens, so that a prompt that leaves a path in its middle
//! shares at least what came before.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

/// Every so many tokens the hash of a path is kept.
const MARK_EVERY: usize = 1024;
/// Parents in a row, above which a prompt is stored whole.
const DEPTH_MAX: u32 = 128;
/// Marks that are kept for an episode.
const MARKS_MAX: usize = 1 << 16;
/// A prime just below 2^61.
const PRIME: u64 = (1 << 61) - 1;

/// The paths of an episode.
#[derive(Debug)]
pub(crate) struct Paths {
    /// Unknown to whoever sends prompts, so that no two can be made to look alike.
    bases: [u64; 2],
    marks: HashMap<[u64; 2], Mark>,
    /// How many marks there are at lengths that are no multiple of [`MARK_EVERY`].
    odd: BTreeMap<usize, u32>,
}

/// A beginning of a path: the first call that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) call_key: i64,
    pub(crate) choice: u32,
    /// Tokens up to here.
    pub(crate) shared: usize,
    /// Parents that lead to the call's own prompt.
    pub(crate) depth: u32,
}

/// A prompt that was looked up.
#[derive(Debug, Clone)]
pub(crate) struct Walked {
    /// The longest known beginning.
    pub(crate) parent: Option<Mark>,
    hashes: Vec<(usize, [u64; 2])>,
    end: [u64; 2],
}

impl Walked {
    /// How many parents lead to the prompt.
    pub(crate) fn depth(&self) -> u32 {
        self.parent.map_or(0, |parent| parent.depth + 1)
    }
}

impl Paths {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        let base = |n: u64| random.hash_one(n) % (PRIME - 1_000_000) + 1_000_000;
        Self { bases: [base(0), base(1)], marks: HashMap::new(), odd: BTreeMap::new() }
    }

    /// Looks a prompt up. A parent that is too deep is none.
    pub(crate) fn walk(&self, prompt: &[u32]) -> Walked {
        let (mut hashes, mut end) = (Vec::new(), [0, 0]);
        let mut odd = self.odd.keys().copied().peekable();
        let mut parent = None;
        for (at, id) in prompt.iter().enumerate() {
            end = self.step(end, *id);
            let length = at + 1;
            let is_odd = odd.next_if_eq(&length).is_some();
            if length % MARK_EVERY == 0 || is_odd {
                let found = self.marks.get(&end).filter(|mark| mark.shared == length);
                parent = found.copied().or(parent);
                hashes.push((length, end));
            }
        }
        Walked { parent: parent.filter(|mark| mark.depth < DEPTH_MAX), hashes, end }
    }

    /// Keeps the path of a choice, whose prompt was looked up as `walked` and has `depth` parents.
    pub(crate) fn add(
        &mut self,
        ((call_key, choice), depth): ((i64, u32), u32),
        (walked, prompt_length): (&Walked, usize),
        sampled: &[u32],
    ) {
        if self.marks.len() > MARKS_MAX {
            self.marks.clear();
            self.odd.clear();
        }
        let mark = |shared| Mark { call_key, choice, shared, depth };
        let known = walked.parent.map_or(0, |parent| parent.shared);
        for (length, hash) in walked.hashes.iter().filter(|(length, _)| *length > known) {
            self.keep(*hash, mark(*length));
        }
        self.keep(walked.end, mark(prompt_length));
        let mut end = walked.end;
        for (at, id) in sampled.iter().enumerate() {
            end = self.step(end, *id);
            let length = prompt_length + at + 1;
            if length.is_multiple_of(MARK_EVERY) || at + 1 == sampled.len() {
                self.keep(end, mark(length));
            }
        }
    }

    /// About how many bytes this occupies.
    pub(crate) fn weight(&self) -> usize {
        self.marks.capacity() * (size_of::<([u64; 2], Mark)>() + 1) + self.odd.len() * 32
    }

    /// The first to have a path keeps it: it has the fewest parents.
    fn keep(&mut self, hash: [u64; 2], mark: Mark) {
        if mark.shared == 0 || self.marks.contains_key(&hash) {
            return;
        }
        self.marks.insert(hash, mark);
        if !mark.shared.is_multiple_of(MARK_EVERY) {
            *self.odd.entry(mark.shared).or_default() += 1;
        }
    }

    fn step(&self, hash: [u64; 2], id: u32) -> [u64; 2] {
        let one = |hash: u64, base: u64| below(times(hash, base) + u64::from(id) + 1);
        [one(hash[0], self.bases[0]), one(hash[1], self.bases[1])]
    }
}

/// The product modulo [`PRIME`].
fn times(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    below((product as u64 & PRIME) + (product >> 61) as u64)
}

/// What is less than twice [`PRIME`], modulo it.
fn below(value: u64) -> u64 {
    if value >= PRIME { value - PRIME } else { value }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn added(paths: &mut Paths, key: i64, prompt: &[u32], sampled: &[u32]) -> Option<(i64, usize)> {
        let walked = paths.walk(prompt);
        let depth = walked.depth();
        paths.add(((key, 0), depth), (&walked, prompt.len()), sampled);
        walked.parent.map(|parent| (parent.call_key, parent.shared))
    }

    #[test]
    fn a_prompt_goes_on_from_the_longest_path_that_it_starts_with() {
        let mut paths = Paths::new();
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
        let mut paths = Paths::new();
        let long: Vec<u32> = (0..5000).collect();
        added(&mut paths, 1, &long, &[7]);
        let left = [&long[..4000], &[1, 2, 3]].concat();
        assert_eq!(added(&mut paths, 2, &left, &[]), Some((1, 3072)));
    }

    #[test]
    fn chains_have_an_end() {
        let mut paths = Paths::new();
        let mut deepest = 0;
        let path: Vec<u32> = (0..600).collect();
        for key in 0..300 {
            let walked = paths.walk(&path[..2 * key + 1]);
            deepest = deepest.max(walked.depth());
            let sampled = &path[2 * key + 1..2 * key + 2];
            paths.add(((key as i64, 0), walked.depth()), (&walked, 2 * key + 1), sampled);
        }
        assert_eq!(deepest, DEPTH_MAX);
    }

    proptest! {
        #[test]
        fn what_is_shared_is_equal(paths in proptest::collection::vec(
            (proptest::collection::vec(0u32..2, 0..12), proptest::collection::vec(0u32..2, 0..4)),
            0..20,
        )) {
            let mut index = Paths::new();
            for (key, (prompt, sampled)) in paths.iter().enumerate() {
                let walked = index.walk(prompt);
                if let Some(parent) = walked.parent {
                    let (before, after) = &paths[parent.call_key as usize];
                    let path = [before.as_slice(), after].concat();
                    prop_assert_eq!(&path[..parent.shared], &prompt[..parent.shared]);
                }
                let whole = |path: &[u32]| prompt.starts_with(path).then_some(path.len());
                let before = paths[..key].iter().map(|(a, b)| [a.as_slice(), b].concat());
                let longest = before.filter_map(|path| whole(&path));
                prop_assert!(walked.parent.map_or(0, |p| p.shared) >= longest.max().unwrap_or(0));
                let depth = walked.depth();
                index.add(((key as i64, 0), depth), (&walked, prompt.len()), sampled);
            }
        }
    }
}
