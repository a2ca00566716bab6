//! Weights over NCCL: the engine joins the group of a trainer's GPU and takes what it broadcasts.
//!
//! - [`store`]: finds the trainer and the name of its group in PyTorch's `TCPStore`.
//! - [`pickle`]: takes that name out of what the trainer wrote.
//! - [`plan`]: which tensors come in how many broadcasts.
//!
//! The names of fields, the order of calls and the packing are those of vLLM 0.33, whose client TRL
//! uses. Without a GPU or without the library a call is refused before anybody is waited for.
//!
//! A trainer that dies, stalls or never comes is waited for no longer than `timeout` seconds, for
//! the group and for each broadcast; then the group is aborted, and a later call joins another one.

mod pickle;
mod plan;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kernels::cuda::{Device, DeviceOptions, Memory};
use kernels::nccl::{self, ID_BYTES, Member, NcclError};
use serde_json::{Map, Value};

use crate::update::{PATIENCE, Piece, Refused, Sink, Transport, Wait, patience};
use plan::{Announced, Packing};
use store::Store;

/// Where the first member writes the name of the group.
const NAME: &str = "broadcast_from/0/0";

/// How else weights can come.
const OTHERS: &str = "weights can also come as a folder of safetensors (`weight_dir`, or \
                      `update_info.path`), as a body of safetensors, or as a LoRA adapter";

/// Who the trainer is, and who we are to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Invitation {
    address: String,
    port: u16,
    rank: i32,
    size: i32,
    /// The name of the group, if it is known without a store.
    id: Option<[u8; ID_BYTES]>,
}

impl Invitation {
    /// Reads `init_info`.
    fn read(info: &Map<String, Value>) -> Result<Invitation, String> {
        let number = |field: &str, default: i64, least: i64, most: i64| {
            let value = match info.get(field) {
                None | Some(Value::Null) => Some(default),
                Some(value) => value.as_i64(),
            };
            let value = value.filter(|value| (least..=most).contains(value));
            value.ok_or_else(|| format!("`{field}` is not a number from {least} to {most}"))
        };
        let most = i64::from(i32::MAX);
        let size = number("world_size", 2, 2, most)?;
        let rank = number("rank_offset", 1, 1, size - 1)?;
        let id = match info.get("nccl_unique_id_b64") {
            None | Some(Value::Null) => None,
            Some(id) => Some(decoded(id).ok_or_else(|| {
                format!("`nccl_unique_id_b64` is not {ID_BYTES} bytes in base64")
            })?),
        };
        let address = info.get("master_address").and_then(Value::as_str).unwrap_or_default();
        if address.is_empty() && id.is_none() {
            return Err("`master_address` is missing".to_owned());
        }
        let port = match id {
            None => number("master_port", -1, 1, i64::from(u16::MAX))?,
            Some(_) => 0,
        };
        Ok(Invitation {
            address: address.to_owned(),
            port: port as u16,
            rank: rank as i32,
            size: size as i32,
            id,
        })
    }

    /// The name of the group. Waits for the trainer to write it down, unless it is known.
    fn group(&self, wait: &Wait) -> Result<[u8; ID_BYTES], Refused> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        let Invitation { address, port, .. } = self;
        let place = format!("the trainer's store at {address}:{port}");
        let store = Store::join((address, *port), wait);
        let value = store.and_then(|mut store| store.get(NAME, wait));
        let value = value.map_err(|error| match wait.over() {
            Some(Refused::Trainer(late)) => {
                Refused::Trainer(format!("cannot read {place}: {error}; {late}"))
            }
            Some(ended) => ended,
            None => Refused::Trainer(format!("cannot read {place}: {error}")),
        })?;
        pickle::bytes_of(&value).ok_or_else(|| {
            Refused::Weights(format!("what {place} says is not the name of an NCCL group"))
        })
    }
}

fn decoded(id: &Value) -> Option<[u8; ID_BYTES]> {
    BASE64_STANDARD.decode(id.as_str()?).ok()?.try_into().ok()
}

