//! Tensors as they arrive: from a folder, from a body, or one by one.
//!
//! A tensor is checked by itself as soon as it arrives, so an error names the one that is wrong. It
//! is kept in the type in which it will be served: on the host, or on a GPU that a trainer has sent
//! it to ([`device`]).

pub(crate) mod device;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use half::f16;
use safetensors::{Dtype, SafeTensors};

use super::error::UpdateError;
use crate::error::LoadError;
use crate::weights::files::WeightFiles;
use crate::weights::manifest::{
    NOT_FINITE, OTHER_HEAD, ServedType, TensorDigest, WeightManifest, convert, is_finite,
};
use crate::weights::names;
use crate::weights::names::{EMBEDDING, ExpertPart, HEAD};
use crate::weights::{Elements, Tensor, TensorSource, decode};

const DIFFERENT_TWICE: &str = "it came twice in one update, with different elements";

/// A tensor that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncomingTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    /// The elements, row-major, little-endian.
    pub(crate) bytes: &'a [u8],
}

/// The name and the shape of a tensor that a folder must have.
pub(super) type ExpectedTensor = (String, Vec<usize>);

/// A tensor that was taken.
#[derive(Debug)]
struct TakenTensor {
    /// Absent once they went on to where the tensors go.
    elements: Option<Elements>,
    digest: TensorDigest,
}

/// The place where tensors go.
#[derive(Clone, Debug)]
pub(crate) enum TensorDestination {
    /// They are kept, to be placed together.
    Kept,
    /// They are checked and dropped.
    Dropped,
    /// They are written over the weights that serve, as soon as they were checked.
    Written(Arc<dyn TensorWriter>),
}

/// Writes tensors over the weights that serve.
pub(crate) trait TensorWriter: Debug + Send + Sync {
    /// Writes tensors by name, and waits until they are there. Blocks.
    fn write(&self, tensors: BTreeMap<String, Elements>) -> Result<(), UpdateError>;
}

/// The place of a tensor among those of the model.
#[derive(Clone, Copy, Debug)]
struct ServedPlace {
    /// True for a head beside a tied embedding. It is compared with the embedding, so it is hashed
    /// under that name.
    is_tied: bool,
    element_type: ServedType,
}

impl ServedPlace {
    /// The name under which a tensor is hashed.
    fn name(self, name: &str) -> &str {
        if self.is_tied { EMBEDDING } else { name }
    }
}

/// The tensors of an update that have arrived.
#[derive(Debug)]
pub(crate) struct IncomingWeights {
    /// The weights that serve, which say what tensors the model has.
    serving: Arc<WeightManifest>,
    arrived: BTreeMap<String, TakenTensor>,
    /// The digest of a head that arrived although the embedding serves as one, under the name of
    /// the embedding.
    tied_head: Option<TensorDigest>,
    destination: TensorDestination,
    /// True once a tensor may have been written over one that served.
    has_written: bool,
}

impl IncomingWeights {
    pub(crate) fn new(serving: Arc<WeightManifest>) -> IncomingWeights {
        let (arrived, tied_head, destination) = (BTreeMap::new(), None, TensorDestination::Kept);
        IncomingWeights { serving, arrived, tied_head, destination, has_written: false }
    }

    /// The same, whose tensors go elsewhere.
    pub(crate) fn with_destination(self, destination: TensorDestination) -> IncomingWeights {
        IncomingWeights { destination, ..self }
    }

    /// An empty collection for the same model and destination.
    pub(super) fn empty(&self) -> IncomingWeights {
        IncomingWeights::new(Arc::clone(&self.serving)).with_destination(self.destination.clone())
    }

    /// Lets tensors that were taken go on to where they go.
    pub(crate) fn flush(&mut self) -> Result<(), UpdateError> {
        if self.keeps() {
            return Ok(());
        }
        let waiting = self.arrived.iter_mut().filter_map(|(name, taken)| {
            taken.elements.take().map(|elements| (name.clone(), elements))
        });
        let waiting: BTreeMap<String, Elements> = waiting.collect();
        match &self.destination {
            TensorDestination::Written(writer) if !waiting.is_empty() => {
                self.has_written = true;
                writer.write(waiting)
            }
            _ => Ok(()),
        }
    }

    /// Returns true once a tensor may have been written over one that served.
    pub(crate) fn has_written(&self) -> bool {
        self.has_written
    }

    /// Returns true if tensors are checked and dropped.
    pub(crate) fn drops(&self) -> bool {
        matches!(self.destination, TensorDestination::Dropped)
    }

