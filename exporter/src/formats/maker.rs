//! Maker: takes the rows of an export as they come by and makes records of them.

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
use super::table::{Column, Refused, Table};
use super::taught::{Teaching, stretches, taught};
use super::turns::Turns;
use super::{
    Format, areal, art, atif, kto, nemo_gym, openai, prime_rl, sft, sft_tokens, skyrl, slime,
    tinker, trl, verl,
};
use crate::input::plan::{Place, Shard};
use crate::notes::reason::Reason;
use crate::notes::{Left, Lefts, add_left};
use crate::rows::schema::schema;
use crate::rows::{Row, columns};

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
    teaching: Teaching,
    left: Lefts,
    label_above: f64,
    /// Whether an attempt has one row at most: the one that trains most, the first of equal ones.
    one_row: bool,
    /// The last row so far of the attempt: what comes next tells whether it was the last of all,
    /// or trains more than the one that there may be.
    held: Option<Box<Sample>>,
    /// Which row of its attempt the next one is.
    of_attempt: i64,
    /// Rows so far, those of earlier increments included.
    count: i64,
    /// Whose numbers these are.
    shard: Option<Shard>,
}

impl Maker {
    /// Makes records in `format`; rewards above `label_above` are good ones.
    pub(crate) fn new(format: Format, label_above: f64) -> Self {
        let samples = |columns: &'static [Column<Sample>], refuse: fn(&Row) -> Option<Refused>| {
            Self::Samples(Samples {
                table: Table::new(columns),
                refuse,
                teaching: format.teaching(),
                left: Lefts::new(),
                label_above,
                one_row: format.has_one_row(),
                held: None,
                of_attempt: 0,
                count: 0,
                shard: None,
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
            Format::Sft => samples(sft::COLUMNS, nothing),
            Format::SftTokens => samples(sft_tokens::COLUMNS, unlabelled),
            Format::Kto => samples(kto::COLUMNS, unscored),
            Format::OpenAi => samples(openai::COLUMNS, nothing),
            Format::Atif => samples(atif::COLUMNS, unanswered),
            Format::Art => samples(art::COLUMNS, untrained_or_unscored),
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

    /// Takes a row; whether anything is made of it.
    pub(crate) fn row(&mut self, row: Row, place: Place) -> bool {
        match self {
            Self::Rows(rows) => {
                rows.bytes += row.bytes();
                rows.pending.push(row);
            }
            Self::Calls(_) => return false,
            Self::Turns(turns) => turns.add(&row),
            Self::Samples(samples) => return samples.add(row, place),
            Self::Pairs(pairs) => pairs.add(row, place),
            Self::Attempts(attempts) => return attempts.add(row, place),
        }
        true
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

    /// What was taken and of which no record was made.
    pub(crate) fn left_out(&self) -> Lefts {
        match self {
            Self::Pairs(pairs) => pairs.left_out.clone(),
            Self::Samples(samples) => samples.left.clone(),
            Self::Attempts(attempts) => attempts.left.clone(),
            _ => Lefts::new(),
        }
    }
}

impl Samples {
    /// Makes the samples of a row; whether there are any.
    fn add(&mut self, row: Row, place: Place) -> bool {
        if let Some(why) = (self.refuse)(&row) {
            let left = Left { count: 1, trained_tokens: row.tokens.trained() as u64 };
            self.left.entry(why).or_default().add(left);
            return false;
        }
        let (taught, unsaid) = taught(self.teaching, &row);
        add_left(&mut self.left, &unsaid);
        let parts = self.parts(&row, &taught);
        if parts.is_empty() && unsaid.is_empty() {
            self.left.entry(nothing_said(&row)).or_default().count += 1;
        }
        for (first, end) in &parts {
            let taught = taught.iter().copied().filter(|m| (*first..*end).contains(m)).collect();
            self.push(Sample::new(row.clone(), place, (*first, *end), taught));
        }
        !parts.is_empty()
    }

    /// For each sample of a row the first message that it trains, and the end of the last.
    fn parts(&self, row: &Row, taught: &[usize]) -> Vec<(usize, usize)> {
        let all = row.dialogue.prompt.len() + row.dialogue.completion.len();
        match self.teaching {
            Teaching::Tokens | Teaching::Shown => vec![(0, all)],
            Teaching::Stretches => stretches(&row.answers(), taught),
            // What follows the last of them teaches nothing.
            Teaching::Texts => taught.last().map(|last| (0, last + 1)).into_iter().collect(),
            Teaching::Choices => taught.last().map(|_| (0, all)).into_iter().collect(),
        }
    }

    /// Keeps a sample until the next one. Where an attempt has one row, the one that trains less
    /// gives way.
    fn push(&mut self, sample: Sample) {
        let trained = |sample: &Sample| sample.row.tokens.trained();
        if let Some(held) = self.held.as_ref().filter(|_| self.one_row) {
            let (held, other) = (trained(held), trained(&sample));
            let left = Left { count: 1, trained_tokens: held.min(other) as u64 };
            self.left.entry("rows_that_train_less").or_default().add(left);
            if other <= held {
                return;
            }
        } else {
            self.let_go(false);
        }
        let good = sample.row.reward.is_some_and(|reward| reward > self.label_above);
        let index = Shard::number(self.shard, self.count);
        let of_attempt = self.of_attempt;
        self.count += 1;
        self.of_attempt += 1;
        self.held = Some(Box::new(Sample { index, of_attempt, good, ..sample }));
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

fn nothing(_: &Row) -> Option<Refused> {
    None
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

/// Why a row says nothing that may be trained.
fn nothing_said(row: &Row) -> Refused {
    match row.fidelity {
        Some(_) => "rows_without_trained_tokens",
        None => "rows_without_answer",
    }
}
