//! Bodies and segments of reels, as statements of the write transaction.

use crate::batch::Batch;
use crate::reel::{Body, Segment};

/// Adds a body; its key is then the last one.
pub(crate) fn add_body(batch: &mut Batch, reel_key: i64, body: &Body) {
    if let Some(segment) = &body.segment {
        add_segment(batch, reel_key, segment);
    }
    batch
        .then_keyed(
            "INSERT INTO body (encoding, base_key, length, data, reel_key, depth, hash) \
             VALUES (?, ?, ?, ?, ?, ?, ?)",
            "body_key",
        )
        .bind(body.encoding)
        .bind(body.base_key)
        .bind(body.length as i64)
        .bind(body.data.clone())
        .bind(reel_key)
        .bind(body.depth)
        .bind(body.hash.to_vec());
}

/// Adds a segment of a reel.
pub(crate) fn add_segment(batch: &mut Batch, reel_key: i64, segment: &Segment) {
    batch
        .then(
            "INSERT INTO segment (reel_key, track, start, length, context, encoding, data) \
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(reel_key)
        .bind(segment.track)
        .bind(segment.start as i64)
        .bind(segment.length as i64)
        .bind(segment.context as i64)
        .bind(segment.packed.encoding)
        .bind(segment.packed.data.clone());
}
