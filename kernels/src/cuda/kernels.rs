//! Compiled kernels on a device, and their launches.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};

use super::device::Device;
use super::device::memory::Memory;
use super::error::CudaError;
use super::program::source::{ArgKind, Family, KernelText, signatures, texts};
use super::program::{Program, ProgramOrigin, load_program};

/// Bytes of shared memory that a block may have by default.
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
    /// A row of blocks, without dynamic shared memory.
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
    /// The address of a memory that may be absent.
    pub fn opt(memory: Option<&Memory>) -> Arg {
        Arg::Pointer(memory.map_or(0, Memory::address))
    }

    fn kind(&self) -> ArgKind {
        match self {
            Arg::Pointer(_) => ArgKind::Pointer,
            Arg::Int(_) => ArgKind::Int,
            Arg::Long(_) => ArgKind::Long,
            Arg::Float(_) => ArgKind::Float,
        }
    }

    /// The value in the first of eight bytes, as a kernel takes it.
    fn bits(self) -> u64 {
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
    /// Converts a count, which fits because its items are on one device.
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
    kinds: Vec<ArgKind>,
    /// Bytes of dynamic shared memory that it may have so far.
    shared: AtomicU32,
}

/// The time at which a kernel may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// After the end of all work in front.
    Behind,
    /// While the kernel in front runs, if the device can do so and nothing else is in front.
    Early,
}

/// Compiled kernels, by name.
#[derive(Debug)]
pub struct Kernels {
    device: Device,
    functions: BTreeMap<String, Function>,
    modules: Vec<sys::CUmodule>,
    load: KernelLoad,
}

/// Number of families by the origin of their programs, and the time of loading them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelLoad {
    /// Built into this binary.
    pub built_in: usize,
    /// Cached by an earlier start.
    pub kept: usize,
    /// Compiled at this start.
    pub compiled: usize,
    /// Time of loading all of them.
    pub took: Duration,
}

impl KernelLoad {
    fn count(&mut self, origin: ProgramOrigin) {
        let files = match origin {
            ProgramOrigin::BuiltIn => &mut self.built_in,
            ProgramOrigin::Cached => &mut self.kept,
            ProgramOrigin::Compiled => &mut self.compiled,
        };
        *files += 1;
    }
}

