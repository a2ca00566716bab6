//! Content codings: gzip, deflate, br and zstd, undone so that bodies can be read.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brotli_decompressor::writer::DecompressorWriterCustomAlloc;
use brotli_decompressor::{Allocator, StandardAlloc};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, HeaderValue};

use crate::body::request_body::RequestLimits;
use crate::bounds::{
    DECODED_BYTES_FREE, DECODED_RATIO_MAX, DECODER_WINDOW_BYTES_MAX, ZSTD_WINDOW_LOG_MAX,
};

/// Working memory of a decoder, in bytes.
const BUFFER_BYTES: usize = 4096;
/// Bytes that a decoder of brotli allocates beside its window.
const BROTLI_SLACK_BYTES: usize = 64 << 10;

/// The memory of a decoder of brotli.
type Memory<T> = <StandardAlloc as Allocator<T>>::AllocatedMemory;
/// A decoder of brotli whose window has a bound.
type BrotliDecoder = DecompressorWriterCustomAlloc<
    DecodedBytes,
    Memory<u8>,
    BoundedAlloc,
    StandardAlloc,
    StandardAlloc,
>;

/// The most bytes that a body of `sent` bytes may decode to.
pub fn decoded_bytes_max(sent: u64) -> u64 {
    sent.saturating_mul(DECODED_RATIO_MAX).max(DECODED_BYTES_FREE)
}

/// The content coding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// None.
    Identity,
    /// `gzip`.
    Gzip,
    /// `deflate`, in the form of zlib.
    Deflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
    /// An unknown coding, or several codings.
    Other,
}

impl Coding {
    /// Reads `content-encoding`.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut names = headers.get_all(CONTENT_ENCODING).iter();
        let (first, has_more) = (names.next(), names.next().is_some());
        match first.map(HeaderValue::to_str) {
            None => Self::Identity,
            Some(Ok(name)) if !has_more => match name.trim().to_ascii_lowercase().as_str() {
                "" | "identity" => Self::Identity,
                "gzip" | "x-gzip" => Self::Gzip,
                "deflate" => Self::Deflate,
                "br" => Self::Brotli,
                "zstd" => Self::Zstd,
                _ => Self::Other,
            },
            Some(_) => Self::Other,
        }
    }

    /// Decodes a whole body.
    ///
    /// # Errors
    /// [`DecodeError`] if the coding is unknown, or the body is damaged or too long.
    pub fn decode(self, body: &Bytes, limits: RequestLimits) -> Result<Bytes, DecodeError> {
        if self == Self::Identity || body.is_empty() {
            return Ok(body.clone());
        }
        let dense_max = decoded_bytes_max(body.len() as u64);
        let bounded = RequestLimits { max: limits.max.min(dense_max), ..limits };
        // A window is rounded up to a power of two.
        let window_max = usize::try_from(dense_max.saturating_mul(2)).unwrap_or(usize::MAX);
        let output = DecodedBytes::new(bounded);
        let mut decode = self.decode_into(output, window_max).ok_or(DecodeError::Unknown)?;
        let result = decode.write_all(body).and_then(|()| decode.finish());

        let length = decode.decoded().length;
        match result {
            _ if length > limits.max => Err(DecodeError::TooLong),
            _ if length > dense_max => Err(DecodeError::TooDense(dense_max)),
            Err(_) if decode.lacked_window() => Err(DecodeError::TooDense(dense_max)),
            Err(error) => Err(DecodeError::Damaged(error)),
            Ok(()) if length > limits.kept as u64 => Err(DecodeError::NotKept),
            Ok(()) => Ok(decode.decoded().take()),
        }
    }

    /// A decoder that takes a body piece by piece; `None` for an unknown coding. A piece that
    /// decodes to more than `bytes_max` is an error, and so are pieces that together decode to more
    /// than [`decoded_bytes_max`].
    pub fn decoder(self, bytes_max: usize) -> Option<Decoder> {
        let limits = RequestLimits { kept: bytes_max, max: bytes_max as u64 };
        let decode = match self {
            Self::Identity => None,
            _ => Some(self.decode_into(DecodedBytes::new(limits), usize::MAX)?),
        };
        Some(Decoder { decode, piece_bytes_max: bytes_max as u64, fed: 0, made: 0 })
    }

    /// A decoder with a window of at most `window_max` bytes.
    fn decode_into(
        self,
        decoded: DecodedBytes,
        window_max: usize,
    ) -> Option<Box<dyn Decode + Send>> {
        let window_max = window_max.min(DECODER_WINDOW_BYTES_MAX);
        Some(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(decoded)),
            Self::Deflate => {
                Box::new(Inflate { state: Decompress::new(true), decoded, is_at_end: false })
            }
            Self::Brotli => Box::new(Brotli::new(decoded, window_max)),
            Self::Zstd => {
                let mut decoder = zstd::stream::write::Decoder::new(decoded).ok()?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).ok()?;
                Box::new(decoder)
            }
            Self::Identity | Self::Other => return None,
        })
    }
}

