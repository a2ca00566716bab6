//! Incoming and staged weights, and the weights that other tests push.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use kernels::Cpu;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::staging::{StagingArea, WeightStaging};
use super::state::LabelWish;
use super::*;
use crate::model::cache::SequenceCache;
use crate::model::folder::ModelFolder;
use crate::model::forward::{LogitRows, Scratch, SequenceChunk};
use crate::model::parameters::ModelParameters;
use crate::model::{Model, ModelCapacity};
use crate::sample::score;
use crate::update::folder::take_folder;
use crate::update::incoming::IncomingTensor;
use crate::weights::files::WeightFiles;
use crate::weights::manifest::{ManifestRecorder, TensorDigest, WeightManifest};

/// Tensors by name: shape and elements.
pub(crate) type Named = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

pub(crate) fn tiny() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny")
}

/// The tiny model's weights, each changed a little depending on `number`; 0 leaves them as they
/// are.
pub(crate) fn variant(number: u32) -> Named {
    let file = std::fs::read(tiny().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let named = file.iter().map(|(name, view)| {
        assert_eq!(view.dtype(), Dtype::F32);
        let element = |(index, bytes): (usize, &[u8; 4])| {
            let wave = ((index as u32 % 1009) * (number + 7)) as f32;
            f32::from_le_bytes(*bytes) * (1.0 + 0.02 * number as f32 * wave.sin())
        };
        let values = view.data().as_chunks::<4>().0.iter().enumerate().map(element).collect();
        (name.to_owned(), (view.shape().to_vec(), values))
    });
    named.collect()
}

/// The bytes of elements in a type.
pub(crate) fn bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let bytes = |value: &f32| match dtype {
        Dtype::BF16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

/// A safetensors file.
pub(crate) fn file_of(named: &Named, dtype: Dtype) -> Vec<u8> {
    let data = named.iter().map(|(name, (shape, values))| (name, shape, bytes(values, dtype)));
    let data: Vec<_> = data.collect();
    let view = |(name, shape, bytes): &(&String, &Vec<usize>, Vec<u8>)| {
        ((*name).clone(), (*shape).clone(), bytes.clone())
    };
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = data.iter().map(view).collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// A folder with one file of weights.
pub(crate) fn folder_of(named: &Named) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = file_of(named, Dtype::F32);
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

/// The weights of a folder on the CPU, and their manifest.
pub(crate) fn loaded(folder: &Path) -> (ModelParameters<Cpu>, WeightManifest) {
    let config = ModelFolder::open(&tiny()).unwrap().model;
    let weights = WeightFiles::open(folder).unwrap();
    let recorder = ManifestRecorder::new(&weights, false);
    let parameters = ModelParameters::load(&Cpu::default(), &recorder, &config).unwrap();
    (parameters, recorder.into_manifest())
}

/// The models of several variants, to score texts with.
pub(crate) struct Truth {
    models: Vec<Model<Cpu>>,
}

impl Truth {
    pub(crate) fn new(count: u32) -> Truth {
        let model = |number| {
            let folder = folder_of(&variant(number));
            let config = ModelFolder::open(&tiny()).unwrap().model;
            let parameters = loaded(folder.path()).0;
            let size = ModelCapacity { positions: 1024, pages: 64, adapters: 0, states: 0 };
            let ops = Cpu::default();
            let scratch = Scratch::new(&ops, &config, 512, 64).unwrap();
            Model::new(ops, parameters, config, scratch, size).unwrap()
        };
        Truth { models: (0..count).map(model).collect() }
    }

    /// Bits of the model's own score of every token but the first, under the weights `which`.
    pub(crate) fn scores(&mut self, which: usize, tokens: &[u32]) -> Vec<u32> {
        let model = &mut self.models[which];
        let mut cache = SequenceCache { pages: (0..64).collect(), ..SequenceCache::default() };
        let chunk = SequenceChunk {
            tokens,
            cache: &mut cache,
            adapter: None,
            logit_rows: LogitRows::All,
            draw: None,
            feedback: None,
        };
        let logits = model.forward(&mut [chunk]).unwrap();
        let rows = logits.chunks_exact(model.vocab()).zip(&tokens[1..]);
        rows.map(|(row, id)| score(row, *id, 0).raw.to_bits()).collect()
    }
}

/// The tiny mixture's weights with a tensor for each expert, and with one for all of a layer.
pub(crate) fn mixture(change: f32) -> [Named; 2] {
    let file = std::fs::read(tiny_moe().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut single = Named::new();
    for (name, view) in file.iter() {
        let element = |bytes: &[u8; 2]| bf16::from_le_bytes(*bytes).to_f32() * change;
        let values = view.data().as_chunks::<2>().0.iter().map(element).collect();
        single.insert(name.to_owned(), (view.shape().to_vec(), values));
    }

    let mut joined = single.clone();
    joined.retain(|name, _| !name.contains(".experts."));
    for layer in [1, 2] {
        let prefix = format!("model.layers.{layer}.mlp.experts");
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..8 {
            let of = |name: &str| &single[&format!("{prefix}.{expert}.{name}_proj.weight")].1;
            gate_up.extend([of("gate").as_slice(), of("up")].concat());
            down.extend(of("down"));
        }
        joined.insert(format!("{prefix}.gate_up_proj"), (vec![8, 128, 96], gate_up));
        joined.insert(format!("{prefix}.down_proj"), (vec![8, 96, 64], down));
    }
    [single, joined]
}

fn tiny_moe() -> PathBuf {
    tiny().with_file_name("tiny-moe")
}

#[test]
fn experts_come_to_the_same_weights_in_both_layouts() {
    let config = ModelFolder::open(&tiny_moe()).unwrap().model;
    let files = WeightFiles::open(&tiny_moe()).unwrap();
    let recorder = ManifestRecorder::new(&files, false);
    let live = ModelParameters::load(&Cpu::default(), &recorder, &config).unwrap();
    files.check_all_taken(true).unwrap();
    let manifest = Arc::new(recorder.into_manifest());

    let mut outcomes = Vec::new();
    for named in mixture(0.5) {
        let mut pieces = IncomingWeights::new(Arc::clone(&manifest));
        pieces.take_file(&file_of(&named, Dtype::BF16)).unwrap();
        assert!(pieces.is_whole());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), file_of(&named, Dtype::BF16))
            .unwrap();
        let mut file = IncomingWeights::new(Arc::clone(&manifest));
        take_folder(&mut file, folder.path(), None).unwrap();
        outcomes.extend([pieces.outcome().unwrap(), file.outcome().unwrap()]);
    }
    assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]));
    assert_ne!(outcomes[0].checksum(), manifest.checksum());

    // What is placed and read back has the checksums that it came with.
    let staging = WeightStaging::new(Cpu::default(), config);
    staging.lend(Some(Arc::new(live)));
    assert_eq!(staging.inspect(&manifest).unwrap(), *manifest);
    let mut pieces = IncomingWeights::new(Arc::clone(&manifest));
    pieces.take_file(&file_of(&mixture(0.5)[1], Dtype::BF16)).unwrap();
    staging.stage(pieces).unwrap();
    staging.lend(staging.take_staged());
    assert_eq!(staging.inspect(&manifest).unwrap(), outcomes[0]);
}

