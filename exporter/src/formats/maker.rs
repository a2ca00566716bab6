//! Maker: takes the rows of an export as they come by and makes records of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use episode::Call;
use store::EpisodeRecord;

use super::attempts::{Attempts, rllm, verifiers};
use super::calls::{self, CallRecord};
use super::preference::{self, Pairs};
use super::sample::Sample;
use super::table::{Column, Table};
use super::turns::Turns;
use super::{
    Format, areal, art, atif, kto, nemo_gym, openai, prime_rl, sft, sft_tokens, skyrl, slime,
    tinker, trl, verl,
};
use crate::columns;
use crate::plan::{Place, Shard};
use crate::reason::Reason;
use crate::rows::Row;
use crate::schema::schema;

/// Why no record was made of a row; a word for the report.
pub(crate) type Refused = &'static str;

/// Makes the records of one format.
pub(crate) enum Maker {
    Rows(Rows),
    Calls(Table<CallRecord>),
    Turns(Turns),
    Samples(Samples),
    Pairs(Pairs),
    Attempts(Attempts),
}

/// Records that are rows.
pub(crate) struct Rows {
    schema: SchemaRef,
    pending: Vec<Row>,
    bytes: usize,
}

/// Records that are columns of a sample.
pub(crate) struct Samples {
    table: Table<Sample>,
    refuse: fn(&Row) -> Option<Refused>,
    label_above: f64,
    /// Whether an attempt has one row at most: the one that trains most, the first of equal ones.
    one_row: bool,
    /// The last row so far of the attempt: what comes next tells whether it was the last of all,
    /// or trains more than the one that there may be.
    held: Option<Box<Sample>>,
    /// Which row of its attempt the next one is.
    of_attempt: i64,
    /// What would have been trained of rows that gave way to others.
    tokens_given_up: u64,
    /// Rows so far, those of earlier increments included.
    count: i64,
    /// Whose numbers these are.
    shard: Option<Shard>,
}

impl Maker {
    /// Makes records in `format`; rewards above `label_above` are good ones.
    pub(crate) fn new(format: Format, label_above: f64) -> Self {
        let samples = |columns: &'static [Column<Sample>], refuse: fn(&Row) -> Option<Refused>| {
            let table = Table::new(columns);
            let (held, of_attempt, tokens_given_up, count, shard) = (None, 0, 0, 0, None);
            Self::Samples(Samples {
                table,
                refuse,
                label_above,
                one_row: format.has_one_row(),
                held,
                of_attempt,
                tokens_given_up,
                count,
                shard,
            })
        };
        match format {
            Format::Trajectories => {
                Self::Rows(Rows { schema: schema(), pending: Vec::new(), bytes: 0 })
            }
            Format::Calls => Self::Calls(Table::new(calls::COLUMNS)),
            Format::Turns => Self::Turns(Turns::new()),
            Format::Preference => Self::Pairs(Pairs::new(preference::COLUMNS, false)),
            Format::OpenAiPreference => Self::Pairs(Pairs::new(openai::PREFERENCE, true)),
            Format::Sft => samples(sft::COLUMNS, unanswered),
            Format::SftTokens => samples(sft_tokens::COLUMNS, unlabelled),
            Format::Kto => samples(kto::COLUMNS, unanswered_or_unscored),
            Format::OpenAi => samples(openai::COLUMNS, unanswered),
            Format::Atif => samples(atif::COLUMNS, unanswered),
            Format::Art => samples(art::COLUMNS, unanswered_or_unscored),
            Format::Trl => samples(trl::COLUMNS, untrained),
            Format::TrlAsync => samples(trl::ASYNC, untrained),
            Format::Verl => samples(verl::COLUMNS, untrained),
            Format::PrimeRl => samples(prime_rl::COLUMNS, untrained),
            Format::SkyRl => samples(skyrl::COLUMNS, untrained_or_unscored),
            Format::Slime => samples(slime::COLUMNS, untrained_or_unscored),
            Format::AReaL => samples(areal::COLUMNS, untrained_or_unscored),
            Format::Tinker => samples(tinker::COLUMNS, untrained),
            Format::NemoGym => samples(nemo_gym::COLUMNS, untrained_or_unscored),
            Format::Rllm => {
                Self::Attempts(Attempts::new(rllm::COLUMNS, untrained_or_unscored, label_above))
            }
            Format::Verifiers => {
                Self::Attempts(Attempts::new(verifiers::COLUMNS, unscored, label_above))
            }
        }
    }

    /// Goes on counting behind so many rows, in the numbers of a shard.
    pub(crate) fn count_from(&mut self, rows: u64, of: Option<Shard>) {
        if let Self::Samples(samples) = self {
            samples.count = i64::try_from(rows).unwrap_or(i64::MAX);
            samples.shard = of;
        }
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        match self {
            Self::Rows(rows) => Arc::clone(&rows.schema),
            Self::Calls(table) => table.schema(),
            Self::Turns(turns) => turns.table.schema(),
            Self::Samples(samples) => samples.table.schema(),
            Self::Pairs(pairs) => pairs.table.schema(),
            Self::Attempts(attempts) => attempts.table.schema(),
        }
    }

    /// Takes a call of an attempt, before its rows.
    pub(crate) fn call(&mut self, episode: &EpisodeRecord, call: &Call) {
        if let Self::Calls(table) = self {
            let record = CallRecord::new(episode, call);
            let bytes = record.bytes();
            table.push(record, bytes);
        }
    }

    /// Takes a row.
    pub(crate) fn row(&mut self, row: Row, place: Place) -> Result<(), Refused> {
        match self {
            Self::Rows(rows) => {
                rows.bytes += row.bytes();
                rows.pending.push(row);
            }
            Self::Calls(_) => {}
            Self::Turns(turns) => turns.add(&row),
            Self::Samples(samples) => samples.add(row, place)?,
            Self::Pairs(pairs) => pairs.add(row, place),
            Self::Attempts(attempts) => attempts.add(row, place)?,
        }
        Ok(())
    }

    /// There are no more rows of the attempt.
    pub(crate) fn attempt_ended(&mut self) {
        match self {
            Self::Samples(samples) => {
                samples.let_go(true);
                samples.of_attempt = 0;
            }
            Self::Attempts(attempts) => attempts.attempt_ended(),
            Self::Turns(turns) => turns.attempt_ended(),
            _ => {}
        }
    }

    /// There are no more attempts in the file.
    pub(crate) fn file_ended(&mut self) {
        if let Self::Pairs(pairs) = self {
            pairs.group_ended();
        }
    }

    /// About how many bytes the next batch holds.
    pub(crate) fn pending_bytes(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.bytes,
            Self::Calls(table) => table.pending_bytes(),
            Self::Turns(turns) => turns.table.pending_bytes(),
            Self::Samples(samples) => samples.table.pending_bytes(),
            Self::Pairs(pairs) => pairs.table.pending_bytes(),
            Self::Attempts(attempts) => attempts.table.pending_bytes(),
        }
    }

    /// The records since the last batch.
    pub(crate) fn batch(&mut self) -> Result<RecordBatch, ArrowError> {
        match self {
            Self::Rows(rows) => {
                rows.bytes = 0;
                columns::batch(&rows.schema, &std::mem::take(&mut rows.pending))
            }
            Self::Calls(table) => table.batch(),
            Self::Turns(turns) => turns.table.batch(),
            Self::Samples(samples) => samples.table.batch(),
            Self::Pairs(pairs) => pairs.table.batch(),
            Self::Attempts(attempts) => attempts.table.batch(),
        }
    }

    /// What was taken and of which no record was made, by the reason.
    pub(crate) fn left_out(&self) -> BTreeMap<Refused, u64> {
        match self {
            Self::Pairs(pairs) => pairs.left_out.clone(),
            Self::Samples(samples) if samples.tokens_given_up > 0 => {
                [("tokens_of_rows_that_train_less", samples.tokens_given_up)].into()
            }
            _ => BTreeMap::new(),
        }
    }
}

