//! A collector of OpenTelemetry: OTLP over HTTP, in protobuf.

use std::collections::BTreeMap;
use std::env::{self, VarError};
use std::time::Duration;

use bytes::Bytes;
use http::client::{self, ClientOptions, HttpsClient};
use http::tls;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use percent_encoding::percent_decode_str;
use prost::Message;
use tokio::time::timeout;

use crate::exit::Failure;

/// Longest wait for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE_VARIABLE: &str = "OTEL_SERVICE_NAME";
const RESOURCE_VARIABLE: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// The collector that spans are sent to.
pub(super) struct Collector {
    client: HttpsClient<Full<Bytes>>,
    url: Uri,
    headers: HeaderMap,
}

/// The result of a request.
pub(super) enum Sent {
    /// The collector has the spans.
    Taken,
    /// It does not want them. Another try would be refused, too.
    Refused(String),
    /// It did not answer, or cannot take them now.
    Failed(String),
}

impl Collector {
    /// A collector at `url`, without connections yet.
    ///
    /// # Errors
    /// [`Failure`] if `OTEL_EXPORTER_OTLP_HEADERS` holds what is no header.
    pub(super) fn new(url: Uri) -> Result<Self, Failure> {
        let tls = tls::client_config(&[]).map_err(|e| Failure::of(&e))?;
        let client = client::https(&tls, &ClientOptions::default());

        let mut headers = HeaderMap::new();
        for (name, value) in pairs(HEADERS_VARIABLE)? {
            let name: HeaderName = name.parse().map_err(|_| malformed(HEADERS_VARIABLE))?;
            let mut value: HeaderValue = value.parse().map_err(|_| malformed(HEADERS_VARIABLE))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        Ok(Self { client, url, headers })
    }

    /// Sends spans once.
    pub(super) async fn send(&self, spans: &ExportTraceServiceRequest) -> Sent {
        let mut request = Request::new(Full::new(Bytes::from(spans.encode_to_vec())));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.url.clone();
        request.headers_mut().clone_from(&self.headers);

        let answer = async {
            let (head, body) = match self.client.request(request).await {
                Ok(answer) => answer.into_parts(),
                Err(error) => return Sent::Failed(Failure::of(&error).to_string()),
            };
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            judged(head.status, &body.map(|body| body.to_bytes()).unwrap_or_default())
        };
        let late = |_| Sent::Failed(format!("no answer in {} s", ANSWER_WAIT.as_secs()));
        timeout(ANSWER_WAIT, answer).await.unwrap_or_else(late)
    }
}

/// The verdict of an answer, by the specification of OTLP over HTTP.
fn judged(status: StatusCode, body: &[u8]) -> Sent {
    match status.as_u16() {
        200..=299 => match ExportTraceServiceResponse::decode(body).map(|r| r.partial_success) {
            Ok(Some(part)) if part.rejected_spans > 0 => Sent::Refused(part.error_message),
            _ => Sent::Taken,
        },
        429 | 502..=504 => Sent::Failed(status.to_string()),
        _ => Sent::Refused(status.to_string()),
    }
}

/// Names and values of what the spans are of: `service.name` and whatever the user adds.
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
fn pairs(variable: &str) -> Result<Vec<(String, String)>, Failure> {
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

fn malformed(variable: &str) -> Failure {
    Failure::new(format!("{variable} is not a list of name=value with commas between"))
        .hint("write special characters of a value as %XX, such as Authorization=Bearer%20KEY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_later_is_sent_again() {
        let failed = |code| {
            let status = StatusCode::from_u16(code).unwrap();
            matches!(judged(status, b""), Sent::Failed(_))
        };
        assert!([429, 502, 503, 504].into_iter().all(failed));
        assert!(![200, 202, 400, 401, 404, 413, 500].into_iter().any(failed));
    }
}
