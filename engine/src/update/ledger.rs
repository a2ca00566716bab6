//! What weights are: one checksum for every tensor, and one over all.
//!
//! A checksum is BLAKE3 of a tensor's name, type, shape and elements as they are served, so equal
//! checksums mean equal logits, whichever way the weights came in.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blake3::{Hash, Hasher};
use half::bf16;

use crate::load::LoadError;
use crate::weights::{Tensor, Tensors};

/// Elements that are hashed at once.
const BLOCK: usize = 4096;

/// The type of elements as they are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    Bf16,
}

impl Kind {
    /// As safetensors spells it.
    fn name(self) -> &'static str {
        match self {
            Kind::F32 => "F32",
            Kind::Bf16 => "BF16",
        }
    }
}

/// One tensor that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) shape: Vec<usize>,
    pub(crate) hash: Hash,
}

impl Entry {
    pub(crate) fn of(name: &str, shape: &[usize], tensor: &Tensor) -> Entry {
        let kind = match tensor {
            Tensor::F32(_) => Kind::F32,
            Tensor::Bf16(_) => Kind::Bf16,
        };
        let mut hasher = Hasher::new();
        hasher.update(format!("{name}\n{}\n{shape:?}\n", kind.name()).as_bytes());
        match tensor {
            Tensor::F32(values) => update(&mut hasher, values, f32::to_le_bytes),
            Tensor::Bf16(values) => update(&mut hasher, values, u16::to_le_bytes),
        }
        Entry { kind, shape: shape.to_vec(), hash: hasher.finalize() }
    }
}

fn update<T: Copy, const N: usize>(hasher: &mut Hasher, values: &[T], bytes: fn(T) -> [u8; N]) {
    let mut block = Vec::with_capacity(BLOCK * N);
    for values in values.chunks(BLOCK) {
        block.clear();
        block.extend(values.iter().flat_map(|value| bytes(*value)));
        hasher.update(&block);
    }
}

/// Every tensor of a model, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger(BTreeMap<String, Entry>);

impl Ledger {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.0.get(name)
    }

    pub(crate) fn insert(&mut self, name: &str, entry: Entry) {
        self.0.insert(name.to_owned(), entry);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The checksum over all, in hexadecimal.
    pub(crate) fn checksum(&self) -> String {
        let mut hasher = Hasher::new();
        for (name, entry) in &self.0 {
            hasher.update(format!("{name}\n{}\n", entry.hash.to_hex()).as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// The type of the weights, as torch spells it.
    pub(crate) fn dtype(&self) -> &'static str {
        match self.get("model.embed_tokens.weight").map(|entry| entry.kind) {
            Some(Kind::Bf16) => "torch.bfloat16",
            _ => "torch.float32",
        }
    }
}

/// Writes down what a model takes, in the types in which it will be served.
pub(crate) struct Recorder<'a, T: ?Sized> {
    inner: &'a T,
    /// Whether matrices become bf16, as [`kernels::Ops::rounds`] says.
    rounds: bool,
    ledger: RefCell<Ledger>,
}

impl<'a, T: Tensors + ?Sized> Recorder<'a, T> {
    pub(crate) fn new(inner: &'a T, rounds: bool) -> Recorder<'a, T> {
        Recorder { inner, rounds, ledger: RefCell::default() }
    }

    pub(crate) fn ledger(self) -> Ledger {
        self.ledger.into_inner()
    }
}

impl<T: Tensors + ?Sized> Tensors for Recorder<'_, T> {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let mut tensor = self.inner.take(name, shape)?;
        if self.rounds && shape.len() == 2 {
            tensor = served_as(tensor, Kind::Bf16);
        }
        self.ledger.borrow_mut().insert(name, Entry::of(name, shape, &tensor));
        Ok(tensor)
    }
}

/// A tensor in the type in which it is served, rounded to the nearest or widened.
pub(crate) fn served_as(tensor: Tensor, kind: Kind) -> Tensor {
    match (tensor, kind) {
        (Tensor::F32(values), Kind::Bf16) => {
            let round = |value: f32| bf16::from_f32(value).to_bits();
            Tensor::Bf16(values.into_iter().map(round).collect())
        }
        (tensor, Kind::F32) => Tensor::F32(tensor.widen()),
        (tensor, Kind::Bf16) => tensor,
    }
}

/// Whether all elements are numbers.
pub(crate) fn is_finite(tensor: &Tensor) -> bool {
    match tensor {
        Tensor::F32(values) => values.iter().all(|value| value.is_finite()),
        Tensor::Bf16(values) => values.iter().all(|bits| bf16::from_bits(*bits).is_finite()),
    }
}
