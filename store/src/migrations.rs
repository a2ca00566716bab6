//! The migrations of both databases, which are part of the program.
//!
//! They are listed here, not found by `sqlx::migrate!`: for that macro, sqlx and SQLite would be
//! built a second time.

use std::sync::LazyLock;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// The migrations of SQLite.
pub(crate) static SQLITE: LazyLock<Migrator> = LazyLock::new(|| migrator(SQLITE_FILES));
/// The migrations of PostgreSQL.
pub(crate) static POSTGRES: LazyLock<Migrator> = LazyLock::new(|| migrator(POSTGRES_FILES));

/// The files of a folder, by name and with their text.
macro_rules! files {
    ($folder:literal $($name:literal)+) => {
        &[$((
            $name,
            include_str!(concat!("../../migrations/", $folder, "/", $name, ".sql")),
        )),+]
    };
}

type Files = &'static [(&'static str, &'static str)];

const SQLITE_FILES: Files = files! {
    "sqlite"
    "0001_calls"
    "0002_wire"
    "0003_reel"
    "0004_relaxed"
    "0005_writers"
    "0006_reward_scopes"
    "0007_feed"
    "0008_feed_items"
    "0009_waiting"
    "0010_sampled_with"
    "0011_keys"
    "0012_engine"
    "0013_heartbeats"
    "0014_admission"
};

const POSTGRES_FILES: Files = files! {
    "postgres"
    "0001_store"
    "0002_reward_scopes"
    "0003_feed"
    "0004_feed_items"
    "0005_waiting"
    "0006_sampled_with"
    "0007_keys"
    "0008_engine"
    "0009_heartbeats"
    "0010_admission"
};

fn migrator(files: Files) -> Migrator {
    Migrator::with_migrations(files.iter().copied().map(migration).collect())
}

/// A migration from a file such as `0003_feed_items`, as `sqlx::migrate!` would read it.
fn migration((name, sql): (&'static str, &'static str)) -> Migration {
    let (number, description) = name.split_once('_').expect("a number and a name");
    Migration::new(
        number.parse().expect("a file's number"),
        description.replace('_', " ").into(),
        MigrationType::Simple,
        SqlStr::from_static(sql),
        false,
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_is_listed() {
        for (folder, files) in [("sqlite", SQLITE_FILES), ("postgres", POSTGRES_FILES)] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(folder);
            let entries = std::fs::read_dir(path).unwrap();
            let mut found: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            found.sort();

            let listed: Vec<_> = files.iter().map(|(name, _)| format!("{name}.sql")).collect();
            assert_eq!(listed, found, "{folder}");
        }
    }
}
