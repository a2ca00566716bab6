//! How long each operation of a step takes on the device, by events between them.
//!
//! A device that has done one launch before it is asked for the next one would be timed with its
//! waiting. So every timed step begins with a lead: reads of much memory, behind which the host
//! asks for the whole step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::ask::of;
use super::check::Random;
use super::device::Device;
use super::error::CudaError;
use super::launch::{Arg, Kernels};
use super::memory::Memory;
use super::plan::Plan;
use super::shape;
use super::state::Cuda;
use super::tensor::Pages;
use crate::op::{Heads, OpError};

/// Seconds that a lead takes at least: more than a host needs for the longest step.
const LEAD_S: f64 = 0.012;
/// Reads of a lead at most: a stream takes about a thousand launches before the host must wait.
const LEAD_READS_MAX: usize = 120;
/// A lead's memory: this part of what is free, within these bytes. The cache holds little of it.
const LEAD_PART: usize = 256;
const LEAD_BYTES: [usize; 2] = [1 << 16, 512 << 20];
/// What tells the time between two events, and the first driver that has it.
const ELAPSED: &str = "cuEventElapsedTime_v2";
const DRIVER_MIN: (i32, i32) = (12, 8);
/// How often the bandwidth is measured.
const ROUNDS: usize = 10;
/// Random numbers that keys and values are filled with, again and again.
const FILL_ELEMENTS: usize = 8 << 20;

/// One operation, between two events.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    /// The kernel, and the shape where it has one.
    pub what: String,
    /// Bytes that it has to read and write.
    pub bytes: usize,
    /// Seconds.
    pub seconds: f64,
}

/// Which products are the library's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Products {
    /// As where nobody watches.
    #[default]
    Usual,
    /// All by our own kernels.
    Own,
    /// All by cuBLASLt, as far as it can.
    Library,
}

/// Times the steps of a [`Cuda`]. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    device: Device,
    products: Products,
    /// One more than operations, from the first that is timed on; kept from step to step.
    events: Vec<Event>,
    noted: Vec<(String, usize)>,
    lead: [Memory; 2],
    reads: usize,
    bandwidth: f64,
}

impl Clock {
    /// Measures the memory on the way.
    pub(super) fn new(device: &Device, kernels: &Kernels) -> Result<Clock, CudaError> {
        if device.driver() < DRIVER_MIN {
            let reason = format!("the driver is older than CUDA {DRIVER_MIN:?}");
            return Err(CudaError::Driver { call: ELAPSED, reason });
        }
        let (free, _) = device.memory()?;
        let bytes = (free / LEAD_PART).clamp(LEAD_BYTES[0], LEAD_BYTES[1]) / 16 * 16;
        let blocks = shape::probe(device.processors()).blocks[0] as usize;
        let random = Memory::of(device, &Random::new(1).halves(bytes / 2, 1.0))?;
        let lead = [random, Memory::new(device, blocks * 4)?];
        let mut inner = Inner {
            device: device.clone(),
            products: Products::default(),
            events: Vec::new(),
            noted: Vec::new(),
            lead,
            reads: 1,
            bandwidth: 0.0,
        };
        for _ in 0..ROUNDS {
            inner.begin(kernels)?;
            inner.read(kernels)?;
            inner.note("probe_read".to_owned(), bytes)?;
            let took = inner.take()?.first().map_or(f64::INFINITY, |one| one.seconds);
            inner.bandwidth = inner.bandwidth.max(bytes as f64 / took);
        }
        let reads = LEAD_S / (bytes as f64 / inner.bandwidth);
        inner.reads = (reads.ceil() as usize).clamp(1, LEAD_READS_MAX);
        Ok(Clock(Arc::new(Mutex::new(inner))))
    }

    /// Bytes that a read of memory gets in a second.
    pub fn bandwidth(&self) -> f64 {
        self.inner().bandwidth
    }

    /// Chooses whose products are timed from now on.
    pub fn set_products(&self, products: Products) {
        self.inner().products = products;
    }

    /// Waits for the device and gives what the latest step was timed to.
    ///
    /// # Errors
    /// What the driver says.
    pub fn take(&self) -> Result<Vec<Timed>, CudaError> {
        self.inner().take()
    }

    /// Rows beyond which products are the library's, where `usual` is so many.
    pub(super) fn library_above(&self, usual: usize) -> usize {
        match self.inner().products {
            Products::Usual => usual,
            Products::Own => usize::MAX,
            Products::Library => 0,
        }
    }

    /// Puts the lead in front of a step, and the first event behind it.
    pub(super) fn begin(&self, kernels: &Kernels) -> Result<(), CudaError> {
        self.inner().begin(kernels)
    }

