//! Hashes of bodies that begin alike. A request repeats the one before it, so most of its bytes
//! were hashed already: the hash goes on from where the two part.
//!
//! Two bodies begin alike where their extents do: those are the same bytes of one log.

use std::collections::VecDeque;
use std::sync::Arc;

use blake3::Hasher;

use crate::encoding::pack::{first_half, hash};
use crate::log::extent::Extent;

/// Bytes of the shortest body that is remembered. A shorter one is hashed anew as fast: BLAKE3
/// hashes long runs several times as fast as short ones.
const BYTES_MIN: usize = 16 * 1024;
/// Bodies that are remembered, the newest first.
const BODIES_MAX: usize = 8;
/// States that are kept of a body. One takes 2 kB.
const STATES_MAX: usize = 64;
/// States that are kept of the bytes that a body adds.
const STATES_ADDED: usize = 8;
/// Bytes of the shortest run after which a state is kept.
const RUN_BYTES_MIN: usize = 4096;

/// The bodies that were hashed lately.
#[derive(Debug, Default)]
pub(crate) struct HashedBodies(VecDeque<HashedBody>);

/// A body that was hashed.
#[derive(Debug)]
struct HashedBody {
    log_key: i64,
    extents: Arc<[Extent]>,
    /// States of the hash, and how many bytes went into each. The shortest comes first.
    states: Vec<(usize, Hasher)>,
}

impl HashedBodies {
    /// The hash of `bytes`, of which `extents` of a log consist.
    pub(crate) fn hash(&mut self, log_key: i64, extents: &Arc<[Extent]>, bytes: &[u8]) -> [u8; 16] {
        if bytes.len() < BYTES_MIN {
            return hash(bytes);
        }
        let mut body = self.take_beginning(log_key, extents);
        let (start, mut hasher) = body.states.last().cloned().unwrap_or_default();

        let added = (bytes.len() - start).max(1);
        let step = added.div_ceil(STATES_ADDED).next_multiple_of(RUN_BYTES_MIN);
        let mut end = start;
        for run in bytes[start..].chunks(step) {
            hasher.update(run);
            end += run.len();
            if run.len() == step {
                body.states.push((end, hasher.clone()));
            }
        }
        let hash = first_half(&hasher.finalize());

        self.remember(body);
        hash
    }

    /// The beginning of a body that is known: its states as far as the bytes are shared. The body
    /// that they are of is forgotten, unless most of it is not shared.
    fn take_beginning(&mut self, log_key: i64, extents: &Arc<[Extent]>) -> HashedBody {
        let of_log = self.0.iter().enumerate().filter(|(_, known)| known.log_key == log_key);
        let shared = of_log.map(|(at, known)| (shared_bytes(&known.extents, extents), at));
        let mut body = HashedBody { log_key, extents: Arc::clone(extents), states: Vec::new() };
        let Some((shared, at)) = shared.max() else { return body };

        let known = &mut self.0[at].states;
        let count = known.partition_point(|(bytes, _)| *bytes <= shared);
        if count < known.len() / 2 {
            body.states = known[..count].to_vec();
        } else {
            body.states = std::mem::take(known);
            body.states.truncate(count);
            self.0.remove(at);
        }
        body
    }

    fn remember(&mut self, mut body: HashedBody) {
        if body.states.len() > STATES_MAX {
            // Every other one, so that those that are left are spread as these are.
            let mut at = 0;
            body.states.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        self.0.truncate(BODIES_MAX - 1);
        self.0.push_front(body);
    }
}

/// The number of bytes that two lists of extents of one log have in common at their beginnings.
fn shared_bytes(a: &[Extent], b: &[Extent]) -> usize {
    let mut shared = 0;
    for (a, b) in a.iter().zip(b) {
        if a.start != b.start {
            break;
        }
        shared += a.length.min(b.length);
        if a.length != b.length {
            break;
        }
    }
    usize::try_from(shared).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::extent::gather;

    const LOG_BYTES: u64 = 60_000;

    /// Lists of extents, each of which keeps some of the one before it and goes on otherwise.
    fn lists() -> impl Strategy<Value = Vec<Vec<Extent>>> {
        let extent = (0..LOG_BYTES - 9_000, 1u64..9_000)
            .prop_map(|(start, length)| Extent { start, length });
        let added = (0usize..6, 0u64..5_000, proptest::collection::vec(extent, 0..4));
        proptest::collection::vec(added, 1..40).prop_map(|added| {
            let mut lists: Vec<Vec<Extent>> = Vec::new();
            for (kept, cut, more) in added {
                let mut list = lists.last().cloned().unwrap_or_default();
                list.truncate(kept.max(list.len().saturating_sub(kept)));
                if let Some(last) = list.last_mut() {
                    last.length = last.length.saturating_sub(cut).max(1);
                }
                list.extend(more);
                lists.push(list);
            }
            lists
        })
    }

    proptest! {
        #[test]
        fn a_hash_that_goes_on_is_that_of_the_whole(
            bodies in lists(),
            logs in proptest::collection::vec(0..3i64, 40),
        ) {
            let log = |key: i64| -> Vec<u8> {
                (0..LOG_BYTES).map(|at| (at * 31 + at / 251) as u8 ^ key as u8).collect()
            };
            let logs_of: Vec<Vec<u8>> = (0..3).map(log).collect();
            let mut hashed = HashedBodies::default();
            for (extents, key) in bodies.iter().zip(&logs) {
                let bytes = gather(extents, &logs_of[*key as usize]).unwrap();
                let extents = extents.as_slice().into();
                prop_assert_eq!(hashed.hash(*key, &extents, &bytes), hash(&bytes));
                prop_assert!(hashed.0.len() <= BODIES_MAX);
                prop_assert!(hashed.0.iter().all(|body| body.states.len() <= STATES_MAX));
            }
        }
    }

    #[test]
    fn what_was_hashed_is_not_looked_at_again() {
        let mut log = vec![7; 20_000];
        let from_start = |length| Arc::from([Extent { start: 0, length }]);
        let (first, second) = (from_start(18_000), from_start(20_000));
        let mut hashed = HashedBodies::default();
        hashed.hash(1, &first, &log[..18_000]);
        let whole = hash(&log[..20_000]);
        // The bytes are not those that were hashed, which only a test can do.
        log[0] = 8;
        assert_eq!(hashed.hash(1, &second, &log[..20_000]), whole);
        assert_ne!(hashed.hash(2, &second, &log[..20_000]), whole, "another log");
        log[0] = 7;
        log[19_000] = 8;
        assert_ne!(hashed.hash(1, &second, &log[..20_000]), whole);
    }
}
