//! Where the time of a decode step goes: each operation between two events of the device.
//!
//! A step walks through all layers, so every product reads weights that no cache holds any more,
//! as in service. Weights, keys and values are random.

use std::collections::HashMap;
use std::path::PathBuf;

use kernels::cuda::clock::{Clock, Products, Timed};
use kernels::cuda::{Cuda, CudaError, CudaOptions};
use kernels::{Draw, OpError, Ops, PAGE};

use super::GpuOptions;
use crate::cache::SequenceCache;
use crate::config::ModelConfig;
use crate::device::on_gpu;
use crate::load::LoadError;
use crate::model::{Chunk, Model, Scratch, Size, Want};
use crate::parameters::Parameters;
use crate::random::{self, Random};
use crate::weights::Tensors;

/// The part of the memory that weights, keys and values take at most.
const SHARE: f64 = 0.9;
/// Steps before those that are timed: memory grows, and algorithms are chosen.
const WARM_STEPS: usize = 2;
/// Rows up to which products are our own as a rule.
const FEW_ROWS: usize = 16;
/// Uneven sequences are between a tenth of the usual length and twice it.
const UNEVEN: [usize; 2] = [10, 2];

/// The shape and sizes to profile.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    /// Which GPU.
    pub gpu: GpuOptions,
    /// A `config.json`: the model's shape.
    pub config: PathBuf,
    /// Sequences of a step.
    pub batches: Vec<usize>,
    /// Positions of each sequence.
    pub context: usize,
    /// Steps that are timed, at least one.
    pub steps: usize,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What the driver calls the GPU.
    pub name: String,
    /// Bytes a second that reading memory reaches.
    pub bandwidth: f64,
    /// Operations of each case, in the order of a step.
    pub rows: Vec<ProfileRow>,
    /// Cases that there was no room for.
    pub left_out: Vec<String>,
}

/// One operation in one case: the mean of all its calls.
#[derive(Clone, Debug)]
pub struct ProfileRow {
    /// Sequences and their lengths.
    pub case: String,
    /// Whose products: `usual`, `own` or `cublaslt`.
    pub products: &'static str,
    /// The operation.
    pub what: String,
    /// Calls of it in one step.
    pub calls: usize,
    /// Microseconds of a call.
    pub microseconds: f64,
    /// Bytes that a call has to read and write.
    pub bytes: usize,
}

impl ProfileRow {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.microseconds * 1e6
    }
}

/// Sequences that decode together.
struct Case {
    name: String,
    /// Positions of each, that of the token under way among them.
    lengths: Vec<usize>,
}

impl Case {
    /// Even and uneven lengths.
    fn both(batch: usize, context: usize) -> [Case; 2] {
        let (low, high) = ((context / UNEVEN[0]).max(1), context * UNEVEN[1]);
        let uneven = (0..batch).map(|n| low + 613 * (n + 1) % (high - low + 1)).collect();
        let even = format!("batch {batch}, {context} positions each");
        [
            Case { name: even, lengths: vec![context; batch] },
            Case { name: format!("batch {batch}, {low} to {high} positions"), lengths: uneven },
        ]
    }

    fn pages(&self) -> usize {
        self.lengths.iter().map(|length| length.div_ceil(PAGE)).sum()
    }

    /// Caches as if all but the last position had been computed.
    fn caches(&self) -> Vec<SequenceCache> {
        let mut next = 0;
        let cache = |length: &usize| {
            let first = next;
            next += length.div_ceil(PAGE) as u32;
            let pages = (first..next).collect();
            SequenceCache { pages, len: length - 1, ..SequenceCache::default() }
        };
        self.lengths.iter().map(cache).collect()
    }
}

/// All cases, as far as there is room; an even one and its uneven one go together.
struct Cases {
    fit: Vec<Case>,
    left_out: Vec<String>,
}

