//! The weights of a model on a device.
//!
//! Matrices that take the same input are laid out as one, so that a step reads its input once.

use std::ops::Range;

use kernels::{Home, OpError, Ops, Values};

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

    /// Takes the numbers of `staged`, at the places where these are. Each pair has the same shape
    /// and type, so a failure is one of the device.
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

    /// Moves all of them out of the device's memory, or back into it. What was moved before a
    /// failure stays where it came to; the same may be asked for again.
    pub(crate) fn move_to(&mut self, ops: &O, home: Home) -> Result<(), OpError> {
        ops.move_matrix(&mut self.embedding, home)?;
        ops.move_buffer(&mut self.norm, home)?;
        self.head.iter_mut().try_for_each(|head| ops.move_matrix(head, home))?;
        for layer in &mut self.layers {
            let (matrices, buffers) = layer.all();
            matrices.into_iter().try_for_each(|matrix| ops.move_matrix(matrix, home))?;
            buffers.into_iter().try_for_each(|buffer| ops.move_buffer(buffer, home))?;
        }
        Ok(())
    }

    /// The elements of a tensor by its name in files, row-major and widened.
    pub(crate) fn read(
        &self,
        ops: &O,
        config: &ModelConfig,
        name: &str,
    ) -> Result<Vec<f32>, LoadError> {
        let mut values = Vec::new();
        match self.find(config, name) {
            Some(Place::Rows(matrix, rows)) => ops.read_matrix(matrix, rows, &mut values)?,
            Some(Place::Range(buffer, range)) => {
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

    fn find(&self, config: &ModelConfig, name: &str) -> Option<Place<'_, O>> {
        let rows = 0..config.vocab;
        match name {
            "model.embed_tokens.weight" => Some(Place::Rows(&self.embedding, rows)),
            "model.norm.weight" => Some(Place::Range(&self.norm, 0..config.hidden)),
            "lm_head.weight" => Some(Place::Rows(self.head.as_ref()?, rows)),
            _ => {
                let (index, name) = name.strip_prefix("model.layers.")?.split_once('.')?;
                self.layers.get(index.parse::<usize>().ok()?)?.find(config, name)
            }
        }
    }

    /// What turns a hidden row into logits, `[vocab, hidden]`.
    pub(crate) fn head(&self) -> &O::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Where the elements of a tensor are.
enum Place<'a, O: Ops> {
    Rows(&'a O::Matrix, Range<usize>),
    Range(&'a O::Buffer, Range<usize>),
}

impl<O: Ops> Layer<O> {
    fn find(&self, config: &ModelConfig, name: &str) -> Option<Place<'_, O>> {
        let (hidden, inner, heads) = (config.hidden, config.intermediate, config.heads);
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let rows = |matrix, range| Some(Place::Rows(matrix, range));
        let range = |buffer, range| Some(Place::Range(buffer, range));
        if let Some(rest) = name.strip_prefix("self_attn.") {
            let part = match rest.get(..1)? {
                "q" => 0..query,
                "k" => query..query + kv,
                _ => query + kv..query + 2 * kv,
            };
            return match rest {
                "q_proj.weight" | "k_proj.weight" | "v_proj.weight" => rows(&self.qkv, part),
                "q_proj.bias" | "k_proj.bias" | "v_proj.bias" => {
                    range(self.qkv_bias.as_ref()?, part)
                }
                "q_norm.weight" => range(&self.head_norms.as_ref()?.0, 0..heads.dim),
                "k_norm.weight" => range(&self.head_norms.as_ref()?.1, 0..heads.dim),
                "o_proj.weight" => rows(&self.output, 0..hidden),
                "o_proj.bias" => range(self.output_bias.as_ref()?, 0..hidden),
                _ => None,
            };
        }
        match name {
            "input_layernorm.weight" => range(&self.input_norm, 0..hidden),
            "post_attention_layernorm.weight" => range(&self.post_norm, 0..hidden),
            "mlp.gate_proj.weight" => rows(&self.gate_up, 0..inner),
            "mlp.up_proj.weight" => rows(&self.gate_up, inner..2 * inner),
            "mlp.down_proj.weight" => rows(&self.down, 0..hidden),
            _ => None,
        }
    }

    /// Everything, always in the same order.
    fn all(&mut self) -> ([&mut O::Matrix; 4], Vec<&mut O::Buffer>) {
        let matrices = [&mut self.qkv, &mut self.output, &mut self.gate_up, &mut self.down];
        let mut buffers = vec![&mut self.input_norm, &mut self.post_norm];
        buffers.extend(&mut self.qkv_bias);
        buffers.extend(&mut self.output_bias);
        buffers.extend(self.head_norms.iter_mut().flat_map(|(query, key)| [query, key]));
        (matrices, buffers)
    }

    fn replace(&mut self, ops: &O, staged: &mut Layer<O>) -> Result<(), OpError> {
        let ((live, live_buffers), (staged, staged_buffers)) = (self.all(), staged.all());
        for (live, staged) in live.into_iter().zip(staged) {
            ops.replace_matrix(live, staged)?;
        }
        for (live, staged) in live_buffers.into_iter().zip(staged_buffers) {
            ops.replace_buffer(live, staged)?;
        }
        Ok(())
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
