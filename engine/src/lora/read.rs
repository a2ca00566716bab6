//! A PEFT folder, read and checked as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::config::Scaling;
use super::{Addition, LayerAdditions, Target};
use crate::config::{ConfigError, ModelConfig};
use crate::load::{LoadError, json};
use crate::update::is_finite;
use crate::weights::{Tensors, Weights};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What stands before the names of a model's layers.
const PREFIX: &str = "base_model.model.model.layers.";

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdapterError {
    /// There is no such folder, or it has no configuration.
    #[error("No adapter found for {}", folder.display())]
    Absent { folder: PathBuf },
    #[error("cannot use `{}`: {source}", path.display())]
    Config { path: PathBuf, source: ConfigError },
    #[error("{0}")]
    Load(#[from] LoadError),
    #[error("cannot use tensor `{name}` of `{}`: {reason}", path.display())]
    Tensor { name: String, path: PathBuf, reason: String },
    #[error("`{}` has nothing to add to the model", path.display())]
    Empty { path: PathBuf },
}

/// One side of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Down,
    Up,
}

/// Reads all additions of an adapter to a model. Blocks while it reads.
pub(crate) fn read(
    folder: &Path,
    config: &ModelConfig,
    max_rank: usize,
) -> Result<Vec<LayerAdditions>, AdapterError> {
    let path = folder.join(CONFIG);
    if !path.is_file() {
        return Err(AdapterError::Absent { folder: folder.to_owned() });
    }
    let scaling = Scaling::parse(&json(&path)?);
    let scaling = scaling.map_err(|source| AdapterError::Config { path, source })?;
    let path = folder.join(WEIGHTS);
    let weights = Weights::open_one(path.clone())?;
    let source = Source { path, weights: &weights, scaling, max_rank };
    let mut ranks = BTreeMap::new();
    for (name, shape) in weights.shapes() {
        let (layer, target, side) = source.place(name, config)?;
        let expected = target.shape(config);
        let rank = source.rank(name, shape, (side, expected))?;
        let sides: &mut [Option<usize>; 2] = ranks.entry((layer, target.index())).or_default();
        sides[usize::from(side == Side::Up)] = Some(rank);
    }
    if ranks.is_empty() {
        return Err(AdapterError::Empty { path: source.path });
    }
    let mut layers: Vec<LayerAdditions> = (0..config.layers).map(|_| Default::default()).collect();
    for ((layer, index), sides) in ranks {
        let target = Target::ALL[index];
        layers[layer][index] =
            Some(source.addition((layer, target), sides, target.shape(config))?);
    }
    Ok(layers)
}

/// What an adapter is read from.
struct Source<'a> {
    path: PathBuf,
    weights: &'a Weights,
    scaling: Scaling,
    max_rank: usize,
}

impl Source<'_> {
    fn refuse<T>(&self, name: &str, reason: impl Into<String>) -> Result<T, AdapterError> {
        let (name, path, reason) = (name.to_owned(), self.path.clone(), reason.into());
        Err(AdapterError::Tensor { name, path, reason })
    }

    /// The matrix of the model that a tensor belongs to.
    fn place(
        &self,
        name: &str,
        config: &ModelConfig,
    ) -> Result<(usize, Target, Side), AdapterError> {
        let Some((layer, target, side)) = parse(name) else {
            let names: Vec<&str> = Target::ALL.iter().map(|target| target.name()).collect();
            let names = names.join(", ");
            return self.refuse(
                name,
                format!("only lora_A and lora_B of {names} in a model's layers are supported"),
            );
        };
        if layer >= config.layers {
            return self.refuse(name, format!("the model has {} layers", config.layers));
        }
        Ok((layer, target, side))
    }

    /// The rank that a tensor of `shape` says, on a side of a product of `rows` by `columns`.
    fn rank(
        &self,
        name: &str,
        shape: &[usize],
        (side, (rows, columns)): (Side, (usize, usize)),
    ) -> Result<usize, AdapterError> {
        let (expected, rank) = match (side, shape) {
            (Side::Down, [rank, found]) if *found == columns => (self.scaling.rank, *rank),
            (Side::Up, [found, rank]) if *found == rows => (self.scaling.rank, *rank),
            (Side::Down, _) => {
                return self.refuse(name, format!("its shape is {shape:?}, not [r, {columns}]"));
            }
            (Side::Up, _) => {
                return self.refuse(name, format!("its shape is {shape:?}, not [{rows}, r]"));
            }
        };
        if let Some(expected) = expected.filter(|expected| *expected != rank) {
            return self.refuse(name, format!("its rank is {rank}, but `r` is {expected}"));
        }
        if rank == 0 {
            return self.refuse(name, "its rank is 0");
        }
        if rank > self.max_rank {
            let most = self.max_rank;
            let reason = format!("its rank is {rank}, more than `max_lora_rank` = {most} allows");
            return self.refuse(name, reason);
        }
        Ok(rank)
    }

    /// Both sides of what is added to a matrix.
    fn addition(
        &self,
        (layer, target): (usize, Target),
        ranks: [Option<usize>; 2],
        (rows, columns): (usize, usize),
    ) -> Result<Addition, AdapterError> {
        let name = |side| format!("{PREFIX}{layer}.{}.lora_{side}.weight", target.name());
        let (down, up) = (name('A'), name('B'));
        let rank = match ranks {
            [Some(rank), Some(other)] if rank == other => rank,
            [Some(rank), Some(other)] => {
                return self
                    .refuse(&up, format!("its rank is {other}, but that of lora_A is {rank}"));
            }
            [Some(_), None] => return self.refuse(&down, "there is no lora_B to it"),
            _ => return self.refuse(&up, "there is no lora_A to it"),
        };
        let take = |name: &str, shape: &[usize]| {
            let tensor = self.weights.take(name, shape)?;
            match is_finite(&tensor) {
                true => Ok(tensor),
                false => self.refuse(name, "it has elements that are no numbers"),
            }
        };
        let (lower, upper) = (take(&down, &[rank, columns])?, take(&up, &[rows, rank])?);
        let scale = self.scaling.of(rank);
        if !scale.is_finite() {
            return self.refuse(&down, "`lora_alpha` makes its scale no number");
        }
        Ok(Addition { down: lower, up: upper, rank, scale })
    }
}

/// The layer, the matrix and the side of a name such as
/// `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.
fn parse(name: &str) -> Option<(usize, Target, Side)> {
    let (layer, rest) = name.strip_prefix(PREFIX)?.split_once('.')?;
    // A number has one way to be written.
    let number: usize = layer.parse().ok().filter(|number: &usize| number.to_string() == layer)?;
    let (matrix, side) = match rest.strip_suffix(".lora_A.weight") {
        Some(matrix) => (matrix, Side::Down),
        None => (rest.strip_suffix(".lora_B.weight")?, Side::Up),
    };
    let target = Target::ALL.into_iter().find(|target| target.name() == matrix)?;
    Some((number, target, side))
}
