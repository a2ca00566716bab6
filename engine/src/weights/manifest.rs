//! The manifest of weights: one checksum for every tensor, and one over all.
//!
//! A checksum is BLAKE3 of a tensor's name, type, shape and elements as they are served. Equal
//! checksums mean equal logits, whichever way the weights arrived.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blake3::{Hash, Hasher};
use half::bf16;

use super::streamed::FileStream;
use super::{Elements, Tensor, TensorSource};
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::weights::names::{EMBEDDING, HEAD};

/// Elements that are hashed at once.
const BLOCK: usize = 4096;

/// The reason against a tensor that a model could not compute with.
pub(crate) const NOT_FINITE: &str =
    "it has elements that are infinite, NaN, or too large for its type";

/// The reason against a head that a model with a tied one would not use.
pub(crate) const OTHER_HEAD: &str =
    "the model's head is its embedding (`tie_word_embeddings`), and this is another matrix";

/// The type of elements as they are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedType {
    F32,
    Bf16,
}

impl ServedType {
    /// The spelling of safetensors.
    fn name(self) -> &'static str {
        match self {
            ServedType::F32 => "F32",
            ServedType::Bf16 => "BF16",
        }
    }
}

/// The type, shape and checksum of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorDigest {
    pub(crate) element_type: ServedType,
    pub(crate) shape: Vec<usize>,
    pub(crate) hash: Hash,
}

impl TensorDigest {
    pub(crate) fn of(name: &str, shape: &[usize], tensor: &Tensor) -> TensorDigest {
        let element_type = match tensor {
            Tensor::F32(_) => ServedType::F32,
            Tensor::Bf16(_) => ServedType::Bf16,
        };
        let mut hasher = Hasher::new();
        hasher.update(TensorDigest::head(name, element_type, shape).as_bytes());
        match tensor {
            Tensor::F32(values) => hash_elements(&mut hasher, values, f32::to_le_bytes),
            Tensor::Bf16(values) => hash_elements(&mut hasher, values, u16::to_le_bytes),
        }
        TensorDigest { element_type, shape: shape.to_vec(), hash: hasher.finalize() }
    }

    /// The text that is hashed in front of the elements.
    pub(crate) fn head(name: &str, element_type: ServedType, shape: &[usize]) -> String {
        format!("{name}\n{}\n{shape:?}\n", element_type.name())
    }
}

fn hash_elements<T: Copy, const N: usize>(
    hasher: &mut Hasher,
    values: &[T],
    to_bytes: fn(T) -> [u8; N],
) {
    let mut bytes = Vec::with_capacity(BLOCK * N);
    for block in values.chunks(BLOCK) {
        bytes.clear();
        bytes.extend(block.iter().flat_map(|value| to_bytes(*value)));
        hasher.update(&bytes);
    }
}

/// The digest of every tensor of a model, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WeightManifest(BTreeMap<String, TensorDigest>);

impl WeightManifest {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&TensorDigest> {
        self.0.get(name)
    }

    pub(crate) fn insert(&mut self, name: &str, digest: TensorDigest) {
        self.0.insert(name.to_owned(), digest);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &TensorDigest)> {
        self.0.iter().map(|(name, digest)| (name.as_str(), digest))
    }

    /// The checksum over all tensors, in hexadecimal.
    pub(crate) fn checksum(&self) -> String {
        let mut hasher = Hasher::new();
        for (name, digest) in &self.0 {
            hasher.update(format!("{name}\n{}\n", digest.hash.to_hex()).as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// The bytes of each tensor as it is served.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> {
        self.0.values().map(|digest| {
            let element = if digest.element_type == ServedType::Bf16 { 2 } else { 4 };
            digest.shape.iter().map(|side| *side as u64).product::<u64>() * element
        })
    }

    /// The type of the weights, in torch's spelling.
    pub(crate) fn dtype(&self) -> &'static str {
        match self.get("model.embed_tokens.weight").map(|digest| digest.element_type) {
            Some(ServedType::Bf16) => "torch.bfloat16",
            _ => "torch.float32",
        }
    }
}

/// A source that records the digest of every tensor that a model takes from it.
pub(crate) struct ManifestRecorder<'a, T: ?Sized> {
    inner: &'a T,
    /// True if matrices become bf16, as [`kernels::Ops::rounds`] says.
    uses_bf16: bool,
    manifest: RefCell<WeightManifest>,
    /// The way of matrices to a GPU, if files are read for one.
    stream: Option<RefCell<FileStream>>,
}

