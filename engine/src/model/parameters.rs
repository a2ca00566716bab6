//! The weights of a model on a device.
//!
//! Matrices that take the same input are laid out as one, so that a step reads its input once.
//!
//! - [`attention`], [`delta`]: the weights that mix positions, in two kinds of layers.
//! - [`loader`]: places tensors by name. [`overwrite`]: writes over those that were placed.

mod attention;
mod delta;
mod loader;
mod overwrite;

use std::ops::Range;

use kernels::{Heads, OpError, Ops, Placement};

use crate::config::ModelConfig;
use crate::config::experts::ExpertConfig;
use crate::error::LoadError;
use crate::weights::TensorSource;
use crate::weights::names::{EMBEDDING, ExpertMatrix, HEAD};
pub(crate) use attention::AttentionParameters;
pub(crate) use delta::DeltaParameters;
use loader::Loader;

const NORM: &str = "model.norm.weight";
/// The router of a mixture of experts, within its layer.
const ROUTER: &str = "mlp.gate.weight";
/// The shared expert of a mixture, and the vector of its gate, which files have as one row.
const SHARED: &str = "mlp.shared_expert";
const SHARED_GATE: &str = "mlp.shared_expert_gate.weight";

/// Every weight of a model.
pub(crate) struct ModelParameters<O: Ops> {
    /// `[vocab, hidden]`.
    pub(crate) embedding: O::Matrix,
    pub(crate) layers: Vec<LayerParameters<O>>,
    /// `[hidden]`.
    pub(crate) norm: O::Buffer,
    /// `[vocab, hidden]`; absent if the embedding serves as the head.
    head: Option<O::Matrix>,
}

/// The weights of one layer.
pub(crate) struct LayerParameters<O: Ops> {
    pub(crate) input_norm: O::Buffer,
    pub(crate) mixer: Mixer<O>,
    pub(crate) post_norm: O::Buffer,
    pub(crate) feed_forward: FeedForward<O>,
}

/// The weights that mix the positions of a sequence.
pub(crate) enum Mixer<O: Ops> {
    Attention(AttentionParameters<O>),
    /// A gated delta rule.
    Delta(DeltaParameters<O>),
}

/// The weights behind the attention of a layer.
pub(crate) enum FeedForward<O: Ops> {
    /// The same for every row.
    Dense(Projections<O>),
    /// A mixture of experts.
    Experts {
        /// `[experts, hidden]`.
        router: O::Matrix,
        /// For each expert, the rows of the gate above those of the up projection.
        gate_up: Vec<O::Matrix>,
        down: Vec<O::Matrix>,
        shared: Option<SharedExpert<O>>,
    },
}

/// The expert that every row goes through, beside those that are chosen for it.
pub(crate) struct SharedExpert<O: Ops> {
    pub(crate) projections: Projections<O>,
    /// `[hidden]`: the sigmoid of its product with a row is the weight of the expert.
    pub(crate) gate: O::Buffer,
}

/// The matrices of a feed-forward part.
pub(crate) struct Projections<O: Ops> {
    /// The rows of the gate above those of the up projection.
    pub(crate) gate_up: O::Matrix,
    pub(crate) down: O::Matrix,
}

impl<O: Ops> ModelParameters<O> {
    /// Places all weights of `weights` on a device.
    pub(crate) fn load(
        ops: &O,
        weights: &(impl TensorSource + ?Sized),
        config: &ModelConfig,
    ) -> Result<ModelParameters<O>, LoadError> {
        let (vocab, hidden) = (config.vocab, config.hidden);
        let root = Loader { ops, weights, prefix: String::new() };
        let embedding = root.matrix(&[(EMBEDDING, vocab)], hidden)?;

        let mut layers = Vec::with_capacity(config.layers);
        for index in 0..config.layers {
            let prefix = format!("model.layers.{index}.");
            let loader = Loader { ops, weights, prefix };
            layers.push(load_layer(&loader, config, index)?);
        }

        Ok(ModelParameters {
            embedding,
            layers,
            norm: root.vector(NORM, hidden)?,
            head: match config.tied {
                true => None,
                false => Some(root.matrix(&[(HEAD, vocab)], hidden)?),
            },
        })
    }

    /// Exchanges the elements with those of `staged`, in place. Each pair has the same shape and
    /// type, so only the device can fail.
    pub(crate) fn replace(
        &mut self,
        ops: &O,
        staged: &mut ModelParameters<O>,
    ) -> Result<(), OpError> {
        ops.replace_matrix(&mut self.embedding, &mut staged.embedding)?;
        ops.replace_buffer(&mut self.norm, &mut staged.norm)?;
        if let (Some(live), Some(staged)) = (&mut self.head, &mut staged.head) {
            ops.replace_matrix(live, staged)?;
        }
        for (live, staged) in self.layers.iter_mut().zip(&mut staged.layers) {
            live.replace(ops, staged)?;
        }
        Ok(())
    }

