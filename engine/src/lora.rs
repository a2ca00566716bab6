//! LoRA adapters: low-rank additions to the matrices of a model, chosen by each request.
//!
//! - [`Adapter`]: an adapter as [`read`] took it from a PEFT folder, in the host's memory. Requests
//!   hold it, so one that was unloaded goes on to serve those that began with it.
//! - [`Rack`]: the adapters that live, laid out on the device.

mod config;
mod rack;
mod read;

pub(crate) use rack::{Group, Rack};
pub(crate) use read::{AdapterError, read};

use std::path::PathBuf;
use std::sync::Arc;

use blake3::{Hash, Hasher};

use crate::config::ModelConfig;
use crate::update::Entry;
use crate::weights::Tensor;

/// How many adapters there may be, and how large.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Adapters that requests may name; none at all if zero.
    pub(crate) adapters: usize,
    /// The largest rank.
    pub(crate) rank: usize,
}

impl Bounds {
    /// Adapters that may live: those that requests may name, and as many that were unloaded and
    /// still serve.
    pub(crate) fn slots(&self) -> usize {
        2 * self.adapters
    }
}

/// A matrix that an adapter may add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

impl Target {
    pub(crate) const ALL: [Target; 7] = [
        Target::Query,
        Target::Key,
        Target::Value,
        Target::Output,
        Target::Gate,
        Target::Up,
        Target::Down,
    ];

    /// Its place in [`Target::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Its name within a layer.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Query => "self_attn.q_proj",
            Target::Key => "self_attn.k_proj",
            Target::Value => "self_attn.v_proj",
            Target::Output => "self_attn.o_proj",
            Target::Gate => "mlp.gate_proj",
            Target::Up => "mlp.up_proj",
            Target::Down => "mlp.down_proj",
        }
    }

    /// Rows and columns of the matrix.
    pub(crate) fn shape(self, config: &ModelConfig) -> (usize, usize) {
        let (hidden, inner, heads) = (config.hidden, config.intermediate, config.heads);
        match self {
            Target::Query => (heads.query_width(), hidden),
            Target::Key | Target::Value => (heads.kv * heads.dim, hidden),
            Target::Output => (hidden, heads.query_width()),
            Target::Gate | Target::Up => (inner, hidden),
            Target::Down => (hidden, inner),
        }
    }
}

/// What is added to one matrix.
#[derive(Debug)]
pub(crate) struct Addition {
    /// `[rank, columns of the matrix]`, PEFT's A.
    down: Tensor,
    /// `[rows of the matrix, rank]`, PEFT's B.
    up: Tensor,
    rank: usize,
    scale: f32,
}

/// The additions of one layer, in the order of [`Target::ALL`].
pub(crate) type LayerAdditions = [Option<Addition>; Target::ALL.len()];

/// An adapter in the host's memory.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// Never used again for another, whatever its name.
    pub(crate) number: u64,
    /// What requests give as `model`.
    pub(crate) name: Arc<str>,
    /// The label of the weights that it makes of those that had the label `base`.
    pub(crate) version: Arc<str>,
    /// The label of the model's own weights when it was loaded.
    pub(crate) base: Arc<str>,
    /// Of what it adds.
    pub(crate) hash: Hash,
    pub(crate) path: PathBuf,
    pub(crate) layers: Vec<LayerAdditions>,
}

impl Adapter {
    /// The label of the weights that it makes of those with the label `base`.
    pub(crate) fn version_over(&self, base: &Arc<str>) -> Arc<str> {
        match self.base == *base {
            true => Arc::clone(&self.version),
            false => format!("{}@{base}", self.version).into(),
        }
    }

    /// The checksum of the weights that it makes of those with the checksum `base`.
    pub(crate) fn checksum_over(&self, base: &str) -> String {
        let mut hasher = Hasher::new();
        hasher.update(format!("{base}\n{}\n", self.hash.to_hex()).as_bytes());
        hasher.finalize().to_hex().to_string()
    }
}

/// What additions are: over the place, type, shape, scale and elements of each.
pub(crate) fn hash_of(layers: &[LayerAdditions]) -> Hash {
    let mut hasher = Hasher::new();
    for (layer, additions) in layers.iter().enumerate() {
        for (target, addition) in Target::ALL.iter().zip(additions) {
            let Some(Addition { down, up, rank, scale }) = addition else { continue };
            let name = format!("{layer}.{}", target.name());
            hasher.update(format!("{name}\n{scale:?}\n").as_bytes());
            for tensor in [down, up] {
                hasher.update(Entry::of(&name, &[*rank], tensor).hash.as_bytes());
            }
        }
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests;
