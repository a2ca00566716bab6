//! API keys that name an attempt: made, revoked, and signed with a new secret.

use episode::AttemptId;
use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, error, ok};
use http::clock::now;
use hyper::StatusCode;
use serde_json::json;
use store::{ApiKeyRecord, Budget};

use crate::bounds::KEY_LIFE_S_MAX;
use crate::control::error::commit_error;
use crate::control::requests::{KeyBody, RevokeBody, RotateBody};
use crate::proxy::Proxy;

/// Default life of an API key, in seconds: a day.
const KEY_LIFE_S: i64 = 86_400;
/// Microseconds of a second.
const SECOND: i64 = 1_000_000;

/// Returns an API key for an attempt. Its episode takes only calls with a key from then on.
pub(super) async fn sign(
    proxy: &Proxy,
    attempt: AttemptId,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let body: KeyBody = parse(body)?;
    let life_s = body.ttl_s.unwrap_or(KEY_LIFE_S);
    if !(1..=KEY_LIFE_S_MAX).contains(&life_s) {
        return Err(bad_request(&format!("`ttl_s` is not 1 to {KEY_LIFE_S_MAX}")));
    }

    let made_at = now();
    let expires_at = made_at + life_s * SECOND;
    let (key, id) = proxy.tags.signer.sign(&attempt, expires_at);
    let budget = Budget {
        calls: body.calls_max.map(u64::from),
        tokens: body.tokens_max.map(u64::from),
        seconds: None,
    };
    let record =
        ApiKeyRecord { id: id.clone(), attempt: attempt.clone(), made_at, expires_at, budget };
    proxy.store().add_key(record).await.map_err(commit_error)?;

    // Calls without a key must not pass as those before.
    proxy.open_attempts.forget(&attempt.episode);
    if budget != Budget::default() {
        proxy.open_attempts.count(attempt);
    }
    Ok(ok(json!({ "api_key": key, "key_id": id, "expires_at": expires_at / SECOND })))
}

/// Revokes a key of an attempt, or all of them.
pub(super) async fn revoke(
    proxy: &Proxy,
    attempt: AttemptId,
    body: &[u8],
) -> Result<JsonReply, JsonReply> {
    let RevokeBody { key_id } = parse(body)?;
    let revoked = proxy.store().revoke_keys(attempt.clone(), key_id, now()).await;
    revoked.map_err(commit_error)?;
    proxy.open_attempts.forget(&attempt.episode);
    Ok(done())
}

/// Signs keys with a new secret from now on.
pub(super) fn rotate(proxy: &Proxy, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let RotateBody { old_keys_s } = parse(body)?;
    let old_keys_s = old_keys_s.unwrap_or(0);
    if !(0..=KEY_LIFE_S_MAX).contains(&old_keys_s) {
        return Err(bad_request(&format!("`old_keys_s` is not 0 to {KEY_LIFE_S_MAX}")));
    }
    let at = now();
    proxy.tags.signer.rotate(at, at + old_keys_s * SECOND).map_err(|why| {
        let message = format!("the new signing secret could not be kept: {why}");
        error(StatusCode::SERVICE_UNAVAILABLE, &message)
    })?;
    Ok(done())
}
