//! Logits against goldens, and against themselves in other batches.

#[cfg(feature = "emulated")]
mod cuda;

use std::path::{Path, PathBuf};

use kernels::Cpu;
use serde_json::Value;

use super::forward::LogitRows;
use super::*;
use crate::model::cache::{SequenceCache, SequenceState};
use crate::model::folder::ModelFolder;
use crate::model::random;
use crate::schedule::pages::PagePool;
use crate::weights::files::WeightFiles;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages of a model in a test; a cache has the first of them by default.
const PAGES: usize = 64;

/// The slots of recurrent states of a hybrid in a test.
const STATES: usize = 16;

/// An empty cache that shares its pages, and its slot, with every other one.
fn cache() -> SequenceCache {
    let state = SequenceState { own: Some(0), ..SequenceState::default() };
    SequenceCache { pages: (0..PAGES as u32).collect(), state, ..SequenceCache::default() }
}

fn load(folder: &str) -> Model<Cpu> {
    let folder = root().join(folder);
    let config = ModelFolder::open(&folder).unwrap().model;
    let positions = config.positions;
    let weights = WeightFiles::open(&folder).unwrap();
    let ops = Cpu::default();
    let parameters = ModelParameters::load(&ops, &weights, &config).unwrap();
    let scratch = Scratch::new(&ops, &config, 0, 0).unwrap();
    let size = ModelCapacity { positions, pages: PAGES, adapters: 0, states: STATES };
    Model::new(ops, parameters, config, scratch, size).unwrap()
}

/// A model of the shape that `config` describes, with random weights.
pub(crate) fn made<O: Ops>(ops: O, config: &Path) -> Model<O> {
    let config = random::model_folder(config).unwrap().model;
    let parameters = match config.hybrid {
        Some(_) => ModelParameters::load(&ops, &random::RandomHybrid, &config),
        None => ModelParameters::load(&ops, &random::RandomWeights, &config),
    };
    let parameters = parameters.unwrap();
    let scratch = Scratch::new(&ops, &config, 64, 16).unwrap();
    let size =
        ModelCapacity { positions: config.positions, pages: PAGES, adapters: 0, states: STATES };
    Model::new(ops, parameters, config, scratch, size).unwrap()
}

const TINY: &str = "engine/models/tiny";
const TINY_MOE: &str = "engine/models/tiny-moe";
const TINY_HYBRID: &str = "engine/models/tiny-hybrid";
const LLAMA: &str = "tests/tapes/engine/llama";
const QWEN2: &str = "tests/tapes/engine/qwen2";

impl<O: Ops> Model<O> {
    /// Runs one step. Returns all its logits.
    pub(crate) fn forward(
        &mut self,
        chunks: &mut [SequenceChunk<'_>],
    ) -> Result<Vec<f32>, ModelError> {
        let wanted = |chunk: &SequenceChunk<'_>| match chunk.logit_rows {
            LogitRows::None => 0,
            LogitRows::Last => 1,
            LogitRows::All => chunk.tokens.len(),
        };
        let wanted: usize = chunks.iter().map(wanted).sum();
        self.run(chunks)?;
        Ok(self.logits(&(0..wanted).collect::<Vec<_>>())?)
    }
}

fn chunk<'a>(tokens: &'a [u32], cache: &'a mut SequenceCache) -> SequenceChunk<'a> {
    SequenceChunk {
        tokens,
        cache,
        logit_rows: LogitRows::All,
        adapter: None,
        draw: None,
        feedback: None,
    }
}

/// Logits of all positions, given in chunks of `size`.
fn logits(model: &mut Model<Cpu>, ids: &[u32], size: usize) -> Vec<f32> {
    let mut cache = cache();
    let mut all = Vec::new();
    for tokens in ids.chunks(size) {
        all.extend(model.forward(&mut [chunk(tokens, &mut cache)]).unwrap());
    }
    all
}

fn check_goldens(folder: &str, goldens: &str) {
    let mut model = load(folder);
    let text = std::fs::read_to_string(root().join("tests/tapes/engine").join(goldens)).unwrap();
    let goldens: Value = serde_json::from_str(&text).unwrap();
    for case in goldens["cases"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let positions: Vec<usize> = serde_json::from_value(case["positions"].clone()).unwrap();
        let rows: Vec<Vec<f64>> = serde_json::from_value(case["logits"].clone()).unwrap();
        let found = logits(&mut model, &ids, ids.len());
        for (position, expected) in positions.into_iter().zip(rows) {
            let found = &found[position * model.vocab()..][..model.vocab()];
            assert_eq!(found.len(), expected.len());
            let error = |(found, expected): (&f32, &f64)| (f64::from(*found) - expected).abs();
            let worst = found.iter().zip(&expected).map(error).fold(0.0, f64::max);
            assert!(worst <= 1e-4, "{} at {position}: off by {worst}", case["name"]);
        }
    }
}

