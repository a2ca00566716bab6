//! The table of scores, whose files stand beside exports: its columns, and rows made of replies.

use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int32Array, ListArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use wire::TokenScore;

use crate::rows::columns::{list, nested, strings};
use crate::rows::schema::created_by;
use crate::rows::scores::{NO_ID, RowScores, TopScores};
use crate::scoring::paths::ScorePath;

/// Version of the columns below, and of the folder that has the files.
pub(crate) const SCORES_VERSION: i32 = 1;
/// Level of zstd compression.
const ZSTD_LEVEL: i32 = 3;

/// Every column of the table: name, type as documents write it, and content.
pub(crate) const SCORED_COLUMNS: [(&str, &str, &str); 9] = [
    ("schema_version", "int32", "version of this table: 1"),
    ("trajectory_id", "string", "the row: episode_id/attempt/trajectory_index"),
    ("ids_hash", "string", "hash of the ids that were scored (BLAKE3 of them as 32 bits each)"),
    ("name", "string", "the name that `--as` gave the scores"),
    ("model", "string", "the server's name of the model"),
    ("version", "string", "label of its weights, as `--version` says; empty without it"),
    ("logprobs", "list<float32>", "one a token of `input_ids`; 0.0 for the first"),
    (
        "top_ids",
        "list<list<int32>>",
        "`--top` + 1 ids a token: the likeliest, and the token's own; -1 fills up; null without",
    ),
    ("top_logprobs", "list<list<float32>>", "their logprobs; minus infinity fills up"),
];

/// One model whose scores stand in a folder.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScoreSet {
    /// The name of the scores.
    pub name: String,
    /// The server's name of the model.
    pub model: String,
    /// Label of its weights; empty where none is given.
    pub version: String,
    /// Number of the most probable ids that are kept beside each token.
    pub top: usize,
}

/// A path with its scores.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredRow {
    pub(crate) trajectory_id: String,
    pub(crate) ids_hash: String,
    pub(crate) scores: RowScores,
}

impl ScoredRow {
    /// Makes the row of a path of what a server answered; none where a token behind the first has
    /// no score.
    pub fn new(set: &ScoreSet, path: &ScorePath, scores: &[Option<TokenScore>]) -> Option<Self> {
        let behind = scores.get(1..).unwrap_or_default();
        let known: Vec<&TokenScore> = behind.iter().flatten().collect();
        if known.len() + 1 != path.ids.len() {
            return None;
        }
        let logprobs = [0.0].into_iter().chain(known.iter().map(|score| score.logprob)).collect();
        let top = (set.top > 0).then(|| tops(set.top + 1, &path.ids, &known));
        Some(Self {
            trajectory_id: path.trajectory_id.clone(),
            ids_hash: path.ids_hash(),
            scores: RowScores { name: set.name.clone(), logprobs, top },
        })
    }

    /// Estimates the bytes that it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.trajectory_id.len() + self.ids_hash.len() + self.scores.bytes()
    }
}

/// Makes the lists of `width` ids a token; that of the first token is empty but for what fills up.
fn tops(width: usize, ids: &[u32], known: &[&TokenScore]) -> TopScores {
    let length = width * ids.len();
    let (mut all, mut logprobs) = (vec![NO_ID; length], vec![f32::NEG_INFINITY; length]);
    for (place, (id, score)) in ids.iter().skip(1).zip(known).enumerate() {
        let mut here: Vec<(u32, f32)> = score.top.iter().copied().take(width - 1).collect();
        if here.iter().all(|(listed, _)| listed != id) {
            here.push((*id, score.logprob));
        }
        for (at, (id, logprob)) in here.into_iter().enumerate() {
            let at = (place + 1) * width + at;
            (all[at], logprobs[at]) = (i32::try_from(id).unwrap_or(NO_ID), logprob);
        }
    }
    TopScores { width, ids: all, logprobs }
}

