//! Several statements in one round trip: each trip to a database costs more than a small insert.
//!
//! SQLite takes them one after the other: in one text where another thread runs them, else each as
//! it was prepared. PostgreSQL takes one statement at a time, so there they are the parts of one:
//! `WITH s0 AS (...), s1 AS (...) ...`. A batch with very many values takes several trips.

use std::fmt::Write;

use crate::database::connection::StoreConnection;
use crate::database::local::{LocalConnection, LocalRow};
use crate::database::query::Query;
use crate::database::row::Row;
use crate::database::value::Value;

/// The key of the last row that [`Batch::then_keyed`] inserted: in SQLite's own words, for which
/// PostgreSQL gets others.
const KEY: &str = "last_insert_rowid()";

/// Values in one trip, unless statements that need each other's keys have more. PostgreSQL takes at
/// most 65,535 in a statement, and plans each part of it.
const VALUES_MAX: usize = 4096;

/// Statements with their values, in order. A value stands for each `?`.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    statements: Vec<Statement>,
    values: Vec<Value>,
}

#[derive(Debug)]
struct Statement {
    sql: &'static str,
    /// The column that is the key of the row that it inserts.
    key: Option<&'static str>,
}

impl Batch {
    /// Adds a statement.
    pub(crate) fn then(&mut self, sql: &'static str) -> &mut Self {
        self.add(Statement { sql, key: None })
    }

    /// Adds a statement that inserts a row, whose key later ones can refer to as
    /// `last_insert_rowid()`.
    pub(crate) fn then_keyed(&mut self, sql: &'static str, key: &'static str) -> &mut Self {
        self.add(Statement { sql, key: Some(key) })
    }

    fn add(&mut self, statement: Statement) -> &mut Self {
        self.values.reserve(statement.sql.bytes().filter(|byte| *byte == b'?').count());
        self.statements.push(statement);
        self
    }

    /// Adds the next value.
    pub(crate) fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self
    }

    /// Runs all of it.
    pub(crate) async fn run(self, on: &mut StoreConnection) -> Result<(), sqlx::Error> {
        if let StoreConnection::Local(local) = on {
            return self.run_here(local).map(drop);
        }
        for trip in self.trips(VALUES_MAX) {
            trip.query(on).execute(on).await?;
        }
        Ok(())
    }

    /// Runs all of it in one trip and returns the row of the last statement.
    pub(crate) async fn run_to_row(self, on: &mut StoreConnection) -> Result<Row, sqlx::Error> {
        if let StoreConnection::Local(local) = on {
            let row = self.run_here(local)?.ok_or(sqlx::Error::RowNotFound)?;
            return Ok(Row::Local(row));
        }
        self.query(on).fetch_one(on).await
    }

    /// Runs all of it in the caller's thread and returns the key of the row that was inserted last.
    ///
    /// # Errors
    /// Also on a connection that is not of the caller's thread.
    pub(crate) fn run_to_key(self, on: &StoreConnection) -> Result<i64, sqlx::Error> {
        let StoreConnection::Local(local) = on else {
            return Err(sqlx::Error::Configuration("the store is not a local file".into()));
        };
        self.run_here(local)?;
        Ok(local.last_key())
    }

    /// Runs one statement after the other, each as it was prepared before. The last one's row.
    fn run_here(self, local: &LocalConnection) -> Result<Option<LocalRow>, sqlx::Error> {
        let (mut values, mut last) = (self.values.into_iter(), None);
        for statement in &self.statements {
            last = local.step(statement.sql, &mut values)?;
        }
        Ok(last)
    }

    /// Splits the batch into trips. A split is only made before a statement that needs no key of an
    /// earlier one.
    fn trips(self, values_max: usize) -> Vec<Self> {
        let mut trips = vec![Self::default()];
        let mut statements = self.statements.into_iter().peekable();
        let mut values = self.values.into_iter();

        while let Some(first) = statements.next() {
            let mut next = Self::default();
            next.take(first, &mut values);
            while let Some(dependent) = statements.next_if(|next| next.sql.contains(KEY)) {
                next.take(dependent, &mut values);
            }

            let fits = |trip: &&mut Self| trip.values.len() + next.values.len() <= values_max;
            match trips.last_mut().filter(fits) {
                Some(trip) => {
                    trip.statements.append(&mut next.statements);
                    trip.values.append(&mut next.values);
                }
                None => trips.push(next),
            }
        }
        trips
    }

    /// Adds a statement with as many of `values` as it has places for.
    fn take(&mut self, statement: Statement, values: &mut impl Iterator<Item = Value>) {
        let places = statement.sql.matches('?').count();
        self.statements.push(statement);
        self.values.extend(values.take(places));
    }

    fn query(self, on: &StoreConnection) -> Query {
        let sql = match on {
            StoreConnection::Sqlite(_) | StoreConnection::Local(_) => sequence(&self.statements),
            StoreConnection::Postgres(_) => with_clauses(&self.statements),
        };
        Query::with(sql, self.values)
    }
}

