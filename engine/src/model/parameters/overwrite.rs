//! Weights that are written over those on the device, one tensor after another.

use std::ptr;

use kernels::{MatrixPart, Ops};

use super::{LayerParameters, ModelParameters, TensorLocation};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::weights::Elements;

/// Matrices and vectors that may be changed.
type AllMut<'a, O> = (Vec<&'a mut <O as Ops>::Matrix>, Vec<&'a mut <O as Ops>::Buffer>);

/// The place of a tensor, with the addresses of what is to be changed.
enum Target<O: Ops> {
    Rows(*const O::Matrix, usize),
    /// Runs of as many elements belong to the two matrices in turn.
    Turns([*const O::Matrix; 2], usize),
    Elements(*const O::Buffer, usize),
}

impl<O: Ops> Target<O> {
    fn of(location: TensorLocation<'_, O>, hidden: usize) -> Target<O> {
        match location {
            TensorLocation::Rows(matrix, rows) => Target::Rows(matrix, rows.start),
            TensorLocation::Heads { query, gate, heads } => {
                Target::Turns([ptr::from_ref(query), ptr::from_ref(gate)], heads.dim * hidden)
            }
            TensorLocation::Range(buffer, range) => Target::Elements(buffer, range.start),
        }
    }
}

impl<O: Ops> ModelParameters<O> {
    /// Writes the elements of a tensor over those that it has, by its name in files.
    pub(crate) fn overwrite(
        &mut self,
        ops: &O,
        config: &ModelConfig,
        name: &str,
        elements: Elements,
    ) -> Result<(), ModelError> {
        let unknown = || ModelError::UnknownTensor { name: name.to_owned() };
        let location = self.locate(config, name).ok_or_else(unknown)?;
        let target = Target::of(location, config.hidden);
        let (mut matrices, mut buffers) = self.around(name).ok_or_else(unknown)?;
        let mut write = |at: *const O::Matrix, row: usize, parts: &[Elements]| {
            let parts: Vec<MatrixPart<'_>> = parts.iter().map(Elements::part).collect();
            let found = matrices.iter_mut().find(|matrix| ptr::eq::<O::Matrix>(&***matrix, at));
            found.map_or(Ok(()), |matrix| ops.write_matrix(matrix, row, &parts))
        };

        match target {
            Target::Rows(at, row) => write(at, row, &[elements])?,
            Target::Turns(both, run) => {
                let parts = elements.alternating(run);
                both.iter().zip(&parts).try_for_each(|(at, parts)| write(*at, 0, parts))?;
            }
            Target::Elements(at, start) => {
                let values = elements.widen()?;
                let found = buffers.iter_mut().find(|buffer| ptr::eq::<O::Buffer>(&***buffer, at));
                found.map_or(Ok(()), |buffer| ops.write_buffer(buffer, start, &values))?;
            }
        }
        Ok(())
    }

    /// The parameters beside a tensor: all of its layer, or all that are in none.
    fn around(&mut self, name: &str) -> Option<AllMut<'_, O>> {
        let Some(name) = name.strip_prefix("model.layers.") else {
            let mut matrices = vec![&mut self.embedding];
            matrices.extend(&mut self.head);
            return Some((matrices, vec![&mut self.norm]));
        };
        let (index, _) = name.split_once('.')?;
        self.layers.get_mut(index.parse::<usize>().ok()?).map(LayerParameters::all_mut)
    }
}
