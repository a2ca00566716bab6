//! The emulated GPU in tests. Its memory, its counters and its failures belong to the process, so a
//! test that lets something fail must have it alone.

use std::ops::Deref;
use std::path::PathBuf;

use kernels::Heads;
use kernels::cuda::emulated::{self, EmulatedGpu};
use kernels::cuda::{Cuda, CudaOptions, DeviceOptions};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static LOCK: RwLock<()> = RwLock::const_new(());

/// Exclusive use of the emulated GPU. To be dropped after everything that runs on it.
pub(crate) struct ExclusiveGpu {
    emulated: &'static EmulatedGpu,
    /// Bytes of its memory, which tests may make smaller.
    memory: i64,
    _lock: RwLockWriteGuard<'static, ()>,
}

/// Waits for exclusive use, in a test that is not async.
pub(crate) fn exclusive_gpu() -> ExclusiveGpu {
    ExclusiveGpu::with(LOCK.blocking_write())
}

/// Waits for use beside other tests that let nothing fail and count nothing.
pub(crate) fn shared_gpu() -> RwLockReadGuard<'static, ()> {
    LOCK.blocking_read()
}

/// Waits for exclusive use, in an async test.
pub(crate) async fn exclusive_gpu_async() -> ExclusiveGpu {
    ExclusiveGpu::with(LOCK.write().await)
}

/// The folder in which tests cache compiled kernels, one for each compiler. The real NVRTC takes up
/// to three seconds for each start of an engine, which is as long as the rest of many tests.
pub(crate) fn kernel_cache() -> PathBuf {
    let is_real = std::env::var_os(emulated::NVRTC_VAR).is_some();
    emulated::load().unwrap().folder().join(if is_real {
        "kernels-nvrtc"
    } else {
        "kernels-emulated"
    })
}

/// Opens the emulated GPU, with the kernels that other tests have compiled.
pub(crate) fn open(options: &CudaOptions, heads: Heads) -> Cuda {
    let device = DeviceOptions { cache: Some(kernel_cache()), ..options.device.clone() };
    Cuda::open(&CudaOptions { device, ..options.clone() }, heads).unwrap()
}

impl ExclusiveGpu {
    fn with(lock: RwLockWriteGuard<'static, ()>) -> ExclusiveGpu {
        let emulated = emulated::load().unwrap();
        ExclusiveGpu { emulated, memory: emulated.get("memory"), _lock: lock }
    }

    /// Makes the n-th allocation of device memory fail, counted from now; none if zero.
    pub(crate) fn fail_allocation(&self, n: i64) {
        assert!(self.set("fail_allocation", n));
    }
}

impl Deref for ExclusiveGpu {
    type Target = EmulatedGpu;

    fn deref(&self) -> &EmulatedGpu {
        self.emulated
    }
}

impl Drop for ExclusiveGpu {
    fn drop(&mut self) {
        self.emulated.set("memory", self.memory);
        let faults = ["fail_allocation", "fail_launch", "fail_recording", "fail_pin", "hang"];
        for name in faults.into_iter().chain(["seed", "wrong_products", "fail_read"]) {
            self.emulated.set(name, 0);
        }
    }
}
