//! Kernels on a device, and their launches.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};

use super::compile::{Origin, Program, program};
use super::device::Device;
use super::error::CudaError;
use super::memory::Memory;
use super::source::{Family, Kind, Text, signatures, texts};

/// Shared memory of a block that needs no permission.
const SHARED_FREE: u32 = 48 << 10;

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, all in x.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

impl Grid {
    /// Blocks in a row, without dynamic shared memory.
    pub fn line(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks as u32, 1, 1], threads, shared: 0 }
    }
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// An address on the device; zero is none.
    Pointer(u64),
    /// `int` or `unsigned`.
    Int(i32),
    /// `long long`, signed or not.
    Long(u64),
    /// `float`.
    Float(f32),
}

impl Arg {
    /// The beginning of a memory, or nothing.
    pub fn opt(memory: Option<&Memory>) -> Arg {
        Arg::Pointer(memory.map_or(0, Memory::address))
    }

    fn kind(&self) -> Kind {
        match self {
            Arg::Pointer(_) => Kind::Pointer,
            Arg::Int(_) => Kind::Int,
            Arg::Long(_) => Kind::Long,
            Arg::Float(_) => Kind::Float,
        }
    }

    /// The value in the first bytes of eight, as a kernel takes it.
    fn slot(self) -> u64 {
        match self {
            Arg::Pointer(value) | Arg::Long(value) => value,
            Arg::Int(value) => u64::from(value as u32),
            Arg::Float(value) => u64::from(value.to_bits()),
        }
    }
}

impl From<&Memory> for Arg {
    fn from(memory: &Memory) -> Arg {
        Arg::Pointer(memory.address())
    }
}

impl From<usize> for Arg {
    /// Counts fit: what they count is on one device.
    fn from(count: usize) -> Arg {
        Arg::Int(i32::try_from(count).unwrap_or(i32::MAX))
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Arg {
        Arg::Int(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Arg {
        Arg::Float(value)
    }
}

/// A kernel and the kinds of its arguments.
#[derive(Debug)]
struct Function {
    handle: sys::CUfunction,
    kinds: Vec<Kind>,
    /// Bytes of dynamic shared memory that it may have.
    shared: AtomicU32,
}

/// Compiled kernels, by name.
#[derive(Debug)]
pub struct Kernels {
    device: Device,
    functions: BTreeMap<String, Function>,
    modules: Vec<sys::CUmodule>,
    made: Made,
}

/// Where kernels came from, in files, and how long that took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Made {
    /// Parts of this program.
    pub built_in: usize,
    /// Kept by an earlier start.
    pub kept: usize,
    /// Compiled.
    pub compiled: usize,
    /// The time that all took.
    pub took: Duration,
}

impl Made {
    fn count(&mut self, origin: Origin) {
        let files = match origin {
            Origin::BuiltIn => &mut self.built_in,
            Origin::Kept => &mut self.kept,
            Origin::Compiled => &mut self.compiled,
        };
        *files += 1;
    }
}

impl std::fmt::Display for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Made { built_in, kept, compiled, took } = self;
        write!(f, "{compiled} files of kernels compiled in {:.1} s", took.as_secs_f64())?;
        write!(f, " ({built_in} built in, {kept} kept)")
    }
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; launches change nothing here.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Finds or compiles families for heads of `head_dim` elements, all at once, and loads them.
    ///
    /// # Errors
    /// What the compiler says, or the driver.
    pub fn load(
        device: &Device,
        families: &[Family],
        head_dim: usize,
    ) -> Result<Kernels, CudaError> {
        Kernels::of(device, &texts(families, device.inner.options.texts.as_deref(), head_dim)?)
    }

