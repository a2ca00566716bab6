//! Questions in SQL about a file, with the text of messages in a table beside its views.

use rusqlite::types::Value as SqlValue;

use crate::database::connection::StoreConnection;
use crate::database::local::LocalConnection;
use crate::error::SnapshotError;
use crate::snapshot::Snapshot;

/// The table of messages. It lives as long as the connection.
const TABLE: &str = "CREATE TEMP TABLE IF NOT EXISTS messages (
  episode_id TEXT NOT NULL, attempt INTEGER NOT NULL, call_id TEXT NOT NULL,
  choice_index INTEGER, position INTEGER NOT NULL, role TEXT NOT NULL, content TEXT,
  reasoning TEXT, tool_calls TEXT, tool_call_id TEXT)";
const INSERT: &str = "INSERT INTO temp.messages VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// A message where it was said first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageRow {
    /// The episode.
    pub episode_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The call that sent it, or whose reply it is.
    pub call_id: String,
    /// The choice that it is; `None` if it was sent.
    pub choice: Option<u32>,
    /// The position in the conversation, from 0.
    pub position: u32,
    /// The role of the speaker.
    pub role: String,
    /// The text, or the JSON of content that is not all text.
    pub content: Option<String>,
    /// The reasoning.
    pub reasoning: Option<String>,
    /// A JSON list of tool calls.
    pub tool_calls: Option<String>,
    /// The tool call that it answers.
    pub tool_call_id: Option<String>,
}

/// The rows that a question in SQL returns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SqlAnswer {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<SqlCell>>,
    /// True if there are more rows than were asked for.
    pub has_more: bool,
}

/// A value of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum SqlCell {
    /// Null.
    Null,
    /// A whole number.
    Integer(i64),
    /// A number.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes, by their number.
    Bytes(usize),
}

impl Snapshot {
    /// True if questions in SQL are answered: the store is a file that is read here.
    pub fn takes_sql(&self) -> bool {
        self.file().is_some()
    }

    /// Adds messages to the table `messages` of this connection. Nothing is written to the store.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store is no file, or the temporary table cannot be written.
    pub fn add_messages(&mut self, messages: Vec<MessageRow>) -> Result<(), SnapshotError> {
        let file = self.file().ok_or_else(no_file)?;
        file.run(TABLE)?;
        for message in messages {
            let values = [
                message.episode_id.into(),
                message.attempt.into(),
                message.call_id.into(),
                message.choice.into(),
                message.position.into(),
                message.role.into(),
                message.content.into(),
                message.reasoning.into(),
                message.tool_calls.into(),
                message.tool_call_id.into(),
            ];
            file.fetch(INSERT, &values, 1)?;
        }
        Ok(())
    }

    /// The answer to a question in SQL: `rows_max` rows at most.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store is no file, or it refuses the question.
    pub fn ask(&mut self, sql: &str, rows_max: usize) -> Result<SqlAnswer, SnapshotError> {
        let file = self.file().ok_or_else(no_file)?;
        let found = file.table(sql, rows_max.saturating_add(1));
        let (columns, mut rows) = found.map_err(|why| SnapshotError::Question(why.to_string()))?;
        let has_more = rows.len() > rows_max;
        rows.truncate(rows_max);
        let rows = rows.into_iter().map(|row| row.into_iter().map(cell).collect()).collect();
        Ok(SqlAnswer { columns, rows, has_more })
    }

    fn file(&self) -> Option<&LocalConnection> {
        match self.connection_ref() {
            StoreConnection::Local(file) => Some(file),
            StoreConnection::Offloaded(_) | StoreConnection::Postgres(_) => None,
        }
    }
}

fn no_file() -> SnapshotError {
    SnapshotError::Question("it is no file; ask a PostgreSQL store with psql".to_owned())
}

fn cell(value: SqlValue) -> SqlCell {
    match value {
        SqlValue::Null => SqlCell::Null,
        SqlValue::Integer(number) => SqlCell::Integer(number),
        SqlValue::Real(number) => SqlCell::Real(number),
        SqlValue::Text(text) => SqlCell::Text(text),
        SqlValue::Blob(bytes) => SqlCell::Bytes(bytes.len()),
    }
}
