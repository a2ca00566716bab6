//! Sampling against a reference that sorts whole rows and adds up in wider numbers.

use std::cmp::Ordering;

use super::Checker;
use crate::cuda::params::{SampleParams, SampleScores};
use crate::cuda::{Arg, CudaError, Kernels, Memory, grid};
use crate::random::{Random, mix};

/// Tolerance of a draw at the borders of its interval, as a part of the distribution: the device's
/// sums are rounded otherwise.
const DRAW_TOLERANCE: f64 = 1e-6;
/// Tolerance of logprobs, relative to their size.
const LOGPROB_TOLERANCE: f64 = 1e-6;
/// Temperatures below this are greedy.
const GREEDY_BELOW: f32 = 1e-5;

/// The distribution of the model, unchanged.
const PLAIN: SampleParams = SampleParams {
    temperature: 1.0,
    top_p: 1.0,
    min_p: 0.0,
    top_k: 0,
    top_n: 3,
    row: 0,
    seed: 0,
    position: 0,
    raw: false,
    shaped: -1,
    slot: -1,
};
const GREEDY: SampleParams = SampleParams { temperature: 0.0, ..PLAIN };

/// Parameters that use every filter, alone and together.
const PARAMS: [SampleParams; 16] = [
    GREEDY,
    PLAIN,
    SampleParams { temperature: 0.7, ..PLAIN },
    SampleParams { top_p: 0.9, ..PLAIN },
    SampleParams { min_p: 0.05, ..PLAIN },
    SampleParams { top_k: 1, ..PLAIN },
    SampleParams { temperature: 1.3, top_k: 20, top_n: 20, ..PLAIN },
    SampleParams { temperature: 0.8, top_p: 0.95, min_p: 0.01, top_k: 50, top_n: 32, ..PLAIN },
    SampleParams { temperature: 0.8, top_p: 0.95, top_n: 32, raw: true, ..PLAIN },
    SampleParams { top_p: 1e-6, ..PLAIN },
    SampleParams { top_p: 0.999_999, ..PLAIN },
    SampleParams { min_p: 1.0, ..PLAIN },
    SampleParams { temperature: 0.1, top_k: 3000, top_n: 0, ..PLAIN },
    SampleParams { temperature: 2.0, top_k: 3, top_p: 0.5, top_n: -1, ..PLAIN },
    SampleParams { top_n: -1, ..GREEDY },
    SampleParams { row: -1, ..PLAIN },
];

/// A row of logits and its distribution, computed on the host.
struct Reference<'a> {
    raw: &'a [f32],
    params: SampleParams,
    /// Logits that are drawn from, divided by the temperature.
    values: Vec<f32>,
    /// The lowest value that the filters keep.
    floor: f32,
    highest: f32,
    raw_highest: f32,
    /// Sum of the weights of the kept values, relative to the highest.
    sum: f64,
    raw_sum: f64,
}

