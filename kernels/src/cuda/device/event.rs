//! Events: points in the order of a device's work.

use cudarc::driver::sys;

use super::Device;
use crate::cuda::error::CudaError;

/// A point in the order of a device's work, which the host can wait for.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    device: Device,
    handle: sys::CUevent,
    recorded: bool,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CudaEvent {}

impl CudaEvent {
    /// Creates an event. Until it is recorded, waiting for it returns at once.
    pub(crate) fn new(device: &Device) -> Result<CudaEvent, CudaError> {
        CudaEvent::with_flags(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// As [`CudaEvent::new`], for an event whose time the device notes.
    pub(crate) fn timed(device: &Device) -> Result<CudaEvent, CudaError> {
        CudaEvent::with_flags(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(device: &Device, flags: sys::CUevent_flags) -> Result<CudaEvent, CudaError> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes a handle.
        let code = unsafe { sys::cuEventCreate(&mut handle, flags as u32) };
        CudaError::check("cuEventCreate", code)?;
        Ok(CudaEvent { device: device.clone(), handle, recorded: false })
    }

    /// Places the event behind all work that was started until now.
    pub(crate) fn record(&mut self) -> Result<(), CudaError> {
        self.device.bind()?;
        self.recorded = true;
        let stream = self.device.inner.stream;
        // SAFETY: both handles live.
        CudaError::check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream) })
    }

    /// The driver's handle.
    pub(super) fn handle(&self) -> sys::CUevent {
        self.handle
    }

    /// Waits until the device has reached the event.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        if !self.recorded {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the handle lives.
        CudaError::check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }

    /// Returns the seconds from another timed event to this one. The device has reached both.
    pub(crate) fn seconds_since(&self, first: &CudaEvent) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles live, and the driver writes a number.
        let code =
            unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, first.handle, self.handle) };
        CudaError::check("cuEventElapsedTime_v2", code)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.device.bind().ok();
        // SAFETY: it was created, and is destroyed once; the driver waits where it has to.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}
