//! NVIDIA's collective operations, for weights that a trainer broadcasts from its GPU to ours.
//!
//! Nothing is linked: `libnccl.so.2` is looked for when somebody wants to join a group.
#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::Library;

use crate::cuda::{CudaError, Device, Memory, locate};

const LIBRARY: &str = "libnccl.so.2";

/// Bytes of the name of a group.
pub const ID_BYTES: usize = 128;

/// `ncclUint8`, `ncclFloat32` and `ncclSum`.
const UINT8: c_int = 1;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// The name of a group, which its first member made up; passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; ID_BYTES]);

type Group = *mut c_void;
type Stream = *mut c_void;

/// Why a group could not be joined or did not work.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// There is no library.
    #[error("{LIBRARY} was not found; install it with `pip install nvidia-nccl-cu13`")]
    NoLibrary,
    /// The library is not the one that its name says.
    #[error("{LIBRARY} has no `{0}`")]
    NoFunction(&'static str),
    /// The library refused.
    #[error("`{call}` failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// What the library says.
        reason: String,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// The functions that are called.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    reason: unsafe extern "C" fn(c_int) -> *const c_char,
    join: unsafe extern "C" fn(*mut Group, c_int, Id, c_int) -> c_int,
    sum: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Group,
        Stream,
    ) -> c_int,
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Group,
        Stream,
    ) -> c_int,
    leave: unsafe extern "C" fn(Group) -> c_int,
}

impl Functions {
    /// The library's, loaded when they are first needed, for good.
    fn get() -> Result<&'static Functions, NcclError> {
        static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
        if let Some(functions) = FUNCTIONS.get() {
            return Ok(functions);
        }
        let functions = Functions::load()?;
        Ok(FUNCTIONS.get_or_init(|| functions))
    }

    fn load() -> Result<Functions, NcclError> {
        locate(LIBRARY).ok_or(NcclError::NoLibrary)?;
        // SAFETY: the library is made to be loaded, and was loaded before.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|_| NcclError::NoLibrary)?;
        // SAFETY: the types are those of `nccl.h`, the same in all versions 2.
        let functions = unsafe {
            Functions {
                version: symbol(&library, "ncclGetVersion")?,
                reason: symbol(&library, "ncclGetErrorString")?,
                join: symbol(&library, "ncclCommInitRank")?,
                sum: symbol(&library, "ncclAllReduce")?,
                broadcast: symbol(&library, "ncclBroadcast")?,
                leave: symbol(&library, "ncclCommDestroy")?,
            }
        };
        // What was found above must stay where it is.
        std::mem::forget(library);
        Ok(functions)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), NcclError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library has a text of its own for every number.
        let reason = unsafe { (self.reason)(status) };
        let reason = match reason.is_null() {
            true => format!("status {status}"),
            // SAFETY: its texts end in zero and live as long as it does.
            false => unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned(),
        };
        Err(NcclError::Call { call, reason })
    }
}

/// # Safety
/// The function must have the type `T`.
unsafe fn symbol<T: Copy>(library: &Library, name: &'static str) -> Result<T, NcclError> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<T>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| NcclError::NoFunction(name))
}

/// The version of the library, such as 22809 for 2.28.9.
///
/// # Errors
/// If there is none.
pub fn version() -> Result<i32, NcclError> {
    let functions = Functions::get()?;
    let mut version = 0;
    // SAFETY: the library writes a number.
    functions.check("ncclGetVersion", unsafe { (functions.version)(&mut version) })?;
    Ok(version)
}

/// A place in a group.
pub struct Member {
    functions: &'static Functions,
    group: Group,
    device: Device,
}

// SAFETY: a group may be used from any thread, by one at a time.
unsafe impl Send for Member {}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl Member {
    /// Joins a group of `size` as number `rank`. Blocks until all members are there, and until
    /// they have added up a number, as PyTorch's and vLLM's groups do when they begin.
    ///
    /// # Errors
    /// What the library or the device says.
    pub fn join(
        device: &Device,
        id: &[u8; ID_BYTES],
        rank: i32,
        size: i32,
    ) -> Result<Member, NcclError> {
        let functions = Functions::get()?;
        device.bind()?;
        let mut group = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        let status = unsafe { (functions.join)(&mut group, size, Id(*id), rank) };
        functions.check("ncclCommInitRank", status)?;
        let member = Member { functions, group, device: device.clone() };
        member.greet()?;
        Ok(member)
    }

    fn greet(&self) -> Result<(), NcclError> {
        let number = Memory::of(&self.device, &[0.0_f32])?;
        let (from, to) = (number.address() as *const c_void, number.address() as *mut c_void);
        // SAFETY: the number is on the device, and lives until the sum is done.
        let status = unsafe {
            (self.functions.sum)(from, to, 1, FLOAT32, SUM, self.group, self.device.stream())
        };
        self.functions.check("ncclAllReduce", status)?;
        Ok(self.device.synchronize()?)
    }

    /// Receives what member 0 sends to all, as many bytes as `memory` has, and waits for it.
    ///
    /// # Errors
    /// What the library or the device says.
    pub fn receive(&self, memory: &Memory) -> Result<(), NcclError> {
        self.device.bind()?;
        let (from, to) = (memory.address() as *const c_void, memory.address() as *mut c_void);
        let (count, stream) = (memory.bytes(), self.device.stream());
        // SAFETY: all of the memory is written, and it lives until that is done.
        let status =
            unsafe { (self.functions.broadcast)(from, to, count, UINT8, 0, self.group, stream) };
        self.functions.check("ncclBroadcast", status)?;
        Ok(self.device.synchronize()?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // What fails here can be told to nobody.
        let _ = self.device.bind();
        // SAFETY: nobody has the group any more.
        unsafe { (self.functions.leave)(self.group) };
    }
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
