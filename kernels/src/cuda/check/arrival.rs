//! The kernels for tensors where they arrived: checks and conversions of elements, and checksums.

use blake3::hazmat::{ChainingValue, Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::Checker;
use crate::bf16::{narrow, widen};
use crate::cuda::arrival::checksum::{DIGEST_WORDS, HashInput, fold_nodes};
use crate::cuda::grid;
use crate::cuda::{Arg, CudaError, Memory};

/// Bits of infinities as bf16 and as float16.
const BF16_INFINITY: u16 = 0x7F80;
const F16_INFINITY: u16 = 0x7C00;

/// Bytes whose checksum is timed, and elements whose conversion is.
const TIMED_BYTES: usize = 512 << 20;
const TIMED_ELEMENTS: usize = 128 << 20;

/// A kernel that takes elements in, and its reference.
struct Case {
    kernel: &'static str,
    /// Bytes of an element that arrives, and of one that is written; zero for a mere check.
    from: usize,
    to: usize,
    /// The bits of an element as they are to be written, and whether it is infinite or NaN.
    expected: fn(u32) -> (u32, bool),
    /// Bits of elements that are infinite or NaN after the conversion.
    wrong: &'static [u32],
}

const CASES: [Case; 6] = [
    Case {
        kernel: "check_f32",
        from: 4,
        to: 0,
        expected: |bits| (bits, !f32::from_bits(bits).is_finite()),
        wrong: &[0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFFF_FFFF],
    },
    Case {
        kernel: "check_bf16",
        from: 2,
        to: 0,
        expected: |bits| (bits, !widen(bits as u16).is_finite()),
        wrong: &[0x7F80, 0xFF80, 0x7F81, 0xFFFF],
    },
    Case {
        kernel: "round_f32",
        from: 4,
        to: 2,
        expected: |bits| rounded(f32::from_bits(bits)),
        // The last two are too large for bf16, though finite.
        wrong: &[0x7F80_0000, 0xFF80_0000, 0x7FC0_0001, 0x7F7F_FFFF, 0xFF7F_8000],
    },
    Case {
        kernel: "round_f16",
        from: 2,
        to: 2,
        expected: |bits| rounded(widen_f16(bits as u16)),
        wrong: &[0x7C00, 0xFC00, 0x7C01, 0xFFFF],
    },
    Case {
        kernel: "widen_f16",
        from: 2,
        to: 4,
        expected: |bits| {
            (widen_f16(bits as u16).to_bits(), bits as u16 & F16_INFINITY == F16_INFINITY)
        },
        wrong: &[0x7C00, 0xFC00, 0x7C01, 0xFFFF],
    },
    Case {
        kernel: "widen_bf16",
        from: 2,
        to: 4,
        expected: |bits| (bits << 16, bits as u16 & BF16_INFINITY == BF16_INFINITY),
        wrong: &[0x7F80, 0xFF80, 0x7FC1, 0xFFFF],
    },
];

/// Rounds a number to bf16, and tells if the result is infinite or NaN.
fn rounded(value: f32) -> (u32, bool) {
    if value.is_nan() {
        // Its sign and its upper bits, quiet.
        return (value.to_bits() >> 16 | 0x40, true);
    }
    let bits = narrow(value);
    (bits.into(), bits & BF16_INFINITY == BF16_INFINITY)
}

/// The number that a float16 is.
fn widen_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3FF));
    let sign = u32::from(bits & 0x8000) << 16;
    let size = match exponent {
        31 => f32::from_bits(0x7F80_0000 | u32::from(bits & 0x3FF) << 13),
        0 => fraction * f32::powi(2.0, -24),
        _ => (1024.0 + fraction) * f32::powi(2.0, exponent - 25),
    };
    let quiet = if size.is_nan() { 0x40_0000 } else { 0 };
    f32::from_bits(size.to_bits() | quiet | sign)
}

/// Checks the kernels of `arrival/elements.cu`, at aligned and at merely even addresses, with
/// elements that are all finite, and with one that is not.
pub(super) fn elements(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for case in CASES {
        for (count, offset) in [(1, 0), (7, 2), (4096, 16), (5003, 0), (3001, 6)] {
            let finite = finite(checker, &case, count);
            compare(checker, &case, &finite, offset, "finite")?;
            for wrong in case.wrong {
                let mut bits = finite.clone();
                let at = checker.random.below(count);
                bits[at] = *wrong;
                compare(checker, &case, &bits, offset, &format!("{wrong:#x} at {at}"))?;
            }
        }
        time(checker, &case)?;
    }
    Ok(())
}

