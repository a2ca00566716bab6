//! Weights into their places, and the bandwidth of memory.

use super::{Case, narrow, widen};
use crate::cuda::{Arg, CudaError, shape};

/// `cast_rows`, `copy_rows` and `widen_rows`, at places that are aligned and that are not.
pub(super) fn rows(case: &mut Case<'_>) -> Result<(), CudaError> {
    for (count, offset) in [(1, 0), (7, 3), (4096, 8), (5003, 0), (3001, 5)] {
        let wide = case.random.floats(count, 4.0);
        let halves: Vec<u16> = wide.iter().map(|value| narrow(*value)).collect();
        let widened: Vec<f32> = halves.iter().map(|bits| widen(*bits)).collect();
        let (wide_at, halves_at) = (case.upload(&wide)?, case.upload(&halves)?);
        for (name, from, size) in [
            ("cast_rows", &wide_at, 2),
            ("copy_rows", &halves_at, 2),
            ("widen_rows", &halves_at, 4),
        ] {
            let out = case.poisoned((offset + count + 1) * size)?;
            let to = Arg::Pointer(out.address() + (offset * size) as u64);
            let args = [to, from.into(), Arg::Long(count as u64)];
            // SAFETY: both have room for so many elements.
            unsafe { case.kernels.launch(name, shape::flat(count), &args)? };
            let what = format!("{name} {count} at {offset}");
            let mut expected = vec![0xFF_u8; (offset + count + 1) * size];
            for (at, (half, wide)) in halves.iter().zip(&widened).enumerate() {
                let bytes = if size == 2 {
                    half.to_le_bytes().to_vec()
                } else {
                    wide.to_le_bytes().to_vec()
                };
                expected[(offset + at) * size..][..size].copy_from_slice(&bytes);
            }
            case.equal(&what, &out.to_vec::<u8>()?, &expected);
        }
    }
    Ok(())
}

/// `probe_read` and `probe_copy`, which say how fast memory is.
pub(super) fn probe(case: &mut Case<'_>) -> Result<(), CudaError> {
    let grid = shape::probe(case.kernels.device().processors());
    let blocks = grid.blocks[0] as usize;
    for packs in [1, 1000, 256 * blocks * 5 + 77] {
        let words: Vec<u32> = (0..packs * 4).map(|_| case.random.bits() as u32).collect();
        let (from, to) = (case.upload(&words)?, case.poisoned(packs * 16)?);
        let sink = case.poisoned(blocks * 4)?;
        let count = Arg::Long(packs as u64);
        // SAFETY: there are so many packs in both, and a word for each block.
        unsafe {
            case.kernels.launch("probe_read", grid, &[(&sink).into(), (&from).into(), count])?;
            case.kernels.launch("probe_copy", grid, &[(&to).into(), (&from).into(), count])?;
        }
        let found = sink.to_vec::<u32>()?.into_iter().fold(0, |all, word| all ^ word);
        let expected = words.iter().fold(0, |all, word| all ^ word);
        case.equal(&format!("probe_read {packs}"), &[found], &[expected]);
        case.equal(&format!("probe_copy {packs}"), &to.to_vec::<u32>()?, &words);
    }
    if case.speeds.is_none() {
        return Ok(());
    }
    let bytes = 512 << 20;
    let (from, to) = (case.poisoned(bytes)?, case.poisoned(bytes)?);
    let sink = case.poisoned(blocks * 4)?;
    let count = Arg::Long(bytes as u64 / 16);
    let read = [Arg::from(&sink), (&from).into(), count];
    let copy = [Arg::from(&to), (&from).into(), count];
    // SAFETY: there are so many packs in both, and a word for each block.
    case.time("probe_read 512 MiB", bytes, |kernels| unsafe {
        kernels.launch("probe_read", grid, &read)
    })?;
    // SAFETY: as above.
    case.time("probe_copy 512 MiB", 2 * bytes, |kernels| unsafe {
        kernels.launch("probe_copy", grid, &copy)
    })
}