impl Cases {
    /// For so many pages.
    fn new(options: &ProfileOptions, room: u64) -> Cases {
        let (mut fit, mut left_out) = (Vec::new(), Vec::new());
        for batch in &options.batches {
            let both = Case::both(*batch, options.context);
            match both.iter().all(|case| case.pages() as u64 <= room) {
                true => fit.extend(both),
                false => left_out.extend(both.map(|case| case.name)),
            }
        }
        Cases { fit, left_out }
    }
}

impl Profile {
    /// Makes a model of the shape and times its steps.
    ///
    /// # Errors
    /// What is missing, what cannot be used, or what failed.
    pub fn new(options: &ProfileOptions) -> Result<Profile, LoadError> {
        let config = random::folder(&options.config)?.model;
        let device = super::device_options(&options.gpu);
        let cuda = CudaOptions { device, deterministic: false, eager: true };
        let cuda = Cuda::open(&cuda, config.heads).map_err(LoadError::NoGpu)?;
        let (ops, clock) = cuda.timed().map_err(failed)?;
        let name = ops.device().name().to_owned();
        let library = ops.device().libraries().cublaslt.is_some();
        let (cases, mut model) = prepare(ops, &config, options).map_err(on_gpu)?;
        let (ops, pages) = model.device();
        ops.scatter(pages).map_err(failed)?;
        let (bandwidth, left_out) = (clock.bandwidth(), cases.left_out);
        let mut profile = Profile { name, bandwidth, rows: Vec::new(), left_out };
        for (at, case) in cases.fit.iter().enumerate() {
            // Whose products there are makes no difference to uneven lengths.
            let other = match case.lengths.len() <= FEW_ROWS {
                _ if at % 2 == 1 || !library => None,
                true => Some(("cublaslt", Products::Library)),
                false => Some(("own", Products::Own)),
            };
            for (word, products) in [("usual", Products::Usual)].into_iter().chain(other) {
                clock.set_products(products);
                let timed = steps(&mut model, &clock, case, options.steps);
                let timed = timed.map_err(LoadError::Device).map_err(on_gpu)?;
                profile.add(case, word, &timed, options.steps);
            }
        }
        Ok(profile)
    }

