//! Bytes on disk: zstd frames, with what came before as their context, token ids as numbers of
//! varying length, logprobs as planes.

use std::cell::RefCell;

use thiserror::Error;
use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound, get_frame_content_size};

use crate::varint::{push, take};

/// Chat JSON at 300 MB/s; higher levels take three times as long for a few percent.
const LEVEL: i32 = 3;
/// What is shorter does not shrink.
const PLAIN_BYTES_MAX: usize = 32;

/// How a dictionary of zstd's begins, as against plain bytes that are used as one.
const DICTIONARY: [u8; 4] = 0xec30_a437u32.to_le_bytes();

const PLAIN: i64 = 0;
const ZSTD: i64 = 1;
/// Token ids stand in the episode's reel, logprobs are planes.
pub(crate) const REELED: i64 = 1;

/// Stored bytes that do not decode.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// Written in a way this build does not know.
    #[error("encoding {0} is not known to this version")]
    Encoding(i64),
    /// The compressed frame is damaged.
    #[error("the compressed frame is damaged")]
    Frame,
    /// It points at something that is not in its episode's reel.
    #[error("it points at what is not there")]
    Reel,
    /// Other bytes than were written.
    #[error("it is not what was written: the hash differs")]
    Hash,
    /// Fewer or more bytes than were written.
    #[error("{found} bytes where {expected} were written")]
    Length {
        /// Bytes written.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
}

/// Bytes as they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) encoding: i64,
    pub(crate) data: Vec<u8>,
}

/// Packs `bytes`; who unpacks them must have `context`.
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
    let mut frame = Vec::with_capacity(compress_bound(bytes.len()));
    if context.is_empty() {
        // Making one costs as much as a small frame does.
        thread_local!(static KEPT: RefCell<Option<CCtx<'static>>> = RefCell::new(compressor()));
        KEPT.with_borrow_mut(|zstd| zstd.as_mut()?.compress2(&mut frame, bytes).ok())?;
    } else {
        let mut zstd = compressor()?;
        zstd.ref_prefix(context).ok()?;
        zstd.compress2(&mut frame, bytes).ok()?;
    }
    Some(frame)
}

fn compressor<'a>() -> Option<CCtx<'a>> {
    let mut zstd = CCtx::try_create()?;
    zstd.set_parameter(CParameter::CompressionLevel(LEVEL)).ok()?;
    zstd.set_parameter(CParameter::ChecksumFlag(true)).ok()?;
    Some(zstd)
}

/// The way back from [`pack`].
pub(crate) fn unpack(
    (encoding, data): (i64, &[u8]),
    length: usize,
    context: &[u8],
) -> Result<Vec<u8>, DecodeError> {
    let bytes = match encoding {
        PLAIN => data.to_vec(),
        ZSTD => decompress(data, length, context)?,
        other => return Err(DecodeError::Encoding(other)),
    };
    if bytes.len() != length {
        return Err(DecodeError::Length { expected: length, found: bytes.len() });
    }
    Ok(bytes)
}

fn decompress(frame: &[u8], length: usize, context: &[u8]) -> Result<Vec<u8>, DecodeError> {
    // A damaged length must not decide how much memory is asked for.
    match get_frame_content_size(frame) {
        Ok(Some(found)) if found == length as u64 => {}
        Ok(Some(found)) => {
            let found = usize::try_from(found).unwrap_or(usize::MAX);
            return Err(DecodeError::Length { expected: length, found });
        }
        _ => return Err(DecodeError::Frame),
    }
    let mut bytes = Vec::with_capacity(length);
    if context.starts_with(&DICTIONARY) {
        // Given as below, it would be read as a dictionary.
        let mut zstd = DCtx::try_create().ok_or(DecodeError::Frame)?;
        zstd.ref_prefix(context).map_err(|_| DecodeError::Frame)?;
        zstd.decompress(&mut bytes, frame).map_err(|_| DecodeError::Frame)?;
        return Ok(bytes);
    }
    // Making one costs as much as ten small frames do.
    thread_local!(static KEPT: RefCell<Option<DCtx<'static>>> = RefCell::new(DCtx::try_create()));
    KEPT.with_borrow_mut(|zstd| {
        let zstd = zstd.as_mut().ok_or(DecodeError::Frame)?;
        let whole = zstd.decompress_using_dict(&mut bytes, frame, context);
        whole.map_err(|_| DecodeError::Frame)
    })?;
    Ok(bytes)
}

/// The first 16 bytes of the BLAKE3 hash.
pub(crate) fn hash(bytes: &[u8]) -> [u8; 16] {
    let mut first = [0; 16];
    first.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    first
}

/// Token ids as they are hashed: little-endian words.
pub(crate) fn hash_ids(ids: &[u32]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    let mut words = [[0; 4]; 4096];
    for block in ids.chunks(words.len()) {
        words.iter_mut().zip(block).for_each(|(word, id)| *word = id.to_le_bytes());
        hasher.update(words[..block.len()].as_flattened());
    }
    let mut first = [0; 16];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    first
}

/// `count` ids off `reel`, from byte `start` on.
pub(crate) fn ids_at(reel: &[u8], start: u64, count: u64) -> Result<Vec<u32>, DecodeError> {
    let start = usize::try_from(start).map_err(|_| DecodeError::Reel)?;
    let mut bytes = reel.get(start..).ok_or(DecodeError::Reel)?;
    // A damaged count must not decide how much memory is asked for: an id takes a byte or more.
    let count = usize::try_from(count).ok().filter(|count| *count <= bytes.len());
    let count = count.ok_or(DecodeError::Reel)?;
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(take_id(&mut bytes).ok_or(DecodeError::Reel)?);
    }
    Ok(ids)
}

