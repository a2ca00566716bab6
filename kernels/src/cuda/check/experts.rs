//! Mixtures of experts, against their references and against dense products.

use super::elementwise::{HALF_UNIT, check_gated};
use super::{Checker, dot, wide};
use crate::cuda::grid::experts::{self as grid, ExpertTiles};
use crate::cuda::grid::gemm;
use crate::cuda::{Arg, CudaError, Grid, Memory};

/// Tolerance of sums of some hundred products, as for `gemm`.
const SUM_F32: f64 = 1e-4;
/// Tolerance of a softmax in 32-bit floats.
const SOFTMAX: f64 = 1e-5;

/// Rows, experts, and experts that a row chooses.
const CHOICES: &[(usize, usize, usize)] =
    &[(1, 1, 1), (5, 7, 3), (9, 128, 8), (2, 40, 40), (3, 1024, 2)];

/// Rows, experts, chosen experts, columns and depth of products: at the borders of tiles and slabs.
const PRODUCTS: &[(usize, usize, usize, usize, usize)] = &[
    (1, 4, 2, 32, 8),
    (21, 3, 2, 70, 136),
    (37, 9, 4, 48, 40),
    (150, 2, 1, 129, 64),
    (140, 2, 1, 144, 64),
];

/// Checks `route`: random logits, equal ones, and padding. A row alone must have the same bits.
pub(super) fn route(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for &(rows, experts, width) in CHOICES {
        for normed in [false, true] {
            let what = format!("route {rows}x{experts} to {width}, normed: {normed}");
            let mut logits = checker.random.floats(rows * experts, 8.0);
            // Steps make equal ones, and no two whose probabilities differ by a rounding only.
            for (at, logit) in logits.iter_mut().enumerate() {
                let steps = if at % 2 == 0 { 4.0 } else { 64.0 };
                *logit = (*logit * steps).round() / steps;
            }
            let ids: Vec<i32> = (0..rows).map(|row| if row % 4 == 2 { -1 } else { 7 }).collect();
            let found = launch_route(checker, &logits, &ids, [experts, width], normed)?;

            let (mut chosen, mut weights) = (Vec::new(), Vec::new());
            for (row, id) in logits.chunks(experts).zip(&ids) {
                let real = if *id < 0 { None } else { Some(choice(row, width, normed)) };
                let padding = || vec![(-1, 0.0); width];
                let pairs = real.unwrap_or_else(padding);
                chosen.extend(pairs.iter().map(|(expert, _)| *expert));
                weights.extend(pairs.iter().map(|(_, weight)| *weight));
            }
            checker.equal(&what, &found.0, &chosen);
            checker.compare(&format!("{what}, weights"), &found.1, &weights, SOFTMAX);

            let (alone, last) = ((rows - 1) * experts, (rows - 1) * width);
            let shape = [experts, width];
            let one = launch_route(checker, &logits[alone..], &ids[rows - 1..], shape, normed)?;
            checker.equal(&format!("{what}, a row alone"), &one.1, &found.1[last..]);
        }
    }
    no_numbers(checker)
}

/// Checks that rows of what is no number still choose each expert at most once.
fn no_numbers(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let rows = [[f32::NAN; 40], [f32::INFINITY; 40], [f32::NEG_INFINITY; 40]].concat();
    let (chosen, _) = launch_route(checker, &rows, &[1, 1, 1], [40, 40], true)?;
    let mut sorted = chosen;
    sorted.chunks_mut(40).for_each(<[i32]>::sort_unstable);
    let all: Vec<i32> = (0..40).collect();
    checker.equal("route without numbers", &sorted, &all.repeat(3));
    Ok(())
}

