//! A SQLite file, used in the caller's own thread.
//!
//! The writer has a thread of its own, and so has a process that only reads: a trip to another
//! thread for each statement would cost more than the database does.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, Statement, ToSql};

use crate::database::value::{Column, Value};

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 64;

/// A connection whose statements run where they are called.
#[derive(Debug)]
pub(crate) struct LocalConnection(Connection);

/// A row of a result.
#[derive(Debug)]
pub(crate) struct LocalRow {
    result: Arc<LocalResult>,
    /// The row's first cell.
    start: usize,
}

/// The rows of a statement. Their values lie side by side: an allocation for each text of each row
/// takes as long as reading it.
#[derive(Debug, Default)]
struct LocalResult {
    names: Vec<String>,
    cells: Vec<Cell>,
    /// The bytes of all texts and blobs.
    bytes: Vec<u8>,
    /// The column behind the one that was read last, where the next is looked for first: columns
    /// are mostly read in their order.
    next: AtomicUsize,
}

/// A value of a row.
#[derive(Debug, Clone)]
enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(Range<usize>),
    Blob(Range<usize>),
}

impl LocalConnection {
    /// Opens a file that is known to be a store, for reading only. `busy_wait` bounds the wait for
    /// a lock.
    pub(crate) fn for_reading(path: &Path, busy_wait: Duration) -> Result<Self, sqlx::Error> {
        Self::open(path, OpenFlags::SQLITE_OPEN_READ_ONLY, busy_wait)
    }

    /// The same, for writing. There must be a file, but it may be empty.
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

    /// Runs several statements without values, one after the other.
    pub(crate) fn run_all(&self, sql: &str) -> Result<(), sqlx::Error> {
        self.0.execute_batch(sql).map_err(driver_error)
    }

    /// The number in the first row of a statement without values.
    pub(crate) fn number(&self, sql: &str) -> Result<i64, sqlx::Error> {
        let row = self.fetch(sql, &[], 1)?.pop().ok_or(sqlx::Error::RowNotFound)?;
        row.get(&Column::First)
    }

    /// The key of the row that was inserted last.
    pub(crate) fn last_key(&self) -> i64 {
        self.0.last_insert_rowid()
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

impl LocalConnection {
    /// The columns of a statement without values, and its rows, `rows_max` at most.
    pub(crate) fn table(
        &self,
        sql: &str,
        rows_max: usize,
    ) -> rusqlite::Result<(Vec<String>, Vec<Vec<SqlValue>>)> {
        let mut statement = self.0.prepare(sql)?;
        let columns: Vec<String> =
            statement.column_names().into_iter().map(str::to_owned).collect();
        let rows =
            statement.query_map((), |row| (0..columns.len()).map(|at| row.get(at)).collect());
        let found: rusqlite::Result<_> = rows?.take(rows_max).collect();
        Ok((columns, found?))
    }
}

/// Runs a statement to its end, and returns its first rows.
fn rows_of(statement: &mut Statement<'_>, rows_max: usize) -> Result<Vec<LocalRow>, sqlx::Error> {
    if statement.column_count() == 0 {
        let mut rows = statement.raw_query();
        while rows.next().map_err(driver_error)?.is_some() {}
        return Ok(Vec::new());
    }
    let names = statement.column_names().into_iter().map(str::to_owned).collect();
    let mut result = LocalResult { names, ..LocalResult::default() };
    let (mut count, mut rows) = (0, statement.raw_query());
    while let Some(row) = rows.next().map_err(driver_error)? {
        if count == rows_max {
            break;
        }
        count += 1;
        for column in 0..result.names.len() {
            result.push(row.get_ref(column).map_err(driver_error)?);
        }
    }

    let (columns, result) = (result.names.len(), Arc::new(result));
    let row = |at| LocalRow { result: Arc::clone(&result), start: at * columns };
    Ok((0..count).map(row).collect())
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

/// True if SQLite does not take a file for a database.
pub(crate) fn is_no_database(error: &sqlx::Error) -> bool {
    let sqlx::Error::AnyDriverError(error) = error else { return false };
    let error = error.downcast_ref::<rusqlite::Error>();
    error.and_then(rusqlite::Error::sqlite_error_code) == Some(ErrorCode::NotADatabase)
}

fn driver_error(error: rusqlite::Error) -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(error))
}

impl LocalResult {
    /// Adds the next value.
    fn push(&mut self, value: ValueRef<'_>) {
        let cell = match value {
            ValueRef::Null => Cell::Null,
            ValueRef::Integer(integer) => Cell::Integer(integer),
            ValueRef::Real(real) => Cell::Real(real),
            ValueRef::Text(text) => Cell::Text(self.push_bytes(text)),
            ValueRef::Blob(blob) => Cell::Blob(self.push_bytes(blob)),
        };
        self.cells.push(cell);
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// The number of the column of a name.
    fn column(&self, name: &str) -> Option<usize> {
        let next = self.next.load(Ordering::Relaxed).min(self.names.len());
        let (before, behind) = self.names.split_at(next);
        let found = behind.iter().position(|known| known == name).map(|at| next + at);
        let found = found.or_else(|| before.iter().position(|known| known == name))?;
        self.next.store(found + 1, Ordering::Relaxed);
        Some(found)
    }

    fn value(&self, cell: usize) -> ValueRef<'_> {
        match &self.cells[cell] {
            Cell::Null => ValueRef::Null,
            Cell::Integer(integer) => ValueRef::Integer(*integer),
            Cell::Real(real) => ValueRef::Real(*real),
            Cell::Text(range) => ValueRef::Text(&self.bytes[range.clone()]),
            Cell::Blob(range) => ValueRef::Blob(&self.bytes[range.clone()]),
        }
    }
}

impl LocalRow {
    /// The value of the column `name`.
    pub(crate) fn named<'r, T: FromSqlValue<'r>>(&'r self, name: &str) -> Result<T, sqlx::Error> {
        self.get(&Column::Named(name))
    }

