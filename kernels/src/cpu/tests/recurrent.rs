//! Layers with a recurrent state against plain loops, and the same bits in any chunks, in any
//! batch, from kept states and everywhere.

use super::bits::devices;
use super::*;
use crate::op::{ConvolutionInputs, DeltaHeads, DeltaInputs, LayerStates, SpanState, StateMark};

const HEADS: [DeltaHeads; 4] = [
    DeltaHeads { key: 1, value: 1, key_dim: 3, value_dim: 16, taps: 1 },
    DeltaHeads { key: 2, value: 4, key_dim: 24, value_dim: 48, taps: 4 },
    DeltaHeads { key: 2, value: 2, key_dim: 20, value_dim: 112, taps: 3 },
    DeltaHeads { key: 1, value: 3, key_dim: 128, value_dim: 128, taps: 4 },
];

/// The weights of one layer.
struct Weights {
    kernel: Vec<f32>,
    decay: Vec<f32>,
    bias: Vec<f32>,
    norm: Vec<f32>,
}

fn weights(heads: DeltaHeads) -> Weights {
    let decay = numbers(2, heads.value).into_iter().map(|rate| 3.0 * rate).collect();
    Weights {
        kernel: numbers(1, heads.channels() * heads.taps),
        decay,
        bias: numbers(3, heads.value),
        norm: numbers(4, heads.value_dim),
    }
}

/// A sequence in a step: its rows, the slot that it begins with, and those that it writes.
struct Part<'a> {
    projected: &'a [f32],
    from: Option<u32>,
    marks: &'a [StateMark],
}

