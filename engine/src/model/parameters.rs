//! The weights of a model on a device.
//!
//! Matrices that take the same input are laid out as one, so that a step reads its input once.

use std::ops::Range;

use kernels::{OpError, Ops, Placement, Values};

use super::config::ModelConfig;
use super::experts::{ExpertConfig, ExpertMatrix};
use crate::error::LoadError;
use crate::weights::{Tensor, TensorSource};

const EMBEDDING: &str = "model.embed_tokens.weight";
const NORM: &str = "model.norm.weight";
const HEAD: &str = "lm_head.weight";
/// The router of a mixture of experts, within its layer.
const ROUTER: &str = "mlp.gate.weight";

/// Every weight of a model.
pub(crate) struct Parameters<O: Ops> {
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
    /// The rows of queries, keys and values, one under another.
    pub(crate) qkv: O::Matrix,
    pub(crate) qkv_bias: Option<O::Buffer>,
    /// The norms of every query head and of every key head, `[head dim]` each.
    pub(crate) head_norms: Option<(O::Buffer, O::Buffer)>,
    pub(crate) output: O::Matrix,
    pub(crate) output_bias: Option<O::Buffer>,
    pub(crate) post_norm: O::Buffer,
    pub(crate) feed_forward: FeedForward<O>,
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
    },
}

/// The matrices of a feed-forward part.
pub(crate) struct Projections<O: Ops> {
    /// The rows of the gate above those of the up projection.
    pub(crate) gate_up: O::Matrix,
    pub(crate) down: O::Matrix,
}