/// Bits of elements that are finite before and after the conversion: small and large ones, zeros,
/// and those below the normal numbers.
fn finite(checker: &mut Checker<'_>, case: &Case, count: usize) -> Vec<u32> {
    let mut bits = Vec::with_capacity(count);
    while bits.len() < count {
        let any = checker.random.bits() as u32;
        let any = if case.from == 4 { any } else { any & 0xFFFF };
        // One in eight is tiny, or zero.
        let small = if case.from == 4 { any & 0x807F_FFFF } else { any & 0x807F };
        let chosen = if bits.len().is_multiple_of(8) { small } else { any };
        if !(case.expected)(chosen).1 {
            bits.push(chosen);
        }
    }
    bits
}

/// Takes elements in at `offset` bytes from a border, and compares the results and the report.
fn compare(
    checker: &mut Checker<'_>,
    case: &Case,
    bits: &[u32],
    offset: usize,
    what: &str,
) -> Result<(), CudaError> {
    let Case { kernel, from, to, expected, .. } = case;
    let count = bits.len();
    let mut bytes = vec![0xFF_u8; offset];
    bytes.extend(bits.iter().flat_map(|bits| bits.to_le_bytes()[..*from].to_vec()));
    let source = checker.upload(&bytes)?;
    let bad = checker.upload(&[0_u32])?;
    let out = checker.poisoned(count * to)?;
    let from = Arg::Pointer(source.address() + offset as u64);
    let args = case.args(&bad, &out, from, count);
    // SAFETY: there are so many elements, and room for so many.
    unsafe { checker.kernels.launch(kernel, grid::flat(count), &args)? };

    let what = format!("{kernel} {count} at {offset}, {what}");
    let results: Vec<(u32, bool)> = bits.iter().map(|bits| expected(*bits)).collect();
    let is_bad = results.iter().any(|(_, bad)| *bad);
    checker.equal(&format!("{what}: report"), &bad.to_vec::<u32>()?, &[is_bad.into()]);
    let written: Vec<u8> =
        results.iter().flat_map(|(bits, _)| bits.to_le_bytes()[..*to].to_vec()).collect();
    checker.equal(&what, &out.to_vec::<u8>()?, &written);
    Ok(())
}

impl Case {
    /// The arguments of the kernel, for `count` elements.
    fn args(&self, bad: &Memory, out: &Memory, from: Arg, count: usize) -> Vec<Arg> {
        let mut args = vec![bad.into()];
        args.extend((self.to > 0).then(|| Arg::from(out)));
        args.extend([from, Arg::Long(count as u64)]);
        args
    }
}

fn time(checker: &mut Checker<'_>, case: &Case) -> Result<(), CudaError> {
    if checker.speeds.is_none() {
        return Ok(());
    }
    let count = TIMED_ELEMENTS;
    let source = Memory::new(checker.kernels.device(), count * case.from)?;
    source.fill(0x3C)?;
    let (bad, out) = (checker.upload(&[0_u32])?, checker.poisoned(count * case.to)?);
    let args = case.args(&bad, &out, Arg::from(&source), count);
    let what = format!("{} {} million", case.kernel, count >> 20);
    // SAFETY: there are so many elements, and room for so many.
    checker.time(&what, count * (case.from + case.to), |kernels| unsafe {
        kernels.launch(case.kernel, grid::flat(count), &args)
    })
}

/// Checks `hash_chunks` and `hash_nodes`: inputs of all lengths that matter, with and without a
/// head, at any address; and trees of nodes that would be of large inputs.
pub(super) fn checksum(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let around = |middle: usize| [middle - 1, middle, middle + 1];
    let chunks = [2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 256, 257];
    let sizes = [0, 1, 2, 63, 64, 65, 127, 128, 129, 1000];
    let sizes = sizes.into_iter().chain(around(1024)).chain(chunks.into_iter().flat_map(|count| {
        // Whole chunks, and a byte less and more.
        around(count * 1024)
    }));

    for (index, size) in sizes.enumerate() {
        let heads = [0, 1 + index % 70, 1024 + index];
        for (turn, head) in heads.into_iter().enumerate() {
            compare_hash(checker, size, head, (index + turn) % 4)?;
        }
    }

    // Every place of the elements beside words, and of a chunk's border within the elements.
    for offset in 0..4 {
        for head in 0..4 {
            compare_hash(checker, 3000, 60 + head, offset)?;
        }
    }

    for count in [1, 2, 3, 255, 256, 257, 511, 513, 700, 65_537] {
        compare_nodes(checker, count)?;
    }
    time_hash(checker)
}