/// Runs `route`, and returns the experts and their weights.
fn launch_route(
    checker: &Checker<'_>,
    logits: &[f32],
    ids: &[i32],
    [experts, width]: [usize; 2],
    normed: bool,
) -> Result<(Vec<i32>, Vec<f32>), CudaError> {
    let rows = ids.len();
    let inputs = [checker.upload(logits)?, checker.upload(ids)?];
    let [chosen, weights] =
        [checker.poisoned(rows * width * 4)?, checker.poisoned(rows * width * 4)?];
    let [logits, ids] = inputs.each_ref().map(Arg::from);
    let [row_count, experts_arg, width_arg] = [rows, experts, width].map(Arg::from);
    let normed = Arg::Int(normed.into());
    let args = [
        logits,
        ids,
        (&chosen).into(),
        (&weights).into(),
        row_count,
        experts_arg,
        width_arg,
        normed,
    ];
    // SAFETY: all sizes are those that the kernel's header requires.
    unsafe { checker.kernels.launch("route", grid::route(rows, experts), &args)? };
    Ok((chosen.to_vec()?, weights.to_vec()?))
}

/// The experts of a row and their weights.
fn choice(logits: &[f32], width: usize, normed: bool) -> Vec<(i32, f32)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // A stable sort: among equals, as 0 and -0 are, the lower number comes first.
    order.sort_by(|a, b| (logits[*b] + 0.0).total_cmp(&(logits[*a] + 0.0)));
    let highest = f64::from(logits[order[0]]);
    let powers: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).collect();
    order.truncate(width);
    let kept: f64 = order.iter().map(|expert| powers[*expert]).sum();
    let total: f64 = if normed { kept } else { powers.iter().sum() };
    order.iter().map(|expert| (*expert as i32, (powers[*expert] / total) as f32)).collect()
}

/// Pairs sorted by expert.
struct Sorted {
    /// The pair of each place.
    pairs: Vec<usize>,
    /// Expert, first place and number of places.
    tiles: Vec<[i32; 4]>,
}

impl Sorted {
    fn new(chosen: &[i32], experts: usize, tiles: ExpertTiles) -> Sorted {
        let mut sorted = Sorted { pairs: Vec::new(), tiles: Vec::new() };
        for expert in 0..experts as i32 {
            let first = sorted.pairs.len();
            let own = (0..chosen.len()).filter(|pair| chosen[*pair] == expert);
            sorted.pairs.extend(own);
            for start in (first..sorted.pairs.len()).step_by(tiles.rows) {
                let count = tiles.rows.min(sorted.pairs.len() - start);
                sorted.tiles.push([expert, start as i32, count as i32, 0]);
            }
        }
        sorted.tiles.resize(tiles.count, [-1, 0, 0, 0]);
        sorted
    }

    /// The row of each place.
    fn rows(&self, width: usize) -> Vec<i32> {
        self.pairs.iter().map(|pair| (pair / width) as i32).collect()
    }
}

/// Random experts of rows, different ones within a row; a few rows are padding.
fn random_choice(checker: &mut Checker<'_>, rows: usize, experts: usize, width: usize) -> Vec<i32> {
    let mut chosen = Vec::with_capacity(rows * width);
    for row in 0..rows {
        let is_padding = row % 8 == 5;
        // Some experts are chosen by nearly all rows, others by none.
        let first = checker.random.below(experts) / 2 * (row % 3);
        let own = (0..width).map(|at| ((first + at) % experts) as i32);
        chosen.extend(own.map(|expert| if is_padding { -1 } else { expert }));
    }
    chosen
}

