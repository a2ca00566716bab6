//! The weights of attention.

use std::ops::Range;

use kernels::{Heads, Ops};

use super::loader::Loader;
use super::{ModelConfig, TensorLocation};
use crate::error::LoadError;
use crate::weights::{Elements, TensorSource};

/// The weights of attention in one layer.
pub(crate) struct AttentionParameters<O: Ops> {
    /// The rows of queries, keys and values, one under another.
    pub(crate) qkv: O::Matrix,
    pub(crate) qkv_bias: Option<O::Buffer>,
    /// The rows of the gates of the result, in a hybrid. In files, those of each head are below the
    /// head's queries.
    pub(crate) gate: Option<O::Matrix>,
    /// The norms of every query head and of every key head, `[head dim]` each.
    pub(crate) head_norms: Option<(O::Buffer, O::Buffer)>,
    pub(crate) output: O::Matrix,
    pub(crate) output_bias: Option<O::Buffer>,
}

const QUERY: &str = "self_attn.q_proj.weight";
const KEY: &str = "self_attn.k_proj.weight";
const VALUE: &str = "self_attn.v_proj.weight";

impl<O: Ops> AttentionParameters<O> {
    /// Places the weights of one layer.
    pub(super) fn load<T: TensorSource + ?Sized>(
        loader: &Loader<'_, O, T>,
        config: &ModelConfig,
    ) -> Result<AttentionParameters<O>, LoadError> {
        let (hidden, heads) = (config.hidden, config.heads);
        let (query, kv) = (heads.query_width(), heads.kv * heads.dim);
        let (qkv, gate) = match config.hybrid {
            Some(_) => load_gated(loader, hidden, heads)?,
            // Tensors with one input become one matrix, in this order.
            None => (loader.matrix(&[(QUERY, query), (KEY, kv), (VALUE, kv)], hidden)?, None),
        };
        let biases = [
            ("self_attn.q_proj.bias", query),
            ("self_attn.k_proj.bias", kv),
            ("self_attn.v_proj.bias", kv),
        ];

        Ok(AttentionParameters {
            qkv,
            qkv_bias: match config.qkv_bias {
                true => Some(loader.joined_vector(&biases)?),
                false => None,
            },
            gate,
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
        })
    }

    /// Locates a tensor by its name without `self_attn.`.
    pub(super) fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let (hidden, heads) = (config.hidden, config.heads);
        let (query, kv) = (heads.query_width(), heads.kv * heads.dim);
        // The names of queries, keys and values begin with different letters.
        let qkv_rows: Range<usize> = match name.get(..1)? {
            "q" => 0..query,
            "k" => query..query + kv,
            _ => query + kv..query + 2 * kv,
        };

        let location = match (name, &self.gate) {
            ("q_proj.weight", Some(gate)) => {
                TensorLocation::Heads { query: &self.qkv, gate, heads }
            }
            ("q_proj.weight" | "k_proj.weight" | "v_proj.weight", _) => {
                TensorLocation::Rows(&self.qkv, qkv_rows)
            }
            ("q_proj.bias" | "k_proj.bias" | "v_proj.bias", _) => {
                TensorLocation::Range(self.qkv_bias.as_ref()?, qkv_rows)
            }
            ("q_norm.weight", _) => {
                TensorLocation::Range(&self.head_norms.as_ref()?.0, 0..heads.dim)
            }
            ("k_norm.weight", _) => {
                TensorLocation::Range(&self.head_norms.as_ref()?.1, 0..heads.dim)
            }
            ("o_proj.weight", _) => TensorLocation::Rows(&self.output, 0..hidden),
            ("o_proj.bias", _) => TensorLocation::Range(self.output_bias.as_ref()?, 0..hidden),
            _ => return None,
        };
        Some(location)
    }

    /// All matrices and all buffers, always in the same order.
    pub(super) fn all_mut(&mut self) -> (Vec<&mut O::Matrix>, Vec<&mut O::Buffer>) {
        let mut matrices = vec![&mut self.qkv, &mut self.output];
        matrices.extend(&mut self.gate);
        let mut buffers: Vec<&mut O::Buffer> = Vec::new();
        buffers.extend(&mut self.qkv_bias);
        buffers.extend(&mut self.output_bias);
        buffers.extend(self.head_norms.iter_mut().flat_map(|(query, key)| [query, key]));
        (matrices, buffers)
    }
}

/// Places queries, keys and values as one matrix, and the gates as another.
fn load_gated<O: Ops, T: TensorSource + ?Sized>(
    loader: &Loader<'_, O, T>,
    hidden: usize,
    heads: Heads,
) -> Result<(O::Matrix, Option<O::Matrix>), LoadError> {
    let kv = heads.kv * heads.dim;
    let both = loader.take(QUERY, &[2 * heads.query_width(), hidden])?;
    let [mut qkv, gate]: [Vec<Elements>; 2] = both.alternating(heads.dim * hidden);
    qkv.push(loader.take(KEY, &[kv, hidden])?);
    qkv.push(loader.take(VALUE, &[kv, hidden])?);
    Ok((loader.stack(&qkv, hidden)?, Some(loader.stack(&gate, hidden)?)))
}
