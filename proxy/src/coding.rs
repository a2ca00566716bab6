//! Content codings: gzip, deflate, br and zstd, undone so that bodies can be read.

use std::io::{self, Read, Write};

use brotli_decompressor::{Decompressor, DecompressorWriter};
use bytes::Bytes;
use flate2::{read, write};
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, HeaderValue};

/// Working memory of the brotli decoder, in bytes.
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

    /// The whole of `body` decoded; `None` when it is damaged, longer than `bytes_max`, or coded
    /// in a way that we do not know.
    pub(crate) fn decode(self, body: &Bytes, bytes_max: usize) -> Option<Bytes> {
        let coded = body.as_ref();
        let reader: Box<dyn Read + '_> = match self {
            Self::Identity => return Some(body.clone()),
            Self::Gzip => Box::new(read::MultiGzDecoder::new(coded)),
            Self::Deflate => Box::new(read::ZlibDecoder::new(coded)),
            Self::Brotli => Box::new(Decompressor::new(coded, BUFFER_BYTES)),
            Self::Zstd => Box::new(zstd::Decoder::new(coded).ok()?),
            Self::Other => return None,
        };
        let mut plain = Vec::new();
        reader.take(bytes_max as u64 + 1).read_to_end(&mut plain).ok()?;
        (plain.len() <= bytes_max).then(|| Bytes::from(plain))
    }

    /// What undoes the coding piece by piece; `None` for a coding that we do not know.
    pub(crate) fn decoder(self) -> Option<Decoder> {
        Some(match self {
            Self::Identity => Decoder::Identity,
            Self::Gzip => Decoder::Gzip(write::MultiGzDecoder::new(Vec::new())),
            Self::Deflate => Decoder::Deflate(write::ZlibDecoder::new(Vec::new())),
            Self::Brotli => {
                Decoder::Brotli(Box::new(DecompressorWriter::new(Vec::new(), BUFFER_BYTES)))
            }
            Self::Zstd => Decoder::Zstd(zstd::stream::write::Decoder::new(Vec::new()).ok()?),
            Self::Other => return None,
        })
    }
}

/// Undoes a coding piece by piece.
pub(crate) enum Decoder {
    Identity,
    Gzip(write::MultiGzDecoder<Vec<u8>>),
    Deflate(write::ZlibDecoder<Vec<u8>>),
    Brotli(Box<DecompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Decoder<'static, Vec<u8>>),
}

impl Decoder {
    /// The plain bytes that `piece` makes known.
    ///
    /// # Errors
    /// When the body is damaged.
    pub(crate) fn push(&mut self, piece: Bytes) -> io::Result<Bytes> {
        let plain = match self {
            Self::Identity => return Ok(piece),
            Self::Gzip(decoder) => {
                decoder.write_all(&piece)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Deflate(decoder) => {
                decoder.write_all(&piece)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Brotli(decoder) => {
                decoder.write_all(&piece)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Zstd(decoder) => {
                decoder.write_all(&piece)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
        };
        Ok(Bytes::from(plain))
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Decoder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
    /// `printf 'rolltape' | brotli`, as made by the reference implementation.
    const BROTLI: &[u8] = &[0x8b, 0x03, 0x80, b'r', b'o', b'l', b'l', b't', b'a', b'p', b'e', 0x03];

    fn coded() -> Vec<(Coding, Vec<u8>)> {
        let mut gzip = write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(TEXT).unwrap();
        let mut zlib = write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
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
        for (coding, body) in coded() {
            let body = Bytes::from(body);
            assert_eq!(coding.decode(&body, TEXT.len()).unwrap(), TEXT, "{coding:?}");
            assert!(coding == Coding::Identity || coding.decode(&body, TEXT.len() - 1).is_none());
            let mut decoder = coding.decoder().unwrap();
            let pieces = body.chunks(3).map(|piece| decoder.push(Bytes::copy_from_slice(piece)));
            let plain: Vec<u8> = pieces.flat_map(|piece| piece.unwrap()).collect();
            assert_eq!(plain, TEXT, "{coding:?}");
        }
        let brotli = Bytes::from_static(BROTLI);
        assert_eq!(Coding::Brotli.decode(&brotli, 100).unwrap(), "rolltape");
        assert_eq!(Coding::Brotli.decoder().unwrap().push(brotli).unwrap(), "rolltape");
    }

    #[test]
    fn what_is_damaged_or_unknown_is_not_decoded() {
        let noise = Bytes::from_static(b"\x1f\x8bnothing that anyone coded");
        for coding in [Coding::Gzip, Coding::Deflate, Coding::Zstd, Coding::Other] {
            assert_eq!(coding.decode(&noise, 1000), None, "{coding:?}");
        }
        let of = |value| {
            Coding::of(&[(CONTENT_ENCODING, HeaderValue::from_static(value))].into_iter().collect())
        };
        assert_eq!(of("GZIP"), Coding::Gzip);
        assert_eq!(of("gzip, br"), Coding::Other);
        assert!(Coding::Other.decoder().is_none());
    }
}
