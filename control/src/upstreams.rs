//! The upstreams of a recorder: listed, added, drained and removed.

use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, error, ok};
use http::path::escapes::unescaped;
use hyper::StatusCode;
use proxy::{ChangeError, EngineSpec, EngineState, Recorder, Upstream, UpstreamStatus};
use serde_json::{Value, json};

use crate::requests::UpstreamBody;

/// Lists the upstreams and their states.
pub(crate) fn list(recorder: &Recorder) -> JsonReply {
    let upstreams: Vec<Value> = recorder.upstreams().all().iter().map(shown).collect();
    ok(json!({ "upstreams": upstreams }))
}

fn shown(one: &UpstreamStatus) -> Value {
    json!({
        "name": one.spec.name,
        "url": one.spec.upstream.to_string(),
        "dialect": one.dialect.map(|dialect| dialect.as_str()),
        "weight": one.spec.weight,
        "calls_max": one.spec.calls_max,
        "state": one.state.as_str(),
        "reason": one.reason,
        "calls": one.calls,
        "threads": one.threads,
        "weight_version": one.weight_version,
        "begun": one.begun,
        "moved": one.moved,
        "failed": one.failed,
    })
}

/// Adds an upstream, or changes the one of its name.
pub(crate) async fn add(recorder: &Recorder, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let UpstreamBody { url, name, dialect: word, weight, calls_max } = parse(body)?;
    let upstream: Upstream = url.parse().map_err(|why| bad_request(&why))?;
    let unnamed = EngineSpec::from(upstream);
    let spec = EngineSpec {
        name: name.unwrap_or_else(|| unnamed.name.clone()),
        dialect: word
            .as_deref()
            .map(EngineSpec::dialect_named)
            .transpose()
            .map_err(|why| bad_request(&why))?,
        weight: weight.unwrap_or(1),
        calls_max: calls_max.map(|calls| calls as usize),
        ..unnamed
    };
    let spec = spec.checked().map_err(|why| bad_request(&why))?;
    recorder.upstreams().add(spec).await.map_err(change_error)?;
    Ok(done())
}

/// Gives an upstream no new calls.
pub(crate) fn drain(recorder: &Recorder, name: &str) -> Result<JsonReply, JsonReply> {
    let calls = recorder.upstreams().drain(&unescaped(name)).map_err(change_error)?;
    Ok(ok(json!({ "status": "ok", "calls": calls })))
}

/// Removes an upstream.
pub(crate) async fn remove(recorder: &Recorder, name: &str) -> Result<JsonReply, JsonReply> {
    recorder.upstreams().remove(&unescaped(name)).await.map_err(change_error)?;
    Ok(done())
}

fn change_error(reason: ChangeError) -> JsonReply {
    let status = match reason {
        ChangeError::Unknown(_) => StatusCode::NOT_FOUND,
        ChangeError::Last(_) => StatusCode::CONFLICT,
        ChangeError::Invalid(_) | ChangeError::Setting(_) => StatusCode::BAD_REQUEST,
    };
    error(status, &reason.to_string())
}

/// Reports whether an upstream takes calls, and its address.
pub(crate) async fn ready(recorder: &Recorder) -> Result<JsonReply, JsonReply> {
    let unavailable = |reason: &str| error(StatusCode::SERVICE_UNAVAILABLE, reason);
    if recorder.upstreams().are_many() {
        return one_is_up(&recorder.upstreams().all()).map_err(|reason| unavailable(&reason));
    }
    match recorder.upstreams().reach().await {
        Ok(upstream) => Ok(ok(json!({ "status": "ok", "upstream": upstream }))),
        Err((upstream, reason)) => {
            let message = format!("the upstream at {upstream} could not be reached: {reason}");
            Err(unavailable(&message))
        }
    }
}

fn one_is_up(all: &[UpstreamStatus]) -> Result<JsonReply, String> {
    let takes_calls =
        |one: &&UpstreamStatus| matches!(one.state, EngineState::Up | EngineState::Stalled);
    let open = all.iter().filter(takes_calls).count();
    if open == 0 {
        let states: Vec<String> = all
            .iter()
            .map(|one| format!("`{}` is {}", one.spec.name, one.state.as_str()))
            .collect();
        return Err(format!("no upstream takes calls: {}", states.join(", ")));
    }
    let urls: Vec<String> = all.iter().map(|one| one.spec.upstream.to_string()).collect();
    Ok(ok(json!({ "status": "ok", "upstream": urls.join(" "), "open": open })))
}
