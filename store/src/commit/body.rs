//! The statements for a body and for a segment of a log.

use crate::database::batch::Batch;
use crate::log::episode::{EncodedBody, Segment};

/// Adds a body. Its key is then the batch's last key.
pub(crate) fn add_body(batch: &mut Batch, log_key: i64, body: &EncodedBody) {
    if let Some(segment) = &body.segment {
        add_segment(batch, log_key, segment);
    }
    batch
        .then_keyed(
            "INSERT INTO body (encoding, base_key, length, data, reel_key, depth, hash) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
            "body_key",
        )
        .bind(body.encoding)
        .bind(body.base_key)
        .bind(body.length as i64)
        .bind(body.data.clone())
        .bind(log_key)
        .bind(body.depth)
        .bind(body.hash.to_vec());
}

/// Adds a segment of a log.
pub(crate) fn add_segment(batch: &mut Batch, log_key: i64, segment: &Segment) {
    batch
        .then(
            "INSERT INTO segment (reel_key, track, start, length, context, encoding, data) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(log_key)
        .bind(segment.track)
        .bind(segment.start as i64)
        .bind(segment.length as i64)
        .bind(segment.context as i64)
        .bind(segment.packed.encoding)
        .bind(segment.packed.data.clone());
}
