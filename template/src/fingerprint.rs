//! A hash of the files of a tokenizer, which changes when they do.

use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The files that decide the ids of a conversation, in the order in which they are hashed.
const FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// Returns the SHA-256 of the tokenizer files of a model folder, as 64 hexadecimal digits.
///
/// Each file is hashed with its name and its length, so the hash changes if content moves from one
/// file to another. Absent files are left out.
///
/// # Errors
/// If a file exists and cannot be read.
pub fn fingerprint(folder: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    for name in FILES {
        let content = match std::fs::read(folder.join(name)) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        hash.update(format!("{name} {}\n", content.len()));
        hash.update(content);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_contents_count() {
        let folder = tempfile::tempdir().unwrap();
        let empty = fingerprint(folder.path()).unwrap();
        assert_eq!(empty, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        std::fs::write(folder.path().join("tokenizer.json"), "x").unwrap();
        let one = fingerprint(folder.path()).unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), "y").unwrap();
        let other = fingerprint(folder.path()).unwrap();
        assert!(empty != one && one != other);
        assert_eq!(fingerprint(folder.path()).unwrap(), other);
    }
}
