//! A socket in the file system: bound beside its place, and put there once everything is ready.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::{BACKLOG, OpenListener};
use crate::exit::Failure;
use crate::options::address::ListenAddress;

/// A socket that takes no connections yet. The file goes with this value.
#[derive(Debug)]
pub(crate) struct BoundFile {
    socket: Socket,
    file: SocketFile,
    place: PathBuf,
    /// The option that gave the place.
    option: &'static str,
}

/// The file of a socket, which is removed with this value if it is still the same.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl BoundFile {
    /// Binds a socket that will be at `place`, with this mode. A file of a server that is gone is
    /// replaced when the socket opens.
    ///
    /// # Errors
    /// [`Failure`] if a server listens there, if the file is no socket, or if there is no folder.
    pub(crate) fn bind(place: &Path, mode: u32, option: &'static str) -> Result<Self, Failure> {
        check_free(place, option)?;
        let (socket, file) = bind_beside(place, mode).map_err(|error| {
            let sentence = format!("cannot listen on unix:{}: {error}", place.display());
            Failure::new(sentence).hint(format!(
                "give {option} a path of at most 90 bytes in a folder that exists and is yours"
            ))
        })?;
        Ok(Self { socket, file, place: place.to_owned(), option })
    }

    /// Puts the socket in its place and opens it.
    pub(crate) fn open(mut self) -> Result<OpenListener, Failure> {
        check_free(&self.place, self.option)?;
        self.socket.listen(BACKLOG as i32)?;
        fs::rename(&self.file.path, &self.place)?;
        self.file.path.clone_from(&self.place);

        self.socket.set_nonblocking(true)?;
        let endpoint = UnixListener::from_std(self.socket.into())?.into();
        let address = ListenAddress::Unix(self.place);
        Ok(OpenListener { endpoint, address, file: Some(self.file) })
    }
}

/// Binds a socket under a name of its own in the same folder. Nobody connects before it listens, so
/// no time passes in which the file has another mode.
fn bind_beside(place: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    let mut name = place.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let path = place.with_file_name(name);

    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    socket.bind(&SockAddr::unix(&path)?)?;
    let file = SocketFile { identity: identity(&path)?, path };
    fs::set_permissions(&file.path, Permissions::from_mode(mode))?;
    Ok((socket, file))
}

/// Refuses a place where a server listens, or where something else is than a socket.
fn check_free(place: &Path, option: &str) -> Result<(), Failure> {
    let shown = place.display();
    let kind = match fs::symlink_metadata(place) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::new(format!("cannot listen on unix:{shown}: {error}"))),
    };
    if !kind.is_socket() {
        return Err(Failure::new(format!("{shown} is there and is no socket"))
            .hint(format!("give another path with {option}, or remove the file")));
    }
    match UnixStream::connect(place) {
        Ok(_) => Err(Failure::new(format!("a server listens on unix:{shown} already"))
            .hint(format!("give another path with {option}, or stop that server"))),
        // Nobody listens: its server is gone.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(Failure::new(format!("cannot listen on unix:{shown}: {error}"))
            .hint(format!("another user's server may listen there; give another with {option}"))),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have its own file there by now.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdListener;

    use super::*;

    const MODE: u32 = 0o600;

    fn open(place: &Path) -> Result<OpenListener, Failure> {
        BoundFile::bind(place, MODE, "--listen")?.open()
    }

    #[tokio::test]
    async fn a_socket_is_its_user_s_alone_and_goes_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a.sock");
        let bound = BoundFile::bind(&place, MODE, "--listen").unwrap();
        assert!(!place.exists(), "nobody finds a server that may not start");
        let opened = bound.open().unwrap();
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, MODE);
        UnixStream::connect(&place).unwrap();
        drop(opened);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_stale_file_is_replaced_and_a_live_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a.sock");
        drop(StdListener::bind(&place).unwrap());
        assert!(place.exists(), "a server that was killed leaves its file");
        let opened = open(&place).unwrap();
        UnixStream::connect(&place).unwrap();

        let second = format!("{}", open(&place).unwrap_err());
        assert!(second.contains("listens on unix:"), "{second}");
        assert!(place.exists());
        fs::remove_file(&place).unwrap();
        fs::write(&place, "mine").unwrap();
        drop(opened);
        assert_eq!(fs::read(&place).unwrap(), b"mine", "a file of somebody else stays");
        let third = format!("{}", open(&place).unwrap_err());
        assert!(third.contains("is no socket"), "{third}");
    }

    #[test]
    fn a_path_that_cannot_be_bound_is_told() {
        let folder = tempfile::tempdir().unwrap();
        for place in [folder.path().join("no/a.sock"), folder.path().join("a".repeat(120))] {
            let told = format!("{}", BoundFile::bind(&place, MODE, "--control").unwrap_err());
            assert!(told.contains("cannot listen on unix:"), "{told}");
        }
    }
}
