//! Any coded body is decoded to the same bytes whole and in pieces, as another decoder does, and to
//! no more than its bound.
#![no_main]

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use fuzz::parts;
use libfuzzer_sys::fuzz_target;
use proxy::fuzzing::{decode, decode_pieces};

const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];
/// Bound of a decoded body, in bytes.
const BYTES_MAX: usize = 64 << 10;

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let coding = knobs.pick(0, &CODINGS);
    // The text is a coded body, or what is coded.
    let coded = if knobs.flag(1, 0) { encoded(coding, text) } else { text.to_vec() };
    let whole = decode(coding, &coded, BYTES_MAX);
    if let Some(whole) = &whole {
        assert!(whole.len() <= BYTES_MAX, "{}", whole.len());
        let other = decoded_otherwise(coding, &coded);
        assert!(other.is_none_or(|other| other == whole[..]), "{coding}");
    }
    if knobs.flag(1, 0) && coded != text {
        assert_eq!(whole.as_deref(), Some(text), "{coding}");
    }

    let pieces = decode_pieces(coding, &knobs.pieces(&coded), BYTES_MAX);
    if let (Some(whole), Some(pieces)) = (&whole, &pieces) {
        assert_eq!(pieces, whole, "{coding}");
    }
    assert!(whole.is_none() || pieces.is_some(), "whole, but not in pieces: {coding}");
    assert!(decode("unknown", text, BYTES_MAX).is_none() || text.is_empty());
});

/// The coded text; as it is where there is no encoder.
fn encoded(coding: &str, text: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text).and_then(|()| encoder.finish()).expect("memory takes it")
        }
        "deflate" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text).and_then(|()| encoder.finish()).expect("memory takes it")
        }
        "zstd" => zstd::bulk::compress(text, 1).expect("memory takes it"),
        _ => text.to_vec(),
    }
}

/// The bytes that another way to decode makes. `None` if it refuses them.
fn decoded_otherwise(coding: &str, coded: &[u8]) -> Option<Vec<u8>> {
    let mut decoder: Box<dyn Read> = match coding {
        "gzip" => Box::new(MultiGzDecoder::new(coded)),
        "deflate" => Box::new(ZlibDecoder::new(coded)),
        "zstd" => Box::new(zstd::stream::read::Decoder::new(coded).ok()?),
        _ => return None,
    };
    let mut decoded = Vec::new();
    let read = decoder.by_ref().take(BYTES_MAX as u64 + 1).read_to_end(&mut decoded);
    read.ok().map(|_| decoded)
}
