//! The time that each operation of a step takes on the device, by events between the operations.
//!
//! If the device has finished a launch before the host starts the next one, the measured time
//! includes the wait. So every timed step begins with a lead: long reads of memory, during which
//! the host starts the whole step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cublaslt::ProductShape;
use super::device::Device;
use super::device::event::CudaEvent;
use super::device::memory::Memory;
use super::error::CudaError;
use super::grid;
use super::kernels::{Arg, Kernels};
use super::program::source::FP8_END;
use super::step::plan::{StepPlan, StepShape};
use super::tensor::CudaPages;
use super::variant::Variant;
use crate::op::{ExpertChoice, Heads, KvFormat, PAGE};
use crate::random::Random;

/// Minimum seconds of a lead: more than a host needs to start the longest step.
const LEAD_S: f64 = 0.012;
/// Maximum reads of a lead: a stream takes about a thousand launches before the host must wait.
const LEAD_READS_MAX: usize = 120;
/// A lead reads this part of the free memory, within these limits in bytes. Little of it fits the
/// cache.
const LEAD_PART: usize = 256;
const LEAD_BYTES: [usize; 2] = [1 << 16, 512 << 20];
/// The function that returns the time between two events, and the first driver that has it.
const ELAPSED: &str = "cuEventElapsedTime_v2";
const DRIVER_MIN: (i32, i32) = (12, 8);
/// Rounds in which the bandwidth is measured.
const ROUNDS: usize = 10;

/// The time of one operation, between two events.
#[derive(Debug, Clone, PartialEq)]
pub struct OpTime {
    /// The kernel, with the shape of a product.
    pub what: String,
    /// Bytes that it has to read and write.
    pub bytes: usize,
    /// Seconds.
    pub seconds: f64,
}

/// Times the steps of a [`Cuda`](super::Cuda). Clones share their state.
#[derive(Debug, Clone)]
pub struct Profiler(Arc<Mutex<ProfilerState>>);

#[derive(Debug)]
struct ProfilerState {
    device: Device,
    variant: Variant,
    /// True if whole steps are timed, as they are recorded.
    whole: bool,
    /// One event more than operations; kept from step to step.
    events: Vec<CudaEvent>,
    /// The label and the bytes of each operation of the step.
    marked: Vec<(String, usize)>,
    lead: LeadMemory,
    lead_reads: usize,
    /// Bandwidth of reads of memory, in bytes a second.
    bandwidth: f64,
}

/// The memory that a lead reads, and a word for each block of the kernel that reads it.
#[derive(Debug)]
struct LeadMemory {
    source: Memory,
    sink: Memory,
}

impl Profiler {
    /// Creates a profiler, and measures the bandwidth of the memory.
    pub(super) fn new(device: &Device, kernels: &Kernels) -> Result<Profiler, CudaError> {
        if device.driver() < DRIVER_MIN {
            let reason = format!("the driver is older than CUDA {DRIVER_MIN:?}");
            return Err(CudaError::Driver { call: ELAPSED, reason });
        }
        let mut state = ProfilerState {
            device: device.clone(),
            variant: Variant::SERVING,
            whole: false,
            events: Vec::new(),
            marked: Vec::new(),
            lead: LeadMemory::new(device)?,
            lead_reads: 1,
            bandwidth: 0.0,
        };

        // The best round counts: in the first ones the clock of the device may still be low.
        let bytes = state.lead.source.bytes();
        for _ in 0..ROUNDS {
            state.begin(kernels)?;
            state.read_lead(kernels)?;
            state.mark("probe_read".to_owned(), bytes)?;
            let seconds = state.take()?.first().map_or(f64::INFINITY, |op| op.seconds);
            state.bandwidth = state.bandwidth.max(bytes as f64 / seconds);
        }

        let reads = LEAD_S / (bytes as f64 / state.bandwidth);
        state.lead_reads = (reads.ceil() as usize).clamp(1, LEAD_READS_MAX);
        Ok(Profiler(Arc::new(Mutex::new(state))))
    }

    /// Bandwidth of reads of memory, in bytes a second.
    pub fn bandwidth(&self) -> f64 {
        self.state().bandwidth
    }

    /// Chooses the kernels of further steps.
    pub fn set_variant(&self, variant: Variant) {
        self.state().variant = variant;
    }

    /// Times whole steps from now on, which are then recorded; or each operation.
    pub fn set_whole(&self, whole: bool) {
        self.state().whole = whole;
    }