impl<'a> Reference<'a> {
    fn new(row: &'a SampleRow) -> Reference<'a> {
        let SampleRow { raw, shaped, params } = row;
        let is_greedy = params.temperature < GREEDY_BELOW;
        let divisor = if is_greedy { 1.0 } else { params.temperature };
        let from = shaped.as_ref().unwrap_or(raw);
        let values: Vec<f32> = from.iter().map(|logit| logit / divisor).collect();
        let (highest, raw_highest) = (maximum(&values), maximum(raw));
        let floor = match is_greedy || !highest.is_finite() {
            true => f32::NEG_INFINITY,
            false => floor(&values, params),
        };

        let kept = values.iter().filter(|value| **value >= floor);
        let sum = kept.map(|value| weight(*value, highest)).sum();
        let numbers = raw.iter().filter(|logit| !logit.is_nan());
        let raw_sum = numbers.map(|logit| weight(*logit, raw_highest)).sum();
        Reference { raw, params: *params, values, floor, highest, raw_highest, sum, raw_sum }
    }

    /// True if there is a distribution: the highest logit is finite.
    fn is_finite(&self) -> bool {
        self.highest.is_finite()
    }

    /// The processed and the raw logprob of an id.
    fn logprobs(&self, id: usize) -> [f32; 2] {
        let value = self.values[id];
        let processed = match value >= self.floor {
            true => (f64::from(value) - f64::from(self.highest) - self.sum.ln()) as f32,
            false => f32::NEG_INFINITY,
        };
        let raw = f64::from(self.raw[id]) - f64::from(self.raw_highest) - self.raw_sum.ln();
        [processed, raw as f32]
    }

    /// The weight of a value in the distribution; zero if the filters drop it.
    fn kept_weight(&self, value: f32) -> f64 {
        if value >= self.floor { weight(value, self.highest) } else { 0.0 }
    }

    /// True if a draw may give `id`.
    fn allows(&self, id: usize) -> bool {
        if self.params.temperature < GREEDY_BELOW || !self.is_finite() {
            let first = self.values.iter().position(|value| *value == self.highest);
            return id == first.unwrap_or(0);
        }
        let from: f64 = self.values[..id].iter().map(|value| self.kept_weight(*value)).sum();
        let to = from + self.kept_weight(self.values[id]);
        let drawn = uniform(self.params.seed, self.params.position) * self.sum;
        let tolerance = DRAW_TOLERANCE * self.sum;
        to > from && (from - tolerance..=to + tolerance).contains(&drawn)
    }

    /// The values that decide rank and order.
    fn ranked(&self) -> &[f32] {
        if self.params.raw { self.raw } else { &self.values }
    }

    fn rank(&self, id: usize) -> i32 {
        let ranked = self.ranked();
        ranked.iter().filter(|value| **value >= ranked[id]).count() as i32
    }

    /// The likeliest ids, padded with -1.
    fn top(&self) -> Vec<i32> {
        let (ranked, count) = (self.ranked(), self.params.top_n.max(0) as usize);
        let mut order: Vec<usize> = (0..ranked.len()).filter(|id| !ranked[*id].is_nan()).collect();
        // The sort is stable: among equals the lower id comes first.
        order.sort_by(|a, b| ranked[*b].partial_cmp(&ranked[*a]).unwrap_or(Ordering::Equal));
        let mut ids: Vec<i32> = order.into_iter().map(|id| id as i32).take(count).collect();
        ids.resize(count, -1);
        ids
    }
}

fn maximum(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// True if every id has a logprob, maybe minus infinity.
fn has_logprobs(row: &[f32]) -> bool {
    maximum(row).is_finite() && !row.iter().any(|logit| logit.is_nan())
}

/// e to the power of a value less the highest.
fn weight(value: f32, highest: f32) -> f64 {
    (f64::from(value) - f64::from(highest)).exp()
}

/// The lowest value that the filters keep.
fn floor(values: &[f32], params: &SampleParams) -> f32 {
    let mut sorted: Vec<f32> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));

    let mut floor = f32::NEG_INFINITY;
    if params.min_p > 0.0 {
        floor = sorted[0] + params.min_p.ln();
    }
    let top_k = params.top_k as usize;
    if top_k > 0 && top_k < values.len() {
        floor = floor.max(sorted[top_k.min(sorted.len()) - 1]);
    }
    if params.top_p >= 1.0 {
        return floor;
    }

    // top_p keeps the likeliest values whose weights first reach this part of the sum.
    sorted.retain(|value| *value >= floor);
    let enough =
        f64::from(params.top_p) * sorted.iter().map(|value| weight(*value, sorted[0])).sum::<f64>();
    let mut sum = 0.0;
    let last = sorted.iter().find(|value| {
        sum += weight(**value, sorted[0]);
        sum >= enough
    });
    last.or(sorted.last()).copied().unwrap_or(floor)
}

/// The number in [0, 1) that the host draws, too.
fn uniform(seed: u64, position: i32) -> f64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let seed_bits = mix(seed.wrapping_add(GOLDEN));
    let counter = seed_bits.wrapping_add((position as u64).wrapping_mul(GOLDEN));
    let bits = mix(counter.wrapping_add(GOLDEN));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// A row of logits with its parameters.
struct SampleRow {
    raw: Vec<f32>,
    /// Changed logits that are drawn from.
    shaped: Option<Vec<f32>>,
    params: SampleParams,
}

impl From<(Vec<f32>, SampleParams)> for SampleRow {
    fn from((raw, params): (Vec<f32>, SampleParams)) -> SampleRow {
        SampleRow { raw, shaped: None, params }
    }
}

type SampleRows = [SampleRow];

