//! The location of a store: a file, or a database of a PostgreSQL server.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;
use thiserror::Error;

use crate::database::readers::ReaderConnections;

/// Prefixes of a PostgreSQL URL.
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// The location of a store.
#[derive(Clone)]
pub enum Location {
    /// A SQLite file.
    File(PathBuf),
    /// A PostgreSQL database, in which the store has the schema `rolltape`.
    Server(ServerLocation),
}

/// A PostgreSQL database, and the connections that its readers in this process share.
#[derive(Clone)]
pub struct ServerLocation {
    options: Box<PgConnectOptions>,
    /// `None` where every reader has a connection of its own.
    readers: Option<Arc<ReaderConnections>>,
}

impl Location {
    /// The same location. All who read a server by it, and by copies of it, share so many
    /// connections at most; who finds none free in some seconds gets [`crate::OpenError::Busy`].
    #[must_use]
    pub fn with_readers(self, connections_max: usize) -> Self {
        match self {
            Self::Server(server) => {
                let readers = Some(ReaderConnections::new(connections_max));
                Self::Server(ServerLocation { readers, ..server })
            }
            file @ Self::File(_) => file,
        }
    }
}

impl ServerLocation {
    pub(crate) fn new(options: PgConnectOptions) -> Self {
        Self { options: Box::new(options), readers: None }
    }

    pub(crate) fn readers(&self) -> Option<&Arc<ReaderConnections>> {
        self.readers.as_ref()
    }
}

impl Deref for ServerLocation {
    type Target = PgConnectOptions;

    fn deref(&self) -> &PgConnectOptions {
        &self.options
    }
}

/// The reasons for which a name is not the location of a store.
#[derive(Debug, Error)]
pub enum LocationError {
    /// The URL does not parse.
    #[error("invalid PostgreSQL URL; expected postgres://user@host/database")]
    Url(#[source] sqlx::Error),
    /// The URL has another scheme.
    #[error("`{0}` cannot hold a store; expected a file or postgres://user@host/database")]
    Scheme(String),
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if SCHEMES.iter().any(|scheme| name.starts_with(scheme)) {
            let options = name.parse().map_err(LocationError::Url)?;
            return Ok(Self::Server(ServerLocation::new(options)));
        }
        match name.split_once("://") {
            Some((scheme, _)) => Err(LocationError::Scheme(format!("{scheme}://"))),
            None => Ok(Self::File(name.into())),
        }
    }
}

/// Leaves the password out.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Server(server) => {
                let (user, host, port) =
                    (server.get_username(), server.get_host(), server.get_port());
                write!(f, "postgres://{user}@{host}:{port}/")?;
                f.write_str(server.get_database().unwrap_or(user))
            }
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Self {
        location.clone()
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Self {
        Self::File(path.clone())
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_or_a_database_and_never_shows_its_password() {
        let file: Location = "runs/a.db".parse().unwrap();
        assert_eq!(file.to_string(), "runs/a.db");
        let server: Location = "postgresql://me:secret@db.example:6432/runs".parse().unwrap();
        assert_eq!(server.to_string(), "postgres://me@db.example:6432/runs");
        assert!(!format!("{server:?}").contains("secret"));
        let other = "mysql://me:secret@db.example/runs".parse::<Location>().unwrap_err();
        assert!(matches!(&other, LocationError::Scheme(scheme) if scheme == "mysql://"));
        let broken = "postgres://me:secret@db.example:port/x".parse::<Location>().unwrap_err();
        assert!(!broken.to_string().contains("secret"), "{broken}");
    }
}
