//! Writes annotations.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use episode::{Annotation, CallId};

use crate::database::connection::StoreConnection;
use crate::database::query::query;
use crate::encoding::pack::pack_planes;
use crate::error::{CommitError, CommitResult};

/// Appends annotations. Those that come together are about the choices of a few calls.
pub(super) async fn annotate(
    connection: &mut StoreConnection,
    annotations: &[Annotation],
) -> CommitResult {
    let mut keys = HashMap::new();
    for annotation in annotations {
        let key = match keys.entry(annotation.call) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(call_key(connection, annotation.call).await?),
        };

        query(
            "INSERT INTO annotation (call_key, choice_index, name, version, token_start, tokens, \
             data, given_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(key)
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

async fn call_key(connection: &mut StoreConnection, call: CallId) -> Result<i64, CommitError> {
    let found = query("SELECT call_key FROM call WHERE call_id = $1")
        .bind(call.to_string())
        .fetch_optional(connection)
        .await?;
    match found {
        Some(row) => Ok(row.try_get("call_key")?),
        None => Err(absent(connection, call).await?),
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
