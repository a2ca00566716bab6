//! A SQLite file, used in the caller's own thread.
//!
//! sqlx runs a thread for each file, and every statement and row crosses to it and back. For the
//! writer, which has a thread of its own, and for a process that only reads, the crossing costs
//! more than the database does: `docs/design/0015-sqlite-drivers.md`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OpenFlags, Statement, ToSql};

use crate::database::value::{Column, Value};

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 64;

/// A connection whose statements run where they are called.
#[derive(Debug)]
pub(crate) struct LocalConnection(Connection);

/// A row, with values of its own.
#[derive(Debug)]
pub(crate) struct LocalRow {
    names: Arc<[String]>,
    values: Vec<SqlValue>,
}

impl LocalConnection {
    /// Opens a file that is known to be a store, for reading only. `busy_wait` bounds the wait for
    /// a lock.
    pub(crate) fn for_reading(path: &Path, busy_wait: Duration) -> Result<Self, sqlx::Error> {
        Self::open(path, OpenFlags::SQLITE_OPEN_READ_ONLY, busy_wait)
    }

    /// The same, for writing.
    pub(crate) fn for_writing(path: &Path, busy_wait: Duration) -> Result<Self, sqlx::Error> {
        Self::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, busy_wait)
    }

    fn open(path: &Path, mode: OpenFlags, busy_wait: Duration) -> Result<Self, sqlx::Error> {
        let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(driver_error)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        let connection = Self(connection);
        connection.wait_for_locks(busy_wait)?;
        Ok(connection)
    }

    /// Bounds the wait for a lock.
    pub(crate) fn wait_for_locks(&self, wait: Duration) -> Result<(), sqlx::Error> {
        self.0.busy_timeout(wait).map_err(driver_error)
    }

    /// Sets a pragma of the connection.
    pub(crate) fn set(&self, pragma: &str, value: impl ToSql) -> Result<(), sqlx::Error> {
        self.0.pragma_update(None, pragma, value).map_err(driver_error)
    }

    /// Runs a statement without values and ignores its rows.
    pub(crate) fn run(&self, sql: &str) -> Result<(), sqlx::Error> {
        let mut statement = self.0.prepare_cached(sql).map_err(driver_error)?;
        let mut rows = statement.raw_query();
        while rows.next().map_err(driver_error)?.is_some() {}
        Ok(())
    }

    /// Runs a statement with the next values, one for each `?`. Its first row, if it has any.
    pub(crate) fn step(
        &self,
        sql: &str,
        values: &mut impl Iterator<Item = Value>,
    ) -> Result<Option<LocalRow>, sqlx::Error> {
        let mut statement = self.0.prepare_cached(sql).map_err(driver_error)?;
        for (place, value) in (1..=statement.parameter_count()).zip(values) {
            bind_one(&mut statement, place, &value).map_err(driver_error)?;
        }
        Ok(rows_of(&mut statement, 1)?.pop())
    }

    /// The rows of a statement, `rows_max` at most.
    pub(crate) fn fetch(
        &self,
        sql: &str,
        values: &[Value],
        rows_max: usize,
    ) -> Result<Vec<LocalRow>, sqlx::Error> {
        let mut statement = self.0.prepare_cached(sql).map_err(driver_error)?;
        bind(&mut statement, values).map_err(driver_error)?;
        rows_of(&mut statement, rows_max)
    }
}

/// Runs a statement to its end, and returns its first rows.
fn rows_of(statement: &mut Statement<'_>, rows_max: usize) -> Result<Vec<LocalRow>, sqlx::Error> {
    let names: Arc<[String]> = statement.column_names().into_iter().map(str::to_owned).collect();
    let (mut found, mut rows) = (Vec::new(), statement.raw_query());
    while let Some(row) = rows.next().map_err(driver_error)? {
        if found.len() == rows_max {
            break;
        }
        let values = (0..names.len()).map(|at| row.get(at)).collect::<Result<_, _>>();
        found.push(LocalRow { names: Arc::clone(&names), values: values.map_err(driver_error)? });
    }
    Ok(found)
}

/// Binds the n-th value to every `$n`, in whatever order the statement names them.
fn bind(statement: &mut Statement<'_>, values: &[Value]) -> rusqlite::Result<()> {
    for place in 1..=statement.parameter_count() {
        let name = statement.parameter_name(place);
        let number = name.and_then(|name| name.strip_prefix('$')?.parse::<usize>().ok());
        if let Some(value) = number.and_then(|number| values.get(number.checked_sub(1)?)) {
            bind_one(statement, place, value)?;
        }
    }
    Ok(())
}

fn bind_one(statement: &mut Statement<'_>, place: usize, value: &Value) -> rusqlite::Result<()> {
    match value {
        Value::Integer(value) => statement.raw_bind_parameter(place, value),
        Value::Real(value) => statement.raw_bind_parameter(place, value),
        Value::Text(value) => statement.raw_bind_parameter(place, value),
        Value::Bytes(value) => statement.raw_bind_parameter(place, value),
    }
}

fn driver_error(error: rusqlite::Error) -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(error))
}

