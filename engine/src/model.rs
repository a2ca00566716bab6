//! The forward pass.
//!
//! [`Model::forward`] takes the tokens of many sequences in one step, prefill chunks and decodes
//! mixed, and returns logits of the rows that asked for them.
//! A row's bits do not depend on what else is in the step.

use kernels::{OpError, Ops, Span, Values};

use crate::cache::SequenceCache;
use crate::config::ModelConfig;
use crate::load::LoadError;
use crate::rope;
use crate::weights::{Tensor, Tensors};

/// Which rows of a chunk need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    None,
    Last,
    All,
}

/// Tokens of one sequence in a step; they continue its cache.
pub(crate) struct Chunk<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) cache: &'a mut SequenceCache,
    pub(crate) want: Want,
}

struct Layer<O: Ops> {
    input_norm: O::Buffer,
    qkv: O::Matrix,
    qkv_bias: Option<O::Buffer>,
    head_norms: Option<(O::Buffer, O::Buffer)>,
    output: O::Matrix,
    output_bias: Option<O::Buffer>,
    post_norm: O::Buffer,
    gate_up: O::Matrix,
    down: O::Matrix,
}

/// Intermediate results of a step, kept from one to the next.
struct Scratch<O: Ops> {
    hidden: O::Buffer,
    normed: O::Buffer,
    wide: O::Buffer,
    mixed: O::Buffer,
    delta: O::Buffer,
    logits: O::Buffer,
}

/// A model on a device.
pub(crate) struct Model<O: Ops> {
    ops: O,
    config: ModelConfig,
    embedding: O::Matrix,
    layers: Vec<Layer<O>>,
    norm: O::Buffer,
    /// Absent when the embedding serves as the head.
    head: Option<O::Matrix>,
    rope: O::Buffer,
    pages: O::Pages,
    scratch: Scratch<O>,
    /// Room for logits on the host, while nobody has them.
    host: Vec<f32>,
}

impl<O: Ops> Model<O> {
    /// Lays weights out on a device; rotations are laid out for `positions`, and there is room for
    /// `pages` pages of keys and values.
    pub(crate) fn load(
        ops: O,
        weights: &impl Tensors,
        config: ModelConfig,
        positions: usize,
        pages: usize,
    ) -> Result<Model<O>, LoadError> {
        let (vocab, hidden) = (config.vocab, config.hidden);
        let matrix = |name: &str| {
            let values = weights.take(name, &[vocab, hidden])?;
            Ok::<_, LoadError>(ops.matrix(&[values.view()], vocab, hidden)?)
        };
        let layers = (0..config.layers).map(|index| layer(&ops, weights, &config, index));
        let empty = || ops.upload(&[]);
        Ok(Model {
            embedding: matrix("model.embed_tokens.weight")?,
            layers: layers.collect::<Result<_, _>>()?,
            norm: ops.upload(&weights.take("model.norm.weight", &[hidden])?.widen()),
            head: if config.tied { None } else { Some(matrix("lm_head.weight")?) },
            rope: ops.upload(&rope::table(&config, positions)),
            pages: ops.pages(config.heads, config.layers, pages)?,
            scratch: Scratch {
                hidden: empty(),
                normed: empty(),
                wide: empty(),
                mixed: empty(),
                delta: empty(),
                logits: empty(),
            },
            host: Vec::new(),
            config,
            ops,
        })
    }

