//! An adapter in the host's memory.

use std::path::PathBuf;
use std::sync::Arc;

use blake3::{Hash, Hasher};

use crate::config::ModelConfig;
use crate::weights::Tensor;
use crate::weights::manifest::TensorDigest;

/// Bounds of the number of adapters and of their rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoraLimits {
    /// Adapters that requests may name; zero refuses all.
    pub(crate) adapters: usize,
    /// The largest rank.
    pub(crate) rank: usize,
}

impl LoraLimits {
    /// Slots on the device: one for each adapter that requests may name, and as many for unloaded
    /// adapters that running replies still use.
    pub(crate) fn slots(&self) -> usize {
        2 * self.adapters
    }
}

/// A matrix of a layer that an adapter may add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Projection {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

impl Projection {
    pub(crate) const ALL: [Projection; 7] = [
        Projection::Query,
        Projection::Key,
        Projection::Value,
        Projection::Output,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
    ];

    /// The index in [`Projection::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns true for the matrices behind the attention.
    pub(crate) fn is_feed_forward(self) -> bool {
        matches!(self, Projection::Gate | Projection::Up | Projection::Down)
    }

    /// The name within a layer, in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Projection::Query => "self_attn.q_proj",
            Projection::Key => "self_attn.k_proj",
            Projection::Value => "self_attn.v_proj",
            Projection::Output => "self_attn.o_proj",
            Projection::Gate => "mlp.gate_proj",
            Projection::Up => "mlp.up_proj",
            Projection::Down => "mlp.down_proj",
        }
    }

    /// The rows and columns of the matrix.
    pub(crate) fn shape(self, config: &ModelConfig) -> (usize, usize) {
        let (hidden, inner, heads) = (config.hidden, config.intermediate, config.heads);
        match self {
            Projection::Query => (heads.query_width(), hidden),
            Projection::Key | Projection::Value => (heads.kv * heads.dim, hidden),
            Projection::Output => (hidden, heads.query_width()),
            Projection::Gate | Projection::Up => (inner, hidden),
            Projection::Down => (hidden, inner),
        }
    }
}

/// The low-rank addition to one matrix: `scale * up * down`.
#[derive(Debug)]
pub(crate) struct LoraMatrices {
    /// `[rank, columns of the matrix]`, PEFT's A.
    pub(super) down: Tensor,
    /// `[rows of the matrix, rank]`, PEFT's B.
    pub(super) up: Tensor,
    pub(super) rank: usize,
    pub(super) scale: f32,
}

/// The additions to one layer, in the order of [`Projection::ALL`].
pub(crate) type LoraLayer = [Option<LoraMatrices>; Projection::ALL.len()];

/// An adapter in the host's memory.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// A number that no other adapter of this process gets, whatever its name.
    pub(crate) number: u64,
    /// The name that requests give as `model`.
    pub(crate) name: Arc<str>,
    /// The label of the adapted weights while the model's own weights have the label `base`.
    pub(crate) version: Arc<str>,
    /// The label of the model's own weights when the adapter was loaded.
    pub(crate) base: Arc<str>,
    /// The checksum of the additions, from [`checksum`].
    pub(crate) hash: Hash,
    pub(crate) path: PathBuf,
    pub(crate) layers: Vec<LoraLayer>,
}

impl Adapter {
    /// The same adapter without its matrices, which take most of its memory.
    pub(crate) fn without_layers(&self) -> Adapter {
        Adapter {
            number: self.number,
            name: Arc::clone(&self.name),
            version: Arc::clone(&self.version),
            base: Arc::clone(&self.base),
            hash: self.hash,
            path: self.path.clone(),
            layers: Vec::new(),
        }
    }

    /// The label of the adapted weights, if the model's own weights have the label `base`.
    pub(crate) fn version_over(&self, base: &Arc<str>) -> Arc<str> {
        match self.base == *base {
            true => Arc::clone(&self.version),
            false => format!("{}@{base}", self.version).into(),
        }
    }

    /// The checksum of the adapted weights, if the model's own weights have the checksum `base`.
    pub(crate) fn checksum_over(&self, base: &str) -> String {
        let mut hasher = Hasher::new();
        hasher.update(format!("{base}\n{}\n", self.hash.to_hex()).as_bytes());
        hasher.finalize().to_hex().to_string()
    }
}

/// The checksum of additions: over the name, type, shape, scale and elements of each.
pub(crate) fn checksum(layers: &[LoraLayer]) -> Hash {
    let mut hasher = Hasher::new();
    for (layer, additions) in layers.iter().enumerate() {
        for (projection, addition) in Projection::ALL.iter().zip(additions) {
            let Some(LoraMatrices { down, up, rank, scale }) = addition else { continue };
            let name = format!("{layer}.{}", projection.name());
            hasher.update(format!("{name}\n{scale:?}\n").as_bytes());
            for tensor in [down, up] {
                hasher.update(TensorDigest::of(&name, &[*rank], tensor).hash.as_bytes());
            }
        }
    }
    hasher.finalize()
}
