//! Mixtures of experts against plain loops, and the same bits alone, in any batch and everywhere.

use super::bits::devices;
use super::*;
use crate::op::{ExpertChoice, ExpertMatrices, LayerRouting};

const HIDDEN: usize = 24;
const WIDTH: usize = 40;
const CHOICE: ExpertChoice = ExpertChoice { experts: 7, chosen: 3, normed: true };

/// The router and the experts of one layer, row-major.
struct Weights {
    router: Vec<f32>,
    gate_up: Vec<Vec<f32>>,
    down: Vec<Vec<f32>>,
}

fn weights() -> Weights {
    let of = |seed: u64, len| numbers(seed, len);
    let experts = 0..CHOICE.experts as u64;
    Weights {
        router: of(31, CHOICE.experts * HIDDEN),
        gate_up: experts.clone().map(|one| of(40 + one, 2 * WIDTH * HIDDEN)).collect(),
        down: experts.map(|one| of(60 + one, HIDDEN * WIDTH)).collect(),
    }
}

/// What the layer makes of rows, with the experts that they chose.
fn run(cpu: &Cpu, x: &[f32], choice: ExpertChoice) -> (Vec<f32>, Vec<u16>) {
    let Weights { router, gate_up, down } = weights();
    let matrix = |values: &Vec<f32>, rows, columns| {
        cpu.matrix(&[Values::F32(values)], rows, columns).unwrap()
    };
    let router = matrix(&router, choice.experts, HIDDEN);
    let gate_up: Vec<CpuMatrix> = gate_up.iter().map(|w| matrix(w, 2 * WIDTH, HIDDEN)).collect();
    let down: Vec<CpuMatrix> = down.iter().map(|w| matrix(w, HIDDEN, WIDTH)).collect();

    let mut routing = cpu.routing(3, choice, 0, 0).unwrap();
    let (mut logits, mut out, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
    cpu.matmul(&x.to_vec(), &router, &mut logits).unwrap();
    cpu.route(&logits, LayerRouting { routing: &mut routing, layer: 1 }).unwrap();
    let experts = ExpertMatrices { gate_up: &gate_up, down: &down };
    let chosen_in = LayerRouting { routing: &mut routing, layer: 1 };
    cpu.mix_experts(&x.to_vec(), experts, chosen_in, &mut out).unwrap();
    cpu.take_routing(&mut routing, x.len() / HIDDEN, &mut chosen).unwrap();
    (out, chosen)
}

fn product(w: &[f32], x: &[f64]) -> Vec<f64> {
    let row = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    w.chunks_exact(x.len()).map(row).collect()
}

/// The same of one row in 64-bit floats.
fn oracle(x: &[f32], choice: ExpertChoice) -> (Vec<f64>, Vec<u16>) {
    let Weights { router, gate_up, down } = weights();
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let logits = product(&router, &x);
    let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let mut order: Vec<usize> = (0..choice.experts).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order.truncate(choice.chosen);
    let kept: f64 = order.iter().map(|expert| logits[*expert].exp()).sum();

    let mut out = vec![0.0; HIDDEN];
    for expert in &order {
        let weight = logits[*expert].exp() / if choice.normed { kept } else { total };
        let both = product(&gate_up[*expert], &x);
        let (gate, up) = both.split_at(WIDTH);
        let inner: Vec<f64> =
            gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        let results = product(&down[*expert], &inner);
        out.iter_mut().zip(results).for_each(|(out, result)| *out += weight * result);
    }
    (out, order.into_iter().map(|expert| expert as u16).collect())
}

#[test]
fn a_mixture_agrees_with_plain_loops() {
    let x = numbers(30, 50 * HIDDEN);
    for normed in [true, false] {
        let choice = ExpertChoice { normed, ..CHOICE };
        let (found, chosen) = run(&Cpu::default(), &x, choice);
        for (row, x) in x.chunks_exact(HIDDEN).enumerate() {
            let (expected, experts) = oracle(x, choice);
            close(&found[row * HIDDEN..][..HIDDEN], &expected, 1e-4);
            // The first and the last of three layers have no experts.
            let own = &chosen[row * 9..][..9];
            assert_eq!(own, [&[0; 3][..], &experts, &[0; 3]].concat());
        }
    }
}

#[test]
fn a_mixture_has_the_same_bits_everywhere_and_in_any_batch() {
    // Enough rows for the work to be shared by threads.
    let x = numbers(30, 90 * HIDDEN);
    let (expected, _) = run(&Cpu::default().at_level(SimdLevel::PORTABLE), &x, CHOICE);
    for cpu in devices(Numerics::Reference) {
        assert_eq!(bits(&run(&cpu, &x, CHOICE).0), bits(&expected));
    }
    for numerics in [Numerics::Reference, Numerics::Fast] {
        let cpu = Cpu::new(2, numerics);
        let (whole, _) = run(&cpu, &x, CHOICE);
        for (size, x) in [1, 2, 5, 31].map(|size| (size, x.chunks(size * HIDDEN))) {
            let parts: Vec<f32> = x.flat_map(|x| run(&cpu, x, CHOICE).0).collect();
            assert_eq!(bits(&parts), bits(&whole), "{size} rows");
        }
    }
}

#[test]
fn equal_experts_are_chosen_from_the_lowest_on() {
    let cpu = Cpu::default();
    let choice = ExpertChoice { experts: 5, chosen: 3, normed: true };
    let mut routing = cpu.routing(1, choice, 0, 0).unwrap();
    let rows = [[0.0; 5], [1.0, 2.0, 1.0, 2.0, 1.0], [f32::NAN; 5], [f32::INFINITY; 5]].concat();
    cpu.route(&rows, LayerRouting { routing: &mut routing, layer: 0 }).unwrap();
    let mut chosen = Vec::new();
    cpu.take_routing(&mut routing, 4, &mut chosen).unwrap();
    assert_eq!(chosen[..6], [0, 1, 2, 1, 3, 0]);
    for row in chosen.chunks_exact(3) {
        assert!(row[0] != row[1] && row[1] != row[2] && row[0] != row[2], "{row:?}");
    }
    let error = cpu.take_routing(&mut routing, 5, &mut chosen).unwrap_err();
    assert_eq!(error.to_string(), "`take_routing`: index 4 is outside a table of 4 rows");
    for (experts, chosen) in [(0, 0), (4, 0), (4, 5), (1 << 17, 2)] {
        assert!(cpu.routing(1, ExpertChoice { experts, chosen, normed: true }, 0, 0).is_err());
    }
}