/// The reason for which a body stays coded.
#[derive(Debug)]
pub enum DecodeError {
    /// The coding is unknown.
    Unknown,
    /// The body is not valid in its coding, or not whole.
    Damaged(io::Error),
    /// The decoded body is longer than what is held in memory.
    NotKept,
    /// The decoded body is longer than what is allowed.
    TooLong,
    /// The decoded body is longer than this number of bytes, the most for what was sent.
    TooDense(u64),
}

/// Decodes a body piece by piece.
pub struct Decoder {
    /// `None` for the identity coding.
    decode: Option<Box<dyn Decode + Send>>,
    /// Longest output of one piece, in bytes.
    piece_bytes_max: u64,
    /// Bytes that were taken.
    fed: u64,
    /// Bytes that came out.
    made: u64,
}

impl Decoder {
    /// The decoded bytes that `piece` completes.
    ///
    /// # Errors
    /// If the body is damaged, or the piece decodes to too many bytes.
    pub fn push(&mut self, piece: Bytes) -> io::Result<Bytes> {
        let Some(decode) = &mut self.decode else { return Ok(piece) };
        self.fed += piece.len() as u64;
        let left = decoded_bytes_max(self.fed).saturating_sub(self.made);
        decode.decoded().limits.max = left.min(self.piece_bytes_max);
        decode.write_all(&piece)?;
        decode.flush()?;
        let made = decode.decoded().take();
        self.made += made.len() as u64;
        Ok(made)
    }

    /// True if the bytes pass as they are.
    pub fn is_identity(&self) -> bool {
        self.decode.is_none()
    }

    /// Ends the body.
    ///
    /// # Errors
    /// If the body is not whole.
    pub fn finish(&mut self) -> io::Result<()> {
        match &mut self.decode {
            // An empty body is valid in every coding.
            Some(decode) if self.fed > 0 => decode.finish(),
            _ => Ok(()),
        }
    }
}

/// A writer that takes coded bytes and fills [`DecodedBytes`].
trait Decode: Write {
    /// Ends the coded bytes; an error unless they are whole.
    fn finish(&mut self) -> io::Result<()>;
    fn decoded(&mut self) -> &mut DecodedBytes;
    /// True if the body asked for a longer window than it may have.
    fn lacked_window(&self) -> bool {
        false
    }
}

impl Decode for MultiGzDecoder<DecodedBytes> {
    fn finish(&mut self) -> io::Result<()> {
        self.try_finish()
    }

    fn decoded(&mut self) -> &mut DecodedBytes {
        self.get_mut()
    }
}

/// A decoder of brotli, which allocates by the lengths that the body announces.
struct Brotli {
    decoder: BrotliDecoder,
    lacked_window: Arc<AtomicBool>,
}

/// An allocator for brotli's window, with a bound.
struct BoundedAlloc {
    bytes_max: usize,
    was_exceeded: Arc<AtomicBool>,
}

impl Allocator<u8> for BoundedAlloc {
    type AllocatedMemory = Memory<u8>;

