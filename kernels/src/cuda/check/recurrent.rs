//! Layers with a recurrent state, against the CPU's operations, and against themselves in other
//! chunks.
//!
//! The CPU gets the numbers that the kernel gets, which are bf16, and so do both in a second step
//! from the states that each of them kept in the first one.

use super::elementwise::HALF_UNIT;
use super::{Checker, widened};
use crate::cpu::{Cpu, CpuStates};
use crate::cuda::grid::recurrent as grid;
use crate::cuda::step::plan::StepPlan;
use crate::cuda::step::tiles::TileRules;
use crate::cuda::{Arg, CudaError, Grid, Kernels, Memory};
use crate::op::{
    ConvolutionInputs, DeltaHeads, DeltaInputs, LayerStates, Ops, RmsNorm, Span, SpanState,
    StateMark, Step,
};

const EPS: f32 = 1e-6;
const OFFSET: f32 = 0.5;
/// Slots of the states.
const SLOTS: usize = 8;

/// At the borders of what the kernels take, and the shape of Qwen3.5 with fewer heads.
const SHAPES: [DeltaHeads; 4] = [
    DeltaHeads { key: 1, value: 1, key_dim: 4, value_dim: 16, taps: 1 },
    DeltaHeads { key: 2, value: 4, key_dim: 24, value_dim: 48, taps: 4 },
    DeltaHeads { key: 3, value: 9, key_dim: 36, value_dim: 16, taps: 3 },
    DeltaHeads { key: 1, value: 2, key_dim: 128, value_dim: 128, taps: 4 },
];

/// The weights of one layer.
struct Weights {
    heads: DeltaHeads,
    kernel: Vec<f32>,
    decay: Vec<f32>,
    bias: Vec<f32>,
    norm: Vec<f32>,
}

impl Weights {
    fn new(checker: &mut Checker<'_>, heads: DeltaHeads) -> Weights {
        let random = &mut checker.random;
        Weights {
            heads,
            kernel: random.floats(heads.channels() * heads.taps, 1.0),
            decay: random.floats(heads.value, 3.0),
            bias: random.floats(heads.value, 1.0),
            norm: random.floats(heads.value_dim, 2.0),
        }
    }
}

/// A sequence in a step: its rows, the slot that it begins with, and those that it writes.
#[derive(Clone)]
struct SpanCase {
    rows: usize,
    from: Option<u32>,
    marks: Vec<StateMark>,
}

impl SpanCase {
    fn new(from: Option<u32>, marks: &[(usize, u32)]) -> SpanCase {
        let rows = marks.last().map_or(0, |mark| mark.0);
        let marks = marks.iter().map(|(rows, slot)| StateMark { rows: *rows, slot: *slot });
        SpanCase { rows, from, marks: marks.collect() }
    }
}

/// The numbers of one step, without padding: bf16 if a kernel made them.
struct Outputs<T> {
    convolved: Vec<T>,
    results: Vec<T>,
    normed: Vec<T>,
}

/// The weights and states on the device.
struct OnDevice {
    kernel: Memory,
    decay: Memory,
    bias: Memory,
    norm: Memory,
    convolution: Memory,
    delta: Memory,
}

impl OnDevice {
    fn new(checker: &Checker<'_>, weights: &Weights) -> Result<OnDevice, CudaError> {
        let heads = weights.heads;
        let inputs = SLOTS * (heads.taps - 1) * heads.channels();
        let states = SLOTS * heads.value_width() * heads.key_dim;
        Ok(OnDevice {
            kernel: checker.upload(&weights.kernel)?,
            decay: checker.upload(&weights.decay)?,
            bias: checker.upload(&weights.bias)?,
            norm: checker.upload(&weights.norm)?,
            convolution: checker.poisoned(inputs * 2)?,
            delta: checker.poisoned(states * 4)?,
        })
    }

