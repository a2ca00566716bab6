//! Kernels that can take each other's place. [`Variant::SERVING`] is what serves, by the times of
//! the profiles in `benches/results`; the others are there for comparison.

use super::grid::gemm::SMALL_ROWS;

/// The most rows of a step whose attention rotates. Each block of a row rotates its queries again,
/// which costs more than a launch where there are many.
pub const ROTATING_ROWS: usize = 128;

/// The most decoded rows of a step whose attention adds up the sums of its splits. Each block
/// counts itself at its end for that, which costs more than a launch where there are many.
pub const JOINED_ROWS: usize = 16;

/// Bytes of weights from which a product of a step that only decodes waits for the kernel in front
/// of it to be over, in place of beginning early.
///
/// Two whole steps of an H100 say what an early launch is worth. Of Qwen3-0.6B alone, 201 launches
/// and 1.19 GB of products, all together save 135 us; of Qwen3-8B, 254 launches and 15.2 GB, they
/// cost 111 us. With a gain for each launch, and a loss for each byte of a product (its blocks take
/// places before they are evenly free), these are two equations: 0.79 us a launch, and 0.0205 us a
/// MB. A product of 38 MB breaks even.
pub const EARLY_BYTES: usize = 32 << 20;

/// Bytes of weights below which blocks divide the depth of products of 17 to 32 rows, where slabs
/// alone would leave half of the multiprocessors idle.
///
/// On an H100, cuBLASLt takes 4.4 and 5.0 us more than their bytes for two such products of 4 and 6
/// MB. A launch of our own takes 2.7 us more, and adding up the parts about 1.2; and the kernel
/// behind may begin early (0.8 us). That is 1.3 to 1.9 us for each. Our own products of 32 rows
/// read 2.0 TB/s and cuBLASLt's 2.3, 0.06 us a MB: they break even from 20 to 30 MB.
pub const SPLIT_BYTES: usize = 16 << 20;

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
    /// In steps that only decode, kernels begin before the one in front is over, load weights, and
    /// then wait for it (programmatic dependent launch); but products of so many bytes of weights,
    /// or more, begin behind it. Zero if no kernel begins early. The bits are the same.
    pub early_bytes: usize,
    /// Bytes of weights below which blocks divide the depth of a product of 17 to 32 rows with few
    /// columns. The bits are those of no other kernel.
    pub split_bytes: usize,
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
        early_bytes: EARLY_BYTES,
        split_bytes: SPLIT_BYTES,
    };

    /// Without what would let the bits of a row depend on other rows of its step.
    pub const fn deterministic(self) -> Variant {
        Variant {
            products: ProductChoice::Own,
            spread: false,
            fitted: false,
            strides: 0,
            warpgroups: false,
            split_bytes: 0,
            ..self
        }
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
