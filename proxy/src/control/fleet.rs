//! The upstreams of a proxy: listed, added, drained and removed.

use std::sync::atomic::Ordering;

use http::api::json::parse;
use http::api::reply::{JsonReply, bad_request, done, error, ok};
use http::path::escapes::unescaped;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::config::address::Upstream;
use crate::config::spec::{EngineSpec, dialect};
use crate::control::requests::UpstreamBody;
use crate::fleet::engine::Engine;
use crate::fleet::members::ChangeError;
use crate::proxy::Proxy;

/// Lists the upstreams and their states.
pub(super) fn list(proxy: &Proxy) -> JsonReply {
    let all = proxy.fleet.all();
    let upstreams: Vec<Value> = all.iter().map(|engine| shown(proxy, engine)).collect();
    ok(json!({ "upstreams": upstreams }))
}

fn shown(proxy: &Proxy, engine: &Engine) -> Value {
    let dialect = engine.spec.dialect.or(engine.server.probe.known());
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
    json!({
        "name": engine.name(),
        "url": engine.spec.upstream.to_string(),
        "dialect": dialect.map(|dialect| dialect.as_str()),
        "weight": engine.spec.weight,
        "calls_max": engine.spec.calls_max,
        "state": engine.state(&proxy.fleet.fence).as_str(),
        "reason": engine.down_because(),
        "calls": engine.calls(),
        "threads": proxy.fleet.threads_on(engine),
        "weight_version": engine.label(),
        "begun": count(&engine.counts.begun),
        "moved": count(&engine.counts.moved),
        "failed": count(&engine.counts.failed),
    })
}

/// Adds an upstream, or changes the one of its name.
pub(super) async fn add(proxy: &Proxy, body: &[u8]) -> Result<JsonReply, JsonReply> {
    let UpstreamBody { url, name, dialect: word, weight, calls_max } = parse(body)?;
    let upstream: Upstream = url.parse().map_err(|why| bad_request(&why))?;
    let unnamed = EngineSpec::from(upstream);
    let spec = EngineSpec {
        name: name.unwrap_or_else(|| unnamed.name.clone()),
        dialect: word.as_deref().map(dialect).transpose().map_err(|why| bad_request(&why))?,
        weight: weight.unwrap_or(1),
        calls_max: calls_max.map(|calls| calls as usize),
        ..unnamed
    };
    let spec = spec.checked().map_err(|why| bad_request(&why))?;
    proxy.fleet.add(spec).await.map_err(change_error)?;
    Ok(done())
}

/// Gives an upstream no new calls.
pub(super) fn drain(proxy: &Proxy, name: &str) -> Result<JsonReply, JsonReply> {
    let name = name_of(name);
    let all = proxy.fleet.all();
    let named = all.iter().find(|engine| engine.name() == name);
    let engine = named.ok_or_else(|| change_error(ChangeError::Unknown(name)))?;
    engine.drain();
    Ok(ok(json!({ "status": "ok", "calls": engine.calls() })))
}

/// Removes an upstream.
pub(super) async fn remove(proxy: &Proxy, name: &str) -> Result<JsonReply, JsonReply> {
    proxy.fleet.remove(&name_of(name)).await.map_err(change_error)?;
    Ok(done())
}

/// The name in a path.
fn name_of(segment: &str) -> String {
    unescaped(segment)
}

fn change_error(reason: ChangeError) -> JsonReply {
    let status = match reason {
        ChangeError::Unknown(_) => StatusCode::NOT_FOUND,
        ChangeError::Last(_) => StatusCode::CONFLICT,
        ChangeError::Invalid(_) | ChangeError::Setting(_) => StatusCode::BAD_REQUEST,
    };
    error(status, &reason.to_string())
}

/// Reports whether one of several upstreams takes calls.
pub(super) fn ready(proxy: &Proxy) -> Result<JsonReply, JsonReply> {
    let all = proxy.fleet.all();
    let open = all.iter().filter(|engine| proxy.fleet.is_open(engine)).count();
    if open == 0 {
        let states: Vec<String> = all
            .iter()
            .map(|one| format!("`{}` is {}", one.name(), one.state(&proxy.fleet.fence).as_str()))
            .collect();
        let message = format!("no upstream takes calls: {}", states.join(", "));
        return Err(error(StatusCode::SERVICE_UNAVAILABLE, &message));
    }
    let urls: Vec<String> = all.iter().map(|engine| engine.spec.upstream.to_string()).collect();
    Ok(ok(json!({ "status": "ok", "upstream": urls.join(" "), "open": open })))
}
