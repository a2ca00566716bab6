//! Compiled kernels that are cached in a folder, so that the next start does not compile them.
//!
//! A file's name is a hash of everything that decides its contents. The file begins with a hash of
//! the rest, so that a damaged file is ignored.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The first bytes of a file; the hash of the rest follows.
const MAGIC: &[u8; 16] = b"rolltape cubin 1";

/// Hashes parts to 128 bits (FNV-1a). It is not meant against collisions on purpose.
pub(super) fn hash(parts: &[&[u8]]) -> u128 {
    const PRIME: u128 = (1 << 88) + 0x13b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    parts.iter().fold(BASIS, |sum, part| {
        // The length separates the parts.
        let length = part.len().to_le_bytes();
        length
            .iter()
            .chain(*part)
            .fold(sum, |sum, byte| (sum ^ u128::from(*byte)).wrapping_mul(PRIME))
    })
}

fn file(folder: &Path, key: u128) -> PathBuf {
    folder.join(format!("{key:032x}.cubin"))
}

/// Loads the program of a key; `None` if it is not cached, or is damaged.
pub(super) fn load(folder: &Path, key: u128) -> Option<Vec<u8>> {
    let bytes = fs::read(file(folder, key)).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, rest) = rest.split_first_chunk()?;
    (*sum == hash(&[rest]).to_le_bytes()).then(|| rest.to_vec())
}

/// Stores a program under a key. Several processes may do so at once.
pub(super) fn store(folder: &Path, key: u128, program: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let to = file(folder, key);
    let draft = to.with_extension(format!("{}.draft", std::process::id()));
    let sum = hash(&[program]).to_le_bytes();
    let written = fs::write(&draft, [&MAGIC[..], &sum, program].concat());
    let moved = written.and_then(|()| fs::rename(&draft, to));
    if moved.is_err() {
        let _ = fs::remove_file(&draft);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_unless_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let folder = &folder.path().join("new");
        let key = hash(&[b"a", b"bc"]);
        assert_ne!(key, hash(&[b"ab", b"c"]));
        assert_eq!(load(folder, key), None);
        store(folder, key, b"program").unwrap();
        assert_eq!(load(folder, key).unwrap(), b"program");
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);

        let path = file(folder, key);
        let whole = fs::read(&path).unwrap();
        for at in [0, 20, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(load(folder, key), None, "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(load(folder, key), None);
    }
}
