//! Weights over NCCL: the engine joins the group of a trainer's GPU and receives its broadcasts.
//!
//! - [`store`]: finds the trainer and the id of its group in PyTorch's `TCPStore`.
//! - [`pickle`]: extracts that id from the trainer's value.
//! - [`plan`]: the tensors, and their broadcasts.
//!
//! Field names, the order of calls and the packing are those of vLLM 0.33, whose client TRL uses.
//! Without a GPU or without the library, a call is refused before it waits for anyone.
//!
//! The engine waits at most `timeout` seconds for the group and for each broadcast. Then it aborts
//! the group, and a later call joins another one.

mod pickle;
mod plan;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kernels::Placement;
use kernels::cuda::{Device, DeviceOptions, Memory};
use kernels::nccl::{self, Communicator, ID_BYTES, NcclError};
use serde_json::{Map, Value};

use super::arrivals::Arrivals;
use super::error::UpdateError;
use super::incoming::IncomingWeights;
use super::incoming::device::DeviceTensor;
use super::transport::Transport;
use super::wait::{DEFAULT_TIMEOUT, TrainerWait, parse_timeout};
use plan::{AnnouncedTensor, Packing};
use store::TcpStore;

/// The key under which the first member writes the id of the group.
const GROUP_KEY: &str = "broadcast_from/0/0";

const ALTERNATIVES: &str = "weights can also come as a folder of safetensors (`weight_dir`, or \
                            `update_info.path`), as a body of safetensors, or as a LoRA adapter";

/// The bytes of a packed broadcast that `init_info` asks for; `None` if tensors come one by one.
pub(crate) fn packed_bytes(info: &Map<String, Value>) -> Option<u64> {
    let packing = Packing::parse(info, Packing::default()).ok()?;
    packing.packed.then_some(packing.size as u64)
}

/// The address of the trainer and the engine's place in its group, from `init_info`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InitInfo {
    address: String,
    port: u16,
    rank: i32,
    size: i32,
    /// The id of the group, if it is known without a store.
    id: Option<[u8; ID_BYTES]>,
}

impl InitInfo {
    /// Reads `init_info`.
    fn parse(info: &Map<String, Value>) -> Result<InitInfo, String> {
        let size = ranged(info, "world_size", Some(2), 2..=i64::from(i32::MAX))?;
        let rank = ranged(info, "rank_offset", Some(1), 1..=size - 1)?;
        let id = match info.get("nccl_unique_id_b64") {
            None | Some(Value::Null) => None,
            Some(id) => Some(decode_id(id).ok_or_else(|| {
                format!("`nccl_unique_id_b64` is not {ID_BYTES} bytes in base64")
            })?),
        };

        // With the id at hand the store is not asked.
        let address = info.get("master_address").and_then(Value::as_str).unwrap_or_default();
        if address.is_empty() && id.is_none() {
            return Err("`master_address` is missing".to_owned());
        }
        let port = match id {
            None => ranged(info, "master_port", None, 1..=i64::from(u16::MAX))?,
            Some(_) => 0,
        };
        Ok(InitInfo {
            address: address.to_owned(),
            port: port as u16,
            rank: rank as i32,
            size: size as i32,
            id,
        })
    }

    /// The id of the group. Waits until the trainer has written it, unless it is known.
    fn group_id(&self, wait: &TrainerWait) -> Result<[u8; ID_BYTES], UpdateError> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        let InitInfo { address, port, .. } = self;
        let place = format!("the trainer's store at {address}:{port}");
        let read =
            TcpStore::join(address, *port, wait).and_then(|mut store| store.get(GROUP_KEY, wait));
        let value = match read {
            Ok(value) => value,
            Err(error) => {
                return Err(match wait.stop_reason() {
                    Some(UpdateError::Trainer(late)) => {
                        UpdateError::Trainer(format!("cannot read {place}: {error}; {late}"))
                    }
                    Some(ended) => ended,
                    None => UpdateError::Trainer(format!("cannot read {place}: {error}")),
                });
            }
        };
        pickle::bytes_of(&value).ok_or_else(|| {
            UpdateError::Weights(format!("the value in {place} is not the id of an NCCL group"))
        })
    }
}

/// Reads a number within `bounds`, both included. Without a default it must be there.
fn ranged(
    info: &Map<String, Value>,
    field: &str,
    default: Option<i64>,
    bounds: RangeInclusive<i64>,
) -> Result<i64, String> {
    let number = match info.get(field) {
        None | Some(Value::Null) => default,
        Some(value) => value.as_i64(),
    };
    number.filter(|number| bounds.contains(number)).ok_or_else(|| {
        let (least, most) = (bounds.start(), bounds.end());
        format!("`{field}` is not a number from {least} to {most}")
    })
}

