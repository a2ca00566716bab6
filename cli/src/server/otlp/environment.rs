//! OpenTelemetry's own variables.

use std::collections::BTreeMap;
use std::env::{self, VarError};
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::exit::Failure;

/// Headers of each request.
pub(super) const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE_VARIABLE: &str = "OTEL_SERVICE_NAME";
const RESOURCE_VARIABLE: &str = "OTEL_RESOURCE_ATTRIBUTES";
const INTERVAL_VARIABLE: &str = "OTEL_METRIC_EXPORT_INTERVAL";
/// Time between two exports of metrics, if nothing else is said.
const INTERVAL: Duration = Duration::from_secs(60);

/// The signals that are sent: all of them, unless a variable says `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signals {
    pub(super) has_traces: bool,
    pub(super) has_metrics: bool,
    pub(super) has_logs: bool,
}

impl Signals {
    /// The settings in the variables.
    ///
    /// # Errors
    /// [`Failure`] if one names another exporter than OTLP's and no other.
    pub(super) fn read() -> Result<Self, Failure> {
        let is_on = |variable| is_sent(variable, read(variable)?.as_deref());
        Ok(Self {
            has_traces: is_on("OTEL_TRACES_EXPORTER")?,
            has_metrics: is_on("OTEL_METRICS_EXPORTER")?,
            has_logs: is_on("OTEL_LOGS_EXPORTER")?,
        })
    }
}

fn is_sent(variable: &str, value: Option<&str>) -> Result<bool, Failure> {
    let Some(value) = value else { return Ok(true) };
    let mut names = value.split(',').map(str::trim);
    if names.clone().any(|name| name == "otlp") {
        return Ok(true);
    }
    if names.all(|name| name == "none") {
        return Ok(false);
    }
    Err(Failure::new(format!("{variable} names no exporter of rolltape: `{value}`"))
        .hint("give otlp or none, or remove it"))
}

/// The time between two exports of metrics.
///
/// # Errors
/// [`Failure`] if `OTEL_METRIC_EXPORT_INTERVAL` is no number of milliseconds.
pub(super) fn metrics_interval() -> Result<Duration, Failure> {
    interval(read(INTERVAL_VARIABLE)?.as_deref())
}

fn interval(value: Option<&str>) -> Result<Duration, Failure> {
    let Some(value) = value else { return Ok(INTERVAL) };
    match value.trim().parse() {
        Ok(milliseconds) if milliseconds > 0 => Ok(Duration::from_millis(milliseconds)),
        _ => Err(Failure::new(format!("{INTERVAL_VARIABLE} is `{value}`"))
            .hint("give a number of milliseconds, such as 60000")),
    }
}

/// Names and values of what is sent about: `service.name` and whatever the user adds.
///
/// # Errors
/// [`Failure`] if `OTEL_RESOURCE_ATTRIBUTES` is malformed.
pub(super) fn resource() -> Result<BTreeMap<String, String>, Failure> {
    let mut attributes: BTreeMap<String, String> = pairs(RESOURCE_VARIABLE)?.into_iter().collect();
    attributes.entry("service.version".into()).or_insert(env!("CARGO_PKG_VERSION").to_owned());
    attributes.entry("service.name".into()).or_insert("rolltape".to_owned());
    if let Some(name) = read(SERVICE_VARIABLE)? {
        attributes.insert("service.name".into(), name);
    }
    Ok(attributes)
}

/// The `name=value` pairs of a variable, which are percent-encoded and have commas between.
///
/// # Errors
/// [`Failure`] if it is malformed.
pub(super) fn pairs(variable: &str) -> Result<Vec<(String, String)>, Failure> {
    let text = read(variable)?.unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim().to_owned(), value.into_owned()))
    };
    parts.map(|part| pair(part).ok_or_else(|| malformed(variable))).collect()
}

/// A variable that is set and not empty.
fn read(variable: &str) -> Result<Option<String>, Failure> {
    match env::var(variable) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(malformed(variable)),
    }
}

/// The error of a variable that is no list of pairs.
pub(super) fn malformed(variable: &str) -> Failure {
    Failure::new(format!("{variable} is not a list of name=value with commas between"))
        .hint("write special characters of a value as %XX, such as Authorization=Bearer%20KEY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_sent_unless_its_variable_says_none() {
        let told = |value| is_sent("OTEL_LOGS_EXPORTER", value).map_err(|why| why.to_string());
        assert_eq!([None, Some("otlp"), Some("console, otlp")].map(told), [const { Ok(true) }; 3]);
        assert_eq!(told(Some("none")), Ok(false));
        assert!(told(Some("console")).unwrap_err().contains("OTEL_LOGS_EXPORTER"));
    }

    #[test]
    fn the_interval_is_milliseconds() {
        assert_eq!(interval(None).ok(), Some(INTERVAL));
        assert_eq!(interval(Some("250")).ok(), Some(Duration::from_millis(250)));
        for bad in ["0", "-1", "1s", "1.5"] {
            assert!(interval(Some(bad)).is_err(), "{bad}");
        }
    }
}
