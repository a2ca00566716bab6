//! Tensors as they arrive: from a folder, from a body, or piece by piece.
//!
//! A tensor is checked by itself the moment it is here, so the one that is wrong is named. It is
//! kept in host memory in the type in which it will be served.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use half::f16;
use safetensors::{Dtype, SafeTensors};

use super::Refused;
use super::ledger::{Entry, Ledger, is_finite, served_as};
use crate::weights::{Tensor, Tensors, Weights, decode};

/// The head of a model; it may come though the embedding serves as one.
const HEAD: &str = "lm_head.weight";

/// What serves as the head of a model that has none.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Why a tensor that has come is refused.
const TWICE: &str = "it came twice in one update, with different elements";

/// One tensor on its way in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    /// Row-major, little-endian.
    pub(crate) bytes: &'a [u8],
}

/// What has arrived of an update.
#[derive(Debug)]
pub(crate) struct Staging {
    /// The weights that serve: they say which tensors there are.
    model: Arc<Ledger>,
    arrived: BTreeMap<String, (Tensor, Entry)>,
    /// A head that came where the embedding serves as one, written down as an embedding.
    head: Option<Entry>,
}

impl Staging {
    pub(crate) fn new(model: Arc<Ledger>) -> Staging {
        Staging { model, arrived: BTreeMap::new(), head: None }
    }

    /// One of the same model into which nothing has come.
    pub(super) fn empty(&self) -> Staging {
        Staging::new(Arc::clone(&self.model))
    }

    /// Takes one tensor. The same one may come again; another of the same name may not.
    pub(crate) fn take(&mut self, piece: Piece<'_>) -> Result<(), Refused> {
        let Piece { name, dtype, shape, bytes } = piece;
        if self.is_computed(name) {
            return Ok(());
        }
        let element = dtype.bitsize() / 8;
        let size = shape.iter().try_fold(element, |size, side| size.checked_mul(*side));
        if size != Some(bytes.len()) {
            let reason = format!("it has {} bytes, which is not {shape:?} {dtype:?}", bytes.len());
            return Err(Refused::tensor(name, reason));
        }
        let tensor = match dtype {
            Dtype::F32 => Tensor::F32(decode(bytes, f32::from_le_bytes)),
            Dtype::BF16 => Tensor::Bf16(decode(bytes, u16::from_le_bytes)),
            Dtype::F16 => Tensor::F32(decode(bytes, |half| f16::from_le_bytes(half).to_f32())),
            other => {
                let reason = format!("its type is {other:?}; supported: F32, BF16, F16");
                return Err(Refused::tensor(name, reason));
            }
        };
        self.insert(name, shape, tensor)
    }

    /// Takes all tensors of a safetensors file that is in memory.
    pub(crate) fn take_file(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| {
            Refused::Weights(format!("the body is not a whole safetensors file: {error}"))
        })?;
        for (name, view) in file.iter() {
            let (dtype, shape, bytes) = (view.dtype(), view.shape(), view.data());
            self.take(Piece { name, dtype, shape, bytes })?;
        }
        Ok(())
    }

    /// Takes the folder of a whole model.
    pub(crate) fn take_folder(&mut self, folder: &Path) -> Result<(), Refused> {
        let weights = Weights::open(folder)?;
        let model = Arc::clone(&self.model);
        for (name, entry) in model.iter() {
            let tensor = weights.take(name, &entry.shape)?;
            self.insert(name, &entry.shape, tensor)?;
        }
        let embedding = model.get(EMBEDDING).filter(|_| model.get(HEAD).is_none());
        if let Some(embedding) = embedding.filter(|_| weights.has(HEAD)) {
            let tensor = weights.take(HEAD, &embedding.shape)?;
            self.insert(HEAD, &embedding.shape, tensor)?;
        }
        weights.check_all_taken(false)?;
        Ok(())
    }

    /// Takes all that another one of the same model took, or nothing of it.
    pub(super) fn absorb(&mut self, other: Staging) -> Result<(), Refused> {
        let twice = |name: &str| Err(Refused::tensor(name, TWICE));
        for (name, (_, entry)) in &other.arrived {
            if self.arrived.get(name).is_some_and(|(_, before)| before != entry) {
                return twice(name);
            }
        }
        if let (Some(head), Some(before)) = (&other.head, &self.head)
            && head != before
        {
            return twice(HEAD);
        }
        self.arrived.extend(other.arrived);
        self.head = other.head.or(self.head.take());
        Ok(())
    }

    /// Names of what has arrived.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.arrived.keys().map(String::as_str).chain(self.head.is_some().then_some(HEAD))
    }

    fn insert(&mut self, name: &str, shape: &[usize], tensor: Tensor) -> Result<(), Refused> {
        let tied = name == HEAD && self.model.get(HEAD).is_none();
        let refuse = |reason: &str| Err(Refused::tensor(name, reason));
        // A head that is tied is held against the embedding.
        let name = if tied { EMBEDDING } else { name };
        let Some(known) = self.model.get(name) else {
            return refuse("the model has no tensor of that name");
        };
        if known.shape != shape {
            return refuse(&format!(
                "its shape is {shape:?}, but the model's is {:?}",
                known.shape
            ));
        }
        let tensor = served_as(tensor, known.kind);
        if !is_finite(&tensor) {
            return refuse("it has elements that are no numbers, or too large for its type");
        }
        let entry = Entry::of(name, shape, &tensor);
        let before = if tied { self.head.as_ref() } else { self.arrived.get(name).map(|it| &it.1) };
        if before.is_some_and(|before| *before != entry) {
            return refuse(TWICE);
        }
        match tied {
            true => self.head = Some(entry),
            false => {
                self.arrived.insert(name.to_owned(), (tensor, entry));
            }
        }
        Ok(())
    }

    /// Whether a tensor is one that old files have and the engine computes by itself.
    pub(super) fn is_computed(&self, name: &str) -> bool {
        name.ends_with("rotary_emb.inv_freq") && self.model.get(name).is_none()
    }

    /// Tensors that have arrived.
    pub(crate) fn len(&self) -> usize {
        self.arrived.len()
    }

    /// Whether all tensors of the model have arrived.
    pub(crate) fn is_whole(&self) -> bool {
        self.arrived.len() == self.model.len()
    }

    /// What the model will be. A head that came must be the embedding where that serves as one.
    pub(crate) fn outcome(&self) -> Result<Ledger, Refused> {
        let mut outcome = Ledger::clone(&self.model);
        for (name, (_, entry)) in &self.arrived {
            outcome.insert(name, entry.clone());
        }
        if self.head.is_some() && self.head.as_ref() != outcome.get(EMBEDDING) {
            let reason = "the model's head is its embedding, and this is another matrix";
            return Err(Refused::tensor(HEAD, reason));
        }
        Ok(outcome)
    }

    /// The tensors by name, and what the others are.
    pub(crate) fn into_parts(self) -> (BTreeMap<String, Tensor>, Arc<Ledger>) {
        let tensors = self.arrived.into_iter().map(|(name, (tensor, _))| (name, tensor)).collect();
        (tensors, self.model)
    }
}
