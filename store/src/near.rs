//! Near: a file of SQLite's, read in the thread that asks.
//!
//! sqlx has a thread of its own for each file, and every value of a row goes from there to here.
//! Where nothing else waits for this thread, that costs more than the reading itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Value as Held;
use rusqlite::{Connection, OpenFlags, Statement};

use crate::fields::Column;
use crate::query::Value;

/// Statements that are kept ready.
const STATEMENTS: usize = 32;

/// A connection.
#[derive(Debug)]
pub(crate) struct Near(Connection);

/// A row, with values of its own.
#[derive(Debug)]
pub(crate) struct NearRow {
    names: Arc<[String]>,
    values: Vec<Held>,
}

/// Opens a file that was looked at before.
pub(crate) fn open(path: &Path, wait: Duration, cache_kib: u32) -> Result<Near, sqlx::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(refused)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.busy_timeout(wait).map_err(refused)?;
    // Less than nothing is KiB, not pages.
    let cache = -i64::from(cache_kib);
    connection.pragma_update(None, "cache_size", cache).map_err(refused)?;
    Ok(Near(connection))
}

impl Near {
    /// Runs statements that have no values and give no rows that are wanted.
    pub(crate) fn run(&self, sql: &str) -> Result<(), sqlx::Error> {
        self.0.execute_batch(sql).map_err(refused)
    }

    /// All rows of a statement, or so many.
    pub(crate) fn fetch(
        &self,
        sql: &str,
        values: Vec<Value>,
        most: usize,
    ) -> Result<Vec<NearRow>, sqlx::Error> {
        let mut statement = self.0.prepare_cached(sql).map_err(refused)?;
        bind(&mut statement, values).map_err(refused)?;
        let names: Arc<[String]> =
            statement.column_names().into_iter().map(str::to_owned).collect();
        let (mut found, mut rows) = (Vec::new(), statement.raw_query());
        while found.len() < most
            && let Some(row) = rows.next().map_err(refused)?
        {
            let values = (0..names.len()).map(|at| row.get(at)).collect::<Result<_, _>>();
            found.push(NearRow { names: Arc::clone(&names), values: values.map_err(refused)? });
        }
        Ok(found)
    }
}

/// The value of `$n` is the one numbered n, wherever it stands.
fn bind(statement: &mut Statement<'_>, values: Vec<Value>) -> rusqlite::Result<()> {
    for (number, value) in (1..).zip(values) {
        let Some(place) = statement.parameter_index(&format!("${number}"))? else { continue };
        match value {
            Value::Integer(value) => statement.raw_bind_parameter(place, value),
            Value::Real(value) => statement.raw_bind_parameter(place, value),
            Value::Text(value) => statement.raw_bind_parameter(place, value),
            Value::Bytes(value) => statement.raw_bind_parameter(place, value),
        }?;
    }
    Ok(())
}

fn refused(error: rusqlite::Error) -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(error))
}

impl NearRow {
    fn held(&self, column: &Column<'_>) -> Result<&Held, sqlx::Error> {
        let at = match column {
            Column::First => Some(0),
            Column::Named(name) => self.names.iter().position(|known| known == name),
        };
        let missing = || sqlx::Error::ColumnNotFound(column.name().to_owned());
        at.and_then(|at| self.values.get(at)).ok_or_else(missing)
    }

    /// The value of a column.
    pub(crate) fn get<'r, T: FromHeld<'r>>(
        &'r self,
        column: &Column<'_>,
    ) -> Result<T, sqlx::Error> {
        let held = self.held(column)?;
        T::from_held(held).ok_or_else(|| sqlx::Error::ColumnDecode {
            index: column.name().to_owned(),
            source: format!("it holds {:?}", held.data_type()).into(),
        })
    }
}

/// What a value can be read as; none where it is of another type.
pub(crate) trait FromHeld<'r>: Sized {
    fn from_held(held: &'r Held) -> Option<Self>;
}

impl FromHeld<'_> for i64 {
    fn from_held(held: &Held) -> Option<Self> {
        match held {
            Held::Integer(value) => Some(*value),
            _ => None,
        }
    }
}

impl FromHeld<'_> for bool {
    fn from_held(held: &Held) -> Option<Self> {
        i64::from_held(held).map(|value| value != 0)
    }
}

impl FromHeld<'_> for f64 {
    fn from_held(held: &Held) -> Option<Self> {
        match held {
            Held::Real(value) => Some(*value),
            _ => None,
        }
    }
}

impl FromHeld<'_> for String {
    fn from_held(held: &Held) -> Option<Self> {
        match held {
            Held::Text(value) => Some(value.clone()),
            _ => None,
        }
    }
}

impl<'r> FromHeld<'r> for &'r [u8] {
    fn from_held(held: &'r Held) -> Option<Self> {
        match held {
            Held::Blob(value) => Some(value),
            Held::Text(value) => Some(value.as_bytes()),
            _ => None,
        }
    }
}

impl<'r> FromHeld<'r> for Vec<u8> {
    fn from_held(held: &'r Held) -> Option<Self> {
        <&[u8]>::from_held(held).map(<[u8]>::to_vec)
    }
}

impl<'r, T: FromHeld<'r>> FromHeld<'r> for Option<T> {
    fn from_held(held: &'r Held) -> Option<Self> {
        match held {
            Held::Null => Some(None),
            held => T::from_held(held).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::query::query;
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
        let mut far = Snapshot::open(&site.at).await.unwrap();
        let mut near = Snapshot::open_here(&site.at).await.unwrap();
        let only = Selection { episode: Some("a".parse().unwrap()), ..Selection::default() };
        let episodes = far.episodes(&only).await.unwrap();
        assert_eq!(near.episodes(&only).await.unwrap(), episodes);
        let calls = far.calls(&episodes[0]).await.unwrap();
        assert_eq!((calls.len(), near.calls(&episodes[0]).await.unwrap()), (3, calls));
        let rewards = far.rewards(&episodes[0]).await.unwrap();
        assert_eq!((rewards.len(), near.rewards(&episodes[0]).await.unwrap()), (1, rewards));
    }

    #[tokio::test]
    async fn its_moment_is_fixed_it_writes_nothing_and_says_what_is_wrong() {
        let site = Site::file();
        let (store, writer) = site.open().await;
        store.begin(begun("a", 1)).await.done().await.unwrap();
        let mut near = Snapshot::open_here(&site.at).await.unwrap();
        store.begin(begun("b", 2)).await.done().await.unwrap();
        assert_eq!(near.episodes(&Selection::default()).await.unwrap().len(), 1);
        let link = near.connection();
        assert!(query("DELETE FROM call").execute(link).await.is_err());
        let row = query("SELECT $2 AS b, $1 AS a, NULL AS c").bind("x").bind(7);
        let row = row.fetch_one(link).await.unwrap();
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
