//! A device with all that a step needs beside the model: kernels, words, recorded launches.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::clock::Clock;
use super::device::{Device, DeviceOptions};
use super::drawn::Draws;
use super::error::{CudaError, NoCuda};
use super::graph::{Graph, Mark};
use super::launch::Kernels;
use super::memory::Pinned;
use super::plan::{Plan, Shape, padded};
use super::product::Products;
use super::shape::attention;
use super::source::FAMILIES;
use super::tensor::Live;
use crate::op::{Heads, OpError, PAGE, Step};

/// Elements of a head at most, and what they are a multiple of.
const HEAD_DIM_MAX: usize = 256;
const HEAD_DIM_UNIT: usize = 16;
/// Query heads that share a key and value head at most.
const GROUP_MAX: usize = attention::NARROW;
/// Words of a step that there is room for at least.
const WORDS_MIN: usize = 1 << 18;
/// Recorded steps that are kept at most; they take memory of the driver's.
const GRAPHS_MAX: usize = 256;

/// How the operations are done.
#[derive(Debug, Clone, Default)]
pub struct CudaOptions {
    /// Which device.
    pub device: DeviceOptions,
    /// Whether a row has the same bits in every batch: products by our own kernels only.
    pub deterministic: bool,
    /// Whether every step asks for its launches anew; to compare with.
    pub eager: bool,
}

/// The operations on one GPU, for heads of one shape.
#[derive(Debug)]
pub struct Cuda {
    pub(super) device: Device,
    pub(super) kernels: Arc<Kernels>,
    pub(super) products: Option<RefCell<Products>>,
    pub(super) heads: Heads,
    /// Times every operation, where somebody wants to know.
    pub(super) clock: Option<Clock>,
    pub(super) eager: bool,
    deterministic: bool,
    /// Whether weights are laid out on the host where the device has no room.
    pub(super) spills: bool,
    /// The step that runs, and where its words are on the device.
    pub(super) plan: Plan,
    pub(super) words: Live,
    turns: Vec<(Pinned<i32>, Mark)>,
    turn: usize,
    /// Sums of splits, between the kernels of attention.
    pub(super) partial: Live,
    pub(super) draws: Draws,
    /// Between the kernels of low-rank additions.
    pub(super) low_rank: RefCell<Live>,
    graphs: HashMap<Shape, Known>,
    /// What indexes may reach, as the operations have seen it.
    pub(super) bounds: Cell<Bounds>,
}

/// A shape that came up before.
#[derive(Debug)]
struct Known {
    how: How,
    /// How often memory that launches had been recorded with was given up before.
    epoch: u64,
}

/// How the next step of a shape runs.
#[derive(Debug)]
enum How {
    /// It came up once, and is recorded when it comes again.
    Seen,
    Recorded(Graph),
    /// It could not be recorded, mostly for want of memory, and is asked for launch by launch.
    Refused,
}

/// What indexes may reach. Nothing checks them on the device, and a recorded step is not asked for
/// operation by operation, so each step is checked before it runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) vocab: usize,
    pub(super) positions: usize,
    pub(super) pages: usize,
}

impl Cuda {
    /// Opens a device and compiles the kernels for heads of this shape.
    ///
    /// # Errors
    /// What is missing, with the way out.
    pub fn open(options: &CudaOptions, heads: Heads) -> Result<Cuda, NoCuda> {
        supports(heads)?;
        let device = Device::open(&options.device)?;
        let kernels = Arc::new(Kernels::load(&device, FAMILIES, heads.dim)?);
        let library = !options.deterministic && device.libraries().cublaslt.is_some();
        let products = library.then(|| Products::new(&device)).transpose()?;
        Ok(Cuda::with(device, kernels, options, (heads, products))?)
    }

