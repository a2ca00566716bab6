//! Several statements in one go: each trip to a database costs more than a small insert.
//!
//! SQLite takes them one behind the other, in one text. PostgreSQL takes one statement at a time,
//! so there they are the parts of one: `WITH s0 AS (...), s1 AS (...) ...`. Very many are several
//! such goes.

use std::fmt::Write;

use crate::fields::Row;
use crate::link::Link;
use crate::query::{Query, Value};

/// Stands in a statement for the key of the last row that [`Batch::then_keyed`] added.
const KEY: &str = "{key}";

/// Values of one go, unless statements that need each other have more. PostgreSQL takes 65,535 in
/// a statement, and looks at each of its parts.
const VALUES_MAX: usize = 4096;

/// Statements with their values, in order. A value stands for each `?`.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    steps: Vec<Step>,
    values: Vec<Value>,
}

#[derive(Debug)]
struct Step {
    sql: &'static str,
    /// The column that is the key of what it inserts.
    key: Option<&'static str>,
}

impl Batch {
    /// Adds a statement.
    pub(crate) fn then(&mut self, sql: &'static str) -> &mut Self {
        self.steps.push(Step { sql, key: None });
        self
    }

    /// Adds a statement that inserts a row, whose key later ones can refer to as `{key}`.
    pub(crate) fn then_keyed(&mut self, sql: &'static str, key: &'static str) -> &mut Self {
        self.steps.push(Step { sql, key: Some(key) });
        self
    }

    /// Adds the next value.
    pub(crate) fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self
    }

    /// Runs all of it.
    pub(crate) async fn run(self, link: &mut Link) -> Result<(), sqlx::Error> {
        for go in self.goes(VALUES_MAX) {
            go.query(link).execute(link).await?;
        }
        Ok(())
    }

    /// The same as several, cut where the next statement needs no key of an earlier one.
    fn goes(self, values_max: usize) -> Vec<Self> {
        let mut goes = vec![Self::default()];
        let mut steps = self.steps.into_iter().peekable();
        let mut values = self.values.into_iter();
        while let Some(step) = steps.next() {
            let mut next = Self::default();
            next.take(step, &mut values);
            while let Some(step) = steps.next_if(|step| step.sql.contains(KEY)) {
                next.take(step, &mut values);
            }
            match goes.last_mut().filter(|go| go.values.len() + next.values.len() <= values_max) {
                Some(go) => {
                    go.steps.append(&mut next.steps);
                    go.values.append(&mut next.values);
                }
                None => goes.push(next),
            }
        }
        goes
    }

    /// Adds a statement with as many of `values` as it has places for.
    fn take(&mut self, step: Step, values: &mut impl Iterator<Item = Value>) {
        let places = step.sql.matches('?').count();
        self.steps.push(step);
        self.values.extend(values.take(places));
    }

    /// Runs all of it; only the last one gives a row.
    pub(crate) async fn run_to_row(self, link: &mut Link) -> Result<Row, sqlx::Error> {
        self.query(link).fetch_one(link).await
    }

    fn query(self, link: &Link) -> Query {
        let sql = match link {
            Link::File(_) | Link::Near(_) => in_turn(&self.steps),
            Link::Server(_) => as_parts(&self.steps),
        };
        Query::with(sql, self.values)
    }
}

fn in_turn(steps: &[Step]) -> String {
    let mut sql = String::new();
    for step in steps {
        let separator = if sql.is_empty() { "" } else { "; " };
        sql.push_str(separator);
        sql.push_str(&step.sql.replace(KEY, "last_insert_rowid()"));
    }
    sql
}

fn as_parts(steps: &[Step]) -> String {
    let mut sql = String::new();
    let (mut key, mut values) = (String::new(), 0);
    for (at, step) in steps.iter().enumerate() {
        let is_last = at + 1 == steps.len();
        match (at, is_last) {
            (_, true) => sql.push_str(if at == 0 { "" } else { ") " }),
            (0, false) => sql.push_str("WITH s0 AS ("),
            (_, false) => write!(sql, "), s{at} AS (").expect("a string takes everything"),
        }
        numbered(&mut sql, &step.sql.replace(KEY, &key), &mut values);
        if let Some(column) = step.key {
            write!(sql, " RETURNING {column}").expect("a string takes everything");
            key = format!("(SELECT {column} FROM s{at})");
        }
    }
    sql
}

/// Adds `sql` with a number for each `?`.
fn numbered(sql: &mut String, part: &str, values: &mut usize) {
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
        batch.then("A ?, ?").then_keyed("B ?", "b_key").then("C {key}, ?");
        assert_eq!(in_turn(&batch.steps), "A ?, ?; B ?; C last_insert_rowid(), ?");
        assert_eq!(
            as_parts(&batch.steps),
            "WITH s0 AS (A $1, $2), s1 AS (B $3 RETURNING b_key) C (SELECT b_key FROM s1), $4"
        );
        assert_eq!(as_parts(&batch.steps[..1]), "A $1, $2");
    }

    #[test]
    fn many_statements_are_several_goes_and_what_needs_a_key_stays_with_it() {
        let mut batch = Batch::default();
        batch.then("A ?, ?").then_keyed("B ?", "b_key").then("C {key}, ?").then("D ?").then("E ?");
        (0..6).for_each(|n| {
            batch.bind(n);
        });
        let goes = batch.goes(2);
        let told: Vec<_> = goes.iter().map(|go| (in_turn(&go.steps), go.values.clone())).collect();
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
