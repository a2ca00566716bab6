//! What is done to every row by itself: norms, sums, rotations. The operations are made of these.

use super::ops::{exact, multiple};
use super::{Cpu, level};
use crate::op::{Heads, OpError};

impl Cpu {
    /// `out[t] = x[rows[t]]`: x `[T, width]`, out `[rows.len(), width]`.
    pub(super) fn gather(
        &self,
        x: &[f32],
        width: usize,
        rows: &[usize],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let count = multiple("gather", "x", x.len(), width)?;
        out.clear();
        for &index in rows {
            if index >= count {
                return Err(OpError::Index { op: "gather", index, rows: count });
            }
            out.extend_from_slice(&x[index * width..][..width]);
        }
        Ok(())
    }

    /// `out = x / rms(x) * weight` over rows as wide as `weight`.
    pub(super) fn rms_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        multiple("rms_norm", "x", x.len(), weight.len())?;
        out.clear();
        out.extend_from_slice(x);
        self.share_rows(out, weight.len(), |rows, _| {
            level::rms_norm(self.level, rows, weight, eps)
        });
        Ok(())
    }

    /// `x += y`.
    pub(super) fn add(&self, x: &mut [f32], y: &[f32]) -> Result<(), OpError> {
        exact("add", "y", y.len(), x.len())?;
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        Ok(())
    }

    /// Norms of every query head by `weights.0` and of every key head by `weights.1`, in place.
    pub(super) fn head_norm(
        &self,
        qkv: &mut [f32],
        heads: Heads,
        weights: (&[f32], &[f32]),
        eps: f32,
    ) -> Result<(), OpError> {
        multiple("head_norm", "qkv", qkv.len(), heads.row())?;
        exact("head_norm", "weights.0", weights.0.len(), heads.dim)?;
        exact("head_norm", "weights.1", weights.1.len(), heads.dim)?;
        self.share_rows(qkv, heads.row(), |rows, _| {
            for row in rows.chunks_exact_mut(heads.row()) {
                let (queries, rest) = row.split_at_mut(heads.query_width());
                let keys = &mut rest[..heads.kv * heads.dim];
                level::rms_norm(self.level, queries, weights.0, eps);
                level::rms_norm(self.level, keys, weights.1, eps);
            }
        });
        Ok(())
    }

    /// Rotates query and key heads in place.
    pub(super) fn rope(
        &self,
        qkv: &mut [f32],
        heads: Heads,
        table: &[f32],
        positions: &[usize],
    ) -> Result<(), OpError> {
        exact("rope", "qkv", qkv.len(), positions.len() * heads.row())?;
        let rows = multiple("rope", "table", table.len(), heads.dim)?;
        if let Some(&index) = positions.iter().find(|index| **index >= rows) {
            return Err(OpError::Index { op: "rope", index, rows });
        }
        self.share_rows(qkv, heads.row(), |rows, first| {
            for (row, index) in rows.chunks_exact_mut(heads.row()).zip(&positions[first..]) {
                let turned = &mut row[..(heads.query + heads.kv) * heads.dim];
                level::rotate_heads(self.level, turned, &table[index * heads.dim..][..heads.dim]);
            }
        });
        Ok(())
    }
}
