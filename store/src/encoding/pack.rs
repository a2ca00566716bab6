//! Bytes on disk: zstd frames that refer to the bytes before them, token ids as varints, logprobs
//! as byte planes; and hashes.

use std::cell::RefCell;

use twox_hash::XxHash64;
use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound, get_frame_content_size};

use crate::encoding::varint::{push, take};
use crate::error::DecodeError;

/// Compresses chat JSON at 300 MB/s; higher levels take three times as long for a few percent.
const LEVEL: i32 = 3;
/// Bytes up to which data does not shrink, and is stored as it is.
const PLAIN_BYTES_MAX: usize = 32;

/// The magic number of a zstd dictionary. Other bytes are used as the dictionary's content.
const DICTIONARY: [u8; 4] = 0xec30_a437u32.to_le_bytes();

/// The place of a frame's descriptor, and its bit for a checksum at the end of the frame.
const FRAME_DESCRIPTOR: usize = 4;
const HAS_CHECKSUM: u8 = 1 << 2;

const PLAIN: i64 = 0;
const ZSTD: i64 = 1;

/// Bytes as they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed<Data = Vec<u8>> {
    pub(crate) encoding: i64,
    pub(crate) data: Data,
}

/// Packs `bytes`. Unpacking them needs the same `context`.
pub(crate) fn pack(bytes: &[u8], context: &[u8]) -> Packed {
    if bytes.len() > PLAIN_BYTES_MAX
        && let Some(data) = compress(bytes, context)
        && data.len() < bytes.len()
    {
        return Packed { encoding: ZSTD, data };
    }
    Packed { encoding: PLAIN, data: bytes.to_vec() }
}

fn compress(bytes: &[u8], context: &[u8]) -> Option<Vec<u8>> {
    let mut frame = Vec::with_capacity(compress_bound(bytes.len()) + size_of::<u32>());
    // The faster calls below would parse such a context as a dictionary.
    if context.starts_with(&DICTIONARY) {
        let mut zstd = compressor()?;
        zstd.ref_prefix(context).ok()?;
        zstd.compress2(&mut frame, bytes).ok()?;
        return Some(frame);
    }

    // Making a compressor costs as much as compressing a small frame does: it asks the processor
    // for its features, which a virtual machine answers slowly.
    thread_local!(static KEPT: RefCell<Option<CCtx<'static>>> = RefCell::new(compressor()));
    KEPT.with_borrow_mut(|zstd| {
        let zstd = zstd.as_mut()?;
        if context.is_empty() {
            return zstd.compress2(&mut frame, bytes).ok();
        }
        let written = zstd.compress_using_dict(&mut frame, bytes, context, LEVEL).ok()?;
        add_checksum(&mut frame, bytes);
        Some(written)
    })?;
    Some(frame)
}

/// Adds the checksum of its content to a frame that has none (RFC 8878, section 3.1.1).
fn add_checksum(frame: &mut Vec<u8>, content: &[u8]) {
    frame[FRAME_DESCRIPTOR] |= HAS_CHECKSUM;
    let checksum = XxHash64::oneshot(0, content) as u32;
    frame.extend_from_slice(&checksum.to_le_bytes());
}

fn compressor<'a>() -> Option<CCtx<'a>> {
    let mut zstd = CCtx::try_create()?;
    zstd.set_parameter(CParameter::CompressionLevel(LEVEL)).ok()?;
    zstd.set_parameter(CParameter::ChecksumFlag(true)).ok()?;
    Some(zstd)
}

/// The inverse of [`pack`], for `length` bytes.
///
/// # Errors
/// [`DecodeError`] where the data is damaged, or is not `length` bytes.
pub(crate) fn unpack(
    packed: Packed<&[u8]>,
    length: usize,
    context: &[u8],
) -> Result<Vec<u8>, DecodeError> {
    let bytes = match packed.encoding {
        PLAIN => packed.data.to_vec(),
        ZSTD => decompress(packed.data, length, context)?,
        other => return Err(DecodeError::Encoding(other)),
    };
    if bytes.len() != length {
        return Err(DecodeError::Length { expected: length, found: bytes.len() });
    }
    Ok(bytes)
}

fn decompress(frame: &[u8], length: usize, context: &[u8]) -> Result<Vec<u8>, DecodeError> {
    // A damaged length must not decide how much memory is allocated.
    match get_frame_content_size(frame) {
        Ok(Some(found)) if found == length as u64 => {}
        Ok(Some(found)) => {
            let found = usize::try_from(found).unwrap_or(usize::MAX);
            return Err(DecodeError::Length { expected: length, found });
        }
        _ => return Err(DecodeError::Frame),
    }
    let mut bytes = Vec::with_capacity(length);

    // The faster call below would parse a context that starts like a dictionary as one.
    if context.starts_with(&DICTIONARY) {
        let mut zstd = DCtx::try_create().ok_or(DecodeError::Frame)?;
        zstd.ref_prefix(context).map_err(|_| DecodeError::Frame)?;
        zstd.decompress(&mut bytes, frame).map_err(|_| DecodeError::Frame)?;
        return Ok(bytes);
    }

    // Making a decompressor costs as much as decompressing ten small frames does.
    thread_local!(static KEPT: RefCell<Option<DCtx<'static>>> = RefCell::new(DCtx::try_create()));
    KEPT.with_borrow_mut(|zstd| {
        zstd.as_mut()
            .ok_or(DecodeError::Frame)?
            .decompress_using_dict(&mut bytes, frame, context)
            .map_err(|_| DecodeError::Frame)
    })?;
    Ok(bytes)
}

/// The first 16 bytes of the BLAKE3 hash.
pub(crate) fn hash(bytes: &[u8]) -> [u8; 16] {
    first_half(&blake3::hash(bytes))
}

/// The hash of token ids as little-endian words.
pub(crate) fn hash_ids(ids: &[u32]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    let mut words = [[0; 4]; 4096];
    for block in ids.chunks(words.len()) {
        words.iter_mut().zip(block).for_each(|(word, id)| *word = id.to_le_bytes());
        hasher.update(words[..block.len()].as_flattened());
    }
    first_half(&hasher.finalize())
}

/// The first 16 bytes of a hash.
pub(crate) fn first_half(hash: &blake3::Hash) -> [u8; 16] {
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a BLAKE3 hash has 32 bytes");
    *first
}

/// Reads `count` token ids off `log`, from byte `start` on.
///
/// # Errors
/// [`DecodeError::Log`] where the log does not hold them.
pub(crate) fn ids_at(log: &[u8], start: u64, count: u64) -> Result<Vec<u32>, DecodeError> {
    let start = usize::try_from(start).map_err(|_| DecodeError::Log)?;
    let mut bytes = log.get(start..).ok_or(DecodeError::Log)?;
    // A damaged count must not decide how much memory is allocated: an id takes a byte or more.
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= bytes.len())
        .ok_or(DecodeError::Log)?;

    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(take_id(&mut bytes).ok_or(DecodeError::Log)?);
    }
    Ok(ids)
}

