//! Draws from logits that are changed first.

use crate::cuda::grid;
use crate::cuda::kernels::{Arg, Grid};
use crate::cuda::step::Cuda;
use crate::cuda::step::shaping::ShapedPlan;
use crate::cuda::tensor::CudaBuffer;
use crate::op::{OpError, ShapedDraw, TOP_MAX, check_len};

use super::launch::{op_error, pointer};

/// The operation in errors.
const OP: &str = "draw_shaped";

impl Cuda {
    /// Draws from the logits of the last step; see [`crate::Ops::draw_shaped`].
    pub(super) fn run_shaped_draws(
        &mut self,
        logits: &CudaBuffer,
        vocab: usize,
        draws: &[Option<ShapedDraw<'_>>],
    ) -> Result<(), OpError> {
        if draws.iter().all(Option::is_none) {
            return Ok(());
        }
        if self.draws.is_full() {
            let reason = "the tokens of earlier steps were not taken".to_owned();
            return Err(OpError::Device { op: OP, reason });
        }
        // A replayed step does not set the length of its buffers.
        let (found, expected) = (logits.storage.bytes(), 4 * draws.len() * vocab);
        if found < expected {
            return Err(OpError::Shape { op: OP, operand: "logits", expected, found });
        }
        check_masks(draws, vocab)?;

        let drawn = self.draw_changed(logits, vocab, draws);
        if drawn.is_err() {
            self.shaping.counts.forget();
            // The upload may be under way, and the next step writes to it.
            self.device.synchronize().ok();
        }
        drawn
    }

    fn draw_changed(
        &mut self,
        logits: &CudaBuffer,
        vocab: usize,
        draws: &[Option<ShapedDraw<'_>>],
    ) -> Result<(), OpError> {
        let penalized = draws.iter().flatten().filter(|draw| draw.penalties.is_some()).count();
        let failed = op_error(OP);
        self.shaping.counts.begin_step(penalized, vocab).map_err(&failed)?;
        let plan = ShapedPlan::of(draws, &mut self.shaping.counts);
        self.draws.reserve(&self.device, plan.rows).map_err(&failed)?;
        self.draws.reserve_tiles(plan.rows, vocab).map_err(&failed)?;
        self.shaping.upload(&plan, self.draws.next(), vocab).map_err(&failed)?;

        self.launch_shapes(logits, vocab, &plan)?;
        self.launch_draws(logits, vocab, &plan)?;
        self.draws.fetch(plan.top, plan.requested).map_err(failed)
    }

    /// Launches the kernels that change logits.
    fn launch_shapes(
        &self,
        logits: &CudaBuffer,
        vocab: usize,
        plan: &ShapedPlan,
    ) -> Result<(), OpError> {
        let (words, counts) = (self.shaped_words(0), pointer(&self.shaping.counts.storage));
        if plan.seeds > 0 {
            let seeds = self.shaped_words(plan.seeds_at);
            let args = [seeds, words, counts, Arg::from(vocab)];
            self.launch_behind("begin_counts", grid::begin_counts(plan.seeds), &args)?;
        }
        if plan.shapes == 0 {
            return Ok(());
        }
        let args = [
            pointer(&logits.storage),
            self.shaped_words(plan.shapes_at),
            words,
            counts,
            pointer(&self.shaping.shaped),
            Arg::from(vocab),
            Arg::from(vocab),
        ];
        self.launch_behind("shape_logits", grid::shape_logits(plan.shapes, vocab), &args)
    }

    /// Launches the kernels that draw.
    fn launch_draws(
        &self,
        logits: &CudaBuffer,
        vocab: usize,
        plan: &ShapedPlan,
    ) -> Result<(), OpError> {
        let (params, width) = (self.shaped_words(0), Arg::from(vocab));
        let tiles = Arg::Pointer(self.draws.tiles.borrow().address());
        let shaped = pointer(&self.shaping.shaped);
        let tile_args = [pointer(&logits.storage), params, tiles, shaped, width, width];
        self.launch_behind("sample_tiles", grid::sample_tiles(plan.rows, vocab), &tile_args)?;

        let row_args = [
            pointer(&logits.storage),
            params,
            tiles,
            pointer(&self.draws.ids),
            pointer(&self.draws.scores),
            pointer(&self.draws.top),
            shaped,
            pointer(&self.shaping.counts.storage),
            width,
            width,
            Arg::from(TOP_MAX),
        ];
        self.launch_behind("sample_rows", grid::sample_rows(plan.rows), &row_args)
    }

    /// The address of words of the draws, as an argument.
    fn shaped_words(&self, offset: usize) -> Arg {
        Arg::Pointer(self.shaping.words.address() + 4 * offset as u64)
    }

    /// Launches a kernel behind a step. Its pointers are to buffers whose shapes were checked.
    fn launch_behind(&self, name: &'static str, grid: Grid, args: &[Arg]) -> Result<(), OpError> {
        // SAFETY: as in `launch_as`; ids and masks were checked before.
        unsafe { self.kernels.launch(name, grid, args) }.map_err(op_error(name))
    }
}

/// Checks that masks have a bit for each id.
fn check_masks(draws: &[Option<ShapedDraw<'_>>], vocab: usize) -> Result<(), OpError> {
    let mut masks = draws.iter().flatten().filter_map(|draw| draw.allowed.as_ref());
    masks.try_for_each(|mask| check_len(OP, "allowed", mask.len(), vocab.div_ceil(32)))
}
