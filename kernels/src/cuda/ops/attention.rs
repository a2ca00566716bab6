//! Rotation and attention: two launches, or one for steps that only decode.

use super::launch::{op_error, optional_pointer, pointer};
use crate::cuda::grid;
use crate::cuda::kernels::Arg;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{Buffer, Pages};
use crate::op::{LayerPages, OpError, Rotation, check_index, check_len, check_multiple};

impl Cuda {
    /// True if rotation and attention of this step are one launch.
    pub(super) fn rotates_in_attention(&self, rotation: &Rotation<'_, Buffer>) -> bool {
        self.variant.rotating && self.plan.records && rotation.width == self.heads.dim
    }

    /// Launches `rope_write`, or `rope_write_part`; see [`crate::Ops::rope_and_cache`].
    pub(super) fn launch_rope(
        &self,
        qkv: &Buffer,
        rotation: &Rotation<'_, Buffer>,
        to: &LayerPages<&Pages>,
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
            return self.launch("rope_write", grid::rope(rows, row_heads, heads.dim), &args);
        }
        let args = [&args[..], &[Arg::from(rotation.width)]].concat();
        self.launch("rope_write_part", grid::rope_part(rows, row_heads), &args)
    }

    /// Launches `attention`; see [`crate::Ops::attend`].
    pub(super) fn launch_attention(
        &self,
        qkv: &Buffer,
        past: &LayerPages<&Pages>,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        self.resize_attended(qkv, past, out)?;
        let heads = past.pages.heads;
        let mut args = self.attention_args(qkv, past, out)?;
        args.extend([Arg::from(heads.query), Arg::from(heads.kv), scale(past.pages)]);
        let tiles = self.shape().tiles;
        self.launch("attention", grid::attention::grid(tiles, heads), &args)?;
        self.launch_combine(past.pages, out)
    }

    /// Launches `rope_attention`; see [`crate::Ops::rope_and_attend`].
    pub(super) fn launch_rope_attention(
        &self,
        qkv: &Buffer,
        rotation: &Rotation<'_, Buffer>,
        to: &LayerPages<&Pages>,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        self.check_rotation(qkv, rotation, to)?;
        self.resize_attended(qkv, to, out)?;
        let heads = to.pages.heads;
        let mut args = self.attention_args(qkv, to, out)?;
        args.extend(norm_args(rotation));
        args.extend([
            pointer(&rotation.table.storage),
            self.words_at(self.offsets().positions),
            Arg::from(heads.query),
            Arg::from(heads.kv),
            scale(to.pages),
            Arg::from(rotation.eps),
            Arg::from(rotation.offset),
        ]);
        let tiles = self.shape().tiles;
        self.launch("rope_attention", grid::attention::grid(tiles, heads), &args)?;
        self.launch_combine(to.pages, out)
    }

    /// Checks the operands of a rotation, and sets the bounds of the step's indexes.
    fn check_rotation(
        &self,
        qkv: &Buffer,
        rotation: &Rotation<'_, Buffer>,
        to: &LayerPages<&Pages>,
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

    /// Checks the rows that attend, and makes room for their results.
    fn resize_attended(
        &self,
        qkv: &Buffer,
        past: &LayerPages<&Pages>,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let (rows, heads) = (self.shape().rows, past.pages.heads);
        check_len("attention", "qkv", qkv.len, rows * heads.row())?;
        out.resize(rows * heads.query_width()).map_err(op_error("attention"))
    }

    /// The first parameters of `attention` and of `rope_attention`.
    fn attention_args(
        &self,
        qkv: &Buffer,
        past: &LayerPages<&Pages>,
        out: &Buffer,
    ) -> Result<Vec<Arg>, OpError> {
        let offsets = self.offsets();
        let [keys, values] = past.addresses()?;
        let arrived = if self.joins_splits() { self.arrived.address() } else { 0 };
        Ok(vec![
            pointer(&out.storage),
            pointer(&qkv.storage),
            keys,
            values,
            self.words_at(offsets.tiles),
            self.words_at(offsets.span_row),
            self.words_at(offsets.span_start),
            self.words_at(offsets.table_at),
            self.words_at(offsets.tables),
            pointer(&self.partial_sums),
            Arg::Pointer(arrived),
        ])
    }

    /// True if attention adds up the sums of splits. Without it, a second kernel does.
    fn joins_splits(&self) -> bool {
        self.variant.joined && self.shape().decodes > 0
    }

    /// Adds up the sums of the splits of spans that decode, unless attention has done it.
    fn launch_combine(&self, pages: &Pages, out: &Buffer) -> Result<(), OpError> {
        if self.joins_splits() {
            return Ok(());
        }
        let (heads, offsets) = (pages.heads, self.offsets());
        let args = [
            pointer(&out.storage),
            pointer(&self.partial_sums),
            self.words_at(offsets.first_tile),
            self.words_at(offsets.tile_count),
            self.words_at(offsets.span_row),
            Arg::from(heads.query),
            Arg::from(heads.kv),
        ];
        let grid = grid::attention::combine(self.shape().decodes, heads);
        self.launch("attention_combine", grid, &args)
    }
}

/// The weights of the norms of queries and of keys. Kernels norm heads only if they get them.
fn norm_args(rotation: &Rotation<'_, Buffer>) -> [Arg; 2] {
    [
        optional_pointer(rotation.norms.map(|(query, _)| query)),
        optional_pointer(rotation.norms.map(|(_, key)| key)),
    ]
}

/// The factor of scores.
fn scale(pages: &Pages) -> Arg {
    Arg::Float(1.0 / (pages.heads.dim as f32).sqrt())
}