#[test]
fn experts_of_another_shape_are_refused_and_still_owed() {
    const NAME: &str = "model.layers.1.mlp.experts.down_proj";
    let files = WeightFiles::open(&tiny_moe()).unwrap();
    let config = ModelFolder::open(&tiny_moe()).unwrap().model;
    let recorder = ManifestRecorder::new(&files, false);
    ModelParameters::load(&Cpu::default(), &recorder, &config).unwrap();
    let mut open = OpenUpdate::new(IncomingWeights::new(Arc::new(recorder.into_manifest())));
    let bytes = vec![0_u8; 8 * 96 * 64 * 2];
    let mut push = |name: &str, shape: &[usize]| {
        let size = 2 * shape.iter().product::<usize>();
        let mut batch = open.new_batch();
        let tensor = IncomingTensor { name, dtype: Dtype::BF16, shape, bytes: &bytes[..size] };
        let taken = batch.take(tensor).map(|()| batch);
        let error = open.add(taken, Some(vec![name.to_owned()])).err().map(|e| e.to_string());
        (error.unwrap_or_default(), open.missing().unwrap_or_default())
    };
    let (error, owed) = push(NAME, &[7, 96, 64]);
    assert!(error.contains(NAME) && error.contains("not that of the model's experts"), "{error}");
    assert!(owed.contains("down_proj.weight` and 7 more"), "{owed}");
    let (error, _) = push(NAME, &[8, 64, 96]);
    assert!(error.contains("experts.0.down_proj.weight") && error.contains("its shape"), "{error}");
    assert_eq!(push(NAME, &[8, 96, 64]), Default::default());
    let (error, _) = push("model.layers.0.mlp.experts.down_proj", &[8, 96, 64]);
    assert!(error.contains("no tensor of that name"), "{error}");
}

