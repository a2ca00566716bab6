//! Versions of the weights, and the tokens that each sampled.

use episode::VersionSpan;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::list::{Capped, short, short_value};
use crate::bounds::SPANS_MAX;

/// A longer name of a version is cut: every choice gets a copy.
const VERSION_BYTES_MAX: usize = 256;

/// The spans of versions of a choice.
pub(super) type Spans<'a> = Capped<WeightSpan<'a>, SPANS_MAX>;

/// Tokens `start..end` of a choice that were sampled by one version of the weights.
#[derive(Deserialize)]
pub(super) struct WeightSpan<'a> {
    #[serde(borrow)]
    version: &'a RawValue,
    start: u32,
    end: u32,
}

impl From<WeightSpan<'_>> for VersionSpan {
    fn from(span: WeightSpan<'_>) -> Self {
        Self { version: version_name(span.version), start: span.start, end: span.end }
    }
}

/// The name of a version, at most `VERSION_BYTES_MAX` bytes long.
pub(super) fn version_name(version: &RawValue) -> String {
    // An escaped character takes up to 12 bytes.
    let name = match short_value(version, 16 * VERSION_BYTES_MAX) {
        Value::String(name) => name,
        other => other.to_string(),
    };
    short(name, VERSION_BYTES_MAX)
}
