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
use uuid::Uuid;

use super::address::UNIX;
use crate::options::secret_file;

/// The folder of the files, in the user's folder of states.
const FOLDER: &str = "rolltape/servers";

/// A server that runs here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerPointer {
    /// The machine, as it was started, and the network: others cannot be reached, and a lock of
    /// another machine may look like one of this.
    pub(crate) place: String,
    /// The data listener: a URL, or `unix:PATH`.
    pub(crate) agents: String,
    /// The control listener, likewise.
    pub(crate) control: String,
    /// The store, as `--store` takes it.
    pub(crate) store: String,
    /// The file of the control listener's token; `None` if it has none, or if it is in no file.
    pub(crate) token_file: Option<PathBuf>,
    /// The `tokenizer.json` of its model, if it knows one.
    #[serde(default)]
    pub(crate) tokenizer: Option<PathBuf>,
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
        let path = folder.join(format!("{}.json", Uuid::now_v7().as_simple()));
        let file = file.persist(&path)?;
        Ok(PointerFile { path, _file: file })
    }
}

/// The servers that run here.
pub(crate) fn running() -> Vec<ServerPointer> {
    folder(&|name| std::env::var_os(name)).map_or_else(Vec::new, |folder| running_in(&folder))
}

/// The server here whose control listener is at `address`.
pub(crate) fn server_at(address: &str) -> Option<ServerPointer> {
    let asked = spelled(address);
    running().into_iter().find(|server| spelled(&server.control) == asked)
}

/// The tokenizer of the server here that records to `store`, if it knows one.
pub(crate) fn tokenizer_of(store: &Location) -> Option<PathBuf> {
    let store = absolute(store);
    running().into_iter().find(|server| server.store == store)?.tokenizer
}

/// An address without what may be left out. A name of loopback is another address: who answers to
/// it may be somebody else.
fn spelled(address: &str) -> String {
    let address = address.trim_end_matches('/');
    absolute_address(address.strip_prefix("http://").unwrap_or(address))
}

/// The address in any folder.
pub(crate) fn absolute_address(address: &str) -> String {
    let absolute = |path: &str| std::path::absolute(path).ok();
    match address.strip_prefix(UNIX).and_then(absolute) {
        Some(path) => format!("{UNIX}{}", path.display()),
        None => address.to_owned(),
    }
}

/// This machine since it was started, and the network of this process.
pub(crate) fn here() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot.trim(), network.display()))
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
    let server: ServerPointer = serde_json::from_str(&text).ok()?;
    if server.place != here()? {
        return None;
    }
    let file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        let _ = std::fs::remove_file(path);
        return None;
    }
    Some(server)
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
            place: here().unwrap(),
            agents: format!("http://127.0.0.1:{port}"),
            control: format!("http://127.0.0.1:{}", port + 1),
            store: "/runs/rolltape.db".to_owned(),
            token_file: Some("/runs/rolltape.db-token".into()),
            tokenizer: Some("/models/tiny/tokenizer.json".into()),
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
        for spelling in ["127.0.0.1:81", "127.0.0.1:81/", "http://127.0.0.1:81/"] {
            assert_eq!(spelled(spelling), spelled("http://127.0.0.1:81"));
        }
        assert_eq!(spelled("unix:/run/c.sock"), "unix:/run/c.sock");
        assert!(spelled("unix:c.sock").starts_with("unix:/"));
        for other in ["https://127.0.0.1:81", "http://localhost:81"] {
            assert_ne!(spelled(other), spelled("http://127.0.0.1:81"));
        }
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
    fn a_server_of_another_machine_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let other = ServerPointer { place: "elsewhere".to_owned(), ..pointer(8080) };
        let file = other.leave_in(folder.path()).unwrap();
        assert_eq!(running_in(folder.path()), []);
        assert!(file.path.exists());
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
