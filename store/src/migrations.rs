//! The migrations of both databases, which are part of the program.
//!
//! The table `_sqlx_migrations` has those that were applied, with their checksums; the newest one
//! is the format of the store. An earlier history, of 14 migrations for a file and 10 for a server,
//! came to the tables that migration 15 makes at once. Its last format is converted by putting the
//! one row in the place of all.

use crate::database::connection::StoreConnection;
use crate::database::local::LocalConnection;
use crate::database::query::query;
use crate::database::value::Value;
use crate::error::OpenError;

/// A numbered change of the tables.
#[derive(Debug)]
struct Migration {
    number: i64,
    name: &'static str,
    sql: &'static str,
}

/// The migrations of a database.
#[derive(Debug)]
pub(crate) struct Migrations {
    list: &'static [Migration],
    /// The last format of the earlier history.
    former: i64,
    /// Makes the table of applied migrations.
    table: &'static str,
}

/// The format of a store, as against the newest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormatState {
    /// It is the newest.
    Newest,
    /// Migrations are missing, or all: the process that made the store died before the first one.
    Behind,
    /// It is the last one of the earlier history.
    Former,
}

/// A migration from the folder of a database.
macro_rules! migration {
    ($folder:literal, $number:literal, $name:literal) => {
        Migration {
            number: $number,
            name: $name,
            sql: include_str!(concat!(
                "../../migrations/",
                $folder,
                "/00",
                $number,
                "_",
                $name,
                ".sql"
            )),
        }
    };
}

/// The migrations of a file.
pub(crate) static SQLITE: Migrations = Migrations {
    list: &[
        migration!("sqlite", 15, "store"),
        migration!("sqlite", 16, "annotations"),
        migration!("sqlite", 17, "continued"),
        migration!("sqlite", 18, "unsettled"),
        migration!("sqlite", 19, "prune"),
        migration!("sqlite", 20, "lists"),
        migration!("sqlite", 21, "sealed"),
        migration!("sqlite", 22, "parts"),
        migration!("sqlite", 23, "provenance"),
        migration!("sqlite", 24, "replay"),
        migration!("sqlite", 25, "replays"),
        migration!("sqlite", 26, "late"),
        migration!("sqlite", 27, "comments"),
        migration!("sqlite", 28, "filters"),
    ],
    former: 14,
    table: "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, \
            description TEXT NOT NULL, installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, \
            success BOOLEAN NOT NULL, checksum BLOB NOT NULL, execution_time BIGINT NOT NULL)",
};

/// The migrations of a server's database.
pub(crate) static POSTGRES: Migrations = Migrations {
    list: &[
        migration!("postgres", 15, "store"),
        migration!("postgres", 16, "annotations"),
        migration!("postgres", 17, "continued"),
        migration!("postgres", 18, "unsettled"),
        migration!("postgres", 19, "prune"),
        migration!("postgres", 20, "lists"),
        migration!("postgres", 21, "sealed"),
        migration!("postgres", 22, "parts"),
        migration!("postgres", 23, "provenance"),
        migration!("postgres", 24, "replay"),
        migration!("postgres", 25, "replays"),
        migration!("postgres", 26, "late"),
        migration!("postgres", 27, "comments"),
        migration!("postgres", 28, "filters"),
    ],
    former: 10,
    table: "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, \
            description TEXT NOT NULL, installed_on TIMESTAMPTZ NOT NULL DEFAULT now(), \
            success BOOLEAN NOT NULL, checksum BYTEA NOT NULL, execution_time BIGINT NOT NULL)",
};

const APPLIED: &str = "SELECT version, checksum FROM _sqlx_migrations";
const APPLY: &str = "INSERT INTO _sqlx_migrations \
    (version, description, success, checksum, execution_time) VALUES ($1, $2, TRUE, $3, 0)";
const FORGET_FORMER: &str = "DELETE FROM _sqlx_migrations WHERE version < $1";
/// The newest migration that was applied.
pub(crate) const FORMAT: &str = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations";

impl Migrations {
    /// Compares the format of the store `name`, 0 where it has none yet.
    ///
    /// # Errors
    /// [`OpenError::Newer`] and [`OpenError::TooOld`] where this version cannot use it.
    pub(crate) fn compare(&self, name: &str, format: i64) -> Result<FormatState, OpenError> {
        let (first, newest) = (self.first().number, self.newest());
        match format {
            _ if format == newest => Ok(FormatState::Newest),
            _ if format > newest => Err(OpenError::Newer(name.to_owned(), format)),
            _ if format == 0 || format >= first => Ok(FormatState::Behind),
            _ if format == self.former => Ok(FormatState::Former),
            _ => Err(OpenError::TooOld(name.to_owned(), format)),
        }
    }

