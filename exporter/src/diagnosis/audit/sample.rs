//! The sample of an audit: whole attempts, chosen by a hash of their names, so that two audits of
//! one store look at the same.

use store::{AttemptRecord, Selection, Snapshot, SnapshotError};

use crate::scoring::paths::{ScorePath, read_paths};

/// Attempts that are read at least, as far as there are.
const ATTEMPTS_MIN: usize = 16;

/// What is read for an audit.
#[derive(Debug, Clone)]
pub struct AuditSample {
    /// The attempts of which a part is taken.
    pub selection: Selection,
    /// The part of them, from 0 to 1.
    pub share: f64,
    /// Paths end the sample when they hold as many tokens.
    pub tokens_max: usize,
}

/// Returns the paths of a sample. An attempt that cannot be read back is left out.
///
/// # Errors
/// [`SnapshotError`] when the store cannot be read.
pub async fn sample_paths(
    snapshot: &mut Snapshot,
    sample: &AuditSample,
) -> Result<Vec<ScorePath>, SnapshotError> {
    let records = snapshot.episodes(&sample.selection).await?;
    let mut paths = Vec::new();
    let mut tokens = 0;

    for record in chosen(records, sample.share) {
        let Some(found) = read_paths(snapshot, record).await? else { continue };
        tokens += found.iter().map(|path| path.ids.len()).sum::<usize>();
        paths.extend(found);
        if tokens >= sample.tokens_max {
            break;
        }
    }
    Ok(paths)
}

/// Returns a share of the attempts, but not fewer than [`ATTEMPTS_MIN`], in the order of a hash.
fn chosen(records: Vec<AttemptRecord>, share: f64) -> Vec<AttemptRecord> {
    let hash = |record: &AttemptRecord| {
        let name = format!("{}/{}", record.id, record.attempt);
        *blake3::hash(name.as_bytes()).as_bytes()
    };
    let count = (records.len() as f64 * share).ceil() as usize;
    let mut hashed: Vec<_> = records.into_iter().map(|record| (hash(&record), record)).collect();
    hashed.sort_by_key(|(hash, _)| *hash);
    hashed.truncate(count.max(ATTEMPTS_MIN));
    hashed.into_iter().map(|(_, record)| record).collect()
}
