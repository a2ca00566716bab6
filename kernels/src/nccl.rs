//! NVIDIA's collective operations, for weights that a trainer broadcasts from its GPU to ours.
//!
//! Nothing is linked: `libnccl.so.2` is looked for when somebody wants to join a group.
//!
//! A peer that is dead or stuck must not take us with it, and NCCL waits for peers for ever: on the
//! host while a group forms, and on the device in a kernel that nothing else ends. So groups are of
//! the kind that does not block; whoever waits asks again and again how it stands, and may give up
//! between two questions. A group that failed or was given up is aborted at once, before any memory
//! that its kernels may still touch is freed: to free memory waits for the device, kernels
//! included.
#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use libloading::os::unix::Library;

use crate::cuda::{CudaError, Device, Memory, locate, nccl_package};

const LIBRARY: &str = "libnccl.so.2";

/// Bytes of the name of a group.
pub const ID_BYTES: usize = 128;

/// `ncclUint8`, `ncclFloat32` and `ncclSum`.
const UINT8: c_int = 1;
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclSuccess`, `ncclRemoteError` and `ncclInProgress`.
const SUCCESS: c_int = 0;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

/// How long to leave the library and the device alone between two questions: short at first, for
/// what is nearly there.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(2)];

/// The name of a group, which its first member made up; passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; ID_BYTES]);

type Group = *mut c_void;
type Stream = *mut c_void;

/// The beginning of `ncclConfig_t`, as it was in version 2.14; the library fills in what it has
/// learned since.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    /// Not read by the version that is named, but within the struct's size.
    clusters: c_int,
}

impl Config {
    /// `NCCL_CONFIG_INITIALIZER`, but for a group that does not block.
    const UNBLOCKED: Config = Config {
        size: size_of::<Config>(),
        magic: 0xCAFE_BEEF,
        version: 21_400,
        blocking: 0,
        clusters: c_int::MIN,
    };
}

/// Why a group could not be joined or did not work.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// There is no library.
    #[error("{LIBRARY} was not found; install it with `pip install {0}`")]
    NoLibrary(&'static str),
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
    /// Another member is gone.
    #[error("`{call}`: {reason}")]
    Peer {
        /// The function.
        call: &'static str,
        /// What the library says.
        reason: String,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// The caller waits no longer.
    #[error("`{0}` was given up")]
    GivenUp(&'static str),
}

/// Asked between two questions: whether to wait no longer.
pub type GiveUp<'a> = &'a mut dyn FnMut() -> bool;

/// The functions that are called.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    reason: unsafe extern "C" fn(c_int) -> *const c_char,
    join: unsafe extern "C" fn(*mut Group, c_int, Id, c_int, *const Config) -> c_int,
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
    state: unsafe extern "C" fn(Group, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Group) -> c_int,
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
        locate(LIBRARY).ok_or_else(no_library)?;
        // SAFETY: the library is made to be loaded, and was loaded before.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|_| no_library())?;
        // SAFETY: the types are those of `nccl.h`, the same in all versions since 2.14.
        let functions = unsafe {
            Functions {
                version: symbol(&library, "ncclGetVersion")?,
                reason: symbol(&library, "ncclGetErrorString")?,
                join: symbol(&library, "ncclCommInitRankConfig")?,
                sum: symbol(&library, "ncclAllReduce")?,
                broadcast: symbol(&library, "ncclBroadcast")?,
                state: symbol(&library, "ncclCommGetAsyncError")?,
                abort: symbol(&library, "ncclCommAbort")?,
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
        Err(match status {
            REMOTE_ERROR => NcclError::Peer { call, reason },
            _ => NcclError::Call { call, reason },
        })
    }
}

/// There is none, and what to install.
fn no_library() -> NcclError {
    NcclError::NoLibrary(nccl_package())
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
    /// Null once it was aborted.
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
    /// Joins a group as number `rank` of `size`. Waits until all members are there, and until they
    /// have added up a number, as PyTorch's and vLLM's groups do when they begin.
    ///
    /// # Errors
    /// What the library or the device says; [`NcclError::GivenUp`] once `give_up` says so.
    pub fn join(
        device: &Device,
        id: &[u8; ID_BYTES],
        (rank, size): (i32, i32),
        give_up: GiveUp<'_>,
    ) -> Result<Member, NcclError> {
        const JOIN: &str = "ncclCommInitRankConfig";
        let functions = Functions::get()?;
        device.bind()?;
        let mut group = std::ptr::null_mut();
        // SAFETY: the library writes a handle, and reads the configuration during the call.
        let status =
            unsafe { (functions.join)(&mut group, size, Id(*id), rank, &Config::UNBLOCKED) };
        // From here on whatever fails aborts the group.
        let mut member = Member { functions, group, device: device.clone() };
        member.until_ready(JOIN, status, give_up)?;
        member.greet(give_up)?;
        Ok(member)
    }

    fn greet(&mut self, give_up: GiveUp<'_>) -> Result<(), NcclError> {
        let number = Memory::of(&self.device, &[0.0_f32])?;
        self.add_up(&number, give_up)
    }

    /// Adds up the numbers of all members, 32-bit floats, into each one's memory.
    ///
    /// # Errors
    /// As for [`Member::receive`].
    pub fn add_up(&mut self, numbers: &Memory, give_up: GiveUp<'_>) -> Result<(), NcclError> {
        self.device.bind()?;
        let (from, to) = (numbers.address() as *const c_void, numbers.address() as *mut c_void);
        let (group, stream, count) = (self.group()?, self.device.stream(), numbers.bytes() / 4);
        // SAFETY: the numbers are on the device, and live until the sum is done or aborted.
        let status = unsafe { (self.functions.sum)(from, to, count, FLOAT32, SUM, group, stream) };
        self.until_done("ncclAllReduce", status, give_up)
    }

    /// Receives what member 0 sends to all, as many bytes as `memory` has, and waits for it; called
    /// by member 0 it sends them. After an error the group is gone, and so is whatever of the
    /// memory was written.
    ///
    /// # Errors
    /// What the library or the device says; [`NcclError::GivenUp`] once `give_up` says so.
    pub fn receive(&mut self, memory: &Memory, give_up: GiveUp<'_>) -> Result<(), NcclError> {
        self.device.bind()?;
        let (from, to) = (memory.address() as *const c_void, memory.address() as *mut c_void);
        let (count, stream, group) = (memory.bytes(), self.device.stream(), self.group()?);
        // SAFETY: all of the memory is written, and it lives until that is done or aborted.
        let status =
            unsafe { (self.functions.broadcast)(from, to, count, UINT8, 0, group, stream) };
        self.until_done("ncclBroadcast", status, give_up)
    }

    fn group(&self) -> Result<Group, NcclError> {
        match self.group.is_null() {
            false => Ok(self.group),
            true => Err(NcclError::GivenUp("the group")),
        }
    }

    /// Waits for what was just asked for to be on the stream and done there; aborts the group if it
    /// fails or is given up.
    fn until_done(
        &mut self,
        call: &'static str,
        status: c_int,
        give_up: GiveUp<'_>,
    ) -> Result<(), NcclError> {
        self.until_ready(call, status, give_up)?;
        // The stream comes first: a peer that has sent everything may be gone by now.
        self.poll(call, give_up, |member| match member.device.is_done()? {
            true => Ok(true),
            false => member.is_ready(call).map(|_| false),
        })
    }

    /// Waits until the library is done with a call; aborts the group if it fails or is given up.
    fn until_ready(
        &mut self,
        call: &'static str,
        status: c_int,
        give_up: GiveUp<'_>,
    ) -> Result<(), NcclError> {
        if status != SUCCESS && status != IN_PROGRESS {
            self.abort();
            return self.functions.check(call, status);
        }
        self.poll(call, give_up, |member| member.is_ready(call))
    }

    /// Asks until the answer is yes.
    fn poll(
        &mut self,
        call: &'static str,
        give_up: GiveUp<'_>,
        done: impl Fn(&Member) -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let mut pauses = std::iter::repeat_n(PAUSES[0], 200).chain(std::iter::repeat(PAUSES[1]));
        let outcome = loop {
            match done(self) {
                Ok(true) => return Ok(()),
                Ok(false) if give_up() => break Err(NcclError::GivenUp(call)),
                Ok(false) => sleep(pauses.next().unwrap_or(PAUSES[1])),
                Err(error) => break Err(error),
            }
        };
        self.abort();
        outcome
    }

    /// Whether the library is done with what was asked for last, and all is well.
    fn is_ready(&self, call: &'static str) -> Result<bool, NcclError> {
        let mut state = SUCCESS;
        // SAFETY: the group is there, and the library writes a number.
        let status = unsafe { (self.functions.state)(self.group()?, &mut state) };
        self.functions.check("ncclCommGetAsyncError", status)?;
        if state == IN_PROGRESS {
            return Ok(false);
        }
        self.functions.check(call, state).map(|()| true)
    }

    /// Leaves the group, whatever is under way in it. To destroy one instead might wait for peers.
    fn abort(&mut self) {
        let group = std::mem::replace(&mut self.group, std::ptr::null_mut());
        if group.is_null() {
            return;
        }
        // What fails here can be told to nobody.
        let _ = self.device.bind();
        // SAFETY: nobody has the group any more.
        unsafe { (self.functions.abort)(group) };
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A name for a new group, of which the caller is to be member 0: what trainers do.
///
/// # Errors
/// What the library says.
pub fn new_id() -> Result<[u8; ID_BYTES], NcclError> {
    const CALL: &str = "ncclGetUniqueId";
    let functions = Functions::get()?;
    // SAFETY: the library is there, and will be.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|_| no_library())?;
    // SAFETY: the type is that of `nccl.h`.
    let made = unsafe { symbol::<unsafe extern "C" fn(*mut Id) -> c_int>(&library, CALL) }?;
    let mut id = Id([0; ID_BYTES]);
    // SAFETY: the library writes the name.
    functions.check(CALL, unsafe { made(&mut id) })?;
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
