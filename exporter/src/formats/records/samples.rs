//! Records that are samples: a row, or a part of a row that trains some of its messages.

use super::{PendingRecords, RecordBuilder};
use crate::formats::conversations::trained_messages::{
    TrainedMessages, stretches, trained_messages,
};
use crate::formats::refusals::{RowRefusal, without_messages};
use crate::formats::sample::{MessageSpan, Sample};
use crate::formats::table::{RecordColumn, Table};
use crate::input::plan::{AttemptNumbers, Shard};
use crate::notes::{Omission, Omissions, add_omissions};
use crate::options::format::{Format, MessageTraining};
use crate::rows::row::Row;

/// Makes samples of rows.
pub(crate) struct SampleRecords {
    table: Table<Sample>,
    refusal: RowRefusal,
    training: MessageTraining,
    label_above: f64,
    /// The newest sample of the attempt. The next one shows whether it is the last.
    held: Option<Box<Sample>>,
    index_in_attempt: i64,
    /// Number of samples so far, those of earlier increments included.
    count: i64,
    /// Shard that the numbers of samples belong to.
    shard: Option<Shard>,
    omissions: Omissions,
}

impl SampleRecords {
    pub(crate) fn new(
        format: Format,
        columns: &'static [RecordColumn<Sample>],
        refusal: RowRefusal,
        label_above: f64,
    ) -> Self {
        Self {
            table: Table::new(columns),
            refusal,
            training: format.message_training(),
            label_above,
            held: None,
            index_in_attempt: 0,
            count: 0,
            shard: None,
            omissions: Omissions::new(),
        }
    }

    /// Gives the records more columns.
    pub(crate) fn and(mut self, columns: &'static [RecordColumn<Sample>]) -> Self {
        self.table.extend(columns);
        self
    }

    /// Returns the messages of each sample of a row.
    fn spans(&self, row: &Row, trained: &[usize]) -> Vec<MessageSpan> {
        let whole = MessageSpan::whole(row);
        match (self.training, trained.last()) {
            (MessageTraining::Tokens | MessageTraining::Shown, _) => vec![whole],
            (MessageTraining::Stretches, _) => stretches(&row.answers(), trained),
            // Messages behind the last trained one teach nothing.
            (MessageTraining::Texts, Some(last)) => {
                vec![MessageSpan { first_trained: 0, end: last + 1 }]
            }
            (MessageTraining::Choices, Some(_)) => vec![whole],
            (MessageTraining::Texts | MessageTraining::Choices, None) => Vec::new(),
        }
    }

    /// Holds a sample until the next one comes.
    fn hold(&mut self, sample: Sample) {
        self.release(false);
        let good = sample.row.score().is_some_and(|reward| reward > self.label_above);
        let index = Shard::number(self.shard, self.count);
        let index_in_attempt = self.index_in_attempt;
        self.count += 1;
        self.index_in_attempt += 1;
        self.held = Some(Box::new(Sample { index, index_in_attempt, is_good: good, ..sample }));
    }

    fn release(&mut self, is_last: bool) {
        if let Some(sample) = self.held.take() {
            let bytes = sample.row.bytes();
            self.table.push(Sample { is_last, ..*sample }, bytes);
        }
    }
}

impl RecordBuilder for SampleRecords {
    fn continue_numbers(&mut self, rows: u64, shard: Option<Shard>) {
        self.count = i64::try_from(rows).unwrap_or(i64::MAX);
        self.shard = shard;
    }

    fn add_row(&mut self, row: Row, numbers: AttemptNumbers) -> bool {
        if let Some(reason) = (self.refusal)(&row) {
            let omission = Omission { count: 1, trained_tokens: row.tokens.trained() as u64 };
            self.omissions.entry(reason).or_default().add(omission);
            return false;
        }

        let TrainedMessages { messages, omissions } = trained_messages(self.training, &row);
        add_omissions(&mut self.omissions, &omissions);
        let spans = self.spans(&row, &messages);
        // A row that is left out must have a reason.
        if spans.is_empty() && omissions.is_empty() {
            self.omissions.entry(without_messages(&row)).or_default().count += 1;
        }

        for span in &spans {
            let positions = span.first_trained..span.end;
            let trained = messages.iter().copied().filter(|at| positions.contains(at)).collect();
            self.hold(Sample::new(row.clone(), numbers, *span, trained));
        }
        !spans.is_empty()
    }

    fn end_attempt(&mut self) {
        self.release(true);
        self.index_in_attempt = 0;
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        &mut self.table
    }

    fn omissions(&self) -> Omissions {
        self.omissions.clone()
    }
}
