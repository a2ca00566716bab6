//! Bodies and segments of reels, inside the write transaction.

use sqlx::SqliteConnection;

use crate::reel::{Body, Reel, Segment};

/// Writes a request's body and gives its key; later ones may be like it.
pub(crate) async fn write_request(
    connection: &mut SqliteConnection,
    reel: &mut Reel,
    body: &[u8],
) -> Result<i64, sqlx::Error> {
    let coded = reel.body(body);
    let key = write_body(connection, (reel.key, &coded), body.len()).await?;
    reel.remember(key, coded);
    Ok(key)
}

/// Writes a reply's body and gives its key.
pub(crate) async fn write_reply(
    connection: &mut SqliteConnection,
    reel: &mut Reel,
    body: &[u8],
) -> Result<i64, sqlx::Error> {
    let coded = reel.body(body);
    write_body(connection, (reel.key, &coded), body.len()).await
}

async fn write_body(
    connection: &mut SqliteConnection,
    (reel_key, body): (i64, &Body),
    length: usize,
) -> Result<i64, sqlx::Error> {
    if let Some(segment) = &body.segment {
        write_segment(connection, reel_key, segment).await?;
    }
    sqlx::query_scalar(
        "INSERT INTO body (encoding, base_key, length, data, reel_key, depth, hash) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING body_key",
    )
    .bind(body.encoding)
    .bind(body.base_key)
    .bind(length as i64)
    .bind(body.data.as_slice())
    .bind(reel_key)
    .bind(body.depth)
    .bind(body.hash.as_slice())
    .fetch_one(connection)
    .await
}

/// Adds a segment to a reel.
pub(crate) async fn write_segment(
    connection: &mut SqliteConnection,
    reel_key: i64,
    segment: &Segment,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO segment (reel_key, track, start, length, context, encoding, data) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(reel_key)
    .bind(segment.track)
    .bind(segment.start as i64)
    .bind(segment.length as i64)
    .bind(segment.context as i64)
    .bind(segment.packed.encoding)
    .bind(segment.packed.data.as_slice())
    .execute(connection)
    .await?;
    Ok(())
}