/// Checks `sort_pairs`, for the tiles of both products.
pub(super) fn sort_pairs(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, experts, width) in [(1, 1, 1), (3, 128, 8), (70, 5, 3), (600, 8, 2), (40, 1024, 30)]
    {
        let chosen = random_choice(checker, rows, experts, width);
        for tiles in ExpertTiles::both(rows * width, experts) {
            let what = format!("sort_pairs {rows}x{width} of {experts} for {}", tiles.kernel);
            let memories = launch_sort(checker, &chosen, width, experts, tiles)?;
            let expected = Sorted::new(&chosen, experts, tiles);
            let places = expected.pairs.len();

            let [found_rows, found_places, found_tiles] = &memories;
            let rows_of_places = found_rows.to_vec::<i32>()?;
            checker.equal(&what, &rows_of_places[..places], &expected.rows(width));
            checker.equal(
                &format!("{what}, tiles"),
                &found_tiles.to_vec()?,
                &expected.tiles.concat(),
            );
            let places_of_pairs = found_places.to_vec::<i32>()?;
            let found: Vec<i32> =
                expected.pairs.iter().map(|pair| places_of_pairs[*pair]).collect();
            let all: Vec<i32> = (0..places as i32).collect();
            checker.equal(&format!("{what}, places"), &found, &all);
        }
    }
    Ok(())
}

/// Runs `sort_pairs`, and returns the rows of places, the places of pairs, and the tiles.
fn launch_sort(
    checker: &Checker<'_>,
    chosen: &[i32],
    width: usize,
    experts: usize,
    tiles: ExpertTiles,
) -> Result<[Memory; 3], CudaError> {
    let pairs = chosen.len();
    let chosen = checker.upload(chosen)?;
    let out = [
        checker.poisoned(pairs * 4)?,
        checker.poisoned(pairs * 4)?,
        checker.poisoned(tiles.count * 16)?,
    ];
    let [rows, places, tiles_arg] = out.each_ref().map(Arg::from);
    let counts = grid::sort_counts(pairs, width, experts, tiles);
    let args = [&[Arg::from(&chosen), rows, places, tiles_arg][..], &counts].concat();
    // SAFETY: all sizes are those that the kernel's header requires.
    unsafe { checker.kernels.launch("sort_pairs", grid::sort_pairs(experts), &args)? };
    Ok(out)
}

/// The operands of a product of a mixture.
struct ExpertCase {
    x: Vec<u16>,
    x_on_device: Memory,
    matrices: Vec<Vec<u16>>,
    matrices_on_device: Vec<Memory>,
    /// The address of each matrix.
    table: Memory,
    n: usize,
    k: usize,
}

/// The launch of a product.
#[derive(Clone, Copy)]
struct ExpertLaunch<'a> {
    sorted: &'a Sorted,
    /// The row of x of each place; that of its number if absent.
    rows: Option<&'a [i32]>,
    tiles: ExpertTiles,
    processors: usize,
}

impl ExpertCase {
    /// Random numbers for `rows` rows of x and for all experts.
    fn new(
        checker: &mut Checker<'_>,
        rows: usize,
        experts: usize,
        [n, k]: [usize; 2],
    ) -> Result<ExpertCase, CudaError> {
        let x = checker.random.halves(rows * k, 1.0);
        let matrices: Vec<_> = (0..experts).map(|_| checker.random.halves(n * k, 1.0)).collect();
        let matrices_on_device =
            matrices.iter().map(|w| checker.upload(w)).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<u64> = matrices_on_device.iter().map(Memory::address).collect();
        let (x_on_device, table) = (checker.upload(&x)?, checker.upload(&addresses)?);
        Ok(ExpertCase { x, x_on_device, matrices, matrices_on_device, table, n, k })
    }

    /// The product of each place: its input is the row `rows[place]` of x, or that of its number.
    fn launch(
        &self,
        checker: &Checker<'_>,
        launch: &ExpertLaunch<'_>,
    ) -> Result<Vec<u16>, CudaError> {
        self.launch_as(checker, launch.tiles.kernel, self.n, launch)
    }

