//! Records about calls that are in segments. The writer does not open segments: a reader finds the
//! calls first. They cannot go meanwhile, unless their attempt does.

use std::collections::hash_map::Entry;

use episode::{AttemptId, CallId};

use crate::commit::{Record, SealedCalls};
use crate::error::{CommitError, SnapshotError, with_causes};
use crate::snapshot::Snapshot;

/// The record with what a reader knows of its calls. The writer did not find `call`.
///
/// # Errors
/// [`CommitError::UnknownCall`] where no segment has a call, and [`CommitError::Sealed`] where one
/// cannot be read.
pub(super) async fn of_sealed_calls(
    record: Record,
    call: CallId,
    snapshot: Result<Snapshot, SnapshotError>,
) -> Result<Record, CommitError> {
    let mut snapshot = snapshot.map_err(|error| unread(call, &error))?;

    match record {
        Record::Reward { attempt, reward, .. } => {
            match find(&mut snapshot, call).await? == attempt {
                true => Ok(Record::Reward { attempt, reward, in_segment: true }),
                false => Err(CommitError::UnknownCall(call)),
            }
        }
        Record::Annotate(annotations, _) => {
            let mut sealed = SealedCalls::new();
            for annotation in &annotations {
                if let Entry::Vacant(new) = sealed.entry(annotation.call) {
                    new.insert(find(&mut snapshot, annotation.call).await?);
                }
            }
            Ok(Record::Annotate(annotations, sealed))
        }
        Record::Comment(comments, _) => {
            let mut sealed = SealedCalls::new();
            for (attempt, comment) in &comments {
                let Some(call) = comment.call else { continue };
                if find(&mut snapshot, call).await? != *attempt {
                    return Err(CommitError::UnknownCall(call));
                }
                sealed.insert(call, attempt.clone());
            }
            Ok(Record::Comment(comments, sealed))
        }
        _ => Err(CommitError::UnknownCall(call)),
    }
}

/// The attempt that has a call.
async fn find(snapshot: &mut Snapshot, call: CallId) -> Result<AttemptId, CommitError> {
    let found = snapshot.attempt_with(call).await.map_err(|error| unread(call, &error))?;
    let record = found.ok_or(CommitError::UnknownCall(call))?;
    Ok(AttemptId { episode: record.id, attempt: record.attempt })
}

fn unread(call: CallId, error: &SnapshotError) -> CommitError {
    tracing::warn!(%call, error = %with_causes(error), "the segment of a call cannot be read");
    CommitError::Sealed(call)
}
