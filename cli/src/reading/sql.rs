//! `rolltape sql`: a question in SQL, also about the text of messages.

use std::collections::VecDeque;
use std::process::ExitCode;

use episode::Call;
use serde_json::{Map, Value, json};
use store::{AttemptRecord, MessageRow, Snapshot, SqlAnswer, SqlCell};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::exit::{CommandResult, Failure};
use crate::options::episodes::SelectionArgs;
use crate::print;
use crate::terminal;

/// Rows that are printed, unless another number is given.
const ROWS: usize = 1000;
/// Attempts whose messages take over a second to read.
const ATTEMPTS_SLOW: usize = 1000;
/// Calls whose messages are put together at once: a thread that is woken for each attempt takes
/// longer than a small attempt does.
const CALLS_AT_ONCE: usize = 256;
/// Parts of so many calls that are put together while the next one is read.
const WORKING_MAX: usize = 2;
/// Characters of a cell that a table shows.
const CELL_CHARS_MAX: usize = 80;

/// Ask a store in SQL, also about the text of messages
///
/// Beside the views of docs/schema.md there is the table `messages`: each message of the selected
/// episodes where it was said first, with episode_id, attempt, call_id, choice_index (null if it
/// was sent), position, role, content, reasoning, tool_calls and tool_call_id. It is made in memory
/// when the question names it. The store is only read.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// The question, such as "SELECT role, content FROM messages"
    #[arg(help_heading = None::<&str>)]
    question: String,
    /// Most rows that are printed
    #[arg(long, value_name = "ROWS", default_value_t = ROWS)]
    limit: usize,
    /// Print one JSON object per row
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: SelectionArgs,
}

/// Prints the answer.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let mut snapshot = Snapshot::open_here(args.filter.store.read_from().await?).await?;
    if !snapshot.takes_sql() {
        return Err(Failure::new("`rolltape sql` asks a store that is a file")
            .hint("ask a PostgreSQL store with psql; its views are in docs/schema.md"));
    }
    if args.question.to_lowercase().contains("messages") {
        add_messages(&mut snapshot, &args.filter).await?;
    }

    let answer = snapshot.ask(&args.question, args.limit)?;
    match args.json {
        true => print_json(&answer)?,
        false => print_table(&answer)?,
    }
    if answer.has_more {
        let count = answer.rows.len();
        terminal::message(&format!("the first {count} rows; --limit gives more"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn add_messages(snapshot: &mut Snapshot, filter: &SelectionArgs) -> Result<(), Failure> {
    // Without a message there is the table all the same.
    snapshot.add_messages(Vec::new())?;
    let attempts = snapshot.episodes(&filter.selection()).await?;
    if attempts.len() > ATTEMPTS_SLOW {
        terminal::message(&format!(
            "reading the messages of {} attempts; --episode, --group and --task select fewer",
            attempts.len()
        ));
    }

    // One thread reads and writes; others put together what was said.
    let mut working = VecDeque::new();
    let (mut read, mut calls_read) = (Vec::new(), 0);
    for attempt in attempts {
        let calls = snapshot.calls(&attempt).await?;
        calls_read += calls.len();
        read.push((attempt, calls));
        if calls_read >= CALLS_AT_ONCE {
            working.push_back(put_together(std::mem::take(&mut read)));
            calls_read = 0;
            add_first(snapshot, &mut working, WORKING_MAX).await?;
        }
    }
    working.push_back(put_together(read));
    add_first(snapshot, &mut working, 0).await
}

/// Puts together what was said in attempts, in another thread.
fn put_together(read: Vec<(AttemptRecord, Vec<Call>)>) -> JoinHandle<Vec<MessageRow>> {
    let of = |(attempt, calls): &(AttemptRecord, Vec<Call>)| viewer::messages_of(attempt, calls);
    spawn_blocking(move || read.iter().flat_map(of).collect())
}

/// Adds the messages that were asked for first, until `left` parts are left.
async fn add_first(
    snapshot: &mut Snapshot,
    working: &mut VecDeque<JoinHandle<Vec<MessageRow>>>,
    left: usize,
) -> Result<(), Failure> {
    while working.len() > left {
        let Some(first) = working.pop_front() else { break };
        snapshot.add_messages(first.await.map_err(|error| Failure::of(&error))?)?;
    }
    Ok(())
}

fn print_json(answer: &SqlAnswer) -> Result<(), Failure> {
    for row in &answer.rows {
        let fields = answer.columns.iter().cloned().zip(row.iter().map(value));
        print::line(&Value::Object(fields.collect::<Map<_, _>>()).to_string())?;
    }
    Ok(())
}

fn print_table(answer: &SqlAnswer) -> Result<(), Failure> {
    let columns: Vec<&str> = answer.columns.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> =
        answer.rows.iter().map(|row| row.iter().map(text).collect()).collect();
    print::table(&columns, &rows)
}

fn value(cell: &SqlCell) -> Value {
    match cell {
        SqlCell::Null => Value::Null,
        SqlCell::Integer(number) => json!(number),
        SqlCell::Real(number) => json!(number),
        SqlCell::Text(text) => json!(text),
        SqlCell::Bytes(bytes) => json!({ "bytes": bytes }),
    }
}

/// The beginning of a value, in one line.
fn text(cell: &SqlCell) -> String {
    let text = match cell {
        SqlCell::Null => "-".to_owned(),
        SqlCell::Integer(number) => number.to_string(),
        SqlCell::Real(number) => number.to_string(),
        SqlCell::Text(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        SqlCell::Bytes(bytes) => format!("{bytes} bytes"),
    };
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
