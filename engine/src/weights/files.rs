//! The safetensors files of a folder.
//!
//! Headers are read and checked when a folder is opened, contents one tensor at a time, so that a
//! model is never in memory twice.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use half::f16;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::Value;

use super::{Tensor, TensorSource, decode};
use crate::bounds::TENSOR_HEADER_BYTES_MAX;
use crate::config::fields::read_json;
use crate::error::LoadError;
use crate::weights::names;
use crate::weights::names::ExpertPart;
use crate::weights::streamed::FileTensor;

/// The index of weights in several files.
const INDEX: &str = "model.safetensors.index.json";

/// The name of a single file of weights.
const SINGLE: &str = "model.safetensors";

/// Bytes before the header, which hold its length.
const LENGTH_BYTES: u64 = 8;

/// The place of a tensor in the files.
#[derive(Debug)]
struct StoredTensor {
    /// The index of the file.
    file: usize,
    info: TensorInfo,
    /// The byte of the file at which it begins.
    offset: u64,
}

impl StoredTensor {
    /// The parts of a tensor of all experts, each with its name; else the tensor itself.
    fn parts(self, name: String) -> Vec<(String, StoredTensor)> {
        let StoredTensor { file, info, offset } = self;
        let Some(parts) = ExpertPart::all_of(&name, &info.shape) else {
            return vec![(name, StoredTensor { file, info, offset })];
        };

        let (begin, end) = info.data_offsets;
        let element = (end - begin) / info.shape.iter().product::<usize>().max(1);
        let stored = |part: ExpertPart| {
            let bytes = part.elements.start * element..part.elements.end * element;
            let info = TensorInfo {
                dtype: info.dtype,
                shape: part.shape.to_vec(),
                data_offsets: (begin + bytes.start, begin + bytes.end),
            };
            (part.name, StoredTensor { file, info, offset: offset + bytes.start as u64 })
        };
        parts.into_iter().map(stored).collect()
    }
}

/// The weight files of a folder.
#[derive(Debug)]
pub(crate) struct WeightFiles {
    /// The index, or the single file.
    list: PathBuf,
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, StoredTensor>,
    /// The number of tensors that only a model that sees, or predicts ahead, has.
    left_out: usize,
    /// The names of the tensors that were read.
    taken: RefCell<BTreeSet<String>>,
}

impl WeightFiles {
    /// Opens `model.safetensors`, or the files of the index, and checks all headers.
    pub(crate) fn open(folder: &Path) -> Result<WeightFiles, LoadError> {
        let list = folder.join(INDEX);
        if !list.exists() {
            return WeightFiles::open_one(folder.join(SINGLE));
        }

        let map = read_weight_map(&list)?;
        let file_names: BTreeSet<&String> = map.values().collect();
        if let Some(name) = file_names.iter().find(|name| !is_plain_name(name)) {
            let reason = format!("names `{name}`, which is no file of this folder");
            return Err(LoadError::Index { path: list, reason });
        }
        let mut weights = WeightFiles::empty(list);
        for file_name in file_names {
            weights.add(folder.join(file_name))?;
        }

        for (name, file_name) in map.into_iter().filter(|(name, _)| !names::is_left_out(name)) {
            let path = folder.join(&file_name);
            let stored = weights.stored(&name);
            if stored.is_none_or(|stored| weights.files[stored.file].0 != path) {
                return Err(LoadError::Misplaced { name, path, index: weights.list });
            }
        }
        Ok(weights)
    }

    /// Opens one file and checks its header.
    pub(crate) fn open_one(path: PathBuf) -> Result<WeightFiles, LoadError> {
        let mut weights = WeightFiles::empty(path.clone());
        weights.add(path)?;
        Ok(weights)
    }

