//! The upstream's own control routes, and the versions of the weights that it serves.

use std::sync::Arc;

use bytes::Bytes;
use episode::{Micros, Route};
use http::api::reply::JsonReply;
use http::body::ReplyBody;
use http::body::outgoing::OutgoingBody;
use http::clock::now;
use http::headers;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::{Request, Response};
use serde_json::Value;
use store::VersionRecord;
use wire::Dialect;

use crate::bounds::WEIGHT_INFO_WAIT;
use crate::control::error::call_error;
use crate::proxy::Proxy;
use crate::upstream::trailers;

/// Forwards a request unchanged, and the reply.
pub(super) async fn forward(
    proxy: &Proxy,
    request: Request<Incoming>,
    changes_weights: bool,
) -> Result<Response<ReplyBody>, JsonReply> {
    let (mut head, body) = request.into_parts();
    headers::prepare_request(&mut head.headers, Route::Other);
    if proxy.config().control_token.is_some() {
        // The token is for this listener only.
        headers::remove(&mut head.headers, &[AUTHORIZATION.as_str()]);
    }

    let engine = proxy.fleet.any();
    let body = OutgoingBody::streamed(Bytes::new(), trailers::cleaned(body), u64::MAX);
    let reply = engine.server.client.control(head, body).await.map_err(call_error)?;
    if reply.status().is_success() && changes_weights {
        proxy.tracker.versions.request_check();
        engine.server.lookups.weights_changed();
    }
    let (mut head, body) = reply.into_parts();
    headers::remove_hop_by_hop(&mut head.headers);
    Ok(Response::from_parts(head, body.map_err(Into::into).boxed_unsync()))
}

/// The weights of rolltape's own engine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WeightInfo {
    label: String,
    checksum: Option<String>,
}

/// Writes the versions that replies report to the store, with the checksums of rolltape's own
/// engine.
pub(super) async fn record_versions(proxy: Arc<Proxy>) {
    loop {
        let labels = proxy.tracker.versions.next_check().await;
        let is_own_engine = proxy.fleet.any().server.probe.known() == Some(Dialect::Rolltape);
        let mut recorded = Vec::new();
        for (label, seen_at) in labels {
            let checksum = match is_own_engine {
                true => checksum_of(&proxy, &label).await,
                false => None,
            };
            let info = WeightInfo { label, checksum };
            record_version(&proxy, info.clone(), seen_at, None).await;
            recorded.push(info);
        }
        if is_own_engine {
            record_served(&proxy, &recorded).await;
        }
    }
}

/// Writes the version that the engine serves now, of which no reply may have been seen.
async fn record_served(proxy: &Proxy, recorded: &[WeightInfo]) {
    let Some(served) = weight_info(proxy, "/weight_info").await else { return };
    let at = now();
    let is_other = proxy.tracker.versions.note_served(&served.label, at);
    if is_other || !recorded.contains(&served) {
        record_version(proxy, served, at, is_other.then_some(at)).await;
    }
}

async fn record_version(
    proxy: &Proxy,
    info: WeightInfo,
    first_seen: Micros,
    served_at: Option<Micros>,
) {
    let WeightInfo { label, checksum } = info;
    let source = "upstream".to_owned();
    let version = VersionRecord { label, checksum, source, first_seen, said_at: None, served_at };
    if let Err(error) = proxy.store().version(version).await {
        tracing::warn!(%error, "a version of the weights was not written down");
    }
}

/// The checksum of the weights that have, or had, a label.
async fn checksum_of(proxy: &Proxy, label: &str) -> Option<String> {
    let page = format!("/weight_info?version={}", percent_encoded(label));
    let info = weight_info(proxy, &page).await?;
    info.checksum.filter(|_| info.label == label)
}

/// Reads a page that describes weights.
async fn weight_info(proxy: &Proxy, page: &str) -> Option<WeightInfo> {
    let engine = proxy.fleet.any();
    let reply = tokio::time::timeout(WEIGHT_INFO_WAIT, engine.server.client.get(page)).await;
    let (status, body) = reply.ok()?.ok()?;
    let info: Value = serde_json::from_slice(&body).ok().filter(|_| status.is_success())?;
    let text = |name: &str| info.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(WeightInfo { label: text("weight_version")?, checksum: text("checksum") })
}

/// A label as the value of a query parameter.
fn percent_encoded(label: &str) -> String {
    let encoded = label.bytes().map(|byte| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_encoded_for_a_query() {
        assert_eq!(percent_encoded("step_7"), "step_7");
        assert_eq!(percent_encoded("a b&c/\u{e9}"), "a%20b%26c%2F%C3%A9");
    }
}
