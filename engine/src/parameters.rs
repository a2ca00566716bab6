//! The weights of a model on a device.
//!
//! Matrices that take the same input are laid out as one, so that a step reads its input once.

use kernels::{Ops, Values};

use crate::config::ModelConfig;
use crate::load::LoadError;
use crate::weights::{Tensor, Tensors};

/// What training changes: every weight of a model.
pub(crate) struct Parameters<O: Ops> {
    /// `[vocab, hidden]`.
    pub(crate) embedding: O::Matrix,
    pub(crate) layers: Vec<Layer<O>>,
    pub(crate) norm: O::Buffer,
    /// Absent when the embedding serves as the head.
    head: Option<O::Matrix>,
}

/// The weights of one layer.
pub(crate) struct Layer<O: Ops> {
    pub(crate) input_norm: O::Buffer,
    /// Queries, keys and values one under another.
    pub(crate) qkv: O::Matrix,
    pub(crate) qkv_bias: Option<O::Buffer>,
    /// Of every query head and of every key head.
    pub(crate) head_norms: Option<(O::Buffer, O::Buffer)>,
    pub(crate) output: O::Matrix,
    pub(crate) output_bias: Option<O::Buffer>,
    pub(crate) post_norm: O::Buffer,
    /// The gate above the other.
    pub(crate) gate_up: O::Matrix,
    pub(crate) down: O::Matrix,
}

impl<O: Ops> Parameters<O> {
    /// Lays weights out on a device.
    pub(crate) fn load(
        ops: &O,
        weights: &(impl Tensors + ?Sized),
        config: &ModelConfig,
    ) -> Result<Parameters<O>, LoadError> {
        let (vocab, hidden) = (config.vocab, config.hidden);
        let matrix = |name: &str| {
            let values = weights.take(name, &[vocab, hidden])?;
            Ok::<_, LoadError>(ops.matrix(&[values.view()], vocab, hidden)?)
        };
        let layers = (0..config.layers).map(|index| layer(ops, weights, config, index));
        Ok(Parameters {
            embedding: matrix("model.embed_tokens.weight")?,
            layers: layers.collect::<Result<_, _>>()?,
            norm: ops.upload(&weights.take("model.norm.weight", &[hidden])?.widen())?,
            head: if config.tied { None } else { Some(matrix("lm_head.weight")?) },
        })
    }

    /// What turns a hidden row into logits, `[vocab, hidden]`.
    pub(crate) fn head(&self) -> &O::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Reads one layer.
fn layer<O: Ops>(
    ops: &O,
    weights: &(impl Tensors + ?Sized),
    config: &ModelConfig,
    index: usize,
) -> Result<Layer<O>, LoadError> {
    let full = |name: &str| format!("model.layers.{index}.{name}");
    let (hidden, inner, heads) = (config.hidden, config.intermediate, config.heads);
    let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    let vector = |name: &str, len: usize| {
        Ok::<_, LoadError>(ops.upload(&weights.take(&full(name), &[len])?.widen())?)
    };
    let fused = |parts: &[(&str, usize)], columns: usize| {
        let take = |(name, rows): &(&str, usize)| weights.take(&full(name), &[*rows, columns]);
        let tensors: Vec<Tensor> = parts.iter().map(take).collect::<Result<_, _>>()?;
        let values: Vec<Values<'_>> = tensors.iter().map(Tensor::view).collect();
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        Ok::<_, LoadError>(ops.matrix(&values, rows, columns)?)
    };
    let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
    let sizes = [query, kv, kv];
    let qkv_bias = if config.qkv_bias {
        let mut values = Vec::new();
        for (name, len) in qkv.iter().zip(sizes) {
            values.extend(weights.take(&full(&format!("{name}.bias")), &[len])?.widen());
        }
        Some(ops.upload(&values)?)
    } else {
        None
    };
    let qkv = qkv.map(|name| format!("{name}.weight"));
    let norm = |name| config.head_norm.then(|| vector(name, heads.dim)).transpose();
    let query_norm = norm("self_attn.q_norm.weight")?;
    let output_bias = || vector("self_attn.o_proj.bias", hidden);
    Ok(Layer {
        input_norm: vector("input_layernorm.weight", hidden)?,
        qkv: fused(&[(&qkv[0], query), (&qkv[1], kv), (&qkv[2], kv)], hidden)?,
        qkv_bias,
        head_norms: query_norm.zip(norm("self_attn.k_norm.weight")?),
        output: fused(&[("self_attn.o_proj.weight", hidden)], query)?,
        output_bias: config.output_bias.then(output_bias).transpose()?,
        post_norm: vector("post_attention_layernorm.weight", hidden)?,
        gate_up: fused(&[("mlp.gate_proj.weight", inner), ("mlp.up_proj.weight", inner)], hidden)?,
        down: fused(&[("mlp.down_proj.weight", hidden)], inner)?,
    })
}
