//! Several statements in one round trip: each trip to a database costs more than a small insert.
//!
//! SQLite takes them one after the other, each as it was prepared. PostgreSQL takes one statement
//! at a time, so there they are the parts of one: `WITH s0 AS (...), s1 AS (...) ...`. A batch with
//! very many values takes several trips.

use std::fmt::Write;

use crate::database::connection::StoreConnection;
use crate::database::local::{LocalConnection, LocalRow};
use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::database::value::Value;

/// The key of the last row that [`Batch::then_keyed`] inserted: in SQLite's own words, for which
/// PostgreSQL gets others.
const KEY: &str = "last_insert_rowid()";

/// Values in one trip, unless statements that need each other's keys have more. PostgreSQL takes at
/// most 65,535 in a statement, and plans each part of it.
const VALUES_MAX: usize = 4096;

/// Statements with their values, in order. Each has its own `$1`, `$2`, ...
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
    /// The number of its values.
    values: usize,
}

impl Batch {
    /// Adds a statement.
    pub(crate) fn then(&mut self, sql: &'static str) -> &mut Self {
        self.add(sql, None)
    }

    /// Adds a statement that inserts a row, whose key later ones can refer to as
    /// `last_insert_rowid()`.
    pub(crate) fn then_keyed(&mut self, sql: &'static str, key: &'static str) -> &mut Self {
        self.add(sql, Some(key))
    }

    fn add(&mut self, sql: &'static str, key: Option<&'static str>) -> &mut Self {
        self.statements.push(Statement { sql, key, values: 0 });
        self
    }

    /// Adds the next value of the last statement.
    pub(crate) fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        if let Some(last) = self.statements.last_mut() {
            last.values += 1;
            self.values.push(value.into());
        }
        self
    }

    /// Runs all of it.
    pub(crate) async fn run(self, on: &mut StoreConnection) -> Result<(), sqlx::Error> {
        match on {
            StoreConnection::Local(local) => self.run_here(local).map(drop),
            StoreConnection::Offloaded(file) => {
                file.run(move |local| self.run_here(local)).await.map(drop)
            }
            StoreConnection::Postgres(_) => {
                for trip in self.trips(VALUES_MAX) {
                    trip.joined().execute(on).await?;
                }
                Ok(())
            }
        }
    }

    /// Runs all of it in one trip and returns the row of the last statement.
    pub(crate) async fn run_to_row(self, on: &mut StoreConnection) -> Result<Row, sqlx::Error> {
        let row = match on {
            StoreConnection::Local(local) => self.run_here(local)?,
            StoreConnection::Offloaded(file) => file.run(move |local| self.run_here(local)).await?,
            StoreConnection::Postgres(_) => return self.joined().fetch_one(on).await,
        };
        row.map(Row::Local).ok_or(sqlx::Error::RowNotFound)
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
        let (mut values, mut last) = (self.values.as_slice(), None);
        for statement in &self.statements {
            let (own, rest) = values.split_at(statement.values);
            last = local.fetch(statement.sql, own, 1)?.pop();
            values = rest;
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

    /// Adds a statement with its values, which are the next of `values`.
    fn take(&mut self, statement: Statement, values: &mut impl Iterator<Item = Value>) {
        self.values.extend(values.take(statement.values));
        self.statements.push(statement);
    }

    /// PostgreSQL's form: one statement.
    fn joined(self) -> Query {
        query(with_clauses(&self.statements)).bind_all(self.values)
    }
}

/// Joins statements: `WITH s0 AS (first), s1 AS (second) last`.
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
        push_renumbered(&mut sql, &statement.sql.replace(KEY, &key), values);
        values += statement.values;

        if let Some(column) = statement.key {
            write!(sql, " RETURNING {column}").expect("a string takes everything");
            key = format!("(SELECT {column} FROM s{at})");
        }
    }
    sql
}

/// Adds `part`, whose `$1` is the value that follows `before` others.
fn push_renumbered(sql: &mut String, part: &str, before: usize) {
    let mut pieces = part.split('$');
    sql.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = piece.split_at(digits);
        match number.parse::<usize>() {
            Ok(number) => write!(sql, "${}{rest}", before + number),
            Err(_) => write!(sql, "${piece}"),
        }
        .expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two statements of which the second needs the key of the first, between others.
    fn batch() -> Batch {
        let mut batch = Batch::default();
        batch.then("A $1, $2").bind(0).bind(1);
        batch.then_keyed("B $1", "b_key").bind(2);
        batch.then("C last_insert_rowid(), $1, $1").bind(3);
        batch.then("D $1").bind(4);
        batch.then("E $1").bind(5);
        batch
    }

    #[test]
    fn postgres_takes_the_statements_as_one() {
        let statements = batch().statements;
        assert_eq!(
            with_clauses(&statements[..3]),
            "WITH s0 AS (A $1, $2), s1 AS (B $3 RETURNING b_key) \
             C (SELECT b_key FROM s1), $4, $4"
        );
        assert_eq!(with_clauses(&statements[..1]), "A $1, $2");
    }

    #[test]
    fn a_split_batch_keeps_dependent_statements_together() {
        let trips = batch().trips(2);
        let split: Vec<_> = trips
            .iter()
            .map(|trip| {
                let statements: Vec<_> = trip.statements.iter().map(|part| part.sql).collect();
                (statements.join("; "), trip.values.clone())
            })
            .collect();
        let values = |range: std::ops::Range<i32>| range.map(Value::from).collect::<Vec<_>>();
        assert_eq!(
            split,
            [
                ("A $1, $2".to_owned(), values(0..2)),
                ("B $1; C last_insert_rowid(), $1, $1".to_owned(), values(2..4)),
                ("D $1; E $1".to_owned(), values(4..6)),
            ]
        );
    }
}