    /// Prepares a step of `parts`, whose padding rows are no numbers.
    fn step(
        &self,
        checker: &Checker<'_>,
        heads: DeltaHeads,
        parts: &[SpanCase],
        projected: &[u16],
    ) -> Result<StepOnDevice, CudaError> {
        let plan = with_step(parts, |step| StepPlan::of(step, 1, TileRules::FIXED));
        let (shape, offsets) = (plan.shape, plan.shape.offsets());
        let words = checker.upload(&plan.words)?;
        let words_at = |offset: usize| Arg::Pointer(words.address() + 4 * offset as u64);
        let mut padded = projected.to_vec();
        padded.resize(shape.rows * heads.row(), 0xFFFF);
        let inputs = checker.upload(&padded)?;
        let convolved = checker.poisoned(shape.rows * heads.channels() * 2)?;
        let results = checker.poisoned(shape.rows * heads.value_width() * 2)?;

        let (states, marks) = (words_at(offsets.states), words_at(offsets.marks));
        let gates = Arg::Pointer(inputs.address() + 2 * heads.channels() as u64);
        let pointers = |memories: &[&Memory]| -> Vec<Arg> {
            memories.iter().map(|memory| Arg::from(*memory)).collect()
        };
        let counts = |counts: &[usize]| -> Vec<Arg> {
            counts.iter().map(|count| Arg::from(*count)).collect()
        };
        let convolve = [
            pointers(&[&convolved, &inputs, &self.kernel, &self.convolution]),
            vec![words_at(offsets.row_spans), states, marks],
            counts(&[heads.row(), heads.channels(), heads.taps]),
        ];
        let DeltaHeads { key, value, key_dim, value_dim, .. } = heads;
        let rule = [
            pointers(&[&results, &convolved, &inputs, &self.decay, &self.bias, &self.delta]),
            vec![states, marks],
            counts(&[key, value, key_dim, value_dim, heads.row()]),
        ];
        let norm = [
            vec![(&results).into(), gates, (&self.norm).into()],
            counts(&[value, value_dim, heads.row()]),
            vec![EPS.into(), OFFSET.into()],
        ];
        let launches = [
            ("convolve", grid::convolve(shape.rows, heads), convolve.concat()),
            ("delta_rule", grid::delta_rule(shape.spans, heads), rule.concat()),
            ("gated_norm", grid::gated_norm(shape.rows, heads), norm.concat()),
        ];
        Ok(StepOnDevice { launches, convolved, results, _inputs: [words, inputs] })
    }

    /// Runs a step through all three kernels.
    fn run(
        &self,
        checker: &Checker<'_>,
        heads: DeltaHeads,
        parts: &[SpanCase],
        projected: &[u16],
    ) -> Result<Outputs<u16>, CudaError> {
        let step = self.step(checker, heads, parts, projected)?;
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let cut = |values: Vec<u16>, width: usize| values[..rows * width].to_vec();
        step.launch(checker.kernels, CONVOLVE)?;
        step.launch(checker.kernels, RULE)?;
        let results = cut(step.results.to_vec()?, heads.value_width());
        step.launch(checker.kernels, NORM)?;
        Ok(Outputs {
            convolved: cut(step.convolved.to_vec()?, heads.channels()),
            results,
            normed: cut(step.results.to_vec()?, heads.value_width()),
        })
    }
}

/// Indexes of the launches of a step.
const CONVOLVE: usize = 0;
const RULE: usize = 1;
const NORM: usize = 2;

