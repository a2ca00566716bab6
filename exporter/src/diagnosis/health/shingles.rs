//! Runs of eight ids: how many of a reply repeat, and how many two attempts have in common.

use std::collections::HashSet;

/// Ids in a run.
const RUN: usize = 8;
/// Runs that a sketch keeps.
const SKETCH: usize = 128;
/// An odd number whose bits are mixed.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hashes of the runs of a list of ids.
#[derive(Debug)]
pub(crate) struct Shingles(Vec<u64>);

impl Shingles {
    /// Hashes each run, by rolling over the ids.
    pub(crate) fn of(ids: &[u32]) -> Self {
        let mut leaving: u64 = 1;
        for _ in 0..RUN {
            leaving = leaving.wrapping_mul(FACTOR);
        }
        let (mut hash, mut hashes) = (0_u64, Vec::with_capacity(ids.len()));
        for (at, id) in ids.iter().enumerate() {
            // One more than the id: a run that begins with the id 0 is another than a shorter one.
            hash = hash.wrapping_mul(FACTOR).wrapping_add(u64::from(*id) + 1);
            if let Some(before) = at.checked_sub(RUN) {
                hash = hash.wrapping_sub((u64::from(ids[before]) + 1).wrapping_mul(leaving));
            }
            if at + 1 >= RUN {
                hashes.push(mixed(hash));
            }
        }
        Self(hashes)
    }

    /// Returns the share of the runs that were in the list before.
    pub(crate) fn repeated(&self) -> f64 {
        let distinct: HashSet<u64> = self.0.iter().copied().collect();
        if self.0.is_empty() { 0.0 } else { 1.0 - distinct.len() as f64 / self.0.len() as f64 }
    }
}

/// Spreads the bits of a hash, so that small ones are a random sample.
fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(FACTOR);
    (hash ^ (hash >> 29)).wrapping_mul(FACTOR) ^ (hash >> 32)
}

/// The smallest hashes of the runs of an attempt: two of them tell about how much the attempts
/// have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sketch(Vec<u64>);

impl Sketch {
    /// Makes the sketch of lists of ids.
    pub(crate) fn of<'i>(lists: impl Iterator<Item = &'i [u32]>) -> Self {
        let mut hashes: Vec<u64> = lists.flat_map(|ids| Shingles::of(ids).0).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes.truncate(SKETCH);
        hashes.shrink_to_fit();
        Self(hashes)
    }

    /// Estimates the runs that both have, as a share of those that either has; 0 of none.
    pub(crate) fn overlap(&self, other: &Self) -> f64 {
        let (mut one, mut two) = (self.0.iter().peekable(), other.0.iter().peekable());
        let (mut seen, mut both) = (0, 0);
        while seen < SKETCH {
            match (one.peek(), two.peek()) {
                (Some(a), Some(b)) if a == b => {
                    both += 1;
                    one.next();
                    two.next();
                }
                (Some(a), Some(b)) if a < b => {
                    one.next();
                }
                (Some(_), None) => {
                    one.next();
                }
                (_, Some(_)) => {
                    two.next();
                }
                (None, None) => break,
            }
            seen += 1;
        }

        f64::from(both) / seen.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(seed: u32, count: u32) -> Vec<u32> {
        (0..count).map(|n| (n + 1).wrapping_mul(seed).wrapping_mul(2_654_435_761) >> 12).collect()
    }

    #[test]
    fn repeated_runs_are_counted_wherever_they_stand() {
        assert_eq!(Shingles::of(&ids(3, 500)).repeated(), 0.0);
        let period: Vec<u32> = ids(3, 20).repeat(25);
        assert!(Shingles::of(&period).repeated() > 0.95);
        let half: Vec<u32> = [ids(3, 250), vec![7; 250]].concat();
        let repeated = Shingles::of(&half).repeated();
        assert!((0.45..0.55).contains(&repeated), "{repeated}");
        assert_eq!(Shingles::of(&[1; 7]).repeated(), 0.0);
        assert_eq!(Shingles::of(&[0; 9]).0.len(), 2);
    }

    #[test]
    fn overlap_is_near_the_share_of_common_runs() {
        let sketch = |ids: &[u32]| Sketch::of(std::iter::once(ids));
        let all = ids(3, 4000);
        assert_eq!(sketch(&all).overlap(&sketch(&all)), 1.0);
        assert_eq!(sketch(&all).overlap(&sketch(&ids(5, 4000))), 0.0);
        let half = sketch(&all).overlap(&sketch(&all[..2000]));
        assert!((0.35..0.65).contains(&half), "{half}");
        assert_eq!(Sketch::default().overlap(&Sketch::default()), 0.0);
        // Fewer runs than a sketch keeps: the share is exact.
        let (short, shorter) = (sketch(&all[..47]), sketch(&all[..27]));
        assert_eq!(short.overlap(&shorter), 0.5);
    }
}
