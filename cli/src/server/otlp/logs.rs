//! Log records: of calls that ended, and of events of the server's log.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use viewer::CallEvent;

use super::attributes::{Attributes, SCHEMA_URL, nanoseconds, scope, string};
use super::call::{self, Trace, call_span, fault, operation};
use super::spans::read;
use crate::log::events::{EventLevel, LogEvent};

/// Name of the records of calls.
const CALL_ENDED: &str = "rolltape.call";

/// The request that carries these records.
pub(super) fn request(
    resource: &Resource,
    log_records: Vec<LogRecord>,
) -> ExportLogsServiceRequest {
    let scoped = ScopeLogs { scope: Some(scope()), log_records, schema_url: SCHEMA_URL.to_owned() };
    let of_resource = ResourceLogs {
        resource: Some(resource.clone()),
        scope_logs: vec![scoped],
        ..ResourceLogs::default()
    };
    ExportLogsServiceRequest { resource_logs: vec![of_resource] }
}

/// The record of a call in `store`, which a document of the viewer describes; `None` if it has not
/// ended. It says nothing of what was said.
pub(super) fn call_record(store: &str, document: &str) -> Option<LogRecord> {
    let call: CallEvent = read(document)?;
    let outcome = call.outcome.as_deref()?;
    let (level, reason) = match fault(&call, outcome) {
        Some(reason) => (EventLevel::Error, format!(" ({reason})")),
        None => (EventLevel::Info, String::new()),
    };

    let duration_ms = call.duration_ms.unwrap_or_default();
    let (method, path) = (&call.method, call.path.split('?').next().unwrap_or_default());
    let body = format!("{method} {path} of {}: {outcome}{reason}", call.episode_id);
    let attributes =
        call::attributes(&call, outcome).number("rolltape.duration_ms", call.duration_ms);
    let at = nanoseconds(call.started_at + duration_ms / 1e3);
    Some(LogRecord {
        event_name: CALL_ENDED.to_owned(),
        trace_id: Trace::of(store, &call.episode_id, call.attempt).id,
        // Only what asks the model for something has a span.
        span_id: operation(&call.route).map(|_| call_span(&call.call_id)).unwrap_or_default(),
        ..record(at, level, &body, attributes)
    })
}

/// The record of an event of the log.
pub(super) fn event_record(event: &LogEvent) -> LogRecord {
    let mut attributes = Attributes::default().text("code.namespace", event.target);
    for (name, value) in &event.fields {
        attributes = attributes.text(name, value.as_str());
    }
    record(event.at_ns, event.level, &event.message, attributes)
}

fn record(at: u64, level: EventLevel, body: &str, attributes: Attributes) -> LogRecord {
    let severity = match level {
        EventLevel::Error => SeverityNumber::Error,
        EventLevel::Warn => SeverityNumber::Warn,
        EventLevel::Info => SeverityNumber::Info,
    };
    LogRecord {
        time_unix_nano: at,
        observed_time_unix_nano: at,
        severity_number: severity.into(),
        severity_text: level.name().to_owned(),
        body: Some(AnyValue { value: Some(string(body)) }),
        attributes: attributes.0,
        ..LogRecord::default()
    }
}
