//! JSON text of replies.

use serde::Serialize;

/// Returns `value` as JSON on one line.
pub(crate) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("replies have string keys and no failing serializers")
}