    /// True if whole steps are timed.
    pub(super) fn is_whole(&self) -> bool {
        self.state().whole
    }

    /// Waits for the device and returns the times of the latest step's operations.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn take(&self) -> Result<Vec<OpTime>, CudaError> {
        self.state().take()
    }

    /// The kernels of the next step, as chosen.
    pub(super) fn variant(&self) -> Variant {
        self.state().variant
    }

    /// Starts the lead of a step, and records the first event behind it.
    pub(super) fn begin(&self, kernels: &Kernels) -> Result<(), CudaError> {
        self.state().begin(kernels)
    }

    /// Records an event behind the last launch, if each operation is timed.
    pub(super) fn mark(&self, label: String, bytes: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        if state.whole { Ok(()) } else { state.mark(label, bytes) }
    }

    /// Records an event behind the step, if whole steps are timed.
    pub(super) fn end(&self) -> Result<(), CudaError> {
        let mut state = self.state();
        if state.whole { state.mark("step".to_owned(), 0) } else { Ok(()) }
    }

    fn state(&self) -> MutexGuard<'_, ProfilerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeadMemory {
    fn new(device: &Device) -> Result<LeadMemory, CudaError> {
        let (free, _) = device.memory()?;
        let bytes = (free / LEAD_PART).clamp(LEAD_BYTES[0], LEAD_BYTES[1]) / 16 * 16;
        let blocks = grid::probe(device.processors()).blocks[0] as usize;
        let source = Memory::of(device, &Random::new(1).halves(bytes / 2, 1.0))?;
        Ok(LeadMemory { source, sink: Memory::new(device, blocks * 4)? })
    }
}

impl ProfilerState {
    fn begin(&mut self, kernels: &Kernels) -> Result<(), CudaError> {
        self.marked.clear();
        (0..self.lead_reads).try_for_each(|_| self.read_lead(kernels))?;
        self.record_event(0)
    }

    fn read_lead(&self, kernels: &Kernels) -> Result<(), CudaError> {
        let LeadMemory { source, sink } = &self.lead;
        let args = [sink.into(), source.into(), Arg::Long(source.bytes() as u64 / 16)];
        // SAFETY: the source has so many packs of 16 bytes, the sink a word for each block.
        unsafe { kernels.launch("probe_read", grid::probe(self.device.processors()), &args) }
    }

    fn mark(&mut self, label: String, bytes: usize) -> Result<(), CudaError> {
        self.marked.push((label, bytes));
        self.record_event(self.marked.len())
    }

    /// Records an event, which is created when it is first needed.
    fn record_event(&mut self, index: usize) -> Result<(), CudaError> {
        while self.events.len() <= index {
            self.events.push(CudaEvent::timed(&self.device)?);
        }
        self.events[index].record()
    }

    fn take(&mut self) -> Result<Vec<OpTime>, CudaError> {
        self.device.synchronize()?;
        std::mem::take(&mut self.marked)
            .into_iter()
            .zip(self.events.windows(2))
            .map(|((what, bytes), pair)| {
                Ok(OpTime { what, bytes, seconds: pair[1].seconds_since(&pair[0])? })
            })
            .collect()
    }
}

/// The label of a product, and the bytes that it moves.
pub(super) fn product_cost(name: &str, shape: ProductShape) -> (String, usize) {
    let ProductShape { m, n, k, f32_out } = shape;
    let out_size = if f32_out { 4 } else { 2 };
    (format!("{name} {m}x{n}x{k}"), 2 * (m * k + n * k) + out_size * m * n)
}

/// The label of a product of a mixture with `[n, k]` matrices, and the bytes that it moves: those
/// of as many experts as rows that choose at random use on average.
pub(super) fn expert_product_cost(
    name: &str,
    rows: usize,
    choice: ExpertChoice,
    [n, k]: [usize; 2],
) -> (String, usize) {
    let ExpertChoice { experts, chosen, .. } = choice;
    let unused = (1.0 - chosen as f64 / experts as f64).powf(rows as f64);
    let used = (experts as f64 * (1.0 - unused)).round() as usize;
    let pairs = rows * chosen;
    let width = if name.ends_with("_gated") { n / 2 } else { n };
    (format!("{name} {pairs}x{n}x{k}"), 2 * (used * n * k + pairs * (width + k)))
}

/// The label of the gate of so many rows, and the bytes that it moves.
pub(super) fn silu_cost(rows: usize, width: usize) -> (String, usize) {
    ("silu_mul".to_owned(), 6 * rows * width)
}