    /// Elements of one row of logits.
    pub(crate) fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Runs one step and returns `[rows, vocab]` logits of the wanted rows, in order.
    pub(crate) fn forward(&mut self, chunks: &mut [Chunk<'_>]) -> Result<Vec<f32>, OpError> {
        let plan = Plan::of(chunks);
        let spans = plan.spans(chunks);
        let Model { ops, config, pages, scratch, .. } = self;
        ops.embed(&self.embedding, &plan.ids, &mut scratch.hidden)?;
        for (index, layer) in self.layers.iter().enumerate() {
            ops.rms_norm(&scratch.hidden, &layer.input_norm, config.eps, &mut scratch.normed)?;
            ops.matmul(&scratch.normed, &layer.qkv, &mut scratch.wide)?;
            if let Some(bias) = &layer.qkv_bias {
                ops.add_bias(&mut scratch.wide, bias)?;
            }
            if let Some((query, key)) = &layer.head_norms {
                ops.head_norm(&mut scratch.wide, config.heads, (query, key), config.eps)?;
            }
            ops.rope(&mut scratch.wide, config.heads, &self.rope, &plan.positions)?;
            ops.attention(&scratch.wide, (pages, index), &spans, &mut scratch.mixed)?;
            ops.matmul(&scratch.mixed, &layer.output, &mut scratch.delta)?;
            if let Some(bias) = &layer.output_bias {
                ops.add_bias(&mut scratch.delta, bias)?;
            }
            ops.add(&mut scratch.hidden, &scratch.delta)?;
            ops.rms_norm(&scratch.hidden, &layer.post_norm, config.eps, &mut scratch.normed)?;
            ops.matmul(&scratch.normed, &layer.gate_up, &mut scratch.wide)?;
            ops.silu_mul(&scratch.wide, config.intermediate, &mut scratch.mixed)?;
            ops.matmul(&scratch.mixed, &layer.down, &mut scratch.delta)?;
            ops.add(&mut scratch.hidden, &scratch.delta)?;
        }
        for chunk in chunks {
            chunk.cache.len += chunk.tokens.len();
        }
        self.head(&plan.wanted)
    }

    fn head(&mut self, rows: &[usize]) -> Result<Vec<f32>, OpError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let Model { ops, config, scratch, .. } = self;
        ops.gather(&scratch.hidden, config.hidden, rows, &mut scratch.delta)?;
        ops.rms_norm(&scratch.delta, &self.norm, config.eps, &mut scratch.normed)?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        ops.matmul(&scratch.normed, head, &mut scratch.logits)?;
        let mut logits = std::mem::take(&mut self.host);
        ops.download(&mut scratch.logits, &mut logits);
        Ok(logits)
    }

    /// Takes back what [`Model::forward`] gave, to be used again: a step of many rows would
    /// otherwise fault in megabytes of fresh memory each time.
    pub(crate) fn recycle(&mut self, logits: Vec<f32>) {
        if logits.capacity() > self.host.capacity() {
            self.host = logits;
        }
    }
}

/// Where the rows of a step come from.
struct Plan {
    ids: Vec<u32>,
    positions: Vec<usize>,
    /// First row of each chunk.
    starts: Vec<usize>,
    /// Rows that need logits.
    wanted: Vec<usize>,
}

impl Plan {
    fn of(chunks: &[Chunk<'_>]) -> Plan {
        let mut plan =
            Plan { ids: Vec::new(), positions: Vec::new(), starts: Vec::new(), wanted: Vec::new() };
        for chunk in chunks {
            let start = plan.ids.len();
            let end = start + chunk.tokens.len();
            let seen = chunk.cache.len;
            plan.starts.push(start);
            plan.ids.extend_from_slice(chunk.tokens);
            plan.positions.extend(seen..seen + chunk.tokens.len());
            match chunk.want {
                Want::None => {}
                Want::Last => plan.wanted.extend((start..end).last()),
                Want::All => plan.wanted.extend(start..end),
            }
        }
        plan
    }

    fn spans<'a>(&self, chunks: &'a [Chunk<'_>]) -> Vec<Span<'a>> {
        let spans = chunks.iter().zip(&self.starts).map(|(chunk, start)| Span {
            rows: *start..start + chunk.tokens.len(),
            start: chunk.cache.len,
            pages: &chunk.cache.pages,
        });
        spans.collect()
    }
}

/// Reads one layer; matrices that take the same input are laid out as one.
fn layer<O: Ops>(
    ops: &O,
    weights: &impl Tensors,
    config: &ModelConfig,
    index: usize,
) -> Result<Layer<O>, LoadError> {
    let full = |name: &str| format!("model.layers.{index}.{name}");
    let (hidden, inner, heads) = (config.hidden, config.intermediate, config.heads);
    let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    let vector = |name: &str, len: usize| {
        Ok::<_, LoadError>(ops.upload(&weights.take(&full(name), &[len])?.widen()))
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
        Some(ops.upload(&values))
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

#[cfg(test)]
mod tests;