impl LocalRow {
    /// The value of a column.
    pub(crate) fn get<'r, T: FromSqlValue<'r>>(
        &'r self,
        column: &Column<'_>,
    ) -> Result<T, sqlx::Error> {
        let value = self.value(column)?;
        T::from_value(value).ok_or_else(|| sqlx::Error::ColumnDecode {
            index: column.name().to_owned(),
            source: format!("it holds {:?}", value.data_type()).into(),
        })
    }

    fn value(&self, column: &Column<'_>) -> Result<&SqlValue, sqlx::Error> {
        let index = match column {
            Column::First => Some(0),
            Column::Named(name) => self.names.iter().position(|known| known == name),
        };
        index
            .and_then(|index| self.values.get(index))
            .ok_or_else(|| sqlx::Error::ColumnNotFound(column.name().to_owned()))
    }
}

/// A type that a SQLite value decodes to; `None` where the value is of another type.
pub(crate) trait FromSqlValue<'r>: Sized {
    fn from_value(value: &'r SqlValue) -> Option<Self>;
}

impl FromSqlValue<'_> for i64 {
    fn from_value(value: &SqlValue) -> Option<Self> {
        match value {
            SqlValue::Integer(integer) => Some(*integer),
            _ => None,
        }
    }
}

impl FromSqlValue<'_> for bool {
    fn from_value(value: &SqlValue) -> Option<Self> {
        i64::from_value(value).map(|integer| integer != 0)
    }
}

impl FromSqlValue<'_> for f64 {
    fn from_value(value: &SqlValue) -> Option<Self> {
        match value {
            SqlValue::Real(real) => Some(*real),
            _ => None,
        }
    }
}

impl FromSqlValue<'_> for String {
    fn from_value(value: &SqlValue) -> Option<Self> {
        match value {
            SqlValue::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl<'r> FromSqlValue<'r> for &'r [u8] {
    fn from_value(value: &'r SqlValue) -> Option<Self> {
        match value {
            SqlValue::Blob(bytes) => Some(bytes),
            SqlValue::Text(text) => Some(text.as_bytes()),
            _ => None,
        }
    }
}

impl<'r> FromSqlValue<'r> for Vec<u8> {
    fn from_value(value: &'r SqlValue) -> Option<Self> {
        <&[u8]>::from_value(value).map(<[u8]>::to_vec)
    }
}

impl<'r, T: FromSqlValue<'r>> FromSqlValue<'r> for Option<T> {
    fn from_value(value: &'r SqlValue) -> Option<Self> {
        match value {
            SqlValue::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::database::query::query;
    use crate::site::Site;
    use crate::tests::{begun, ended};
    use crate::{Selection, Snapshot};

    #[tokio::test]
    async fn either_way_of_reading_a_file_gives_the_same() {
        let site = Site::file();
        let (store, writer) = site.open().await;
        for at in 0..3 {
            let begun = begun("a", at);
            let ended = ended(begun.call_id);
            store.begin(begun).await.done().await.unwrap();
            if at < 2 {
                store.end(ended).await.done().await.unwrap();
            }
        }
        let reward = episode::Reward {
            scope: episode::RewardScope::Episode,
            name: "reward".into(),
            value: Some(0.25),
            source: "test".into(),
            at: 1,
        };
        store.reward(("a".parse().unwrap(), 0), reward).await.unwrap();
        drop(store);
        writer.finish().await;
        let mut remote = Snapshot::open(&site.at).await.unwrap();
        let mut local = Snapshot::open_here(&site.at).await.unwrap();
        let only = Selection { episode: Some("a".parse().unwrap()), ..Selection::default() };
        let episodes = remote.episodes(&only).await.unwrap();
        assert_eq!(local.episodes(&only).await.unwrap(), episodes);
        let calls = remote.calls(&episodes[0]).await.unwrap();
        assert_eq!((calls.len(), local.calls(&episodes[0]).await.unwrap()), (3, calls));
        let rewards = remote.rewards(&episodes[0]).await.unwrap();
        assert_eq!((rewards.len(), local.rewards(&episodes[0]).await.unwrap()), (1, rewards));
    }

    #[tokio::test]
    async fn its_moment_is_fixed_it_writes_nothing_and_says_what_is_wrong() {
        let site = Site::file();
        let (store, writer) = site.open().await;
        store.begin(begun("a", 1)).await.done().await.unwrap();
        let mut local = Snapshot::open_here(&site.at).await.unwrap();
        store.begin(begun("b", 2)).await.done().await.unwrap();
        assert_eq!(local.episodes(&Selection::default()).await.unwrap().len(), 1);
        let connection = local.connection();
        assert!(query("DELETE FROM call").execute(connection).await.is_err());
        let row = query("SELECT $2 AS b, $1 AS a, NULL AS c").bind("x").bind(7);
        let row = row.fetch_one(connection).await.unwrap();
        assert_eq!(row.try_get::<i64>("b").unwrap(), 7);
        assert_eq!(row.try_get::<String>("a").unwrap(), "x");
        assert_eq!(row.try_get::<Option<f64>>("c").unwrap(), None);
        assert!(matches!(row.try_get::<i64>("c"), Err(sqlx::Error::ColumnDecode { .. })));
        assert!(matches!(row.try_get::<i64>("a"), Err(sqlx::Error::ColumnDecode { .. })));
        assert!(matches!(row.try_get::<i64>("d"), Err(sqlx::Error::ColumnNotFound(_))));
        drop(store);
        writer.finish().await;
    }
}
