//! Attempts: formats whose record is a whole attempt, with all of its rows.

pub(crate) mod rllm;
pub(crate) mod verifiers;

use serde_json::{Map, Value, json};

use super::openai::chat;
use super::sample::Sample;
use super::table::{Column, Refused, Table};
use crate::input::plan::Place;
use crate::notes::{Left, Lefts};
use crate::rows::messages::Message;
use crate::rows::row::{Row, TurnRow};

/// The rows of one attempt; never none.
#[derive(Debug)]
pub(crate) struct Attempt {
    rows: Vec<Sample>,
}

impl Attempt {
    /// The row that tells what the attempt is about: of the main ones the one that trains most,
    /// the first of equal ones; else the first row.
    fn main(&self) -> &Sample {
        let mut best: Option<&Sample> = None;
        for row in self.rows.iter().filter(|row| row.row.kind == "main") {
            let trains_less = |held: &Sample| held.row.tokens.trained() < row.row.tokens.trained();
            if best.is_none_or(trains_less) {
                best = Some(row);
            }
        }
        best.unwrap_or(&self.rows[0])
    }
}

/// Gathers the rows of an attempt.
pub(crate) struct Attempts {
    pub(crate) table: Table<Attempt>,
    refuse: fn(&Row) -> Option<Refused>,
    pub(crate) left: Lefts,
    label_above: f64,
    gathered: Vec<Sample>,
    bytes: usize,
}

impl Attempts {
    pub(crate) fn new(
        columns: &'static [Column<Attempt>],
        refuse: fn(&Row) -> Option<Refused>,
        label_above: f64,
    ) -> Self {
        let table = Table::new(columns);
        let left = Lefts::new();
        Self { table, refuse, left, label_above, gathered: Vec::new(), bytes: 0 }
    }

    /// Takes a row; whether it is part of a record.
    pub(crate) fn add(&mut self, row: Row, place: Place) -> bool {
        if let Some(why) = (self.refuse)(&row) {
            let left = Left { count: 1, trained_tokens: row.tokens.trained() as u64 };
            self.left.entry(why).or_default().add(left);
            return false;
        }
        self.bytes += row.bytes();
        let good = row.reward.is_some_and(|reward| reward > self.label_above);
        let of_attempt = self.gathered.len() as i64;
        let all = row.dialogue.prompt.len() + row.dialogue.completion.len();
        let sample = Sample::new(row, place, (0, all), Vec::new());
        self.gathered.push(Sample { index: of_attempt, of_attempt, good, ..sample });
        true
    }

    /// Makes a record of what was gathered.
    pub(crate) fn attempt_ended(&mut self) {
        let (rows, bytes) = (std::mem::take(&mut self.gathered), std::mem::take(&mut self.bytes));
        if !rows.is_empty() {
            self.table.push(Attempt { rows }, bytes);
        }
    }
}

/// A message with its thoughts.
fn thoughtful(message: &Message) -> Value {
    let mut object = chat(message);
    if let Some(reasoning) = &message.reasoning {
        object.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    Value::Object(object)
}

/// The messages before a turn's answer, and the answer; none where it is not known which it is.
fn messages_of(sample: &Sample, turn: &TurnRow) -> (Vec<Value>, Option<Message>) {
    let dialogue = &sample.row.dialogue;
    let turns = sample.turns_of_completion();
    let Some(at) = turns.iter().position(|of| *of == Some(turn)) else {
        return (Vec::new(), None);
    };
    let before = dialogue.prompt.iter().chain(&dialogue.completion[..at]);
    (before.map(thoughtful).collect(), Some(dialogue.completion[at].clone()))
}

/// A tool without the envelope of OpenAI's chat API.
pub(crate) fn plain_tool(text: &str) -> Map<String, Value> {
    let tool: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let function = tool.get("function").unwrap_or(&tool);
    function.as_object().cloned().unwrap_or_default()
}
