//! A collector of OpenTelemetry: OTLP over HTTP, in protobuf.

use std::time::Duration;

use bytes::Bytes;
use http::client::{self, ClientOptions, HttpsClient};
use http::tls;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use tokio::time::timeout;

use super::environment::{HEADERS_VARIABLE, malformed, pairs};
use crate::exit::Failure;

/// Pause after a failure; it doubles up to the second one.
pub(super) const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Longest wait for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The collector that one signal is sent to.
pub(super) struct OtlpCollector {
    client: HttpsClient<Full<Bytes>>,
    url: Uri,
    headers: HeaderMap,
}

/// The result of a request.
pub(super) enum Sent {
    /// The collector has what was sent.
    Taken,
    /// It does not want all of it. Another try would be refused, too.
    Refused {
        why: String,
        /// The number that it refused; `None` if that is all.
        lost: Option<u64>,
    },
    /// It did not answer, or cannot take anything now.
    Failed(String),
}

/// The answer to what was taken.
pub(super) trait ExportAnswer: Message + Default {
    /// The number that was refused all the same, and the reason.
    fn rejected(self) -> Option<(i64, String)>;
}

impl ExportAnswer for ExportTraceServiceResponse {
    fn rejected(self) -> Option<(i64, String)> {
        self.partial_success.map(|part| (part.rejected_spans, part.error_message))
    }
}

impl ExportAnswer for ExportMetricsServiceResponse {
    fn rejected(self) -> Option<(i64, String)> {
        self.partial_success.map(|part| (part.rejected_data_points, part.error_message))
    }
}

impl ExportAnswer for ExportLogsServiceResponse {
    fn rejected(self) -> Option<(i64, String)> {
        self.partial_success.map(|part| (part.rejected_log_records, part.error_message))
    }
}

impl OtlpCollector {
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

    /// Sends a request once.
    pub(super) async fn send<A: ExportAnswer>(&self, message: &impl Message) -> Sent {
        let mut request = Request::new(Full::new(Bytes::from(message.encode_to_vec())));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.url.clone();
        request.headers_mut().clone_from(&self.headers);

        let answer = async {
            let (head, body) = match self.client.request(request).await {
                Ok(answer) => answer.into_parts(),
                Err(error) => return Sent::Failed(Failure::of(&error).to_string()),
            };
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            judged::<A>(head.status, &body.map(|body| body.to_bytes()).unwrap_or_default())
        };
        let late = |_| Sent::Failed(format!("no answer in {} s", ANSWER_WAIT.as_secs()));
        timeout(ANSWER_WAIT, answer).await.unwrap_or_else(late)
    }
}

/// The verdict of an answer, by the specification of OTLP over HTTP.
fn judged<A: ExportAnswer>(status: StatusCode, body: &[u8]) -> Sent {
    match status.as_u16() {
        200..=299 => match A::decode(body).map(ExportAnswer::rejected) {
            Ok(Some((count, why))) if count > 0 => {
                Sent::Refused { why, lost: Some(count.unsigned_abs()) }
            }
            _ => Sent::Taken,
        },
        429 | 502..=504 => Sent::Failed(status.to_string()),
        _ => Sent::Refused { why: status.to_string(), lost: None },
    }
}

/// Says once what is wrong, until something else is or it is well again.
#[derive(Debug, Default)]
pub(super) struct Complaint(Option<String>);

impl Complaint {
    /// Warns that `what` does not reach the collector.
    pub(super) fn make(&mut self, what: &str, why: String) {
        if self.0.as_ref() != Some(&why) {
            tracing::warn!(%why, "the collector did not take {what}; they are dropped and counted");
            self.0 = Some(why);
        }
    }

    /// Forgets what was wrong.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsPartialSuccess;

    use super::*;

    fn verdict(code: u16, body: &[u8]) -> Sent {
        judged::<ExportLogsServiceResponse>(StatusCode::from_u16(code).unwrap(), body)
    }

    #[test]
    fn only_what_may_pass_later_is_sent_again() {
        let failed = |code| matches!(verdict(code, b""), Sent::Failed(_));
        assert!([429, 502, 503, 504].into_iter().all(failed));
        assert!(![200, 202, 400, 401, 404, 413, 500].into_iter().any(failed));
    }

    #[test]
    fn a_refusal_says_how_much_it_refused() {
        let part = |rejected_log_records| {
            let error_message = "too old".to_owned();
            let part = ExportLogsPartialSuccess { rejected_log_records, error_message };
            ExportLogsServiceResponse { partial_success: Some(part) }.encode_to_vec()
        };
        let Sent::Refused { why, lost } = verdict(200, &part(3)) else { panic!("was taken") };
        assert_eq!((why.as_str(), lost), ("too old", Some(3)));
        assert!(matches!(verdict(200, &part(0)), Sent::Taken));
        assert!(matches!(verdict(401, b""), Sent::Refused { lost: None, .. }));
    }
}