/// The label of a kernel of a step that only decodes, or has prompts only, and the bytes that it
/// moves.
pub(super) fn kernel_cost(
    name: &str,
    args: &[Arg],
    plan: &StepPlan,
    (heads, kv): (Heads, KvFormat),
) -> (String, usize) {
    let StepShape { rows, wanted, tiles, spans, decodes, .. } = plan.shape;
    let at = |index| int_arg(args, index);

    // Indexes of arguments are those of the kernels' parameters.
    let bytes = match name.trim_end_matches(FP8_END) {
        _ if name.starts_with("gemm") && name.ends_with("_gated") => {
            let (m, n, k) = (int_arg(args, 3), int_arg(args, 4), int_arg(args, 5));
            return (format!("{name} {m}x{n}x{k}"), 2 * (m * k + n * k) + m * n);
        }
        _ if name.starts_with("gemm") => {
            let (m, n, k) = (int_arg(args, 3), int_arg(args, 4), int_arg(args, 5));
            let f32_out = int_arg(args, 6) != 0;
            return product_cost(name, ProductShape { m, n, k, f32_out });
        }
        "embed" => 4 * rows * int_arg(args, 5),
        "add_rms_norm" => {
            // With a delta, both are read, and the sum is written beside the result.
            let tensors = if has_pointer(args, 1) { 4 } else { 2 };
            2 * rows * int_arg(args, 4) * tensors
        }
        // The sum is read and written, the part and the input are read.
        "add_gated" => 8 * rows * int_arg(args, 4),
        "gather_norm" => 4 * wanted * int_arg(args, 4),
        "add_bias" => 4 * rows * int_arg(args, 2),
        "silu_mul" => return silu_cost(rows, int_arg(args, 2)),
        // Logits, the chosen experts and their weights.
        "route" => 4 * rows * (int_arg(args, 5) + 2 * int_arg(args, 6)),
        // The experts of pairs, their rows and their places.
        "sort_pairs" => 12 * int_arg(args, 4),
        "combine_experts" => 2 * rows * int_arg(args, 5) * (int_arg(args, 6) + 1),
        "rope_write" | "rope_write_part" => 4 * rows * heads.row(),
        "sigmoid_mul" => 6 * rows * int_arg(args, 2),
        "convolve" => {
            // A row in and out, and of each sequence what was before and what is kept.
            let (channels, taps) = (int_arg(args, 8), int_arg(args, 9));
            4 * channels * (rows + spans * (taps - 1))
        }
        "delta_rule" => {
            let [key_heads, value_heads, key_dim, value_dim] = [8, 9, 10, 11].map(at);
            let (keys, values) = (2 * key_heads * key_dim, value_heads * value_dim);
            8 * spans * key_dim * values + 2 * rows * (keys + 2 * values + 2 * value_heads)
        }
        "gated_norm" => 6 * rows * int_arg(args, 3) * int_arg(args, 4),
        "attention" | "attention_tall" | "rope_attention" => {
            // Keys and values. Only decoded rows have splits whose sums are written.
            let cache = 2 * CudaPages::side_bytes(heads, kv) / PAGE * plan.positions;
            let sums = if decodes > 0 { split_sums_bytes(tiles, heads) } else { 0 };
            cache + 2 * rows * heads.query_width() + sums
        }
        "attention_combine" => split_sums_bytes(tiles, heads) + 2 * rows * heads.query_width(),
        "sample_tiles" => {
            let vocab = int_arg(args, 4);
            4 * wanted * vocab + grid::sample_scratch(wanted, vocab)
        }
        "sample_rows" => grid::sample_scratch(wanted, int_arg(args, 8)),
        _ => 0,
    };
    (name.to_owned(), bytes)
}

/// The value of an integer argument; zero if it is not one.
fn int_arg(args: &[Arg], index: usize) -> usize {
    match args.get(index) {
        Some(Arg::Int(value)) => *value as usize,
        _ => 0,
    }
}

/// True if an argument exists and is not a null pointer.
fn has_pointer(args: &[Arg], index: usize) -> bool {
    !matches!(args.get(index), Some(Arg::Pointer(0)) | None)
}

/// Bytes of the sums of all splits and heads, between the two kernels of attention.
fn split_sums_bytes(tiles: usize, heads: Heads) -> usize {
    4 * tiles * heads.query * (heads.dim + 2)
}
