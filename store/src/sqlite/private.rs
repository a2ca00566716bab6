//! Files that nobody but their owner may read: the store and what lies beside it.
//!
//! They have their mode from the start, whatever the umask. A link is never followed where a file
//! is made or emptied: whoever may write to the folder could otherwise choose the file.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The bits of a mode that let others in.
const OTHERS: u32 = 0o077;
/// Suffixes of the files of a store.
const SUFFIXES: [&str; 4] = ["", "-wal", "-shm", "-writer"];

/// Makes an empty file at `path`, or leaves the empty file that is there.
///
/// # Errors
/// The system's, or `InvalidInput` if there is a link, even one that leads nowhere.
pub(crate) fn make_empty(path: &Path) -> io::Result<()> {
    open_or_make(path).map(drop)
}

/// Opens the file at `path` for reading and writing, or makes it.
///
/// # Errors
/// The system's, or `InvalidInput` if there is a link, a folder, a pipe or a device.
pub(crate) fn open_or_make(path: &Path) -> io::Result<File> {
    let new = OFlags::CREATE | OFlags::EXCL;
    match open(path, new) {
        Err(Errno::EXIST) => {}
        made => return Ok(made?),
    }

    // A pipe in its place does not make the opening wait.
    let file = open(path, OFlags::NONBLOCK).map_err(|error| match error {
        Errno::LOOP => foreign("there is a link in its place"),
        _ => error.into(),
    })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(foreign("it is not a file")),
    }
}

fn open(path: &Path, more: OFlags) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

fn foreign(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

/// Returns true where a file that is open has no name but one.
pub(crate) fn has_one_name(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.nlink() == 1)
}

/// Takes the files of the store at `path` from others who may read or write them. Says so in the
/// log, and warns where that is not ours to do.
pub(crate) fn narrow(path: &Path) {
    let store = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    for suffix in SUFFIXES {
        let mut name = store.as_os_str().to_owned();
        name.push(suffix);
        narrow_file(&PathBuf::from(name));
    }
}

/// By its name: SQLite loses its locks on a file when any one descriptor of it is closed.
fn narrow_file(path: &Path) {
    let Ok(found) = path.symlink_metadata() else { return };
    let mode = found.permissions().mode();
    if !found.is_file() || mode & OTHERS == 0 {
        return;
    }

    let narrowed = mode & 0o700;
    match std::fs::set_permissions(path, Permissions::from_mode(narrowed)) {
        Ok(()) => tracing::warn!(
            "others could open `{}`; its mode was {:o} and is {narrowed:o} now",
            path.display(),
            mode & 0o777
        ),
        Err(error) => tracing::warn!(
            %error,
            "others can open `{}`, and its mode cannot be changed",
            path.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_file_is_its_owners_alone_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        open_or_make(&at("new")).unwrap();
        assert_eq!(mode(&at("new")), 0o600);
        std::fs::write(at("mine"), "mine").unwrap();
        open_or_make(&at("mine")).unwrap();

        symlink(at("mine"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        for name in ["link", "dangling"] {
            let refused = open_or_make(&at(name)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{name}: {refused}");
        }
        assert!(open_or_make(folder.path()).is_err());
        assert!(!at("none").exists());
        assert_eq!(std::fs::read(at("mine")).unwrap(), b"mine");
    }

    #[test]
    fn open_files_are_narrowed_but_not_the_target_of_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a.db", "a.db-wal", "other"] {
            std::fs::write(at(name), "").unwrap();
            std::fs::set_permissions(at(name), Permissions::from_mode(0o664)).unwrap();
        }
        symlink(at("other"), at("a.db-shm")).unwrap();
        symlink(at("a.db"), at("b.db")).unwrap();
        narrow(&at("b.db"));
        assert_eq!(
            ["a.db", "a.db-wal", "other"].map(|name| mode(&at(name))),
            [0o600, 0o600, 0o664]
        );
    }
}
