//! Mixtures of experts: the choice of experts for each row, and the products of the chosen ones.
//!
//! Pairs of a row and one of its experts are sorted by expert on the device, so the host never
//! waits for a choice, and steps are recorded as for dense models. Grids are large enough for every
//! choice; blocks without a tile end at once.

mod routing;

use super::launch::{op_error, pointer};
use crate::cuda::element_type::ElementType;
use crate::cuda::grid;
use crate::cuda::grid::experts::ExpertTiles;
use crate::cuda::kernels::Arg;
use crate::cuda::profiler::{expert_product_cost, silu_cost};
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{CudaBuffer, CudaMatrix};
use crate::op::{ExpertChoice, ExpertMatrices, LayerRouting, OpError, check_index, check_len};
pub use routing::CudaRouting;

/// Maximum number of blocks of a grid in y.
const GRID_ROWS_MAX: usize = 65_535;

/// One product of a mixture, with the matrices of one kind of all experts.
struct ExpertProduct {
    kernel: &'static str,
    /// Input by row of the step, with the rows of places; or by place, without.
    x: Arg,
    rows: Arg,
    /// The table of the addresses of `[n, k]` matrices.
    matrices: u64,
    n: usize,
    k: usize,
}

impl Cuda {
    /// Computes [`crate::Ops::routing`].
    pub(crate) fn new_routing(
        &self,
        layers: usize,
        choice: ExpertChoice,
        rows: usize,
        width: usize,
    ) -> Result<CudaRouting, OpError> {
        let (op, ExpertChoice { experts, chosen, .. }) = ("routing", choice);
        check_index(op, 0, chosen)?;
        check_index(op, chosen, experts + 1)?;
        check_index(op, experts, grid::experts::EXPERTS_MAX + 1)?;
        let rows = Cuda::padded(rows);
        CudaRouting::new(&self.device, choice, layers, rows, width).map_err(op_error(op))
    }

    /// Computes [`crate::Ops::route`].
    pub(crate) fn choose_experts(
        &self,
        logits: &CudaBuffer,
        layer: usize,
        routing: &mut CudaRouting,
    ) -> Result<(), OpError> {
        let (op, rows) = ("route", self.shape().rows);
        let ExpertChoice { experts, chosen, normed } = routing.choice;
        check_len(op, "logits", logits.len, rows * experts)?;
        // Experts are chosen by 32-bit floats.
        check_len(op, "logits", logits.element.size(), ElementType::F32.size())?;
        check_index(op, layer, routing.layers())?;
        routing.reserve(rows).map_err(op_error(op))?;

        let args = [
            pointer(&logits.storage),
            self.words_at(self.offsets().ids),
            Arg::Pointer(routing.chosen_in(layer, rows)),
            pointer(&routing.weights),
            Arg::from(rows),
            Arg::from(experts),
            Arg::from(chosen),
            Arg::Int(normed.into()),
        ];
        self.launch(op, grid::experts::route(rows, experts), &args)
    }

    /// Computes [`crate::Ops::mix_experts`].
    pub(crate) fn run_experts(
        &self,
        x: &CudaBuffer,
        experts: ExpertMatrices<'_, CudaMatrix>,
        LayerRouting { routing, layer }: LayerRouting<&mut CudaRouting>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let (op, rows) = ("mix_experts", self.shape().rows);
        let (hidden, inner) = check_matrices(&experts, routing.choice)?;
        check_len(op, "x", x.len, rows * hidden)?;
        check_index(op, layer, routing.layers())?;
        out.resize(rows * hidden).map_err(op_error(op))?;
        let width = hidden.max(2 * inner);
        routing.reserve_results(rows, width, inner).map_err(op_error(op))?;
        let [gate_up, down] =
            routing.tables(&self.device, layer, &experts).map_err(op_error(op))?;

        let tiles = self.sort_pairs(layer, routing)?;
        let (wide, activated) = (pointer(&routing.wide), pointer(&routing.activated));
        let (x, rows_of_places) = (pointer(&x.storage), pointer(&routing.rows));
        let joined = self.variant.joined;
        let product = ExpertProduct {
            kernel: if joined { tiles.gated() } else { tiles.kernel },
            x,
            rows: rows_of_places,
            matrices: gate_up,
            n: 2 * inner,
            k: hidden,
        };
        self.expert_product(&product, tiles, routing, if joined { activated } else { wide })?;
        if !joined {
            self.activate(routing, inner)?;
        }
        let (kernel, x, by_place) = (tiles.kernel, activated, Arg::Pointer(0));
        let product =
            ExpertProduct { kernel, x, rows: by_place, matrices: down, n: hidden, k: inner };
        self.expert_product(&product, tiles, routing, wide)?;

        let args = [
            pointer(&out.storage),
            wide,
            Arg::Pointer(routing.chosen_in(layer, rows)),
            pointer(&routing.places),
            pointer(&routing.weights),
            Arg::from(hidden),
            Arg::from(routing.choice.chosen),
        ];
        self.launch("combine_experts", grid::experts::combine(rows, hidden), &args)
    }

