//! Kernels that can take each other's place. [`Variant::SERVING`] is what serves, by the times of
//! the profiles in `benches/results`; the others are there for comparison.

use super::grid::gemm::SMALL_ROWS;

/// The most rows of a step whose attention rotates. Each block of a row rotates its queries again,
/// which costs more than a launch where there are many.
pub const ROTATING_ROWS: usize = 128;

/// The most decoded rows of a step whose attention adds up the sums of its splits. Each block
/// counts itself at its end for that, which costs more than a launch where there are many.
pub const JOINED_ROWS: usize = 16;

/// The kernels of a step, where there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Variant {
    /// The makers of products.
    pub products: ProductChoice,
    /// True if the depth of products of few rows is divided among warps. Their bits are not those
    /// of products of more rows.
    pub spread: bool,
    /// True if one kernel does what two could: attention of few rows folds its splits, and products
    /// of our own apply the gate. The bits are the same.
    pub joined: bool,
    /// True if the positions of decoded rows are cut into splits that fill the device. The bits of
    /// a row then depend on the other rows of the step.
    pub fitted: bool,
    /// Strides of 64 positions of every split, in the place of `fitted`; zero if it decides.
    pub strides: usize,
    /// True if attention rotates, in steps that only decode. The bits are the same.
    pub rotating: bool,
    /// True if prompts of enough rows are walked over in tiles of 128 rows. The bits are the same.
    pub tall: bool,
    /// True if those tiles are walked over by products of warpgroups, where the device has them.
    /// The bits are not those of other kernels.
    pub warpgroups: bool,
    /// True if, in steps that only decode, kernels begin before the one in front is over, load
    /// weights, and then wait for it (programmatic dependent launch). The bits are the same.
    pub early: bool,
}

impl Default for Variant {
    fn default() -> Variant {
        Variant::SERVING
    }
}

impl Variant {
    /// The kernels that serve.
    pub const SERVING: Variant = Variant {
        products: ProductChoice::Usual,
        spread: true,
        joined: true,
        fitted: true,
        strides: 0,
        rotating: true,
        tall: true,
        warpgroups: true,
        early: true,
    };

    /// Without what would let the bits of a row depend on other rows of its step.
    pub const fn deterministic(self) -> Variant {
        let products = ProductChoice::Own;
        Variant { products, spread: false, fitted: false, strides: 0, warpgroups: false, ..self }
    }
}

/// The library or the kernels that make the products of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProductChoice {
    /// Our own kernels for few rows, else the library if there is one.
    Usual,
    /// Our own kernels make all products.
    Own,
    /// cuBLASLt makes all products that it supports.
    Library,
}

impl ProductChoice {
    /// The most rows of products that our own kernels make if there is a library.
    pub(super) fn own_rows(self) -> usize {
        match self {
            ProductChoice::Usual => SMALL_ROWS,
            ProductChoice::Own => usize::MAX,
            ProductChoice::Library => 0,
        }
    }
}
