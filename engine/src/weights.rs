//! Weights by name: from the safetensors files of a folder.
//!
//! Headers are read and checked when a folder is opened, contents one tensor at a time, so that a
//! model is never in memory twice.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use kernels::Values;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::Value;

use crate::config::ModelConfig;
use crate::load::{LoadError, json};

/// The index of weights in several files.
const INDEX: &str = "model.safetensors.index.json";

/// The one file of weights.
const SINGLE: &str = "model.safetensors";

/// Bytes of the longest header, as the format bounds it.
const MAX_HEADER: u64 = 100_000_000;

/// Bytes before the header: its length.
const LENGTH: u64 = 8;

/// The elements of a tensor, row-major.
#[derive(Debug)]
pub(crate) enum Tensor {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl Tensor {
    /// For a device.
    pub(crate) fn view(&self) -> Values<'_> {
        match self {
            Tensor::F32(values) => Values::F32(values),
            Tensor::Bf16(values) => Values::Bf16(values),
        }
    }

    /// As 32-bit floats.
    pub(crate) fn widen(self) -> Vec<f32> {
        match self {
            Tensor::F32(values) => values,
            Tensor::Bf16(values) => {
                values.iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect()
            }
        }
    }
}

/// Where a model's weights come from.
pub(crate) trait Tensors {
    /// A tensor of exactly this shape; bf16 stays as it is, f16 is widened.
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError>;

    /// Refuses, before anything is placed, a model that a device with `room` bytes cannot hold, or
    /// the machine's own memory where there is no `room`. Files are taken as they come.
    fn check_room(&self, _model: &ModelConfig, _room: Option<u64>) -> Result<(), LoadError> {
        Ok(())
    }
}

/// A tensor in a file.
#[derive(Debug)]
struct Stored {
    file: usize,
    info: TensorInfo,
    /// Byte of the file at which it begins.
    at: u64,
}

/// The weight files of a folder.
#[derive(Debug)]
pub(crate) struct Weights {
    /// What says which tensors there are: the index, or the one file.
    list: PathBuf,
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, Stored>,
    taken: RefCell<BTreeSet<String>>,
}

impl Weights {
    /// Opens `model.safetensors`, or what the index lists, and checks all headers.
    pub(crate) fn open(folder: &Path) -> Result<Weights, LoadError> {
        let list = folder.join(INDEX);
        if !list.exists() {
            return Weights::open_one(folder.join(SINGLE));
        }
        let map = weight_map(&list)?;
        let names: BTreeSet<&String> = map.values().collect();
        let mut weights = Weights::empty(list);
        for name in names {
            weights.add(folder.join(name))?;
        }
        for (name, file) in map {
            let path = folder.join(&file);
            let stored = weights.tensors.get(&name);
            if stored.is_none_or(|stored| weights.files[stored.file].0 != path) {
                return Err(LoadError::Misplaced { name, path, index: weights.list });
            }
        }
        Ok(weights)
    }

    /// Opens one file and checks its header.
    pub(crate) fn open_one(file: PathBuf) -> Result<Weights, LoadError> {
        let mut weights = Weights::empty(file.clone());
        weights.add(file)?;
        Ok(weights)
    }

    /// The names and shapes of all tensors.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), stored.info.shape.as_slice()))
    }

    fn empty(list: PathBuf) -> Weights {
        Weights { list, files: Vec::new(), tensors: BTreeMap::new(), taken: RefCell::default() }
    }

    fn add(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let in_file = |path: &PathBuf| {
            let path = path.clone();
            move |source| LoadError::Read { path, source }
        };
        let mut file = File::open(&path).map_err(in_file(&path))?;
        let (metadata, start) = header(&mut file).map_err(|error| match error {
            Unread::Io(source) => LoadError::Read { path: path.clone(), source },
            Unread::Form(reason) => LoadError::Safetensors { path: path.clone(), reason },
        })?;
        let index = self.files.len();
        for (name, info) in metadata.tensors() {
            let at = start + info.data_offsets.0 as u64;
            let stored = Stored { file: index, info: info.clone(), at };
            if let Some(other) = self.tensors.insert(name.clone(), stored) {
                let reason = format!("`{}` has it, too", self.files[other.file].0.display());
                return Err(LoadError::Tensor { name, path, reason });
            }
        }
        self.files.push((path, file));
        Ok(())
    }

    /// Whether there is a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Refuses weights that the model has no use for: computed without them, it would be another.
    pub(crate) fn check_all_taken(&self, tied: bool) -> Result<(), LoadError> {
        let taken = self.taken.borrow();
        for (name, stored) in self.tensors.iter().filter(|(name, _)| !taken.contains(*name)) {
            // Tied heads may be stored all the same, and old files hold what RoPE computes.
            let known = (tied && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq");
            let other = !name.starts_with("model.") && !name.starts_with("lm_head.");
            let path = &self.files[stored.file].0;
            if other {
                tracing::warn!(tensor = name, path = %path.display(), "a tensor is not used");
            } else if !known {
                let reason = "the configuration has no place for it".to_owned();
                let (name, path) = (name.clone(), path.clone());
                return Err(LoadError::Tensor { name, path, reason });
            }
        }
        Ok(())
    }

    fn read(&self, stored: &Stored) -> Result<Vec<u8>, LoadError> {
        let (path, file) = &self.files[stored.file];
        let (begin, end) = stored.info.data_offsets;
        let mut bytes = vec![0; end - begin];
        let mut file: &File = file;
        let read = file.seek(SeekFrom::Start(stored.at)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|source| LoadError::Read { path: path.clone(), source })?;
        Ok(bytes)
    }
}

