//! API keys that name an attempt: made, revoked, and signed with a new secret.

use episode::AttemptId;
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, error, ok};
use hyper::StatusCode;
use proxy::{Recorder, SignedKey};
use serde_json::json;
use store::Budget;

use crate::bounds::KEY_LIFE_S_MAX;
use crate::error::commit_error;
use crate::requests::{KeyBody, RevokeBody, RotateBody};

/// Default life of an API key, in seconds: a day.
const KEY_LIFE_S: i64 = 86_400;
/// Microseconds of a second.
const SECOND: i64 = 1_000_000;

/// Returns an API key for an attempt. Its episode takes only calls with a key from then on.
pub(crate) async fn sign(
    recorder: &Recorder,
    attempt: AttemptId,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let body: KeyBody = parse(body)?;
    let life_s = body.ttl_s.unwrap_or(KEY_LIFE_S);
    if !(1..=KEY_LIFE_S_MAX).contains(&life_s) {
        return Err(bad_request(&format!("`ttl_s` is not 1 to {KEY_LIFE_S_MAX}")));
    }

    let budget = Budget {
        calls: body.calls_max.map(u64::from),
        tokens: body.tokens_max.map(u64::from),
        seconds: None,
    };
    let signed = recorder.sign_key(attempt, life_s * SECOND, budget).await;
    let SignedKey { key, id, expires_at } = signed.map_err(commit_error)?;
    Ok(ok(json!({ "api_key": key, "key_id": id, "expires_at": expires_at / SECOND })))
}

/// Revokes a key of an attempt, or all of them.
pub(crate) async fn revoke(
    recorder: &Recorder,
    attempt: AttemptId,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let RevokeBody { key_id } = parse(body)?;
    recorder.revoke_keys(attempt, key_id).await.map_err(commit_error)?;
    Ok(done())
}

/// Signs keys with a new secret from now on.
pub(crate) fn rotate(recorder: &Recorder, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let RotateBody { old_keys_s } = parse(body)?;
    let old_keys_s = old_keys_s.unwrap_or(0);
    if !(0..=KEY_LIFE_S_MAX).contains(&old_keys_s) {
        return Err(bad_request(&format!("`old_keys_s` is not 0 to {KEY_LIFE_S_MAX}")));
    }
    recorder.rotate_secrets(old_keys_s * SECOND).map_err(|why| {
        let message = format!("the new signing secret could not be kept: {why}");
        error(StatusCode::SERVICE_UNAVAILABLE, &message)
    })?;
    Ok(done())
}