impl std::fmt::Display for KernelLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let KernelLoad { built_in, kept, compiled, took } = self;
        write!(f, "{compiled} files of kernels compiled in {:.1} s", took.as_secs_f64())?;
        write!(f, " ({built_in} built in, {kept} kept)")
    }
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; launches change nothing here.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Finds or compiles families for heads of `head_dim` elements, in parallel, and loads them.
    ///
    /// # Errors
    /// An error of the compiler or the driver.
    pub fn load(
        device: &Device,
        families: &[Family],
        head_dim: usize,
    ) -> Result<Kernels, CudaError> {
        Kernels::of(device, &texts(families, device.inner.options.texts.as_deref(), head_dim)?)
    }

    /// As [`Kernels::load`], for texts.
    pub(super) fn of(device: &Device, texts: &[KernelText]) -> Result<Kernels, CudaError> {
        let started = Instant::now();
        let programs: Vec<Result<Program, CudaError>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                texts.iter().map(|text| scope.spawn(move || load_program(device, text))).collect();
            threads.into_iter().map(|it| it.join().unwrap_or_else(|_| panicked())).collect()
        });

        // An error drops what was loaded until then.
        let mut kernels = Kernels {
            device: device.clone(),
            functions: BTreeMap::new(),
            modules: Vec::new(),
            load: KernelLoad::default(),
        };
        device.bind()?;
        for (text, program) in texts.iter().zip(programs) {
            let program = program?;
            kernels.load.count(program.origin);
            kernels.add(&program.cubin, &text.text)?;
        }
        kernels.load.took = started.elapsed();
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
            let symbol = CString::new(name.as_str()).map_err(|_| no_kernel(&name))?;
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

    /// Returns true if there is a kernel of this name.
    pub fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// The origins of the programs, and the time of loading them.
    pub fn load_summary(&self) -> KernelLoad {
        self.load
    }

    /// Raises the limit of a kernel's dynamic shared memory, if it is lower than `shared` bytes.
    ///
    /// # Errors
    /// If the device has less.
    pub fn allow_shared(&self, name: &str, shared: u32) -> Result<(), CudaError> {
        let function = self.function(name)?;
        if shared <= function.shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.device.bind()?;
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a module that is loaded.
        let code = unsafe { sys::cuFuncSetAttribute(function.handle, attribute, shared as i32) };
        CudaError::check("cuFuncSetAttribute", code)?;
        function.shared.store(shared, Ordering::Relaxed);
        Ok(())
    }

    /// Launches a kernel. A grid without blocks launches nothing.
    ///
    /// # Errors
    /// If the arguments are not of the kinds that the kernel takes, or the driver fails. An error
    /// while the kernel runs is reported by a later call.
    ///
    /// # Safety
    /// Every pointer must be to memory that lives until the device is done with it, and as large
    /// as the kernel's header says for these arguments and this grid.
    pub unsafe fn launch(&self, name: &str, grid: Grid, args: &[Arg]) -> Result<(), CudaError> {
        // SAFETY: the caller promises the same.
        unsafe { self.launch_at(Begin::Behind, name, grid, args) }
    }

    /// As [`Kernels::launch`], for a kernel that may begin before the one in front is over. It is
    /// an ordinary launch if the device cannot do so, or if there is no kernel of ours in front.
    ///
    /// # Errors
    /// As for [`Kernels::launch`].
    ///
    /// # Safety
    /// As for [`Kernels::launch`]. Each thread of the kernel must wait for the one in front before
    /// it lets the next one begin, writes, or reads what a kernel in front of it may write.
    pub(super) unsafe fn launch_early(
        &self,
        name: &str,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller promises the same.
        unsafe { self.launch_at(Begin::Early, name, grid, args) }
    }

    unsafe fn launch_at(
        &self,
        begin: Begin,
        name: &str,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        let function = self.function(name)?;
        if !args.iter().map(Arg::kind).eq(function.kinds.iter().copied()) {
            let found = args.iter().map(|arg| arg.kind().letter()).collect();
            return Err(CudaError::Arguments { name: name.to_owned(), found });
        }
        let [x, y, z] = grid.blocks;
        if x * y * z == 0 {
            return Ok(());
        }
        self.allow_shared(name, grid.shared)?;
        let is_early =
            begin == Begin::Early && self.device.launches_early() && self.device.is_behind_kernel();
        self.device.bind()?;

        let mut values: Vec<u64> = args.iter().map(|arg| arg.bits()).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let (handle, Grid { threads, shared, .. }) = (function.handle, grid);
        let (stream, none) = (self.device.inner.stream, std::ptr::null_mut());
        let params = pointers.as_mut_ptr();
        let mut attribute = early_attribute();
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: is_early.into(),
        };
        // SAFETY: there are as many arguments as the kernel takes, each in eight bytes of which it
        // reads the first; the caller promises the memory that they point to.
        let code = unsafe { sys::cuLaunchKernelEx(&config, handle, params, none) };
        CudaError::check("cuLaunchKernelEx", code)?;
        self.device.note_kernel();
        Ok(())
    }

    fn function(&self, name: &str) -> Result<&Function, CudaError> {
        self.functions.get(name).ok_or_else(|| no_kernel(name))
    }
}

/// The attribute of a launch that may begin before the kernel in front is over.
fn early_attribute() -> sys::CUlaunchAttribute {
    // SAFETY: zeros are values of all its fields.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    attribute
}

fn no_kernel(name: &str) -> CudaError {
    CudaError::Arguments { name: name.to_owned(), found: String::new() }
}

/// The error of a compiler whose thread panicked.
fn panicked() -> Result<Program, CudaError> {
    Err(CudaError::Library { call: "nvrtcCompileProgram", status: u32::MAX })
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.device.synchronize().ok();
        for module in self.modules.drain(..) {
            // SAFETY: it was loaded, none of its kernels runs any more, and it is unloaded once.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}