#[test]
fn qwen3_logits_are_those_of_the_oracle() {
    check_goldens(TINY, "tiny_logits.json");
}

#[test]
fn logits_of_a_mixture_of_experts_are_those_of_the_oracle() {
    check_goldens(TINY_MOE, "tiny_moe_logits.json");
}

#[test]
fn logits_of_a_hybrid_are_those_of_the_oracle() {
    check_goldens(TINY_HYBRID, "tiny_hybrid_logits.json");
}

#[test]
fn llama_logits_are_those_of_the_oracle() {
    check_goldens(LLAMA, "llama_logits.json");
}

#[test]
fn qwen2_logits_with_yarn_are_those_of_the_oracle() {
    check_goldens(QWEN2, "qwen2_logits.json");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn logits_have_the_same_bits_in_any_chunks() {
    for folder in [TINY, TINY_MOE, TINY_HYBRID, LLAMA] {
        let mut model = load(folder);
        let ids: Vec<u32> = (0..53).map(|i| i * 7 % 61).collect();
        let whole = bits(&logits(&mut model, &ids, ids.len()));
        for size in [1, 2, 5, 16, 31] {
            assert_eq!(bits(&logits(&mut model, &ids, size)), whole, "chunks of {size}");
        }
    }
}

#[test]
fn logits_have_the_same_bits_in_any_batch() {
    check_batch(TINY);
    check_batch(TINY_MOE);
    check_batch(TINY_HYBRID);
}

fn check_batch(folder: &str) {
    let mut model = load(folder);
    let prompts: Vec<Vec<u32>> =
        (1..8_u32).map(|n| (0..n * 5).map(|i| (i * n * 13 + 3) % 393).collect()).collect();
    let alone: Vec<Vec<f32>> =
        prompts.iter().map(|ids| logits(&mut model, ids, ids.len())).collect();
    let mut pool = PagePool::new(PAGES, false);
    let mut caches: Vec<_> = prompts.iter().map(|_| SequenceCache::default()).collect();
    for ((slot, cache), ids) in (0..).zip(&mut caches).zip(&prompts) {
        assert!(pool.grow(cache, ids.len()));
        cache.state.own = Some(slot);
    }
    // All but the last token of odd prompts first, so that decodes and prompts meet in a step.
    let split: Vec<usize> = prompts
        .iter()
        .enumerate()
        .map(|(i, ids)| if i % 2 == 1 { ids.len() - 1 } else { 0 })
        .collect();
    let mut first: Vec<_> = caches
        .iter_mut()
        .zip(&prompts)
        .zip(&split)
        .filter(|(_, split)| **split > 0)
        .map(|((cache, ids), split)| SequenceChunk {
            tokens: &ids[..*split],
            cache,
            logit_rows: LogitRows::None,
            adapter: None,
            draw: None,
            feedback: None,
        })
        .collect();
    assert!(model.forward(&mut first).unwrap().is_empty());
    let mut second: Vec<_> = caches
        .iter_mut()
        .zip(&prompts)
        .zip(&split)
        .map(|((cache, ids), split)| chunk(&ids[*split..], cache))
        .collect();
    let together = model.forward(&mut second).unwrap();
    let expected: Vec<f32> = alone
        .iter()
        .zip(&split)
        .flat_map(|(logits, split)| logits[split * model.vocab()..].to_vec())
        .collect();
    assert_eq!(bits(&together), bits(&expected));
}

#[test]
fn only_wanted_rows_have_logits() {
    let mut model = load(TINY);
    let all = logits(&mut model, &[5, 6, 7], 3);
    let mut cache = cache();
    let last = SequenceChunk {
        tokens: &[5, 6, 7],
        cache: &mut cache,
        logit_rows: LogitRows::Last,
        adapter: None,
        draw: None,
        feedback: None,
    };
    let last = model.forward(&mut [last]).unwrap();
    assert_eq!(bits(&last), bits(&all[2 * model.vocab()..]));
}
