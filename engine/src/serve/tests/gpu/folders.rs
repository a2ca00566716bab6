//! Model folders on their way to a GPU: their bytes pass through pinned memory alone, and the bits
//! are those of tensors that the host has read.

use std::fs;
use std::path::Path;

use kernels::cuda::CudaOptions;
use safetensors::Dtype;
use tempfile::TempDir;

use super::*;
use crate::UpdateMode;
use crate::emulated::exclusive_gpu;
use crate::model::folder::ModelFolder;
use crate::model::parameters::ModelParameters;
use crate::update::tests::{EMBEDDING, Named, file_of, tiny, variant};
use crate::weights::files::WeightFiles;
use crate::weights::manifest::{ManifestRecorder, WeightManifest};
use crate::weights::streamed::FileStream;

/// The counter of bytes that were copied to the device from other memory.
const PAGEABLE: &str = "bytes_pageable_to_device";

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

/// A folder with the files of the tiny model and weights of so many files.
fn folder(named: &Named, dtype: Dtype, files: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(tiny()).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_none_or(|kind| kind != "safetensors") && file.is_file() {
            fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    let mut map = serde_json::Map::new();
    for part in 0..files {
        let own = named.iter().skip(part).step_by(files);
        let own: Named = own.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        let name = match files {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{part}.safetensors"),
        };
        fs::write(folder.path().join(&name), file_of(&own, dtype)).unwrap();
        map.extend(own.into_keys().map(|tensor| (tensor, json!(name))));
    }
    if files > 1 {
        let index = json!({"weight_map": map}).to_string();
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    }
    folder
}

/// A folder as it is on the device: checksums, all elements as they are read back, and the bytes
/// that came out of other memory than pinned memory.
fn placed(folder: &Path, is_streamed: bool) -> (WeightManifest, Vec<Vec<f32>>, i64) {
    let config = ModelFolder::open(folder).unwrap().model;
    let files = WeightFiles::open(folder).unwrap();
    let ops = crate::emulated::open(&CudaOptions::default(), config.heads);
    let emulated = kernels::cuda::emulated::load().unwrap();
    let before = emulated.get(PAGEABLE);
    let stream = is_streamed.then(|| FileStream::open(ops.device()).unwrap());
    let recorder = ManifestRecorder::new(&files, true).through(stream);
    let parameters = ModelParameters::load(&ops, &recorder, &config).unwrap();
    let manifest = recorder.into_manifest();
    let pageable = emulated.get(PAGEABLE) - before;
    let read = |(name, _)| parameters.read(&ops, &config, name).unwrap();
    let values = manifest.iter().map(read).collect();
    (manifest, values, pageable)
}

#[test]
fn files_give_the_same_bits_through_pinned_memory() {
    let emulated = exclusive_gpu();
    let named = variant(1);
    let halves = [Dtype::BF16, Dtype::F16].map(|dtype| folder(&named, dtype, 1));
    let shards = [Dtype::F32, Dtype::BF16].map(|dtype| folder(&named, dtype, 3));
    let own = ["tiny", "tiny-moe", "tiny-hybrid"].map(|name| models().join(name));
    let made = halves.iter().chain(&shards).map(|folder| folder.path().to_owned());
    for folder in own.into_iter().chain(made) {
        let (expected, found) = (placed(&folder, false), placed(&folder, true));
        assert_eq!(found.0, expected.0, "{}", folder.display());
        assert!(found.1 == expected.1, "{} has other bits", folder.display());
        assert!(expected.2 > 0 && found.2 == 0, "{}: {}", folder.display(), found.2);
    }
    assert_eq!(emulated.get("faults"), 0);
}

#[test]
fn without_room_the_host_reads_the_files() {
    let emulated = exclusive_gpu();
    let expected = placed(&tiny(), false);
    let config = ModelFolder::open(&tiny()).unwrap().model;
    let ops = crate::emulated::open(&CudaOptions::default(), config.heads);
    let mut by_host = 0;
    for (fault, n) in [("fail_pin", 1), ("fail_allocation", 1), ("fail_allocation", 4)] {
        let files = WeightFiles::open(&tiny()).unwrap();
        let stream = FileStream::open(ops.device());
        let recorder = ManifestRecorder::new(&files, true).through(stream);
        let before = emulated.get(PAGEABLE);
        assert!(emulated.set(fault, n));
        ModelParameters::load(&ops, &recorder, &config).unwrap();
        assert_eq!(emulated.get(fault), 0, "{fault} {n} did not come");
        assert_eq!(recorder.into_manifest(), expected.0, "{fault} {n}");
        by_host += i64::from(emulated.get(PAGEABLE) > before);
    }
    assert!(by_host > 0);
}

#[tokio::test]
async fn a_start_and_pushes_copy_from_pinned_memory_alone() {
    for mode in [UpdateMode::Staged, UpdateMode::InPlace] {
        let emulated = exclusive_gpu_async().await;
        let before = emulated.get(PAGEABLE);
        let pushed = folder(&variant(2), Dtype::F32, 2);
        let options = || EngineOptions { update_mode: mode, ..deterministic() };
        let server = Server::of(pushed.path(), options()).await;
        let (bodies, served) = ((0..2).map(numbered).collect::<Vec<_>>(), checked(&server).await);
        let expected = together(&server, &bodies).await;
        server.stop().await;

        let server = Server::of(&tiny(), options()).await;
        assert_eq!(emulated.get(PAGEABLE), before, "{mode:?}: a start");
        let other = together(&server, &bodies).await;
        assert_ne!(other, expected);
        let push = json!({"weight_dir": pushed.path()});
        let done = server.post("/update_weights", &push).await;
        assert_eq!(done.status, 200, "{}", done.body);
        assert_eq!(emulated.get(PAGEABLE), before, "{mode:?}: a push");
        assert_eq!(checked(&server).await, served);
        assert_eq!(together(&server, &bodies).await, expected);
        assert_eq!(emulated.get("faults"), 0);
        server.stop().await;
        assert_eq!(emulated.get("used"), 0);
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_changes_nothing() {
    let emulated = exclusive_gpu_async().await;
    let named = variant(2);
    let mut broken = named.clone();
    broken.get_mut(EMBEDDING).unwrap().1[7] = f32::NAN;
    let (short, wrong) = (folder(&named, Dtype::F32, 2), folder(&broken, Dtype::F32, 1));
    let file = fs::File::options().write(true).open(short.path().join("model-1.safetensors"));
    let file = file.unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();

    let start = Engine::load(wrong.path(), deterministic()).map(drop).unwrap_err().to_string();
    assert!(start.contains("NaN"), "{start}");
    for mode in ["staged", "in_place"] {
        let server = Server::of(&tiny(), deterministic()).await;
        let served = checked(&server).await;
        for (folder, reason) in [(&short, "but its header describes"), (&wrong, "NaN")] {
            let push = json!({"weight_dir": folder.path(), "mode": mode});
            let refused = server.post("/update_weights", &push).await;
            assert_eq!(refused.status, 400, "{}", refused.body);
            assert!(refused.body.contains(reason), "{}", refused.body);
            assert_eq!(checked(&server).await, served, "{mode}");
            assert_eq!(server.get("/health").await.status, 200);
        }
        server.stop().await;
    }
    assert_eq!((emulated.get("faults"), emulated.get("used")), (0, 0));
}
