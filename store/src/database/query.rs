//! Statements in the SQL that both databases know: values are `$1`, `$2`, ...

use std::borrow::Cow;

use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe, Postgres, SqlSafeStr, SqlStr};

use crate::database::connection::StoreConnection;
use crate::database::local::LocalRow;
use crate::database::row::{Field, Row};
use crate::database::value::Value;

/// A statement with its values.
#[derive(Debug)]
pub(crate) struct Query {
    sql: Cow<'static, str>,
    values: Vec<Value>,
}

/// Makes a statement without values.
pub(crate) fn query(sql: impl Into<Cow<'static, str>>) -> Query {
    Query { sql: sql.into(), values: Vec::new() }
}

impl Query {
    /// Adds the next values.
    pub(crate) fn bind_all(mut self, values: Vec<Value>) -> Self {
        self.values.extend(values);
        self
    }

    /// Adds the next value.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// The statement that tells how a file's database finds the rows of this one.
    #[cfg(test)]
    pub(crate) fn explained(self) -> Self {
        Self { sql: format!("EXPLAIN QUERY PLAN {}", self.sql).into(), values: self.values }
    }

    /// Runs the statement.
    pub(crate) async fn execute(self, on: &mut StoreConnection) -> Result<(), sqlx::Error> {
        match on {
            StoreConnection::Postgres(postgres) => {
                let (sql, values) = self.for_postgres()?;
                let done = sqlx::query_with::<Postgres, _>(sql, values).execute(&mut ***postgres);
                done.await.map(drop)
            }
            file => self.fetch_from_file(file, usize::MAX).await.map(drop),
        }
    }

    /// All rows.
    pub(crate) async fn fetch_all(self, on: &mut StoreConnection) -> Result<Vec<Row>, sqlx::Error> {
        match on {
            StoreConnection::Postgres(postgres) => {
                let (sql, values) = self.for_postgres()?;
                let rows = sqlx::query_with::<Postgres, _>(sql, values).fetch_all(&mut ***postgres);
                Ok(rows.await?.into_iter().map(Row::Postgres).collect())
            }
            file => {
                let rows = self.fetch_from_file(file, usize::MAX).await?;
                Ok(rows.into_iter().map(Row::Local).collect())
            }
        }
    }

    /// The first row, if there is one.
    pub(crate) async fn fetch_optional(
        self,
        on: &mut StoreConnection,
    ) -> Result<Option<Row>, sqlx::Error> {
        match on {
            StoreConnection::Postgres(postgres) => {
                let (sql, values) = self.for_postgres()?;
                let row = sqlx::query_with::<Postgres, _>(sql, values);
                Ok(row.fetch_optional(&mut ***postgres).await?.map(Row::Postgres))
            }
            file => Ok(self.fetch_from_file(file, 1).await?.pop().map(Row::Local)),
        }
    }

    async fn fetch_from_file(
        self,
        on: &mut StoreConnection,
        rows_max: usize,
    ) -> Result<Vec<LocalRow>, sqlx::Error> {
        match on {
            StoreConnection::Local(local) => local.fetch(&self.sql, &self.values, rows_max),
            StoreConnection::Offloaded(file) => {
                file.run(move |local| local.fetch(&self.sql, &self.values, rows_max)).await
            }
            StoreConnection::Postgres(_) => {
                Err(sqlx::Error::Configuration("the store is not a file".into()))
            }
        }
    }

    /// The first row.
    ///
    /// # Errors
    /// [`sqlx::Error::RowNotFound`] where there is none.
    pub(crate) async fn fetch_one(self, on: &mut StoreConnection) -> Result<Row, sqlx::Error> {
        self.fetch_optional(on).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// The first column of the first row.
    pub(crate) async fn scalar<T>(self, on: &mut StoreConnection) -> Result<T, sqlx::Error>
    where
        T: for<'r> Field<'r>,
    {
        self.fetch_one(on).await?.first()
    }

    /// The first column of all rows.
    pub(crate) async fn scalars<T>(self, on: &mut StoreConnection) -> Result<Vec<T>, sqlx::Error>
    where
        T: for<'r> Field<'r>,
    {
        self.fetch_all(on).await?.iter().map(Row::first).collect()
    }

    /// The steps in which a file runs the statement.
    #[cfg(test)]
    pub(crate) async fn plan(mut self, on: &mut StoreConnection) -> String {
        self.sql = format!("EXPLAIN QUERY PLAN {}", self.sql).into();
        let steps = self.fetch_all(on).await.unwrap();
        let steps = steps.iter().map(|step| step.try_get::<String>("detail").unwrap());
        steps.collect::<Vec<_>>().join("; ")
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

/// Replaces U+0000, which PostgreSQL's text cannot hold. The bodies keep the agent's own bytes.
fn without_nul(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
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
