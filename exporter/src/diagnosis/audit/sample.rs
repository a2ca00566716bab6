//! The sample of an audit: whole attempts, chosen by a hash of their names, so that two audits of
//! one store look at the same.

use store::{AttemptRecord, Selection, Snapshot, SnapshotError};

use super::trainer::of_trainer;
use crate::scoring::paths::{ScorePath, read_attempt, score_paths};

/// Attempts that are read at least, as far as there are.
pub(super) const ATTEMPTS_MIN: usize = 16;

/// The attempts that are read for an audit.
#[derive(Debug, Clone)]
pub struct AuditSample {
    /// The attempts of which a part is taken.
    pub selection: Selection,
    /// The part of them, from 0 to 1.
    pub share: f64,
    /// Paths end the sample when they hold as many tokens.
    pub tokens_max: usize,
    /// True to audit the logprobs that a trainer computed, in the place of the recorded ones.
    pub of_trainer: bool,
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
        let Some(attempt) = read_attempt(snapshot, record).await? else { continue };
        let recorded = score_paths(&attempt);
        let found = match sample.of_trainer {
            true => of_trainer(recorded, &attempt.annotations),
            false => recorded,
        };
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

#[cfg(test)]
pub(super) mod tests {
    use episode::Call;

    use super::*;
    use crate::scoring::paths::StatedSampling;
    use crate::tests::fixture::{call, episode, reply};

    /// The only path of an episode.
    pub(crate) fn path(calls: Vec<Call>) -> ScorePath {
        score_paths(&episode(calls)).remove(0)
    }

    #[test]
    fn a_path_has_its_spans_and_how_they_were_sampled() {
        let mut second = call(2, &[1, 2, 3, 4], &[&[5, 6]]);
        let ended = second.ended.as_mut().unwrap();
        ended.logprob_kind = "processed".to_owned();
        ended.sampled_with = Some(
            r#"{"temperature":{"value":0.5,"source":"request"},
                "top_p":{"value":0.9,"source":"request"},"top_k":{"value":-1,"source":"server"},
                "presence_penalty":{"value":0.5,"source":"request"}}"#
                .to_owned(),
        );
        reply(&mut second).choices[0].logprobs.pop();
        let found = path(vec![call(1, &[1, 2], &[&[3]]), second]);
        assert_eq!(found.ids, [1, 2, 3, 4, 5, 6]);
        let [first, second] = &found.spans[..] else { panic!("{found:?}") };
        assert_eq!((first.start, first.end(), first.continues), (2, 3, false));
        assert_eq!((second.start, second.end(), second.continues), (4, 6, true));
        assert!(second.recorded.iter().all(|logprob| logprob.is_nan()));
        let StatedSampling { temperature, top_p, top_k, is_bent, .. } = second.sampling;
        assert_eq!((temperature, top_p, top_k, is_bent), (Some(0.5), Some(0.9), None, true));
        assert!(!first.sampling.is_bent);
    }
}
