//! Statements in the words that both databases know: values are `$1`, `$2`, ...

use std::borrow::Cow;

use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, Postgres, SqlSafeStr, SqlStr, Sqlite};

use crate::fields::{Field, Row};
use crate::link::Link;

/// A value of a statement; `None` is null.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Integer(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// A statement with its values.
#[derive(Debug)]
pub(crate) struct Query {
    sql: Cow<'static, str>,
    values: Vec<Value>,
}

/// A statement without values.
pub(crate) fn query(sql: impl Into<Cow<'static, str>>) -> Query {
    Query { sql: sql.into(), values: Vec::new() }
}

impl Query {
    /// A statement with all its values.
    pub(crate) fn with(sql: String, values: Vec<Value>) -> Self {
        Self { sql: sql.into(), values }
    }

    /// Adds the next value.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Runs it.
    pub(crate) async fn execute(self, link: &mut Link) -> Result<(), sqlx::Error> {
        match link {
            Link::File(to) => {
                let (sql, values) = self.for_sqlite()?;
                sqlx::query_with::<Sqlite, _>(sql, values).execute(to).await.map(drop)
            }
            Link::Server(to) => {
                let (sql, values) = self.for_postgres()?;
                sqlx::query_with::<Postgres, _>(sql, values).execute(&mut **to).await.map(drop)
            }
            Link::Near(to) => to.fetch(&self.sql, self.values, usize::MAX).map(drop),
        }
    }

    /// All rows.
    pub(crate) async fn fetch_all(self, link: &mut Link) -> Result<Vec<Row>, sqlx::Error> {
        match link {
            Link::File(to) => {
                let (sql, values) = self.for_sqlite()?;
                let rows = sqlx::query_with::<Sqlite, _>(sql, values).fetch_all(to).await?;
                Ok(rows.into_iter().map(Row::File).collect())
            }
            Link::Server(to) => {
                let (sql, values) = self.for_postgres()?;
                let rows = sqlx::query_with::<Postgres, _>(sql, values).fetch_all(&mut **to);
                Ok(rows.await?.into_iter().map(Row::Server).collect())
            }
            Link::Near(to) => {
                let rows = to.fetch(&self.sql, self.values, usize::MAX)?;
                Ok(rows.into_iter().map(Row::Near).collect())
            }
        }
    }

    /// The first row, if there is one.
    pub(crate) async fn fetch_optional(self, link: &mut Link) -> Result<Option<Row>, sqlx::Error> {
        match link {
            Link::File(to) => {
                let (sql, values) = self.for_sqlite()?;
                let row = sqlx::query_with::<Sqlite, _>(sql, values).fetch_optional(to).await?;
                Ok(row.map(Row::File))
            }
            Link::Server(to) => {
                let (sql, values) = self.for_postgres()?;
                let row = sqlx::query_with::<Postgres, _>(sql, values).fetch_optional(&mut **to);
                Ok(row.await?.map(Row::Server))
            }
            Link::Near(to) => {
                let row = to.fetch(&self.sql, self.values, 1)?.pop();
                Ok(row.map(Row::Near))
            }
        }
    }

    /// The first row.
    pub(crate) async fn fetch_one(self, link: &mut Link) -> Result<Row, sqlx::Error> {
        self.fetch_optional(link).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// The first column of the first row.
    pub(crate) async fn scalar<T>(self, link: &mut Link) -> Result<T, sqlx::Error>
    where
        T: for<'r> Field<'r>,
    {
        self.fetch_one(link).await?.first()
    }

    /// The first column of all rows.
    pub(crate) async fn scalars<T>(self, link: &mut Link) -> Result<Vec<T>, sqlx::Error>
    where
        T: for<'r> Field<'r>,
    {
        self.fetch_all(link).await?.iter().map(Row::first).collect()
    }

    fn for_sqlite(self) -> Result<(SqlStr, SqliteArguments), sqlx::Error> {
        let mut arguments = SqliteArguments::default();
        for value in self.values {
            let added = match value {
                Value::Integer(value) => arguments.add(value),
                Value::Real(value) => arguments.add(value),
                Value::Text(value) => arguments.add(value),
                Value::Bytes(value) => arguments.add(value),
            };
            added.map_err(sqlx::Error::Encode)?;
        }
        Ok((text(self.sql), arguments))
    }

    fn for_postgres(self) -> Result<(SqlStr, PgArguments), sqlx::Error> {
        let mut arguments = PgArguments::default();
        for value in self.values {
            let added: Result<(), BoxDynError> = match value {
                Value::Integer(value) => arguments.add(value),
                Value::Real(value) => arguments.add(value),
                Value::Text(value) => arguments.add(value.map(without_nul)),
                Value::Bytes(value) => arguments.add(value),
            };
            added.map_err(sqlx::Error::Encode)?;
        }
        Ok((text(self.sql), arguments))
    }
}

fn text(sql: Cow<'static, str>) -> SqlStr {
    match sql {
        Cow::Borrowed(sql) => sql.into_sql_str(),
        Cow::Owned(sql) => AssertSqlSafe(sql).into_sql_str(),
    }
}

/// PostgreSQL's text has no U+0000; what an agent wrote is whole in the bodies.
fn without_nul(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

macro_rules! values {
    ($($variant:ident: $($from:ty),*;)*) => {$($(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(Some(value.into()))
            }
        }
        impl From<Option<$from>> for Value {
            fn from(value: Option<$from>) -> Self {
                Self::$variant(value.map(Into::into))
            }
        }
    )*)*};
}

values! {
    Integer: i64, i32, u32, u16;
    Real: f64;
    Text: String, &str, &String;
    Bytes: Vec<u8>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_were() {
        assert_eq!(Value::from(7u16), Value::Integer(Some(7)));
        assert_eq!(Value::from(None::<&str>), Value::Text(None));
        assert_eq!(without_nul("a\0b".to_owned()), "a\u{fffd}b");
    }
}