    /// The number of the newest migration.
    pub(crate) fn newest(&self) -> i64 {
        self.list.last().map_or(0, |migration| migration.number)
    }

    fn first(&self) -> &'static Migration {
        &self.list[0]
    }

    /// The migrations that were not applied yet.
    fn missing(&self, applied: &[(i64, Vec<u8>)]) -> Result<Vec<&'static Migration>, sqlx::Error> {
        let mut missing = Vec::new();
        for migration in self.list {
            match applied.iter().find(|(number, _)| *number == migration.number) {
                None => missing.push(migration),
                Some((_, checksum)) if *checksum == migration.checksum() => {}
                Some((number, _)) => {
                    let changed = format!("migration {number} was changed after it was applied");
                    return Err(sqlx::Error::Configuration(changed.into()));
                }
            }
        }
        Ok(missing)
    }
}

impl Migration {
    fn checksum(&self) -> Vec<u8> {
        blake3::hash(self.sql.as_bytes()).as_bytes().to_vec()
    }

    /// The values of [`APPLY`].
    fn row(&self) -> Vec<Value> {
        vec![self.number.into(), self.name.into(), self.checksum().into()]
    }
}

/// Applies to a file what it lacks, all or nothing.
pub(crate) fn migrate_file(file: &LocalConnection) -> Result<(), sqlx::Error> {
    file.run("BEGIN IMMEDIATE")?;
    file.run(SQLITE.table)?;
    let rows = file.fetch(APPLIED, &[], usize::MAX)?;
    let applied: Result<Vec<_>, sqlx::Error> =
        rows.iter().map(|row| Ok((row.named("version")?, row.named("checksum")?))).collect();
    for migration in SQLITE.missing(&applied?)? {
        file.run_all(migration.sql)?;
        file.fetch(APPLY, &migration.row(), 1)?;
    }
    file.run("COMMIT")
}

/// Applies to a server's database what it lacks, all or nothing.
pub(crate) async fn migrate_server(server: &mut StoreConnection) -> Result<(), sqlx::Error> {
    server.begin().await?;
    server.run("CREATE SCHEMA IF NOT EXISTS rolltape").await?;
    server.run(POSTGRES.table).await?;
    let rows = query(APPLIED).fetch_all(server).await?;
    let applied: Result<Vec<_>, sqlx::Error> =
        rows.iter().map(|row| Ok((row.try_get("version")?, row.try_get("checksum")?))).collect();
    for migration in POSTGRES.missing(&applied?)? {
        server.run(migration.sql).await?;
        query(APPLY).bind_all(migration.row()).execute(server).await?;
    }
    server.commit().await
}

/// Puts the first migration in the place of the earlier history of a file.
pub(crate) fn convert_file(file: &LocalConnection) -> Result<(), sqlx::Error> {
    let first = SQLITE.first();
    file.run("BEGIN IMMEDIATE")?;
    file.fetch(FORGET_FORMER, &[first.number.into()], 1)?;
    file.fetch(APPLY, &first.row(), 1)?;
    file.run("COMMIT")
}

/// Puts the first migration in the place of the earlier history of a server's database.
pub(crate) async fn convert_server(server: &mut StoreConnection) -> Result<(), sqlx::Error> {
    let first = POSTGRES.first();
    server.begin().await?;
    query(FORGET_FORMER).bind(first.number).execute(server).await?;
    query(APPLY).bind_all(first.row()).execute(server).await?;
    server.commit().await
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_is_listed() {
        for (folder, migrations) in [("sqlite", &SQLITE), ("postgres", &POSTGRES)] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(folder);
            let entries = std::fs::read_dir(path).unwrap();
            let mut found: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            found.sort();

            let file = |one: &Migration| format!("{:04}_{}.sql", one.number, one.name);
            let listed: Vec<_> = migrations.list.iter().map(file).collect();
            assert_eq!(listed, found, "{folder}");
        }
    }

    #[test]
    fn a_format_is_used_migrated_converted_or_refused() {
        let state = |format| SQLITE.compare("a.db", format);
        assert_eq!(state(SQLITE.newest()).unwrap(), FormatState::Newest);
        assert_eq!(state(0).unwrap(), FormatState::Behind);
        assert_eq!(state(14).unwrap(), FormatState::Former);
        assert!(matches!(state(13), Err(OpenError::TooOld(_, 13))));
        assert!(matches!(state(9000), Err(OpenError::Newer(_, 9000))));
        assert_eq!(POSTGRES.compare("a", 10).unwrap(), FormatState::Former);
    }

    #[test]
    fn a_migration_that_was_changed_is_refused() {
        let applied = |checksum| SQLITE.missing(&[(15, checksum)]);
        let rest = SQLITE.list.len() - 1;
        assert_eq!(applied(SQLITE.first().checksum()).unwrap().len(), rest);
        assert!(applied(vec![7]).is_err());
    }
}
