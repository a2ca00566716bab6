//! Waits for a trainer, and what ends them.
//!
//! A trainer may die, or never come, and a wait blocks all other updates. So every wait ends: at
//! its timeout, when another trainer takes over, or when the engine stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::error::UpdateError;

/// The default timeout, that of PyTorch's store.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest timeout in seconds that a trainer may ask for.
const MAX_SECONDS: f64 = 86_400.0;

/// A handle that ends waits from other threads. Clones end the same waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrainerWaits {
    /// The number of takeovers. A wait of an earlier epoch is over.
    epoch: Arc<AtomicU64>,
    stopping: Arc<AtomicBool>,
}

impl TrainerWaits {
    /// A wait that begins now.
    fn begin(&self) -> TrainerWait {
        TrainerWait {
            waits: self.clone(),
            epoch: self.epoch.load(Ordering::Relaxed),
            timeout: DEFAULT_TIMEOUT,
            deadline: Instant::now() + DEFAULT_TIMEOUT,
        }
    }

    /// Ends all waits so far, and begins one.
    pub(crate) fn take_over(&self) -> TrainerWait {
        self.end();
        self.begin()
    }

    /// Ends all waits so far.
    pub(crate) fn end(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends all waits, later ones included: the engine stops.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

/// One wait for a trainer.
#[derive(Clone, Debug)]
pub(crate) struct TrainerWait {
    waits: TrainerWaits,
    epoch: u64,
    timeout: Duration,
    deadline: Instant,
}

impl TrainerWait {
    /// Sets the timeout, and starts it again for the next thing to come.
    pub(crate) fn restart(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.deadline = Instant::now() + timeout;
    }

    /// The reason to stop waiting, if there is one.
    pub(crate) fn stop_reason(&self) -> Option<UpdateError> {
        if self.waits.stopping.load(Ordering::Relaxed) {
            return Some(UpdateError::Stopping);
        }
        if self.waits.epoch.load(Ordering::Relaxed) != self.epoch {
            let reason = "the wait for the trainer was ended by a later call of \
                          `/init_weight_transfer_engine` or `/shutdown_weight_transfer_engine`";
            return Some(UpdateError::Interrupted(reason.into()));
        }
        if Instant::now() < self.deadline {
            return None;
        }
        let seconds = self.timeout.as_secs_f64();
        let reason = format!("the trainer was waited for in vain for {seconds} seconds");
        Some(UpdateError::Trainer(reason))
    }

    /// Returns true if there is a reason to stop waiting.
    pub(crate) fn is_over(&self) -> bool {
        self.stop_reason().is_some()
    }
}

/// Reads `timeout`, in seconds, of `init_info` or `update_info`; absent, it is `default`.
pub(crate) fn parse_timeout(
    info: &Map<String, Value>,
    default: Duration,
) -> Result<Duration, String> {
    match info.get("timeout") {
        None | Some(Value::Null) => Ok(default),
        Some(value) => match value.as_f64() {
            Some(seconds) if seconds > 0.0 && seconds <= MAX_SECONDS => {
                Ok(Duration::from_secs_f64(seconds))
            }
            _ => Err(format!("`timeout` is {value}, not seconds above 0, {MAX_SECONDS} at most")),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wait_ends_with_its_time_the_next_one_or_the_engine() {
        let waits = TrainerWaits::default();
        let mut wait = waits.begin();
        assert_eq!(wait.stop_reason(), None);
        wait.restart(Duration::ZERO);
        let Some(UpdateError::Trainer(reason)) = wait.stop_reason() else { panic!("not over") };
        assert!(reason.contains("vain"));
        wait.restart(DEFAULT_TIMEOUT);
        assert_eq!(wait.stop_reason(), None);
        let next = waits.take_over();
        assert!(matches!(wait.stop_reason(), Some(UpdateError::Interrupted(_))));
        assert_eq!(next.stop_reason(), None);
        waits.stop();
        assert_eq!(next.stop_reason(), Some(UpdateError::Stopping));
        assert_eq!(waits.take_over().stop_reason(), Some(UpdateError::Stopping));
    }

    #[test]
    fn seconds_are_above_zero_and_may_be_parts() {
        let read = |value: Value| {
            parse_timeout(json!({ "timeout": value }).as_object().unwrap(), Duration::from_secs(7))
        };
        assert_eq!(read(json!(0.25)), Ok(Duration::from_millis(250)));
        assert_eq!(read(json!(60)), Ok(Duration::from_secs(60)));
        assert_eq!(read(json!(null)), Ok(Duration::from_secs(7)));
        for wrong in [json!(0), json!(-1), json!("60"), json!(86_401)] {
            assert!(read(wrong).unwrap_err().starts_with("`timeout` is "));
        }
    }
}
