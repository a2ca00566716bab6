//! A profile of steps that decode or compute a prompt: each operation is timed between two events
//! of the device, and whole steps are, recorded if they decode, with the kernels that serve and
//! with those that could.
//!
//! A step runs all layers, so every product reads weights that the GPU's cache has lost by then, as
//! in service. Weights, keys and values are random.

mod cases;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use kernels::cuda::grid::gemm::SMALL_ROWS;
use kernels::cuda::profiler::{OpTime, Profiler};
use kernels::cuda::variant::{ProductChoice, ROTATING_ROWS, Variant};
use kernels::cuda::{Cuda, CudaError, CudaOptions};
use kernels::{DrawParams, OpError, Ops};

use self::cases::{CaseKind, StepCase, StepCases};
use super::GpuOptions;
use crate::config::ModelConfig;
use crate::device::gpu_load_error;
use crate::error::{LoadError, ModelError};
use crate::model::forward::{LogitRows, Scratch, SequenceChunk};
use crate::model::parameters::ModelParameters;
use crate::model::random::{RandomWeights, model_folder};
use crate::model::{Model, ModelCapacity};
use crate::options::CacheBytes;
use crate::weights::TensorSource;

/// The fraction of the memory that weights, keys and values may take.
const MEMORY_SHARE: f64 = 0.9;
/// Untimed steps, in which buffers grow and algorithms are chosen.
const WARM_STEPS: usize = 2;

/// The shape and sizes to profile.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    /// The GPU.
    pub gpu: GpuOptions,
    /// A `config.json` with the model's shape.
    pub config: PathBuf,
    /// The numbers of sequences in a step.
    pub batches: Vec<usize>,
    /// Positions of each sequence.
    pub context: usize,
    /// True if prompts are timed, too.
    pub prompts: bool,
    /// The number of timed steps, at least one.
    pub steps: usize,
}

/// The profile of a model on a GPU.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name of the GPU, as the driver has it.
    pub name: String,
    /// The measured memory bandwidth, bytes a second.
    pub bandwidth: f64,
    /// The operations of each case, in the order of a step.
    pub rows: Vec<ProfileRow>,
    /// Whole steps of each case.
    pub steps: Vec<ProfileStep>,
    /// The cases that did not fit into memory.
    pub left_out: Vec<String>,
}

/// One operation in one case, averaged over its calls.
#[derive(Clone, Debug)]
pub struct ProfileRow {
    /// The number of sequences and their lengths, or the prompt.
    pub case: String,
    /// The kernels, by the labels of `VARIANTS`.
    pub products: &'static str,
    /// The operation.
    pub what: String,
    /// Calls in one step.
    pub calls: usize,
    /// Microseconds of a call.
    pub microseconds: f64,
    /// Bytes that a call reads and writes.
    pub bytes: usize,
}

/// A whole step in one case, recorded and replayed.
#[derive(Clone, Debug)]
pub struct ProfileStep {
    /// The number of sequences and their lengths, or the prompt.
    pub case: String,
    /// The kernels, by the labels of `VARIANTS`.
    pub variant: &'static str,
    /// Microseconds of the fastest step.
    pub microseconds: f64,
}

impl ProfileRow {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.microseconds * 1e6
    }
}

/// Kernels that a profile times.
struct VariantKind {
    label: &'static str,
    variant: Variant,
    /// The numbers of rows for which it differs from what serves.
    rows: RangeInclusive<usize>,
    about: About,
}

/// The operations in which a variant differs from what serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// It is what serves.
    Everything,
    Products,
    /// Products by cuBLASLt, or in its place.
    Library,
    Attention,
    /// Attention, and the rotation in front of it.
    Rotation,
    /// Attention of prompts.
    Prompts,
    /// Several operations that could be one.
    Joints,
    /// Launches, which lie between operations: only whole steps differ.
    Launches,
}

/// The most rows of a step, or bytes of a product, for variants that have no limit.
const ANY: usize = usize::MAX;

/// The numbers of rows of products whose depth blocks may divide.
const PARTS_ROWS: RangeInclusive<usize> = SMALL_ROWS + 1..=2 * SMALL_ROWS;

