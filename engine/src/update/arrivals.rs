//! The memory of broadcasts, and of folders, on the GPU, and what is done with the tensors in it.
//!
//! Tensors stay where they arrived until they are placed. If the GPU has no room for them beside
//! the next broadcast, everything that arrived so far moves to the host.

use std::sync::{Arc, Weak};

use kernels::Placement;
use kernels::cuda::{Arrival, ArrivedTensor, CudaError, Device, Intake, IntakeOrder, Memory};

use super::error::UpdateError;
use super::incoming::device::DeviceTensor;
use super::incoming::{IncomingTensor, IncomingWeights};
use crate::bounds::FREE_PART;

/// The arrivals of a transport.
pub(crate) struct Arrivals {
    device: Device,
    /// Absent if there are no kernels for this GPU. The host then does their work.
    intake: Option<Intake>,
    /// Arrivals of earlier broadcasts. Those that were placed or dropped are gone.
    held: Vec<Weak<Arrival>>,
}

impl Arrivals {
    /// Loads the kernels for tensors that arrive.
    pub(crate) fn new(device: &Device) -> Arrivals {
        let intake = Intake::new(device).inspect_err(|error| {
            tracing::info!(%error, "weights that arrive are checked by the host");
        });
        Arrivals { device: device.clone(), intake: intake.ok(), held: Vec::new() }
    }

    /// True if the GPU takes tensors in by itself.
    pub(crate) fn has_kernels(&self) -> bool {
        self.intake.is_some()
    }

    /// Allocates memory for a broadcast.
    pub(crate) fn memory(&mut self, bytes: usize) -> Result<Memory, CudaError> {
        self.keep_free(bytes)?;
        match Memory::new(&self.device, bytes) {
            Err(CudaError::Memory { .. }) if self.make_room()? => Memory::new(&self.device, bytes),
            memory => memory,
        }
    }

    /// Hands over the tensors of one broadcast: where they are if `home` is the device and it has
    /// room for their conversion, else on the host.
    pub(crate) fn hand_over(
        &mut self,
        memory: Memory,
        tensors: &[DeviceTensor<'_>],
        home: Placement,
        weights: &mut IncomingWeights,
    ) -> Result<(), UpdateError> {
        let plan = weights.plan(tensors);
        let arrived = match home {
            Placement::Device => self.take_in(memory, &plan.orders),
            Placement::Host => Ok(Err(memory)),
        };
        match arrived.map_err(device_error)? {
            Ok(arrived) => {
                self.hold(&arrived);
                weights.take_arrived(plan, arrived)?;
                // What goes on from here takes no room.
                weights.flush()?;
                self.keep_free(0).map_err(device_error)
            }
            Err(memory) => {
                let bytes = memory.to_vec().map_err(device_error)?;
                drop(memory);
                hand_over_on_host(tensors, &bytes, weights)?;
                weights.flush()
            }
        }
    }

    /// Has the GPU take tensors in. Returns the memory if it has no kernels, or no room.
    fn take_in(
        &mut self,
        memory: Memory,
        orders: &[IntakeOrder],
    ) -> Result<Result<Vec<ArrivedTensor>, Memory>, CudaError> {
        let Some(intake) = &mut self.intake else { return Ok(Err(memory)) };
        let taken = match intake.take(&memory, orders) {
            Err(CudaError::Memory { .. }) if make_room(&mut self.held)? => {
                intake.take(&memory, orders)
            }
            taken => taken,
        };
        match taken {
            Ok(taken) => Ok(Ok(taken.keep(memory))),
            Err(CudaError::Memory { .. }) => Ok(Err(memory)),
            Err(error) if error.is_of_pinning() => Ok(Err(memory)),
            Err(error) => Err(error),
        }
    }

    /// Forgets arrivals that were placed or dropped.
    pub(crate) fn forget_gone(&mut self) {
        self.held.retain(|arrival| arrival.strong_count() > 0);
    }

    /// Remembers the arrivals of a broadcast.
    fn hold(&mut self, tensors: &[ArrivedTensor]) {
        let mut new: Vec<Weak<Arrival>> = Vec::new();
        for tensor in tensors {
            let arrival = Arc::downgrade(tensor.values.arrival());
            if !new.iter().any(|known| known.ptr_eq(&arrival)) {
                new.push(arrival);
            }
        }
        self.held.append(&mut new);
    }

    /// Moves what arrived to the host if fewer than `bytes` would be free beside what steps need.
    fn keep_free(&mut self, bytes: usize) -> Result<(), CudaError> {
        let (free, total) = self.device.memory()?;
        if free < bytes.saturating_add(total / FREE_PART) {
            make_room(&mut self.held)?;
        }
        Ok(())
    }

    fn make_room(&mut self) -> Result<bool, CudaError> {
        make_room(&mut self.held)
    }
}

fn device_error(error: CudaError) -> UpdateError {
    UpdateError::Device(error.to_string())
}

/// Moves all that arrived to the host. Returns false if there was nothing on the GPU.
fn make_room(held: &mut Vec<Weak<Arrival>>) -> Result<bool, CudaError> {
    let mut bytes = 0;
    for arrival in held.drain(..).filter_map(|arrival| arrival.upgrade()) {
        bytes += arrival.move_to_host()?;
    }
    if bytes > 0 {
        tracing::info!(
            bytes,
            "weights that arrived wait in the machine's memory: the GPU has no room"
        );
    }
    Ok(bytes > 0)
}

/// Hands over the tensors of one broadcast, whose bytes were copied to the host.
fn hand_over_on_host(
    tensors: &[DeviceTensor<'_>],
    bytes: &[u8],
    weights: &mut IncomingWeights,
) -> Result<(), UpdateError> {
    for DeviceTensor { name, dtype, shape, bytes: own } in tensors {
        let bytes = &bytes[own.clone()];
        weights.take(IncomingTensor { name, dtype: *dtype, shape, bytes })?;
    }
    Ok(())
}
