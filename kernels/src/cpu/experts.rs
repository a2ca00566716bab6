//! Mixtures of experts: the choice of experts for each row, and the products of the chosen ones.
//!
//! Rows are sorted by expert, so that the weights of an expert are read once a step, and the groups
//! of panels of all experts are shared by the threads. Each row then adds up the results of its
//! experts in the order in which it chose them, so its bits do not depend on other rows.

use super::matmul::{PanelProduct, bf16_pairs};
use super::matrix::CpuMatrix;
use super::shared::SharedSlice;
use super::{Cpu, dispatch};
use crate::op::{
    ExpertChoice, ExpertMatrices, LayerRouting, OpError, Ops, check_index, check_len,
    check_multiple,
};

/// The experts of the rows of a step, and room for what they compute.
#[derive(Debug)]
pub struct CpuRouting {
    choice: ExpertChoice,
    /// For each layer, the experts of each row, likeliest first; empty if a layer has none.
    chosen: Vec<Vec<u16>>,
    /// The weight of each of these experts, in the layer that was routed last.
    weights: Vec<f32>,
    probabilities: Vec<f32>,
    order: ExpertOrder,
    /// The rows of each expert, one expert after another.
    inputs: Vec<f32>,
    gate_up: Vec<f32>,
    activated: Vec<f32>,
    outputs: Vec<f32>,
}

/// Pairs of a row and one of its experts, sorted by expert.
#[derive(Debug, Default)]
struct ExpertOrder {
    /// The row of each pair.
    rows: Vec<usize>,
    /// For each row and each of its experts, the place of the pair.
    places: Vec<usize>,
    /// The experts that have rows, with the number of rows.
    used: Vec<(usize, usize)>,
}

impl ExpertOrder {
    /// Sorts the pairs by expert, and by row within an expert.
    fn sort(&mut self, chosen: &[u16], choice: ExpertChoice) {
        let mut counts = vec![0; choice.experts];
        chosen.iter().for_each(|expert| counts[usize::from(*expert)] += 1);
        self.used.clear();
        self.used.extend(counts.iter().copied().enumerate().filter(|(_, count)| *count > 0));

        let mut next = 0;
        for count in &mut counts {
            next += std::mem::replace(count, next);
        }
        self.rows.resize(chosen.len(), 0);
        self.places.resize(chosen.len(), 0);
        for (pair, expert) in chosen.iter().enumerate() {
            let place = counts[usize::from(*expert)];
            counts[usize::from(*expert)] += 1;
            self.rows[place] = pair / choice.chosen;
            self.places[pair] = place;
        }
    }
}