impl Samples {
    fn add(&mut self, row: Row, place: Place) -> Result<(), Refused> {
        if let Some(why) = (self.refuse)(&row) {
            return Err(why);
        }
        let trained = row.tokens.trained();
        let other = self.held.as_ref().filter(|_| self.one_row).map(|s| s.row.tokens.trained());
        let Some(other) = other else {
            self.let_go(false);
            self.hold(row, place);
            return Ok(());
        };
        self.tokens_given_up += other.min(trained) as u64;
        if trained > other {
            self.hold(row, place);
        }
        Err("rows_that_train_less")
    }

    fn hold(&mut self, row: Row, place: Place) {
        let good = row.reward.is_some_and(|reward| reward > self.label_above);
        let index = Shard::number(self.shard, self.count);
        let of_attempt = self.of_attempt;
        self.count += 1;
        self.of_attempt += 1;
        self.held = Some(Box::new(Sample { row, place, index, of_attempt, good, last: false }));
    }

    fn let_go(&mut self, last: bool) {
        if let Some(sample) = self.held.take() {
            let bytes = sample.row.bytes();
            self.table.push(Sample { last, ..*sample }, bytes);
        }
    }
}

/// What a loss over ratios of probabilities cannot take. The logprobs of ids that were made from
/// text stand as 0, and a trainer would believe them.
fn untrained(row: &Row) -> Option<Refused> {
    match row.tokens.trained() {
        0 => Some("rows_without_trained_tokens"),
        _ if row.reasons.contains(&Reason::Retokenized) => Some("rows_without_logprobs"),
        _ => None,
    }
}

fn unscored(row: &Row) -> Option<Refused> {
    row.reward.is_none().then_some("rows_without_reward")
}

fn unlabelled(row: &Row) -> Option<Refused> {
    (row.tokens.trained() == 0).then_some("rows_without_trained_tokens")
}

fn unanswered(row: &Row) -> Option<Refused> {
    let last = row.dialogue.completion.last();
    last.is_none_or(|m| m.role != "assistant").then_some("rows_without_answer")
}

fn untrained_or_unscored(row: &Row) -> Option<Refused> {
    untrained(row).or_else(|| unscored(row))
}

fn unanswered_or_unscored(row: &Row) -> Option<Refused> {
    unanswered(row).or_else(|| unscored(row))
}