    /// As [`ExpertCase::launch`], by a kernel that writes `width` elements for each place.
    fn launch_as(
        &self,
        checker: &Checker<'_>,
        kernel: &str,
        width: usize,
        launch: &ExpertLaunch<'_>,
    ) -> Result<Vec<u16>, CudaError> {
        let ExpertLaunch { sorted, rows, tiles, processors } = *launch;
        let out = checker.poisoned(sorted.pairs.len() * width * 2)?;
        let rows = rows.map(|rows| checker.upload(rows)).transpose()?;
        let tiles_on_device = checker.upload(&sorted.tiles.concat())?;
        let args = [
            Arg::from(&out),
            (&self.x_on_device).into(),
            (&self.table).into(),
            Arg::opt(rows.as_ref()),
            (&tiles_on_device).into(),
            self.n.into(),
            self.k.into(),
        ];
        // SAFETY: operands and result are as large as the kernel's header requires.
        unsafe { checker.kernels.launch(kernel, tiles.grid(self.n, processors), &args)? };
        out.to_vec()
    }

    /// The same in order and in double precision, for the expert and the row of x of each place.
    fn reference(&self, places: &[(usize, usize)]) -> Vec<f32> {
        let mut out = Vec::new();
        for (expert, row) in places {
            let x = &self.x[row * self.k..][..self.k];
            out.extend(self.matrices[*expert].chunks(self.k).map(|w| dot(x, w) as f32));
        }
        out
    }

    /// A row of x times the matrix of an expert, as a dense product.
    fn dense(
        &self,
        checker: &Checker<'_>,
        expert: usize,
        row: usize,
    ) -> Result<Vec<u16>, CudaError> {
        let out = checker.poisoned(self.n * 2)?;
        let x = Arg::Pointer(self.x_on_device.address() + (row * self.k * 2) as u64);
        let w = Arg::from(&self.matrices_on_device[expert]);
        let args = [(&out).into(), x, w, 1.into(), self.n.into(), self.k.into(), Arg::Int(0)];
        let grid: Grid = gemm::gemm(1, self.n);
        // SAFETY: operands and result are as large as the shape says.
        unsafe { checker.kernels.launch("gemm", grid, &args)? };
        out.to_vec()
    }
}

/// Checks `expert_gemm` and `expert_gemm_small`, both with rows by place and with rows of a step,
/// against the reference, against each other, and against dense products of a row alone.
pub(super) fn expert_gemm(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for &(rows, experts, width, n, k) in PRODUCTS {
        let chosen = random_choice(checker, rows, experts, width);
        let case = ExpertCase::new(checker, rows * width, experts, [n, k])?;
        let mut bits: [Option<Vec<u16>>; 2] = [None, None];
        for tiles in ExpertTiles::both(rows * width, experts) {
            let sorted = Sorted::new(&chosen, experts, tiles);
            let by_row = sorted.rows(width);
            for (input, first) in [None, Some(&by_row[..])].into_iter().zip(&mut bits) {
                let what = format!(
                    "{} {rows}x{width} of {experts}, {n}x{k}, by row: {}",
                    tiles.kernel,
                    input.is_some()
                );
                let places: Vec<(usize, usize)> = (0..sorted.pairs.len())
                    .map(|place| {
                        let expert = chosen[sorted.pairs[place]] as usize;
                        (expert, input.map_or(place, |rows| rows[place] as usize))
                    })
                    .collect();
                // Few blocks walk over many slabs.
                let few = ExpertLaunch { sorted: &sorted, rows: input, tiles, processors: 1 };
                let found = case.launch(checker, &few)?;
                checker.compare_bf16(&what, &found, &case.reference(&places), HALF_UNIT + SUM_F32);
                let more = case.launch(checker, &ExpertLaunch { processors: 132, ..few })?;
                checker.equal(&format!("{what}, with more blocks"), &more, &found);

                // The upper half of a matrix as its gate.
                if n % 16 == 0 {
                    let gated = case.launch_as(checker, tiles.gated(), n / 2, &few)?;
                    check_gated(checker, &format!("{what}, gated"), &gated, &found, n / 2)?;
                }

                let (expert, row) = places[places.len() - 1];
                let alone = case.dense(checker, expert, row)?;
                let last = &found[found.len() - n..];
                checker.equal(&format!("{what}, a row alone"), &alone, last);
                let other = first.get_or_insert_with(|| found.clone());
                checker.equal(&format!("{what}, by the other kernel"), &found, other);
            }
        }
    }
    speed(checker)
}

