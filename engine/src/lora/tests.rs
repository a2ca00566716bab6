//! Adapters against PEFT's results, adapters side by side, and refused ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::Cpu;
use serde_json::{Value, json};

use super::*;
use crate::config::ModelConfig;
use crate::model::cache::SequenceCache;
use crate::model::folder::ModelFolder;
use crate::model::forward::{LogitRows, Scratch, SequenceChunk};
use crate::model::parameters::ModelParameters;
use crate::model::{Model, ModelCapacity};
use crate::weights::files::WeightFiles;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn tiny() -> PathBuf {
    root().join("engine/models/tiny")
}

fn taped(name: &str) -> PathBuf {
    root().join("tests/tapes/engine/lora").join(name)
}

fn config() -> ModelConfig {
    ModelFolder::open(&tiny()).unwrap().model
}

fn adapter(number: u64, name: &str) -> Arc<Adapter> {
    let path = taped(name);
    let layers = read_adapter(&path, &config(), 64).unwrap();
    let name: Arc<str> = name.into();
    let (hash, base) = (checksum(&layers), "default".into());
    Arc::new(Adapter { number, version: Arc::clone(&name), base, hash, name, path, layers })
}

const PAGES: usize = 32;

fn model(adapters: usize) -> Model<Cpu> {
    let weights = WeightFiles::open(&tiny()).unwrap();
    let size = ModelCapacity { positions: 128, pages: PAGES, adapters, states: 0 };
    let ops = Cpu::default();
    let parameters = ModelParameters::load(&ops, &weights, &config()).unwrap();
    let scratch = Scratch::new(&ops, &config(), 0, 0).unwrap();
    Model::new(ops, parameters, config(), scratch, size).unwrap()
}

/// An empty cache with eight of the pages.
fn cache(index: u32) -> SequenceCache {
    SequenceCache { pages: (8 * index..8 * index + 8).collect(), ..SequenceCache::default() }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logits of all positions of some sequences, in steps of `size` tokens of each.
fn logits(
    model: &mut Model<Cpu>,
    asks: &[(&[u32], Option<&Arc<Adapter>>)],
    step: usize,
) -> Vec<Vec<f32>> {
    let mut caches: Vec<SequenceCache> = (0..asks.len() as u32).map(cache).collect();
    let mut all = vec![Vec::new(); asks.len()];
    let longest = asks.iter().map(|(ids, _)| ids.len()).max().unwrap();
    for start in (0..longest).step_by(step) {
        let mut chunks = Vec::new();
        for ((ids, adapter), cache) in asks.iter().zip(&mut caches) {
            let tokens = &ids[start.min(ids.len())..(start + step).min(ids.len())];
            chunks.push(SequenceChunk {
                tokens,
                cache,
                logit_rows: LogitRows::All,
                adapter: *adapter,
                draw: None,
                feedback: None,
            });
        }
        let counts: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len()).collect();
        let rows = model.forward(&mut chunks).unwrap();
        let mut rows = rows.as_slice();
        for (all, count) in all.iter_mut().zip(counts) {
            let (own, rest) = rows.split_at(count * model.vocab());
            all.extend_from_slice(own);
            rows = rest;
        }
    }
    all
}

