//! NCCL, NVIDIA's library of collective operations: it receives weights that a trainer broadcasts
//! from its GPU to ours.
//!
//! - [`Communicator`]: this process as a member of a group. [`NcclError`]: why a call failed.
//! - [`unique_id`]: the id of a new group.
//!
//! Nothing is linked: `libnccl.so.2` is loaded when a group is joined.
//!
//! NCCL waits for dead or stuck peers forever: on the host while a group forms, and on the device
//! in a kernel that only an abort ends. So groups are non-blocking: the waiting thread polls, and
//! may stop waiting between two polls. A group that failed, or that is no longer waited for, is
//! aborted at once, before any memory is freed that its kernels may still use, because to free
//! memory waits for all kernels of the device.
//!
//! The `nccl` of `cudarc` cannot replace this. Its groups block until all members have joined, it
//! does not have `ncclCommGetAsyncError` behind a safe function, a failed abort panics, and so does
//! a library that is not there.
#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use libloading::os::unix::Library;

use crate::cuda::{CudaError, Device, LOADS_LIBRARIES, Memory, locate, nccl_package};

const LIBRARY: &str = "libnccl.so.2";

/// Bytes of the id of a group.
pub const ID_BYTES: usize = 128;

/// `ncclUint8`, `ncclFloat32` and `ncclSum`.
const UINT8: c_int = 1;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclSuccess`, `ncclRemoteError` and `ncclInProgress`.
const SUCCESS: c_int = 0;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

/// The pause between two polls: a short one for the first polls, then a longer one.
const SHORT_PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_millis(2);
const SHORT_PAUSES: usize = 200;

/// `ncclUniqueId`: the id of a group, which its first member creates. Passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

/// `ncclComm_t`.
type CommHandle = *mut c_void;
/// `cudaStream_t`.
type Stream = *mut c_void;

/// The beginning of `ncclConfig_t`, as of version 2.14. Later versions take defaults for the rest.
#[repr(C)]
struct GroupConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    /// Not read for this `version`, but within the struct's size.
    clusters: c_int,
}

impl GroupConfig {
    /// `NCCL_CONFIG_INITIALIZER`, for a non-blocking group.
    const NON_BLOCKING: GroupConfig = GroupConfig {
        size: size_of::<GroupConfig>(),
        magic: 0xCAFE_BEEF,
        version: 21_400,
        blocking: 0,
        clusters: c_int::MIN,
    };
}

/// Error of a group.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// The library was not found.
    #[error("{LIBRARY} was not found; install it with `pip install {0}`")]
    NoLibrary(&'static str),
    /// The build cannot load the library.
    #[error(
        "this build of rolltape is static and cannot load {LIBRARY}; install the Python wheel or \
         build from source"
    )]
    Static,
    /// The library lacks a function.
    #[error("{LIBRARY} has no `{0}`")]
    NoFunction(&'static str),
    /// A call of the library failed.
    #[error("`{call}` failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// The library's message.
        reason: String,
    },
    /// A call failed because another member is gone.
    #[error("`{call}`: {reason}")]
    Peer {
        /// The function.
        call: &'static str,
        /// The library's message.
        reason: String,
    },
    /// A call of the device failed.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// The caller stopped waiting for this call.
    #[error("`{0}` was given up")]
    GivenUp(&'static str),
}

/// A function that is called between two polls, and returns true to stop waiting.
pub type ShouldStop<'a> = &'a mut dyn FnMut() -> bool;

/// The functions of the library.
struct NcclFunctions {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    reason: unsafe extern "C" fn(c_int) -> *const c_char,
    join:
        unsafe extern "C" fn(*mut CommHandle, c_int, UniqueId, c_int, *const GroupConfig) -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        CommHandle,
        Stream,
    ) -> c_int,
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        CommHandle,
        Stream,
    ) -> c_int,
    state: unsafe extern "C" fn(CommHandle, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(CommHandle) -> c_int,
}

impl NcclFunctions {
    /// Returns the functions. The first call loads the library, which is never unloaded.
    fn get() -> Result<&'static NcclFunctions, NcclError> {
        static FUNCTIONS: OnceLock<NcclFunctions> = OnceLock::new();
        if let Some(functions) = FUNCTIONS.get() {
            return Ok(functions);
        }
        let functions = NcclFunctions::load()?;
        Ok(FUNCTIONS.get_or_init(|| functions))
    }

    fn load() -> Result<NcclFunctions, NcclError> {
        locate(LIBRARY).ok_or_else(no_library)?;
        // SAFETY: loading the library runs its initializer only; it was loaded before.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|_| no_library())?;
        // SAFETY: the types are those of `nccl.h`, the same in all versions since 2.14.
        let functions = unsafe {
            NcclFunctions {
                version: symbol(&library, "ncclGetVersion")?,
                reason: symbol(&library, "ncclGetErrorString")?,
                join: symbol(&library, "ncclCommInitRankConfig")?,
                all_reduce: symbol(&library, "ncclAllReduce")?,
                broadcast: symbol(&library, "ncclBroadcast")?,
                state: symbol(&library, "ncclCommGetAsyncError")?,
                abort: symbol(&library, "ncclCommAbort")?,
            }
        };
        // The functions must stay loaded.
        std::mem::forget(library);
        Ok(functions)
    }

    /// Converts a status of the library.
    fn check(&self, call: &'static str, status: c_int) -> Result<(), NcclError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library has a text of its own for every number.
        let text = unsafe { (self.reason)(status) };
        let reason = match text.is_null() {
            true => format!("status {status}"),
            // SAFETY: its texts end in zero and live as long as it does.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(match status {
            REMOTE_ERROR => NcclError::Peer { call, reason },
            _ => NcclError::Call { call, reason },
        })
    }
}

/// The error of a missing library, with the package to install.
fn no_library() -> NcclError {
    if LOADS_LIBRARIES { NcclError::NoLibrary(nccl_package()) } else { NcclError::Static }
}

/// Looks a function up.
///
/// # Safety
/// The function must have the type `T`.
unsafe fn symbol<T: Copy>(library: &Library, name: &'static str) -> Result<T, NcclError> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<T>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| NcclError::NoFunction(name))
}

/// Returns the version of the library, such as 22809 for 2.28.9.
///
/// # Errors
/// [`NcclError::NoLibrary`], or an error of the library.
pub fn version() -> Result<i32, NcclError> {
    let functions = NcclFunctions::get()?;
    let mut version = 0;
    // SAFETY: the library writes a number.
    functions.check("ncclGetVersion", unsafe { (functions.version)(&mut version) })?;
    Ok(version)
}

/// The membership of this process in a group of GPUs.
pub struct Communicator {
    functions: &'static NcclFunctions,
    /// Null after an abort.
    handle: CommHandle,
    device: Device,
}

// SAFETY: a group may be used from any thread, by one at a time.
unsafe impl Send for Communicator {}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl Communicator {
    /// Joins a group as member `rank` of `size`. Waits until all members have joined, and until
    /// they have summed up a number, as PyTorch's and vLLM's groups do at first.
    ///
    /// # Errors
    /// An error of the library or the device; [`NcclError::GivenUp`] if `should_stop` returns true.
    pub fn new(
        device: &Device,
        id: &[u8; ID_BYTES],
        rank: i32,
        size: i32,
        should_stop: ShouldStop<'_>,
    ) -> Result<Communicator, NcclError> {
        const JOIN: &str = "ncclCommInitRankConfig";
        let functions = NcclFunctions::get()?;
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        let id = UniqueId(*id);
        // SAFETY: the library writes a handle, and reads the configuration during the call.
        let status =
            unsafe { (functions.join)(&mut handle, size, id, rank, &GroupConfig::NON_BLOCKING) };
        // From here on every failure aborts the group.
        let mut communicator = Communicator { functions, handle, device: device.clone() };
        communicator.wait_ready(JOIN, status, should_stop)?;

        let number = Memory::of(&communicator.device, &[0.0_f32])?;
        communicator.all_reduce(&number, should_stop)?;
        Ok(communicator)
    }

    /// Adds up the 32-bit floats of all members into each member's memory.
    ///
    /// # Errors
    /// As for [`Communicator::broadcast`].
    pub fn all_reduce(
        &mut self,
        numbers: &Memory,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), NcclError> {
        self.device.bind()?;
        let (from, to) = (numbers.address() as *const c_void, numbers.address() as *mut c_void);
        let (handle, stream, count) = (self.handle()?, self.device.stream(), numbers.bytes() / 4);
        // SAFETY: the numbers are on the device, and live until the sum is done or aborted.
        let status =
            unsafe { (self.functions.all_reduce)(from, to, count, FLOAT32, SUM, handle, stream) };
        self.wait_done("ncclAllReduce", status, should_stop)
    }

    /// Fills `memory` with the bytes that member 0 sends, and waits for them; member 0 sends its
    /// own. After an error the group is aborted, and the contents of `memory` are unspecified.
    ///
    /// # Errors
    /// An error of the library or the device; [`NcclError::GivenUp`] if `should_stop` returns true.
    pub fn broadcast(
        &mut self,
        memory: &Memory,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), NcclError> {
        self.device.bind()?;
        let (from, to) = (memory.address() as *const c_void, memory.address() as *mut c_void);
        let (count, stream, handle) = (memory.bytes(), self.device.stream(), self.handle()?);
        // SAFETY: all of the memory is written, and it lives until that is done or aborted.
        let status =
            unsafe { (self.functions.broadcast)(from, to, count, UINT8, 0, handle, stream) };
        self.wait_done("ncclBroadcast", status, should_stop)
    }

    fn handle(&self) -> Result<CommHandle, NcclError> {
        match self.handle.is_null() {
            false => Ok(self.handle),
            true => Err(NcclError::GivenUp("the group")),
        }
    }

    /// Waits until the operation of a call is on the stream and done. Aborts the group after an
    /// error.
    fn wait_done(
        &mut self,
        call: &'static str,
        status: c_int,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), NcclError> {
        self.wait_ready(call, status, should_stop)?;
        // The stream is asked first: a peer that has sent everything may be gone by now.
        self.poll(call, should_stop, |member| match member.device.is_done()? {
            true => Ok(true),
            false => member.is_ready(call).map(|_| false),
        })
    }

    /// Waits until the library has finished a call. Aborts the group after an error.
    fn wait_ready(
        &mut self,
        call: &'static str,
        status: c_int,
        should_stop: ShouldStop<'_>,
    ) -> Result<(), NcclError> {
        if status != SUCCESS && status != IN_PROGRESS {
            self.abort();
            return self.functions.check(call, status);
        }
        self.poll(call, should_stop, |member| member.is_ready(call))
    }

    /// Calls `done` until it returns true. Aborts the group after an error.
    fn poll(
        &mut self,
        call: &'static str,
        should_stop: ShouldStop<'_>,
        done: impl Fn(&Communicator) -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let mut short_pauses = std::iter::repeat_n(SHORT_PAUSE, SHORT_PAUSES);
        let outcome = loop {
            match done(self) {
                Ok(true) => return Ok(()),
                Ok(false) if should_stop() => break Err(NcclError::GivenUp(call)),
                Ok(false) => sleep(short_pauses.next().unwrap_or(LONG_PAUSE)),
                Err(error) => break Err(error),
            }
        };
        self.abort();
        outcome
    }

    /// Returns true if the library has finished its last call without an error.
    fn is_ready(&self, call: &'static str) -> Result<bool, NcclError> {
        let mut state = SUCCESS;
        // SAFETY: the handle is valid, and the library writes a number.
        let status = unsafe { (self.functions.state)(self.handle()?, &mut state) };
        self.functions.check("ncclCommGetAsyncError", status)?;
        if state == IN_PROGRESS {
            return Ok(false);
        }
        self.functions.check(call, state).map(|()| true)
    }

    /// Aborts the group and its running operations. `ncclCommDestroy` might wait for peers.
    fn abort(&mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() {
            return;
        }
        // Errors cannot be reported from here.
        self.device.bind().ok();
        // SAFETY: nobody has the handle any more.
        unsafe { (self.functions.abort)(handle) };
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Creates the id of a new group, whose member 0 the caller will be. Trainers do so.
///
/// # Errors
/// An error of the library.
pub fn unique_id() -> Result<[u8; ID_BYTES], NcclError> {
    const CALL: &str = "ncclGetUniqueId";
    let functions = NcclFunctions::get()?;
    // SAFETY: the library is loaded, and is never unloaded.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|_| no_library())?;
    // SAFETY: the type is that of `nccl.h`.
    let get = unsafe { symbol::<unsafe extern "C" fn(*mut UniqueId) -> c_int>(&library, CALL) }?;
    let mut id = UniqueId([0; ID_BYTES]);
    // SAFETY: the library writes the id.
    functions.check(CALL, unsafe { get(&mut id) })?;
    Ok(id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_the_way_to_get_it() {
        match version() {
            Ok(version) => assert!(version >= 20_000, "{version}"),
            Err(error) => assert_eq!(
                error.to_string(),
                "libnccl.so.2 was not found; install it with `pip install nvidia-nccl-cu13`"
            ),
        }
    }
}
