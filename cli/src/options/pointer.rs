//! The servers of this user on this machine. Each leaves a file that says where it listens and what
//! it records to, and a command that is told nothing looks there.
//!
//! A server holds a lock on its file, so that a file whose server has died is known by its lock,
//! and removed.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use store::Location;

use crate::secret_file;

/// The folder of the files, in the user's folder of states.
const FOLDER: &str = "rolltape/servers";

/// A server that runs here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerPointer {
    /// The data listener: a URL, or `unix:PATH`.
    pub(crate) agents: String,
    /// The control listener, likewise.
    pub(crate) control: String,
    /// The store, as `--store` takes it.
    pub(crate) store: String,
    /// The file of the control listener's token; `None` if it has none, or if it is in no file.
    pub(crate) token_file: Option<PathBuf>,
}

/// The file of a server, for as long as it runs.
#[derive(Debug)]
pub(crate) struct PointerFile {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Drop for PointerFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ServerPointer {
    /// Leaves the file. A server that cannot is found less easily, and works all the same.
    pub(crate) fn leave(&self) -> Option<PointerFile> {
        let folder = folder(&|name| std::env::var_os(name))?;
        let left = self.leave_in(&folder);
        left.inspect_err(|error| {
            tracing::debug!(%error, folder = %folder.display(), "this server left no pointer");
        })
        .ok()
    }

    fn leave_in(&self, folder: &Path) -> std::io::Result<PointerFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = tempfile::Builder::new().prefix(".rolltape-").tempfile_in(folder)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        // Before the file has its name, so that nobody takes it for that of a dead server.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let path = folder.join(format!("{}.json", std::process::id()));
        let file = file.persist(&path)?;
        Ok(PointerFile { path, _file: file })
    }
}

/// The servers that run here.
pub(crate) fn running() -> Vec<ServerPointer> {
    folder(&|name| std::env::var_os(name)).map_or_else(Vec::new, |folder| running_in(&folder))
}

/// The file of the token of the server here whose control listener is at `address`.
pub(crate) fn token_file(address: &str) -> Option<PathBuf> {
    let asked = place(address);
    running().into_iter().find(|server| place(&server.control) == asked)?.token_file
}

/// An address without what may be left out. A name of loopback is as good as its address.
fn place(address: &str) -> String {
    let address = address.trim_end_matches('/');
    let address = address.strip_prefix("http://").unwrap_or(address);
    match address.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => address.to_owned(),
    }
}

fn running_in(folder: &Path) -> Vec<ServerPointer> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    paths.sort();
    paths.iter().filter_map(|path| read(path)).collect()
}

/// Reads a file; `None` if its server has died, or if it is not as a server leaves it.
fn read(path: &Path) -> Option<ServerPointer> {
    let text = secret_file::read(path).ok().flatten()?;
    let file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        let _ = std::fs::remove_file(path);
        return None;
    }
    serde_json::from_str(&text).ok()
}

fn folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    Some(secret_file::states(variable)?.join(FOLDER))
}

/// The store's name in any folder.
pub(crate) fn absolute(store: &Location) -> String {
    match store {
        Location::File(path) => {
            std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string()
        }
        Location::Server(_) => store.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(port: u16) -> ServerPointer {
        ServerPointer {
            agents: format!("http://127.0.0.1:{port}"),
            control: format!("http://127.0.0.1:{}", port + 1),
            store: "/runs/rolltape.db".to_owned(),
            token_file: Some("/runs/rolltape.db-token".into()),
        }
    }

    #[test]
    fn a_server_is_found_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let servers = folder.path().join("rolltape/servers");
        assert_eq!(running_in(&servers), []);

        let file = pointer(8080).leave_in(&servers).unwrap();
        assert_eq!(running_in(&servers), [pointer(8080)]);
        drop(file);
        assert_eq!(running_in(&servers), []);
    }

    #[test]
    fn an_address_is_known_by_all_its_spellings() {
        for spelling in ["127.0.0.1:81", "localhost:81", "http://localhost:81/"] {
            assert_eq!(place(spelling), place("http://127.0.0.1:81"));
        }
        assert_eq!(place("unix:/run/c.sock"), "unix:/run/c.sock");
        assert_ne!(place("https://127.0.0.1:81"), place("http://127.0.0.1:81"));
    }

    #[test]
    fn what_a_dead_server_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = pointer(8080).leave_in(folder.path()).unwrap();
        let left = folder.path().join("1.json");
        std::fs::copy(&file.path, &left).unwrap();
        assert_eq!(running_in(folder.path()), [pointer(8080)]);
        assert!(!left.exists());
    }

    #[test]
    fn a_file_that_others_can_write_points_nowhere() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let file = pointer(8080).leave_in(folder.path()).unwrap();
        std::fs::set_permissions(&file.path, PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(running_in(folder.path()), []);
    }
}
