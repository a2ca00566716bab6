//! Times of the store as numbers of documents.

use episode::Micros;

/// Seconds since 1970.
pub(crate) fn seconds(at: Micros) -> f64 {
    at as f64 / 1e6
}

/// Milliseconds between two times.
pub(crate) fn milliseconds(from: Micros, to: Micros) -> f64 {
    (to - from) as f64 / 1e3
}

/// The time of the store for seconds since 1970.
pub(crate) fn micros(seconds: f64) -> Micros {
    (seconds * 1e6) as Micros
}