    /// Puts an event behind what was just asked for.
    pub(super) fn note(&self, what: String, bytes: usize) -> Result<(), CudaError> {
        self.inner().note(what, bytes)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn begin(&mut self, kernels: &Kernels) -> Result<(), CudaError> {
        self.noted.clear();
        (0..self.reads).try_for_each(|_| self.read(kernels))?;
        self.event(0)
    }

    fn read(&self, kernels: &Kernels) -> Result<(), CudaError> {
        let [from, sink] = &self.lead;
        let args = [sink.into(), from.into(), Arg::Long(from.bytes() as u64 / 16)];
        // SAFETY: there are so many packs, and a word for each block.
        unsafe { kernels.launch("probe_read", shape::probe(self.device.processors()), &args) }
    }

    fn note(&mut self, what: String, bytes: usize) -> Result<(), CudaError> {
        self.noted.push((what, bytes));
        self.event(self.noted.len())
    }

    /// Records an event, made when it is first needed.
    fn event(&mut self, index: usize) -> Result<(), CudaError> {
        while self.events.len() <= index {
            self.events.push(Event::new(&self.device)?);
        }
        self.events[index].record()
    }

    fn take(&mut self) -> Result<Vec<Timed>, CudaError> {
        self.device.synchronize()?;
        let noted = std::mem::take(&mut self.noted);
        let pairs = self.events.windows(2);
        let timed = noted.into_iter().zip(pairs).map(|((what, bytes), pair)| {
            Ok(Timed { what, bytes, seconds: pair[1].since(&pair[0])? })
        });
        timed.collect()
    }
}

/// A moment in the order of work whose time the device notes.
#[derive(Debug)]
struct Event {
    device: Device,
    handle: sys::CUevent,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    fn new(device: &Device) -> Result<Event, CudaError> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: the driver writes a handle.
        CudaError::check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(Event { device: device.clone(), handle })
    }

    fn record(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        let stream = self.device.inner.stream;
        // SAFETY: both handles live.
        CudaError::check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream) })
    }

    /// Seconds from another event to this one; the device has come to both.
    fn since(&self, first: &Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles live, and the driver writes a number.
        let code =
            unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, first.handle, self.handle) };
        CudaError::check(ELAPSED, code)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: it was created, and is destroyed once; the driver waits where it has to.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

impl Cuda {
    /// The same, with a clock that times every operation of each step from now on. Steps are not
    /// recorded.
    ///
    /// # Errors
    /// What the driver says.
    pub fn timed(mut self) -> Result<(Cuda, Clock), CudaError> {
        let clock = Clock::new(&self.device, &self.kernels)?;
        self.clock = Some(clock.clone());
        self.eager = true;
        Ok((self, clock))
    }

    /// Fills keys and values with random numbers: what is all zeros runs faster.
    ///
    /// # Errors
    /// What the driver says.
    pub fn scatter(&self, pages: &Pages) -> Result<(), CudaError> {
        for memory in [pages.keys.memory(), pages.values.memory()] {
            let elements = FILL_ELEMENTS.min(memory.bytes() / 2);
            let random = Memory::of(&self.device, &Random::new(2).halves(elements, 1.0))?;
            let whole = memory.bytes() / random.bytes().max(1);
            (0..whole).try_for_each(|at| memory.copy_from(at * random.bytes(), &random))?;
            self.device.synchronize()?;
        }
        Ok(())
    }

    /// Tells the clock what was just asked for, if there is one.
    pub(super) fn note_time(
        &self,
        op: &'static str,
        what: impl FnOnce() -> (String, usize),
    ) -> Result<(), OpError> {
        let Some(clock) = &self.clock else { return Ok(()) };
        let (what, bytes) = what();
        clock.note(what, bytes).map_err(of(op))
    }
}

/// A product as it is told, and the bytes that it moves.
pub(super) fn product(name: &str, [m, n, k]: [usize; 3], wide: bool) -> (String, usize) {
    let out = if wide { 4 } else { 2 };
    (format!("{name} {m}x{n}x{k}"), 2 * (m * k + n * k) + out * m * n)
}

/// A kernel of a step that only decodes as it is told, and the bytes that it moves.
pub(super) fn moved(name: &str, args: &[Arg], plan: &Plan, heads: Heads) -> (String, usize) {
    let int = |at: usize| match args.get(at) {
        Some(Arg::Int(value)) => *value as usize,
        _ => 0,
    };
    let given = |at: usize| usize::from(!matches!(args.get(at), Some(Arg::Pointer(0)) | None));
    let shape = plan.shape;
    let (rows, wanted) = (shape.rows, shape.wanted);
    let bytes = match name {
        "gemm" | "gemm_small" => return product(name, [int(3), int(4), int(5)], int(6) != 0),
        "embed" => 4 * rows * int(5),
        "add_rms_norm" => 2 * rows * int(4) * (2 + 2 * given(1)),
        "gather_norm" => 4 * wanted * int(4),
        "add_bias" => 4 * rows * int(2),
        "silu_mul" => 6 * rows * int(2),
        "rope_write" => 4 * rows * heads.row(),
        "attention" => {
            let cache = 4 * plan.positions * heads.kv * heads.dim;
            cache + 2 * rows * heads.query_width() + sums(shape.tiles, heads)
        }
        "attention_combine" => sums(shape.tiles, heads) + 2 * rows * heads.query_width(),
        "sample_tiles" => 4 * wanted * int(3) + shape::sample_scratch(wanted, int(3)),
        "sample_rows" => shape::sample_scratch(wanted, int(6)),
        _ => 0,
    };
    (name.to_owned(), bytes)
}

/// Bytes of the sums that so many splits leave, of the heads that there are.
fn sums(tiles: usize, heads: Heads) -> usize {
    4 * tiles * heads.query * (heads.dim + 2)
}
