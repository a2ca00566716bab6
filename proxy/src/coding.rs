//! Content codings: gzip, deflate, br and zstd, undone so that bodies can be read.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, HeaderValue};

/// Working memory of a decoder, in bytes.
const BUFFER_BYTES: usize = 4096;

/// How a body is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    Zstd,
    /// One we do not know, or several.
    Other,
}

impl Coding {
    /// The coding that `headers` name.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut named = headers.get_all(CONTENT_ENCODING).iter();
        let (first, more) = (named.next(), named.next().is_some());
        match first.map(HeaderValue::to_str) {
            None => Self::Identity,
            Some(Ok(name)) if !more => match name.trim().to_ascii_lowercase().as_str() {
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

    /// The whole of `body` decoded.
    ///
    /// # Errors
    /// [`Undecoded`] when it is coded in a way that we do not know, is damaged, or too long.
    pub(crate) fn decode(
        self,
        body: &Bytes,
        (bytes_kept, bytes_max): (usize, u64),
    ) -> Result<Bytes, Undecoded> {
        if self == Self::Identity || body.is_empty() {
            return Ok(body.clone());
        }
        let plain = Plain { bytes: Vec::new(), length: 0, bytes_kept, bytes_max };
        let mut undo = self.undo(plain).ok_or(Undecoded::Unknown)?;
        let done = undo.write_all(body).and_then(|()| undo.finish());
        let length = undo.plain().length;
        match done {
            _ if length > bytes_max => Err(Undecoded::TooLong),
            Err(error) => Err(Undecoded::Damaged(error)),
            Ok(()) if length > bytes_kept as u64 => Err(Undecoded::NotKept),
            Ok(()) => Ok(undo.plain().take()),
        }
    }

    /// What undoes the coding piece by piece, where none becomes longer than `bytes_max`; `None`
    /// for a coding that we do not know.
    pub(crate) fn decoder(self, bytes_max: usize) -> Option<Decoder> {
        let (bytes_kept, bytes_max) = (bytes_max, bytes_max as u64);
        let plain = Plain { bytes: Vec::new(), length: 0, bytes_kept, bytes_max };
        match self {
            Self::Identity => Some(Decoder { undo: None, is_fed: false }),
            _ => Some(Decoder { undo: Some(self.undo(plain)?), is_fed: false }),
        }
    }

    fn undo(self, plain: Plain) -> Option<Box<dyn Undo + Send>> {
        Some(match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(plain)),
            Self::Deflate => {
                Box::new(Inflate { state: Decompress::new(true), plain, ended: false })
            }
            Self::Brotli => Box::new(DecompressorWriter::new(plain, BUFFER_BYTES)),
            Self::Zstd => Box::new(zstd::stream::write::Decoder::new(plain).ok()?),
            Self::Identity | Self::Other => return None,
        })
    }
}

/// Why a body stays coded.
#[derive(Debug)]
pub(crate) enum Undecoded {
    /// By a coding that we do not know.
    Unknown,
    /// It is not what it says, or not whole.
    Damaged(io::Error),
    /// Decoded it is longer than what is kept.
    NotKept,
    /// Decoded it is longer than what is allowed.
    TooLong,
}

/// Undoes a coding piece by piece.
pub(crate) struct Decoder {
    undo: Option<Box<dyn Undo + Send>>,
    is_fed: bool,
}

impl Decoder {
    /// The plain bytes that `piece` makes known.
    ///
    /// # Errors
    /// When the body is damaged, or the piece becomes too long.
    pub(crate) fn push(&mut self, piece: Bytes) -> io::Result<Bytes> {
        let Some(undo) = &mut self.undo else { return Ok(piece) };
        self.is_fed |= !piece.is_empty();
        undo.write_all(&piece)?;
        undo.flush()?;
        Ok(undo.plain().take())
    }

    /// The body is over.
    ///
    /// # Errors
    /// When that is too early.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match &mut self.undo {
            // No body at all is none in any coding.
            Some(undo) if self.is_fed => undo.finish(),
            _ => Ok(()),
        }
    }
}

