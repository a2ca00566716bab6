//! Copies of weights, and the bandwidth of memory.

use super::Checker;
use crate::bf16::{narrow, widen};
use crate::cuda::{Arg, CudaError, grid};

/// Checks `cast_rows`, `copy_rows` and `widen_rows`, at aligned and unaligned addresses.
pub(super) fn rows(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (count, offset) in [(1, 0), (7, 3), (4096, 8), (5003, 0), (3001, 5)] {
        let source = checker.random.floats(count, 4.0);
        let narrowed: Vec<u16> = source.iter().map(|value| narrow(*value)).collect();
        let narrow_bytes: Vec<u8> = narrowed.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let wide_bytes: Vec<u8> =
            narrowed.iter().flat_map(|bits| widen(*bits).to_le_bytes()).collect();
        let (source_memory, narrow_memory) = (checker.upload(&source)?, checker.upload(&narrowed)?);

        for (name, from, bytes) in [
            ("cast_rows", &source_memory, &narrow_bytes),
            ("copy_rows", &narrow_memory, &narrow_bytes),
            ("widen_rows", &narrow_memory, &wide_bytes),
        ] {
            let size = bytes.len() / count;
            let out = checker.poisoned((offset + count + 1) * size)?;
            let to = Arg::Pointer(out.address() + (offset * size) as u64);
            let args = [to, from.into(), Arg::Long(count as u64)];
            // SAFETY: both have room for so many elements.
            unsafe { checker.kernels.launch(name, grid::flat(count), &args)? };

            // Nothing before or after the rows may be written.
            let mut expected = vec![0xFF_u8; (offset + count + 1) * size];
            expected[offset * size..][..bytes.len()].copy_from_slice(bytes);
            checker.equal(&format!("{name} {count} at {offset}"), &out.to_vec::<u8>()?, &expected);
        }
    }
    Ok(())
}

/// Checks `probe_read` and `probe_copy`, which measure the bandwidth of memory.
pub(super) fn probe(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let grid = grid::probe(checker.kernels.device().processors());
    let blocks = grid.blocks[0] as usize;
    for packs in [1, 1000, 256 * blocks * 5 + 77] {
        let words: Vec<u32> = (0..packs * 4).map(|_| checker.random.bits() as u32).collect();
        let (from, to) = (checker.upload(&words)?, checker.poisoned(packs * 16)?);
        let sink = checker.poisoned(blocks * 4)?;
        let count = Arg::Long(packs as u64);
        // SAFETY: both have so many packs of 16 bytes, and the sink a word for each block.
        unsafe {
            checker.kernels.launch("probe_read", grid, &[(&sink).into(), (&from).into(), count])?;
            checker.kernels.launch("probe_copy", grid, &[(&to).into(), (&from).into(), count])?;
        }

        let found = sink.to_vec::<u32>()?.into_iter().fold(0, |all, word| all ^ word);
        let expected = words.iter().fold(0, |all, word| all ^ word);
        checker.equal(&format!("probe_read {packs}"), &[found], &[expected]);
        checker.equal(&format!("probe_copy {packs}"), &to.to_vec::<u32>()?, &words);
    }
    if checker.speeds.is_none() {
        return Ok(());
    }

    let bytes = 512 << 20;
    let (from, to) = (checker.poisoned(bytes)?, checker.poisoned(bytes)?);
    let sink = checker.poisoned(blocks * 4)?;
    let count = Arg::Long(bytes as u64 / 16);
    let read = [Arg::from(&sink), (&from).into(), count];
    let copy = [Arg::from(&to), (&from).into(), count];
    // SAFETY: both have so many packs of 16 bytes, and the sink a word for each block.
    checker.time("probe_read 512 MiB", bytes, |kernels| unsafe {
        kernels.launch("probe_read", grid, &read)
    })?;
    // SAFETY: as above.
    checker.time("probe_copy 512 MiB", 2 * bytes, |kernels| unsafe {
        kernels.launch("probe_copy", grid, &copy)
    })
}
