//! Computations on each row by itself, of which operations are made: norms, sums, rotations.

use super::{Cpu, dispatch};
use crate::op::{Heads, OpError, RmsNorm, Rotation, check_index, check_len, check_multiple};

impl Cpu {
    /// `out[t] = x[rows[t]]`: x `[T, width]`, out `[rows.len(), width]`.
    pub(super) fn gather(
        &self,
        x: &[f32],
        width: usize,
        rows: &[usize],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let count = check_multiple("gather", "x", x.len(), width)?;
        out.clear();
        for &index in rows {
            check_index("gather", index, count)?;
            out.extend_from_slice(&x[index * width..][..width]);
        }
        Ok(())
    }

    /// `out = x / rms(x) * (weight + offset)` over rows as wide as `weight`.
    pub(super) fn rms_norm(
        &self,
        x: &[f32],
        norm: &RmsNorm<'_, Vec<f32>>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let RmsNorm { weight, offset, eps } = *norm;
        check_multiple("rms_norm", "x", x.len(), weight.len())?;
        out.clear();
        out.extend_from_slice(x);
        self.share_rows(out, weight.len(), |rows, _| {
            dispatch::rms_norm(self.simd, rows, weight, [offset, eps])
        });
        Ok(())
    }

    /// `x += y`.
    pub(super) fn add(&self, x: &mut [f32], y: &[f32]) -> Result<(), OpError> {
        check_len("add", "y", y.len(), x.len())?;
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        Ok(())
    }

    /// Norms every query head by the first of two norms and every key head by the second, in place.
    pub(super) fn head_norm(
        &self,
        qkv: &mut [f32],
        heads: Heads,
        [query_norm, key_norm]: [RmsNorm<'_, Vec<f32>>; 2],
    ) -> Result<(), OpError> {
        check_multiple("head_norm", "qkv", qkv.len(), heads.row())?;
        check_len("head_norm", "weights.0", query_norm.weight.len(), heads.dim)?;
        check_len("head_norm", "weights.1", key_norm.weight.len(), heads.dim)?;
        let norm = |rows: &mut [f32], norm: &RmsNorm<'_, Vec<f32>>| {
            dispatch::rms_norm(self.simd, rows, norm.weight, [norm.offset, norm.eps]);
        };
        self.share_rows(qkv, heads.row(), |rows, _| {
            for row in rows.chunks_exact_mut(heads.row()) {
                let (queries, rest) = row.split_at_mut(heads.query_width());
                let keys = &mut rest[..heads.kv * heads.dim];
                norm(queries, &query_norm);
                norm(keys, &key_norm);
            }
        });
        Ok(())
    }

    /// Rotates query and key heads in place.
    pub(super) fn rope(
        &self,
        qkv: &mut [f32],
        heads: Heads,
        rotation: &Rotation<'_, Vec<f32>>,
        positions: &[usize],
    ) -> Result<(), OpError> {
        let Rotation { table, width, .. } = *rotation;
        check_len("rope", "qkv", qkv.len(), positions.len() * heads.row())?;
        check_index("rope", width, heads.dim + 1)?;
        let rows = check_multiple("rope", "table", table.len(), width)?;
        positions.iter().try_for_each(|index| check_index("rope", *index, rows))?;

        self.share_rows(qkv, heads.row(), |rows, first| {
            for (row, index) in rows.chunks_exact_mut(heads.row()).zip(&positions[first..]) {
                let rotated = &mut row[..(heads.query + heads.kv) * heads.dim];
                let cos_sin = &table[index * width..][..width];
                dispatch::rotate_heads(self.simd, rotated, heads.dim, cos_sin);
            }
        });
        Ok(())
    }
}
