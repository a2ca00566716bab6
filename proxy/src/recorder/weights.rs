//! The versions of the weights: those that the upstream serves, and those that other processes
//! declare.

use std::time::Duration;

use episode::Micros;
use http::clock::now;
use serde_json::Value;
use store::{SnapshotError, VersionRecord};
use wire::Dialect;

use crate::bounds::WEIGHT_INFO_WAIT;
use crate::proxy::Proxy;

/// Time between two reads of the versions that other processes declared.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The weights of rolltape's own engine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WeightInfo {
    label: String,
    checksum: Option<String>,
}

/// Writes the versions that replies report to the store, with the checksums of rolltape's own
/// engine.
pub(super) async fn record_versions(proxy: &Proxy) {
    loop {
        let labels = proxy.tracker.versions.next_check().await;
        let is_own_engine = proxy.fleet.any().server.probe.known() == Some(Dialect::Rolltape);
        let mut recorded = Vec::new();
        for (label, seen_at) in labels {
            let checksum = match is_own_engine {
                true => checksum_of(proxy, &label).await,
                false => None,
            };
            let info = WeightInfo { label, checksum };
            record_version(proxy, info.clone(), seen_at, None).await;
            recorded.push(info);
        }
        if is_own_engine {
            record_served(proxy, &recorded).await;
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
    if let Err(error) = proxy.store.version(version).await {
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

/// Reads the versions and the rule of admission that other processes declare; ends if no others
/// share the store.
pub(super) async fn read_declared(proxy: &Proxy) {
    // What goes on is said once.
    let mut has_failed = false;
    loop {
        let read = match proxy.tracker.read_declared(&proxy.store).await {
            Ok(true) => read_rule(proxy).await,
            Ok(false) => return,
            Err(error) => Err(error),
        };
        if let Err(error) = &read
            && !has_failed
        {
            tracing::warn!(%error, "what other recorders declared cannot be read; trying on");
        }
        if read.is_ok() && has_failed {
            tracing::info!("what other recorders declared is read again");
        }
        has_failed = read.is_err();
        tokio::time::sleep(READ_EVERY).await;
    }
}

async fn read_rule(proxy: &Proxy) -> Result<(), SnapshotError> {
    let rule = proxy.store.snapshot().await?.admission_rule().await?;
    proxy.admission.set_rule(rule);
    Ok(())
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