impl Tensors for Weights {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let name = name.to_owned();
        let Some(stored) = self.tensors.get(&name) else {
            return Err(LoadError::MissingTensor { name, path: self.list.clone() });
        };
        let refuse = |name, reason| {
            let path = self.files[stored.file].0.clone();
            Err(LoadError::Tensor { name, path, reason })
        };
        let found = &stored.info.shape;
        if found != shape {
            let reason = format!("its shape is {found:?}, but `config.json` implies {shape:?}");
            return refuse(name, reason);
        }
        let tensor = match stored.info.dtype {
            Dtype::F32 => Tensor::F32(decode(&self.read(stored)?, f32::from_le_bytes)),
            Dtype::BF16 => Tensor::Bf16(decode(&self.read(stored)?, u16::from_le_bytes)),
            Dtype::F16 => {
                let widen = |bytes| f16::from_le_bytes(bytes).to_f32();
                Tensor::F32(decode(&self.read(stored)?, widen))
            }
            other => {
                let reason = format!("its type is {other:?}; supported: F32, BF16, F16");
                return refuse(name, reason);
            }
        };
        self.taken.borrow_mut().insert(name);
        Ok(tensor)
    }
}

pub(crate) fn decode<T, const N: usize>(data: &[u8], one: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|bytes| one(*bytes)).collect()
}

/// Which file each tensor is in.
fn weight_map(path: &Path) -> Result<BTreeMap<String, String>, LoadError> {
    let refuse = |reason: String| LoadError::Index { path: path.to_owned(), reason };
    let index = json(path)?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| refuse("is not an object of file names".into()))?;
    if map.is_empty() {
        return Err(refuse("is empty".into()));
    }
    let entry = |(name, file): (&String, &Value)| match file.as_str() {
        None => Err(refuse(format!("has {file} for `{name}`, which is not a file name"))),
        // A model folder does not reach outside of itself.
        Some(file) if Path::new(file).file_name().is_none_or(|last| last != file) => {
            Err(refuse(format!("has `{file}` for `{name}`, which is not a plain file name")))
        }
        Some(file) => Ok((name.clone(), file.to_owned())),
    };
    map.iter().map(entry).collect()
}

enum Unread {
    Io(io::Error),
    Form(String),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        Unread::Io(error)
    }
}

/// Reads and checks the header of a safetensors file. Returns it with the byte behind it.
fn header(file: &mut File) -> Result<(Metadata, u64), Unread> {
    let refuse = |reason: String| Err(Unread::Form(reason));
    let size = file.metadata()?.len();
    if size < LENGTH {
        return refuse(format!("it has {size} bytes, too few for a length"));
    }
    let mut length = [0; LENGTH as usize];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || LENGTH + length > size {
        return refuse(format!("its header of {length} bytes does not fit a file of {size}"));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    // This also checks that tensors fill the rest without gaps, each as large as its shape says.
    let metadata: Metadata = match serde_json::from_slice(&header) {
        Ok(metadata) => metadata,
        Err(error) => return refuse(format!("its header cannot be read: {error}")),
    };
    let expected = LENGTH + length + metadata.data_len() as u64;
    if expected != size {
        return refuse(format!("it has {size} bytes, but its header describes {expected}"));
    }
    Ok((metadata, LENGTH + length))
}

#[cfg(test)]
mod tests;
