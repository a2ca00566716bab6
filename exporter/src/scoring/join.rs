//! Joins scores with the rows of an export.

use std::path::PathBuf;

use crate::rows::row::Row;
use crate::scoring::folder::{FoundScores, ScoreFolder, ScoreFolderError};
use crate::scoring::hash::hash_of;

/// Counts of what the rows of an export got of one set of scores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScoreCount {
    /// The name of the scores.
    pub name: String,
    /// Rows with scores.
    pub rows: u64,
    /// Rows that were not scored.
    pub without: u64,
    /// Rows of which other ids were scored, which get none.
    pub other_ids: u64,
}

/// The folders of scores of an export.
#[derive(Debug, Default)]
pub(crate) struct ScoreFolders {
    folders: Vec<(ScoreFolder, ScoreCount)>,
}

impl ScoreFolders {
    /// Opens folders, each of scores of another name.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, ScoreFolderError> {
        let mut all = Self::default();
        for path in paths {
            let folder = ScoreFolder::open(path)?;
            let name = folder.set().name.clone();
            if all.names().contains(&name) {
                return Err(ScoreFolderError::SameName(name));
            }
            all.folders.push((folder, ScoreCount { name, ..ScoreCount::default() }));
        }
        Ok(all)
    }

    /// Returns the names of the scores.
    pub(crate) fn names(&self) -> Vec<String> {
        self.folders.iter().map(|(_, count)| count.name.clone()).collect()
    }

    /// Returns a row with its scores. Those of other ids than its own are not taken.
    pub(crate) fn join(&mut self, mut row: Row) -> Result<Row, ScoreFolderError> {
        if self.folders.is_empty() {
            return Ok(row);
        }
        let ids = row.tokens.input_ids.iter().map(|id| id.cast_unsigned());
        let hash = hash_of(ids);
        for (folder, count) in &mut self.folders {
            match folder.find(&row.trajectory_id, &hash)? {
                FoundScores::Scores(scores) => {
                    count.rows += 1;
                    row.scores.push(scores);
                }
                FoundScores::OtherIds => count.other_ids += 1,
                FoundScores::None => count.without += 1,
            }
        }
        Ok(row)
    }

    /// Returns what rows got.
    pub(crate) fn counts(self) -> Vec<ScoreCount> {
        self.folders.into_iter().map(|(_, count)| count).collect()
    }
}
