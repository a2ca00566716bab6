//! Tests of a folder of scores, from replies to the rows of an export.

use std::fs;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Float32Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use store::Selection;
use wire::TokenScore;

use super::folder::{ScoreFolder, ScoreFolderError};
use super::paths::{ScorePath, read_paths};
use super::sidecar::{ScoreSet, ScoredRow};
use crate::tests::fixture::call;
use crate::tests::stored::{Stored, stored};
use crate::{ExportError, Options, Report};

fn set(model: &str) -> ScoreSet {
    ScoreSet { name: "big".to_owned(), model: model.to_owned(), version: String::new(), top: 1 }
}

/// Scores whose logprobs are the ids as tenths, below zero.
fn answered(path: &ScorePath) -> ScoredRow {
    let score = |id: &u32| {
        let logprob = *id as f32 / -10.0;
        Some(TokenScore { logprob, top: vec![(1, -0.01)] })
    };
    let scores: Vec<_> = [None].into_iter().chain(path.ids.iter().skip(1).map(score)).collect();
    ScoredRow::new(&set("m"), path, &scores).unwrap()
}

async fn paths_of(store: &Stored) -> Vec<ScorePath> {
    let mut snapshot = store.snapshot().await;
    let mut paths = Vec::new();
    for record in snapshot.episodes(&Selection::default()).await.unwrap() {
        paths.extend(read_paths(&mut snapshot, record).await.unwrap().unwrap());
    }
    paths
}

/// A store of three episodes of two turns each.
async fn three(folder: &Path) -> Stored {
    let turns =
        |n: u32| vec![call(1, &[1, 2 + n], &[&[3]]), call(2, &[1, 2 + n, 3, 4], &[&[5, 6]])];
    let told = ["a", "b", "c"].into_iter().zip(0..);
    let episodes: Vec<_> = told.map(|(name, n)| (name, None, None, turns(n))).collect();
    stored(folder, &episodes).await
}

async fn exported(store: &Stored, folder: &Path, scores: &[&Path]) -> Result<Report, ExportError> {
    let scores = scores.iter().map(|path| path.to_path_buf()).collect();
    let out = folder.join("out").into();
    store.export(&Options { out, scores, overwrite: true, ..Options::default() }).await
}

/// The column of logprobs in the rows of an export.
fn logprobs(report: &Report) -> Vec<Option<Vec<f32>>> {
    let file = fs::File::open(&report.files[0]).unwrap();
    let batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batches: Vec<_> = batches.map(Result::unwrap).collect();
    let column = batches.iter().flat_map(|b| b["score_big_logprobs"].as_list::<i32>().iter());
    let values =
        |list: arrow::array::ArrayRef| list.as_primitive::<Float32Type>().values().to_vec();
    column.map(|list| list.map(values)).collect()
}

#[tokio::test]
async fn scores_are_joined_with_the_rows_of_their_ids() {
    let temporary = tempfile::tempdir().unwrap();
    let store = three(temporary.path()).await;
    let paths = paths_of(&store).await;
    assert_eq!(paths[1].ids, [1, 3, 3, 4, 5, 6]);
    let at = temporary.path().join("scores");
    let mut folder = ScoreFolder::begin(&at, set("m")).unwrap();
    folder.add(answered(&paths[0])).unwrap();
    folder.flush().unwrap();
    // Under the name of the second, other ids were scored.
    let other = ScorePath { ids: vec![1, 3, 3], ..paths[1].clone() };
    folder.add(answered(&other)).unwrap();
    folder.flush().unwrap();
    folder.flush().unwrap();
    assert_eq!(fs::read_dir(&at).unwrap().count(), 3, "two files and the document");

    let report = exported(&store, temporary.path(), &[&at]).await.unwrap();
    let found = logprobs(&report);
    assert_eq!(found, [Some(vec![0.0, -0.2, -0.3, -0.4, -0.5, -0.6]), None, None]);
    let count = &report.scores[0];
    assert_eq!((count.rows, count.without, count.other_ids), (1, 1, 1));
    let manifest = fs::read(report.files.last().unwrap()).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["options"]["scores"], serde_json::json!(["big"]));
    let twice = exported(&store, temporary.path(), &[&at, &at]).await;
    assert!(matches!(twice, Err(ExportError::Scores(ScoreFolderError::SameName(_)))));
}

#[tokio::test]
async fn an_export_without_scores_is_as_it_was() {
    let temporary = tempfile::tempdir().unwrap();
    let store = three(temporary.path()).await;
    let report = exported(&store, temporary.path(), &[]).await.unwrap();
    let manifest = fs::read_to_string(report.files.last().unwrap()).unwrap();
    assert!(!manifest.contains("scores"), "{manifest}");
    let file = fs::File::open(&report.files[0]).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    assert_eq!(reader.schema().fields(), crate::schema().fields());
}

#[tokio::test]
async fn a_folder_goes_on_where_it_stopped_and_takes_no_other_scores() {
    let temporary = tempfile::tempdir().unwrap();
    let store = three(temporary.path()).await;
    let paths = paths_of(&store).await;
    let at = temporary.path().join("a/scores");
    let mut folder = ScoreFolder::begin(&at, set("m")).unwrap();
    folder.add(answered(&paths[0])).unwrap();
    folder.flush().unwrap();
    folder.add(answered(&paths[1])).unwrap();
    // What was not written is scored again.
    drop(folder);

    let mut folder = ScoreFolder::begin(&at, set("m")).unwrap();
    let held = |folder: &ScoreFolder| {
        paths.iter().map(|path| folder.holds(&path.trajectory_id, &path.ids_hash())).collect()
    };
    let found: Vec<bool> = held(&folder);
    assert_eq!((found, folder.rows()), (vec![true, false, false], 1));
    for path in &paths[1..] {
        folder.add(answered(path)).unwrap();
    }
    folder.flush().unwrap();
    let report = exported(&store, temporary.path(), &[&at]).await.unwrap();
    assert_eq!(logprobs(&report)[2].as_deref(), Some(&[0.0, -0.4, -0.3, -0.4, -0.5, -0.6][..]));

    let refused = ScoreFolder::begin(&at, set("n")).unwrap_err().to_string();
    assert!(refused.contains("holds scores of `big` by `m` with --top 1, not of"), "{refused}");
    let newer = fs::read_to_string(at.join("scores.json")).unwrap();
    let newer = newer.replace("\"format_version\": 1", "\"format_version\": 2");
    fs::write(at.join("scores.json"), newer).unwrap();
    let refused = ScoreFolder::open(&at).unwrap_err().to_string();
    assert!(refused.contains("written by a newer rolltape (scores 2)"), "{refused}");
    let none = ScoreFolder::open(temporary.path()).unwrap_err().to_string();
    assert!(none.contains("holds no scores: it has no scores.json"), "{none}");
}
