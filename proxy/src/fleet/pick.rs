//! The choice of an engine for a thread, as a function of what is known. It does no I/O.
//!
//! Rendezvous hashing: each engine has a score for each thread, which depends on both names and on
//! nothing else, so that proxies that know the same engines agree without talking. The best score
//! wins, unless the engine has its share of the threads already.

use std::hash::Hasher;

use twox_hash::XxHash64;

use crate::bounds::{ENGINE_LOAD_PERCENT_MAX, ENGINE_LOAD_SLACK, ENGINE_MOVED_PERCENT_MAX};

/// An engine that may be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// The hash of its name.
    pub(super) name: u64,
    pub(super) weight: u32,
    /// Threads that are there.
    pub(super) threads: usize,
    /// Calls in flight there.
    pub(super) calls: usize,
}

/// Threads that an engine may have before others get them, beside its share.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadBound {
    /// In percent of its share.
    percent: u64,
    /// Beyond its share in any case.
    slack: u64,
}

impl LoadBound {
    /// The bound for a thread that begins.
    pub(super) const NEW: Self =
        Self { percent: ENGINE_LOAD_PERCENT_MAX, slack: ENGINE_LOAD_SLACK };
    /// The bound for a thread whose engine is gone.
    pub(super) const MOVED: Self = Self { percent: ENGINE_MOVED_PERCENT_MAX, slack: 0 };

    /// The bound of an engine whose share is `threads * weight / weights`.
    fn of(self, threads: u64, weight: u64, weights: u64) -> u64 {
        let share = threads * weight;
        let in_percent = (share * self.percent).div_ceil(weights * 100);
        in_percent.max(share.div_ceil(weights) + self.slack)
    }
}

/// The engine for a thread that is on none of them: that of the best score among those that have
/// less than the bound of their share.
pub(super) fn for_thread(thread: u64, candidates: &[Candidate], bound: LoadBound) -> Option<usize> {
    let threads: usize = candidates.iter().map(|one| one.threads).sum::<usize>() + 1;
    let weights: u64 = candidates.iter().map(|one| u64::from(one.weight)).sum();
    let has_room = |one: &Candidate| {
        (one.threads as u64) < bound.of(threads as u64, one.weight.into(), weights)
    };
    let open = candidates.iter().enumerate().filter(|(_, one)| has_room(one));
    let best = open.max_by(|(_, a), (_, b)| score(thread, a).total_cmp(&score(thread, b)));
    best.map(|(index, _)| index).or_else(|| least_loaded(candidates))
}

/// The engine with the fewest calls in flight by its weight, then with the fewest threads.
pub(super) fn least_loaded(candidates: &[Candidate]) -> Option<usize> {
    let load = |one: &Candidate| {
        let by_weight = |count: usize| count as f64 / f64::from(one.weight);
        (by_weight(one.calls), by_weight(one.threads))
    };
    let all = candidates.iter().enumerate();
    let least = all.min_by(|(_, a), (_, b)| {
        let ((calls_a, threads_a), (calls_b, threads_b)) = (load(a), load(b));
        calls_a.total_cmp(&calls_b).then(threads_a.total_cmp(&threads_b))
    });
    least.map(|(index, _)| index)
}

/// The weighted score of an engine for a thread.
fn score(thread: u64, engine: &Candidate) -> f64 {
    let mixed = mix(thread ^ engine.name.rotate_left(32));
    // In (0, 1): the upper 53 bits and a half.
    let unit = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -f64::from(engine.weight) / unit.ln()
}

/// The hash of texts, which is the same in every process and version.
pub(super) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    for part in parts {
        hasher.write(part);
        // The length tells `ab`, `c` from `a`, `bc`.
        hasher.write(&(part.len() as u64).to_le_bytes());
    }
    mix(hasher.finish())
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn new_thread(thread: u64, candidates: &[Candidate]) -> Option<usize> {
        for_thread(thread, candidates, LoadBound::NEW)
    }

    #[test]
    fn threads_of_a_dead_engine_fill_one_that_came_back() {
        let mut all = engines(7);
        all[1..].iter_mut().for_each(|one| one.threads = 71);
        for thread in 0..71_u64 {
            let key = hash(&[&thread.to_le_bytes()]);
            let index = for_thread(key, &all, LoadBound::MOVED).unwrap();
            all[index].threads += 1;
        }
        let most = all.iter().map(|one| one.threads).max().unwrap();
        assert!(most <= 500 * 125 / 100 / 8, "{all:?}");
    }

    fn engines(count: usize) -> Vec<Candidate> {
        let name = |index: usize| hash(&[format!("engine-{index}").as_bytes()]);
        (0..count)
            .map(|index| Candidate { name: name(index), weight: 1, threads: 0, calls: 0 })
            .collect()
    }

    fn place(candidates: &mut [Candidate], threads: u64) -> Vec<usize> {
        let place = |thread: u64| {
            let index = new_thread(hash(&[&thread.to_le_bytes()]), candidates).unwrap();
            candidates[index].threads += 1;
            index
        };
        (0..threads).map(place).collect()
    }

    #[test]
    fn engines_keep_to_their_bound_and_threads_to_their_best_score() {
        let mut all = engines(8);
        let placed = place(&mut all, 500);
        let most = all.iter().map(|one| one.threads).max().unwrap();
        assert!(most as f64 <= 500.0 / 8.0 * 1.15 + 1.0, "{most}");
        let idle = engines(8);
        let best = |thread: u64| new_thread(hash(&[&thread.to_le_bytes()]), &idle).unwrap();
        let agreed = placed.iter().zip(0..).filter(|(placed, thread)| **placed == best(*thread));
        assert!(agreed.count() > 400);
    }

    #[test]
    fn the_order_of_arrival_places_few_threads_elsewhere() {
        let placed = |order: &mut dyn Iterator<Item = u64>| {
            let mut all = engines(4);
            let mut places = std::collections::BTreeMap::new();
            for thread in order {
                let index = new_thread(hash(&[&thread.to_le_bytes()]), &all).unwrap();
                all[index].threads += 1;
                places.insert(thread, index);
            }
            places
        };
        let agreed: usize = (0..20)
            .map(|fleet| {
                let threads = fleet * 24..(fleet + 1) * 24;
                let (one, other) = (placed(&mut threads.clone()), placed(&mut threads.rev()));
                one.iter().filter(|(thread, index)| other[*thread] == **index).count()
            })
            .sum();
        assert!(agreed >= 20 * 21, "{agreed} of {}", 20 * 24);
    }

    #[test]
    fn an_engine_that_goes_moves_its_own_threads_only() {
        let all = engines(8);
        let without: Vec<Candidate> = all[1..].to_vec();
        for thread in 0..200_u64 {
            let key = hash(&[&thread.to_le_bytes()]);
            let (before, after) =
                (new_thread(key, &all).unwrap(), new_thread(key, &without).unwrap());
            assert!(before == 0 || before == after + 1, "{thread}");
        }
    }

    #[test]
    fn a_heavier_engine_gets_more() {
        let mut all = engines(3);
        all[1].weight = 4;
        place(&mut all, 600);
        assert!((380..=430).contains(&all[1].threads), "{:?}", all);
    }

    #[test]
    fn parts_are_told_apart() {
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
        // Another value would move every thread when one of several proxies is upgraded.
        assert_eq!(hash(&[b"episode", b"0"]), 2_391_345_755_067_081_801);
    }
}