    /// Moves all weights between the device's memory and the host's. After a failure the ones that
    /// were moved stay moved, and the call may be repeated.
    pub(crate) fn move_to(&mut self, ops: &O, home: Placement) -> Result<(), OpError> {
        ops.move_matrix(&mut self.embedding, home)?;
        ops.move_buffer(&mut self.norm, home)?;
        self.head.iter_mut().try_for_each(|head| ops.move_matrix(head, home))?;
        for layer in &mut self.layers {
            let (matrices, buffers) = layer.all_mut();
            matrices.into_iter().try_for_each(|matrix| ops.move_matrix(matrix, home))?;
            buffers.into_iter().try_for_each(|buffer| ops.move_buffer(buffer, home))?;
        }
        Ok(())
    }

    /// Reads the elements of a tensor by its name in files, row-major and widened to `f32`.
    pub(crate) fn read(
        &self,
        ops: &O,
        config: &ModelConfig,
        name: &str,
    ) -> Result<Vec<f32>, LoadError> {
        let mut values = Vec::new();

        match self.locate(config, name) {
            Some(TensorLocation::Rows(matrix, rows)) => {
                ops.read_matrix(matrix, rows, &mut values)?;
            }
            Some(TensorLocation::Heads { query, gate, heads }) => {
                for head in (0..heads.query).map(|head| head * heads.dim..(head + 1) * heads.dim) {
                    ops.read_matrix(query, head.clone(), &mut values)?;
                    ops.read_matrix(gate, head, &mut values)?;
                }
            }
            Some(TensorLocation::Range(buffer, range)) => {
                ops.read_buffer(buffer, &mut values)?;
                values.truncate(range.end);
                values.drain(..range.start);
            }
            None => {
                let (name, path) = (name.to_owned(), "the model".into());
                return Err(LoadError::MissingTensor { name, path });
            }
        }

        Ok(values)
    }

    fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let rows = 0..config.vocab;
        match name {
            EMBEDDING => Some(TensorLocation::Rows(&self.embedding, rows)),
            NORM => Some(TensorLocation::Range(&self.norm, 0..config.hidden)),
            HEAD => Some(TensorLocation::Rows(self.head.as_ref()?, rows)),
            _ => {
                let (index, name) = name.strip_prefix("model.layers.")?.split_once('.')?;
                self.layers.get(index.parse::<usize>().ok()?)?.locate(config, name)
            }
        }
    }

    /// The output head, `[vocab, hidden]`: a matrix of its own, or the embedding.
    pub(crate) fn head(&self) -> &O::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// The place of a tensor among the weights on the device.
enum TensorLocation<'a, O: Ops> {
    Rows(&'a O::Matrix, Range<usize>),
    /// For each head, its rows of the queries above its rows of the gates.
    Heads {
        query: &'a O::Matrix,
        gate: &'a O::Matrix,
        heads: Heads,
    },
    Range(&'a O::Buffer, Range<usize>),
}

impl<O: Ops> LayerParameters<O> {
    fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let hidden = config.hidden;
        let mixer = name.strip_prefix("self_attn.").or(name.strip_prefix("linear_attn."));
        match (name, &self.mixer) {
            ("input_layernorm.weight", _) => {
                Some(TensorLocation::Range(&self.input_norm, 0..hidden))
            }
            ("post_attention_layernorm.weight", _) => {
                Some(TensorLocation::Range(&self.post_norm, 0..hidden))
            }
            (_, Mixer::Attention(attention)) if mixer.is_some() => attention.locate(config, mixer?),
            (_, Mixer::Delta(delta)) if mixer.is_some() => delta.locate(config, mixer?),
            _ => self.feed_forward.locate(config, name),
        }
    }

    /// All matrices and all buffers, always in the same order.
    fn all_mut(&mut self) -> (Vec<&mut O::Matrix>, Vec<&mut O::Buffer>) {
        let (mut matrices, mut buffers) = self.mixer.all_mut();
        match &mut self.feed_forward {
            FeedForward::Dense(Projections { gate_up, down }) => matrices.extend([gate_up, down]),
            FeedForward::Experts { router, gate_up, down, shared } => {
                matrices.push(router);
                matrices.extend(gate_up.iter_mut().chain(down));
                if let Some(SharedExpert { projections, gate }) = shared {
                    matrices.extend([&mut projections.gate_up, &mut projections.down]);
                    buffers.push(gate);
                }
            }
        }
        buffers.extend([&mut self.input_norm, &mut self.post_norm]);
        (matrices, buffers)
    }

    fn replace(&mut self, ops: &O, staged: &mut LayerParameters<O>) -> Result<(), OpError> {
        let (live_matrices, live_buffers) = self.all_mut();
        let (staged_matrices, staged_buffers) = staged.all_mut();
        for (live, staged) in live_matrices.into_iter().zip(staged_matrices) {
            ops.replace_matrix(live, staged)?;
        }
        for (live, staged) in live_buffers.into_iter().zip(staged_buffers) {
            ops.replace_buffer(live, staged)?;
        }
        Ok(())
    }
}