impl<'a, T: TensorSource + ?Sized> ManifestRecorder<'a, T> {
    pub(crate) fn new(inner: &'a T, uses_bf16: bool) -> ManifestRecorder<'a, T> {
        ManifestRecorder { inner, uses_bf16, manifest: RefCell::default(), stream: None }
    }

    /// The same, whose matrices go to a GPU by this way.
    pub(crate) fn through(self, stream: Option<FileStream>) -> ManifestRecorder<'a, T> {
        ManifestRecorder { stream: stream.map(RefCell::new), ..self }
    }

    /// Brings a matrix of a file to the GPU. None if it is to be taken from the host.
    fn stream_matrix(&self, name: &str, shape: &[usize]) -> Result<Option<Elements>, LoadError> {
        let (Some(stream), 2) = (&self.stream, shape.len()) else { return Ok(None) };
        let Some(tensor) = self.inner.file_tensor(name, shape)? else { return Ok(None) };
        let element_type = ServedType::Bf16;
        let head = TensorDigest::head(name, element_type, shape).into_bytes();
        let Some(arrived) = stream.borrow_mut().take(&tensor, head)? else { return Ok(None) };
        if !arrived.is_finite {
            return Err(self.inner.refuse(name, NOT_FINITE.to_owned()));
        }
        let (shape, hash) = (shape.to_vec(), Hash::from_bytes(arrived.hash));
        self.manifest.borrow_mut().insert(name, TensorDigest { element_type, shape, hash });
        Ok(Some(Elements::Device(arrived.values)))
    }

    /// Refuses a head beside an embedding that serves as one, unless the two are equal.
    pub(crate) fn check_tied_head(&self, config: &ModelConfig) -> Result<(), LoadError> {
        let shape = [config.vocab, config.hidden];
        let Some(head) = self.inner.tied_head(&shape)? else { return Ok(()) };
        let head = self.checked(HEAD, &shape, head)?;
        let digest = TensorDigest::of(EMBEDDING, &shape, &head);
        match self.manifest.borrow().get(EMBEDDING) == Some(&digest) {
            true => Ok(()),
            false => Err(self.inner.refuse(HEAD, OTHER_HEAD.to_owned())),
        }
    }

    /// Converts a tensor to the type in which it is served.
    ///
    /// # Errors
    /// The tensor has elements that are no numbers.
    fn checked(&self, name: &str, shape: &[usize], tensor: Tensor) -> Result<Tensor, LoadError> {
        let is_rounded = self.uses_bf16 && shape.len() == 2;
        let tensor = if is_rounded { convert(tensor, ServedType::Bf16) } else { tensor };
        match is_finite(&tensor) {
            true => Ok(tensor),
            false => Err(self.inner.refuse(name, NOT_FINITE.to_owned())),
        }
    }

    /// The digests of the tensors that were taken.
    pub(crate) fn into_manifest(self) -> WeightManifest {
        self.manifest.into_inner()
    }
}

impl<T: TensorSource + ?Sized> TensorSource for ManifestRecorder<'_, T> {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let tensor = self.checked(name, shape, self.inner.take(name, shape)?)?;
        self.manifest.borrow_mut().insert(name, TensorDigest::of(name, shape, &tensor));
        Ok(tensor)
    }

    fn take_elements(&self, name: &str, shape: &[usize]) -> Result<Elements, LoadError> {
        match self.stream_matrix(name, shape)? {
            Some(elements) => Ok(elements),
            None => self.take(name, shape).map(Elements::Host),
        }
    }
}

/// Converts a tensor to the type in which it is served, rounded to the nearest or widened.
pub(crate) fn convert(tensor: Tensor, element_type: ServedType) -> Tensor {
    match (tensor, element_type) {
        (Tensor::F32(values), ServedType::Bf16) => {
            Tensor::Bf16(values.into_iter().map(|value| bf16::from_f32(value).to_bits()).collect())
        }
        (tensor, ServedType::F32) => Tensor::F32(tensor.widen()),
        (tensor, ServedType::Bf16) => tensor,
    }
}

/// Returns true if no element is infinite or NaN.
pub(crate) fn is_finite(tensor: &Tensor) -> bool {
    match tensor {
        Tensor::F32(values) => values.iter().all(|value| value.is_finite()),
        Tensor::Bf16(values) => values.iter().all(|bits| bf16::from_bits(*bits).is_finite()),
    }
}