/// Rows on the device, with room for the results.
struct SampleBatch {
    logits: Memory,
    shaped: Memory,
    /// Counts, a slot for each row.
    counts: Memory,
    params: Memory,
    tiles: Memory,
    ids: Memory,
    scores: Memory,
    top: Memory,
    rows: usize,
    vocab: usize,
    /// Numbers from one row of logits to the next.
    stride: usize,
}

impl SampleBatch {
    fn new(
        checker: &Checker<'_>,
        rows: &SampleRows,
        stride: usize,
    ) -> Result<SampleBatch, CudaError> {
        let vocab = rows.first().map_or(1, |row| row.raw.len());
        let mut logits = vec![f32::NAN; rows.len() * stride];
        let (mut shaped, mut words) = (Vec::new(), Vec::new());
        for (index, SampleRow { raw, shaped: changed, params }) in rows.iter().enumerate() {
            // Logits are in reverse order: the kernel must take the row from the parameters.
            let at = rows.len() - 1 - index;
            logits[at * stride..][..vocab].copy_from_slice(raw);
            let row = if params.row < 0 { -1 } else { at as i32 };
            let mut params = SampleParams { row, ..*params };
            if let Some(changed) = changed {
                (params.shaped, params.slot) = ((shaped.len() / stride) as i32, index as i32);
                shaped.extend_from_slice(changed);
                shaped.resize(shaped.len() + stride - vocab, f32::NAN);
            }
            words.extend(params.words());
        }

        let scores = rows.len() * SampleScores::WORDS * 4;
        Ok(SampleBatch {
            logits: checker.upload(&logits)?,
            shaped: checker.upload(&shaped)?,
            counts: checker.upload(&vec![0_u16; rows.len() * grid::count_bytes(vocab) / 2])?,
            params: checker.upload(&words)?,
            tiles: checker.poisoned(grid::sample_scratch(rows.len(), vocab))?,
            ids: checker.poisoned(rows.len() * 4)?,
            scores: checker.poisoned(scores)?,
            top: checker.poisoned(scores * SampleParams::TOP_MAX)?,
            rows: rows.len(),
            vocab,
            stride,
        })
    }

    fn launch(&self, kernels: &Kernels) -> Result<(), CudaError> {
        let read = [&self.logits, &self.params, &self.tiles].map(Arg::from);
        let written = [&self.ids, &self.scores, &self.top].map(Arg::from);
        let size = [self.vocab, self.stride].map(Arg::from);
        let shaped = [Arg::from(&self.shaped), Arg::from(&self.counts)];
        let tiles = [&read[..], &shaped[..1], &size].concat();
        let most = [SampleParams::TOP_MAX.into()];
        let rows = [&read[..], &written, &shaped, &size, &most].concat();
        // SAFETY: all sizes are those that the kernels' header requires.
        unsafe {
            kernels.launch("sample_tiles", grid::sample_tiles(self.rows, self.vocab), &tiles)?;
            kernels.launch("sample_rows", grid::sample_rows(self.rows), &rows)
        }
    }
}

fn read_scores(memory: &Memory) -> Result<Vec<SampleScores>, CudaError> {
    let words = memory.to_vec::<u32>()?;
    let (scores, _) = words.as_chunks::<{ SampleScores::WORDS }>();
    Ok(scores.iter().map(|words| SampleScores::of(*words)).collect())
}

/// One kind of numbers over all rows of a batch.
#[derive(Default)]
struct Compared<T> {
    found: Vec<T>,
    expected: Vec<T>,
}

/// The results of a batch and those of the reference.
#[derive(Default)]
struct DrawComparison {
    /// Rows whose id the reference does not allow.
    wrong: Vec<usize>,
    logprobs: Compared<f32>,
    ranks: Compared<i32>,
    top: Compared<i32>,
}

impl DrawComparison {
    /// Adds the logprobs of an id, if there is a distribution.
    fn add_logprobs(&mut self, reference: &Reference<'_>, found: &SampleScores) {
        if let Ok(id) = usize::try_from(found.id)
            && reference.is_finite()
        {
            self.logprobs.found.extend([found.processed, found.raw]);
            self.logprobs.expected.extend(reference.logprobs(id));
        }
    }
}

