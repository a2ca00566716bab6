//! Places for the stores of tests: a file, and a database of a server where there is one.

use postgres_kit::Server;
use tempfile::TempDir;

use crate::{Durability, Location, Snapshot, Store, Writer};

/// A place that is empty at first.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) at: Location,
    _folder: Option<TempDir>,
}

/// Runs a test for each database that can hold a store.
pub(crate) async fn on_both(test: impl AsyncFn(Site)) {
    for site in sites() {
        println!("at {}", site.at);
        test(site).await;
    }
}

/// One of each kind.
pub(crate) fn sites() -> Vec<Site> {
    let server = Server::shared().map(Site::of_server);
    [Some(Site::file()), server].into_iter().flatten().collect()
}

impl Site {
    pub(crate) fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { at: folder.path().join("a.db").into(), _folder: Some(folder) }
    }

    pub(crate) fn of_server(server: &Server) -> Self {
        Self { at: server.database().parse().unwrap(), _folder: None }
    }

    pub(crate) fn at(place: impl Into<Location>) -> Self {
        Self { at: place.into(), _folder: None }
    }

    /// The name that a server gives its database.
    pub(crate) fn name(&self) -> String {
        self.at.to_string().rsplit('/').next().unwrap().to_owned()
    }

    pub(crate) async fn open(&self) -> (Store, Writer) {
        self.open_as(Durability::Power).await
    }

    pub(crate) async fn open_as(&self, durability: Durability) -> (Store, Writer) {
        Store::open(&self.at, durability).await.unwrap()
    }

    pub(crate) async fn snapshot(&self) -> Snapshot {
        Snapshot::open(&self.at).await.unwrap()
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.at, Location::File(_))
    }
}
