//! Kernels of our own that can take each other's place. [`Variant::SERVING`] is what serves; the
//! others are timed by a profile, because no GPU has run them yet.

use super::grid::gemm::{MOST_ROWS, SMALL_ROWS};

/// The kernels of a step, where there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Variant {
    /// The makers of products.
    pub products: ProductChoice,
    /// True if one kernel does what two could: attention folds its splits, and products of our own
    /// apply the gate. The bits are the same.
    pub joined: bool,
    /// True if the positions of decoded rows are cut into splits that fill the device. The bits of
    /// a row then depend on the number of rows.
    pub fitted: bool,
    /// True if attention rotates, in steps that only decode. The bits are the same.
    pub rotating: bool,
    /// True if prompts of enough rows are walked over in tiles of 128 rows. The bits are the same.
    pub tall: bool,
    /// True if the kernels of a step begin before the one in front is over, load weights, and then
    /// wait for it (programmatic dependent launch). The bits are the same.
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
        joined: true,
        fitted: false,
        rotating: false,
        tall: false,
        early: false,
    };
}

/// The library or the kernels that make the products of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProductChoice {
    /// Our own kernels for few rows, else the library if there is one.
    Usual,
    /// Our own kernels make all products.
    Own,
    /// Our own kernels for few rows make all products of up to 64 rows.
    Few,
    /// As usual, but slabs of 8 rows of the weights where slabs of 32 would not fill the device.
    Thin,
    /// cuBLASLt makes all products that it supports.
    Library,
    /// As usual, but the fastest of some of cuBLASLt's algorithms is found by timing them.
    Timed,
}

/// The most rows of products that are made by some kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProductRows {
    /// By our own kernels for few rows.
    pub(super) few: usize,
    /// By our own kernels if there is a library.
    pub(super) own: usize,
}

impl ProductRows {
    /// Those that serve.
    pub(super) const USUAL: ProductRows = ProductRows { few: SMALL_ROWS, own: SMALL_ROWS };
}

impl ProductChoice {
    pub(super) fn rows(self) -> ProductRows {
        let usual = ProductRows::USUAL;
        match self {
            ProductChoice::Usual | ProductChoice::Thin | ProductChoice::Timed => usual,
            ProductChoice::Own => ProductRows { own: usize::MAX, ..usual },
            ProductChoice::Few => ProductRows { few: MOST_ROWS, own: MOST_ROWS },
            ProductChoice::Library => ProductRows { own: 0, ..usual },
        }
    }
}