    fn alloc_cell(&mut self, length: usize) -> Memory<u8> {
        if length > self.bytes_max {
            self.was_exceeded.store(true, Ordering::Relaxed);
            return Memory::<u8>::default();
        }
        <StandardAlloc as Allocator<u8>>::alloc_cell(&mut StandardAlloc::default(), length)
    }

    fn free_cell(&mut self, _: Memory<u8>) {}
}

impl Brotli {
    fn new(decoded: DecodedBytes, window_max: usize) -> Self {
        let lacked_window = Arc::new(AtomicBool::new(false));
        let window = BoundedAlloc {
            bytes_max: window_max.saturating_add(BROTLI_SLACK_BYTES),
            was_exceeded: Arc::clone(&lacked_window),
        };
        let mut plain = StandardAlloc::default();
        let buffer = <StandardAlloc as Allocator<u8>>::alloc_cell(&mut plain, BUFFER_BYTES);
        let decoder = BrotliDecoder::new(decoded, buffer, window, plain, plain);
        Self { decoder, lacked_window }
    }
}

impl Write for Brotli {
    fn write(&mut self, coded: &[u8]) -> io::Result<usize> {
        self.decoder.write(coded)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.decoder.flush()
    }
}

impl Decode for Brotli {
    fn finish(&mut self) -> io::Result<()> {
        self.decoder.close()
    }

    fn decoded(&mut self) -> &mut DecodedBytes {
        self.decoder.get_mut()
    }

    fn lacked_window(&self) -> bool {
        self.lacked_window.load(Ordering::Relaxed)
    }
}

impl Decode for zstd::stream::write::Decoder<'static, DecodedBytes> {
    fn finish(&mut self) -> io::Result<()> {
        self.do_finish()
    }

    fn decoded(&mut self) -> &mut DecodedBytes {
        self.get_mut()
    }
}

/// Decoder of zlib's form of deflate. That of `flate2` accepts a truncated body.
struct Inflate {
    state: Decompress,
    decoded: DecodedBytes,
    is_at_end: bool,
}