    /// Takes one tensor. The same one may come again; a different one of the same name may not.
    pub(crate) fn take(&mut self, incoming: IncomingTensor<'_>) -> Result<(), UpdateError> {
        let IncomingTensor { name, dtype, shape, bytes } = incoming;
        let name = &*names::plain_name(name);
        if self.is_unused(name) {
            return Ok(());
        }
        if let Some(parts) = self.expert_parts(name, shape)? {
            return self.take_experts(IncomingTensor { name, ..incoming }, parts);
        }
        // An untrusted shape may overflow.
        let element = dtype.bitsize() / 8;
        let size = shape.iter().try_fold(element, |size, side| size.checked_mul(*side));
        if size != Some(bytes.len()) {
            let reason = format!("it has {} bytes, which is not {shape:?} {dtype:?}", bytes.len());
            return Err(UpdateError::tensor(name, reason));
        }

        // f16 is widened: the engine serves f32 and bf16 only.
        let tensor = match dtype {
            Dtype::F32 => Tensor::F32(decode(bytes, f32::from_le_bytes)),
            Dtype::BF16 => Tensor::Bf16(decode(bytes, u16::from_le_bytes)),
            Dtype::F16 => Tensor::F32(decode(bytes, |half| f16::from_le_bytes(half).to_f32())),
            other => return Err(wrong_type(name, other)),
        };
        self.insert(name, shape, tensor)
    }

