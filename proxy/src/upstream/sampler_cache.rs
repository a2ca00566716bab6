//! The upstream's answer to how it samples, cached for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wire::ServerSampling;

/// Time for which an answer is cached. It bounds how long a restart of the server goes unnoticed
/// if no call fails meanwhile.
const CACHED_FOR: Duration = Duration::from_secs(60);

/// The last answer of the upstream.
#[derive(Debug, Default)]
pub(super) struct SamplerCache {
    state: Mutex<CacheState>,
    /// Held while the upstream is asked, so that concurrent callers ask once.
    pub(super) question: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct CacheState {
    answer: Option<(Instant, Arc<ServerSampling>)>,
    /// Number of [`SamplerCache::clear`] calls.
    generation: u64,
}

impl SamplerCache {
    /// Drops the answer: the upstream may be another process or have other weights now.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        state.answer = None;
        state.generation += 1;
    }

    /// The answer, if it is recent.
    pub(super) fn get(&self) -> Option<Arc<ServerSampling>> {
        let state = self.lock();
        let recent = state.answer.as_ref().filter(|(at, _)| at.elapsed() < CACHED_FOR);
        recent.map(|(_, sampler)| Arc::clone(sampler))
    }

    pub(super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Stores an answer, unless the cache was cleared since `generation`.
    pub(super) fn store(&self, sampler: &Arc<ServerSampling>, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.answer = Some((Instant::now(), Arc::clone(sampler)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