/// The kernels that serve, and those that could, mostly without one of the things that do.
const VARIANTS: &[VariantKind] = &[
    kind("usual", SERVING, 1..=ANY, About::Everything),
    kind("cublaslt", LIBRARY, 1..=SMALL_ROWS, About::Library),
    kind("in order", Variant { spread: false, ..SERVING }, 1..=SMALL_ROWS, About::Products),
    kind("deterministic", DETERMINISTIC, 1..=ANY, About::Joints),
    kind("fixed", Variant { fitted: false, ..SERVING }, 1..=ANY, About::Attention),
    kind("splits of 64", Variant { strides: 1, ..SERVING }, 1..=1, About::Attention),
    kind("splits of 128", Variant { strides: 2, ..SERVING }, 1..=1, About::Attention),
    kind("splits of 256", Variant { strides: 4, ..SERVING }, 1..=1, About::Attention),
    kind("upright", Variant { rotating: false, ..SERVING }, 1..=ROTATING_ROWS, About::Rotation),
    kind("warps", Variant { warpgroups: false, ..SERVING }, 1..=ANY, About::Prompts),
    kind("wide", Variant { tall: false, ..SERVING }, 1..=ANY, About::Prompts),
    kind("late", Variant { early_bytes: 0, ..SERVING }, 1..=ANY, About::Launches),
    // Large products, too.
    kind("early", Variant { early_bytes: ANY, ..SERVING }, 1..=ANY, About::Launches),
    kind("whole depth", Variant { split_bytes: 0, ..SERVING }, PARTS_ROWS, About::Products),
    kind("in parts", Variant { split_bytes: ANY, ..SERVING }, PARTS_ROWS, About::Products),
    // Each operation by itself.
    kind("apart", Variant { joined: false, ..SERVING }, 1..=ANY, About::Joints),
];

const SERVING: Variant = Variant::SERVING;
const LIBRARY: Variant = Variant { products: ProductChoice::Library, ..SERVING };
/// As with `--deterministic`.
const DETERMINISTIC: Variant = SERVING.deterministic();

const fn kind(
    label: &'static str,
    variant: Variant,
    rows: RangeInclusive<usize>,
    about: About,
) -> VariantKind {
    VariantKind { label, variant, rows, about }
}

impl VariantKind {
    /// True if it differs from what serves in a step of this case. Uneven lengths matter to
    /// attention only.
    fn is_for(&self, case: &StepCase, has_library: bool) -> bool {
        let about = self.about;
        match case.kind {
            CaseKind::Even => {
                let exists = has_library || about != About::Library;
                exists && about != About::Prompts && self.rows.contains(&case.sequences())
            }
            CaseKind::Uneven => {
                let is_about = [About::Everything, About::Attention, About::Rotation];
                is_about.contains(&about) && self.rows.contains(&case.sequences())
            }
            CaseKind::Prompt => matches!(about, About::Everything | About::Prompts),
        }
    }

    /// True if an operation may differ from what serves.
    fn changes(&self, operation: &str) -> bool {
        let is_product = operation.starts_with("gemm") || operation.starts_with("cublaslt");
        let is_attention = operation.contains("attention");
        let is_rotation = operation.starts_with("rope");
        match self.about {
            About::Everything => true,
            About::Products | About::Library => is_product,
            About::Attention | About::Prompts => is_attention,
            About::Rotation => is_attention || is_rotation,
            About::Launches => false,
            About::Joints => {
                is_product
                    || is_attention
                    || operation.contains("expert")
                    || operation == "silu_mul"
            }
        }
    }
}

impl Profile {
    /// Makes a random model of the shape and times its steps.
    ///
    /// # Errors
    /// Something is missing or cannot be used, or the device failed.
    pub fn new(options: &ProfileOptions) -> Result<Profile, LoadError> {
        let config = model_folder(&options.config)?.model;
        let device = super::device_options(&options.gpu);
        let cuda_options = CudaOptions { device, eager: true, ..CudaOptions::default() };
        let cuda = Cuda::open(&cuda_options, config.heads).map_err(LoadError::NoGpu)?;
        let (timed_cuda, clock) = cuda.profiled().map_err(cuda_failure)?;
        let name = timed_cuda.device().name().to_owned();
        let has_library = timed_cuda.device().libraries().cublaslt.is_some();

        let (cases, mut model) = prepare(timed_cuda, &config, options).map_err(gpu_load_error)?;
        let (ops, pages) = model.device_and_pages();
        ops.randomize(pages).map_err(cuda_failure)?;

        let (bandwidth, left_out) = (clock.bandwidth(), cases.left_out);
        let (rows, steps) = (Vec::new(), Vec::new());
        let mut profile = Profile { name, bandwidth, rows, steps, left_out };
        for case in &cases.fit {
            for kind in VARIANTS.iter().filter(|kind| kind.is_for(case, has_library)) {
                clock.set_variant(kind.variant);
                if kind.about != About::Launches {
                    let timed = time_steps(&mut model, &clock, case, options.steps);
                    profile.add(case, kind, &timed.map_err(model_failure)?, options.steps);
                }

                clock.set_whole(true);
                let timed = time_steps(&mut model, &clock, case, options.steps);
                clock.set_whole(false);
                profile.add_step(case, kind, &timed.map_err(model_failure)?);
            }
        }
        Ok(profile)
    }

