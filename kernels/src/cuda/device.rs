//! One GPU.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::error::{CudaError, NoCuda};
use super::library::{Libraries, Release, has_driver, newest};

/// The oldest driver's version: what is asked of it has been there since.
const VERSION_MIN: i32 = 12_000;
/// What the kernels are made of came with this.
const CAPABILITY_MIN: (i32, i32) = (8, 0);

/// The choice of a device, and the places to look for what it needs.
#[derive(Debug, Clone, Default)]
pub struct DeviceOptions {
    /// The number that the driver gives it.
    pub ordinal: usize,
    /// A folder with the libraries; else they are looked for.
    pub libraries: Option<PathBuf>,
    /// A folder in which compiled kernels are kept for the next start.
    pub cache: Option<PathBuf>,
    /// A folder with texts of kernels that are compiled in place of those of this program, to
    /// compare variants.
    pub texts: Option<PathBuf>,
}

/// A GPU that is ready. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Device {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
    name: String,
    driver: i32,
    capability: (i32, i32),
    processors: usize,
    libraries: Libraries,
    pub(super) options: DeviceOptions,
    /// How often memory that launches may have been recorded with was given up.
    pub(super) epoch: Arc<AtomicU64>,
}

// SAFETY: contexts and streams of the driver may be used from any thread, by several at once.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Device {
    /// Makes a device ready.
    ///
    /// # Errors
    /// Whatever is missing, with the way out.
    pub fn open(options: &DeviceOptions) -> Result<Device, NoCuda> {
        if !has_driver() {
            return Err(NoCuda::NoDriver);
        }
        let (driver, device) = choose(options.ordinal)?;
        let name = name(device)?;
        let attribute = |which| attribute(device, which);
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < CAPABILITY_MIN {
            return Err(NoCuda::OldDevice { name, capability });
        }
        let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let libraries = Libraries::load(options.libraries.as_deref(), driver);
        let (context, stream) = begin(device)?;
        let inner = Inner {
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
        };
        Ok(Device { inner: Arc::new(inner) })
    }

    /// The same device with a stream of its own: what is asked for here does not wait for what is
    /// asked for there, and is not recorded there.
    ///
    /// # Errors
    /// What the driver says.
    pub fn beside(&self) -> Result<Device, CudaError> {
        let inner = &self.inner;
        let (context, stream) = begin(inner.device)?;
        let inner = Inner {
            context,
            stream,
            name: inner.name.clone(),
            libraries: inner.libraries.clone(),
            options: inner.options.clone(),
            epoch: Arc::clone(&inner.epoch),
            ..*self.inner
        };
        Ok(Device { inner: Arc::new(inner) })
    }

    /// What the driver calls it.
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

    /// What kernels are compiled for, such as `sm_90a`.
    pub fn arch(&self) -> String {
        let (major, minor) = self.inner.capability;
        // Only with the letter does the compiler give all that a Hopper has.
        let letter = if (major, minor) == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{letter}")
    }

    /// The oldest of its kind, whose programs it runs, too.
    pub(super) fn kin(&self) -> String {
        let (major, _) = self.inner.capability;
        format!("sm_{major}0")
    }

    /// What to install for it.
    pub(super) fn release(&self) -> &'static Release {
        newest(self.inner.driver)
    }

    /// Streaming multiprocessors.
    pub fn processors(&self) -> usize {
        self.inner.processors
    }

    /// Where its libraries were found.
    pub fn libraries(&self) -> &Libraries {
        &self.inner.libraries
    }

    /// Bytes of memory that are free, and all that there are.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written by the driver.
        let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        CudaError::check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Waits until all that was asked for is done.
    ///
    /// # Errors
    /// What went wrong in it, which may be of any launch since the last time.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the stream lives as long as the device.
        CudaError::check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.inner.stream)
        })
    }

    /// Whether all that was asked for is done; waits for nothing.
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

    /// The one stream, as libraries want it.
    pub(crate) fn stream(&self) -> *mut std::ffi::c_void {
        self.inner.stream.cast()
    }

    /// Makes this thread's calls go to this device.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is kept until the device is dropped.
        CudaError::check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.inner.context) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: nobody has the device any more, so nobody uses its stream; what fails here can
        // be told to nobody.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// The driver's version and its device of a number.
fn choose(ordinal: usize) -> Result<(i32, sys::CUdevice), NoCuda> {
    let (mut version, mut count, mut device) = (0, 0, 0);
    // SAFETY: numbers are written by the driver, which is there. The version may be asked for
    // before anything else.
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
    let mut text = [0_u8; 256];
    // SAFETY: the driver writes a text that ends in zero and is no longer than said.
    let code =
        unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as i32 - 1, device) };
    CudaError::check("cuDeviceGetName", code)?;
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the driver writes a number.
    let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
    CudaError::check("cuDeviceGetAttribute", code)?;
    Ok(value)
}

/// The device's context, and a stream of ours: what goes through the default one cannot be
/// recorded.
fn begin(device: sys::CUdevice) -> Result<(sys::CUcontext, sys::CUstream), CudaError> {
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the driver writes handles; the device is one that it gave.
    unsafe {
        let code = sys::cuDevicePrimaryCtxRetain(&mut context, device);
        CudaError::check("cuDevicePrimaryCtxRetain", code)?;
        let made = CudaError::check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context));
        let made = made.and_then(|()| {
            CudaError::check("cuStreamCreate", sys::cuStreamCreate(&mut stream, flags))
        });
        if let Err(error) = made {
            let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
            return Err(error);
        }
    }
    Ok((context, stream))
}