    /// The value of a column.
    pub(crate) fn get<'r, T: FromSqlValue<'r>>(
        &'r self,
        column: &Column<'_>,
    ) -> Result<T, sqlx::Error> {
        let value = self.value(column)?;
        T::from_value(value).ok_or_else(|| sqlx::Error::ColumnDecode {
            index: column.name().to_owned(),
            source: describe(value).into(),
        })
    }

    fn value(&self, column: &Column<'_>) -> Result<ValueRef<'_>, sqlx::Error> {
        let index = match column {
            Column::First => (!self.result.names.is_empty()).then_some(0),
            Column::Named(name) => self.result.column(name),
        };
        let found = index.map(|index| self.result.value(self.start + index));
        found.ok_or_else(|| sqlx::Error::ColumnNotFound(column.name().to_owned()))
    }
}

/// Says what a value is that is not of the type that was asked for.
fn describe(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Text(text) if std::str::from_utf8(text).is_err() => {
            "it holds a text that is not UTF-8".to_owned()
        }
        value => format!("it holds {:?}", value.data_type()),
    }
}

/// A type that a SQLite value decodes to; `None` where the value is of another type.
pub(crate) trait FromSqlValue<'r>: Sized {
    fn from_value(value: ValueRef<'r>) -> Option<Self>;
}

impl FromSqlValue<'_> for i64 {
    fn from_value(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Integer(integer) => Some(integer),
            _ => None,
        }
    }
}

impl FromSqlValue<'_> for bool {
    fn from_value(value: ValueRef<'_>) -> Option<Self> {
        i64::from_value(value).map(|integer| integer != 0)
    }
}

impl FromSqlValue<'_> for f64 {
    fn from_value(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Real(real) => Some(real),
            _ => None,
        }
    }
}

impl FromSqlValue<'_> for String {
    fn from_value(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Text(text) => std::str::from_utf8(text).ok().map(str::to_owned),
            _ => None,
        }
    }
}

impl<'r> FromSqlValue<'r> for &'r [u8] {
    fn from_value(value: ValueRef<'r>) -> Option<Self> {
        match value {
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl<'r> FromSqlValue<'r> for Vec<u8> {
    fn from_value(value: ValueRef<'r>) -> Option<Self> {
        <&[u8]>::from_value(value).map(<[u8]>::to_vec)
    }
}

impl<'r, T: FromSqlValue<'r>> FromSqlValue<'r> for Option<T> {
    fn from_value(value: ValueRef<'r>) -> Option<Self> {
        match value {
            ValueRef::Null => Some(None),
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
            provenance: episode::Provenance::default(),
        };
        store.reward("a/0".parse().unwrap(), reward).await.unwrap();
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