fn staging() -> IncomingWeights {
    IncomingWeights::new(Arc::new(loaded(&tiny()).1))
}

#[test]
fn a_folder_and_pieces_of_any_type_come_to_the_same_weights() {
    let named = variant(1);
    let folder = folder_of(&named);
    let expected = loaded(folder.path()).1;
    assert_ne!(expected.checksum(), loaded(&tiny()).1.checksum());
    let mut whole = staging();
    take_folder(&mut whole, folder.path(), None).unwrap();
    assert!(whole.is_whole());
    assert_eq!(whole.outcome().unwrap(), expected);
    // Halves are widened to the type that is served, and give the same as a file of them.
    for dtype in [Dtype::BF16, Dtype::F16] {
        let mut pieces = staging();
        for (name, (shape, values)) in &named {
            let bytes = bytes(values, dtype);
            pieces.take(IncomingTensor { name, dtype, shape, bytes: &bytes }).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), file_of(&named, dtype)).unwrap();
        let mut file = staging();
        take_folder(&mut file, folder.path(), None).unwrap();
        assert_eq!(pieces.outcome().unwrap(), file.outcome().unwrap());
    }
}

#[test]
fn wider_numbers_are_rounded_to_the_type_that_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let named = variant(1);
    std::fs::write(folder.path().join("model.safetensors"), file_of(&named, Dtype::BF16)).unwrap();
    let (_, halves) = loaded(folder.path());
    assert_eq!(halves.dtype(), "torch.bfloat16");
    let mut staging = IncomingWeights::new(Arc::new(loaded_as(&variant(0), Dtype::BF16)));
    staging.take_file(&file_of(&named, Dtype::F32)).unwrap();
    assert_eq!(staging.outcome().unwrap(), halves);
}

fn loaded_as(named: &Named, dtype: Dtype) -> WeightManifest {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), file_of(named, dtype)).unwrap();
    loaded(folder.path()).1
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    const NORM: &str = "model.norm.weight";
    let mut staging = staging();
    let ones = bytes(&[1.0; 96], Dtype::F32);
    let mut refuse = |name: &str, dtype, shape: &[usize], bytes: &[u8]| {
        staging.take(IncomingTensor { name, dtype, shape, bytes }).unwrap_err().to_string()
    };
    let cases = [
        (refuse("model.nothing", Dtype::F32, &[96], &ones), "no tensor of that name"),
        (refuse(NORM, Dtype::F32, &[48], &ones[..192]), "its shape is [48], but"),
        (refuse(NORM, Dtype::F32, &[96], &ones[..95]), "it has 95 bytes"),
        (refuse(NORM, Dtype::I64, &[48], &ones), "its type is I64"),
        (refuse(NORM, Dtype::F32, &[usize::MAX, 9], &ones), "it has 384 bytes"),
        (
            refuse(NORM, Dtype::F32, &[96], &bytes(&[f32::NAN; 96], Dtype::F32)),
            "infinite, NaN, or too large",
        ),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected) && found.contains("model.n"), "{found}");
    }
    assert_eq!(staging.len(), 0);
    let norm = IncomingTensor { name: NORM, dtype: Dtype::F32, shape: &[96], bytes: &ones };
    staging.take(norm).unwrap();
    // A piece whose answer was lost comes again; another under its name does not.
    staging.take(norm).unwrap();
    let twos = bytes(&[2.0; 96], Dtype::F32);
    let twice = staging.take(IncomingTensor { bytes: &twos, ..norm }).unwrap_err();
    assert!(twice.to_string().contains("came twice"), "{twice}");
    assert_eq!(staging.len(), 1);
}

#[test]
fn a_tied_head_may_come_but_must_be_the_embedding() {
    let mut named = variant(1);
    let embedding = named[EMBEDDING].clone();
    named.insert("lm_head.weight".into(), embedding.clone());
    let mut staging = self::staging();
    take_folder(&mut staging, folder_of(&named).path(), None).unwrap();
    assert_eq!(staging.outcome().unwrap(), loaded(folder_of(&variant(1)).path()).1);
    let mut other = embedding;
    other.1[5] += 1.0;
    named.insert("lm_head.weight".into(), other);
    let mut staging = self::staging();
    take_folder(&mut staging, folder_of(&named).path(), None).unwrap();
    let refused = staging.outcome().unwrap_err().to_string();
    assert!(refused.contains("`lm_head.weight`"), "{refused}");
}

