//! The file of the secrets that sign API keys.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use proxy::{SecretChange, SigningSecretPlace};
use store::Location;

use crate::exit::Failure;
use crate::options::secret_file;

/// The end of the file's name, after that of the store.
const FILE_END: &str = "-keys";
/// The file for stores that are no files, in the user's folder of states.
const FILE_OF_USER: &str = "rolltape/signing-keys";

/// A file that only its owner can read.
#[derive(Debug)]
pub(super) struct SigningFile(PathBuf);

impl SigningFile {
    /// The file that was named, or else the one of the store.
    ///
    /// # Errors
    /// [`Failure`] if the store is no file and the user has no folder of states.
    pub(super) fn of(named: Option<&Path>, store: &Location) -> Result<Self, Failure> {
        if let Some(named) = named {
            return Ok(Self(named.to_owned()));
        }
        let variable = |name: &str| std::env::var_os(name);
        let file = secret_file::of_store(store, FILE_END, FILE_OF_USER, &variable);
        let file = file.ok_or_else(|| {
            Failure::new("there is no folder for the secrets that sign API keys")
                .hint("name a file with --signing-key-file, or set HOME")
        })?;
        secret_file::create_folder_of(&file, store)?;
        Ok(Self(file))
    }
}

impl SigningSecretPlace for SigningFile {
    fn read(&self) -> io::Result<Option<String>> {
        secret_file::read(&self.0).map_err(io::Error::other)
    }

    fn create(&self, content: &str) -> io::Result<()> {
        secret_file::create(&self.0, content).map(drop).map_err(io::Error::other)
    }

    fn update(&self, change: &mut SecretChange<'_>) -> io::Result<()> {
        let folder = self.0.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        // The folder's lock, because the file is another one after each change.
        let lock = File::open(folder)?;
        lock.lock()?;
        let content = change(self.read()?)?;
        // A temporary file has mode 0600, and a rename replaces a link, not its target.
        let mut file = tempfile::Builder::new().prefix(".rolltape-").tempfile_in(folder)?;
        file.write_all(content.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&self.0).map_err(|error| error.error)?;
        lock.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_file_is_beside_the_store_and_its_owner_s_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = Location::File(folder.path().join("a.db"));
        let file = SigningFile::of(None, &store).unwrap();
        assert_eq!(file.0, folder.path().join("a.db-keys"));
        for content in ["one", "two"] {
            file.create("one").unwrap();
            file.update(&mut |_| Ok(content.to_owned())).unwrap();
            assert_eq!(file.read().unwrap().as_deref(), Some(content));
            assert_eq!(std::fs::metadata(&file.0).unwrap().mode() & 0o7777, 0o600);
        }
        std::os::unix::fs::symlink(&file.0, folder.path().join("link")).unwrap();
        let named = folder.path().join("link");
        assert!(SigningFile::of(Some(&named), &store).unwrap().read().is_err());
    }
}
