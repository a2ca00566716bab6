//! Places tensors by name.

use kernels::{MatrixPart, Ops};

use crate::error::LoadError;
use crate::weights::{Elements, TensorSource};

/// Places tensors whose names begin with `prefix`.
pub(super) struct Loader<'a, O: Ops, T: ?Sized> {
    pub(super) ops: &'a O,
    pub(super) weights: &'a T,
    pub(super) prefix: String,
}

impl<O: Ops, T: TensorSource + ?Sized> Loader<'_, O, T> {
    pub(super) fn take(&self, name: &str, shape: &[usize]) -> Result<Elements, LoadError> {
        self.weights.take_elements(&format!("{}{name}", self.prefix), shape)
    }

    /// A vector of `len` elements.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<O::Buffer, LoadError> {
        Ok(self.ops.upload(&self.take(name, &[len])?.widen()?)?)
    }

    /// Several vectors, one behind another, each with its length.
    pub(super) fn joined_vector(&self, parts: &[(&str, usize)]) -> Result<O::Buffer, LoadError> {
        let mut values = Vec::new();
        for (name, len) in parts {
            values.extend(self.take(name, &[*len])?.widen()?);
        }
        Ok(self.ops.upload(&values)?)
    }

    /// One matrix of several with the same columns, one under another, each with its rows.
    pub(super) fn matrix(
        &self,
        parts: &[(&str, usize)],
        columns: usize,
    ) -> Result<O::Matrix, LoadError> {
        let mut tensors = Vec::with_capacity(parts.len());
        for (name, rows) in parts {
            tensors.push(self.take(name, &[*rows, columns])?);
        }
        self.stack(&tensors, columns)
    }

    /// One matrix of several with the same columns, one under another.
    pub(super) fn stack(&self, parts: &[Elements], columns: usize) -> Result<O::Matrix, LoadError> {
        let parts: Vec<MatrixPart<'_>> = parts.iter().map(Elements::part).collect();
        let rows = parts.iter().map(MatrixPart::len).sum::<usize>() / columns;
        Ok(self.ops.matrix_of(&parts, rows, columns)?)
    }
}
