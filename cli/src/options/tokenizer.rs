//! The path of `--tokenizer`: a `tokenizer.json` or the model's folder, wherever it is taken.

use std::path::{Path, PathBuf};

/// The name of a tokenizer's file in a model's folder.
const FILE: &str = "tokenizer.json";

/// The file that a path leads to: the `tokenizer.json` of a folder, or the file itself, which may
/// have any name.
pub(crate) fn tokenizer_file(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.join(FILE),
        false => path.to_owned(),
    }
}

/// The model's folder that a path leads to: the one that holds a `tokenizer.json`, or the folder
/// itself.
pub(crate) fn tokenizer_folder(path: &Path) -> PathBuf {
    let is_file = path.ends_with(FILE) && !path.is_dir();
    match path.parent().filter(|_| is_file) {
        Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
        Some(folder) => folder.to_owned(),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_is_a_file_or_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, file) = (folder.path(), folder.path().join(FILE));
        std::fs::write(&file, "{}").unwrap();
        assert_eq!([folder, &file].map(tokenizer_file), [file.clone(), file.clone()]);
        assert_eq!([folder, &file].map(tokenizer_folder), [folder.to_owned(), folder.to_owned()]);
        assert_eq!(tokenizer_folder(Path::new(FILE)), Path::new("."));

        // A file of another name is a tokenizer, and a path that leads nowhere stays as it is.
        let other = folder.join("other.json");
        assert_eq!(tokenizer_file(&other), other);
        assert_eq!(tokenizer_folder(&other), other);
    }
}
