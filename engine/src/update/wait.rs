//! How long a trainer is waited for, and who may end the wait.
//!
//! A trainer may die, or never come. Whoever waits for one holds the book, so every wait has an
//! end: its time is up, another trainer takes over, or the engine stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::Refused;

/// How long a trainer is waited for if nobody says otherwise: as long as PyTorch's store waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Seconds that can be asked for.
const MOST: f64 = 86_400.0;

/// Ends waits from outside. Clones end the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// Counts those who took over.
    epoch: Arc<AtomicU64>,
    stopping: Arc<AtomicBool>,
}

impl Waits {
    /// A wait that begins now.
    fn begin(&self) -> Wait {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        Wait { waits: self.clone(), epoch, patience: PATIENCE, deadline }
    }

    /// Ends all waits that were begun, and begins one.
    pub(crate) fn take_over(&self) -> Wait {
        self.end();
        self.begin()
    }

    /// Ends all waits that were begun.
    pub(crate) fn end(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends all waits, and those that are yet to begin: the engine stops.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

/// One wait for a trainer.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    waits: Waits,
    epoch: u64,
    patience: Duration,
    deadline: Instant,
}

impl Wait {
    /// Waits so long for each thing that is to come, the next of which is asked for now.
    pub(crate) fn renew(&mut self, patience: Duration) {
        self.patience = patience;
        self.deadline = Instant::now() + patience;
    }

    /// Why to wait no longer, once that is so.
    pub(crate) fn over(&self) -> Option<Refused> {
        if self.waits.stopping.load(Ordering::Relaxed) {
            return Some(Refused::Stopping);
        }
        if self.waits.epoch.load(Ordering::Relaxed) != self.epoch {
            let reason = "the wait for the trainer was ended by a later call of \
                          `/init_weight_transfer_engine` or `/shutdown_weight_transfer_engine`";
            return Some(Refused::Interrupted(reason.into()));
        }
        let late = Instant::now() >= self.deadline;
        late.then(|| {
            let seconds = self.patience.as_secs_f64();
            Refused::Trainer(format!("the trainer was waited for in vain for {seconds} seconds"))
        })
    }
}

/// Seconds that `init_info` or `update_info` give the trainer, or else `before`.
pub(crate) fn patience(info: &Map<String, Value>, before: Duration) -> Result<Duration, String> {
    match info.get("timeout") {
        None | Some(Value::Null) => Ok(before),
        Some(value) => match value.as_f64() {
            Some(seconds) if seconds > 0.0 && seconds <= MOST => {
                Ok(Duration::from_secs_f64(seconds))
            }
            _ => Err(format!("`timeout` is {value}, not seconds above 0, {MOST} at most")),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wait_ends_with_its_time_with_the_next_one_or_with_the_engine() {
        let waits = Waits::default();
        let mut wait = waits.begin();
        assert_eq!(wait.over(), None);
        wait.renew(Duration::ZERO);
        assert!(matches!(wait.over(), Some(Refused::Trainer(reason)) if reason.contains("vain")));
        wait.renew(PATIENCE);
        assert_eq!(wait.over(), None);
        let next = waits.take_over();
        assert!(matches!(wait.over(), Some(Refused::Interrupted(_))));
        assert_eq!(next.over(), None);
        waits.stop();
        assert_eq!(next.over(), Some(Refused::Stopping));
        assert_eq!(waits.take_over().over(), Some(Refused::Stopping));
    }

    #[test]
    fn seconds_are_above_zero_and_may_be_parts() {
        let read = |value: Value| {
            patience(json!({ "timeout": value }).as_object().unwrap(), Duration::from_secs(7))
        };
        assert_eq!(read(json!(0.25)), Ok(Duration::from_millis(250)));
        assert_eq!(read(json!(60)), Ok(Duration::from_secs(60)));
        assert_eq!(read(json!(null)), Ok(Duration::from_secs(7)));
        for wrong in [json!(0), json!(-1), json!("60"), json!(86_401)] {
            assert!(read(wrong).unwrap_err().starts_with("`timeout` is "));
        }
    }
}
