//! Record builders: they take the rows of an export as they come, and make records of them.
//!
//! - [`trajectories`]: a record is a row. [`calls`]: a call. [`turns`]: a choice of a call.
//! - [`samples`]: a row, or a part of one. [`attempts`]: an attempt. [`pairs`]: two answers.
//! - [`blocks`]: a row for each attempt of a group. [`traces`]: a prompt of a call, without text.

pub(crate) mod attempts;
mod blocks;
mod calls;
pub(crate) mod pairs;
mod samples;
mod traces;
mod trajectories;
mod turns;

use std::collections::BTreeSet;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use episode::Call;
use store::AttemptRecord;

use crate::formats::conversations::{kto, openai, preference, sft, sft_tokens};
use crate::formats::records::attempts::AttemptRecords;
use crate::formats::records::blocks::BlockRecords;
use crate::formats::records::calls::CallRecords;
use crate::formats::records::pairs::PairRecords;
use crate::formats::records::samples::SampleRecords;
use crate::formats::records::traces::TraceRecords;
use crate::formats::records::trajectories::TrajectoryRecords;
use crate::formats::records::turns::TurnRecords;
use crate::formats::refusals::{
    RowRefusal, nothing, unanswered, unlabeled, unscored, untaught, untrained,
    untrained_or_unscored, untrained_or_unscored_unless_aborted,
};
use crate::formats::sample::Sample;
use crate::formats::table::{RecordColumn, Table};
use crate::formats::trainers::{
    areal, art, atif, nemo_gym, prime_rl, rllm, skyrl, slime, tinker, trl, verifiers,
    verifiers_traces, verl,
};
use crate::input::plan::{AttemptNumbers, PlannedAttempt, Shard};
use crate::notes::Omissions;
use crate::options::format::Format;
use crate::rows::row::Row;

/// Makes the records of one format.
///
/// An attempt is given as its start, its calls, its rows, and its end.
pub(crate) trait RecordBuilder: Send {
    /// Continues the numbers of rows behind those of earlier increments, as one shard of several.
    fn continue_numbers(&mut self, _rows: u64, _shard: Option<Shard>) {}

    /// Starts an attempt.
    fn start_attempt(&mut self, _attempt: &PlannedAttempt) {}

    /// Takes a call of an attempt.
    fn add_call(&mut self, _episode: &AttemptRecord, _call: &Call) {}

    /// Takes a row. Returns false where it makes no record.
    fn add_row(&mut self, row: Row, numbers: AttemptNumbers) -> bool;

    /// Ends an attempt: it has no more rows.
    fn end_attempt(&mut self) {}

    /// Ends a file: it has no more attempts.
    fn end_file(&mut self) {}

    /// Corrects the set of attempts of which a row was taken, by their names, to those of which
    /// there is a record.
    fn correct(&self, _attempts: &mut BTreeSet<String>) {}

    /// Returns the records that wait for a batch.
    fn pending(&mut self) -> &mut dyn PendingRecords;

    /// Returns what was taken and made no record.
    fn omissions(&self) -> Omissions {
        Omissions::new()
    }
}

/// Records that wait to be made into a batch.
pub(crate) trait PendingRecords {
    fn schema(&self) -> SchemaRef;

    /// Estimates the bytes of the next batch.
    fn bytes(&self) -> usize;

    /// Makes a batch of the records since the last one.
    fn take_batch(&mut self) -> Result<RecordBatch, ArrowError>;
}

impl<T> PendingRecords for Table<T> {
    fn schema(&self) -> SchemaRef {
        self.schema()
    }

    fn bytes(&self) -> usize {
        self.pending_bytes()
    }

    fn take_batch(&mut self) -> Result<RecordBatch, ArrowError> {
        self.take_batch()
    }
}

/// Returns the builder of a format whose rows have scores of these names. Rewards above
/// `label_above` are good ones.
pub(crate) fn scored_record_builder(
    format: Format,
    label_above: f64,
    scores: &[String],
) -> Box<dyn RecordBuilder> {
    let samples = |columns, more| {
        Box::new(SampleRecords::new(format, columns, untrained, label_above).and(more))
    };
    match format {
        _ if scores.is_empty() => record_builder(format, label_above),
        Format::Trajectories => Box::new(TrajectoryRecords::new(scores)),
        Format::PrimeRl => samples(prime_rl::COLUMNS, prime_rl::SCORED),
        Format::Tinker => samples(tinker::COLUMNS, tinker::SCORED),
        _ => record_builder(format, label_above),
    }
}

/// Returns the builder of a format. Rewards above `label_above` are good ones.
pub(crate) fn record_builder(format: Format, label_above: f64) -> Box<dyn RecordBuilder> {
    let samples = |columns: &'static [RecordColumn<Sample>], refusal: RowRefusal| {
        Box::new(SampleRecords::new(format, columns, refusal, label_above))
    };
    match format {
        Format::Trajectories => Box::new(TrajectoryRecords::new(&[])),
        Format::Calls => Box::new(CallRecords::new()),
        Format::Turns => Box::new(TurnRecords::new()),
        Format::Mooncake => Box::new(TraceRecords::new()),

        // Conversations.
        Format::Sft => samples(sft::COLUMNS, nothing),
        Format::SftTokens => samples(sft_tokens::COLUMNS, unlabeled),
        Format::Kto => samples(kto::COLUMNS, unscored),
        Format::OpenAi => samples(openai::COLUMNS, nothing),
        Format::Preference => Box::new(PairRecords::new(preference::COLUMNS, false)),
        Format::OpenAiPreference => Box::new(PairRecords::new(openai::PREFERENCE, true)),

        // Trainers.
        Format::Atif => samples(atif::COLUMNS, unanswered),
        Format::Art => samples(art::COLUMNS, untrained_or_unscored),
        Format::Trl => Box::new(BlockRecords::new(trl::COLUMNS, untrained)),
        Format::TrlAsync => samples(trl::ASYNC, untrained_or_unscored),
        Format::TrlDistillation => samples(trl::DISTILLATION, untaught),
        Format::Verl => samples(verl::COLUMNS, untrained),
        Format::PrimeRl => samples(prime_rl::COLUMNS, untrained),
        Format::SkyRl => samples(skyrl::COLUMNS, untrained_or_unscored),
        Format::Slime => samples(slime::COLUMNS, untrained_or_unscored_unless_aborted),
        Format::AReaL => samples(areal::COLUMNS, untrained_or_unscored),
        Format::Tinker => samples(tinker::COLUMNS, untrained),
        Format::NemoGym => samples(nemo_gym::COLUMNS, untrained_or_unscored),
        Format::Rllm => {
            Box::new(AttemptRecords::new(rllm::COLUMNS, untrained_or_unscored, label_above))
        }
        Format::VerifiersTraces => {
            Box::new(AttemptRecords::new(verifiers_traces::COLUMNS, nothing, label_above))
        }
        Format::Verifiers => {
            Box::new(AttemptRecords::new(verifiers::COLUMNS, unscored, label_above))
        }
    }
}
