//! The time at which a call began.

/// Returns the start of a call in seconds since 1970. Its id is a UUID of version 7, which
/// begins with that in milliseconds.
pub(super) fn seconds(call_id: &str) -> f64 {
    let digits: String = call_id.chars().filter(|c| *c != '-').take(12).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0) as f64 / 1e3
}
