//! The paths of an export: what its rows say of the ids, the logprobs and the sampling.

use std::fs::File;
use std::path::{Path, PathBuf};

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::errors::ParquetError;
use arrow::array::{Array, AsArray, ListArray, RecordBatch, StructArray};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type};
use arrow::error::ArrowError;
use thiserror::Error;

use crate::scoring::paths::{SampledSpan, ScorePath, StatedSampling};

/// The columns that are read.
const COLUMNS: [&str; 9] = [
    "trajectory_id",
    "episode_id",
    "attempt",
    "model",
    "input_ids",
    "logprobs",
    "versions",
    "turns",
    "logprob_kind",
];

/// Reason why the rows of a file cannot be scored.
#[derive(Debug, Error)]
#[error("cannot read the rows of `{path}`; an audit reads Parquet files of trajectories")]
pub struct ReadRowsError {
    path: PathBuf,
    #[source]
    source: ParquetError,
}

/// Returns the paths of a Parquet file of trajectories, of which about a share is taken. A span
/// that several rows hold is in each of them.
///
/// # Errors
/// [`ReadRowsError`] when the file is not one of trajectories.
pub fn exported_paths(path: &Path, share: f64) -> Result<Vec<ScorePath>, ReadRowsError> {
    let error = |source| ReadRowsError { path: path.to_owned(), source };
    let file = File::open(path).map_err(|e| error(e.into()))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(error)?;
    let columns = ProjectionMask::columns(builder.parquet_schema(), COLUMNS);
    let batches = builder.with_projection(columns).build().map_err(error)?;

    let mut paths = Vec::new();
    for batch in batches {
        let batch = batch.map_err(|source: ArrowError| error(source.into()))?;
        let rows = ExportedRows::of(&batch).ok_or_else(|| {
            error(ParquetError::General("columns of trajectories are missing".to_owned()))
        })?;
        paths.extend((0..batch.num_rows()).filter_map(|row| rows.path(row)));
    }
    // As with attempts of a store: by a hash, and not fewer than some.
    paths.sort_by_key(|path| *blake3::hash(path.trajectory_id.as_bytes()).as_bytes());
    paths.truncate(((paths.len() as f64 * share).ceil() as usize).max(super::sample::ATTEMPTS_MIN));
    Ok(paths)
}

/// The columns of some rows.
struct ExportedRows<'a> {
    batch: &'a RecordBatch,
    ids: &'a ListArray,
    logprobs: &'a ListArray,
    versions: &'a ListArray,
    turns: &'a ListArray,
}

impl<'a> ExportedRows<'a> {
    fn of(batch: &'a RecordBatch) -> Option<Self> {
        let list = |name: &str| batch.column_by_name(name)?.as_list_opt();
        let texts = ["trajectory_id", "episode_id", "model", "logprob_kind"];
        if !texts.iter().all(|name| batch.column_by_name(name).is_some()) {
            return None;
        }
        let (ids, logprobs) = (list("input_ids")?, list("logprobs")?);
        Some(Self { batch, ids, logprobs, versions: list("versions")?, turns: list("turns")? })
    }

    fn text(&self, name: &str, row: usize) -> String {
        let column = self.batch.column_by_name(name).and_then(|c| c.as_string_opt::<i32>());
        column.map(|column| column.value(row).to_owned()).unwrap_or_default()
    }

    fn path(&self, row: usize) -> Option<ScorePath> {
        let ids = self.ids.value(row);
        let ids: Vec<u32> =
            ids.as_primitive_opt::<Int32Type>()?.values().iter().map(|id| *id as u32).collect();
        let turns = self.turns.value(row);
        let turns = turns.as_struct_opt()?;
        let spans: Vec<_> =
            (0..turns.len()).filter_map(|turn| self.span(row, turns, turn, ids.len())).collect();

        let attempt = self.batch.column_by_name("attempt")?.as_primitive_opt::<Int32Type>()?;
        let attempt = format!("{}/{}", self.text("episode_id", row), attempt.value(row));
        let trajectory_id = self.text("trajectory_id", row);
        (!spans.is_empty()).then_some(ScorePath { trajectory_id, attempt, ids, spans })
    }

    fn span(
        &self,
        row: usize,
        turns: &StructArray,
        turn: usize,
        count: usize,
    ) -> Option<SampledSpan> {
        let place = |name: &str| {
            let column = turns.column_by_name(name)?.as_primitive_opt::<Int32Type>()?;
            usize::try_from(column.value(turn)).ok()
        };
        let (start, end) = (place("start")?, place("end")?.min(count));
        if start >= end {
            return None;
        }
        let logprobs = self.logprobs.value(row);
        let logprobs = logprobs.as_primitive_opt::<Float32Type>()?.values().get(start..end)?;
        let versions = self.versions.value(row);
        let versions = versions.as_primitive_opt::<Int32Type>()?.values().get(start..end)?;
        let first = *versions.first()?;
        let is_one = first >= 0 && versions.iter().all(|version| *version == first);

        let temperature = turns.column_by_name("temperature")?.as_primitive_opt::<Float64Type>()?;
        let calls = turns.column_by_name("call_id")?.as_string_opt::<i32>()?;
        // ExportedRows do not say how the distribution was truncated, so that this is found out.
        let kind = match self.text("logprob_kind", row) {
            kind if kind == "processed" => "unknown".to_owned(),
            kind => kind,
        };
        Some(SampledSpan {
            call_id: calls.value(turn).to_owned(),
            choice: 0,
            start,
            recorded: logprobs.to_vec(),
            version: is_one.then(|| first.to_string()),
            engine: None,
            model: self.text("model", row),
            sampling: StatedSampling {
                kind,
                temperature: temperature.is_valid(turn).then(|| temperature.value(turn)),
                kv_cache: Some(self.text("kv_cache", row)).filter(|numbers| !numbers.is_empty()),
                ..StatedSampling::default()
            },
            continues: turn > 0,
            has_experts: false,
            chat: None,
            texts: Vec::new(),
        })
    }
}