#[test]
fn what_does_not_come_stays_and_is_read_back_as_it_is() {
    let (live, manifest) = loaded(&tiny());
    let config = ModelFolder::open(&tiny()).unwrap().model;
    let staging_area = WeightStaging::new(Cpu::default(), config.clone());
    staging_area.lend(Some(Arc::new(live)));
    assert_eq!(staging_area.inspect(&manifest).unwrap(), manifest);
    // One part of a fused matrix comes, the others and everything else stay.
    let name = "model.layers.1.self_attn.k_proj.weight";
    let changed: Named = variant(2).into_iter().filter(|(other, _)| other == name).collect();
    let mut staging = IncomingWeights::new(Arc::new(manifest.clone()));
    staging.take_file(&file_of(&changed, Dtype::F32)).unwrap();
    let outcome = staging.outcome().unwrap();
    staging_area.stage(staging).unwrap();
    let staged = staging_area.take_staged().unwrap();
    staging_area.lend(Some(staged));
    assert_eq!(staging_area.inspect(&manifest).unwrap(), outcome);
    let differ = |(name, digest): (&str, &TensorDigest)| {
        (manifest.get(name) != Some(digest)).then(|| name.to_owned())
    };
    assert_eq!(outcome.iter().filter_map(differ).collect::<Vec<_>>(), [name]);
    // Without weights that serve, everything must come.
    staging_area.lend(None);
    let mut staging = IncomingWeights::new(Arc::new(manifest));
    staging.take_file(&file_of(&changed, Dtype::F32)).unwrap();
    assert!(staging_area.stage(staging).unwrap_err().to_string().contains("is missing"));
}

#[test]
fn every_kind_of_model_is_read_back_as_it_was_loaded() {
    for folder in ["llama", "qwen2"] {
        let folder = tiny().join("../../../tests/tapes/engine").join(folder);
        let config = ModelFolder::open(&folder).unwrap().model;
        let weights = WeightFiles::open(&folder).unwrap();
        let recorder = ManifestRecorder::new(&weights, false);
        let live = ModelParameters::load(&Cpu::default(), &recorder, &config).unwrap();
        let manifest = recorder.into_manifest();
        let staging_area = WeightStaging::new(Cpu::default(), config);
        staging_area.lend(Some(Arc::new(live)));
        assert_eq!(staging_area.inspect(&manifest).unwrap(), manifest);
    }
}

#[test]
fn labels_are_not_used_for_two_weights() {
    let (_, manifest) = loaded(&tiny());
    let config = ModelFolder::open(&tiny()).unwrap().model;
    let staging_area = Arc::new(WeightStaging::new(Cpu::default(), config));
    let updates = WeightUpdates::new(staging_area, manifest.clone(), "default");
    let known = manifest.checksum();
    assert_eq!(updates.checksum_of("default"), Some(known.clone()));
    let default = LabelWish { asked: Some("default"), folder: None };
    assert_eq!(updates.choose_label(default, 0, &known), Ok("default".into()));
    let refused = updates.choose_label(default, 0, "other").unwrap_err();
    assert!(matches!(refused, UpdateError::Label(_)), "{refused}");
    updates.remember(&WeightVersion { label: "2".into(), checksum: "two".into() });
    let any = LabelWish { asked: None, folder: None };
    assert_eq!(updates.choose_label(any, 0, "other"), Ok("1".into()));
    assert_eq!(updates.choose_label(any, 1, "other"), Ok("3".into()));
    assert_eq!(updates.choose_label(any, 1, "two"), Ok("2".into()));
    let folder = |path: &str, checksum| {
        let wish = LabelWish { asked: None, folder: Some(path) };
        updates.choose_label(wish, 7, checksum).unwrap()
    };
    assert_eq!(folder("/runs/a/broadcast/step_12/", "other"), "step_12");
    assert_eq!(folder("v3", "other"), "v3");
    updates.remember(&WeightVersion { label: "checkpoint-4".into(), checksum: "four".into() });
    assert_eq!(folder("checkpoint-4", "four"), "checkpoint-4");
    assert_eq!(folder("checkpoint-4", "other"), "8");
    for path in ["latest", "12", "_12", ".tmpv9", "run2_12", "/", "step_"] {
        assert_eq!(folder(path, "other"), "8", "{path}");
    }
}