impl CpuRouting {
    /// Room for `layers` layers.
    pub(super) fn new(layers: usize, choice: ExpertChoice) -> CpuRouting {
        CpuRouting {
            choice,
            chosen: vec![Vec::new(); layers],
            weights: Vec::new(),
            probabilities: Vec::new(),
            order: ExpertOrder::default(),
            inputs: Vec::new(),
            gate_up: Vec::new(),
            activated: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// Appends the experts of a row in all layers, zeros for a layer without any.
    pub(super) fn copy_row(&self, row: usize, out: &mut Vec<u16>) -> Result<(), OpError> {
        let width = self.choice.chosen;
        for chosen in &self.chosen {
            if chosen.is_empty() {
                out.extend(std::iter::repeat_n(0, width));
                continue;
            }
            check_index("take_routing", row, chosen.len() / width)?;
            out.extend_from_slice(&chosen[row * width..][..width]);
        }
        Ok(())
    }
}

/// Appends the `count` likeliest experts, likeliest first and the lower index first among equals.
fn choose(probabilities: &[f32], count: usize, chosen: &mut Vec<u16>) {
    let first = chosen.len();
    for _ in 0..count {
        let mut best = None;
        for expert in 0..probabilities.len() {
            let is_likelier = |best: usize| probabilities[expert] > probabilities[best];
            let is_taken = chosen[first..].contains(&(expert as u16));
            if !is_taken && best.is_none_or(is_likelier) {
                best = Some(expert);
            }
        }
        chosen.extend(best.map(|expert| expert as u16));
    }
}

impl Cpu {
    /// Computes [`Ops::route`].
    pub(super) fn choose_experts(
        &self,
        logits: &[f32],
        layer: usize,
        routing: &mut CpuRouting,
    ) -> Result<(), OpError> {
        let ExpertChoice { experts, chosen: count, normed } = routing.choice;
        check_multiple("route", "logits", logits.len(), experts)?;
        check_index("route", layer, routing.chosen.len())?;
        let CpuRouting { chosen, weights, probabilities, .. } = routing;
        probabilities.clear();
        probabilities.extend_from_slice(logits);
        self.share_rows(probabilities, experts, |rows, _| {
            rows.chunks_exact_mut(experts).for_each(|row| dispatch::softmax(self.simd, row, 1.0));
        });

        let chosen = &mut chosen[layer];
        chosen.clear();
        weights.clear();
        for row in probabilities.chunks_exact(experts) {
            let first = chosen.len();
            choose(row, count, chosen);
            weights.extend(chosen[first..].iter().map(|expert| row[usize::from(*expert)]));
            if normed {
                let of_row = &mut weights[first..];
                let sum = of_row.iter().fold(0.0, |sum, weight| sum + weight);
                of_row.iter_mut().for_each(|weight| *weight /= sum);
            }
        }
        Ok(())
    }

    /// Computes [`Ops::mix_experts`].
    pub(super) fn run_experts(
        &self,
        x: &[f32],
        experts: ExpertMatrices<'_, CpuMatrix>,
        LayerRouting { routing, layer }: LayerRouting<&mut CpuRouting>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let ExpertChoice { experts: count, chosen: width, .. } = routing.choice;
        let ExpertMatrices { gate_up, down } = experts;
        check_len("mix_experts", "gate_up", gate_up.len(), count)?;
        check_len("mix_experts", "down", down.len(), count)?;
        check_index("mix_experts", layer, routing.chosen.len())?;
        let [hidden, inner] = [gate_up[0].columns(), down[0].columns()];
        let rows = check_multiple("mix_experts", "x", x.len(), hidden)?;
        let CpuRouting { chosen, weights, order, inputs, .. } = routing;
        check_len("mix_experts", "routing", chosen[layer].len(), rows * width)?;
        check_len("mix_experts", "weights", weights.len(), rows * width)?;

        order.sort(&chosen[layer], routing.choice);
        self.gather(x, hidden, &order.rows, inputs)?;
        self.expert_products(inputs, &order.used, gate_up, &mut routing.gate_up)?;
        self.silu_mul(&routing.gate_up, inner, &mut routing.activated)?;
        self.expert_products(&routing.activated, &order.used, down, &mut routing.outputs)?;

        let (places, outputs) = (&routing.order.places, &routing.outputs);
        out.clear();
        out.resize(rows * hidden, 0.0);
        self.share_rows(out, hidden, |rows, first| {
            for (row, out) in rows.chunks_exact_mut(hidden).enumerate() {
                let pairs = (first + row) * width..(first + row + 1) * width;
                for (place, weight) in places[pairs.clone()].iter().zip(&routing.weights[pairs]) {
                    let result = &outputs[place * hidden..][..hidden];
                    out.iter_mut().zip(result).for_each(|(out, result)| *out += weight * result);
                }
            }
        });
        Ok(())
    }

    /// Multiplies the rows of each expert, which lie one expert after another, with its matrix.
    fn expert_products(
        &self,
        x: &[f32],
        used: &[(usize, usize)],
        matrices: &[CpuMatrix],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let (height, depth) = (matrices[0].rows(), matrices[0].columns());
        for matrix in matrices {
            check_len("mix_experts", "rows", matrix.rows(), height)?;
            check_len("mix_experts", "columns", matrix.columns(), depth)?;
        }
        let pairs = check_multiple("mix_experts", "x", x.len(), depth)?;
        out.resize(pairs * height, 0.0);

        // All experts decide, not those that this step uses: bits must not depend on the batch.
        if self.is_fast() && matrices.iter().all(CpuMatrix::is_bf16) {
            let x = bf16_pairs(x, depth);
            let products = products(&x, depth.div_ceil(2), used, matrices, out);
            self.share_products(&products, |product, groups| {
                dispatch::product_dots(self.simd, product, groups);
            });
        } else {
            let products = products(x, depth, used, matrices, out);
            self.share_products(&products, |product, groups| {
                dispatch::product(self.simd, product, groups);
            });
        }
        Ok(())
    }

    /// Runs the groups of panels of all products on all threads.
    fn share_products<T: Sync>(
        &self,
        products: &[PanelProduct<'_, T>],
        work: impl Fn(&PanelProduct<'_, T>, std::ops::Range<usize>) + Sync,
    ) {
        let groups = products.iter().map(|product| product.w.groups()).sum();
        let operations = products.iter().map(|one| one.rows * one.w.rows() * one.w.columns()).sum();
        self.share(groups, operations, |wanted| {
            let mut first = 0;
            for product in products {
                let end = first + product.w.groups();
                let (from, to) = (wanted.start.max(first), wanted.end.min(end));
                if from < to {
                    work(product, from - first..to - first);
                }
                first = end;
            }
        });
    }
}

/// The product of each used expert with its rows of `stride` elements.
fn products<'a, T>(
    x: &'a [T],
    stride: usize,
    used: &[(usize, usize)],
    matrices: &'a [CpuMatrix],
    out: &'a mut [f32],
) -> Vec<PanelProduct<'a, T>> {
    let (mut x, mut out) = (x, out);
    let mut products = Vec::with_capacity(used.len());
    for &(expert, rows) in used {
        let w = &matrices[expert];
        let (own, other) = x.split_at(rows * stride);
        let (results, rest) = out.split_at_mut(rows * w.rows());
        products.push(PanelProduct { x: own, rows, w, out: SharedSlice::new(results) });
        (x, out) = (other, rest);
    }
    products
}
