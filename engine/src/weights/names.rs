//! The names of tensors in files and in broadcasts, and those by which the engine knows them.
//!
//! - [`plain_name`], [`is_left_out`]: a model that also sees has its language model under a prefix
//!   of its own, and parts that the engine does not use.
//! - [`ExpertPart`]: the experts of a layer are stored in one of two layouts: a tensor for each
//!   matrix of each expert, as in published models, or two tensors for all experts, as transformers
//!   5 has them in memory. The engine knows a matrix by its name in the first layout. A tensor in
//!   the second is taken apart where it comes in ([`ExpertPart::all_of`]).

use std::borrow::Cow;
use std::ops::Range;

use kernels::EXPERTS_MAX;

/// The tensor that serves as the head of a model without one.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

/// The head of a model. Files may have it although the embedding serves as the head.
pub(crate) const HEAD: &str = "lm_head.weight";

/// Prefixes of tensors that the engine leaves out: the eyes of a model, and the layers that predict
/// tokens ahead.
const LEFT_OUT: [&str; 3] = ["model.visual.", "visual.", "mtp."];

/// The prefix of the language model's tensors in a model that also sees.
const LANGUAGE_MODEL: &str = "model.language_model.";

/// Returns true for a tensor that the engine leaves out.
pub(crate) fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|prefix| name.starts_with(prefix))
}

/// The name of a tensor in a model that is only a language model.
pub(crate) fn plain_name(name: &str) -> Cow<'_, str> {
    match name.strip_prefix(LANGUAGE_MODEL) {
        Some(rest) => Cow::Owned(format!("model.{rest}")),
        None => Cow::Borrowed(name),
    }
}

/// The part of experts' tensor names behind the layer.
const EXPERTS: &str = ".mlp.experts.";

/// A matrix of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertMatrix {
    Gate,
    Up,
    Down,
}

impl ExpertMatrix {
    /// The name behind the number of the expert.
    fn name(self) -> &'static str {
        match self {
            ExpertMatrix::Gate => "gate_proj.weight",
            ExpertMatrix::Up => "up_proj.weight",
            ExpertMatrix::Down => "down_proj.weight",
        }
    }

    /// The matrix and the number of the expert, from a name without its layer:
    /// `mlp.experts.3.gate_proj.weight`.
    pub(crate) fn parse(name: &str) -> Option<(usize, ExpertMatrix)> {
        let (digits, matrix) = name.strip_prefix(&EXPERTS[1..])?.split_once('.')?;
        let all = [ExpertMatrix::Gate, ExpertMatrix::Up, ExpertMatrix::Down];
        let matrix = all.into_iter().find(|one| one.name() == matrix)?;
        let expert = digits.parse().ok().filter(|expert: &usize| expert.to_string() == digits)?;
        Some((expert, matrix))
    }
}

/// A part of a tensor of all experts of a layer: one matrix of one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertPart {
    /// The name of the matrix where each has a tensor of its own.
    pub(crate) name: String,
    pub(crate) shape: [usize; 2],
    /// Its elements in the tensor.
    pub(crate) elements: Range<usize>,
}

impl ExpertPart {
    /// The parts of a tensor of all experts: `experts.gate_up_proj`, `[experts, 2 * width, hidden]`
    /// with the rows of the gate first, or `experts.down_proj`, `[experts, hidden, width]`. `None`
    /// for any other name or shape.
    pub(crate) fn all_of(name: &str, shape: &[usize]) -> Option<Vec<ExpertPart>> {
        let (layer, matrices) = joined_matrices(name)?;
        let &[experts, rows, columns] = shape else { return None };
        if !rows.is_multiple_of(matrices.len()) || experts > EXPERTS_MAX {
            return None;
        }
        let rows = rows / matrices.len();
        let size = rows.checked_mul(columns)?;

        let mut parts = Vec::new();
        let mut start = 0_usize;
        for expert in 0..experts {
            for matrix in matrices {
                let end = start.checked_add(size)?;
                let name = format!("{layer}{EXPERTS}{expert}.{}", matrix.name());
                parts.push(ExpertPart { name, shape: [rows, columns], elements: start..end });
                start = end;
            }
        }
        Some(parts)
    }

    /// Returns true if `part` is the name of a part of the tensor `whole`.
    pub(crate) fn is_of(part: &str, whole: &str) -> bool {
        let Some((layer, matrices)) = joined_matrices(whole) else { return false };
        let own = part.strip_prefix(layer).and_then(|own| own.strip_prefix('.'));
        own.and_then(ExpertMatrix::parse).is_some_and(|(_, matrix)| matrices.contains(&matrix))
    }
}

/// The layer, and the matrices of each expert, of a tensor of all experts.
fn joined_matrices(name: &str) -> Option<(&str, &'static [ExpertMatrix])> {
    let (layer, tensor) = name.split_once(EXPERTS)?;
    match tensor {
        "gate_up_proj" => Some((layer, &[ExpertMatrix::Gate, ExpertMatrix::Up])),
        "down_proj" => Some((layer, &[ExpertMatrix::Down])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_also_sees_has_the_names_of_its_language_model() {
        let plain = |name| plain_name(name).into_owned();
        assert_eq!(
            plain("model.language_model.layers.0.mlp.up_proj.weight"),
            "model.layers.0.mlp.up_proj.weight"
        );
        assert_eq!(plain("model.norm.weight"), "model.norm.weight");
        for name in ["model.visual.blocks.0.norm1.weight", "mtp.norm.weight"] {
            assert!(is_left_out(name));
        }
        assert!(!is_left_out("model.layers.0.linear_attn.A_log"));
    }

    #[test]
    fn a_tensor_of_all_experts_is_taken_apart() {
        let parts = ExpertPart::all_of("model.layers.3.mlp.experts.gate_up_proj", &[2, 10, 12]);
        let parts = parts.unwrap();
        let names: Vec<&str> = parts.iter().map(|part| &*part.name).collect();
        let prefix = "model.layers.3.mlp.experts";
        let expected = ["0.gate_proj", "0.up_proj", "1.gate_proj", "1.up_proj"];
        assert_eq!(names, expected.map(|name| format!("{prefix}.{name}.weight")));
        assert_eq!(parts[2].shape, [5, 12]);
        assert_eq!(parts[2].elements, 120..180);
        for (name, shape) in [
            ("model.layers.3.mlp.experts.gate_up_proj", &[2, 9, 12][..]),
            ("model.layers.3.mlp.experts.gate_up_proj", &[2, 10]),
            ("model.layers.3.mlp.experts.gate_up_proj", &[2, usize::MAX - 1, 12]),
            ("model.layers.3.mlp.experts.0.gate_proj.weight", &[5, 12]),
            ("model.layers.3.mlp.gate_proj.weight", &[5, 12]),
        ] {
            assert_eq!(ExpertPart::all_of(name, shape), None, "{name} {shape:?}");
        }
        let whole = "model.layers.3.mlp.experts.gate_up_proj";
        assert!(ExpertPart::is_of(&parts[3].name, whole));
        for other in
            ["model.layers.30.mlp.experts.0.up_proj.weight", "model.layers.3.mlp.gate.weight"]
        {
            assert!(!ExpertPart::is_of(other, whole), "{other}");
        }
        assert!(!ExpertPart::is_of("model.layers.3.mlp.experts.0.down_proj.weight", whole));
    }
}
