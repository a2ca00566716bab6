//! Secret files: made with mode 0600, and read only if nobody else could have written or read them.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::fs::OFlags;
use store::Location;
use thiserror::Error;

use crate::exit::Failure;

/// Longest secret file, in bytes.
const BYTES_MAX: u64 = 64 << 10;
/// Random bytes of a secret.
const RANDOM_BYTES: usize = 32;
/// The bits of a mode that give access to the group or to others.
const OF_OTHERS: u32 = 0o077;

/// The secret file of a store, whose name ends in `end`. A store has the same one under all of its
/// names.
fn beside(store: &Path, end: &str) -> PathBuf {
    let target = store.is_symlink().then(|| store.canonicalize().ok()).flatten();
    let mut name = target.unwrap_or_else(|| store.to_owned()).into_os_string();
    name.push(end);
    name.into()
}

/// The secret file of a store: beside a file, or of the name `of_user` in the user's folder of
/// states. `None` where `variable` names no such folder.
pub(crate) fn of_store(
    store: &Location,
    end: &str,
    of_user: &str,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let path = match store {
        Location::File(path) => return Some(beside(path, end)),
        Location::Server(_) => of_user,
    };
    Some(states(variable)?.join(path))
}

/// The user's folder of states. `None` where `variable` names no such folder.
pub(crate) fn states(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // A relative folder would be another one for every place that a server is started in.
    let named = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")))
}

/// Creates the folder of a store's secret file that is not beside the store.
///
/// # Errors
/// [`SecretFileError::Create`] if it cannot be created.
pub(crate) fn create_folder_of(file: &Path, store: &Location) -> Result<(), SecretFileError> {
    let (Location::Server(_), Some(folder)) = (store, file.parent()) else { return Ok(()) };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| SecretFileError::Create(folder.to_owned(), error))
}

/// The reason for which a file is not taken for a secret.
#[derive(Debug, Error)]
pub(crate) enum SecretFileError {
    #[error("`{0}` is a link; a secret file must not be one")]
    Link(PathBuf),
    #[error("`{0}` is not a regular file")]
    NotFile(PathBuf),
    #[error("`{0}` belongs to another user")]
    Owner(PathBuf),
    #[error("`{0}` has mode {1:04o}: others can read or write it")]
    Mode(PathBuf, u32),
    #[error("`{0}` is longer than {BYTES_MAX} bytes or not text")]
    NotText(PathBuf),
    #[error("cannot read `{0}`: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("cannot create `{0}`: {1}")]
    Create(PathBuf, #[source] std::io::Error),
}

impl From<SecretFileError> for Failure {
    fn from(error: SecretFileError) -> Self {
        let failure = Self::of(&error);
        match &error {
            SecretFileError::Mode(path, _) => {
                failure.hint(format!("chmod 600 {}, and replace the secret", path.display()))
            }
            SecretFileError::Link(_) | SecretFileError::NotFile(_) | SecretFileError::Owner(_) => {
                failure.hint("remove it; a new one is made")
            }
            _ => failure,
        }
    }
}

/// Reads a secret file; `None` if there is none.
///
/// # Errors
/// [`SecretFileError`] if it is a link, not a regular file, of another user than this one and root,
/// or accessible to anybody but its owner.
pub(crate) fn read(path: &Path) -> Result<Option<String>, SecretFileError> {
    // A pipe must not hold up the opening.
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(_) if path.is_symlink() => return Err(SecretFileError::Link(path.to_owned())),
        Err(error) => return Err(SecretFileError::Read(path.to_owned(), error)),
    };

    let read_error = |error| SecretFileError::Read(path.to_owned(), error);
    let about = file.metadata().map_err(read_error)?;
    let user = rustix::process::geteuid().as_raw();
    if !about.is_file() {
        return Err(SecretFileError::NotFile(path.to_owned()));
    }
    if about.uid() != user && about.uid() != 0 {
        return Err(SecretFileError::Owner(path.to_owned()));
    }
    if about.mode() & OF_OTHERS != 0 {
        return Err(SecretFileError::Mode(path.to_owned(), about.mode() & 0o7777));
    }

    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read_error)?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= BYTES_MAX);
    text.map(Some).ok_or_else(|| SecretFileError::NotText(path.to_owned()))
}

/// Creates a secret file with mode 0600. It appears whole. Returns false, and leaves what is there,
/// if there is a file or a link of that name.
///
/// # Errors
/// [`SecretFileError::Create`] if its folder cannot be written.
pub(crate) fn create(path: &Path, content: &str) -> Result<bool, SecretFileError> {
    let create_error = |error| SecretFileError::Create(path.to_owned(), error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));

    let mut file =
        tempfile::Builder::new().prefix(".rolltape-").tempfile_in(folder).map_err(create_error)?;
    file.write_all(content.as_bytes()).map_err(create_error)?;
    file.as_file().sync_all().map_err(create_error)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(create_error(error.error)),
    }
    // The name survives a loss of power as well.
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(create_error)?;
    Ok(true)
}

/// Reads a secret file, and creates it with `make` first if there is none.
///
/// # Errors
/// Those of [`read`] and [`create`], and of `make`.
pub(crate) fn read_or_create(
    path: &Path,
    make: impl FnOnce() -> Result<String, Failure>,
) -> Result<String, Failure> {
    if let Some(content) = read(path)? {
        return Ok(content);
    }
    create(path, &make()?)?;
    // Another process may have been first.
    let missing = || SecretFileError::Read(path.to_owned(), ErrorKind::NotFound.into());
    Ok(read(path)?.ok_or_else(missing)?)
}

/// A random secret of 32 bytes, as text that a URL and a header can hold.
///
/// # Errors
/// [`Failure`] if the system gives no random bytes.
pub(crate) fn random() -> Result<String, Failure> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::of(&error).context("cannot make a random secret"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn secret() -> Result<String, Failure> {
        Ok("secret".to_owned())
    }

    #[test]
    fn a_secret_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db-token");
        assert_eq!(read(&path).unwrap(), None);
        assert_eq!(read_or_create(&path, secret).unwrap(), "secret");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(!create(&path, "other").unwrap());
        assert_eq!(read_or_create(&path, random).unwrap(), "secret");
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no other file is left: {names:?}");
    }

    #[test]
    fn what_others_could_have_made_or_read_is_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "secret").unwrap();
        for mode in [0o644, 0o640, 0o620, 0o602, 0o604] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(read(&path), Err(SecretFileError::Mode(..))), "{mode:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read(&path).is_ok());

        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(read(&link), Err(SecretFileError::Link(_))));
        assert!(matches!(read(folder.path()), Err(SecretFileError::NotFile(_))));
    }

    #[test]
    fn a_link_is_neither_followed_nor_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        symlink(&target, &link).unwrap();
        assert!(!create(&link, "secret").unwrap());
        assert!(!target.exists());
        assert!(read_or_create(&link, secret).is_err());
        assert!(!target.exists() && link.is_symlink());
    }

    #[test]
    fn random_secrets_differ() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert_eq!(one.len(), 43);
        assert_ne!(one, other);
    }
}
