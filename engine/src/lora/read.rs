//! A PEFT folder, read and checked as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::adapter::{LoraLayer, LoraMatrices, Projection};
use super::config::LoraScaling;
use crate::config::ModelConfig;
use crate::config::fields::read_json;
use crate::error::{ConfigError, LoadError};
use crate::weights::files::WeightFiles;
use crate::weights::manifest::is_finite;
use crate::weights::{Tensor, TensorSource};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// The prefix of tensor names, before the number of the layer.
const PREFIX: &str = "base_model.model.model.layers.";

/// The reason for the refusal of additions to a mixture of experts.
const OF_EXPERTS: &str = "additions to experts and routers are not supported; in a layer that is a \
                          mixture of experts, an adapter adds to the attention only";

/// A reason why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdapterError {
    /// The folder or its configuration does not exist.
    #[error("No adapter found for {}", folder.display())]
    Absent { folder: PathBuf },
    #[error("cannot use `{}`: {source}", path.display())]
    Config { path: PathBuf, source: ConfigError },
    #[error("{0}")]
    Load(#[from] LoadError),
    #[error("cannot use tensor `{name}` of `{}`: {reason}", path.display())]
    Tensor { name: String, path: PathBuf, reason: String },
    /// The model has layers without attention.
    #[error(
        "cannot use `{}`: adapters to models with linear attention are not supported; merge the \
         adapter into the weights (`merge_and_unload` of PEFT) and load or push those",
        folder.display()
    )]
    Hybrid { folder: PathBuf },
    #[error("`{}` has nothing to add to the model", path.display())]
    Empty { path: PathBuf },
}

/// The two factors of a low-rank addition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LowRankFactor {
    /// `lora_A`, `[rank, columns of the matrix]`.
    Down,
    /// `lora_B`, `[rows of the matrix, rank]`.
    Up,
}

/// The place of a tensor in the model, from its name.
struct TensorPlace {
    layer: usize,
    projection: Projection,
    factor: LowRankFactor,
}

/// The ranks of the two factors of one addition, as far as they were found.
#[derive(Default)]
struct FactorRanks {
    down: Option<usize>,
    up: Option<usize>,
}

/// Reads all additions of an adapter to a model. Blocks while it reads.
pub(crate) fn read_adapter(
    folder: &Path,
    config: &ModelConfig,
    max_rank: usize,
) -> Result<Vec<LoraLayer>, AdapterError> {
    let config_path = folder.join(CONFIG);
    if !config_path.is_file() {
        return Err(AdapterError::Absent { folder: folder.to_owned() });
    }
    if config.hybrid.is_some() {
        return Err(AdapterError::Hybrid { folder: folder.to_owned() });
    }
    let scaling = LoraScaling::parse(&read_json(&config_path)?)
        .map_err(|source| AdapterError::Config { path: config_path, source })?;
    let path = folder.join(WEIGHTS);
    let weights = WeightFiles::open_one(path.clone())?;
    let reader = AdapterReader { path, weights: &weights, config, scaling, max_rank };

    // Every name and shape is checked before an element is read.
    let mut ranks: BTreeMap<(usize, usize), FactorRanks> = BTreeMap::new();
    for (name, shape) in weights.shapes() {
        let place = reader.place(name)?;
        let rank = reader.rank(name, shape, &place)?;
        let found = ranks.entry((place.layer, place.projection.index())).or_default();
        match place.factor {
            LowRankFactor::Down => found.down = Some(rank),
            LowRankFactor::Up => found.up = Some(rank),
        }
    }
    if ranks.is_empty() {
        return Err(AdapterError::Empty { path: reader.path });
    }

    let mut layers: Vec<LoraLayer> = (0..config.layers).map(|_| Default::default()).collect();
    for ((layer, index), found) in ranks {
        let matrices = reader.matrices(layer, Projection::ALL[index], &found)?;
        layers[layer][index] = Some(matrices);
    }
    Ok(layers)
}

/// An adapter's file of weights with the bounds that it must keep.
struct AdapterReader<'a> {
    path: PathBuf,
    weights: &'a WeightFiles,
    config: &'a ModelConfig,
    scaling: LoraScaling,
    max_rank: usize,
}

