//! Content-defined chunking: a body is cut where its content says so, so that equal stretches of
//! two bodies are cut alike wherever they stand (FastCDC; Xia et al., USENIX ATC 2016, without its
//! normalization).

/// Bytes of the shortest chunk, but for the last of a body.
const MIN: usize = 512;
/// Bytes of the longest chunk.
const MAX: usize = 16 * 1024;
/// The bits of the rolling hash that are zero where a chunk ends: one place in 2,048.
const MASK: u64 = 0x7ff << 53;

/// A random number for each byte value.
const GEAR: [u64; 256] = gear();

/// The length of the first chunk of `data`. It depends on the chunk's own bytes only, so that they
/// are cut again at the same places.
pub(crate) fn chunk_length(data: &[u8]) -> usize {
    let mut sum = 0u64;
    for (at, byte) in data.iter().enumerate().take(MAX).skip(MIN) {
        sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if sum & MASK == 0 {
            return at + 1;
        }
    }
    data.len().min(MAX)
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
const fn gear() -> [u64; 256] {
    let mut table = [0; 256];
    let (mut state, mut at) = (0u64, 0);
    while at < table.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    fn ends(data: &[u8]) -> Vec<usize> {
        let (mut ends, mut at) = (Vec::new(), 0);
        while at < data.len() {
            at += chunk_length(&data[at..]);
            ends.push(at);
        }
        ends
    }

    #[test]
    fn chunks_are_neither_short_nor_long() {
        for data in [noise(200_000, 1), vec![b'a'; 200_000], b"short".to_vec()] {
            let ends = ends(&data);
            let lengths: Vec<_> =
                [0].iter().chain(&ends).zip(&ends).map(|(start, end)| end - start).collect();
            assert!(lengths.iter().all(|length| *length <= MAX));
            assert!(lengths.iter().rev().skip(1).all(|length| *length > MIN));
            assert_eq!(ends.last(), Some(&data.len()));
        }
    }

    #[test]
    fn an_insertion_moves_only_the_cuts_around_it() {
        let (old, new) = (noise(200_000, 2), noise(100, 3));
        let grown = [&old[..70_000], &new, &old[70_000..]].concat();
        let (before, after) = (ends(&old), ends(&grown));
        let kept = before
            .iter()
            .filter(|end| after.contains(&if **end < 70_000 { **end } else { **end + new.len() }));
        assert!(kept.count() + 4 >= before.len());
    }
}
