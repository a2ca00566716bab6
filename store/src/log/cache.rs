//! The logs of the episodes that had calls lately, within a bound of bytes and one of time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use episode::AttemptId;

use crate::log::episode::EpisodeLog;

/// Bytes that an episode occupies beside its log: its entry here and that of its gate, each in a
/// table that may be half empty, and what the allocator adds.
const ENTRY_BYTES: usize = 2 * size_of::<(AttemptId, CachedLog)>() + 1024;
/// Bytes that all logs may occupy. A log that is evicted is read back when its episode goes on.
const BYTES_MAX: usize = 384 << 20;
/// Time after which a log that nothing uses is dropped.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Time between two looks for such logs.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The logs in use.
#[derive(Debug, Default)]
pub(crate) struct LogCache {
    logs: HashMap<AttemptId, CachedLog>,
    bytes: usize,
    /// The time of the last look for logs that nothing uses.
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct CachedLog {
    log: EpisodeLog,
    used_at: Instant,
    weight: usize,
}

impl LogCache {
    /// True if the log of an attempt is here.
    pub(crate) fn contains(&self, attempt: &AttemptId) -> bool {
        self.logs.contains_key(attempt)
    }

    /// Takes out the log of an attempt. [`Self::put`] puts it back.
    pub(crate) fn take(&mut self, attempt: &AttemptId) -> Option<EpisodeLog> {
        let cached = self.logs.remove(attempt)?;
        self.bytes -= cached.weight;
        Some(cached.log)
    }

    /// Puts the log of an attempt back.
    pub(crate) fn put(&mut self, attempt: AttemptId, log: EpisodeLog) {
        let (used_at, weight) = (Instant::now(), ENTRY_BYTES + log.weight());
        self.bytes += weight;
        self.logs.insert(attempt, CachedLog { log, used_at, weight });
    }

    /// Drops what is over the bounds. Returns true where a log was dropped.
    pub(crate) fn trim(&mut self) -> bool {
        let count = self.logs.len();
        if self.bytes > BYTES_MAX {
            self.evict(BYTES_MAX / 8 * 7);
        }
        let now = Instant::now();
        if self.looked_at.is_none_or(|looked_at| now >= looked_at + LOOK_EVERY) {
            self.looked_at = Some(now);
            self.drop_idle(now);
        }
        self.logs.len() < count
    }

    /// Drops the logs that nothing has used for long.
    fn drop_idle(&mut self, now: Instant) {
        let bytes = &mut self.bytes;
        self.logs.retain(|_, cached| {
            let is_used = now.saturating_duration_since(cached.used_at) < IDLE_MAX;
            *bytes -= if is_used { 0 } else { cached.weight };
            is_used
        });
        // An empty table is as large as it ever was.
        if self.logs.capacity() > 4 * self.logs.len() {
            self.logs.shrink_to(2 * self.logs.len());
        }
    }

    /// Shrinks the least recently used logs, then drops them, until all occupy `bytes` at most.
    fn evict(&mut self, bytes: usize) {
        let mut oldest: Vec<(Instant, AttemptId)> =
            self.logs.iter().map(|(attempt, cached)| (cached.used_at, attempt.clone())).collect();
        oldest.sort_unstable();

        // Shrinking costs some compression; dropping costs reading the log back.
        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            if let Some(cached) = self.logs.get_mut(attempt) {
                cached.log.shrink();
                let weight = ENTRY_BYTES + cached.log.weight();
                self.bytes = self.bytes + weight - cached.weight;
                cached.weight = weight;
            }
        }

        for (_, attempt) in &oldest {
            if self.bytes <= bytes {
                return;
            }
            self.take(attempt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_log_occupies_nothing() {
        let mut logs = LogCache::default();
        logs.put(AttemptId { episode: "a".parse().unwrap(), attempt: 0 }, EpisodeLog::new(1));
        assert!(logs.bytes >= ENTRY_BYTES && logs.logs.len() == 1);
        logs.drop_idle(Instant::now() + IDLE_MAX / 2);
        assert_eq!(logs.logs.len(), 1);
        logs.drop_idle(Instant::now() + IDLE_MAX);
        assert_eq!((logs.bytes, logs.logs.len()), (0, 0));
    }
}