/// A step with all its memory, and the launches of its kernels.
struct StepOnDevice {
    launches: [(&'static str, Grid, Vec<Arg>); 3],
    convolved: Memory,
    results: Memory,
    /// Memory that the launches point to.
    _inputs: [Memory; 2],
}

impl StepOnDevice {
    fn launch(&self, kernels: &Kernels, index: usize) -> Result<(), CudaError> {
        let (name, grid, args) = &self.launches[index];
        // SAFETY: all sizes are those that the kernel's header requires, and the memory is here or
        // with the weights.
        unsafe { kernels.launch(name, *grid, args) }
    }
}

/// Calls `use_step` with the step of these parts.
fn with_step<R>(parts: &[SpanCase], use_step: impl FnOnce(&Step<'_>) -> R) -> R {
    let rows: usize = parts.iter().map(|part| part.rows).sum();
    let pages = vec![0; rows.div_ceil(crate::PAGE)];
    let (mut spans, mut states, mut start) = (Vec::new(), Vec::new(), 0);
    for SpanCase { rows, from, marks } in parts {
        spans.push(Span { rows: start..start + rows, start: 0, pages: &pages });
        states.push(SpanState { from: *from, marks });
        start += rows;
    }
    let (ids, positions) = (vec![0; rows], vec![0; rows]);
    use_step(&Step {
        ids: &ids,
        positions: &positions,
        spans: &spans,
        states: &states,
        ..Step::default()
    })
}

/// The same on the CPU. The rule gets the convolved rows of the device, and the norm its results.
fn on_cpu(
    weights: &Weights,
    states: &mut CpuStates,
    parts: &[SpanCase],
    (projected, found): (&[u16], &Outputs<u16>),
) -> Outputs<f32> {
    const FITS: &str = "all sizes are those of the shape";
    let (cpu, projected) = (Cpu::default(), widened(projected));
    let (mut convolved, mut results) = (Vec::new(), Vec::new());
    with_step(parts, |step| {
        let to = LayerStates { states: &mut *states, layer: 0 };
        let inputs = ConvolutionInputs { projected: &projected, kernel: &weights.kernel };
        cpu.convolve(step, inputs, to, &mut convolved).expect(FITS);

        let to = LayerStates { states, layer: 0 };
        let inputs = DeltaInputs {
            projected: &projected,
            convolved: &mut widened(&found.convolved),
            decay: &weights.decay,
            bias: &weights.bias,
        };
        cpu.delta_rule(step, inputs, to, &mut results).expect(FITS);
    });
    let mut normed = widened(&found.results);
    let norm = RmsNorm { weight: &weights.norm, offset: OFFSET, eps: EPS };
    cpu.gated_norm(&mut normed, &projected, weights.heads, norm).expect(FITS);
    Outputs { convolved, results, normed }
}

/// Two steps: from nothing with a state kept on the way and at the end, then from those.
fn steps() -> [Vec<SpanCase>; 2] {
    [
        vec![
            SpanCase::new(None, &[(1, 3)]),
            SpanCase::new(None, &[(2, 0), (16, 1), (21, 2)]),
            SpanCase::new(None, &[(3, 4)]),
            SpanCase::new(None, &[(33, 5)]),
        ],
        vec![
            // One begins with the slot that it writes first, two with one that nobody writes.
            SpanCase::new(Some(3), &[(1, 3), (2, 6)]),
            SpanCase::new(Some(1), &[(19, 7)]),
            SpanCase::new(Some(1), &[(1, 2)]),
            SpanCase::new(Some(4), &[(1, 4)]),
            SpanCase::new(Some(5), &[(5, 0), (40, 5)]),
        ],
    ]
}

/// Checks all three kernels.
pub(super) fn recurrent(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for heads in SHAPES {
        let weights = Weights::new(checker, heads);
        let device = OnDevice::new(checker, &weights)?;
        let states = Cpu::default().states(heads, 1, SLOTS);
        let mut states = states.expect("the CPU takes every shape of the kernels");
        for (index, parts) in steps().iter().enumerate() {
            let rows: usize = parts.iter().map(|part| part.rows).sum();
            let projected = checker.random.halves(rows * heads.row(), 3.0);
            let found = device.run(checker, heads, parts, &projected)?;
            let expected = on_cpu(&weights, &mut states, parts, (&projected, &found));
            let Outputs { convolved, results, normed } = expected;
            let what = |kernel: &str| format!("{kernel} {heads:?}, step {index}");
            checker.compare_bf16(&what("convolve"), &found.convolved, &convolved, HALF_UNIT);
            checker.compare_bf16(&what("delta_rule"), &found.results, &results, HALF_UNIT);
            checker.compare_bf16(&what("gated_norm"), &found.normed, &normed, HALF_UNIT);
        }
        chunks(checker, &weights)?;
    }
    speed(checker)
}

/// Checks that a sequence has the same bits in chunks of any size, alone and beside others.
fn chunks(checker: &mut Checker<'_>, weights: &Weights) -> Result<(), CudaError> {
    const ROWS: usize = 41;
    let heads = weights.heads;
    let device = OnDevice::new(checker, weights)?;
    let projected = checker.random.halves(ROWS * heads.row(), 3.0);
    let whole = device.run(checker, heads, &[SpanCase::new(None, &[(ROWS, 0)])], &projected)?;
    for size in [1, 2, 7, 16] {
        let (mut normed, mut from) = (Vec::new(), None);
        for (index, rows) in projected.chunks(size * heads.row()).enumerate() {
            // The state stays in a slot, and moves to the other one at times. Another sequence has
            // the same rows.
            let (slot, count) = (1 + index as u32 % 3 / 2, rows.len() / heads.row());
            let parts = [SpanCase::new(None, &[(count, 7)]), SpanCase::new(from, &[(count, slot)])];
            let both = device.run(checker, heads, &parts, &[rows, rows].concat())?.normed;
            normed.extend_from_slice(&both[count * heads.value_width()..]);
            from = Some(slot);
        }
        checker.equal(&format!("recurrent {heads:?}, chunks of {size}"), &normed, &whole.normed);
    }
    Ok(())
}

/// Times the convolution and the rule for sequences that decode, and for a prompt.
fn speed(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    if checker.speeds.is_none() {
        return Ok(());
    }

    let heads = DeltaHeads { key: 16, value: 16, key_dim: 128, value_dim: 128, taps: 4 };
    let decodes = (0..SLOTS as u32).map(|slot| SpanCase::new(Some(slot), &[(1, slot)])).collect();
    let state = heads.value_width() * heads.key_dim * 4;
    let cases: [(&str, Vec<SpanCase>, usize); 2] = [
        ("8 decodes", decodes, 2 * SLOTS * state),
        ("2048 rows", vec![SpanCase::new(None, &[(2048, 0)])], state),
    ];
    let weights = Weights::new(checker, heads);
    let device = OnDevice::new(checker, &weights)?;
    device.delta.fill(0)?;
    device.convolution.fill(0)?;

    for (what, parts, states) in cases {
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let projected = checker.random.halves(rows * heads.row(), 1.0);
        let step = device.step(checker, heads, &parts, &projected)?;
        let (channels, values) = (heads.channels(), heads.value_width());
        checker.time(&format!("convolve {what}"), 4 * rows * channels, |kernels| {
            step.launch(kernels, CONVOLVE)
        })?;
        let bytes = states + 2 * rows * (channels + values);
        checker.time(&format!("delta_rule {what}"), bytes, |kernels| step.launch(kernels, RULE))?;
    }
    Ok(())
}
