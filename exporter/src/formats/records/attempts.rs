//! Records that are attempts, with all of their rows.

use super::{PendingRecords, RecordBuilder};
use crate::formats::refusals::RowRefusal;
use crate::formats::sample::{MessageSpan, Sample};
use crate::formats::table::{RecordColumn, Table};
use crate::input::plan::AttemptNumbers;
use crate::notes::{Omission, Omissions};
use crate::rows::row::Row;

/// The rows of one attempt; never none.
#[derive(Debug)]
pub(crate) struct AttemptRecord {
    pub(crate) rows: Vec<Sample>,
}

impl AttemptRecord {
    /// Returns the row that stands for the attempt: of the main rows the one that trains most, the
    /// first of equals; else the first row.
    pub(crate) fn main(&self) -> &Sample {
        // `max_by_key` takes the last of equals, so the order is reversed.
        let main_rows = self.rows.iter().rev().filter(|sample| sample.row.kind == "main");
        main_rows.max_by_key(|sample| sample.row.tokens.trained()).unwrap_or(&self.rows[0])
    }
}

/// Makes records of attempts.
pub(crate) struct AttemptRecords {
    table: Table<AttemptRecord>,
    refusal: RowRefusal,
    label_above: f64,
    /// Rows of the attempt so far.
    rows: Vec<Sample>,
    bytes: usize,
    omissions: Omissions,
}

impl AttemptRecords {
    pub(crate) fn new(
        columns: &'static [RecordColumn<AttemptRecord>],
        refusal: RowRefusal,
        label_above: f64,
    ) -> Self {
        Self {
            table: Table::new(columns),
            refusal,
            label_above,
            rows: Vec::new(),
            bytes: 0,
            omissions: Omissions::new(),
        }
    }
}

impl RecordBuilder for AttemptRecords {
    fn add_row(&mut self, row: Row, numbers: AttemptNumbers) -> bool {
        if let Some(reason) = (self.refusal)(&row) {
            let omission = Omission { count: 1, trained_tokens: row.tokens.trained() as u64 };
            self.omissions.entry(reason).or_default().add(omission);
            return false;
        }
        self.bytes += row.bytes();
        let number = self.rows.len() as i64;
        let is_good = row.score().is_some_and(|reward| reward > self.label_above);
        let span = MessageSpan::whole(&row);
        let sample = Sample::new(row, numbers, span, Vec::new());
        self.rows.push(Sample { index: number, index_in_attempt: number, is_good, ..sample });
        true
    }

    fn end_attempt(&mut self) {
        let (rows, bytes) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.bytes));
        if !rows.is_empty() {
            self.table.push(AttemptRecord { rows }, bytes);
        }
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        &mut self.table
    }

    fn omissions(&self) -> Omissions {
        self.omissions.clone()
    }
}