    /// Adds the fastest of some whole steps.
    fn add_step(&mut self, case: &StepCase, kind: &VariantKind, timed: &[OpTime]) {
        let seconds = timed.iter().map(|step| step.seconds).fold(f64::INFINITY, f64::min);
        let (case, microseconds) = (case.name.clone(), seconds * 1e6);
        self.steps.push(ProfileStep { case, variant: kind.label, microseconds });
    }

    /// Adds a row for each operation that the variant is about, averaged over its calls.
    fn add(&mut self, case: &StepCase, kind: &VariantKind, timed: &[OpTime], steps: usize) {
        let products = kind.label;
        let mut row_of_operation = HashMap::new();
        for one in timed.iter().filter(|one| kind.changes(&one.what)) {
            let index = *row_of_operation.entry(&one.what).or_insert_with(|| {
                self.rows.push(ProfileRow {
                    case: case.name.clone(),
                    products,
                    what: one.what.clone(),
                    calls: 0,
                    microseconds: 0.0,
                    bytes: one.bytes,
                });
                self.rows.len() - 1
            });
            self.rows[index].calls += 1;
            self.rows[index].microseconds += one.seconds * 1e6;
        }

        // The sums become means of one call, and calls of one step.
        for index in row_of_operation.into_values() {
            let row = &mut self.rows[index];
            row.microseconds /= row.calls as f64;
            row.calls /= steps;
        }
    }
}

/// Makes a random model with pages for all cases that fit.
fn prepare(
    ops: Cuda,
    config: &ModelConfig,
    options: &ProfileOptions,
) -> Result<(StepCases, Model<Cuda>), LoadError> {
    RandomWeights.check_room(config, ops.free_memory(1.0)?)?;
    let parameters = ModelParameters::load(&ops, &RandomWeights, config)?;
    let scratch = Scratch::new(&ops, config, 0, 0)?;

    let free = ops.free_memory(MEMORY_SHARE)?.unwrap_or(0);
    let cases = StepCases::new(options, CacheBytes::of(&ops, config), free);
    let capacity = ModelCapacity {
        positions: cases.positions() + 1,
        pages: cases.pages(),
        adapters: 0,
        states: if config.hybrid.is_some() { cases.sequences() } else { 0 },
    };
    let model = Model::new(ops, parameters, config.clone(), scratch, capacity)?;
    Ok((cases, model))
}

fn cuda_failure(error: CudaError) -> LoadError {
    gpu_load_error(LoadError::Device(error.of("profile")))
}

fn model_failure(error: ModelError) -> LoadError {
    let device_error = match error {
        ModelError::Device(error) => error,
        other => OpError::Device { op: "profile", reason: other.to_string() },
    };
    gpu_load_error(LoadError::Device(device_error))
}

/// Runs the same step again and again. Returns the times of all operations of the timed steps.
fn time_steps(
    model: &mut Model<Cuda>,
    clock: &Profiler,
    case: &StepCase,
    steps: usize,
) -> Result<Vec<OpTime>, ModelError> {
    let tokens = vec![5; case.rows];
    let mut all = Vec::new();
    for step in 0..WARM_STEPS + steps {
        // Fresh caches, so that every step has the same lengths.
        let mut caches = case.caches();
        let mut chunks: Vec<SequenceChunk<'_>> = Vec::with_capacity(caches.len());
        for (index, cache) in caches.iter_mut().enumerate() {
            chunks.push(SequenceChunk {
                tokens: &tokens,
                cache,
                logit_rows: LogitRows::Last,
                adapter: None,
                draw: Some(greedy(index)),
                feedback: None,
            });
        }

        model.run(&mut chunks)?;
        // Waits for the step: the events are complete only then.
        model.drawn_tokens()?;
        let timed = clock.take().map_err(|error| error.of("profile"))?;
        if step >= WARM_STEPS {
            all.extend(timed);
        }
    }
    Ok(all)
}

fn greedy(index: usize) -> DrawParams {
    DrawParams {
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        top: None,
        raw: false,
        seed: index as u64,
        position: 0,
    }
}

#[cfg(feature = "emulated")]
#[cfg(test)]
mod tests;
