//! Policy versions: declared by the trainer that pushes weights, and listed.

use std::sync::Arc;
use std::time::Duration;

use episode::version_number;
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, ok};
use http::clock::now;
use serde_json::{Value, json};
use store::VersionRecord;

use crate::bounds::VERSION_TEXT_BYTES_MAX;
use crate::control::error::{commit_error, snapshot_error};
use crate::control::requests::VersionBody;
use crate::proxy::Proxy;

/// Declares the version that samples from now on.
pub(super) async fn declare(proxy: &Proxy, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let VersionBody { version, checksum } = parse(body)?;
    let label = match version {
        Value::String(label) => label,
        Value::Number(number) if number.is_u64() => number.to_string(),
        _ => return Err(bad_request(&"`version` is not a label or a number from 0")),
    };
    // The label becomes a header of every reply of the feed.
    let texts = [Some(&label), checksum.as_ref()];
    if texts
        .into_iter()
        .flatten()
        .any(|text| text.is_empty() || text.len() > VERSION_TEXT_BYTES_MAX)
    {
        let message = format!("`version` and `checksum` are 1 to {VERSION_TEXT_BYTES_MAX} bytes");
        return Err(bad_request(&message));
    }

    let at = now();
    let version = VersionRecord {
        label: label.clone(),
        checksum,
        source: "control".to_owned(),
        first_seen: at,
        said_at: Some(at),
        served_at: None,
    };
    proxy.store().version(version).await.map_err(commit_error)?;
    // Calls are stamped with it only once it is on disk.
    proxy.tracker.versions.declare(label, at);
    proxy.feed.changed();
    Ok(done())
}

/// Time between two reads of the versions that other processes declared.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Reads the versions and the rule of admission that other processes declare; ends if no others
/// share the store.
pub(super) async fn read_declared(proxy: Arc<Proxy>) {
    loop {
        match proxy.tracker.read_declared(proxy.store()).await {
            Ok(true) => read_rule(&proxy).await,
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "the versions that others declared cannot be read");
            }
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

async fn read_rule(proxy: &Proxy) {
    let rule = async { proxy.store().snapshot().await?.admission_rule().await };
    match rule.await {
        Ok(rule) => proxy.admission.set_rule(rule),
        Err(error) => {
            let error: store::SnapshotError = error;
            tracing::warn!(%error, "the rule of admission cannot be read");
        }
    }
}

/// Lists the known versions and the current one.
pub(super) async fn list(proxy: &Proxy) -> Result<JsonReply, JsonReply> {
    let mut snapshot = proxy.store().snapshot().await.map_err(snapshot_error)?;
    let versions = snapshot.versions().await.map_err(snapshot_error)?;
    let current = proxy
        .tracker
        .versions
        .newest()
        .map(|label| json!({ "label": label, "number": version_number(&label) }));
    let versions: Vec<Value> = versions.iter().map(version_json).collect();
    Ok(ok(json!({ "current": current, "versions": versions })))
}

fn version_json(version: &VersionRecord) -> Value {
    json!({
        "label": version.label,
        "number": version.number(),
        "checksum": version.checksum,
        "source": version.source,
        "first_seen": version.first_seen as f64 / 1e6,
    })
}
