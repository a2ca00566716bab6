//! Sampling, beside a twin that sorts whole rows and adds up in wider numbers.

use std::cmp::Ordering;

use super::Case;
use crate::cuda::shape::{self, SampleParams, SampleScores};
use crate::cuda::{Arg, CudaError, Kernels, Memory};

/// How far from its interval of the distribution a draw may be: sums have other crumbs.
const CRUMB: f64 = 1e-6;
/// How far logprobs may be, as a part of their size.
const LOGPROB: f64 = 1e-6;

/// Everything as likely as the model says.
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
};
const GREEDY: SampleParams = SampleParams { temperature: 0.0, ..PLAIN };

/// Ways to sample that go through every filter, alone and together.
const WAYS: [SampleParams; 16] = [
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

/// A row of logits with what a sort says of it.
struct Twin<'a> {
    raw: &'a [f32],
    values: Vec<f32>,
    floor: f32,
    highest: f64,
    raw_highest: f64,
    sum: f64,
    raw_sum: f64,
}

fn highest(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

impl<'a> Twin<'a> {
    fn new(raw: &'a [f32], params: &SampleParams) -> Twin<'a> {
        let greedy = params.temperature < 1e-5;
        let divisor = if greedy { 1.0 } else { params.temperature };
        let values: Vec<f32> = raw.iter().map(|logit| logit / divisor).collect();
        let (top, raw_top) = (highest(&values), highest(raw));
        let floor =
            if greedy || !top.is_finite() { f32::NEG_INFINITY } else { floor(&values, params) };
        let weight = |value: &f32, top: f32| (f64::from(*value) - f64::from(top)).exp();
        let left = values.iter().filter(|value| **value >= floor);
        let sum = left.map(|value| weight(value, top)).sum();
        let numbers = raw.iter().filter(|logit| !logit.is_nan());
        let raw_sum = numbers.map(|logit| weight(logit, raw_top)).sum();
        let (highest, raw_highest) = (f64::from(top), f64::from(raw_top));
        Twin { raw, values, floor, highest, raw_highest, sum, raw_sum }
    }

    /// Whether there is a distribution: the highest logit is a number.
    fn is_finite(&self) -> bool {
        self.highest.is_finite()
    }

    fn logprobs(&self, id: usize) -> [f32; 2] {
        let value = self.values[id];
        let processed = match value >= self.floor {
            true => (f64::from(value) - self.highest - self.sum.ln()) as f32,
            false => f32::NEG_INFINITY,
        };
        let raw = f64::from(self.raw[id]) - self.raw_highest - self.raw_sum.ln();
        [processed, raw as f32]
    }

    /// Whether a draw may give `id`.
    fn allows(&self, id: usize, params: &SampleParams) -> bool {
        let first = self.values.iter().position(|value| f64::from(*value) == self.highest);
        if params.temperature < 1e-5 || !self.is_finite() {
            return id == first.unwrap_or(0);
        }
        let weight = |value: &f32| match *value >= self.floor {
            true => (f64::from(*value) - self.highest).exp(),
            false => 0.0,
        };
        let from: f64 = self.values[..id].iter().map(weight).sum();
        let to = from + weight(&self.values[id]);
        let at = uniform(params.seed, params.position) * self.sum;
        let crumb = CRUMB * self.sum;
        to > from && (from - crumb..=to + crumb).contains(&at)
    }

    /// What rank and order go by.
    fn shown(&self, params: &SampleParams) -> &[f32] {
        if params.raw { self.raw } else { &self.values }
    }

    fn rank(&self, id: usize, params: &SampleParams) -> i32 {
        let shown = self.shown(params);
        shown.iter().filter(|value| **value >= shown[id]).count() as i32
    }

    /// The likeliest ids, and -1 where there are too few.
    fn top(&self, params: &SampleParams) -> Vec<i32> {
        let (shown, count) = (self.shown(params), params.top_n.max(0) as usize);
        let mut ids: Vec<usize> = (0..shown.len()).filter(|id| !shown[*id].is_nan()).collect();
        // Stable: of equals the lower id comes first.
        ids.sort_by(|a, b| shown[*b].partial_cmp(&shown[*a]).unwrap_or(Ordering::Equal));
        let mut ids: Vec<i32> = ids.into_iter().map(|id| id as i32).take(count).collect();
        ids.resize(count, -1);
        ids
    }
}

/// What the filters leave: all values that reach the result.
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
    sorted.retain(|value| *value >= floor);
    let weight = |value: &f32| (f64::from(*value) - f64::from(sorted[0])).exp();
    let enough = f64::from(params.top_p) * sorted.iter().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let last = sorted.iter().find(|value| {
        sum += weight(value);
        sum >= enough
    });
    last.or(sorted.last()).copied().unwrap_or(floor)
}

/// The number that the host draws, too.
fn uniform(seed: u64, position: i32) -> f64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |value: u64| {
        let value = value.wrapping_add(GOLDEN);
        let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    };
    let bits = mix(mix(seed).wrapping_add((position as u64).wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Rows and parameters on the device, with room for what comes back.
struct Batch {
    logits: Memory,
    params: Memory,
    tiles: Memory,
    ids: Memory,
    scores: Memory,
    top: Memory,
    /// Of parameters, then of logits.
    shape: (usize, usize, usize),
}

impl Batch {
    fn new(
        case: &Case<'_>,
        rows: &[(Vec<f32>, SampleParams)],
        stride: usize,
    ) -> Result<Batch, CudaError> {
        let vocab = rows.first().map_or(1, |row| row.0.len());
        let mut logits = vec![f32::NAN; rows.len() * stride];
        let mut words = Vec::new();
        for (index, (row, params)) in rows.iter().enumerate() {
            // The last row of logits first: which row it is must come from the parameters.
            let at = rows.len() - 1 - index;
            logits[at * stride..][..vocab].copy_from_slice(row);
            let row = if params.row < 0 { -1 } else { at as i32 };
            words.extend(SampleParams { row, ..*params }.words());
        }
        let scores = rows.len() * SampleScores::WORDS * 4;
        Ok(Batch {
            logits: case.upload(&logits)?,
            params: case.upload(&words)?,
            tiles: case.poisoned(shape::sample_scratch(rows.len(), vocab))?,
            ids: case.poisoned(rows.len() * 4)?,
            scores: case.poisoned(scores)?,
            top: case.poisoned(scores * SampleParams::TOP_MAX)?,
            shape: (rows.len(), vocab, stride),
        })
    }

    fn launch(&self, kernels: &Kernels) -> Result<(), CudaError> {
        let (rows, vocab, stride) = self.shape;
        let read = [&self.logits, &self.params, &self.tiles].map(Arg::from);
        let written = [&self.ids, &self.scores, &self.top].map(Arg::from);
        let size = [Arg::from(vocab), stride.into()];
        let first = [&read[..], &size].concat();
        let second = [&read[..], &written, &size, &[SampleParams::TOP_MAX.into()]].concat();
        // SAFETY: all sizes are those that the kernels' header asks for.
        unsafe {
            kernels.launch("sample_tiles", shape::sample_tiles(rows, vocab), &first)?;
            kernels.launch("sample_rows", shape::sample_rows(rows), &second)
        }
    }

    fn read(memory: &Memory) -> Result<Vec<SampleScores>, CudaError> {
        let words = memory.to_vec::<u32>()?;
        let (scores, _) = words.as_chunks::<{ SampleScores::WORDS }>();
        Ok(scores.iter().map(|words| SampleScores::of(*words)).collect())
    }
}

/// What was found and what the twin says, over all rows of a batch.
#[derive(Default)]
struct Pairs {
    /// Rows whose id the twin does not allow.
    wrong: Vec<usize>,
    logprobs: [Vec<f32>; 2],
    ranks: [Vec<i32>; 2],
    top: [Vec<i32>; 2],
}

impl Pairs {
    fn scores(&mut self, twin: &Twin<'_>, found: &SampleScores) {
        if let Ok(id) = usize::try_from(found.id)
            && twin.is_finite()
        {
            self.logprobs[0].extend([found.processed, found.raw]);
            self.logprobs[1].extend(twin.logprobs(id));
        }
    }
}

/// Samples a batch and compares everything.
fn compare(
    case: &mut Case<'_>,
    what: &str,
    rows: &[(Vec<f32>, SampleParams)],
    stride: usize,
) -> Result<(), CudaError> {
    let batch = Batch::new(case, rows, stride)?;
    batch.launch(case.kernels)?;
    let ids = batch.ids.to_vec::<i32>()?;
    let (scores, top) = (Batch::read(&batch.scores)?, Batch::read(&batch.top)?);
    let mut pairs = Pairs::default();
    for (index, (logits, params)) in rows.iter().enumerate() {
        let twin = Twin::new(logits, params);
        let id = usize::try_from(ids[index]).ok().filter(|id| *id < logits.len());
        let allowed = match id {
            Some(id) => params.row >= 0 && twin.allows(id, params),
            None => params.row < 0 && ids[index] == -1,
        };
        let Some(id) = id.filter(|_| allowed) else {
            pairs.wrong.extend((!allowed).then_some(index));
            continue;
        };
        if params.top_n < 0 {
            continue;
        }
        pairs.scores(&twin, &scores[index]);
        pairs.ranks[0].extend([scores[index].id, scores[index].rank]);
        pairs.ranks[1].extend([ids[index], twin.rank(id, params)]);
        let likeliest = &top[index * SampleParams::TOP_MAX..][..params.top_n as usize];
        pairs.top[0].extend(likeliest.iter().map(|one| one.id));
        pairs.top[1].extend(twin.top(params));
        likeliest.iter().for_each(|one| pairs.scores(&twin, one));
    }
    let [found, expected] = &pairs.logprobs;
    case.equal(&format!("{what}, rows with a wrong id"), &pairs.wrong, &[]);
    case.compare(&format!("{what}, logprobs"), found, expected, LOGPROB);
    case.equal(&format!("{what}, ranks"), &pairs.ranks[0], &pairs.ranks[1]);
    case.equal(&format!("{what}, likeliest"), &pairs.top[0], &pairs.top[1]);
    Ok(())
}

/// Rows that are hard: equals, what is not a number, nothing left, distances that bins do not have.
fn hard_rows(case: &mut Case<'_>, vocab: usize) -> Vec<Vec<f32>> {
    let mut normal = |size: f32| {
        let random = &mut case.random;
        let value = |_| (0..6).map(|_| random.signed()).sum::<f32>() * size * 0.7;
        (0..vocab).map(value).collect::<Vec<f32>>()
    };
    let mut one = vec![f32::NEG_INFINITY; vocab];
    one[vocab / 2] = 1.5;
    let odd = |mut row: Vec<f32>, value: f32| {
        row.iter_mut().skip(2).step_by(3).for_each(|logit| *logit = value);
        row
    };
    let mut infinite = normal(1.0);
    infinite[vocab - 1] = f32::INFINITY;
    vec![
        normal(1.0),
        normal(10.0),
        normal(0.01),
        one,
        vec![2.25; vocab],
        odd(normal(1.0), f32::NAN),
        odd(normal(5.0), f32::NEG_INFINITY),
        vec![f32::NEG_INFINITY; vocab],
        vec![f32::NAN; vocab],
        infinite,
        normal(1.0).into_iter().map(|logit| (logit * 4.0).round() / 4.0).collect(),
        normal(1e-30),
        normal(30.0),
    ]
}

/// `sample_tiles` and `sample_rows`; large vocabularies and many draws on a real device only.
pub(super) fn sample(case: &mut Case<'_>) -> Result<(), CudaError> {
    let real = case.speeds.is_some();
    let few = [(1, 1), (3, 4), (1025, 1028), (2503, 2503)];
    let many = [(127, 127), (1024, 1024), (50_257, 50_257), (151_936, 151_936)];
    for (vocab, stride) in few.into_iter().chain(many.into_iter().filter(|_| real)) {
        let hard = hard_rows(case, vocab);
        let mut rows = Vec::new();
        for (index, way) in WAYS.iter().enumerate() {
            // Every way meets some of the rows, over the sizes most of them.
            for offset in [0, 5] {
                let row = hard[(index + offset + vocab) % hard.len()].clone();
                let (seed, position) = (case.random.bits(), case.random.below(1000) as i32);
                rows.push((row, SampleParams { seed, position, ..*way }));
            }
        }
        compare(case, &format!("sample {vocab} ids"), &rows, stride)?;
    }
    frequencies(case, if real { 20_000 } else { 300 })?;
    speed(case)
}

/// How often ids come up, with probabilities of all sizes.
fn frequencies(case: &mut Case<'_>, draws: i32) -> Result<(), CudaError> {
    let logits = vec![0.1, 1.0, -2.0, f32::NAN, 0.5, 1.0, f32::NEG_INFINITY];
    for way in [PLAIN, SampleParams { temperature: 0.5, top_k: 3, ..PLAIN }] {
        let way = SampleParams { top_n: -1, seed: case.random.bits(), ..way };
        let row = |position| (logits.clone(), SampleParams { position, ..way });
        let batch = Batch::new(case, &(0..draws).map(row).collect::<Vec<_>>(), 8)?;
        batch.launch(case.kernels)?;
        let ids = batch.ids.to_vec::<i32>()?;
        let twin = Twin::new(&logits, &way);
        let far = |id: usize| {
            let expected = f64::from(twin.logprobs(id)[0]).exp() * f64::from(draws);
            let expected = if expected.is_nan() { 0.0 } else { expected };
            let count = ids.iter().filter(|found| **found == id as i32).count();
            // Six standard deviations: once in a billion.
            (count as f64 - expected).abs() > 6.0 * expected.sqrt()
        };
        let far: Vec<usize> = (0..logits.len()).filter(|id| far(*id)).collect();
        let what = format!("sample, frequencies at temperature {}", way.temperature);
        case.equal(&format!("{what}, ids too rare or too frequent"), &far, &[]);
    }
    Ok(())
}

fn speed(case: &mut Case<'_>) -> Result<(), CudaError> {
    if case.speeds.is_none() {
        return Ok(());
    }
    let vocab = 151_936;
    let filtered = SampleParams { top_p: 0.95, top_k: 50, ..PLAIN };
    let nucleus = SampleParams { top_p: 0.95, ..PLAIN };
    for (what, way) in [("plain", PLAIN), ("top_p", nucleus), ("top_k and top_p", filtered)] {
        for count in [1, 32, 256] {
            let row = |_| (case.random.floats(vocab, 8.0), way);
            let rows: Vec<_> = (0..count).map(row).collect();
            let batch = Batch::new(case, &rows, vocab)?;
            let what = format!("sample {count}x{vocab}, {what}");
            case.time(&what, count * vocab * 4, |kernels| batch.launch(kernels))?;
        }
    }
    Ok(())
}
