//! The memory that parsed JSON bodies may take.
//!
//! A few bytes of JSON can stand for hundreds of bytes of values. The need of a body is therefore
//! estimated before it is parsed, and reserved while its values live.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use crate::bounds::{JSON_ROOM_WAIT, JSON_TREE_BYTES_MAX, JSON_TREES_BYTES_MAX};

/// Bytes of one value in a list, with the growth of the list.
const VALUE_BYTES: usize = 160;

/// Bytes of an object with up to four members.
const OBJECT_BYTES: usize = 640;

/// Bytes of a member beside its value.
const MEMBER_BYTES: usize = 160;

/// The unit of reservations, in bytes. Bodies that need less reserve nothing.
const UNIT_BYTES: usize = 1 << 20;

/// The room for parsed bodies.
#[derive(Clone, Debug)]
pub(crate) struct JsonRoom(Arc<Semaphore>);

/// A share of the room, given back when it is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonLease {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Default for JsonRoom {
    fn default() -> JsonRoom {
        JsonRoom(Arc::new(Semaphore::new(JSON_TREES_BYTES_MAX / UNIT_BYTES)))
    }
}

impl JsonRoom {
    /// Reserves the memory for the values of a body, and waits for it if others have it.
    ///
    /// # Errors
    /// 413 if a body needs more than one may have, 503 if the wait is too long.
    pub(crate) async fn reserve(&self, body: &[u8]) -> Result<JsonLease, ApiError> {
        let bytes = tree_bytes(body);
        if bytes > JSON_TREE_BYTES_MAX {
            return Err(ApiError::too_many_values(JSON_TREE_BYTES_MAX));
        }
        let units = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        if units == 0 {
            return Ok(JsonLease::default());
        }

        let room = Arc::clone(&self.0).acquire_many_owned(units);
        match tokio::time::timeout(JSON_ROOM_WAIT, room).await {
            Ok(Ok(permit)) => Ok(JsonLease { _permit: Some(Arc::new(permit)) }),
            _ => Err(ApiError::unavailable("too many large bodies are being read")),
        }
    }
}

/// Estimates from above the memory that the values of a JSON text take.
fn tree_bytes(text: &[u8]) -> usize {
    let mut bytes = text.len();
    let (mut in_string, mut is_escaped) = (false, false);
    for byte in text {
        if in_string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }

        match byte {
            b'"' => in_string = true,
            b',' | b'[' => bytes += VALUE_BYTES,
            b'{' => bytes += OBJECT_BYTES,
            b':' => bytes += MEMBER_BYTES,
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_and_what_stands_in_a_string_does_not() {
        assert_eq!(tree_bytes(b"[1,2]"), 5 + 2 * VALUE_BYTES);
        assert_eq!(tree_bytes(br#"{"a":{}}"#), 8 + 2 * OBJECT_BYTES + MEMBER_BYTES);
        let text = br#""[[[{{{,,,:::\"[[[\\""#;
        assert_eq!(tree_bytes(text), text.len());
        let after = [&text[..], b"[,"].concat();
        assert_eq!(tree_bytes(&after), after.len() + 2 * VALUE_BYTES);
    }

    #[tokio::test]
    async fn a_body_of_many_values_is_refused_and_a_long_text_is_not() {
        let room = JsonRoom::default();
        let objects = "{},".repeat(JSON_TREE_BYTES_MAX / OBJECT_BYTES);
        assert!(room.reserve(objects.as_bytes()).await.is_err());
        let text = format!("\"{}\"", ",".repeat(objects.len()));
        assert!(room.reserve(text.as_bytes()).await.is_ok());
    }

    #[tokio::test]
    async fn room_that_was_given_back_is_free_again() {
        let room = JsonRoom::default();
        let list = format!("[{}]", "1,".repeat(JSON_TREE_BYTES_MAX / 200));
        for _ in 0..2 * JSON_TREES_BYTES_MAX / JSON_TREE_BYTES_MAX {
            let lease = room.reserve(list.as_bytes()).await;
            assert!(lease.is_ok());
        }
    }
}