impl<O: Ops> Mixer<O> {
    fn all_mut(&mut self) -> (Vec<&mut O::Matrix>, Vec<&mut O::Buffer>) {
        match self {
            Mixer::Attention(attention) => attention.all_mut(),
            Mixer::Delta(delta) => delta.all_mut(),
        }
    }
}

impl<O: Ops> FeedForward<O> {
    fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let hidden = config.hidden;

        match self {
            FeedForward::Dense(projections) => {
                projections.locate(config, name.strip_prefix("mlp.")?)
            }
            FeedForward::Experts { shared: Some(shared), .. } if name == SHARED_GATE => {
                Some(TensorLocation::Range(&shared.gate, 0..hidden))
            }
            FeedForward::Experts { shared: Some(shared), .. } if name.starts_with(SHARED) => {
                let name = name.strip_prefix(SHARED)?.strip_prefix('.')?;
                shared.projections.locate(config, name)
            }
            FeedForward::Experts { router, .. } if name == ROUTER => {
                let experts = config.experts.as_ref()?.choice.experts;
                Some(TensorLocation::Rows(router, 0..experts))
            }
            FeedForward::Experts { gate_up, down, .. } => {
                let inner = config.experts.as_ref()?.intermediate;
                let (expert, matrix) = ExpertMatrix::parse(name)?;
                let (gate_up, down) = (gate_up.get(expert)?, down.get(expert)?);
                Some(match matrix {
                    ExpertMatrix::Gate => TensorLocation::Rows(gate_up, 0..inner),
                    ExpertMatrix::Up => TensorLocation::Rows(gate_up, inner..2 * inner),
                    ExpertMatrix::Down => TensorLocation::Rows(down, 0..hidden),
                })
            }
        }
    }
}

impl<O: Ops> Projections<O> {
    /// Locates a matrix of a part that every row goes through, by its name within the part.
    fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let inner = config.intermediate;
        Some(match name {
            "gate_proj.weight" => TensorLocation::Rows(&self.gate_up, 0..inner),
            "up_proj.weight" => TensorLocation::Rows(&self.gate_up, inner..2 * inner),
            "down_proj.weight" => TensorLocation::Rows(&self.down, 0..config.hidden),
            _ => return None,
        })
    }
}

/// Places the weights of the layer `index`.
fn load_layer<O: Ops, T: TensorSource + ?Sized>(
    loader: &Loader<'_, O, T>,
    config: &ModelConfig,
    index: usize,
) -> Result<LayerParameters<O>, LoadError> {
    let hidden = config.hidden;
    let mixture = config.experts.as_ref().filter(|experts| experts.is_mixture[index]);
    let hybrid = config.hybrid.as_ref();
    Ok(LayerParameters {
        input_norm: loader.vector("input_layernorm.weight", hidden)?,
        mixer: match hybrid.filter(|hybrid| hybrid.is_linear[index]) {
            Some(hybrid) => Mixer::Delta(DeltaParameters::load(loader, hidden, hybrid.heads)?),
            None => Mixer::Attention(AttentionParameters::load(loader, config)?),
        },
        post_norm: loader.vector("post_attention_layernorm.weight", hidden)?,
        feed_forward: match mixture {
            Some(experts) => load_experts(loader, hidden, experts)?,
            None => {
                FeedForward::Dense(load_projections(loader, "mlp", hidden, config.intermediate)?)
            }
        },
    })
}

/// Places the router and all experts of a layer.
fn load_experts<O: Ops, T: TensorSource + ?Sized>(
    loader: &Loader<'_, O, T>,
    hidden: usize,
    config: &ExpertConfig,
) -> Result<FeedForward<O>, LoadError> {
    let experts = config.choice.experts;
    let router = loader.matrix(&[(ROUTER, experts)], hidden)?;
    let (mut gate_up, mut down) = (Vec::with_capacity(experts), Vec::with_capacity(experts));
    for expert in 0..experts {
        let prefix = format!("mlp.experts.{expert}");
        let projections = load_projections(loader, &prefix, hidden, config.intermediate)?;
        gate_up.push(projections.gate_up);
        down.push(projections.down);
    }
    let shared = match config.shared {
        Some(inner) => Some(SharedExpert {
            projections: load_projections(loader, SHARED, hidden, inner)?,
            gate: loader.ops.upload(&loader.take(SHARED_GATE, &[1, hidden])?.widen()?)?,
        }),
        None => None,
    };
    Ok(FeedForward::Experts { router, gate_up, down, shared })
}

/// Places the matrices of a feed-forward part of `inner` columns.
fn load_projections<O: Ops, T: TensorSource + ?Sized>(
    loader: &Loader<'_, O, T>,
    prefix: &str,
    hidden: usize,
    inner: usize,
) -> Result<Projections<O>, LoadError> {
    let [gate, up, down] =
        ["gate", "up", "down"].map(|name| format!("{prefix}.{name}_proj.weight"));
    Ok(Projections {
        gate_up: loader.matrix(&[(&gate, inner), (&up, inner)], hidden)?,
        down: loader.matrix(&[(&down, hidden)], inner)?,
    })
}