    /// Adds the means of calls that are alike. Of steps with others' products only those count.
    fn add(&mut self, case: &Case, products: &'static str, timed: &[Timed], steps: usize) {
        let mut places = HashMap::new();
        for one in timed {
            let is_product = one.what.starts_with("gemm") || one.what.starts_with("cublaslt");
            if products != "usual" && !is_product {
                continue;
            }
            let at = *places.entry(&one.what).or_insert_with(|| {
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
            self.rows[at].calls += 1;
            self.rows[at].microseconds += one.seconds * 1e6;
        }
        for at in places.into_values() {
            let row = &mut self.rows[at];
            row.microseconds /= row.calls as f64;
            row.calls /= steps;
        }
    }
}

/// The cases that there is room for, and a model for them.
fn prepare(
    ops: Cuda,
    config: &ModelConfig,
    options: &ProfileOptions,
) -> Result<(Cases, Model<Cuda>), LoadError> {
    Random.check_room(config, ops.room(1.0)?)?;
    let parameters = Parameters::load(&ops, &Random, config)?;
    let scratch = Scratch::new(&ops, config, 0, 0)?;
    let page = (ops.page_bytes(config.heads) * config.layers) as u64;
    let cases = Cases::new(options, ops.room(SHARE)?.unwrap_or(0) / page);
    let positions = options.context * UNEVEN[1] + 1;
    let pages = cases.fit.iter().map(Case::pages).max().unwrap_or(0);
    let size = Size { positions, pages, adapters: 0 };
    Ok((cases, Model::new(ops, parameters, config.clone(), scratch, size)?))
}

/// What the driver said, as what kept a model from being profiled.
fn failed(error: CudaError) -> LoadError {
    on_gpu(LoadError::Device(error.of("profile")))
}

/// Runs the same step again and again, and gives what each operation of all timed ones took.
fn steps(
    model: &mut Model<Cuda>,
    clock: &Clock,
    case: &Case,
    steps: usize,
) -> Result<Vec<Timed>, OpError> {
    let mut all = Vec::new();
    for step in 0..WARM_STEPS + steps {
        let mut caches = case.caches();
        let chunks = caches.iter_mut().enumerate().map(|(index, cache)| Chunk {
            tokens: &[5],
            cache,
            want: Want::Last,
            adapter: None,
            draw: Some(greedy(index)),
            feedback: None,
        });
        model.run(&mut chunks.collect::<Vec<_>>())?;
        model.drawn()?;
        let timed = clock.take().map_err(|error| error.of("profile"))?;
        if step >= WARM_STEPS {
            all.extend(timed);
        }
    }
    Ok(all)
}

fn greedy(index: usize) -> Draw {
    Draw {
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
    use crate::double::turn;
    use crate::random::tests::config;

    fn options(batches: &[usize], context: usize) -> (tempfile::TempDir, ProfileOptions) {
        let (keep, config) = config(json!({}));
        let (gpu, batches) = (GpuOptions::default(), batches.to_vec());
        (keep, ProfileOptions { gpu, config, batches, context, steps: 2 })
    }

    #[test]
    fn every_operation_of_a_step_is_timed_on_cuda() {
        let _double = turn();
        let (_keep, options) = options(&[1, 17], 20);
        let profile = Profile::new(&options).unwrap();
        assert!(profile.rows.iter().all(|row| row.microseconds > 0.0) && profile.bandwidth > 0.0);
        let of = |case: &str, products: &str| -> Vec<&ProfileRow> {
            let wanted = |row: &&ProfileRow| row.case == case && row.products == products;
            profile.rows.iter().filter(wanted).collect()
        };
        // Norms twice a layer and at the end; embedding, head, and two kernels that draw.
        let one = of("batch 1, 20 positions each", "usual");
        assert_eq!(one.iter().map(|row| row.calls).sum::<usize>(), 2 * 10 + 1 + 1 + 1 + 2);
        let row = |rows: &[&ProfileRow], what: &str| -> (usize, usize) {
            let found = rows.iter().find(|row| row.what == what);
            found.map_or((0, 0), |row| (row.calls, row.bytes))
        };
        assert_eq!(row(&one, "gemm_small 1x128x64"), (2, 2 * (64 + 128 * 64 + 128)));
        assert_eq!(row(&one, "gemm_small 1x2000x64"), (1, 2 * (64 + 2000 * 64) + 4 * 2000));
        assert_eq!(row(&one, "silu_mul"), (2, 6 * 96));
        // Keys and values of 20 positions, a row in and out, and the sums of one split.
        let sums = 4 * 4 * (16 + 2);
        assert_eq!(row(&one, "attention"), (2, 4 * 20 * 2 * 16 + 2 * 64 + sums));
        let library = of("batch 1, 20 positions each", "cublaslt");
        assert_eq!(row(&library, "cublaslt 1x128x64").0, 2);
        assert!(library.iter().all(|row| row.what.starts_with("cublaslt")));
        let many = of("batch 17, 20 positions each", "usual");
        assert_eq!(row(&many, "cublaslt 32x128x64").0, 2);
        assert_eq!(row(&of("batch 17, 20 positions each", "own"), "gemm 32x128x64").0, 2);
        assert_eq!(of("batch 17, 2 to 40 positions", "usual").len(), many.len());
    }

    #[test]
    fn cases_without_room_are_left_out_on_cuda() {
        let _double = turn();
        let (_keep, options) = options(&[1, 1 << 20], 20);
        let profile = Profile::new(&options).unwrap();
        assert_eq!(profile.left_out.len(), 2);
        assert!(profile.left_out[0].starts_with("batch 1048576, 20 positions"));
        assert!(profile.rows.iter().all(|row| row.case.starts_with("batch 1, ")));
    }
}
