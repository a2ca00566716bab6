//! One GPU: its context, a stream, and its properties.

pub(super) mod arena;
pub(super) mod event;
pub(super) mod graph;
pub(super) mod library;
pub(super) mod memory;
pub(super) mod ring;
pub(super) mod strided;

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::error::{CudaError, NoCuda};
use event::CudaEvent;
use library::{LOADS_LIBRARIES, Libraries, Release, has_driver, newest};

/// The oldest supported driver version: it has all functions that we call.
const VERSION_MIN: i32 = 12_000;
/// The oldest driver that records launches which begin early: edges of graphs have data since then.
const EARLY_VERSION_MIN: i32 = 12_030;
/// The oldest compute capability whose kernels can wait for the one in front.
const EARLY_CAPABILITY_MIN: (i32, i32) = (9, 0);
/// The oldest supported compute capability: it has all instructions of the kernels.
const CAPABILITY_MIN: (i32, i32) = (8, 0);

/// The choice of a device, and the folders of its files.
#[derive(Debug, Clone, Default)]
pub struct DeviceOptions {
    /// Number of the device, as the driver counts.
    pub ordinal: usize,
    /// The folder of the libraries; without it they are searched for.
    pub libraries: Option<PathBuf>,
    /// The folder in which compiled kernels are cached.
    pub cache: Option<PathBuf>,
    /// A folder with texts of kernels that replace those of this program, to compare variants.
    pub texts: Option<PathBuf>,
}

/// An open GPU with a stream. Clones share both.
#[derive(Debug, Clone)]
pub struct Device {
    pub(super) inner: Arc<DeviceState>,
}

/// The state that clones of a [`Device`] share.
#[derive(Debug)]
pub(super) struct DeviceState {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
    name: String,
    driver: i32,
    capability: (i32, i32),
    processors: usize,
    libraries: Libraries,
    pub(super) options: DeviceOptions,
    /// Times that memory was freed whose address may have been recorded.
    pub(super) epoch: Arc<AtomicU64>,
    /// True if the latest work of the stream is a kernel of ours. Any other call clears it.
    behind_kernel: AtomicBool,
}

// SAFETY: contexts and streams of the driver may be used from any thread, by several at once.
unsafe impl Send for DeviceState {}
// SAFETY: as above.
unsafe impl Sync for DeviceState {}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`NoCuda`], which says what is missing and how to get it.
    pub fn open(options: &DeviceOptions) -> Result<Device, NoCuda> {
        if !LOADS_LIBRARIES {
            return Err(NoCuda::Static);
        }
        if !has_driver() {
            return Err(NoCuda::NoDriver);
        }
        let (driver, device) = choose(options.ordinal)?;
        let name = name(device)?;
        let capability = (
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < CAPABILITY_MIN {
            return Err(NoCuda::OldDevice { name, capability });
        }

        let processors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let libraries = Libraries::load(options.libraries.as_deref(), driver);
        // The context is opened last: nothing after this can fail, so it is always released.
        let (context, stream) = open_stream(device)?;
        let state = DeviceState {
            device,
            context,
            stream,
            name,
            driver,
            capability,
            processors: processors.max(1) as usize,
            libraries,
            options: options.clone(),
            epoch: Arc::default(),
            behind_kernel: AtomicBool::new(false),
        };
        Ok(Device { inner: Arc::new(state) })
    }

    /// Opens a second stream of the same device. Its work does not wait for the first stream's, and
    /// is not recorded there.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn with_new_stream(&self) -> Result<Device, CudaError> {
        let (context, stream) = open_stream(self.inner.device)?;
        let state = DeviceState {
            context,
            stream,
            name: self.inner.name.clone(),
            libraries: self.inner.libraries.clone(),
            options: self.inner.options.clone(),
            epoch: Arc::clone(&self.inner.epoch),
            behind_kernel: AtomicBool::new(false),
            ..*self.inner
        };
        Ok(Device { inner: Arc::new(state) })
    }

    /// Name of the device, as the driver has it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The version of CUDA that the driver supports, such as (13, 0).
    pub fn driver(&self) -> (i32, i32) {
        (self.inner.driver / 1000, self.inner.driver % 1000 / 10)
    }

    /// Compute capability, such as (9, 0).
    pub fn capability(&self) -> (i32, i32) {
        self.inner.capability
    }

    /// Architecture that kernels are compiled for, such as `sm_90a`.
    pub fn arch(&self) -> String {
        let (major, minor) = self.inner.capability;
        // The compiler uses all instructions of a Hopper only with the letter.
        let letter = if (major, minor) == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{letter}")
    }

    /// Architecture of the oldest device of the same major version, whose programs this one runs.
    pub(super) fn base_arch(&self) -> String {
        let (major, _) = self.inner.capability;
        format!("sm_{major}0")
    }

    /// The newest release of the libraries that the driver supports.
    pub(super) fn release(&self) -> &'static Release {
        newest(self.inner.driver)
    }

    /// Number of streaming multiprocessors.
    pub fn processors(&self) -> usize {
        self.inner.processors
    }

    /// The libraries that were found.
    pub fn libraries(&self) -> &Libraries {
        &self.inner.libraries
    }

    /// Returns the free and the total bytes of memory.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written by the driver.
        let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        CudaError::check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// An error of any launch since the last call.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the stream lives as long as the device.
        CudaError::check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.inner.stream)
        })
    }

    /// Returns true if all work of the stream is done. Does not wait.
    ///
    /// # Errors
    /// As for [`Device::synchronize`].
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.bind()?;
        // SAFETY: the stream lives as long as the device.
        let code = unsafe { sys::cuStreamQuery(self.inner.stream) };
        if code == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        CudaError::check("cuStreamQuery", code).map(|()| true)
    }

    /// Has all further work of the stream wait for an event of another one. The host does not wait.
    pub(crate) fn wait_for(&self, event: &CudaEvent) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the stream and the event live.
        let code = unsafe { sys::cuStreamWaitEvent(self.inner.stream, event.handle(), 0) };
        CudaError::check("cuStreamWaitEvent", code)
    }

    /// True if a kernel can begin before the one in front is over.
    pub(super) fn launches_early(&self) -> bool {
        self.inner.driver >= EARLY_VERSION_MIN && self.inner.capability >= EARLY_CAPABILITY_MIN
    }

    /// True if the latest work of the stream is a kernel of ours, and not a copy, an event, or a
    /// kernel of a library, of which nobody knows what it waits for.
    pub(super) fn is_behind_kernel(&self) -> bool {
        self.inner.behind_kernel.load(Ordering::Relaxed)
    }

    /// Notes that the latest work of the stream is a kernel of ours.
    pub(super) fn note_kernel(&self) {
        self.inner.behind_kernel.store(true, Ordering::Relaxed);
    }

    /// The stream, as libraries take it.
    pub(crate) fn stream(&self) -> *mut std::ffi::c_void {
        self.inner.behind_kernel.store(false, Ordering::Relaxed);
        self.inner.stream.cast()
    }

    /// Directs this thread's calls to this device. Every call that adds work to the stream begins
    /// with it.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.inner.behind_kernel.store(false, Ordering::Relaxed);
        // SAFETY: the context is kept until the device is dropped.
        CudaError::check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.inner.context) })
    }
}