    /// The same for texts.
    pub(super) fn of(device: &Device, texts: &[Text]) -> Result<Kernels, CudaError> {
        let begun = Instant::now();
        let programs: Vec<Result<Program, CudaError>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                texts.iter().map(|text| scope.spawn(move || program(device, text))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
        });
        let mut kernels = Kernels {
            device: device.clone(),
            functions: BTreeMap::new(),
            modules: Vec::new(),
            made: Made::default(),
        };
        device.bind()?;
        for (text, program) in texts.iter().zip(programs) {
            let program = program?;
            kernels.made.count(program.origin);
            kernels.add(&program.cubin, &text.text)?;
        }
        kernels.made.took = begun.elapsed();
        Ok(kernels)
    }

    /// Loads one program and finds the kernels of its text.
    fn add(&mut self, cubin: &[u8], text: &str) -> Result<(), CudaError> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the driver reads the program's own header for its length.
        let code = unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) };
        CudaError::check("cuModuleLoadData", code)?;
        self.modules.push(module);
        for (name, kinds) in signatures(text) {
            let absent = || CudaError::Arguments { name: name.clone(), found: String::new() };
            let symbol = CString::new(name.as_str()).map_err(|_| absent())?;
            let mut handle = std::ptr::null_mut();
            // SAFETY: the module was loaded and the name ends in zero.
            let code = unsafe { sys::cuModuleGetFunction(&mut handle, module, symbol.as_ptr()) };
            CudaError::check("cuModuleGetFunction", code)?;
            self.functions
                .insert(name, Function { handle, kinds, shared: AtomicU32::new(SHARED_FREE) });
        }
        Ok(())
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether there is a kernel of that name.
    pub fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// Where they came from.
    pub fn made(&self) -> Made {
        self.made
    }

    /// Lets a kernel have more dynamic shared memory than usual.
    ///
    /// # Errors
    /// If the device has not so much.
    pub fn permit(&self, name: &str, shared: u32) -> Result<(), CudaError> {
        let function = self.function(name)?;
        if shared <= function.shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.device.bind()?;
        let what = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a module that is loaded.
        let code = unsafe { sys::cuFuncSetAttribute(function.handle, what, shared as i32) };
        CudaError::check("cuFuncSetAttribute", code)?;
        function.shared.store(shared, Ordering::Relaxed);
        Ok(())
    }

    /// Asks for a run of a kernel. A grid without blocks runs nothing.
    ///
    /// # Errors
    /// If the arguments are not of the kinds that the kernel takes, or the driver refuses. What
    /// goes wrong while it runs is told by a later call.
    ///
    /// # Safety
    /// Every pointer must be to memory that lives until the device is done with it, and as large
    /// as the kernel's header says for these arguments and this grid.
    pub unsafe fn launch(&self, name: &str, grid: Grid, args: &[Arg]) -> Result<(), CudaError> {
        let function = self.function(name)?;
        if !args.iter().map(Arg::kind).eq(function.kinds.iter().copied()) {
            let found = args.iter().map(|arg| arg.kind().letter()).collect();
            return Err(CudaError::Arguments { name: name.to_owned(), found });
        }
        let [x, y, z] = grid.blocks;
        if x * y * z == 0 {
            return Ok(());
        }
        self.permit(name, grid.shared)?;
        self.device.bind()?;
        let mut slots: Vec<u64> = args.iter().map(|arg| arg.slot()).collect();
        let mut places: Vec<*mut c_void> =
            slots.iter_mut().map(|slot| std::ptr::from_mut(slot).cast()).collect();
        let (threads, shared) = (grid.threads, grid.shared);
        let (stream, none) = (self.device.inner.stream, std::ptr::null_mut());
        let places = places.as_mut_ptr();
        // SAFETY: as many arguments as the kernel takes, each in eight bytes of which it reads the
        // first; the caller answers for what they point to.
        let code = unsafe {
            let handle = function.handle;
            sys::cuLaunchKernel(handle, x, y, z, threads, 1, 1, shared, stream, places, none)
        };
        CudaError::check("cuLaunchKernel", code)
    }

    fn function(&self, name: &str) -> Result<&Function, CudaError> {
        let absent = || CudaError::Arguments { name: name.to_owned(), found: String::new() };
        self.functions.get(name).ok_or_else(absent)
    }
}

/// A compiler that took its thread down.
fn lost() -> Result<Program, CudaError> {
    Err(CudaError::Library { call: "nvrtcCompileProgram", status: u32::MAX })
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        for module in self.modules.drain(..) {
            // SAFETY: it was loaded, nothing of it runs any more, and it is unloaded once.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}