/// Coded bytes in, [`Plain`] out.
trait Undo: Write {
    /// An error unless the coded bytes are whole.
    fn finish(&mut self) -> io::Result<()>;
    fn plain(&mut self) -> &mut Plain;
}

impl Undo for MultiGzDecoder<Plain> {
    fn finish(&mut self) -> io::Result<()> {
        self.try_finish()
    }

    fn plain(&mut self) -> &mut Plain {
        self.get_mut()
    }
}

impl Undo for DecompressorWriter<Plain> {
    fn finish(&mut self) -> io::Result<()> {
        self.close()
    }

    fn plain(&mut self) -> &mut Plain {
        self.get_mut()
    }
}

impl Undo for zstd::stream::write::Decoder<'static, Plain> {
    fn finish(&mut self) -> io::Result<()> {
        self.do_finish()
    }

    fn plain(&mut self) -> &mut Plain {
        self.get_mut()
    }
}

/// zlib's form of deflate. The decoder of `flate2` takes half a body for a whole one.
struct Inflate {
    state: Decompress,
    plain: Plain,
    ended: bool,
}

impl Write for Inflate {
    fn write(&mut self, coded: &[u8]) -> io::Result<usize> {
        if self.ended {
            return Err(io::Error::other("bytes after the end"));
        }
        let (read, mut buffer) = (self.state.total_in(), [0; BUFFER_BYTES]);
        let mut left = coded;
        loop {
            let (before, made) = (self.state.total_in(), self.state.total_out());
            let status = self.state.decompress(left, &mut buffer, FlushDecompress::None)?;
            left = &left[(self.state.total_in() - before) as usize..];
            let made = (self.state.total_out() - made) as usize;
            self.plain.write_all(&buffer[..made])?;
            self.ended = status == Status::StreamEnd;
            // A full buffer may not have been all.
            if self.ended || (left.is_empty() && made < buffer.len()) {
                return Ok((self.state.total_in() - read) as usize);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Undo for Inflate {
    fn finish(&mut self) -> io::Result<()> {
        match self.ended {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn plain(&mut self) -> &mut Plain {
        &mut self.plain
    }
}

/// Plain bytes, as they come out of a decoder.
struct Plain {
    bytes: Vec<u8>,
    /// How many came since they were last taken.
    length: u64,
    /// Of more than that none is kept.
    bytes_kept: usize,
    /// More than that are an error: the body was made to burst.
    bytes_max: u64,
}

impl Plain {
    fn take(&mut self) -> Bytes {
        self.length = 0;
        std::mem::take(&mut self.bytes).into()
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.length += bytes.len() as u64;
        if self.length > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        match self.length <= self.bytes_kept as u64 {
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
        let bounds = |kept: usize| (kept, TEXT.len() as u64);
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
        assert_eq!(Coding::Brotli.decode(&brotli, (100, 100)).unwrap(), "rolltape");
        assert_eq!(Coding::Brotli.decoder(100).unwrap().push(brotli).unwrap(), "rolltape");
    }

    #[test]
    fn what_is_too_long_is_not_kept() {
        let long = TEXT.len() as u64;
        for (coding, body) in coded().into_iter().skip(1) {
            let body = Bytes::from(body);
            let decode = |bounds| coding.decode(&body, bounds).unwrap_err();
            assert!(matches!(decode((TEXT.len() - 1, long)), Undecoded::NotKept), "{coding:?}");
            assert!(matches!(decode((5, long - 1)), Undecoded::TooLong), "{coding:?}");
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
                let decoded = coding.decode(&cut, (1000, 1000));
                assert!(matches!(decoded, Err(Undecoded::Damaged(_))), "{coding:?} {length}");
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
            assert!(coding.decode(&noise, (1000, 1000)).is_err(), "{coding:?}");
        }
        let of = |value| {
            Coding::of(&[(CONTENT_ENCODING, HeaderValue::from_static(value))].into_iter().collect())
        };
        assert_eq!(of("GZIP"), Coding::Gzip);
        assert_eq!(of("gzip, br"), Coding::Other);
        assert!(Coding::Other.decoder(1000).is_none());
    }
}