/// Takes an id off the front of `bytes`. Nearly all ids have three bytes or fewer. Those lengths
/// mix as they like, so that a branch on them would be guessed wrong every other time.
fn take_id(bytes: &mut &[u8]) -> Option<u32> {
    let word = bytes.first_chunk().map_or(u32::MAX, |first| u32::from_le_bytes(*first));
    // The highest bit of the last byte of an id is clear.
    let ends = !word & 0x0080_8080;
    if ends == 0 {
        return take(bytes).and_then(|id| u32::try_from(id).ok());
    }
    let bits = ends.trailing_zeros() + 1;
    *bytes = &bytes[bits as usize / 8..];
    let own = word & ((1 << bits) - 1);
    Some(own & 0x7f | own >> 1 & 0x3f80 | own >> 2 & 0x1f_c000)
}

/// Packs floats plane by plane, the highest bytes first: those repeat. Where the second plane does
/// not shrink, the rest is noise and is stored as it is.
pub(crate) fn pack_planes(values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut is_noise = false;
    for plane in (0..4).rev() {
        let bytes: Vec<u8> = values.iter().map(|value| value.to_le_bytes()[plane]).collect();
        let packed = match is_noise {
            true => Packed { encoding: PLAIN, data: bytes },
            false => pack(&bytes, &[]),
        };
        is_noise |= plane < 3 && packed.data.len() > values.len() / 4 * 3;

        // The lowest bit of a plane's head is its encoding, the others are its length.
        push(&mut out, (packed.data.len() as u64) << 1 | u64::from(packed.encoding == ZSTD));
        out.extend(packed.data);
    }
    out
}

/// The inverse of [`pack_planes`], for `count` values.
pub(crate) fn unpack_planes(mut data: &[u8], count: usize) -> Result<Vec<f32>, DecodeError> {
    let mut planes: [Vec<u8>; 4] = Default::default();
    for plane in planes.iter_mut().rev() {
        let head = take(&mut data).ok_or(DecodeError::Frame)?;
        let length = usize::try_from(head >> 1).map_err(|_| DecodeError::Frame)?;
        let (bytes, rest) = data.split_at_checked(length).ok_or(DecodeError::Frame)?;
        data = rest;
        let encoding = if head & 1 == 1 { ZSTD } else { PLAIN };
        *plane = unpack(Packed { encoding, data: bytes }, count, &[])?;
    }

    let value = |at| f32::from_le_bytes([0, 1, 2, 3].map(|plane: usize| planes[plane][at]));
    Ok((0..count).map(value).collect())
}