/// Checks `combine_experts`, with rows that have no experts.
pub(super) fn combine_experts(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, experts, width, hidden) in [(1, 3, 1, 8), (9, 4, 3, 264), (7, 128, 8, 2056)] {
        let chosen = random_choice(checker, rows, experts, width);
        let weights = checker.random.floats(rows * width, 1.0);
        let results = checker.random.halves(rows * width * hidden, 2.0);
        let tiles = ExpertTiles::new(rows * width, experts);
        let sorted = Sorted::new(&chosen, experts, tiles);
        let mut places = vec![i32::MAX; rows * width];
        sorted.pairs.iter().zip(0..).for_each(|(pair, place)| places[*pair] = place);

        let out = checker.poisoned(rows * hidden * 2)?;
        let inputs = [
            checker.upload(&results)?,
            checker.upload(&chosen)?,
            checker.upload(&places)?,
            checker.upload(&weights)?,
        ];
        let [results_arg, chosen_arg, places_arg, weights_arg] = inputs.each_ref().map(Arg::from);
        let out_arg = Arg::from(&out);
        let [hidden_arg, width_arg] = [hidden, width].map(Arg::from);
        let args =
            [out_arg, results_arg, chosen_arg, places_arg, weights_arg, hidden_arg, width_arg];
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { checker.kernels.launch("combine_experts", grid::combine(rows, hidden), &args)? };

        let mut expected = vec![0.0_f64; rows * hidden];
        for pair in (0..chosen.len()).filter(|pair| chosen[*pair] >= 0) {
            let result = &results[places[pair] as usize * hidden..][..hidden];
            let to = &mut expected[pair / width * hidden..][..hidden];
            let weight = f64::from(weights[pair]);
            to.iter_mut().zip(result).for_each(|(to, result)| *to += weight * wide(*result));
        }
        let expected: Vec<f32> = expected.into_iter().map(|sum| sum as f32).collect();
        let what = format!("combine_experts {rows}x{hidden}, {width} each");
        checker.compare_bf16(&what, &out.to_vec()?, &expected, HALF_UNIT);
    }
    Ok(())
}

/// Times the products of a step of one row, of 32 and of 1024 rows, by both kernels, in the shape
/// of Qwen3-30B-A3B with fewer experts, whose matrices still exceed a device's cache.
fn speed(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    if checker.speeds.is_none() {
        return Ok(());
    }
    let (experts, width, n, k) = (64, 4, 1536, 2048);
    let processors = checker.kernels.device().processors();
    let case = ExpertCase::new(checker, 1024, experts, [n, k])?;
    for rows in [1, 32, 1024] {
        let chosen: Vec<i32> = (0..rows * width).map(|pair| (pair % experts) as i32).collect();
        let pairs = rows * width;
        for tiles in ExpertTiles::both(pairs, experts) {
            let sorted = Sorted::new(&chosen, experts, tiles);
            let rows_on_device = checker.upload(&sorted.rows(width))?;
            let tiles_on_device = checker.upload(&sorted.tiles.concat())?;
            let out = checker.poisoned(pairs * n * 2)?;

            let args = [
                Arg::from(&out),
                (&case.x_on_device).into(),
                (&case.table).into(),
                (&rows_on_device).into(),
                (&tiles_on_device).into(),
                n.into(),
                k.into(),
            ];
            let bytes = 2 * (pairs.min(experts) * n * k + pairs * (n + k));
            let what = format!("{} {pairs}x{n}x{k}", tiles.kernel);
            checker.time(&what, bytes, |kernels| {
                // SAFETY: operands and result are as large as the kernel's header requires.
                unsafe { kernels.launch(tiles.kernel, tiles.grid(n, processors), &args) }
            })?;
        }
    }
    Ok(())
}
