//! [`Cuda`]: a device with everything that a step needs except the model. Steps are uploaded as
//! words, then launched operation by operation or replayed as a recorded graph.

pub(super) mod draws;
pub(super) mod host_pages;
mod parts;
pub(super) mod plan;
mod recordings;
pub(super) mod shaping;
pub(super) mod tiles;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::check;
use super::cublaslt::CublasLt;
use super::device::arena::PinnedArena;
use super::device::event::CudaEvent;
use super::device::graph::Graph;
use super::device::memory::Pinned;
use super::device::ring::PinnedRing;
use super::device::{Device, DeviceOptions};
use super::error::{CudaError, NoCuda};
use super::grid::attention::{self, SplitRule};
use super::grid::tall::{self, TallKernel, TallRule};
use super::kernels::Kernels;
use super::profiler::Profiler;
use super::program::source::families_for;
use super::tensor::Storage;
use super::variant::Variant;
use crate::op::{
    Heads, KvFormat, OpError, PAGE, Span, Step, check_index, check_slots, check_span_states,
};
use draws::Draws;
use host_pages::HostPages;
use parts::ProductParts;
use plan::{StepPlan, padded};
use recordings::{Recordings, Replay};
use shaping::Shaping;
use tiles::TileRules;

/// Maximum number of elements of a head, and the number of which it is a multiple.
const HEAD_DIM_MAX: usize = 256;
const HEAD_DIM_UNIT: usize = 16;
/// Maximum number of query heads that share a key and value head.
const GROUP_MAX: usize = attention::NARROW;
/// Minimum number of words that the buffers for steps have room for.
const WORDS_MIN: usize = 1 << 18;

/// Options of [`Cuda`].
#[derive(Debug, Clone, Default)]
pub struct CudaOptions {
    /// The device.
    pub device: DeviceOptions,
    /// Gives a row the same bits in every batch: see [`Variant::deterministic`].
    pub deterministic: bool,
    /// Launches every step operation by operation, to compare with recorded steps.
    pub eager: bool,
    /// The numbers in which keys and values are kept.
    pub kv: KvFormat,
    /// The kernels, where there is a choice.
    pub variant: Variant,
}

/// The operations on one GPU, for heads of one shape.
#[derive(Debug)]
pub struct Cuda {
    pub(super) device: Device,
    pub(super) kernels: Arc<Kernels>,
    pub(super) library: Option<RefCell<CublasLt>>,
    pub(super) heads: Heads,
    /// The numbers in which keys and values are kept.
    pub(super) kv: KvFormat,
    /// Times every operation, if it is set.
    pub(super) profiler: Option<Profiler>,
    pub(super) eager: bool,
    deterministic: bool,
    /// True if weights may stay on the host for want of memory on the device.
    pub(super) spills: bool,
    /// The host's memory for weights that leave the device.
    pub(super) arena: PinnedArena,
    /// Through which vectors of weights go to the device.
    pub(super) ring: RefCell<PinnedRing>,
    /// The running step, and its words on the device.
    pub(super) plan: StepPlan,
    pub(super) words: Storage,
    /// Two buffers from which words are copied in turn.
    uploads: [Upload; 2],
    next_upload: usize,
    /// Sums of splits, between the two kernels of attention.
    pub(super) partial_sums: Storage,
    /// Zeros, with which the blocks of attention count each other.
    pub(super) arrived: Storage,
    /// Sums that `attention_tall` leaves while it sums the next split.
    pub(super) totals: Storage,
    pub(super) draws: Draws,
    pub(super) shaping: Shaping,
    /// Pages in the host's memory, if any are kept there.
    pub(super) host_pages: Option<HostPages>,
    /// Between the two kernels of low-rank additions.
    pub(super) lora_scratch: RefCell<Storage>,
    /// Between the blocks of a product that divide its depth.
    pub(super) parts: RefCell<ProductParts>,
    recordings: Recordings,
    /// Number of steps whose words were copied.
    steps: u64,
    /// The kernels without a profiler, and those of the running step.
    usual: Variant,
    /// True if products of warpgroups were tried at the start, and were wrong.
    warpgroups_are_wrong: bool,
    pub(super) variant: Variant,
    /// Bounds of indexes, as the operations of earlier steps have set them.
    pub(super) bounds: Cell<Bounds>,
}

/// Pinned memory for the words of a step, and the end of their copy.
#[derive(Debug)]
struct Upload {
    words: Pinned<i32>,
    copied: CudaEvent,
}

