//! The emulated GPU, for one test at a time: its memory, its counters and its failures belong to
//! the process.

use std::ops::Deref;

use kernels::cuda::double::{self, Double};
use tokio::sync::{Mutex, MutexGuard};

static ONE: Mutex<()> = Mutex::const_new(());

/// The emulated GPU, while a test has it. It is to be dropped after all that runs on it.
pub(crate) struct Turn {
    double: &'static Double,
    _one: MutexGuard<'static, ()>,
}

/// Waits for the emulated GPU, in a test that does not wait for anything else.
pub(crate) fn turn() -> Turn {
    Turn::with(ONE.blocking_lock())
}

/// The same in one that does.
pub(crate) async fn async_turn() -> Turn {
    Turn::with(ONE.lock().await)
}

impl Turn {
    fn with(one: MutexGuard<'static, ()>) -> Turn {
        Turn { double: double::load().unwrap(), _one: one }
    }

    /// Lets the n-th allocation of device memory fail, counted from now; none if zero.
    pub(crate) fn fail_allocation(&self, n: i64) {
        assert!(self.set("fail_allocation", n));
    }
}

impl Deref for Turn {
    type Target = Double;

    fn deref(&self) -> &Double {
        self.double
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        for name in ["fail_allocation", "fail_launch", "fail_recording", "seed"] {
            self.double.set(name, 0);
        }
    }
}
