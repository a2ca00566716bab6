//! Several statements in one go: each trip to SQLite's own thread costs more than a small insert.

use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Encode, Sqlite, SqliteConnection, Type};

/// Statements with their values, in order. A value stands for each `?`.
#[derive(Default)]
pub(crate) struct Batch {
    sql: String,
    values: SqliteArguments,
    failed: Option<BoxDynError>,
}

impl Batch {
    /// Adds a statement.
    pub(crate) fn then(&mut self, sql: &'static str) -> &mut Self {
        if !self.sql.is_empty() {
            self.sql.push_str("; ");
        }
        self.sql.push_str(sql);
        self
    }

    /// Adds the next value.
    pub(crate) fn bind<'v, T: Encode<'v, Sqlite> + Type<Sqlite>>(&mut self, value: T) -> &mut Self {
        if let Err(error) = self.values.add(value) {
            self.failed.get_or_insert(error);
        }
        self
    }

    /// Runs all of it.
    pub(crate) async fn run(self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        if let Some(error) = self.failed {
            return Err(sqlx::Error::Encode(error));
        }
        let all = sqlx::query_with(AssertSqlSafe(self.sql), self.values);
        all.execute(connection).await.map(drop)
    }

    /// Runs all of it; only the last one gives a row.
    pub(crate) async fn run_to_row(
        self,
        connection: &mut SqliteConnection,
    ) -> Result<SqliteRow, sqlx::Error> {
        if let Some(error) = self.failed {
            return Err(sqlx::Error::Encode(error));
        }
        sqlx::query_with(AssertSqlSafe(self.sql), self.values).fetch_one(connection).await
    }
}