impl Drop for DeviceState {
    fn drop(&mut self) {
        // SAFETY: nobody has the device any more, so nobody uses its stream. Errors cannot be
        // reported from here.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Initializes the driver, and returns its version and the device of a number.
fn choose(ordinal: usize) -> Result<(i32, sys::CUdevice), NoCuda> {
    let (mut version, mut count, mut device) = (0, 0, 0);
    // SAFETY: the driver is loaded and writes numbers. Its version may be read before anything
    // else.
    unsafe {
        CudaError::check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
        if version < VERSION_MIN {
            return Err(NoCuda::OldDriver { version });
        }

        let code = sys::cuInit(0);
        if code == sys::CUresult::CUDA_ERROR_NO_DEVICE {
            return Err(NoCuda::NoDevice { count: 0, ordinal });
        }
        CudaError::check("cuInit", code)?;

        CudaError::check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
        if ordinal >= count.max(0) as usize {
            return Err(NoCuda::NoDevice { count, ordinal });
        }
        CudaError::check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32))?;
    }
    Ok((version, device))
}

fn name(device: sys::CUdevice) -> Result<String, CudaError> {
    let mut bytes = [0_u8; 256];
    // SAFETY: the driver writes a text that ends in zero and is no longer than said.
    let code =
        unsafe { sys::cuDeviceGetName(bytes.as_mut_ptr().cast(), bytes.len() as i32 - 1, device) };
    CudaError::check("cuDeviceGetName", code)?;
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the driver writes a number.
    let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
    CudaError::check("cuDeviceGetAttribute", code)?;
    Ok(value)
}

/// Opens the device's context and a stream of our own: the work of the default stream cannot be
/// recorded.
fn open_stream(device: sys::CUdevice) -> Result<(sys::CUcontext, sys::CUstream), CudaError> {
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the driver writes handles; the device is one that it gave.
    unsafe {
        let code = sys::cuDevicePrimaryCtxRetain(&mut context, device);
        CudaError::check("cuDevicePrimaryCtxRetain", code)?;
        let created =
            CudaError::check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context)).and_then(|()| {
                CudaError::check("cuStreamCreate", sys::cuStreamCreate(&mut stream, flags))
            });
        if let Err(error) = created {
            let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
            return Err(error);
        }
    }
    Ok((context, stream))
}
