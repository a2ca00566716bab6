//! The emulated GPU, for one test at a time, or for several that let nothing fail: its memory, its
//! counters and its failures belong to the process.

use std::ops::Deref;

use kernels::cuda::double::{self, Double};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static ONE: RwLock<()> = RwLock::const_new(());

/// The emulated GPU, while a test has it. It is to be dropped after all that runs on it.
pub(crate) struct Turn {
    double: &'static Double,
    _one: RwLockWriteGuard<'static, ()>,
}

/// Waits for the emulated GPU, in a test that does not wait for anything else.
pub(crate) fn turn() -> Turn {
    Turn::with(ONE.blocking_write())
}

/// Waits until nobody has the emulated GPU alone, in a test that lets nothing fail and counts
/// nothing; others of its kind run beside it.
pub(crate) fn shared_turn() -> RwLockReadGuard<'static, ()> {
    ONE.blocking_read()
}

/// Waits for the emulated GPU, in a test that waits for other things too.
pub(crate) async fn async_turn() -> Turn {
    Turn::with(ONE.write().await)
}

impl Turn {
    fn with(one: RwLockWriteGuard<'static, ()>) -> Turn {
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