/// Runs a step of some sequences through layer 1.
fn step(cpu: &Cpu, states: &mut CpuStates, parts: &[Part<'_>]) -> Result<Vec<f32>, OpError> {
    let heads = states.heads();
    let Weights { kernel, decay, bias, norm } = weights(heads);
    let projected: Vec<f32> = parts.iter().flat_map(|part| part.projected).copied().collect();
    let (mut spans, mut kept, mut start) = (Vec::new(), Vec::new(), 0);
    for Part { projected, from, marks } in parts {
        let end = start + projected.len() / heads.row();
        spans.push(Span { rows: start..end, start: 0, pages: &[] });
        kept.push(SpanState { from: *from, marks });
        start = end;
    }
    let step = Step { spans: &spans, states: &kept, ..Step::default() };
    let (mut convolved, mut out) = (Vec::new(), Vec::new());
    let to = LayerStates { states: &mut *states, layer: 1 };
    let inputs = ConvolutionInputs { projected: &projected, kernel: &kernel };
    cpu.convolve(&step, inputs, to, &mut convolved)?;
    let (projected, convolved) = (&projected, &mut convolved);
    let inputs = DeltaInputs { projected, convolved, decay: &decay, bias: &bias };
    let to = LayerStates { states, layer: 1 };
    cpu.delta_rule(&step, inputs, to, &mut out)?;
    let norm = RmsNorm { weight: &norm, offset: 0.0, eps: 1e-6 };
    cpu.gated_norm(&mut out, projected, heads, norm)?;
    Ok(out)
}

/// A mark after all rows.
fn to_slot(projected: &[f32], heads: DeltaHeads, slot: u32) -> [StateMark; 1] {
    [StateMark { rows: projected.len() / heads.row(), slot }]
}

/// A whole sequence in one step.
fn whole(cpu: &Cpu, heads: DeltaHeads, projected: &[f32]) -> Vec<f32> {
    let mut states = cpu.states(heads, 2, 1).unwrap();
    let marks = &to_slot(projected, heads, 0);
    step(cpu, &mut states, &[Part { projected, from: None, marks }]).unwrap()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

/// The same of a whole sequence in 64-bit floats.
fn oracle(heads: DeltaHeads, projected: &[f32]) -> Vec<f64> {
    let Weights { kernel, decay, bias, norm } = weights(heads);
    let wide: Vec<f64> = projected.iter().map(|x| f64::from(*x)).collect();
    let rows: Vec<&[f64]> = wide.chunks_exact(heads.row()).collect();
    let (dim, width) = (heads.key_dim, heads.value_dim);
    let mut states = vec![vec![0.0; dim * width]; heads.value];
    let mut out = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let convolved: Vec<f64> = (0..heads.channels())
            .map(|channel| {
                let tap = |tap: usize| {
                    let at = (index + tap + 1).checked_sub(heads.taps)?;
                    Some(rows[at][channel] * f64::from(kernel[channel * heads.taps + tap]))
                };
                let sum: f64 = (0..heads.taps).filter_map(tap).sum();
                sum * sigmoid(sum)
            })
            .collect();
        for head in 0..heads.value {
            let key_head = head / (heads.value / heads.key);
            let query = unit(&convolved[key_head * dim..][..dim]);
            let key = unit(&convolved[(heads.key + key_head) * dim..][..dim]);
            let value = &convolved[2 * heads.key * dim + head * width..][..width];
            let tail = &row[heads.channels()..];
            let z = &tail[head * width..][..width];
            let strength = sigmoid(tail[heads.value_width() + head]);
            let a = tail[heads.value_width() + heads.value + head] + f64::from(bias[head]);
            let kept = (-f64::from(decay[head]).exp() * a.exp().ln_1p()).exp();

            let state = &mut states[head];
            state.iter_mut().for_each(|x| *x *= kept);
            let known = |j: usize| (0..dim).map(|i| key[i] * state[i * width + j]).sum::<f64>();
            let deltas: Vec<f64> = (0..width).map(|j| (value[j] - known(j)) * strength).collect();
            for i in 0..dim {
                for j in 0..width {
                    state[i * width + j] += key[i] * deltas[j];
                }
            }
            let sum = |j: usize| (0..dim).map(|i| query[i] * state[i * width + j]).sum::<f64>();
            let result: Vec<f64> = (0..width).map(|j| sum(j) / (dim as f64).sqrt()).collect();
            let mean = result.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let scale = 1.0 / (mean + 1e-6).sqrt();
            for j in 0..width {
                out.push(result[j] * scale * f64::from(norm[j]) * z[j] * sigmoid(z[j]));
            }
        }
    }
    out
}

#[test]
fn a_recurrent_layer_agrees_with_plain_loops_everywhere() {
    for (index, heads) in HEADS.into_iter().enumerate() {
        let mut projected = numbers(10 + index as u64, 37 * heads.row());
        projected.iter_mut().for_each(|x| *x *= 3.0);
        let found = whole(&Cpu::default(), heads, &projected);
        close(&found, &oracle(heads, &projected), 2e-4);
        for cpu in devices(Numerics::Reference) {
            assert_eq!(bits(&whole(&cpu, heads, &projected)), bits(&found), "{heads:?} {cpu:?}");
        }
    }
}

#[test]
fn a_recurrent_layer_has_the_same_bits_in_any_chunks() {
    for heads in HEADS {
        let projected = numbers(20, 30 * heads.row());
        let expected = bits(&whole(&Cpu::default(), heads, &projected));
        for size in [1, 2, 7, 16] {
            let cpu = Cpu::default();
            let mut states = cpu.states(heads, 2, 3).unwrap();
            let (mut from, mut found) = (None, Vec::new());
            for (index, projected) in projected.chunks(size * heads.row()).enumerate() {
                // The state stays in a slot, and moves to the other one at times.
                let slot = if index % 3 == 2 { 1 } else { 2 };
                let marks = &to_slot(projected, heads, slot);
                let parts = [Part { projected, from, marks }];
                found.extend(step(&cpu, &mut states, &parts).unwrap());
                from = Some(slot);
            }
            assert_eq!(bits(&found), expected, "chunks of {size}");
        }
    }
}

#[test]
fn sequences_begin_with_a_kept_state_in_one_step() {
    let heads = HEADS[1];
    let cpu = Cpu::default();
    let first = numbers(30, 20 * heads.row());
    let marks = [StateMark { rows: 5, slot: 3 }, StateMark { rows: 16, slot: 0 }];
    let marks = [marks.as_slice(), &to_slot(&first, heads, 1)].concat();
    let mut states = cpu.states(heads, 2, 6).unwrap();
    let part = Part { projected: &first, from: None, marks: &marks };
    assert_eq!(bits(&step(&cpu, &mut states, &[part]).unwrap()), bits(&whole(&cpu, heads, &first)));

    // Two begin after 16 rows, one after 5, one goes on, and one begins.
    let rest: Vec<Vec<f32>> = (0..5).map(|seed| numbers(40 + seed, 9 * heads.row())).collect();
    let slots =
        [(Some(0), 16, 2), (Some(0), 16, 4), (Some(3), 5, 5), (Some(1), 20, 1), (None, 0, 3)];
    // A slot that another sequence reads is not written.
    let refused = [
        Part { projected: &rest[0], from: Some(3), marks: &to_slot(&rest[0], heads, 5) },
        Part { projected: &rest[1], from: None, marks: &to_slot(&rest[1], heads, 3) },
    ];
    assert!(step(&cpu, &mut states, &refused).is_err());
    let marks: Vec<_> =
        rest.iter().zip(slots).map(|(x, (_, _, to))| to_slot(x, heads, to)).collect();
    let mut parts = Vec::new();
    for ((projected, (from, ..)), marks) in rest.iter().zip(slots).zip(&marks).take(4) {
        parts.push(Part { projected, from, marks });
    }
    let found = step(&cpu, &mut states, &parts).unwrap();
    let width = 9 * heads.value_width();
    for (index, (_, rows, _)) in slots.into_iter().take(4).enumerate() {
        let all = [&first[..rows * heads.row()], &rest[index]].concat();
        let expected = whole(&cpu, heads, &all);
        let found = &found[index * width..][..width];
        assert_eq!(bits(found), bits(&expected[rows * heads.value_width()..]), "{index}");
    }
    // A slot that others used shows nothing of it.
    let last = Part { projected: &rest[4], from: None, marks: &marks[4] };
    let found = step(&cpu, &mut states, &[last]).unwrap();
    assert_eq!(bits(&found), bits(&whole(&cpu, heads, &rest[4])));
}

#[test]
fn wrong_slots_and_marks_are_errors() {
    let heads = HEADS[1];
    let cpu = Cpu::default();
    let projected = numbers(50, 2 * heads.row());
    let mark = |rows, slot| StateMark { rows, slot };
    for (from, marks) in [
        (None, vec![]),
        (None, vec![mark(1, 0)]),
        (None, vec![mark(2, 3)]),
        (Some(3), vec![mark(2, 0)]),
        (None, vec![mark(1, 0), mark(2, 0)]),
        (None, vec![mark(2, 0), mark(2, 1)]),
        (None, vec![mark(0, 0), mark(2, 1)]),
    ] {
        let mut states = cpu.states(heads, 2, 3).unwrap();
        let part = Part { projected: &projected, from, marks: &marks };
        assert!(step(&cpu, &mut states, &[part]).is_err(), "{from:?} {marks:?}");
    }
    let narrow = DeltaHeads { value_dim: 8, ..heads };
    assert!(cpu.states(narrow, 1, 1).is_err());
    assert!(cpu.states(heads, usize::MAX, 2).is_err());
}

#[test]
fn softplus_is_exact_to_a_millionth() {
    for i in -40_000..40_000 {
        let x = i as f32 * 1e-3;
        let expected = f64::from(x).exp().ln_1p();
        let error = (f64::from(loops::softplus(x)) / expected - 1.0).abs();
        assert!(error < 1e-6, "softplus({x}): relative error {error}");
    }
}

#[test]
fn a_gate_multiplies_by_its_sigmoid() {
    let (gate, x) = (numbers(60, 100), numbers(61, 100));
    let found = at_all_levels(|cpu| {
        let mut x = x.clone();
        cpu.sigmoid_mul(&gate, &mut x).unwrap();
        x
    });
    let expected: Vec<f64> =
        gate.iter().zip(&x).map(|(gate, x)| f64::from(*x) * sigmoid(f64::from(*gate))).collect();
    close(&found, &expected, 1e-6);
}

#[test]
fn a_part_is_added_as_far_as_its_gate_is_open() {
    const WIDTH: usize = 37;
    let [input, part, before] = [70, 71, 72].map(|seed| numbers(seed, 3 * WIDTH));
    let weight = numbers(73, WIDTH);
    let found = at_all_levels(|cpu| {
        let mut sum = before.clone();
        cpu.add_gated(&input, &weight, &part, &mut sum).unwrap();
        sum
    });
    let expected: Vec<f64> = (0..3 * WIDTH)
        .map(|at| {
            let row = &input[at / WIDTH * WIDTH..][..WIDTH];
            let product: f64 =
                row.iter().zip(&weight).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            f64::from(before[at]) + sigmoid(product) * f64::from(part[at])
        })
        .collect();
    close(&found, &expected, 1e-5);

    let mut short = vec![0.0; WIDTH];
    assert!(Cpu::default().add_gated(&input, &weight, &part, &mut short).is_err());
}

#[test]
fn a_norm_adds_its_offset_and_a_rotation_leaves_the_rest() {
    let cpu = Cpu::default();
    let (x, weight) = (numbers(62, 40), numbers(63, 20));
    let shifted: Vec<f32> = weight.iter().map(|weight| weight + 1.0).collect();
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    let of = |weight, offset| RmsNorm { weight, offset, eps: 1e-6 };
    cpu.rms_norm(&x, &of(&weight, 1.0), &mut found).unwrap();
    cpu.rms_norm(&x, &of(&shifted, 0.0), &mut expected).unwrap();
    assert_eq!(bits(&found), bits(&expected));

    let heads = Heads { query: 1, kv: 1, dim: 10 };
    let table = numbers(64, 4);
    let before = numbers(65, heads.row());
    let mut turned = before.clone();
    cpu.rope(&mut turned, heads, &rotation(&table, 4), &[0]).unwrap();
    for head in [0, 10] {
        assert_eq!(turned[head + 4..head + 10], before[head + 4..head + 10]);
        assert_eq!(turned[head], before[head] * table[0] - before[head + 2] * table[2]);
        assert_eq!(turned[head + 3], before[head + 3] * table[1] + before[head + 1] * table[3]);
    }
    assert_eq!(turned[20..], before[20..]);
}