impl<O: Ops> Parameters<O> {
    /// Places all weights of `weights` on a device.
    pub(crate) fn load(
        ops: &O,
        weights: &(impl TensorSource + ?Sized),
        config: &ModelConfig,
    ) -> Result<Parameters<O>, LoadError> {
        let (vocab, hidden) = (config.vocab, config.hidden);
        let root = Loader { ops, weights, prefix: String::new() };
        let embedding = root.matrix(&[(EMBEDDING, vocab)], hidden)?;

        let mut layers = Vec::with_capacity(config.layers);
        for index in 0..config.layers {
            let prefix = format!("model.layers.{index}.");
            let loader = Loader { ops, weights, prefix };
            let mixture = config.experts.as_ref().filter(|experts| experts.is_mixture[index]);
            layers.push(load_layer(&loader, config, mixture)?);
        }

        Ok(Parameters {
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
    pub(crate) fn replace(&mut self, ops: &O, staged: &mut Parameters<O>) -> Result<(), OpError> {
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
    Range(&'a O::Buffer, Range<usize>),
}

impl<O: Ops> LayerParameters<O> {
    fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        if let Some(attention) = name.strip_prefix("self_attn.") {
            return self.locate_attention(config, attention);
        }
        let hidden = config.hidden;
        let location = match name {
            "input_layernorm.weight" => TensorLocation::Range(&self.input_norm, 0..hidden),
            "post_attention_layernorm.weight" => TensorLocation::Range(&self.post_norm, 0..hidden),
            _ => return self.feed_forward.locate(config, name),
        };
        Some(location)
    }

    /// Locates a tensor of the attention by its name without `self_attn.`.
    fn locate_attention(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let (hidden, heads) = (config.hidden, config.heads);
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        // The names of queries, keys and values begin with different letters.
        let qkv_rows = match name.get(..1)? {
            "q" => 0..query,
            "k" => query..query + kv,
            _ => query + kv..query + 2 * kv,
        };

        let location = match name {
            "q_proj.weight" | "k_proj.weight" | "v_proj.weight" => {
                TensorLocation::Rows(&self.qkv, qkv_rows)
            }
            "q_proj.bias" | "k_proj.bias" | "v_proj.bias" => {
                TensorLocation::Range(self.qkv_bias.as_ref()?, qkv_rows)
            }
            "q_norm.weight" => TensorLocation::Range(&self.head_norms.as_ref()?.0, 0..heads.dim),
            "k_norm.weight" => TensorLocation::Range(&self.head_norms.as_ref()?.1, 0..heads.dim),
            "o_proj.weight" => TensorLocation::Rows(&self.output, 0..hidden),
            "o_proj.bias" => TensorLocation::Range(self.output_bias.as_ref()?, 0..hidden),
            _ => return None,
        };
        Some(location)
    }

    /// All matrices and all buffers, always in the same order.
    fn all_mut(&mut self) -> (Vec<&mut O::Matrix>, Vec<&mut O::Buffer>) {
        let mut matrices = vec![&mut self.qkv, &mut self.output];
        match &mut self.feed_forward {
            FeedForward::Dense(Projections { gate_up, down }) => matrices.extend([gate_up, down]),
            FeedForward::Experts { router, gate_up, down } => {
                matrices.push(router);
                matrices.extend(gate_up.iter_mut().chain(down));
            }
        }
        let mut buffers = vec![&mut self.input_norm, &mut self.post_norm];
        buffers.extend(&mut self.qkv_bias);
        buffers.extend(&mut self.output_bias);
        buffers.extend(self.head_norms.iter_mut().flat_map(|(query, key)| [query, key]));
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

impl<O: Ops> FeedForward<O> {
    fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let hidden = config.hidden;
        match self {
            FeedForward::Dense(Projections { gate_up, down }) => {
                let inner = config.intermediate;
                Some(match name {
                    "mlp.gate_proj.weight" => TensorLocation::Rows(gate_up, 0..inner),
                    "mlp.up_proj.weight" => TensorLocation::Rows(gate_up, inner..2 * inner),
                    "mlp.down_proj.weight" => TensorLocation::Rows(down, 0..hidden),
                    _ => return None,
                })
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

/// Places tensors whose names begin with `prefix`.
struct Loader<'a, O: Ops, T: ?Sized> {
    ops: &'a O,
    weights: &'a T,
    prefix: String,
}

impl<O: Ops, T: TensorSource + ?Sized> Loader<'_, O, T> {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        self.weights.take(&format!("{}{name}", self.prefix), shape)
    }

    /// A vector of `len` elements.
    fn vector(&self, name: &str, len: usize) -> Result<O::Buffer, LoadError> {
        Ok(self.ops.upload(&self.take(name, &[len])?.widen())?)
    }

    /// Several vectors, one behind another, each with its length.
    fn joined_vector(&self, parts: &[(&str, usize)]) -> Result<O::Buffer, LoadError> {
        let mut values = Vec::new();
        for (name, len) in parts {
            values.extend(self.take(name, &[*len])?.widen());
        }
        Ok(self.ops.upload(&values)?)
    }

    /// One matrix of several with the same columns, one under another, each with its rows.
    fn matrix(&self, parts: &[(&str, usize)], columns: usize) -> Result<O::Matrix, LoadError> {
        let mut tensors = Vec::with_capacity(parts.len());
        for (name, rows) in parts {
            tensors.push(self.take(name, &[*rows, columns])?);
        }
        let values: Vec<Values<'_>> = tensors.iter().map(Tensor::view).collect();
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        Ok(self.ops.matrix(&values, rows, columns)?)
    }
}

/// Places the weights of one layer, which is a mixture of experts if `mixture` is given.
fn load_layer<O: Ops, T: TensorSource + ?Sized>(
    loader: &Loader<'_, O, T>,
    config: &ModelConfig,
    mixture: Option<&ExpertConfig>,
) -> Result<LayerParameters<O>, LoadError> {
    let (hidden, heads) = (config.hidden, config.heads);
    let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    // Tensors with one input become one matrix, in this order.
    let qkv_weights = [
        ("self_attn.q_proj.weight", query),
        ("self_attn.k_proj.weight", kv),
        ("self_attn.v_proj.weight", kv),
    ];
    let qkv_biases = [
        ("self_attn.q_proj.bias", query),
        ("self_attn.k_proj.bias", kv),
        ("self_attn.v_proj.bias", kv),
    ];

    Ok(LayerParameters {
        input_norm: loader.vector("input_layernorm.weight", hidden)?,
        qkv: loader.matrix(&qkv_weights, hidden)?,
        qkv_bias: match config.qkv_bias {
            true => Some(loader.joined_vector(&qkv_biases)?),
            false => None,
        },
        head_norms: match config.head_norm {
            true => Some((
                loader.vector("self_attn.q_norm.weight", heads.dim)?,
                loader.vector("self_attn.k_norm.weight", heads.dim)?,
            )),
            false => None,
        },
        output: loader.matrix(&[("self_attn.o_proj.weight", hidden)], query)?,
        output_bias: match config.output_bias {
            true => Some(loader.vector("self_attn.o_proj.bias", hidden)?),
            false => None,
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
    Ok(FeedForward::Experts { router, gate_up, down })
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