impl AdapterReader<'_> {
    fn refusal(&self, name: &str, reason: impl Into<String>) -> AdapterError {
        let (name, path, reason) = (name.to_owned(), self.path.clone(), reason.into());
        AdapterError::Tensor { name, path, reason }
    }

    /// The place of a tensor in the model.
    fn place(&self, name: &str) -> Result<TensorPlace, AdapterError> {
        let of_experts = [".mlp.experts.", ".mlp.gate.", ".mlp.shared_expert"];
        if of_experts.iter().any(|part| name.contains(part)) {
            return Err(self.refusal(name, OF_EXPERTS));
        }
        let Some(place) = parse_name(name) else {
            let names = Projection::ALL.map(Projection::name).join(", ");
            let reason =
                format!("only lora_A and lora_B of {names} in a model's layers are supported");
            return Err(self.refusal(name, reason));
        };

        let experts = self.config.experts.as_ref();
        let is_mixture =
            |layer| experts.is_some_and(|experts| experts.is_mixture.get(layer) == Some(&true));
        if place.projection.is_feed_forward() && is_mixture(place.layer) {
            return Err(self.refusal(name, OF_EXPERTS));
        }
        if place.layer >= self.config.layers {
            let reason = format!("the model has {} layers", self.config.layers);
            return Err(self.refusal(name, reason));
        }
        Ok(place)
    }

    /// The rank of a factor of this shape.
    fn rank(
        &self,
        name: &str,
        shape: &[usize],
        place: &TensorPlace,
    ) -> Result<usize, AdapterError> {
        let (rows, columns) = place.projection.shape(self.config);
        let rank = match (place.factor, shape) {
            (LowRankFactor::Down, [rank, found]) if *found == columns => *rank,
            (LowRankFactor::Up, [found, rank]) if *found == rows => *rank,
            (LowRankFactor::Down, _) => {
                let reason = format!("its shape is {shape:?}, not [r, {columns}]");
                return Err(self.refusal(name, reason));
            }
            (LowRankFactor::Up, _) => {
                let reason = format!("its shape is {shape:?}, not [{rows}, r]");
                return Err(self.refusal(name, reason));
            }
        };

        // `r` is the rank of all matrices, unless `rank_pattern` has others for some.
        if let Some(expected) = self.scaling.rank.filter(|expected| *expected != rank) {
            let reason = format!("its rank is {rank}, but `r` is {expected}");
            return Err(self.refusal(name, reason));
        }
        if rank == 0 {
            return Err(self.refusal(name, "its rank is 0"));
        }
        // The device has slots for this rank at most.
        if rank > self.max_rank {
            let most = self.max_rank;
            let reason = format!("its rank is {rank}, more than `max_lora_rank` = {most} allows");
            return Err(self.refusal(name, reason));
        }
        Ok(rank)
    }

    /// Reads both factors of an addition.
    fn matrices(
        &self,
        layer: usize,
        projection: Projection,
        ranks: &FactorRanks,
    ) -> Result<LoraMatrices, AdapterError> {
        let stem = format!("{PREFIX}{layer}.{}", projection.name());
        let (down, up) = (format!("{stem}.lora_A.weight"), format!("{stem}.lora_B.weight"));
        let rank = match (ranks.down, ranks.up) {
            (Some(rank), Some(other)) if rank == other => rank,
            (Some(rank), Some(other)) => {
                let reason = format!("its rank is {other}, but that of lora_A is {rank}");
                return Err(self.refusal(&up, reason));
            }
            (Some(_), None) => return Err(self.refusal(&down, "its lora_B is missing")),
            (None, _) => return Err(self.refusal(&up, "its lora_A is missing")),
        };

        let (rows, columns) = projection.shape(self.config);
        let (down_values, up_values) =
            (self.take(&down, &[rank, columns])?, self.take(&up, &[rows, rank])?);
        let scale = self.scaling.of(rank);
        if !scale.is_finite() {
            return Err(self.refusal(&down, "`lora_alpha` gives a scale that is not finite"));
        }
        Ok(LoraMatrices { down: down_values, up: up_values, rank, scale })
    }

    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, AdapterError> {
        let tensor = self.weights.take(name, shape)?;
        match is_finite(&tensor) {
            true => Ok(tensor),
            false => Err(self.refusal(name, "it has infinite or NaN elements")),
        }
    }
}

/// Parses a name such as `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.
fn parse_name(name: &str) -> Option<TensorPlace> {
    let (digits, rest) = name.strip_prefix(PREFIX)?.split_once('.')?;
    // Only the canonical form of a number: no sign and no leading zeros.
    let layer: usize = digits.parse().ok().filter(|layer: &usize| layer.to_string() == digits)?;

    let (matrix, factor) = match rest.strip_suffix(".lora_A.weight") {
        Some(matrix) => (matrix, LowRankFactor::Down),
        None => (rest.strip_suffix(".lora_B.weight")?, LowRankFactor::Up),
    };
    let projection = Projection::ALL.into_iter().find(|one| one.name() == matrix)?;
    Some(TensorPlace { layer, projection, factor })
}
