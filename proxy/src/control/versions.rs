//! Policy versions: told by who pushes weights, looked at by anyone.

use std::sync::Arc;
use std::time::Duration;

use episode::version_number;
use hyper::StatusCode;
use serde_json::{Value, json};
use store::VersionRecord;

use super::answers::{Answer, bad, done, fields, refused, text, unread};
use crate::open_call::now;
use crate::proxy::Proxy;

/// Longest label and checksum, in bytes.
const WORD_BYTES_MAX: usize = 256;

/// Says which weights sample from now on.
pub(super) async fn tell(proxy: &Proxy, body: &[u8]) -> Result<Answer, Answer> {
    let fields = &fields(body, &["version", "checksum"])?;
    let label = match fields.get("version") {
        Some(Value::String(label)) => label.clone(),
        Some(Value::Number(number)) if number.is_u64() => number.to_string(),
        _ => return Err(bad(&"`version` is not a label or a number from 0")),
    };
    let checksum = text(fields, "checksum")?;
    let words = [Some(&label), checksum.as_ref()];
    if words.into_iter().flatten().any(|word| word.is_empty() || word.len() > WORD_BYTES_MAX) {
        return Err(bad(&"`version` and `checksum` are 1 to 256 bytes"));
    }
    let at = now();
    let told = VersionRecord {
        label: label.clone(),
        checksum,
        source: "control".to_owned(),
        first_seen: at,
        said_at: Some(at),
        served_at: None,
    };
    proxy.store().version(told).await.map_err(refused)?;
    proxy.watch.versions.said(label, at);
    proxy.feed.changed();
    Ok(done())
}

/// How often it is looked what other processes told of versions.
const LEARN_EVERY: Duration = Duration::from_secs(1);

/// Learns what other processes tell of versions; ends where there are no others.
pub(super) async fn learn(proxy: Arc<Proxy>) {
    loop {
        match proxy.watch.learn(proxy.store()).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => tracing::warn!(%error, "what others told of versions cannot be read"),
        }
        tokio::time::sleep(LEARN_EVERY).await;
    }
}

/// All versions that are known, and the one that is current.
pub(super) async fn list(proxy: &Proxy) -> Result<Answer, Answer> {
    let mut snapshot = proxy.store().snapshot().await.map_err(unread)?;
    let versions = snapshot.versions().await.map_err(unread)?;
    let current = proxy
        .watch
        .versions
        .newest()
        .map(|label| json!({ "label": label, "number": version_number(&label) }));
    let one = |version: &VersionRecord| {
        json!({
            "label": version.label,
            "number": version.number(),
            "checksum": version.checksum,
            "source": version.source,
            "first_seen": version.first_seen as f64 / 1e6,
        })
    };
    let versions: Vec<Value> = versions.iter().map(one).collect();
    Ok((StatusCode::OK, json!({ "current": current, "versions": versions })))
}
