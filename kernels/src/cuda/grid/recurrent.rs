//! The grids of layers with a recurrent state, and the shapes that their kernels take.

use super::plane;
use crate::cuda::Grid;
use crate::op::DeltaHeads;

/// Maximum number of elements of a key, and the number of which it is a multiple.
const KEY_DIM_MAX: usize = 128;
const KEY_DIM_UNIT: usize = 4;
/// Maximum number of positions that a convolution reads.
const TAPS_MAX: usize = 4;
/// Columns of a state that a block has.
const COLUMNS: usize = 16;
/// Heads that a block of `gated_norm` has.
const NORM_HEADS: usize = 8;

/// Returns true if the kernels take layers of this shape.
pub fn takes(heads: DeltaHeads) -> bool {
    let DeltaHeads { key, value, key_dim, value_dim, taps } = heads;
    let fits_keys = (1..=KEY_DIM_MAX).contains(&key_dim) && key_dim.is_multiple_of(KEY_DIM_UNIT);
    let fits_values = value_dim > 0 && value_dim.is_multiple_of(COLUMNS);
    let shares = key > 0 && value > 0 && value.is_multiple_of(key);
    fits_keys && fits_values && shares && (1..=TAPS_MAX).contains(&taps)
}

/// The shapes that the kernels take, in words.
pub const SHAPES: &str =
    "keys of at most 128 elements in steps of 4, and convolutions of at most 4 positions";

/// Grid of `convolve`.
pub fn convolve(rows: usize, heads: DeltaHeads) -> Grid {
    plane((heads.channels() / 2).div_ceil(256), rows, 256)
}

/// Grid of `delta_rule`.
pub fn delta_rule(spans: usize, heads: DeltaHeads) -> Grid {
    plane(heads.value_width() / COLUMNS, spans, 128)
}

/// Grid of `gated_norm`.
pub fn gated_norm(rows: usize, heads: DeltaHeads) -> Grid {
    plane(heads.value.div_ceil(NORM_HEADS), rows, 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_have_the_same_sizes() {
        let delta = include_str!("../../../cuda/recurrent/delta.cu");
        assert!(delta.contains(&format!("#define KEY_MAX {KEY_DIM_MAX}\n")));
        assert!(delta.contains(&format!("#define DELTA_COLUMNS {COLUMNS}\n")));
        let convolve = include_str!("../../../cuda/recurrent/convolve.cu");
        assert!(convolve.contains(&format!("#define TAPS_MAX {TAPS_MAX}\n")));
        assert!(SHAPES.contains(&format!("{KEY_DIM_MAX} elements in steps of {KEY_DIM_UNIT},")));
        assert!(SHAPES.contains(&format!("{TAPS_MAX} positions")));
    }

    #[test]
    fn shapes_are_taken_up_to_the_sizes_of_the_kernels() {
        let heads = DeltaHeads { key: 16, value: 32, key_dim: 128, value_dim: 128, taps: 4 };
        assert!(takes(heads));
        assert!(takes(DeltaHeads { key: 2, value: 2, key_dim: 20, value_dim: 16, taps: 1 }));
        for other in [
            DeltaHeads { key_dim: 132, ..heads },
            DeltaHeads { key_dim: 126, ..heads },
            DeltaHeads { value_dim: 72, ..heads },
            DeltaHeads { value: 24, ..heads },
            DeltaHeads { taps: 5, ..heads },
            DeltaHeads { taps: 0, ..heads },
        ] {
            assert!(!takes(other), "{other:?}");
        }
    }
}