impl Write for Inflate {
    fn write(&mut self, coded: &[u8]) -> io::Result<usize> {
        if self.is_at_end {
            return Err(io::Error::other("bytes after the end"));
        }
        let start = self.state.total_in();
        let mut buffer = [0; BUFFER_BYTES];
        let mut unread = coded;
        loop {
            let (read_before, made_before) = (self.state.total_in(), self.state.total_out());
            let status = self.state.decompress(unread, &mut buffer, FlushDecompress::None)?;
            unread = &unread[(self.state.total_in() - read_before) as usize..];
            let made = (self.state.total_out() - made_before) as usize;
            self.decoded.write_all(&buffer[..made])?;

            self.is_at_end = status == Status::StreamEnd;
            // A full buffer means that there may be more output.
            if self.is_at_end || (unread.is_empty() && made < buffer.len()) {
                return Ok((self.state.total_in() - start) as usize);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Decode for Inflate {
    fn finish(&mut self) -> io::Result<()> {
        match self.is_at_end {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn decoded(&mut self) -> &mut DecodedBytes {
        &mut self.decoded
    }
}

/// The output of a decoder.
struct DecodedBytes {
    bytes: Vec<u8>,
    /// Number of bytes since the last [`DecodedBytes::take`].
    length: u64,
    /// Output beyond `kept` is dropped as a whole. Output beyond `max` is an error: the body is
    /// a decompression bomb.
    limits: RequestLimits,
}

impl DecodedBytes {
    fn new(limits: RequestLimits) -> Self {
        Self { bytes: Vec::new(), length: 0, limits }
    }

    fn take(&mut self) -> Bytes {
        self.length = 0;
        std::mem::take(&mut self.bytes).into()
    }
}

impl Write for DecodedBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.length += bytes.len() as u64;
        if self.length > self.limits.max {
            let why = "the body decodes to more bytes than it may";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        match self.length <= self.limits.kept as u64 {
            true => self.bytes.extend_from_slice(bytes),
            false => self.bytes = Vec::new(),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Decoder")
    }
}

#[cfg(test)]
mod tests {
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    const TEXT: &[u8] = b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
    /// `printf 'rolltape' | brotli`, as made by the reference implementation.
    const BROTLI: &[u8] = &[0x8b, 0x03, 0x80, b'r', b'o', b'l', b'l', b't', b'a', b'p', b'e', 0x03];

    fn limits(kept: usize, max: u64) -> RequestLimits {
        RequestLimits { kept, max }
    }

    fn coded() -> Vec<(Coding, Vec<u8>)> {
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(TEXT).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(TEXT).unwrap();
        vec![
            (Coding::Identity, TEXT.to_vec()),
            (Coding::Gzip, gzip.finish().unwrap()),
            (Coding::Deflate, zlib.finish().unwrap()),
            (Coding::Zstd, zstd::encode_all(TEXT, 1).unwrap()),
        ]
    }

    #[test]
    fn codings_are_undone_whole_and_in_pieces() {
        let bounds = |kept: usize| limits(kept, TEXT.len() as u64);
        for (coding, body) in coded() {
            let body = Bytes::from(body);
            assert_eq!(coding.decode(&body, bounds(TEXT.len())).unwrap(), TEXT, "{coding:?}");
            let mut decoder = coding.decoder(TEXT.len()).unwrap();
            let pieces = body.chunks(3).map(|piece| decoder.push(Bytes::copy_from_slice(piece)));
            let plain: Vec<u8> = pieces.flat_map(|piece| piece.unwrap()).collect();
            decoder.finish().unwrap();
            assert_eq!(plain, TEXT, "{coding:?}");
        }
        let brotli = Bytes::from_static(BROTLI);
        assert_eq!(Coding::Brotli.decode(&brotli, limits(100, 100)).unwrap(), "rolltape");
        assert_eq!(Coding::Brotli.decoder(100).unwrap().push(brotli).unwrap(), "rolltape");
    }

    #[test]
    fn what_is_too_long_is_not_kept() {
        let long = TEXT.len() as u64;
        for (coding, body) in coded().into_iter().skip(1) {
            let body = Bytes::from(body);
            let decode = |kept, max| coding.decode(&body, limits(kept, max)).unwrap_err();
            assert!(matches!(decode(TEXT.len() - 1, long), DecodeError::NotKept), "{coding:?}");
            assert!(matches!(decode(5, long - 1), DecodeError::TooLong), "{coding:?}");
            let pushed = coding.decoder(5).unwrap().push(body.clone());
            assert_eq!(pushed.unwrap_err().kind(), io::ErrorKind::FileTooLarge, "{coding:?}");
        }
    }

    #[test]
    fn what_is_cut_short_says_so() {
        for (coding, body) in coded().into_iter().chain([(Coding::Brotli, BROTLI.to_vec())]).skip(1)
        {
            let mut decoder = coding.decoder(1000).unwrap();
            decoder.finish().unwrap();
            for length in 1..body.len() {
                let cut = Bytes::copy_from_slice(&body[..length]);
                let decoded = coding.decode(&cut, limits(1000, 1000));
                assert!(matches!(decoded, Err(DecodeError::Damaged(_))), "{coding:?} {length}");
                let mut decoder = coding.decoder(1000).unwrap();
                let end = decoder.push(cut).and_then(|_| decoder.finish());
                assert!(end.is_err(), "{coding:?} {length}");
            }
        }
    }

    #[test]
    fn what_is_damaged_or_unknown_is_not_decoded() {
        let noise = Bytes::from_static(b"\x1f\x8bnothing that anyone coded");
        for coding in [Coding::Gzip, Coding::Deflate, Coding::Zstd, Coding::Other] {
            assert!(coding.decode(&noise, limits(1000, 1000)).is_err(), "{coding:?}");
        }
        let of = |value| {
            Coding::of(&[(CONTENT_ENCODING, HeaderValue::from_static(value))].into_iter().collect())
        };
        assert_eq!(of("GZIP"), Coding::Gzip);
        assert_eq!(of("gzip, br"), Coding::Other);
        assert!(Coding::Other.decoder(1000).is_none());
    }
}