    /// The names and shapes of all tensors.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), stored.info.shape.as_slice()))
    }

    fn empty(list: PathBuf) -> WeightFiles {
        WeightFiles {
            list,
            files: Vec::new(),
            tensors: BTreeMap::new(),
            left_out: 0,
            taken: RefCell::default(),
        }
    }

    fn add(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let mut file = match open_regular(&path) {
            Ok(file) => file,
            Err(source) => return Err(LoadError::Read { path, source }),
        };
        let (metadata, start) = match read_header(&mut file) {
            Ok(header) => header,
            Err(HeaderError::Io(source)) => return Err(LoadError::Read { path, source }),
            Err(HeaderError::Malformed(reason)) => {
                return Err(LoadError::Safetensors { path, reason });
            }
        };

        // A tensor in two files would make the result depend on their order.
        let index = self.files.len();
        for (name, info) in metadata.tensors() {
            let offset = start + info.data_offsets.0 as u64;
            if names::is_left_out(&name) {
                self.left_out += 1;
                continue;
            }
            let name = names::plain_name(&name).into_owned();
            let stored = StoredTensor { file: index, info: info.clone(), offset };
            for (name, stored) in stored.parts(name) {
                if let Some(other) = self.tensors.insert(name.clone(), stored) {
                    let other = self.files.get(other.file).map_or(&path, |(path, _)| path);
                    let reason = format!("`{}` has it too", other.display());
                    return Err(LoadError::Tensor { name, path, reason });
                }
            }
        }
        self.files.push((path, file));
        Ok(())
    }

    /// The place of a tensor, or of the first part of a tensor of all experts.
    fn stored(&self, name: &str) -> Option<&StoredTensor> {
        let name = &*names::plain_name(name);
        let part = || self.tensors.iter().find(|(part, _)| ExpertPart::is_of(part, name));
        self.tensors.get(name).or_else(|| part().map(|(_, stored)| stored))
    }

    /// Returns true if there is a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Refuses weights that were not taken: the model was trained with them.
    pub(crate) fn check_all_taken(&self, tied: bool) -> Result<(), LoadError> {
        let (taken, tensors) = (self.taken.borrow(), self.left_out);
        if tensors > 0 {
            let path = self.list.display();
            tracing::warn!(tensors, %path, "tensors of vision and prediction ahead are left out");
        }
        for (name, stored) in self.tensors.iter().filter(|(name, _)| !taken.contains(*name)) {
            // Tied heads may be stored all the same, and old files hold what RoPE computes.
            let known = (tied && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq");
            let of_model = name.starts_with("model.") || name.starts_with("lm_head.");
            let path = &self.files[stored.file].0;
            if !of_model {
                tracing::warn!(tensor = name, path = %path.display(), "a tensor is not used");
            } else if !known {
                let reason = "the configuration has no place for it".to_owned();
                let (name, path) = (name.clone(), path.clone());
                return Err(LoadError::Tensor { name, path, reason });
            }
        }
        Ok(())
    }

    fn read(&self, stored: &StoredTensor) -> Result<Vec<u8>, LoadError> {
        let (path, file) = &self.files[stored.file];
        let (begin, end) = stored.info.data_offsets;
        let mut bytes = vec![0; end - begin];
        let mut reader: &File = file;
        reader
            .seek(SeekFrom::Start(stored.offset))
            .and_then(|_| reader.read_exact(&mut bytes))
            .map_err(|source| LoadError::Read { path: path.clone(), source })?;
        Ok(bytes)
    }

    fn refusal(&self, name: &str, stored: &StoredTensor, reason: String) -> LoadError {
        let (name, path) = (name.to_owned(), self.files[stored.file].0.clone());
        LoadError::Tensor { name, path, reason }
    }
}

impl WeightFiles {
    /// Checks a tensor by its header, and counts it as taken.
    pub(crate) fn check(&self, name: &str, shape: &[usize]) -> Result<(), LoadError> {
        self.checked(name, shape).map(drop)
    }

    /// Finds the elements of a tensor of this shape, and counts it as taken.
    pub(crate) fn locate(&self, name: &str, shape: &[usize]) -> Result<FileTensor<'_>, LoadError> {
        let StoredTensor { file, info, offset } = self.checked(name, shape)?;
        let (path, file) = &self.files[*file];
        let (begin, end) = info.data_offsets;
        let (file, dtype) = ((path.as_path(), file), info.dtype);
        Ok(FileTensor { file, dtype, offset: *offset, bytes: end - begin })
    }

    /// Finds a tensor of this shape, and counts it as taken: those that never are, are refused at
    /// the end of loading.
    fn checked(&self, name: &str, shape: &[usize]) -> Result<&StoredTensor, LoadError> {
        let Some(stored) = self.tensors.get(name) else {
            let (name, path) = (name.to_owned(), self.list.clone());
            return Err(LoadError::MissingTensor { name, path });
        };
        let found = &stored.info.shape;
        if found != shape {
            let reason = format!("its shape is {found:?}, but `config.json` implies {shape:?}");
            return Err(self.refusal(name, stored, reason));
        }
        if !matches!(stored.info.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            return Err(self.wrong_type(name, stored));
        }
        self.taken.borrow_mut().insert(name.to_owned());
        Ok(stored)
    }

    fn wrong_type(&self, name: &str, stored: &StoredTensor) -> LoadError {
        let reason = format!("its type is {:?}; supported: F32, BF16, F16", stored.info.dtype);
        self.refusal(name, stored, reason)
    }
}