fn goldens() -> Value {
    let text = std::fs::read_to_string(root().join("tests/tapes/engine/lora.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids() -> Vec<u32> {
    serde_json::from_value(goldens()["ids"].clone()).unwrap()
}

#[test]
fn logits_are_those_of_peft() {
    let (goldens, mut model, ids) = (goldens(), model(2), ids());
    let plain = logits(&mut model, &[(&ids, None)], ids.len());
    for (number, name) in ["every", "some"].into_iter().enumerate() {
        let adapter = adapter(number as u64, name);
        let found = logits(&mut model, &[(&ids, Some(&adapter))], ids.len());
        let positions = goldens["positions"].as_array().unwrap();
        for (position, expected) in
            positions.iter().zip(goldens["logits"][name].as_array().unwrap())
        {
            let at = position.as_u64().unwrap() as usize * model.vocab();
            let expected = expected.as_array().unwrap();
            assert_eq!(expected.len(), model.vocab());
            let (mut worst, mut moved) = (0.0_f64, 0.0_f64);
            for (id, expected) in expected.iter().enumerate() {
                let expected = expected.as_f64().unwrap();
                worst = worst.max((f64::from(found[0][at + id]) - expected).abs());
                moved = moved.max((f64::from(plain[0][at + id]) - expected).abs());
            }
            assert!(worst <= 1e-4, "{name} at {position}: off by {worst}");
            assert!(moved > 0.1, "{name} at {position} changes the model by {moved} only");
        }
    }
}

#[test]
fn sequences_of_several_adapters_have_the_bits_of_each_alone() {
    let (mut model, ids) = (model(2), ids());
    let (every, some) = (adapter(1, "every"), adapter(2, "some"));
    let (short, long) = (&ids[..7], &ids[..]);
    let asks = [(long, None), (short, Some(&every)), (long, Some(&some)), (long, Some(&every))];
    let alone: Vec<Vec<f32>> =
        asks.iter().flat_map(|ask| logits(&mut model, &[*ask], ask.0.len())).collect();
    for step in [1, 5, long.len()] {
        let together = logits(&mut model, &asks, step);
        for (together, alone) in together.iter().zip(&alone) {
            assert_eq!(bits(together), bits(alone), "steps of {step}");
        }
    }
}

#[test]
fn a_slot_is_used_again_when_nobody_holds_its_adapter() {
    let (mut model, ids) = (model(1), ids());
    let every = adapter(1, "every");
    let first = logits(&mut model, &[(&ids, Some(&every))], 4);
    let some = adapter(2, "some");
    let mut full = cache(0);
    let mut chunk = [SequenceChunk {
        tokens: &ids,
        cache: &mut full,
        logit_rows: LogitRows::Last,
        adapter: Some(&some),
        draw: None,
        feedback: None,
    }];
    let refused = model.forward(&mut chunk).unwrap_err();
    assert_eq!(refused.to_string(), "all 1 slots for adapters are in use");
    drop(every);
    let second = logits(&mut model, &[(&ids, Some(&some))], 4);
    drop(some);
    assert_ne!(bits(&first[0]), bits(&second[0]));
    // What the second left alone is not the first's any more.
    let fresh = adapter(2, "some");
    let mut other = self::model(1);
    let expected = logits(&mut other, &[(&ids, Some(&fresh))], 4);
    assert_eq!(bits(&second[0]), bits(&expected[0]));
}

/// A copy of a taped adapter with some fields of its configuration changed.
fn changed(folder: &Path, changes: Value) {
    let source = taped("some");
    std::fs::copy(
        source.join("adapter_model.safetensors"),
        folder.join("adapter_model.safetensors"),
    )
    .unwrap();
    let text = std::fs::read_to_string(source.join("adapter_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

fn refusal(folder: &Path) -> String {
    let error = read_adapter(folder, &config(), 64).unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[test]
fn what_would_be_another_model_is_refused_by_field() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (json!({"bias": "all"}), "field `bias` is `all`"),
        (json!({"use_dora": true}), "field `use_dora` is `true`"),
        (json!({"use_next_idea": {"a": 1}}), "field `use_next_idea` is `{\"a\":1}`"),
        (json!({"modules_to_save": ["lm_head"]}), "field `modules_to_save`"),
        (json!({"target_parameters": ["mlp"]}), "field `target_parameters`"),
        (json!({"trainable_token_indices": [1]}), "field `trainable_token_indices`"),
        (json!({"alpha_pattern": {"q_proj": 2}}), "field `alpha_pattern`"),
        (json!({"lora_bias": true}), "field `lora_bias`"),
        (json!({"init_lora_weights": "pissa"}), "field `init_lora_weights` is `pissa`"),
        (json!({"peft_type": "IA3"}), "field `peft_type` is `IA3`"),
        (json!({"peft_type": null}), "field `peft_type` is missing"),
        (json!({"r": 0}), "field `r` is 0"),
        (json!({"lora_alpha": null}), "field `lora_alpha` is missing"),
        (json!({"r": 4}), "its rank is 3, but `r` is 4"),
    ];
    for (changes, expected) in cases {
        changed(folder.path(), changes.clone());
        let found = refusal(folder.path());
        assert!(found.contains(expected), "{changes}: {found}");
    }
    let same = [json!({"use_dora": false, "use_bdlora": null, "rank_pattern": {"q_proj": 3}})];
    for changes in same {
        changed(folder.path(), changes.clone());
        assert!(read_adapter(folder.path(), &config(), 64).is_ok(), "{changes}");
    }
}

type Shapes<'a> = &'a [(&'a str, &'a [usize])];

/// A safetensors file of zeros.
fn store(folder: &Path, tensors: Shapes<'_>) {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let end = at + 4 * shape.iter().product::<usize>();
        header.insert(
            (*name).to_owned(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + at, 0);
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
}

#[test]
fn tensors_that_have_no_place_are_refused_by_name() {
    const A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    const B: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
    let folder = tempfile::tempdir().unwrap();
    changed(folder.path(), json!({}));
    let head = "base_model.model.lm_head.lora_A.weight";
    let magnitude = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector";
    let tenth = "base_model.model.model.layers.10.self_attn.q_proj.lora_A.weight";
    let padded = "base_model.model.model.layers.01.self_attn.q_proj.lora_A.weight";
    let cases: [(Shapes<'_>, &str); 9] = [
        (&[(head, &[3, 96])], "`base_model.model.lm_head.lora_A.weight`"),
        (&[(magnitude, &[96])], "only lora_A and lora_B of self_attn.q_proj"),
        (&[(tenth, &[3, 96])], "the model has 3 layers"),
        (&[(padded, &[3, 96])], "only lora_A and lora_B"),
        (&[(A, &[3, 95]), (B, &[96, 3])], "its shape is [3, 95], not [r, 96]"),
        (&[(A, &[3, 96]), (B, &[3, 96])], "its shape is [3, 96], not [96, r]"),
        (&[(A, &[3, 96])], "its lora_B is missing"),
        (&[(B, &[96, 3])], "its lora_A is missing"),
        (&[], "has nothing to add"),
    ];
    for (tensors, expected) in cases {
        store(folder.path(), tensors);
        let found = refusal(folder.path());
        assert!(found.contains(expected), "{found}");
    }
    changed(folder.path(), json!({"rank_pattern": {"q_proj": 2}}));
    store(folder.path(), &[(A, &[2, 96]), (B, &[96, 5])]);
    assert!(refusal(folder.path()).contains("its rank is 5, but that of lora_A is 2"));
    store(folder.path(), &[(A, &[65, 96]), (B, &[96, 65])]);
    assert!(refusal(folder.path()).contains("more than `max_lora_rank` = 64 allows"));
}

#[test]
fn additions_to_experts_are_refused_and_those_to_attention_work() {
    let config = ModelFolder::open(&tiny().with_file_name("tiny-moe")).unwrap().model;
    let folder = tempfile::tempdir().unwrap();
    changed(folder.path(), json!({"r": 2}));
    let read = |tensors: Shapes<'_>| {
        store(folder.path(), tensors);
        read_adapter(folder.path(), &config, 64)
    };
    let name = |layer: &str| format!("base_model.model.model.layers.{layer}.lora_A.weight");
    for (layer, columns) in [
        ("1.mlp.experts.3.gate_proj", 96),
        ("2.mlp.experts.0.down_proj", 64),
        ("1.mlp.gate", 96),
        ("1.mlp.gate_proj", 96),
    ] {
        let name = name(layer);
        let refused = read(&[(&name, &[2, columns])]).unwrap_err().to_string();
        assert!(refused.contains(&name) && refused.contains("mixture of experts"), "{refused}");
    }
    for (layer, rows) in [("0.mlp.gate_proj", 288), ("1.self_attn.q_proj", 96)] {
        let (down, up) = (name(layer), name(layer).replace("lora_A", "lora_B"));
        assert!(read(&[(&down, &[2, 96]), (&up, &[rows, 2])]).is_ok(), "{layer}");
    }
}

#[test]
fn a_folder_that_is_not_whole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).starts_with("No adapter found for /"));
    changed(folder.path(), json!({}));
    let weights = folder.path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    assert!(refusal(folder.path()).contains("is not a whole safetensors file"));
    std::fs::remove_file(&weights).unwrap();
    assert!(refusal(folder.path()).contains("cannot read"));
    std::fs::write(folder.path().join("adapter_config.json"), "{").unwrap();
    assert!(refusal(folder.path()).contains("is not JSON"));
}