    /// Sorts the pairs of a layer by expert, and returns the tiles of their products.
    fn sort_pairs(&self, layer: usize, routing: &CudaRouting) -> Result<ExpertTiles, OpError> {
        let (rows, ExpertChoice { experts, chosen, .. }) = (self.shape().rows, routing.choice);
        let tiles = ExpertTiles::new(rows * chosen, experts);
        let pointers = [
            Arg::Pointer(routing.chosen_in(layer, rows)),
            pointer(&routing.rows),
            pointer(&routing.places),
            pointer(&routing.tiles),
        ];
        let counts = grid::experts::sort_counts(rows * chosen, chosen, experts, tiles);
        let args = [&pointers[..], &counts].concat();
        self.launch("sort_pairs", grid::experts::sort_pairs(experts), &args)?;
        Ok(tiles)
    }

    /// Multiplies the input of each place with the matrix of its expert.
    fn expert_product(
        &self,
        product: &ExpertProduct,
        tiles: ExpertTiles,
        routing: &CudaRouting,
        out: Arg,
    ) -> Result<(), OpError> {
        let ExpertProduct { kernel, x, rows, matrices, n, k } = *product;
        let args = [
            out,
            x,
            Arg::Pointer(matrices),
            rows,
            pointer(&routing.tiles),
            Arg::from(n),
            Arg::from(k),
        ];
        let grid = tiles.grid(n, self.device.processors());
        let step_rows = self.shape().rows;
        self.launch_as(kernel, grid, &args, || {
            expert_product_cost(kernel, step_rows, routing.choice, [n, k])
        })
    }

    /// Applies the gate to all places.
    fn activate(&self, routing: &CudaRouting, inner: usize) -> Result<(), OpError> {
        let pairs = self.shape().rows * routing.choice.chosen;
        let (from, to) = (routing.wide.address(), routing.activated.address());
        for first in (0..pairs).step_by(GRID_ROWS_MAX) {
            let count = GRID_ROWS_MAX.min(pairs - first);
            let [from, to] = [from + (4 * first * inner) as u64, to + (2 * first * inner) as u64];
            let args = [Arg::Pointer(from), Arg::Pointer(to), Arg::from(inner)];
            self.launch_as("silu_mul", grid::wide(count, inner), &args, || {
                silu_cost(count, inner)
            })?;
        }
        Ok(())
    }
}

/// Checks that all experts have one shape. Returns the width of rows, and that of an expert.
fn check_matrices(
    experts: &ExpertMatrices<'_, CudaMatrix>,
    choice: ExpertChoice,
) -> Result<(usize, usize), OpError> {
    let (op, ExpertMatrices { gate_up, down }) = ("mix_experts", experts);
    check_len(op, "gate_up", gate_up.len(), choice.experts)?;
    check_len(op, "down", down.len(), choice.experts)?;
    let (hidden, inner) = (gate_up[0].columns, down[0].columns);
    for (matrices, rows, columns) in [(gate_up, 2 * inner, hidden), (down, hidden, inner)] {
        for matrix in *matrices {
            check_len(op, "rows", matrix.rows, rows)?;
            check_len(op, "columns", matrix.columns, columns)?;
        }
    }
    Ok((hidden, inner))
}
