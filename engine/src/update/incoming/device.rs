//! Tensors that arrive in the memory of a GPU, where they are checked, converted and hashed, and
//! stay until they are placed.
//!
//! They are taken in two steps, with the work of the GPU in between: [`IncomingWeights::plan`]
//! makes its orders for one broadcast, and [`IncomingWeights::take_arrived`] takes what came of
//! them. The results, refusals included, are those of [`IncomingWeights::take`] with the same
//! tensors one by one.

use std::ops::Range;

use blake3::Hash;
use kernels::cuda::{self, ArrivedTensor, IntakeOrder};
use safetensors::Dtype;

use super::{IncomingWeights, ServedPlace, wrong_type};
use crate::update::error::UpdateError;
use crate::weights::Elements;
use crate::weights::manifest::{NOT_FINITE, ServedType, TensorDigest};
use crate::weights::names;
use crate::weights::streamed::arriving_type;

/// A tensor of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    /// Its bytes in the memory of the broadcast, as many as the shape implies.
    pub(crate) bytes: Range<usize>,
}

/// The work of a GPU on the tensors of a broadcast.
#[derive(Debug, Default)]
pub(crate) struct ArrivalPlan {
    /// One order for each tensor of the model.
    pub(crate) orders: Vec<IntakeOrder>,
    /// The tensors of the orders.
    tensors: Vec<OrderedTensor>,
    /// The refusal of a tensor. Those behind it are not ordered.
    refusal: Option<UpdateError>,
}

#[derive(Debug)]
struct OrderedTensor {
    name: String,
    shape: Vec<usize>,
    place: ServedPlace,
}

impl IncomingWeights {
    /// Makes the orders for the tensors of a broadcast.
    pub(crate) fn plan(&self, tensors: &[DeviceTensor<'_>]) -> ArrivalPlan {
        let mut plan = ArrivalPlan::default();
        plan.refusal = tensors.iter().try_for_each(|one| self.order_all_of(one, &mut plan)).err();
        plan
    }

    /// Refuses tensors that the model cannot take, by what was announced of them.
    pub(crate) fn check(&self, announced: &[DeviceTensor<'_>]) -> Result<(), UpdateError> {
        self.plan(announced).refusal.map_or(Ok(()), Err)
    }

    /// Orders a tensor, or each part of a tensor of all experts.
    fn order_all_of(
        &self,
        tensor: &DeviceTensor<'_>,
        plan: &mut ArrivalPlan,
    ) -> Result<(), UpdateError> {
        let DeviceTensor { name, dtype, shape, bytes } = tensor;
        let name = &*names::plain_name(name);
        if self.is_unused(name) {
            return Ok(());
        }
        let Some(parts) = self.expert_parts(name, shape)? else {
            return self.order(&DeviceTensor { name, bytes: bytes.clone(), ..*tensor }, plan);
        };
        let element = dtype.bitsize() / 8;
        for part in parts {
            let (first, end) = (part.elements.start * element, part.elements.end * element);
            let bytes = bytes.start + first..bytes.start + end;
            let (name, shape, dtype) = (&*part.name, &part.shape[..], *dtype);
            self.order(&DeviceTensor { name, dtype, shape, bytes }, plan)?;
        }
        Ok(())
    }

    /// Orders a tensor of the model.
    fn order(&self, tensor: &DeviceTensor<'_>, plan: &mut ArrivalPlan) -> Result<(), UpdateError> {
        let DeviceTensor { name, dtype, shape, bytes } = tensor;
        let from = arriving_type(*dtype).ok_or_else(|| wrong_type(name, *dtype))?;
        let place = self.place(name, shape)?;
        let to = match place.element_type {
            ServedType::F32 => cuda::ElementType::F32,
            ServedType::Bf16 => cuda::ElementType::Bf16,
        };
        let head = TensorDigest::head(place.name(name), place.element_type, shape).into_bytes();
        plan.orders.push(IntakeOrder { bytes: bytes.clone(), from, to, head });
        plan.tensors.push(OrderedTensor { name: (*name).to_owned(), shape: shape.to_vec(), place });
        Ok(())
    }

    /// Takes the tensors that a GPU has taken in by the orders of a plan.
    pub(crate) fn take_arrived(
        &mut self,
        plan: ArrivalPlan,
        arrived: Vec<ArrivedTensor>,
    ) -> Result<(), UpdateError> {
        for (ordered, arrived) in plan.tensors.into_iter().zip(arrived) {
            let OrderedTensor { name, shape, place } = ordered;
            if !arrived.is_finite {
                return Err(UpdateError::tensor(&name, NOT_FINITE));
            }
            let (element_type, hash) = (place.element_type, Hash::from_bytes(arrived.hash));
            let digest = TensorDigest { element_type, shape, hash };
            self.record(&name, place, digest, Elements::Device(arrived.values))?;
        }
        plan.refusal.map_or(Ok(()), Err)
    }

    /// Moves what is in the memory of a GPU to the host. Returns the bytes that were moved.
    pub(crate) fn move_to_host(&self) -> Result<usize, UpdateError> {
        let mut moved = 0;
        for taken in self.arrived.values() {
            if let Some(Elements::Device(values)) = &taken.elements {
                let result = values.arrival().move_to_host();
                moved += result.map_err(|error| UpdateError::Device(error.to_string()))?;
            }
        }
        Ok(moved)
    }
}