    /// Takes all tensors of a safetensors file in memory.
    pub(crate) fn take_file(&mut self, bytes: &[u8]) -> Result<(), UpdateError> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| {
            UpdateError::Weights(format!("the body is not a whole safetensors file: {error}"))
        })?;
        for (name, view) in file.iter() {
            let (dtype, shape, bytes) = (view.dtype(), view.shape(), view.data());
            self.take(IncomingTensor { name, dtype, shape, bytes })?;
        }
        Ok(())
    }

    /// The tensors to take from the files of a whole model. What headers can tell is checked before
    /// any of them goes on.
    pub(super) fn expected(&self, files: &WeightFiles) -> Result<Vec<ExpectedTensor>, LoadError> {
        let served = self.serving.iter();
        let mut expected: Vec<ExpectedTensor> =
            served.map(|(name, digest)| (name.to_owned(), digest.shape.clone())).collect();
        // A head beside a tied embedding is read too, to check that the two are equal.
        if self.serving.get(HEAD).is_none()
            && files.has(HEAD)
            && let Some(embedding) = self.serving.get(EMBEDDING)
        {
            expected.push((HEAD.to_owned(), embedding.shape.clone()));
        }

        expected.iter().try_for_each(|(name, shape)| files.check(name, shape))?;
        files.check_all_taken(false)?;
        Ok(expected)
    }

    /// Reads tensors of files on the host, and takes them.
    pub(super) fn take_expected(
        &mut self,
        files: &WeightFiles,
        expected: &[ExpectedTensor],
    ) -> Result<(), UpdateError> {
        for (name, shape) in expected {
            let tensor = files.take(name, shape)?;
            self.insert(name, shape, tensor)?;
            self.flush()?;
        }
        Ok(())
    }

    /// True if tensors are kept until all have come.
    pub(super) fn keeps(&self) -> bool {
        matches!(self.destination, TensorDestination::Kept)
    }

    /// The bytes of all tensors of the model, as they are served.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.serving.sizes().sum()
    }

    /// Takes all tensors of `other`, which is of the same model, or none of them.
    pub(super) fn absorb(&mut self, other: IncomingWeights) -> Result<(), UpdateError> {
        for (name, taken) in &other.arrived {
            if self.arrived.get(name).is_some_and(|before| before.digest != taken.digest) {
                return Err(UpdateError::tensor(name, DIFFERENT_TWICE));
            }
        }
        if let (Some(head), Some(before)) = (&other.tied_head, &self.tied_head)
            && head != before
        {
            return Err(UpdateError::tensor(HEAD, DIFFERENT_TWICE));
        }
        self.has_written |= other.has_written;
        self.arrived.extend(other.arrived);
        self.tied_head = other.tied_head.or(self.tied_head.take());
        Ok(())
    }

    /// The names of the tensors that have arrived.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.arrived.keys().map(String::as_str).chain(self.tied_head.is_some().then_some(HEAD))
    }

    /// The parts of a tensor of all experts; `None` if it is none.
    fn expert_parts(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<Vec<ExpertPart>>, UpdateError> {
        let Some(parts) = ExpertPart::all_of(name, shape) else { return Ok(None) };
        let served = self.serving.iter().filter(|(part, _)| ExpertPart::is_of(part, name));
        let expected = served.count();
        if expected != parts.len() {
            let reason = match expected {
                0 => "the model has no tensor of that name".to_owned(),
                _ => format!("its shape is {shape:?}, which is not that of the model's experts"),
            };
            return Err(UpdateError::tensor(name, reason));
        }
        Ok(Some(parts))
    }

    /// Takes a tensor of all experts as the tensors of each.
    fn take_experts(
        &mut self,
        whole: IncomingTensor<'_>,
        parts: Vec<ExpertPart>,
    ) -> Result<(), UpdateError> {
        let IncomingTensor { name, dtype, bytes, .. } = whole;
        let element = dtype.bitsize() / 8;
        for ExpertPart { name: part, shape, elements } in parts {
            let Some(bytes) = bytes.get(elements.start * element..elements.end * element) else {
                let reason = format!("it has {} bytes, too few for its shape", bytes.len());
                return Err(UpdateError::tensor(name, reason));
            };
            self.take(IncomingTensor { name: &part, dtype, shape: &shape, bytes })?;
        }
        Ok(())
    }

    /// The names under which the model has an announced tensor: those of its parts for a tensor of
    /// all experts, none for one that the engine computes or leaves out.
    pub(super) fn served_names(&self, announced: String) -> Vec<String> {
        let announced = names::plain_name(&announced).into_owned();
        if self.is_unused(&announced) {
            return Vec::new();
        }
        let served = self.serving.iter().map(|(name, _)| name);
        let parts: Vec<String> =
            served.filter(|part| ExpertPart::is_of(part, &announced)).map(str::to_owned).collect();
        if parts.is_empty() { vec![announced] } else { parts }
    }

    fn insert(&mut self, name: &str, shape: &[usize], tensor: Tensor) -> Result<(), UpdateError> {
        let place = self.place(name, shape)?;
        let converted = convert(tensor, place.element_type);
        if !is_finite(&converted) {
            return Err(UpdateError::tensor(name, NOT_FINITE));
        }
        let digest = TensorDigest::of(place.name(name), shape, &converted);
        self.record(name, place, digest, Elements::Host(converted))
    }

    /// Finds the place of a tensor in the model.
    fn place(&self, name: &str, shape: &[usize]) -> Result<ServedPlace, UpdateError> {
        let refuse = |reason: &str| Err(UpdateError::tensor(name, reason));
        let is_tied = name == HEAD && self.serving.get(HEAD).is_none();
        let Some(serving) = self.serving.get(if is_tied { EMBEDDING } else { name }) else {
            return refuse("the model has no tensor of that name");
        };
        if serving.shape != shape {
            let expected = &serving.shape;
            return refuse(&format!("its shape is {shape:?}, but the model's is {expected:?}"));
        }
        Ok(ServedPlace { is_tied, element_type: serving.element_type })
    }

    /// Adds a tensor that was checked. A tied head is not kept.
    fn record(
        &mut self,
        name: &str,
        place: ServedPlace,
        digest: TensorDigest,
        elements: Elements,
    ) -> Result<(), UpdateError> {
        let before = match place.is_tied {
            true => self.tied_head.as_ref(),
            false => self.arrived.get(name).map(|taken| &taken.digest),
        };
        if before.is_some_and(|before| *before != digest) {
            return Err(UpdateError::tensor(name, DIFFERENT_TWICE));
        }
        if place.is_tied {
            self.tied_head = Some(digest);
        } else {
            let taken = TakenTensor { elements: Some(elements), digest };
            self.arrived.insert(name.to_owned(), taken);
        }
        Ok(())
    }

    /// Returns true for a tensor that old files have and the engine computes by itself, and for one
    /// that it leaves out.
    fn is_unused(&self, name: &str) -> bool {
        let is_computed = name.ends_with("rotary_emb.inv_freq");
        (is_computed || names::is_left_out(name)) && self.serving.get(name).is_none()
    }

    /// The number of tensors that have arrived.
    pub(crate) fn len(&self) -> usize {
        self.arrived.len()
    }

    /// Returns true if all tensors of the model have arrived.
    pub(crate) fn is_whole(&self) -> bool {
        self.arrived.len() == self.serving.len()
    }

    /// The manifest of the model after the update.
    ///
    /// # Errors
    /// A head arrived that differs from the embedding that serves as the head.
    pub(crate) fn outcome(&self) -> Result<WeightManifest, UpdateError> {
        let mut outcome = WeightManifest::clone(&self.serving);
        for (name, taken) in &self.arrived {
            outcome.insert(name, taken.digest.clone());
        }
        if self.tied_head.is_some() && self.tied_head.as_ref() != outcome.get(EMBEDDING) {
            return Err(UpdateError::tensor(HEAD, OTHER_HEAD));
        }
        Ok(outcome)
    }

    /// Returns true if an update of these announced tensors is one of all.
    pub(crate) fn would_be_whole(&self, announced: Vec<String>) -> bool {
        let served = announced.into_iter().flat_map(|name| self.served_names(name));
        let served: BTreeSet<String> = served.collect();
        self.serving.iter().all(|(name, _)| served.contains(name))
    }

    /// The tensors by name, and the manifest of the weights that serve.
    pub(super) fn into_parts(self) -> (BTreeMap<String, Elements>, Arc<WeightManifest>) {
        let arrived = self.arrived.into_iter();
        let kept = arrived.filter_map(|(name, taken)| Some((name, taken.elements?)));
        (kept.collect(), self.serving)
    }
}

fn wrong_type(name: &str, dtype: Dtype) -> UpdateError {
    UpdateError::tensor(name, format!("its type is {dtype:?}; supported: F32, BF16, F16"))
}