/// Joins the group that `init_info` names, with the GPU that the engine was given; blocks until all
/// of the group is there.
pub(crate) fn connect(
    info: &Map<String, Value>,
    gpu: &DeviceOptions,
    mut wait: Wait,
) -> Result<Box<dyn Transport>, Refused> {
    let wrong = |reason: String| Refused::Weights(format!("`init_info`: {reason}"));
    let invitation = Invitation::read(info).map_err(wrong)?;
    let packing = Packing::read(info, Packing::default()).map_err(wrong)?;
    let patience = patience(info, PATIENCE).map_err(wrong)?;
    let lacking =
        |reason: &dyn std::fmt::Display| Refused::Weights(format!("no NCCL: {reason}; {OTHERS}"));
    let device = Device::open(gpu).map_err(|reason| lacking(&reason))?;
    nccl::version().map_err(|reason| lacking(&reason))?;
    wait.renew(patience);
    let id = invitation.group(&wait)?;
    let Invitation { rank, size, .. } = invitation;
    tracing::info!(rank, size, "joining the trainer's NCCL group");
    let member = Member::join(&device, &id, (rank, size), &mut || wait.over().is_some());
    let member = member.map_err(|error| broken(&error, &wait))?;
    Ok(Box::new(Line { device, member, packing, patience, wait, in_step: true }))
}

/// The connection to a trainer.
struct Line {
    device: Device,
    member: Member,
    packing: Packing,
    /// For each broadcast.
    patience: Duration,
    /// Over for good once somebody else took over.
    wait: Wait,
    in_step: bool,
}

/// Why the group is no more.
fn broken(error: &NcclError, wait: &Wait) -> Refused {
    match (error, wait.over()) {
        (NcclError::GivenUp(_), Some(over)) => over,
        (NcclError::Peer { .. }, _) => Refused::Trainer(format!("the trainer is gone: {error}")),
        _ => Refused::Device(error.to_string()),
    }
}

impl Transport for Line {
    fn receive(&mut self, info: &Map<String, Value>, sink: Sink<'_>) -> Result<(), Refused> {
        let wrong = |reason: String| Refused::Weights(format!("`update_info`: {reason}"));
        self.in_step = false;
        let packing = Packing::read(info, self.packing).map_err(wrong)?;
        let patience = patience(info, self.patience).map_err(wrong)?;
        let tensors = plan::announced(info).map_err(wrong)?;
        let mut refused = Ok(());
        for part in plan::broadcasts(&tensors, packing) {
            let bytes = self.one(part, patience)?;
            // The trainer sends all the same, so all is received before anything is refused.
            if refused.is_ok() {
                refused = handed_over(part, &bytes, sink);
            }
        }
        self.in_step = true;
        refused
    }

    fn is_in_step(&self) -> bool {
        self.in_step
    }
}

impl Line {
    /// The bytes of one broadcast.
    fn one(&mut self, part: &[Announced], patience: Duration) -> Result<Vec<u8>, Refused> {
        let failed = |error: &dyn std::fmt::Display| Refused::Device(error.to_string());
        let size = part.iter().fold(0_usize, |size, tensor| size.saturating_add(tensor.bytes));
        let memory = Memory::new(&self.device, size).map_err(|error| failed(&error))?;
        self.wait.renew(patience);
        let Line { member, wait, .. } = self;
        let received = member.receive(&memory, &mut || wait.over().is_some());
        received.map_err(|error| broken(&error, wait))?;
        memory.to_vec().map_err(|error| failed(&error))
    }
}

/// Gives on the tensors of one broadcast, which lie one behind another.
fn handed_over(part: &[Announced], bytes: &[u8], sink: Sink<'_>) -> Result<(), Refused> {
    let mut rest = bytes;
    for tensor in part {
        let (bytes, after) = rest.split_at(tensor.bytes);
        sink(Piece { name: &tensor.name, dtype: tensor.dtype, shape: &tensor.shape, bytes })?;
        rest = after;
    }
    Ok(())
}
