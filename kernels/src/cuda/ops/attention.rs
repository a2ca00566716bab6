//! Attention: of decoded rows and prompts, and of prompts by tall tiles.

use super::launch::{op_error, pointer};
use crate::cuda::grid;
use crate::cuda::kernels::Arg;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{Buffer, Pages};
use crate::op::{Heads, LayerPages, OpError, check_len};

/// Arguments of the two kernels: those in front of their scratch memory.
type Operands = [Arg; 9];

impl Cuda {
    /// Attention of all rows of the running step. Prompts by tall tiles are launched first: there
    /// are many blocks of them, and those of decoded rows fill what their last ones leave free.
    pub(super) fn run_attention(
        &self,
        qkv: &Buffer,
        past: &LayerPages<&Pages>,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let (shape, heads) = (self.shape(), past.pages.heads);
        check_len("attention", "qkv", qkv.len, shape.rows * heads.row())?;
        out.resize(shape.rows * heads.query_width()).map_err(op_error("attention"))?;

        if shape.tall > 0 {
            self.launch_tall(&self.operands(self.offsets().tall, qkv, past, out)?, heads)?;
        }
        if shape.tiles > 0 {
            self.launch_attention(&self.operands(self.offsets().tiles, qkv, past, out)?, heads)?;
        }
        // Spans that decode are split into tiles; this adds up the sums of their splits.
        if shape.decodes > 0 && !self.variant.joined {
            self.combine_splits(out, heads)?;
        }
        Ok(())
    }

    /// The arguments that kernels of attention have in common, for tiles from this word on.
    fn operands(
        &self,
        tiles: usize,
        qkv: &Buffer,
        past: &LayerPages<&Pages>,
        out: &Buffer,
    ) -> Result<Operands, OpError> {
        let offsets = self.offsets();
        let [keys, values] = past.addresses()?;
        Ok([
            pointer(&out.storage),
            pointer(&qkv.storage),
            keys,
            values,
            self.words_at(tiles),
            self.words_at(offsets.span_row),
            self.words_at(offsets.span_start),
            self.words_at(offsets.table_at),
            self.words_at(offsets.tables),
        ])
    }

    fn launch_tall(&self, operands: &Operands, heads: Heads) -> Result<(), OpError> {
        let args = [&operands[..], &[pointer(&self.totals)], &sizes(heads)].concat();
        self.launch("attention_tall", grid::tall::grid(self.shape().tall, heads), &args)
    }

    fn launch_attention(&self, operands: &Operands, heads: Heads) -> Result<(), OpError> {
        let shape = self.shape();
        // Without it, sums of splits are left to the second kernel.
        let joins = self.variant.joined && shape.decodes > 0;
        let arrived = Arg::Pointer(if joins { self.arrived.address() } else { 0 });
        let args = [&operands[..], &[pointer(&self.partial_sums), arrived], &sizes(heads)].concat();
        self.launch("attention", grid::attention::grid(shape.tiles, heads), &args)
    }

    fn combine_splits(&self, out: &Buffer, heads: Heads) -> Result<(), OpError> {
        let (shape, offsets) = (self.shape(), self.offsets());
        let args = [
            pointer(&out.storage),
            pointer(&self.partial_sums),
            self.words_at(offsets.first_tile),
            self.words_at(offsets.tile_count),
            self.words_at(offsets.span_row),
            Arg::from(heads.query),
            Arg::from(heads.kv),
        ];
        self.launch("attention_combine", grid::attention::combine(shape.decodes, heads), &args)
    }
}

/// The last arguments of the two kernels: numbers of heads, and the scale of scores.
fn sizes(heads: Heads) -> [Arg; 3] {
    let scale = 1.0 / (heads.dim as f32).sqrt();
    [Arg::from(heads.query), Arg::from(heads.kv), Arg::Float(scale)]
}
