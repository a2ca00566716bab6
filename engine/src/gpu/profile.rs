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
use crate::model::parameters::Parameters;
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

/// The most rows of a step, for variants that have no limit.
const ANY: usize = usize::MAX;

/// The kernels that serve, and those that could, mostly without one of the things that do.
const VARIANTS: &[VariantKind] = &[
    kind("usual", SERVING, 1..=ANY, About::Everything),
    kind("cublaslt", LIBRARY, 1..=SMALL_ROWS, About::Library),
    kind("in order", Variant { spread: false, ..SERVING }, 1..=SMALL_ROWS, About::Products),
    kind("deterministic", DETERMINISTIC, 1..=ANY, About::Joints),
    kind("fixed", Variant { fitted: false, ..SERVING }, 1..=ANY, About::Attention),
    kind("upright", Variant { rotating: false, ..SERVING }, 1..=ROTATING_ROWS, About::Rotation),
    kind("wide", Variant { tall: false, ..SERVING }, 1..=ANY, About::Prompts),
    kind("late", Variant { early: false, ..SERVING }, 1..=ANY, About::Launches),
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
    let parameters = Parameters::load(&ops, &RandomWeights, config)?;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::double::exclusive_gpu;
    use crate::model::random::tests::config;

    fn options(batches: &[usize], context: usize) -> (tempfile::TempDir, ProfileOptions) {
        changed(json!({}), batches, context)
    }

    /// Options for a model with other fields in its configuration.
    fn changed(
        fields: serde_json::Value,
        batches: &[usize],
        context: usize,
    ) -> (tempfile::TempDir, ProfileOptions) {
        let (keep, config) = config(fields);
        let (gpu, batches) = (GpuOptions::default(), batches.to_vec());
        (keep, ProfileOptions { gpu, config, batches, context, steps: 2 })
    }

    #[test]
    fn every_operation_of_a_step_is_timed_on_cuda() {
        let double = exclusive_gpu();
        let before = double.get("graph_launches");
        let early_before = double.get("early_launches");
        let (_keep, options) = options(&[1, 17], 20);
        let profile = Profile::new(&options).unwrap();
        assert!(profile.rows.iter().all(|row| row.microseconds > 0.0) && profile.bandwidth > 0.0);
        let of = |case: &str, products: &str| -> Vec<&ProfileRow> {
            let wanted = |row: &&ProfileRow| row.case == case && row.products == products;
            profile.rows.iter().filter(wanted).collect()
        };
        // Norms twice a layer and at the end; attention rotates. Embedding, head, and two kernels
        // that draw.
        let one = of("batch 1, 20 positions each", "usual");
        assert_eq!(one.iter().map(|row| row.calls).sum::<usize>(), 2 * 7 + 1 + 1 + 1 + 2);
        let row = |rows: &[&ProfileRow], what: &str| -> (usize, usize) {
            let found = rows.iter().find(|row| row.what == what);
            found.map_or((0, 0), |row| (row.calls, row.bytes))
        };
        assert_eq!(row(&one, "gemm_spread 1x128x64"), (2, 2 * (64 + 128 * 64 + 128)));
        assert_eq!(row(&one, "gemm_spread 1x2000x64"), (1, 2 * (64 + 2000 * 64) + 4 * 2000));
        assert_eq!(row(&one, "gemm_spread_gated 1x192x64"), (2, 2 * (64 + 192 * 64 + 96)));
        let apart = of("batch 1, 20 positions each", "apart");
        assert_eq!(row(&apart, "silu_mul"), (2, 6 * 96));
        assert_eq!(row(&apart, "gemm_spread 1x192x64").0 + row(&apart, "attention_combine").0, 4);
        // Keys and values of 20 positions, a row in and out, and the sums of one split.
        let sums = 4 * 4 * (16 + 2);
        assert_eq!(row(&one, "rope_attention"), (2, 4 * 20 * 2 * 16 + 2 * 64 + sums));
        // Two launches in the place of one.
        let upright = of("batch 1, 20 positions each", "upright");
        let found: Vec<_> = upright.iter().map(|row| (row.what.as_str(), row.calls)).collect();
        assert_eq!(found, [("rope_write", 2), ("attention", 2)]);
        let library = of("batch 1, 20 positions each", "cublaslt");
        assert_eq!(row(&library, "cublaslt 1x128x64").0, 2);
        assert!(library.iter().all(|row| row.what.starts_with("cublaslt")));
        let in_order = of("batch 1, 20 positions each", "in order");
        assert_eq!(row(&in_order, "gemm_small 1x128x64").0, 2);
        let many = of("batch 17, 20 positions each", "usual");
        assert_eq!(row(&many, "cublaslt 32x128x64").0, 2);
        let same = of("batch 17, 20 positions each", "deterministic");
        assert_eq!(row(&same, "gemm_small_32 32x128x64").0, 2);
        assert_eq!(of("batch 17, 2 to 40 positions", "usual").len(), many.len());
        assert_eq!(row(&of("batch 17, 2 to 40 positions", "fixed"), "rope_attention").0, 2);

        let steps = |batch: usize| -> Vec<&str> {
            let case = format!("batch {batch}, 20 positions each");
            let steps = profile.steps.iter().filter(|step| step.case == case);
            steps.map(|step| step.variant).collect()
        };
        let one = ["cublaslt", "in order", "deterministic", "fixed", "upright", "late", "apart"];
        assert_eq!(steps(1), [&["usual"], &one[..]].concat());
        let many = ["usual", "deterministic", "fixed", "upright", "late", "apart"];
        assert_eq!(steps(17), many);
        assert!(profile.steps.iter().all(|step| step.microseconds > 0.0));
        assert!(double.get("graph_launches") > before);
        assert!(double.get("early_launches") > early_before);
    }

    #[test]
    fn prompts_are_timed_by_all_kernels_that_may_take_them_on_cuda() {
        let _double = exclusive_gpu();
        let (_keep, options) = options(&[1], 65);
        let profile = Profile::new(&options).unwrap();
        let one = "prompt of 128 rows";
        let behind = "prompt of 128 rows behind 512 positions";
        for (case, positions) in [(one, 128), (behind, 640)] {
            let of = |products: &str, what: &str| -> Vec<(usize, usize)> {
                let rows = profile.rows.iter().filter(|row| row.case == case);
                let wanted = rows.filter(|row| row.products == products && row.what == what);
                wanted.map(|row| (row.calls, row.bytes)).collect()
            };
            // Keys and values of all positions, and a result of each row.
            let bytes = 4 * positions * 2 * 16 + 2 * 128 * 64;
            assert_eq!(of("usual", "attention_tall"), [(2, bytes)]);
            assert_eq!(of("wide", "attention"), [(2, bytes)]);
            assert_eq!(of("usual", "rope_write").len() + of("wide", "rope_write").len(), 1);
            let steps = profile.steps.iter().filter(|step| step.case == case);
            let labels: Vec<&str> = steps.map(|step| step.variant).collect();
            assert_eq!(labels, ["usual", "wide"]);
        }
    }

    #[test]
    fn the_operations_of_a_mixture_are_timed_on_cuda() {
        let _double = exclusive_gpu();
        let mixture = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "norm_topk_prob": true,
        });
        let (_keep, options) = changed(mixture, &[1, 8], 20);
        let profile = Profile::new(&options).unwrap();
        let row = |case: &str, what: &str| -> (usize, usize) {
            let found = profile.rows.iter().find(|row| row.case == case && row.what == what);
            found.map_or((0, 0), |row| (row.calls, row.bytes))
        };
        let one = "batch 1, 20 positions each";
        // Two layers; one row uses two experts.
        assert_eq!(row(one, "gemm_small 1x4x64"), (2, 2 * (64 + 4 * 64) + 4 * 4));
        assert_eq!(row(one, "route"), (2, 4 * (4 + 2 * 2)));
        assert_eq!(row(one, "sort_pairs"), (2, 12 * 2));
        let gate_up = 2 * (2 * 64 * 64 + 2 * (64 + 64));
        assert_eq!(row(one, "expert_gemm_small 2x64x64"), (2, gate_up));
        assert_eq!(row(one, "silu_mul"), (2, 6 * 2 * 32));
        let joined = 2 * (2 * 64 * 64 + 2 * (32 + 64));
        assert_eq!(row(one, "expert_gemm_small_gated 2x64x64"), (2, joined));
        let down = 2 * (2 * 64 * 32 + 2 * (64 + 32));
        assert_eq!(row(one, "expert_gemm_small 2x64x32"), (2, down));
        assert_eq!(row(one, "combine_experts"), (2, 2 * 64 * 3));
        // Eight rows use all experts on average.
        let (_, bytes) = row("batch 8, 20 positions each", "expert_gemm_small 16x64x64");
        assert_eq!(bytes, 2 * (4 * 64 * 64 + 16 * (64 + 64)));
    }

    #[test]
    fn the_operations_of_a_hybrid_are_timed_on_cuda() {
        let _double = exclusive_gpu();
        let hybrid = json!({
            "architectures": ["Qwen3_5ForCausalLM"],
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
        });
        let (_keep, options) = changed(hybrid, &[1, 8], 20);
        let profile = Profile::new(&options).unwrap();
        let row = |case: &str, what: &str| -> (usize, usize) {
            let found = profile.rows.iter().find(|row| row.case == case && row.what == what);
            found.map_or((0, 0), |row| (row.calls, row.bytes))
        };
        let one = "batch 1, 20 positions each";
        // Queries and keys of 2 heads of 24, values and gates of 4 of 16, strengths and decays.
        let (channels, width) = (2 * 2 * 24 + 4 * 16, 4 * 16);
        assert_eq!(row(one, "gemm_spread 1x232x64").0, 1);
        assert_eq!(row(one, "convolve"), (1, 2 * channels * (1 + 3 + 3 + 1)));
        let state = 2 * 4 * 24 * width;
        let rows = 2 * (channels + width + 2 * 4);
        assert_eq!(row(one, "delta_rule"), (1, state + rows));
        assert_eq!(row(one, "gated_norm"), (1, 6 * width));
        assert_eq!(row(one, "rope_write_part"), (1, 4 * 128));
        assert_eq!(row(one, "sigmoid_mul"), (1, 6 * 64));
        assert_eq!(row("batch 8, 20 positions each", "delta_rule").1, 8 * (state + rows));
    }

    #[test]
    fn cases_without_room_are_left_out_on_cuda() {
        let _double = exclusive_gpu();
        let (_keep, options) = options(&[1, 1 << 20], 20);
        let profile = Profile::new(&options).unwrap();
        assert_eq!(profile.left_out.len(), 2);
        assert!(profile.left_out[0].starts_with("batch 1048576, 20 positions"));
        let fits = |case: &str| case.starts_with("batch 1, ") || case.starts_with("prompt of 32 ");
        assert!(profile.rows.iter().all(|row| fits(&row.case)));
    }
}