/// SQLite's form: `first; second; ...`.
fn sequence(statements: &[Statement]) -> String {
    let mut sql = String::new();
    for statement in statements {
        let separator = if sql.is_empty() { "" } else { "; " };
        sql.push_str(separator);
        sql.push_str(statement.sql);
    }
    sql
}

/// PostgreSQL's form: `WITH s0 AS (first), s1 AS (second) last`.
fn with_clauses(statements: &[Statement]) -> String {
    let mut sql = String::new();
    let (mut key, mut values) = (String::new(), 0);
    for (at, statement) in statements.iter().enumerate() {
        let is_last = at + 1 == statements.len();
        match (at, is_last) {
            (_, true) => sql.push_str(if at == 0 { "" } else { ") " }),
            (0, false) => sql.push_str("WITH s0 AS ("),
            (_, false) => write!(sql, "), s{at} AS (").expect("a string takes everything"),
        }
        push_numbered(&mut sql, &statement.sql.replace(KEY, &key), &mut values);

        if let Some(column) = statement.key {
            write!(sql, " RETURNING {column}").expect("a string takes everything");
            key = format!("(SELECT {column} FROM s{at})");
        }
    }
    sql
}

/// Adds `part` with `$1`, `$2`, ... for each `?`; `values` counts those that went before.
fn push_numbered(sql: &mut String, part: &str, values: &mut usize) {
    for (at, text) in part.split('?').enumerate() {
        if at > 0 {
            *values += 1;
            write!(sql, "${values}").expect("a string takes everything");
        }
        sql.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_put_together_as_each_database_takes_them() {
        let mut batch = Batch::default();
        batch.then("A ?, ?").then_keyed("B ?", "b_key").then("C last_insert_rowid(), ?");
        assert_eq!(sequence(&batch.statements), "A ?, ?; B ?; C last_insert_rowid(), ?");
        assert_eq!(
            with_clauses(&batch.statements),
            "WITH s0 AS (A $1, $2), s1 AS (B $3 RETURNING b_key) C (SELECT b_key FROM s1), $4"
        );
        assert_eq!(with_clauses(&batch.statements[..1]), "A $1, $2");
    }

    #[test]
    fn a_split_batch_keeps_dependent_statements_together() {
        let mut batch = Batch::default();
        batch
            .then("A ?, ?")
            .then_keyed("B ?", "b_key")
            .then("C last_insert_rowid(), ?")
            .then("D ?")
            .then("E ?");
        (0..6).for_each(|n| {
            batch.bind(n);
        });
        let trips = batch.trips(2);
        let told: Vec<_> =
            trips.iter().map(|trip| (sequence(&trip.statements), trip.values.clone())).collect();
        let values = |range: std::ops::Range<i32>| range.map(Value::from).collect::<Vec<_>>();
        assert_eq!(
            told,
            [
                ("A ?, ?".to_owned(), values(0..2)),
                ("B ?; C last_insert_rowid(), ?".to_owned(), values(2..4)),
                ("D ?; E ?".to_owned(), values(4..6)),
            ]
        );
    }
}