/// Bounds of indexes. The device does not check them, and a replayed step does not call the
/// operations, so each step is checked before it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(super) vocab: usize,
    pub(super) positions: usize,
    pub(super) pages: usize,
    pub(super) slots: usize,
    /// Slots of recurrent states.
    pub(super) states: usize,
}

impl Bounds {
    /// Those of operations that were not called yet.
    const NONE: Bounds = Bounds {
        vocab: usize::MAX,
        positions: usize::MAX,
        pages: usize::MAX,
        slots: usize::MAX,
        states: usize::MAX,
    };
}

impl Cuda {
    /// Opens a device and loads the kernels for heads of this shape.
    ///
    /// # Errors
    /// [`NoCuda`], which says what is missing and how to get it.
    pub fn open(options: &CudaOptions, heads: Heads) -> Result<Cuda, NoCuda> {
        check_heads(heads)?;
        let device = Device::open(&options.device)?;
        let kernels = Arc::new(Kernels::load(&device, &families_for(options.kv), heads.dim)?);
        let has_library = !options.deterministic && device.libraries().cublaslt.is_some();
        let library = has_library.then(|| CublasLt::new(&device)).transpose()?;
        let mut cuda = Cuda::new(device, kernels, options, heads)?;
        cuda.try_warpgroups()?;
        Ok(Cuda { library: library.map(RefCell::new), ..cuda })
    }

    /// Tries products of warpgroups on this device, and does without them if they are wrong: they
    /// depend on how the hardware reads what is only described to it.
    fn try_warpgroups(&mut self) -> Result<(), CudaError> {
        if self.tall_kernel() == TallKernel::Warpgroups {
            self.usual.warpgroups = check::warpgroups_are_right(&self.kernels, self.heads.dim)?;
            self.warpgroups_are_wrong = !self.usual.warpgroups;
            self.variant = self.usual;
        }
        Ok(())
    }