/// Hashes `size` bytes that begin `offset` bytes behind a border, behind a head.
fn compare_hash(
    checker: &mut Checker<'_>,
    size: usize,
    head: usize,
    offset: usize,
) -> Result<(), CudaError> {
    let mut random_bytes =
        |count| (0..count).map(|_| checker.random.bits() as u8).collect::<Vec<u8>>();
    let (head_bytes, bytes) = (random_bytes(head), random_bytes(offset + size));
    let (head_memory, memory) = (checker.upload(&head_bytes)?, checker.upload(&bytes)?);
    let input = HashInput {
        head: (head_memory.address(), head),
        elements: (memory.address() + offset as u64, size),
    };
    let scratch = checker.poisoned(input.scratch_bytes())?;
    let digest = checker.poisoned(DIGEST_WORDS * 4)?;
    // SAFETY: all memories live until their contents are read.
    unsafe { input.hash(checker.kernels, scratch.address(), digest.address())? };

    let expected = blake3::Hasher::new().update(&head_bytes).update(&bytes[offset..]).finalize();
    let what = format!("checksum of {head} and {size} bytes at {offset}");
    checker.equal(&what, &digest.to_vec::<u8>()?, expected.as_bytes());
    Ok(())
}

/// Folds random nodes, as the host folds them level by level.
fn compare_nodes(checker: &mut Checker<'_>, count: usize) -> Result<(), CudaError> {
    let words: Vec<u32> = (0..count * DIGEST_WORDS).map(|_| checker.random.bits() as u32).collect();
    let mut lists = [checker.upload(&words)?, checker.poisoned(count * DIGEST_WORDS * 4)?];
    let mut left = count;
    while left > 1 {
        // SAFETY: both lists have room for all nodes, and live until they are read.
        unsafe {
            fold_nodes(checker.kernels, lists[0].address(), left, |_| lists[1].address())?;
        }
        left = left.div_ceil(grid::HASH_NODES);
        lists.swap(0, 1);
    }

    let mut level: Vec<ChainingValue> =
        words.as_chunks::<DIGEST_WORDS>().0.iter().map(node_bytes).collect();
    while level.len() > 1 {
        let is_last = level.len() == 2;
        let merge = |pair: &[ChainingValue]| match pair {
            [left, right] if is_last => *merge_subtrees_root(left, right, Mode::Hash).as_bytes(),
            [left, right] => merge_subtrees_non_root(left, right, Mode::Hash),
            odd => odd[0],
        };
        level = level.chunks(2).map(merge).collect();
    }
    let mut found = vec![0_u8; DIGEST_WORDS * 4];
    lists[0].read(0, &mut found)?;
    checker.equal(&format!("hash_nodes {count}"), &found, &level[0]);
    Ok(())
}

fn node_bytes(words: &[u32; DIGEST_WORDS]) -> ChainingValue {
    let mut bytes = ChainingValue::default();
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

fn time_hash(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    if checker.speeds.is_none() {
        return Ok(());
    }
    let bytes = Memory::new(checker.kernels.device(), TIMED_BYTES)?;
    bytes.fill(0x3C)?;
    let head = checker.upload(&[b'n'; 60])?;
    for (what, elements, size) in [
        ("checksum of 512 MiB", bytes.address(), TIMED_BYTES - 64),
        ("checksum of 512 MiB, unaligned", bytes.address() + 2, TIMED_BYTES - 64),
        ("checksum of 4 KiB", bytes.address(), 4096),
    ] {
        let input = HashInput { head: (head.address(), 60), elements: (elements, size) };
        let scratch = checker.poisoned(input.scratch_bytes())?;
        let digest = checker.poisoned(DIGEST_WORDS * 4)?;
        // SAFETY: all memories live until the device is done, which `time` waits for.
        checker.time(what, size, |kernels| unsafe {
            input.hash(kernels, scratch.address(), digest.address())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::random::Random;

    #[test]
    fn references_have_the_bits_of_the_half_crate() {
        for bits in 0..=u16::MAX {
            let wide = f16::from_bits(bits).to_f32();
            assert_eq!(widen_f16(bits).to_bits(), wide.to_bits(), "{bits:#x}");
            let expected = bf16::from_f32(wide);
            let found = rounded(widen_f16(bits));
            assert_eq!(found, (expected.to_bits().into(), !expected.is_finite()), "{bits:#x}");
        }
        let mut random = Random::new(1);
        for _ in 0..100_000 {
            let bits = random.bits() as u32;
            let expected = bf16::from_f32(f32::from_bits(bits));
            let found = rounded(f32::from_bits(bits));
            assert_eq!(found, (expected.to_bits().into(), !expected.is_finite()), "{bits:#x}");
        }
    }
}