impl TensorSource for WeightFiles {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let stored = self.checked(name, shape)?;
        match stored.info.dtype {
            Dtype::F32 => Ok(Tensor::F32(decode(&self.read(stored)?, f32::from_le_bytes))),
            Dtype::BF16 => Ok(Tensor::Bf16(decode(&self.read(stored)?, u16::from_le_bytes))),
            Dtype::F16 => {
                let bytes = self.read(stored)?;
                Ok(Tensor::F32(decode(&bytes, |half| f16::from_le_bytes(half).to_f32())))
            }
            _ => Err(self.wrong_type(name, stored)),
        }
    }

    fn has_files(&self) -> bool {
        true
    }

    fn file_tensor(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<FileTensor<'_>>, LoadError> {
        self.locate(name, shape).map(Some)
    }

    fn tied_head(&self, shape: &[usize]) -> Result<Option<Tensor>, LoadError> {
        if self.has(names::HEAD) { self.take(names::HEAD, shape).map(Some) } else { Ok(None) }
    }

    fn refuse(&self, name: &str, reason: String) -> LoadError {
        let file = self.tensors.get(name).map(|stored| &self.files[stored.file].0);
        let path = file.unwrap_or(&self.list).clone();
        LoadError::Tensor { name: name.to_owned(), path, reason }
    }
}

/// Reads the index: the file of each tensor.
fn read_weight_map(path: &Path) -> Result<BTreeMap<String, String>, LoadError> {
    let refusal = |reason: String| LoadError::Index { path: path.to_owned(), reason };
    let index = read_json(path)?;
    let entries = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| refusal("is not an object of file names".into()))?;
    if entries.is_empty() {
        return Err(refusal("is empty".into()));
    }

    let mut map = BTreeMap::new();
    for (name, value) in entries {
        let Some(file) = value.as_str() else {
            let reason = format!("has {value} for `{name}`, which is not a file name");
            return Err(refusal(reason));
        };
        // An index may not name files outside of its folder.
        if Path::new(file).file_name().is_none_or(|last| last != file) {
            let reason = format!("has `{file}` for `{name}`, which is not a plain file name");
            return Err(refusal(reason));
        }
        map.insert(name.clone(), file.to_owned());
    }
    Ok(map)
}

enum HeaderError {
    Io(io::Error),
    Malformed(String),
}

impl From<io::Error> for HeaderError {
    fn from(error: io::Error) -> HeaderError {
        HeaderError::Io(error)
    }
}

/// Reads and checks the header of a safetensors file. Returns it with the byte behind it.
fn read_header(file: &mut File) -> Result<(Metadata, u64), HeaderError> {
    let malformed = |reason: String| Err(HeaderError::Malformed(reason));
    let size = file.metadata()?.len();
    if size < LENGTH_BYTES {
        return malformed(format!("it has {size} bytes, too few for a length"));
    }
    let mut length_bytes = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length_bytes)?;
    let length = u64::from_le_bytes(length_bytes);
    if length > TENSOR_HEADER_BYTES_MAX || LENGTH_BYTES + length > size {
        return malformed(format!("its header of {length} bytes does not fit a file of {size}"));
    }

    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    // This also checks that tensors fill the rest without gaps, each as large as its shape says.
    let metadata: Metadata = match serde_json::from_slice(&header) {
        Ok(metadata) => metadata,
        Err(error) => return malformed(format!("its header cannot be read: {error}")),
    };
    let expected = LENGTH_BYTES + length + metadata.data_len() as u64;
    if expected != size {
        return malformed(format!("it has {size} bytes, but its header describes {expected}"));
    }
    Ok((metadata, LENGTH_BYTES + length))
}

/// True for the name of a file in the folder itself.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

/// Opens a file. Anything else, such as a pipe, might never answer.
fn open_regular(path: &Path) -> io::Result<File> {
    if path.metadata()?.is_file() {
        return File::open(path);
    }
    Err(io::Error::other("it is not a file"))
}

#[cfg(test)]
mod tests;