    /// Opens a second stream of the same device for another thread, which uploads and reads weights
    /// while this one computes. Weights for which the device has no room beside the live ones stay
    /// on the host.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn with_new_stream(&self) -> Result<Cuda, CudaError> {
        let (deterministic, eager) = (self.deterministic, self.eager);
        let options = CudaOptions { deterministic, eager, kv: self.kv, ..CudaOptions::default() };
        let device = self.device.with_new_stream()?;
        let cuda = Cuda::new(device, Arc::clone(&self.kernels), &options, self.heads)?;
        Ok(Cuda { spills: true, ..cuda })
    }

    fn new(
        device: Device,
        kernels: Arc<Kernels>,
        options: &CudaOptions,
        heads: Heads,
    ) -> Result<Cuda, CudaError> {
        let is_free = !options.deterministic;
        let variant = if is_free { options.variant } else { options.variant.deterministic() };

        Ok(Cuda {
            library: None,
            heads,
            kv: options.kv,
            profiler: None,
            eager: options.eager,
            deterministic: options.deterministic,
            spills: false,
            arena: PinnedArena::default(),
            ring: RefCell::new(PinnedRing::new(&device)),
            plan: StepPlan::default(),
            words: Storage::new(&device, 0)?,
            uploads: [Upload::new(&device)?, Upload::new(&device)?],
            next_upload: 0,
            partial_sums: Storage::new(&device, 0)?,
            arrived: Storage::new(&device, 0)?,
            totals: Storage::new(&device, 0)?,
            draws: Draws::new(&device)?,
            shaping: Shaping::new(&device)?,
            host_pages: None,
            lora_scratch: RefCell::new(Storage::new(&device, 0)?),
            parts: RefCell::new(ProductParts::new(&device)?),
            recordings: Recordings::default(),
            steps: 0,
            usual: variant,
            warpgroups_are_wrong: false,
            variant,
            // Each operation sets its bounds when it is first called.
            bounds: Cell::new(Bounds::NONE),
            kernels,
            device,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernels of the device.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// True if products of warpgroups are wrong on this device, and are not used.
    pub fn warpgroups_are_wrong(&self) -> bool {
        self.warpgroups_are_wrong
    }

    /// True if a row has the same bits in every batch.
    pub fn is_deterministic(&self) -> bool {
        self.deterministic
    }

    /// Number of recorded steps.
    pub fn recorded(&self) -> usize {
        self.recordings.recorded()
    }

    /// Number of rows to which a step of `rows` rows is padded.
    pub fn padded(rows: usize) -> usize {
        padded(rows)
    }

    /// Runs one step; see [`crate::Ops::run`].
    pub(super) fn run_step(
        &mut self,
        step: &Step<'_>,
        walk: &mut dyn FnMut(&Self) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        self.check_indexes(step)?;
        if self.draws.is_full() && step.draws.iter().any(Option::is_some) {
            let reason = "the tokens of earlier steps were not taken".to_owned();
            return Err(OpError::Device { op: "run", reason });
        }

        self.variant = self.profiler.as_ref().map_or(self.usual, Profiler::variant);
        self.plan = StepPlan::of(step, self.heads.group(), self.tile_rules());
        self.upload_plan().map_err(|error| error.of("run"))?;
        self.begin_profile().map_err(|error| error.of("run"))?;
        self.walk_or_replay(walk)?;
        self.end_profile().map_err(|error| error.of("run"))?;
        if self.plan.shape.draws {
            let requested =
                step.draws.iter().map(|draw| draw.as_ref().map(|draw| draw.top)).collect();
            self.draws.fetch(self.plan.top, requested).map_err(|error| error.of("run"))?;
        }
        Ok(())
    }

    /// Launches the operations of a step, or replays them.
    ///
    /// The first step of a shape is launched as it is, because memory grows and algorithms are
    /// chosen in it. The second is recorded, and all later ones are replayed. If there is no memory
    /// for a recording, steps of the shape are launched as the first until it is tried again.
    fn walk_or_replay(
        &mut self,
        walk: &mut dyn FnMut(&Self) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let is_whole = self.profiler.as_ref().is_some_and(Profiler::is_whole);
        if (self.eager && !is_whole) || !self.plan.records {
            return walk(self);
        }

        let (key, now) = ((self.plan.shape, self.variant), self.steps);
        let graph = match self.recordings.take(&key, self.epoch(), now) {
            Some(Replay::Graph(graph)) => Some(Ok(graph)),
            Some(Replay::RecordNext) => {
                Some(Graph::record(&self.device, || walk(self).map_err(|_| RecordingFailed)))
            }
            Some(Replay::Failed(at)) => {
                self.recordings.keep(key, Replay::Failed(at), self.epoch(), now);
                return walk(self);
            }
            None => None,
        };
        let replayed = graph.map(|graph| graph.and_then(launched));
        let replay = match replayed {
            Some(Ok(graph)) => Replay::Graph(graph),
            other => {
                // If the failure was not one of recording alone, this reports it.
                walk(self)?;
                other.map_or(Replay::RecordNext, |_| Replay::Failed(now))
            }
        };
        self.recordings.keep(key, replay, self.epoch(), now);
        Ok(())
    }

    fn tile_rules(&self) -> TileRules {
        let (processors, heads) = (self.device.processors(), self.heads);
        let mut rules = TileRules::FIXED;
        if self.variant.strides > 0 {
            rules.splits = SplitRule::of(self.variant.strides);
        } else if self.variant.fitted {
            rules.splits = SplitRule::filling(processors, heads.kv);
        }
        if self.variant.tall {
            rules.tall = TallRule::filling(processors, heads, self.tall_kernel());
        }
        rules
    }

    /// The kernel that walks over tall tiles.
    pub(super) fn tall_kernel(&self) -> TallKernel {
        // Products of warpgroups read bf16 where it was loaded to.
        match self.variant.warpgroups && self.kv == KvFormat::Native {
            true => TallKernel::fastest(self.device.capability(), self.heads.dim),
            false => TallKernel::Warps,
        }
    }

    fn begin_profile(&self) -> Result<(), CudaError> {
        self.profiler.as_ref().map_or(Ok(()), |profiler| profiler.begin(&self.kernels))
    }

    fn end_profile(&self) -> Result<(), CudaError> {
        self.profiler.as_ref().map_or(Ok(()), Profiler::end)
    }

    fn epoch(&self) -> u64 {
        self.device.inner.epoch.load(Ordering::Relaxed)
    }

    /// Frees recorded steps and the scratch memory between kernels.
    pub(super) fn free_scratch(&mut self) -> Result<(), CudaError> {
        self.recordings.clear();
        self.partial_sums = Storage::new(&self.device, 0)?;
        self.arrived = Storage::new(&self.device, 0)?;
        self.totals = Storage::new(&self.device, 0)?;
        self.lora_scratch.replace(Storage::new(&self.device, 0)?);
        self.parts.replace(ProductParts::new(&self.device)?);
        self.draws.tiles.replace(Storage::new(&self.device, 0)?);
        self.shaping = Shaping::new(&self.device)?;
        Ok(())
    }

    /// Copies the step's words to the device, and grows the scratch memory between kernels.
    fn upload_plan(&mut self) -> Result<(), CudaError> {
        let count = self.plan.words.len();
        let upload = &mut self.uploads[self.next_upload];
        // The copy of two steps ago may still be reading this memory.
        upload.copied.wait()?;

        let capacity = count.next_power_of_two().max(WORDS_MIN);
        if upload.words.len() < count {
            upload.words = Pinned::new(&self.device, capacity)?;
        }
        self.words.reserve(capacity * 4)?;
        upload.words[..count].copy_from_slice(&self.plan.words);
        // SAFETY: this memory is not changed before the event behind its copy.
        unsafe { self.words.memory().write_later(&upload.words, count)? };
        upload.copied.record()?;
        self.next_upload = 1 - self.next_upload;
        self.steps += 1;

        let shape = self.plan.shape;
        let splits = if shape.decodes > 0 { shape.tiles } else { 0 };
        self.partial_sums.reserve(attention::partial_bytes(splits, self.heads))?;
        self.reserve_arrived(splits)?;
        let waits = shape.tall > 0 && self.tall_kernel() == TallKernel::Warps;
        let waiting = if waits { shape.rows } else { 0 };
        self.totals.reserve(tall::totals_bytes(waiting, self.heads))?;
        if shape.draws {
            self.draws.reserve(&self.device, shape.wanted)?;
        }
        Ok(())
    }

    /// Grows the counters of attention, which are zero between its launches.
    fn reserve_arrived(&mut self, tiles: usize) -> Result<(), CudaError> {
        let bytes = attention::arrived_bytes(tiles, self.heads);
        if self.arrived.bytes() >= bytes {
            return Ok(());
        }
        self.arrived.reserve(bytes)?;
        self.arrived.memory().fill(0)
    }

    /// Checks that every index of a step is within its table.
    fn check_indexes(&self, step: &Step<'_>) -> Result<(), OpError> {
        let Bounds { vocab, positions, pages, slots, states } = self.bounds.get();
        let (count, drawn) = (step.ids.len(), self.draws.rows());
        step.ids.iter().try_for_each(|id| check_index("embed", *id as usize, vocab))?;
        step.feedback.iter().flatten().try_for_each(|from| check_index("embed", *from, drawn))?;
        step.positions.iter().try_for_each(|at| check_index("rope_write", *at, positions))?;
        check_slots(step.adapters, slots)?;
        step.wanted.iter().try_for_each(|row| check_index("gather_norm", *row, count))?;
        step.spans.iter().try_for_each(|span| check_span(span, count, pages))?;
        match step.states {
            [] => Ok(()),
            _ => check_span_states("convolve", step, count, states),
        }
    }
}

/// Checks that a span lies within the `rows` of a step, and its positions within existing pages.
fn check_span(span: &Span<'_>, rows: usize, pages: usize) -> Result<(), OpError> {
    if span.rows.is_empty() {
        return Ok(());
    }
    let op = "rope_write";
    let end = span.start + span.rows.len();
    check_index(op, span.rows.end - 1, rows)?;
    check_index(op, end - 1, span.pages.len() * PAGE)?;
    let used = &span.pages[..end.div_ceil(PAGE)];
    used.iter().try_for_each(|page| check_index(op, *page as usize, pages))
}

impl Upload {
    fn new(device: &Device) -> Result<Upload, CudaError> {
        Ok(Upload { words: Pinned::new(device, 0)?, copied: CudaEvent::new(device)? })
    }
}

/// A step could not be recorded. The reason does not matter: it is launched without a recording.
struct RecordingFailed;

impl From<CudaError> for RecordingFailed {
    fn from(_: CudaError) -> RecordingFailed {
        RecordingFailed
    }
}

fn launched(mut graph: Graph) -> Result<Graph, RecordingFailed> {
    graph.launch()?;
    Ok(graph)
}

/// Checks that the kernels support heads of this shape.
fn check_heads(heads: Heads) -> Result<(), NoCuda> {
    let dim = heads.dim;
    let fits = (HEAD_DIM_UNIT..=HEAD_DIM_MAX).contains(&dim) && dim.is_multiple_of(HEAD_DIM_UNIT);
    if fits && heads.group() <= GROUP_MAX {
        return Ok(());
    }
    Err(NoCuda::Heads { dim, group: heads.group() })
}
