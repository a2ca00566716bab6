//! Writes annotations: beside the choices of their calls, or by the ids of calls that are in
//! segments.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use episode::{Annotation, AttemptId, CallId};

use crate::attempts::find_attempt;
use crate::commit::record::SealedCalls;
use crate::database::connection::StoreConnection;
use crate::database::query::{Query, query};
use crate::encoding::pack::pack_planes;
use crate::error::{CommitError, CommitResult};

const INSERT: &str = "INSERT INTO annotation (call_key, choice_index, name, version, token_start, \
    tokens, data, given_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
const INSERT_LATE: &str = "INSERT INTO late_annotation (episode_key, call_id, choice_index, name, \
    version, token_start, tokens, data, given_at, is_late) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1)";

/// The place of a call.
#[derive(Debug, Clone, Copy)]
enum PlaceOfCall {
    /// It is in the store, under this key.
    Here(i64),
    /// It is in the segment of the attempt of this key.
    Sealed(i64),
}

/// Appends annotations. Those that come together are about the choices of a few calls.
pub(super) async fn annotate(
    connection: &mut StoreConnection,
    annotations: &[Annotation],
    sealed: &SealedCalls,
) -> CommitResult {
    let mut places = HashMap::new();
    for annotation in annotations {
        let call = annotation.call;
        let place = match places.entry(call) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(place_of(connection, call, sealed.get(&call)).await?),
        };

        let insert: Query = match place {
            PlaceOfCall::Here(key) => query(INSERT).bind(key),
            PlaceOfCall::Sealed(key) => query(INSERT_LATE).bind(key).bind(call.to_string()),
        };
        insert
            .bind(i64::from(annotation.choice))
            .bind(&annotation.name)
            .bind(&annotation.version)
            .bind(i64::from(annotation.start))
            .bind(annotation.values.len() as i64)
            .bind(pack_planes(&annotation.values))
            .bind(annotation.at)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// The place of a call, which a reader may have found in the segment of an attempt.
async fn place_of(
    connection: &mut StoreConnection,
    call: CallId,
    sealed: Option<&AttemptId>,
) -> Result<PlaceOfCall, CommitError> {
    let found = query("SELECT call_key FROM call WHERE call_id = $1")
        .bind(call.to_string())
        .fetch_optional(connection)
        .await?;
    match (found, sealed) {
        (Some(row), _) => Ok(PlaceOfCall::Here(row.try_get("call_key")?)),
        (None, Some(attempt)) => Ok(PlaceOfCall::Sealed(find_attempt(connection, attempt).await?)),
        (None, None) => Err(absent(connection, call).await?),
    }
}

/// The reason why a call is not there. Whoever annotates has read it, so it may be in a segment.
async fn absent(
    connection: &mut StoreConnection,
    call: CallId,
) -> Result<CommitError, sqlx::Error> {
    let any = query("SELECT 1 FROM sealed LIMIT 1").fetch_optional(connection).await?;
    Ok(if any.is_some() { CommitError::Sealed(call) } else { CommitError::UnknownCall(call) })
}