/// Decodes token ids that stand in a row of their own, as older formats have them.
pub(crate) fn unpack_ids(encoding: i64, data: &[u8]) -> Result<Vec<u32>, DecodeError> {
    unpack_words(encoding, data, u32::from_le_bytes)
}

/// Decodes logprobs that are not planes, as older formats have them.
pub(crate) fn unpack_floats(encoding: i64, data: &[u8]) -> Result<Vec<f32>, DecodeError> {
    unpack_words(encoding, data, f32::from_le_bytes)
}

fn unpack_words<T>(
    encoding: i64,
    data: &[u8],
    word: fn([u8; 4]) -> T,
) -> Result<Vec<T>, DecodeError> {
    if encoding != PLAIN {
        return Err(DecodeError::Encoding(encoding));
    }
    let (words, rest) = data.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(DecodeError::Length { expected: words.len() * 4, found: data.len() });
    }
    Ok(words.iter().map(|bytes| word(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn borrowed(packed: &Packed) -> Packed<&[u8]> {
        Packed { encoding: packed.encoding, data: &packed.data }
    }

    #[test]
    fn bytes_come_back_with_their_context() {
        let long = "the same words again and again ".repeat(100).into_bytes();
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..5000).map(|_| next()).collect();
        for bytes in [&b""[..], b"{}", &long, &noise] {
            for context in [&b""[..], &noise] {
                let packed = pack(bytes, context);
                assert!(packed.data.len() <= bytes.len());
                let stored = borrowed(&packed);
                assert_eq!(unpack(stored, bytes.len(), context).unwrap(), bytes);
            }
        }
        let like_a_dictionary = [&DICTIONARY[..], &noise].concat();
        let packed = pack(&long, &like_a_dictionary);
        let stored = borrowed(&packed);
        assert_eq!(unpack(stored, long.len(), &like_a_dictionary).unwrap(), long);
        let again = noise[2000..4000].to_vec();
        assert!(pack(&again, &noise).data.len() < 40);
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        let bytes = "abc ".repeat(100).into_bytes();
        for context in [&b""[..], b"abd "] {
            let mut packed = pack(&bytes, context);
            assert_eq!(unpack(borrowed(&packed), bytes.len(), context).unwrap(), bytes);
            let last = packed.data.len() - 1;
            packed.data[last] ^= 1;
            assert!(unpack(borrowed(&packed), bytes.len(), context).is_err());
        }
        // Another context of the same length gives other bytes, or none.
        let packed = pack(&bytes[..64], &bytes);
        let other = "abd ".repeat(100).into_bytes();
        assert!(unpack(borrowed(&packed), 64, &other).is_err());
        assert!(unpack(Packed { encoding: PLAIN, data: &[1] }, 2, &[]).is_err());
        assert!(unpack_ids(PLAIN, &[1, 2, 3]).is_err());
        assert!(unpack_ids(7, &[]).is_err());
        assert!(ids_at(&[5, 0x80], 0, 2).is_err());
        assert!(unpack_planes(&[1, 2, 3], 1).is_err());
    }

    #[test]
    fn ids_come_back_whatever_their_lengths() {
        let edges = [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 0x1f_ffff, 0x20_0000, u32::MAX];
        let ids: Vec<u32> = (0..200).map(|n| edges[n * n % 7 + n % 3]).chain(edges).collect();
        let mut log = vec![0x80];
        ids.iter().for_each(|id| push(&mut log, u64::from(*id)));
        assert_eq!(ids_at(&log, 1, ids.len() as u64).unwrap(), ids);
        for end in 1..log.len() {
            assert!(ids_at(&log[..end], 1, ids.len() as u64).is_err());
        }
    }

    #[test]
    fn floats_come_back_bit_for_bit() {
        let floats = [-0.0, f32::MIN_POSITIVE, -1.192_092_9e-7, f32::NAN, -9999.0];
        for count in [0, 5, 500] {
            let floats: Vec<f32> = floats.iter().copied().cycle().take(count).collect();
            let back = unpack_planes(&pack_planes(&floats), count).unwrap();
            assert!(floats.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
            assert_eq!(back.len(), count);
        }
    }
}
