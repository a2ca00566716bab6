//! Bytes on disk: bodies as zstd frames, token columns as little-endian words.

use thiserror::Error;

/// Fast, and within a few percent of higher levels on chat JSON.
const LEVEL: i32 = 1;
/// Bodies shorter than this do not shrink.
const PLAIN_BYTES_MAX: usize = 64;

const PLAIN: i64 = 0;
const ZSTD: i64 = 1;

/// Stored bytes that do not decode.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// Written in a way this build does not know.
    #[error("encoding {0} is not known to this version")]
    Encoding(i64),
    /// The compressed frame is damaged.
    #[error("the compressed frame is damaged")]
    Frame(#[source] std::io::Error),
    /// Fewer or more bytes than were written.
    #[error("{found} bytes where {expected} were written")]
    Length {
        /// Bytes written.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
}

/// A body as it is stored.
pub(crate) struct Packed {
    pub(crate) encoding: i64,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn pack(body: &[u8]) -> Packed {
    if body.len() > PLAIN_BYTES_MAX
        && let Ok(data) = compress(body)
        && data.len() < body.len()
    {
        return Packed { encoding: ZSTD, data };
    }
    Packed { encoding: PLAIN, data: body.to_vec() }
}

fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(body)
}

pub(crate) fn unpack(encoding: i64, data: Vec<u8>, length: usize) -> Result<Vec<u8>, DecodeError> {
    let body = match encoding {
        PLAIN => data,
        ZSTD => zstd::bulk::decompress(&data, length).map_err(DecodeError::Frame)?,
        other => return Err(DecodeError::Encoding(other)),
    };
    if body.len() != length {
        return Err(DecodeError::Length { expected: length, found: body.len() });
    }
    Ok(body)
}

pub(crate) fn pack_ids(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

pub(crate) fn pack_floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
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
    fn bodies_come_back_byte_for_byte() {
        let long = "the same words again and again ".repeat(100).into_bytes();
        let noise: Vec<u8> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for body in [&b""[..], b"{}", &long, &noise] {
            let packed = pack(body);
            assert!(packed.data.len() <= body.len());
            assert_eq!(unpack(packed.encoding, packed.data, body.len()).unwrap(), body);
        }
    }

    #[test]
    fn a_damaged_frame_is_an_error() {
        let body = "abc ".repeat(100).into_bytes();
        let mut packed = pack(&body);
        let last = packed.data.len() - 1;
        packed.data[last] ^= 1;
        assert!(unpack(packed.encoding, packed.data, body.len()).is_err());
        assert!(unpack(PLAIN, vec![1], 2).is_err());
        assert!(unpack_ids(PLAIN, &[1, 2, 3]).is_err());
        assert!(unpack_ids(7, &[]).is_err());
    }

    #[test]
    fn words_come_back_bit_for_bit() {
        let ids = [0, 1, u32::MAX];
        assert_eq!(unpack_ids(PLAIN, &pack_ids(&ids)).unwrap(), ids);
        let floats = [-0.0, f32::MIN_POSITIVE, -1.1920928e-07, f32::NAN];
        let back = unpack_floats(PLAIN, &pack_floats(&floats)).unwrap();
        assert!(floats.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
