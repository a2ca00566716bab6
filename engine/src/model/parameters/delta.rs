//! The weights of a gated delta rule.

use std::ops::Range;

use kernels::{DeltaHeads, Ops};

use super::loader::Loader;
use super::{ModelConfig, TensorLocation};
use crate::error::LoadError;
use crate::weights::TensorSource;

/// The weights of a gated delta rule in one layer.
pub(crate) struct DeltaParameters<O: Ops> {
    /// The rows of queries, keys and values, of output gates, strengths and decays, one under
    /// another: all products of the layer's input.
    pub(crate) input: O::Matrix,
    /// `[channels, taps]`.
    pub(crate) convolution: O::Buffer,
    /// The logarithm of the rate of decay of each value head.
    pub(crate) decay: O::Buffer,
    pub(crate) decay_bias: O::Buffer,
    /// The norm of every value head of the result.
    pub(crate) norm: O::Buffer,
    pub(crate) output: O::Matrix,
}

/// The names of the parts of `input`, each with its rows.
fn inputs(heads: DeltaHeads) -> [(&'static str, usize); 4] {
    [
        ("linear_attn.in_proj_qkv.weight", heads.channels()),
        ("linear_attn.in_proj_z.weight", heads.value_width()),
        ("linear_attn.in_proj_b.weight", heads.value),
        ("linear_attn.in_proj_a.weight", heads.value),
    ]
}

impl<O: Ops> DeltaParameters<O> {
    /// Places the weights of one layer.
    pub(super) fn load<T: TensorSource + ?Sized>(
        loader: &Loader<'_, O, T>,
        hidden: usize,
        heads: DeltaHeads,
    ) -> Result<DeltaParameters<O>, LoadError> {
        let kernel =
            loader.take("linear_attn.conv1d.weight", &[heads.channels(), 1, heads.taps])?;
        Ok(DeltaParameters {
            input: loader.matrix(&inputs(heads), hidden)?,
            convolution: loader.ops.upload(&kernel.widen()?)?,
            decay: loader.vector("linear_attn.A_log", heads.value)?,
            decay_bias: loader.vector("linear_attn.dt_bias", heads.value)?,
            norm: loader.vector("linear_attn.norm.weight", heads.value_dim)?,
            output: loader
                .matrix(&[("linear_attn.out_proj.weight", hidden)], heads.value_width())?,
        })
    }

    /// Locates a tensor by its name without `linear_attn.`.
    pub(super) fn locate(&self, config: &ModelConfig, name: &str) -> Option<TensorLocation<'_, O>> {
        let heads = config.hybrid.as_ref()?.heads;
        if let Some(rows) = input_rows(heads, name) {
            return Some(TensorLocation::Rows(&self.input, rows));
        }
        let location = match name {
            "conv1d.weight" => {
                TensorLocation::Range(&self.convolution, 0..heads.channels() * heads.taps)
            }
            "A_log" => TensorLocation::Range(&self.decay, 0..heads.value),
            "dt_bias" => TensorLocation::Range(&self.decay_bias, 0..heads.value),
            "norm.weight" => TensorLocation::Range(&self.norm, 0..heads.value_dim),
            "out_proj.weight" => TensorLocation::Rows(&self.output, 0..config.hidden),
            _ => return None,
        };
        Some(location)
    }

    /// All matrices and all buffers, always in the same order.
    pub(super) fn all_mut(&mut self) -> (Vec<&mut O::Matrix>, Vec<&mut O::Buffer>) {
        let DeltaParameters { input, convolution, decay, decay_bias, norm, output } = self;
        (vec![input, output], vec![convolution, decay, decay_bias, norm])
    }
}

/// The rows of a part of the input, by its name without `linear_attn.`.
fn input_rows(heads: DeltaHeads, name: &str) -> Option<Range<usize>> {
    let mut start = 0;
    for (part, rows) in inputs(heads) {
        if part.strip_prefix("linear_attn.") == Some(name) {
            return Some(start..start + rows);
        }
        start += rows;
    }
    None
}
