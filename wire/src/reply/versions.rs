//! Versions of the weights, and the tokens that each sampled.

use episode::VersionSpan;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::lenient::{Held, Lenient};
use super::list::{Capped, filled, short, short_value};
use crate::bounds::SPANS_MAX;

/// A longer name of a version is cut: every choice gets a copy.
const VERSION_BYTES_MAX: usize = 256;

/// The spans of versions of a choice.
pub(super) type Spans<'a> = Capped<Held<WeightSpan<'a>>, SPANS_MAX>;

/// Tokens `start..end` of a choice that were sampled by one version of the weights.
#[derive(Default, Deserialize)]
pub(super) struct WeightSpan<'a> {
    #[serde(borrow)]
    version: Option<&'a RawValue>,
    start: Lenient<u32>,
    end: Lenient<u32>,
}

impl WeightSpan<'_> {
    fn version_span(self) -> Option<VersionSpan> {
        let version = version_name(filled(self.version)?);
        Some(VersionSpan { version, start: self.start.value()?, end: self.end.value()? })
    }
}

impl Spans<'_> {
    /// The spans that could be read.
    pub(super) fn version_spans(self) -> Vec<VersionSpan> {
        let spans = self.items.into_iter().filter_map(Lenient::members);
        spans.filter_map(WeightSpan::version_span).collect()
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