/// Returns the Arrow schema of the table.
pub(crate) fn scores_schema() -> SchemaRef {
    let of = |data_type| DataType::List(Arc::new(Field::new("element", data_type, false)));
    let fields = SCORED_COLUMNS.iter().map(|(name, documented, _)| {
        let data_type = match *documented {
            "int32" => DataType::Int32,
            "list<float32>" => of(DataType::Float32),
            "list<list<int32>>" => of(of(DataType::Int32)),
            "list<list<float32>>" => of(of(DataType::Float32)),
            _ => DataType::Utf8,
        };
        Field::new(*name, data_type, name.starts_with("top_"))
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Makes the bytes of a file of rows.
///
/// # Errors
/// [`ParquetError`] when the rows have more elements than 32 bits count.
pub(crate) fn encode(set: &ScoreSet, rows: &[ScoredRow]) -> Result<Vec<u8>, ParquetError> {
    let schema = scores_schema();
    let columns = schema.fields().iter().map(|field| column(field, set, rows));
    let columns: Result<Vec<ArrayRef>, ArrowError> = columns.collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns?)?;
    let properties = WriterProperties::builder()
        .set_created_by(created_by())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
    writer.write(&batch)?;
    writer.into_inner()
}

fn column(field: &Field, set: &ScoreSet, rows: &[ScoredRow]) -> Result<ArrayRef, ArrowError> {
    let same = |text: &str| strings(rows.iter().map(|_| Some(text)));
    let tops = || rows.iter().map(|row| row.scores.top.as_ref());
    let inner = || tops().map(|top| top.map(TopScores::lengths));

    Ok(match field.name().as_str() {
        "schema_version" => Arc::new(Int32Array::from(vec![SCORES_VERSION; rows.len()])),
        "trajectory_id" => strings(rows.iter().map(|row| Some(row.trajectory_id.as_str())))?,
        "ids_hash" => strings(rows.iter().map(|row| Some(row.ids_hash.as_str())))?,
        "name" => same(&set.name)?,
        "model" => same(&set.model)?,
        "version" => same(&set.version)?,
        "top_ids" => {
            let values = tops().flatten().flat_map(|top| top.ids.iter().copied());
            nested(field, inner(), Arc::new(Int32Array::from_iter_values(values)))?
        }
        "top_logprobs" => {
            let values = tops().flatten().flat_map(|top| top.logprobs.iter().copied());
            nested(field, inner(), Arc::new(Float32Array::from_iter_values(values)))?
        }
        _ => {
            let values = rows.iter().flat_map(|row| row.scores.logprobs.iter().copied());
            let lengths = rows.iter().map(|row| Some(row.scores.logprobs.len()));
            list(field, lengths, Arc::new(Float32Array::from_iter_values(values)))?
        }
    })
}

/// Reads the scores of the rows of a batch.
///
/// # Errors
/// [`ArrowError`] when the batch is not of the table.
pub(crate) fn decode(name: &str, batch: &RecordBatch) -> Result<Vec<RowScores>, ArrowError> {
    let lists = |name: &str| batch.column_by_name(name)?.as_list_opt::<i32>();
    let logprobs = lists("logprobs");
    let tops = lists("top_ids").zip(lists("top_logprobs"));

    let row = |at: usize| -> Option<RowScores> {
        let told = logprobs?.value(at);
        let logprobs = told.as_primitive_opt::<Float32Type>()?.values().to_vec();
        let top = match tops.filter(|(ids, _)| ids.is_valid(at)) {
            Some((ids, logprobs)) => Some(top_of(&ids.value(at), &logprobs.value(at))?),
            None => None,
        };
        Some(RowScores { name: name.to_owned(), logprobs, top })
    };
    let missing = || ArrowError::SchemaError("not a table of scores".to_owned());
    (0..batch.num_rows()).map(|at| row(at).ok_or_else(missing)).collect()
}

/// Reads the lists of a row.
fn top_of(ids: &ArrayRef, logprobs: &ArrayRef) -> Option<TopScores> {
    let (ids, logprobs) = (ids.as_list_opt::<i32>()?, logprobs.as_list_opt::<i32>()?);
    let (width, id_values) = (ids.iter().flatten().map(|ids| ids.len()).next()?, flat(ids));
    Some(TopScores {
        width,
        ids: id_values.as_primitive_opt::<Int32Type>()?.values().to_vec(),
        logprobs: flat(logprobs).as_primitive_opt::<Float32Type>()?.values().to_vec(),
    })
}

/// Returns the elements of all lists; those of a part of an array are its own only.
fn flat(lists: &ListArray) -> ArrayRef {
    let offsets = lists.value_offsets();
    let (from, to) = (offsets[0] as usize, offsets[lists.len()] as usize);
    lists.values().slice(from, to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_page_shows_every_column_of_the_table() {
        let page = include_str!("../../../docs/score.md");
        for (name, ty, doc) in SCORED_COLUMNS {
            let line = format!("| {name} | `{ty}` | {doc} |\n");
            assert!(page.contains(&line), "docs/score.md lacks the line\n{line}");
        }
    }

    fn score(logprob: f32, top: &[(u32, f32)]) -> Option<TokenScore> {
        Some(TokenScore { logprob, top: top.to_vec() })
    }

    fn path(ids: &[u32]) -> ScorePath {
        let (trajectory_id, attempt) = ("e/0/0".to_owned(), "e/0".to_owned());
        ScorePath { trajectory_id, attempt, ids: ids.to_vec(), spans: Vec::new() }
    }

    #[test]
    fn the_token_itself_is_always_among_the_likeliest() {
        let named = |top| ScoreSet {
            name: "t".to_owned(),
            model: "m".to_owned(),
            version: String::new(),
            top,
        };
        let (set, path) = (named(2), path(&[5, 6, 7]));
        let likely = score(-0.5, &[(6, -0.5), (9, -1.0)]);
        let told = [None, likely, score(-4.0, &[(1, -0.25), (2, -2.0)])];
        let row = ScoredRow::new(&set, &path, &told).unwrap();
        assert_eq!(row.scores.logprobs, [0.0, -0.5, -4.0]);
        let top = row.scores.top.as_ref().unwrap();
        assert_eq!((top.width, &top.ids[..]), (3, &[-1, -1, -1, 6, 9, -1, 1, 2, 7][..]));
        assert_eq!(row.scores.at(2).collect::<Vec<_>>(), [(1, -0.25), (2, -2.0), (7, -4.0)]);
        assert_eq!((row.scores.at(0).count(), row.scores.at(1).count()), (0, 2));

        // A score of a token in between is missing.
        let holed = [None, None, score(-1.0, &[])];
        assert_eq!(ScoredRow::new(&set, &path, &holed), None);
        assert_eq!(ScoredRow::new(&set, &path, &told[..2]), None);
        let plain = ScoredRow::new(&named(0), &path, &told).unwrap();
        assert_eq!((plain.scores.at(1).count(), plain.scores.top), (0, None));
    }
}
