//! The time, for records.

use std::time::{SystemTime, UNIX_EPOCH};

use episode::Micros;

/// The current time. A clock before 1970 counts as 0.
pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}
