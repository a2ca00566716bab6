//! Compiled kernels that are built into this program, so that usual devices and sizes of heads need
//! no compiler.
//!
//! `tests/cuda/cubins.py` writes the archive: one zlib stream of entries, each the key of text and
//! options (16 bytes), the length of the program (4), and the program. A text that was changed
//! since has another key, and is compiled as if there were no archive.

use std::collections::HashMap;
use std::io::Read;
use std::sync::OnceLock;

use flate2::read::ZlibDecoder;

use super::cache;

/// The archive that `tests/cuda/cubins.py` writes.
const ARCHIVE: &[u8] = include_bytes!("../../../cuda/cubins.bin");

/// Programs by the key of text and options.
type Programs = HashMap<u128, Vec<u8>>;

/// Returns the program of a text with these options, if it is built in.
pub(super) fn find(text: &str, options: &[String]) -> Option<&'static [u8]> {
    programs().get(&key(text, options)).map(Vec::as_slice)
}

/// Hashes the inputs of the compiler.
fn key(text: &str, options: &[String]) -> u128 {
    cache::hash(&[text.as_bytes(), options.join(" ").as_bytes()])
}

/// Returns all programs, unpacked once; none if the archive cannot be read.
fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let mut bytes = Vec::new();
        let read = ZlibDecoder::new(ARCHIVE).read_to_end(&mut bytes);
        read.ok().and_then(|_| unpack(&bytes)).unwrap_or_default()
    })
}

/// Reads the entries of an archive; `None` if it is cut off.
fn unpack(mut rest: &[u8]) -> Option<Programs> {
    let mut programs = Programs::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_first_chunk()?;
        let (length, after) = after.split_first_chunk()?;
        let (program, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        programs.insert(u128::from_le_bytes(*key), program.to_vec());
        rest = after;
    }
    Some(programs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::FAMILIES;
    use crate::cuda::program::compiler_options;
    use crate::cuda::program::source::texts;

    #[test]
    fn what_is_built_in_is_what_the_texts_say_now() {
        let mut found = std::collections::HashSet::new();
        for head_dim in [64, 128, 256] {
            for one in texts(FAMILIES, None, head_dim).unwrap() {
                for arch in ["sm_80", "sm_90a"] {
                    let key = key(&one.text, &compiler_options(arch, one.head_dim));
                    assert!(
                        programs().contains_key(&key),
                        "`{}` for {arch}, heads of {head_dim}, was changed since it was built in: \
                         run `tests/cuda/run.sh --update`",
                        one.family
                    );
                    found.insert(key);
                }
            }
        }
        assert_eq!(found.len(), programs().len(), "programs of texts that there are no more");
    }

    #[test]
    fn an_archive_that_was_cut_is_none() {
        let entry = [&7_u128.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
        assert_eq!(unpack(&entry).unwrap()[&7], b"abc");
        assert!((1..entry.len()).all(|length| unpack(&entry[..length]).is_none()));
    }
}