/// Samples a batch and compares all results.
fn compare(
    checker: &mut Checker<'_>,
    what: &str,
    rows: &SampleRows,
    stride: usize,
) -> Result<(), CudaError> {
    let batch = SampleBatch::new(checker, rows, stride)?;
    batch.launch(checker.kernels)?;
    let ids = batch.ids.to_vec::<i32>()?;
    let (scores, top) = (read_scores(&batch.scores)?, read_scores(&batch.top)?);

    let mut all = DrawComparison::default();
    for (index, row) in rows.iter().enumerate() {
        let (reference, params) = (Reference::new(row), &row.params);
        let id = usize::try_from(ids[index]).ok().filter(|id| *id < row.raw.len());
        // Padding must get the id -1, and no other row may.
        let allowed = match id {
            Some(id) => params.row >= 0 && reference.allows(id),
            None => params.row < 0 && ids[index] == -1,
        };
        if !allowed {
            all.wrong.push(index);
        }
        // Padding has no scores, and neither has a row that did not request them.
        let Some(id) = id.filter(|_| allowed && params.top_n >= 0) else { continue };

        all.add_logprobs(&reference, &scores[index]);
        all.ranks.found.extend([scores[index].id, scores[index].rank]);
        all.ranks.expected.extend([ids[index], reference.rank(id)]);
        let likeliest = &top[index * SampleParams::TOP_MAX..][..params.top_n as usize];
        all.top.found.extend(likeliest.iter().map(|scores| scores.id));
        all.top.expected.extend(reference.top());
        likeliest.iter().for_each(|scores| all.add_logprobs(&reference, scores));
    }

    let DrawComparison { wrong, logprobs, ranks, top } = all;
    let logprob_label = format!("{what}, logprobs");
    let counted = batch.counts.to_vec::<u16>()?;
    let (found, expected) = added_tokens(rows, &ids, &counted);
    checker.equal(&format!("{what}, counts"), &found, &expected);
    checker.equal(&format!("{what}, rows with a wrong id"), &wrong, &[]);
    checker.compare(&logprob_label, &logprobs.found, &logprobs.expected, LOGPROB_TOLERANCE);
    checker.equal(&format!("{what}, ranks"), &ranks.found, &ranks.expected);
    checker.equal(&format!("{what}, likeliest"), &top.found, &top.expected);
    Ok(())
}

/// The counts of every row with a slot, and those that it must have: one, of its token.
fn added_tokens(rows: &SampleRows, ids: &[i32], counts: &[u16]) -> (Vec<u16>, Vec<u16>) {
    let mut expected = vec![0; counts.len()];
    let width = counts.len() / rows.len();
    for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.shaped.is_some()) {
        let id = usize::try_from(ids[index]).unwrap_or(0).min(row.raw.len() - 1);
        expected[index * width + id] = 1;
    }
    (counts.to_vec(), expected)
}

/// Logits that are nearly normally distributed.
fn normal(random: &mut Random, vocab: usize, size: f32) -> Vec<f32> {
    (0..vocab).map(|_| (0..6).map(|_| random.signed()).sum::<f32>() * size * 0.7).collect()
}

/// Replaces every third logit, from the third on.
fn with_every_third(mut row: Vec<f32>, value: f32) -> Vec<f32> {
    row.iter_mut().skip(2).step_by(3).for_each(|logit| *logit = value);
    row
}

/// Rows that are hard to sample: equal logits, NaN, infinities, a single id, and distances that are
/// smaller or larger than any bin.
fn hard_rows(random: &mut Random, vocab: usize) -> Vec<Vec<f32>> {
    let mut single = vec![f32::NEG_INFINITY; vocab];
    single[vocab / 2] = 1.5;
    let mut infinite = normal(random, vocab, 1.0);
    infinite[vocab - 1] = f32::INFINITY;

    vec![
        normal(random, vocab, 1.0),
        normal(random, vocab, 10.0),
        normal(random, vocab, 0.01),
        single,
        vec![2.25; vocab],
        with_every_third(normal(random, vocab, 1.0), f32::NAN),
        with_every_third(normal(random, vocab, 5.0), f32::NEG_INFINITY),
        vec![f32::NEG_INFINITY; vocab],
        vec![f32::NAN; vocab],
        infinite,
        normal(random, vocab, 1.0).into_iter().map(|logit| (logit * 4.0).round() / 4.0).collect(),
        normal(random, vocab, 1e-30),
        normal(random, vocab, 30.0),
    ]
}