fn decode_id(id: &Value) -> Option<[u8; ID_BYTES]> {
    BASE64_STANDARD.decode(id.as_str()?).ok()?.try_into().ok()
}

/// Joins the group that `init_info` names, with the GPU of the engine. Blocks until all members
/// have joined.
pub(crate) fn connect(
    info: &Map<String, Value>,
    gpu: &DeviceOptions,
    mut wait: TrainerWait,
) -> Result<Box<dyn Transport>, UpdateError> {
    let invalid = |reason: String| UpdateError::Weights(format!("`init_info`: {reason}"));
    let init = InitInfo::parse(info).map_err(invalid)?;
    let packing = Packing::parse(info, Packing::default()).map_err(invalid)?;
    let timeout = parse_timeout(info, DEFAULT_TIMEOUT).map_err(invalid)?;

    let device = Device::open(gpu).map_err(unavailable)?;
    nccl::version().map_err(unavailable)?;
    let arrivals = Arrivals::new(&device);

    wait.restart(timeout);
    let id = init.group_id(&wait)?;
    let InitInfo { rank, size, .. } = init;
    tracing::info!(rank, size, "joining the trainer's NCCL group");
    let member = Communicator::new(&device, &id, rank, size, &mut || wait.is_over())
        .map_err(|error| group_error(&error, &wait))?;
    Ok(Box::new(NcclTransport { member, arrivals, packing, timeout, wait, in_step: true }))
}

fn unavailable(reason: impl Display) -> UpdateError {
    UpdateError::Weights(format!("no NCCL: {reason}; {ALTERNATIVES}"))
}

fn device_error(error: impl Display) -> UpdateError {
    UpdateError::Device(error.to_string())
}

/// The membership in a trainer's group.
struct NcclTransport {
    member: Communicator,
    /// Dropped behind the member: to free memory waits for its broadcast.
    arrivals: Arrivals,
    packing: Packing,
    /// The timeout of each broadcast.
    timeout: Duration,
    wait: TrainerWait,
    in_step: bool,
}

/// The reason why a group broke.
fn group_error(error: &NcclError, wait: &TrainerWait) -> UpdateError {
    match (error, wait.stop_reason()) {
        (NcclError::GivenUp(_), Some(reason)) => reason,
        (NcclError::Peer { .. }, _) => {
            UpdateError::Trainer(format!("the trainer is gone: {error}"))
        }
        _ => device_error(error),
    }
}

impl Transport for NcclTransport {
    fn receive(
        &mut self,
        info: &Map<String, Value>,
        home: Placement,
        weights: &mut IncomingWeights,
    ) -> Result<(), UpdateError> {
        let invalid = |reason: String| UpdateError::Weights(format!("`update_info`: {reason}"));
        self.in_step = false;
        let packing = Packing::parse(info, self.packing).map_err(invalid)?;
        let timeout = parse_timeout(info, self.timeout).map_err(invalid)?;
        let tensors = plan::announced(info).map_err(invalid)?;

        self.arrivals.forget_gone();
        let mut taken = weights.check(&cut(&tensors));
        for broadcast in plan::broadcasts(&tensors, packing) {
            let memory = self.receive_broadcast(broadcast, timeout)?;
            // The trainer sends all broadcasts in any case, so all are received before a refusal.
            if taken.is_ok() {
                taken = self.arrivals.hand_over(memory, &cut(broadcast), home, weights);
            }
        }
        self.in_step = true;
        taken
    }

    fn is_in_step(&self) -> bool {
        self.in_step
    }
}

impl NcclTransport {
    /// Receives one broadcast.
    fn receive_broadcast(
        &mut self,
        tensors: &[AnnouncedTensor],
        timeout: Duration,
    ) -> Result<Memory, UpdateError> {
        let size = tensors.iter().fold(0_usize, |size, tensor| size.saturating_add(tensor.bytes));
        let memory = self.arrivals.memory(size).map_err(device_error)?;
        self.wait.restart(timeout);
        let NcclTransport { member, wait, .. } = self;
        member
            .broadcast(&memory, &mut || wait.is_over())
            .map_err(|error| group_error(&error, wait))?;
        Ok(memory)
    }
}

/// The tensors of one broadcast, which lie one behind another.
fn cut(broadcast: &[AnnouncedTensor]) -> Vec<DeviceTensor<'_>> {
    let mut end = 0;
    let mut tensors = Vec::with_capacity(broadcast.len());
    for AnnouncedTensor { name, dtype, shape, bytes } in broadcast {
        let start = end;
        end += bytes;
        tensors.push(DeviceTensor { name, dtype: *dtype, shape, bytes: start..end });
    }
    tensors
}