/// Nearly all ids take three bytes or fewer.
fn take_id(bytes: &mut &[u8]) -> Option<u32> {
    let bits = |byte: u8| u32::from(byte & 0x7f);
    let (id, length) = match **bytes {
        [a, ..] if a < 0x80 => (u32::from(a), 1),
        [a, b, ..] if b < 0x80 => (bits(a) | bits(b) << 7, 2),
        [a, b, c, ..] if c < 0x80 => (bits(a) | bits(b) << 7 | bits(c) << 14, 3),
        _ => return take(bytes).and_then(|id| u32::try_from(id).ok()),
    };
    *bytes = &bytes[length..];
    Some(id)
}

/// Floats byte by byte, the highest bytes first: those repeat. Where the second ones do not, the
/// rest is noise, and is not tried.
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
        push(&mut out, (packed.data.len() as u64) << 1 | u64::from(packed.encoding == ZSTD));
        out.extend(packed.data);
    }
    out
}

/// The way back from [`pack_planes`], for `count` values.
pub(crate) fn unpack_planes(mut data: &[u8], count: usize) -> Result<Vec<f32>, DecodeError> {
    let mut planes: [Vec<u8>; 4] = Default::default();
    for plane in planes.iter_mut().rev() {
        let head = take(&mut data).ok_or(DecodeError::Frame)?;
        let length = usize::try_from(head >> 1).map_err(|_| DecodeError::Frame)?;
        let (packed, rest) = data.split_at_checked(length).ok_or(DecodeError::Frame)?;
        data = rest;
        let encoding = if head & 1 == 1 { ZSTD } else { PLAIN };
        *plane = unpack((encoding, packed), count, &[])?;
    }
    let value = |at| f32::from_le_bytes([0, 1, 2, 3].map(|plane: usize| planes[plane][at]));
    Ok((0..count).map(value).collect())
}

pub(crate) fn unpack_ids(encoding: i64, data: &[u8]) -> Result<Vec<u32>, DecodeError> {
    words(encoding, data, u32::from_le_bytes)
}

pub(crate) fn unpack_floats(encoding: i64, data: &[u8]) -> Result<Vec<f32>, DecodeError> {
    words(encoding, data, f32::from_le_bytes)
}

fn words<T>(encoding: i64, data: &[u8], word: fn([u8; 4]) -> T) -> Result<Vec<T>, DecodeError> {
    if encoding != PLAIN {
        return Err(DecodeError::Encoding(encoding));
    }
    let (whole, rest) = data.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(DecodeError::Length { expected: whole.len() * 4, found: data.len() });
    }
    Ok(whole.iter().map(|bytes| word(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let stored = (packed.encoding, packed.data.as_slice());
                assert_eq!(unpack(stored, bytes.len(), context).unwrap(), bytes);
            }
        }
        let like_a_dictionary = [&DICTIONARY[..], &noise].concat();
        let packed = pack(&long, &like_a_dictionary);
        let stored = (packed.encoding, packed.data.as_slice());
        assert_eq!(unpack(stored, long.len(), &like_a_dictionary).unwrap(), long);
        let again = noise[2000..4000].to_vec();
        assert!(pack(&again, &noise).data.len() < 40);
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        let bytes = "abc ".repeat(100).into_bytes();
        let mut packed = pack(&bytes, &[]);
        let last = packed.data.len() - 1;
        packed.data[last] ^= 1;
        assert!(unpack((packed.encoding, &packed.data), bytes.len(), &[]).is_err());
        assert!(unpack((PLAIN, &[1]), 2, &[]).is_err());
        assert!(unpack_ids(PLAIN, &[1, 2, 3]).is_err());
        assert!(unpack_ids(7, &[]).is_err());
        assert!(ids_at(&[5, 0x80], 0, 2).is_err());
        assert!(unpack_planes(&[1, 2, 3], 1).is_err());
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