/// Checks `sample_tiles` and `sample_rows`; large vocabularies and many draws on a real device
/// only.
pub(super) fn sample(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let is_real = checker.speeds.is_some();

    let small = [(1, 1), (3, 4), (1025, 1028), (2503, 2503)];
    let large = [(127, 127), (1024, 1024), (50_257, 50_257), (151_936, 151_936)];
    for (vocab, stride) in small.into_iter().chain(large.into_iter().filter(|_| is_real)) {
        let hard = hard_rows(&mut checker.random, vocab);
        let mut rows = Vec::new();
        for (index, params) in PARAMS.iter().enumerate() {
            // Each vocabulary pairs the parameters with two of the rows, all of them with most.
            for offset in [0, 5] {
                let row = hard[(index + offset + vocab) % hard.len()].clone();
                let (seed, position) = (checker.random.bits(), checker.random.below(1000) as i32);
                let params = SampleParams { seed, position, ..*params };
                // Every third is drawn from other logits than those of the model.
                let other = &hard[(index + offset + vocab + 1) % hard.len()];
                let is_shaped = rows.len() % 3 == 2 && params.row >= 0 && has_logprobs(&row);
                let shaped = is_shaped.then(|| other.clone());
                rows.push(SampleRow { raw: row, shaped, params });
            }
        }
        compare(checker, &format!("sample {vocab} ids"), &rows, stride)?;
    }
    most_ids(checker)?;
    frequencies(checker, if is_real { 20_000 } else { 300 })?;
    speed(checker)
}

/// Checks the largest vocabulary with logits that have one weight and two values: sums of weights
/// are the largest that there are.
fn most_ids(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let vocab = SampleParams::VOCAB_MAX;
    let mut logits = vec![-1e-9; vocab];
    logits[vocab / 2..].fill(0.0);
    let seed = checker.random.bits();
    let row = (logits, SampleParams { top_p: 0.25, seed, ..PLAIN });
    compare(checker, "sample the most ids", &[row.into()], vocab)
}

/// Counts how often each id is drawn, with probabilities of all sizes.
fn frequencies(checker: &mut Checker<'_>, draws: i32) -> Result<(), CudaError> {
    let logits = vec![0.1, 1.0, -2.0, f32::NAN, 0.5, 1.0, f32::NEG_INFINITY];
    for params in [PLAIN, SampleParams { temperature: 0.5, top_k: 3, ..PLAIN }] {
        let params = SampleParams { top_n: -1, seed: checker.random.bits(), ..params };
        let rows: Vec<_> = (0..draws)
            .map(|position| (logits.clone(), SampleParams { position, ..params }).into())
            .collect();
        let batch = SampleBatch::new(checker, &rows, 8)?;
        batch.launch(checker.kernels)?;
        let ids = batch.ids.to_vec::<i32>()?;

        let row = (logits.clone(), params).into();
        let reference = Reference::new(&row);
        let mut unlikely = Vec::new();
        for id in 0..logits.len() {
            // Ids without a logprob are never drawn: the maximum of NaN and zero is zero.
            let expected = (f64::from(reference.logprobs(id)[0]).exp() * f64::from(draws)).max(0.0);
            let count = ids.iter().filter(|found| **found == id as i32).count();
            // Six standard deviations: once in a billion.
            if (count as f64 - expected).abs() > 6.0 * expected.sqrt() {
                unlikely.push(id);
            }
        }
        let what = format!("sample, frequencies at temperature {}", params.temperature);
        checker.equal(&format!("{what}, ids too rare or too frequent"), &unlikely, &[]);
    }
    Ok(())
}

/// Times batches of several sizes, with and without filters.
fn speed(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    if checker.speeds.is_none() {
        return Ok(());
    }
    let vocab = 151_936;
    let filtered = SampleParams { top_p: 0.95, top_k: 50, ..PLAIN };
    let nucleus = SampleParams { top_p: 0.95, ..PLAIN };
    for (filters, params) in [("plain", PLAIN), ("top_p", nucleus), ("top_k and top_p", filtered)] {
        for count in [1, 32, 256] {
            let random = &mut checker.random;
            let rows: Vec<_> =
                (0..count).map(|_| (random.floats(vocab, 8.0), params).into()).collect();
            let batch = SampleBatch::new(checker, &rows, vocab)?;
            let what = format!("sample {count}x{vocab}, {filters}");
            checker.time(&what, count * vocab * 4, |kernels| batch.launch(kernels))?;
        }
    }
    Ok(())
}