    /// The same device for another thread, which uploads and reads weights while this one computes.
    /// Weights that the device has no room for beside those that serve wait on the host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn beside(&self) -> Result<Cuda, CudaError> {
        let (deterministic, eager) = (self.deterministic, self.eager);
        let options = CudaOptions { deterministic, eager, ..CudaOptions::default() };
        let kernels = Arc::clone(&self.kernels);
        let beside = Cuda::with(self.device.beside()?, kernels, &options, (self.heads, None))?;
        Ok(Cuda { spills: true, ..beside })
    }

    fn with(
        device: Device,
        kernels: Arc<Kernels>,
        options: &CudaOptions,
        (heads, products): (Heads, Option<Products>),
    ) -> Result<Cuda, CudaError> {
        let turn = |_| Ok::<_, CudaError>((Pinned::new(&device, 0)?, Mark::new(&device)?));
        let nothing = Bounds { vocab: usize::MAX, positions: usize::MAX, pages: usize::MAX };
        Ok(Cuda {
            products: products.map(RefCell::new),
            heads,
            clock: None,
            eager: options.eager,
            deterministic: options.deterministic,
            spills: false,
            plan: Plan::default(),
            words: Live::new(&device, 0)?,
            turns: (0..2).map(turn).collect::<Result<_, _>>()?,
            turn: 0,
            partial: Live::new(&device, 0)?,
            draws: Draws::new(&device)?,
            low_rank: RefCell::new(Live::new(&device, 0)?),
            graphs: HashMap::new(),
            bounds: Cell::new(nothing),
            kernels,
            device,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its kernels.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Whether a row has the same bits in every batch.
    pub fn is_deterministic(&self) -> bool {
        self.deterministic
    }

    /// Steps that were recorded and can run again.
    pub fn recorded(&self) -> usize {
        self.graphs.values().filter(|one| matches!(one.how, How::Recorded(_))).count()
    }

    /// Rows that a step of `rows` rows is padded to.
    pub fn padded(rows: usize) -> usize {
        padded(rows)
    }

    /// Runs one step; see [`crate::Ops::run`].
    pub(super) fn step(
        &mut self,
        step: &Step<'_>,
        walk: &mut dyn FnMut(&Self) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        self.check(step)?;
        if self.draws.is_full() && step.draws.iter().any(Option::is_some) {
            let reason = "the tokens of earlier steps were not taken".to_owned();
            return Err(OpError::Device { op: "run", reason });
        }
        self.plan = Plan::of(step, self.heads.group());
        self.prepare().map_err(|error| error.of("run"))?;
        self.walk_or_replay(walk)?;
        if self.plan.shape.draws {
            let asked = step.draws.iter().map(|draw| draw.as_ref().map(|draw| draw.top)).collect();
            self.draws.fetch(&self.plan, asked).map_err(|error| error.of("run"))?;
        }
        Ok(())
    }

    /// The first step of a shape is asked for as it is: memory grows, and algorithms are chosen.
    /// The second is recorded while it is, and from then on it runs as one. Where there is no
    /// memory for a recording, steps of its shape go on as the first did.
    fn walk_or_replay(
        &mut self,
        walk: &mut dyn FnMut(&Self) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let shape = self.plan.shape;
        if let Some(clock) = &self.clock {
            clock.begin(&self.kernels).map_err(|error| error.of("run"))?;
        }
        if self.eager || !self.plan.records {
            return walk(self);
        }
        let epoch = self.epoch();
        let known = self.graphs.remove(&shape).filter(|known| known.epoch == epoch);
        let recorded = match known.map(|known| known.how) {
            Some(How::Recorded(graph)) => Some(Ok(graph)),
            Some(How::Seen) => {
                Some(Graph::record(&self.device, || walk(self).map_err(|_| Unrecorded)))
            }
            Some(How::Refused) => Some(Err(Unrecorded)),
            None => None,
        };
        let played = recorded.map(|recorded| {
            recorded.and_then(|graph| graph.launch().map(|()| graph).map_err(Unrecorded::from))
        });
        let how = match played {
            Some(Ok(graph)) => How::Recorded(graph),
            other => {
                // Whatever kept it from being recorded, if it is more than that, is told here.
                walk(self)?;
                other.map_or(How::Seen, |_| How::Refused)
            }
        };
        if self.graphs.len() >= GRAPHS_MAX {
            self.graphs.clear();
        }
        self.graphs.insert(shape, Known { how, epoch: self.epoch() });
        Ok(())
    }

    fn epoch(&self) -> u64 {
        self.device.inner.epoch.load(Ordering::Relaxed)
    }

    /// Gives back what was kept for steps to come: recordings, and room between kernels.
    pub(super) fn give_back(&mut self) -> Result<(), CudaError> {
        self.graphs.clear();
        self.partial = Live::new(&self.device, 0)?;
        self.low_rank.replace(Live::new(&self.device, 0)?);
        self.draws.tiles.replace(Live::new(&self.device, 0)?);
        Ok(())
    }

    /// Brings the step's words to the device, and makes room for what lies between kernels.
    fn prepare(&mut self) -> Result<(), CudaError> {
        let count = self.plan.words.len();
        let (pinned, mark) = &mut self.turns[self.turn];
        self.turn = 1 - self.turn;
        // What was written there two steps ago may still be on its way.
        mark.wait()?;
        let room = count.next_power_of_two().max(WORDS_MIN);
        if pinned.len() < count {
            *pinned = Pinned::new(&self.device, room)?;
        }
        self.words.reserve(room * 4)?;
        pinned[..count].copy_from_slice(&self.plan.words);
        // SAFETY: this memory is not changed before the mark behind its copy.
        unsafe { self.words.memory().write_later(pinned, count)? };
        mark.set()?;
        let shape = self.plan.shape;
        let splits = if shape.decodes > 0 { shape.tiles } else { 0 };
        self.partial.reserve(attention::partial_bytes(splits, self.heads))?;
        if shape.draws {
            self.draws.reserve(&self.device, shape)?;
        }
        Ok(())
    }

    /// Every index must be within its table.
    fn check(&self, step: &Step<'_>) -> Result<(), OpError> {
        let Bounds { vocab, positions, pages } = self.bounds.get();
        let count = step.ids.len();
        let inside = |op, index: usize, rows: usize| {
            if index < rows { Ok(()) } else { Err(OpError::Index { op, index, rows }) }
        };
        step.ids.iter().try_for_each(|id| inside("embed", *id as usize, vocab))?;
        let drawn = self.draws.ids.memory().bytes() / 4;
        step.feedback.iter().flatten().try_for_each(|from| inside("embed", *from, drawn))?;
        step.positions.iter().try_for_each(|at| inside("rope_write", *at, positions))?;
        step.wanted.iter().try_for_each(|row| inside("gather_norm", *row, count))?;
        for span in step.spans.iter().filter(|span| !span.rows.is_empty()) {
            inside("rope_write", span.rows.end - 1, count)?;
            inside("rope_write", span.start + span.rows.len() - 1, span.pages.len() * PAGE)?;
            let used = &span.pages[..(span.start + span.rows.len()).div_ceil(PAGE)];
            used.iter().try_for_each(|page| inside("rope_write", *page as usize, pages))?;
        }
        Ok(())
    }
}

/// There is no recording. Why does not matter: the step is asked for without one.
struct Unrecorded;

impl From<CudaError> for Unrecorded {
    fn from(_: CudaError) -> Unrecorded {
        Unrecorded
    }
}

/// Heads that the kernels are made for.
fn supports(heads: Heads) -> Result<(), NoCuda> {
    let dim = heads.dim;
    let fits = (HEAD_DIM_UNIT..=HEAD_DIM_MAX).contains(&dim) && dim.is_multiple_of(HEAD_DIM_UNIT);
    if fits && heads.group() <= GROUP_MAX {
        return Ok(());
    }
    Err(NoCuda::Heads { dim, group: heads.group() })
}
