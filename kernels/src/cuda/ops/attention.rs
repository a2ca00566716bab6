//! Rotation and attention: two launches, or one for steps that decode few rows; one more for
//! prompts by tall tiles, and one for the splits of many decoded rows.

use super::launch::{op_error, optional_pointer, pointer};
use crate::cuda::grid;
use crate::cuda::grid::tall::TallKernel;
use crate::cuda::kernels::Arg;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{CudaBuffer, CudaPages};
use crate::cuda::variant::{JOINED_ROWS, ROTATING_ROWS};
use crate::op::{
    Heads, KvFormat, LayerPages, OpError, Rotation, check_index, check_len, check_multiple,
};

/// Arguments of the kernels of attention: those in front of their scratch memory.
type Operands = [Arg; 9];

impl Cuda {
    /// True if rotation and attention of this step are one launch.
    pub(super) fn rotates_in_attention(&self, rotation: &Rotation<'_, CudaBuffer>) -> bool {
        let is_one = self.plan.records && self.shape().rows <= ROTATING_ROWS;
        self.variant.rotating && is_one && rotation.width == self.heads.dim
    }

    /// The kernel for the pages that there are, of those for bf16 and for FP8.
    fn page_kernel(&self, [native, fp8]: [&'static str; 2]) -> &'static str {
        match self.kv {
            KvFormat::Native => native,
            KvFormat::Fp8 => fp8,
        }
    }

    /// Launches `rope_write`, or `rope_write_part`; see [`crate::Ops::rope_and_cache`].
    pub(super) fn launch_rope(
        &self,
        qkv: &CudaBuffer,
        rotation: &Rotation<'_, CudaBuffer>,
        to: &LayerPages<&CudaPages>,
    ) -> Result<(), OpError> {
        self.check_rotation(qkv, rotation, to)?;
        let (heads, offsets) = (to.pages.heads, self.offsets());
        let [keys, values] = to.addresses()?;
        let [query_norm, key_norm] = norm_args(rotation);
        let args = [
            pointer(&qkv.storage),
            query_norm,
            key_norm,
            pointer(&rotation.table.storage),
            self.words_at(offsets.positions),
            self.words_at(offsets.slots),
            keys,
            values,
            Arg::from(heads.query),
            Arg::from(heads.kv),
            Arg::from(rotation.eps),
            Arg::from(rotation.offset),
        ];

        let (rows, row_heads) = (self.shape().rows, heads.query + 2 * heads.kv);
        if rotation.width == heads.dim {
            let name = self.page_kernel(["rope_write", "rope_write_fp8"]);
            return self.launch(name, grid::rope(rows, row_heads, heads.dim), &args);
        }
        let args = [&args[..], &[Arg::from(rotation.width)]].concat();
        let name = self.page_kernel(["rope_write_part", "rope_write_part_fp8"]);
        self.launch(name, grid::rope_part(rows, row_heads), &args)
    }

    /// Checks the operands of a rotation, and sets the bounds of the step's indexes.
    fn check_rotation(
        &self,
        qkv: &CudaBuffer,
        rotation: &Rotation<'_, CudaBuffer>,
        to: &LayerPages<&CudaPages>,
    ) -> Result<(), OpError> {
        let (op, heads, width) = ("rope_write", to.pages.heads, rotation.width);
        check_len(op, "qkv", qkv.len, self.shape().rows * heads.row())?;
        check_index(op, width, heads.dim + 1)?;
        let positions = check_multiple(op, "table", rotation.table.len, width)?;
        self.set_bounds(|bounds| {
            bounds.positions = positions;
            bounds.pages = to.pages.count;
        });
        Ok(())
    }

    /// Attention of all rows of the running step; see [`crate::Ops::attend`]. Prompts by tall tiles
    /// are launched first: there are many blocks of them, and those of decoded rows fill what their
    /// last ones leave free.
    pub(super) fn run_attention(
        &self,
        qkv: &CudaBuffer,
        past: &LayerPages<&CudaPages>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.resize_attended(qkv, past, out)?;
        let (shape, heads) = (self.shape(), past.pages.heads);
        if shape.tall > 0 {
            self.launch_tall(&self.operands(self.offsets().tall, qkv, past, out)?, heads)?;
        }
        if shape.tiles > 0 {
            self.launch_attention(&self.operands(self.offsets().tiles, qkv, past, out)?, heads)?;
        }
        self.combine_splits(out, heads)
    }

    /// Rotation and attention of a step that only decodes; see [`crate::Ops::rope_and_attend`].
    pub(super) fn run_rotating_attention(
        &self,
        qkv: &CudaBuffer,
        rotation: &Rotation<'_, CudaBuffer>,
        to: &LayerPages<&CudaPages>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.check_rotation(qkv, rotation, to)?;
        self.resize_attended(qkv, to, out)?;
        let (offsets, heads) = (self.offsets(), to.pages.heads);
        let operands = self.operands(offsets.tiles, qkv, to, out)?;
        let [query_norm, key_norm] = norm_args(rotation);
        let table = pointer(&rotation.table.storage);
        let inputs = [query_norm, key_norm, table, self.words_at(offsets.positions)];
        let floats = [Arg::from(rotation.eps), Arg::from(rotation.offset)];
        let args = [&operands[..], &self.split_scratch(), &inputs, &sizes(heads), &floats].concat();
        let grid = grid::attention::grid(self.shape().tiles, heads, self.kv);
        let name = self.page_kernel(["rope_attention", "rope_attention_fp8"]);
        self.launch(name, grid, &args)?;
        self.combine_splits(out, heads)
    }

    /// Checks the rows that attend, and makes room for their results.
    fn resize_attended(
        &self,
        qkv: &CudaBuffer,
        past: &LayerPages<&CudaPages>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let (rows, heads) = (self.shape().rows, past.pages.heads);
        check_len("attention", "qkv", qkv.len, rows * heads.row())?;
        out.resize(rows * heads.query_width()).map_err(op_error("attention"))
    }

    /// The arguments that kernels of attention have in common, for tiles from this word on.
    fn operands(
        &self,
        tiles: usize,
        qkv: &CudaBuffer,
        past: &LayerPages<&CudaPages>,
        out: &CudaBuffer,
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
        let kernel = self.tall_kernel();
        let grid = grid::tall::grid(kernel, self.shape().tall, heads, self.kv);
        match kernel {
            TallKernel::Warps => {
                let args = [&operands[..], &[pointer(&self.totals)], &sizes(heads)].concat();
                let name = self.page_kernel(["attention_tall", "attention_tall_fp8"]);
                self.launch(name, grid, &args)
            }
            TallKernel::Warpgroups => {
                let args = [&operands[..], &sizes(heads)].concat();
                self.launch("attention_warpgroups", grid, &args)
            }
        }
    }

    fn launch_attention(&self, operands: &Operands, heads: Heads) -> Result<(), OpError> {
        let args = [&operands[..], &self.split_scratch(), &sizes(heads)].concat();
        let grid = grid::attention::grid(self.shape().tiles, heads, self.kv);
        self.launch(self.page_kernel(["attention", "attention_fp8"]), grid, &args)
    }

    /// The sums of splits, and the counters with which the last block of a row finds that it is the
    /// last one, and adds them up.
    fn split_scratch(&self) -> [Arg; 2] {
        let arrived = if self.joins_splits() { self.arrived.address() } else { 0 };
        [pointer(&self.partial_sums), Arg::Pointer(arrived)]
    }

    /// True if attention adds up the sums of splits. Without it, a second kernel does.
    fn joins_splits(&self) -> bool {
        self.variant.joined && (1..=JOINED_ROWS).contains(&self.shape().decodes)
    }

    /// Adds up the sums of the splits of spans that decode, unless attention has done it.
    fn combine_splits(&self, out: &CudaBuffer, heads: Heads) -> Result<(), OpError> {
        let (shape, offsets) = (self.shape(), self.offsets());
        if self.joins_splits() || shape.decodes == 0 {
            return Ok(());
        }
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

/// The weights of the norms of queries and of keys. Kernels norm heads only if they get them.
fn norm_args(rotation: &Rotation<'_, CudaBuffer>) -> [Arg; 2] {
    [
        optional_pointer(rotation.norms.map(|(query, _)| query)),
        optional_pointer(rotation.norms.map(|(_, key)| key)),
    ]
}

/// Arguments of the kernels of attention: numbers of heads, and the scale of scores.
fn sizes(heads: Heads) -> [Arg; 3] {
    let scale = 1.0 / (heads.dim as f32).sqrt();
    [Arg::from(heads.query), Arg::from(heads.kv), Arg::Float(scale)]
}
