//! Policy versions: declared by the trainer that pushes weights, and listed.

use episode::version_number;
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, ok};
use proxy::Recorder;
use serde_json::{Value, json};
use store::VersionRecord;

use crate::bounds::VERSION_TEXT_BYTES_MAX;
use crate::error::{commit_error, snapshot_error};
use crate::requests::VersionBody;

/// Declares the version that samples from now on.
pub(crate) async fn declare(recorder: &Recorder, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let VersionBody { version, checksum } = parse(body)?;
    let label = label(&version)?;
    if checksum.as_deref().is_some_and(has_wrong_length) {
        return Err(wrong_length("checksum"));
    }

    recorder.declare_version(label, checksum).await.map_err(commit_error)?;
    Ok(done())
}

/// The label that a field `version` names.
pub(crate) fn label(version: &Value) -> Result<String, JsonReply> {
    let label = match version {
        Value::String(label) => label.clone(),
        Value::Number(number) if number.is_u64() => number.to_string(),
        _ => return Err(bad_request(&"`version` is not a label or a number from 0")),
    };
    match has_wrong_length(&label) {
        true => Err(wrong_length("version")),
        false => Ok(label),
    }
}

/// True of a text that has no place: the label becomes a header of every reply of the feed.
fn has_wrong_length(text: &str) -> bool {
    text.is_empty() || text.len() > VERSION_TEXT_BYTES_MAX
}

fn wrong_length(field: &str) -> JsonReply {
    bad_request(&format!("`{field}` has 1 to {VERSION_TEXT_BYTES_MAX} bytes"))
}

/// Lists the known versions and the current one.
pub(crate) async fn list(recorder: &Recorder) -> Result<JsonReply, JsonReply> {
    let mut snapshot = recorder.store().reading().await.map_err(snapshot_error)?;
    let versions = snapshot.versions().await.map_err(snapshot_error)?;
    let current = recorder
        .newest_version()
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
