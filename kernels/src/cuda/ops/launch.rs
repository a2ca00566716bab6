//! Helpers of operations: launches, and the addresses of buffers and of words of a step as
//! arguments.

use crate::cuda::device::memory::Memory;
use crate::cuda::element_type::ElementType;
use crate::cuda::error::CudaError;
use crate::cuda::kernels::{Arg, Grid};
use crate::cuda::profiler::{Profiler, kernel_cost};
use crate::cuda::step::plan::{StepShape, WordOffsets};
use crate::cuda::step::{Bounds, Cuda};
use crate::cuda::tensor::{CudaBuffer, CudaPages, Storage};
use crate::op::OpError;
use crate::random::Random;

/// Random numbers that keys and values are filled with, again and again.
const FILL_ELEMENTS: usize = 8 << 20;

/// Checks that `found` elements are `rows` rows, and returns their width.
pub(crate) fn row_width(
    op: &'static str,
    operand: &'static str,
    found: usize,
    rows: usize,
) -> Result<usize, OpError> {
    if rows > 0 && found.is_multiple_of(rows) {
        return Ok(found / rows);
    }
    Err(OpError::Shape { op, operand, expected: rows, found })
}

/// Converts errors of the driver to errors of an operation.
pub(crate) fn op_error(op: &'static str) -> impl Fn(CudaError) -> OpError {
    move |error| error.of(op)
}

/// The address of a tensor, as an argument.
pub(crate) fn pointer(storage: &Storage) -> Arg {
    Arg::Pointer(storage.address())
}

/// The address of a buffer that may be absent, as an argument.
pub(crate) fn optional_pointer(buffer: Option<&CudaBuffer>) -> Arg {
    Arg::Pointer(buffer.map_or(0, |buffer| buffer.storage.address()))
}

/// A kernel with its grid and its arguments.
struct KernelLaunch<'a> {
    name: &'static str,
    grid: Grid,
    args: &'a [Arg],
}

impl Cuda {
    /// Padded counts of the running step.
    pub(crate) fn shape(&self) -> StepShape {
        self.plan.shape
    }

    /// Offsets of the words of the running step.
    pub(crate) fn offsets(&self) -> WordOffsets {
        self.plan.shape.offsets()
    }

    /// The address of words of the running step, as an argument.
    pub(crate) fn words_at(&self, offset: usize) -> Arg {
        Arg::Pointer(self.words.address() + 4 * offset as u64)
    }

    /// Allocates a buffer for results.
    pub(crate) fn buffer(
        &self,
        element: ElementType,
        elements: usize,
    ) -> Result<CudaBuffer, OpError> {
        CudaBuffer::new(&self.device, element, elements).map_err(op_error("scratch"))
    }

    /// Launches a kernel. Its pointers are to buffers whose shapes were checked.
    pub(crate) fn launch(
        &self,
        name: &'static str,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), OpError> {
        self.launch_as(name, grid, args, || {
            kernel_cost(name, args, &self.plan, (self.heads, self.kv))
        })
    }

    /// As [`Cuda::launch`], for a product of so many bytes of weights.
    pub(crate) fn launch_product(
        &self,
        name: &'static str,
        grid: Grid,
        args: &[Arg],
        bytes: usize,
    ) -> Result<(), OpError> {
        let cost = || kernel_cost(name, args, &self.plan, (self.heads, self.kv));
        self.launch_kernel(&KernelLaunch { name, grid, args }, bytes, cost)
    }

    /// As [`Cuda::launch`], for a kernel whose `cost` its arguments do not tell.
    pub(crate) fn launch_as(
        &self,
        name: &'static str,
        grid: Grid,
        args: &[Arg],
        cost: impl FnOnce() -> (String, usize),
    ) -> Result<(), OpError> {
        self.launch_kernel(&KernelLaunch { name, grid, args }, 0, cost)
    }

    /// Launches a kernel that reads so many bytes of weights: early, if they are few.
    fn launch_kernel(
        &self,
        launch: &KernelLaunch<'_>,
        bytes: usize,
        cost: impl FnOnce() -> (String, usize),
    ) -> Result<(), OpError> {
        let &KernelLaunch { name, grid, args } = launch;
        // Where prompts are computed, blocks that wait take the place of those that compute.
        let is_early = bytes < self.variant.early_bytes && self.plan.records;
        // SAFETY: operations check shapes before they launch, indexes were checked before the step
        // began, and memory is freed in stream order behind the work that uses it. All kernels of
        // operations wait for the one in front.
        let launched = unsafe {
            match is_early {
                true => self.kernels.launch_early(name, grid, args),
                false => self.kernels.launch(name, grid, args),
            }
        };
        launched.map_err(op_error(name))?;
        self.profile(name, cost)
    }

    /// Changes the bounds of indexes, which are checked before every further step.
    pub(crate) fn set_bounds(&self, change: impl FnOnce(&mut Bounds)) {
        let mut bounds = self.bounds.get();
        change(&mut bounds);
        self.bounds.set(bounds);
    }

    /// Tells the profiler about the last launch, if there is a profiler. `cost` returns its label
    /// and the bytes that it moves.
    pub(crate) fn profile(
        &self,
        op: &'static str,
        cost: impl FnOnce() -> (String, usize),
    ) -> Result<(), OpError> {
        let Some(profiler) = &self.profiler else { return Ok(()) };
        let (label, bytes) = cost();
        profiler.mark(label, bytes).map_err(op_error(op))
    }

    /// Adds a profiler, which times every operation of each step from now on, or whole steps. Steps
    /// are then not recorded unless they are timed as a whole.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn profiled(mut self) -> Result<(Cuda, Profiler), CudaError> {
        let profiler = Profiler::new(&self.device, &self.kernels)?;
        self.profiler = Some(profiler.clone());
        self.eager = true;
        Ok((self, profiler))
    }

    /// Fills keys and values with random numbers, for measurements: kernels run faster on zeros.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn randomize(&self, pages: &CudaPages) -> Result<(), CudaError> {
        for memory in [pages.keys.memory(), pages.values.memory()] {
            let elements = FILL_ELEMENTS.min(memory.bytes() / 2);
            let random = Memory::of(&self.device, &Random::new(2).halves(elements, 1.0))?;
            let copies = memory.bytes() / random.bytes().max(1);
            (0..copies).try_for_each(|copy| memory.copy_from(copy * random.bytes(), &random))?;
            self.device.synchronize()?;
        }
        Ok(())
    }
}
