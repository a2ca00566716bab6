//! The control listener: what an agent must not be able to say.
//!
//! - `GET /health`: 200 while the process lives.
//! - `POST /episodes`: make one known before its first call:
//!   `{"episode_id", "attempt"?, "group_id"?, "task_id"?, "labels"?: {}, "force_sampling"?}`.
//! - `POST /episodes/{id}/key`: an API key that names it: `{"ttl_s"?}`.
//! - `GET /episodes/{id}`: what was recorded of it, counted.
//! - `POST /episodes/{id}/rewards`: append `{"value": 1.0 | null, "name"?, "source"?}`, and what it
//!   is about: `{"scope"?, "call_id"?, "choice"?, "start"?, "end"?}`.
//! - `POST /episodes/{id}/close`: refuse later calls; `{"status"?}`.
//!
//! All but the second take `?attempt=N`.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use episode::{
    CLOSING_WORDS, EpisodeId, GroupId, Reward, RewardScope, ScopeParts, Tag, TagSource, TaskId,
};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use store::{CommitError, Selection, SnapshotError};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use wire::Force;

use crate::accept::{self, serve};
use crate::fault::whole;
use crate::open_call::now;
use crate::proxy::Proxy;
use crate::tee::ReplyBody;

const REQUEST_BYTES_MAX: usize = 1 << 20;
const REQUESTS_MAX: usize = 256;
/// How long an API key is good for unless told, in seconds: a day.
const KEY_LIFE_S: i64 = 86_400;
const KEY_LIFE_S_MAX: i64 = 31_536_000;

type Answer = (StatusCode, Value);

/// Serves the control listener until `shutdown`.
pub async fn serve_control(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let drain_wait = proxy.config().drain_wait;
    let service = ServiceBuilder::new()
        .concurrency_limit(REQUESTS_MAX)
        .service_fn(move |request| answered(Arc::clone(&proxy), request));
    serve((listener, None), service, shutdown, drain_wait).await;
}

async fn answered(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let (status, body) = answer(&proxy, request).await.unwrap_or_else(|error| error);
    Ok(response(status, &body))
}

fn response(status: StatusCode, body: &Value) -> Response<ReplyBody> {
    let mut response = Response::new(whole(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn answer(proxy: &Proxy, request: Request<Incoming>) -> Result<Answer, Answer> {
    let (head, body) = accept::read_whole(request, REQUEST_BYTES_MAX)
        .await
        .map_err(|fault| error(fault.status(), &fault.to_string()))?;
    let segments: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
    match (&head.method, segments.as_slice()) {
        (&Method::GET, ["health"]) => Ok(done()),
        (&Method::GET, ["ready"]) => {
            proxy.store().probe().await.map_err(refused)?;
            Ok(done())
        }
        (&Method::POST, ["episodes"]) => announce(proxy, &fields(&body)?).await,
        (&Method::POST, ["episodes", id, "key"]) => {
            mint(proxy, &which(id, head.uri.query())?, &fields(&body)?)
        }
        (&Method::GET, ["episodes", id]) => summary(proxy, which(id, head.uri.query())?).await,
        (&Method::POST, ["episodes", id, "close"]) => {
            let status = closing_word(&fields(&body)?)?;
            let which = which(id, head.uri.query())?;
            proxy.forget(&which);
            proxy.store().close(which.clone(), now(), status).await.map_err(refused)?;
            // A call that began meanwhile may have put it back.
            proxy.forget(&which);
            Ok(done())
        }
        (&Method::POST, ["episodes", id, "rewards"]) => {
            let reward = reward(&fields(&body)?)?;
            let which = which(id, head.uri.query())?;
            proxy.store().reward(which, reward).await.map_err(refused)?;
            Ok(done())
        }
        _ => Err(error(StatusCode::NOT_FOUND, "no such page; see docs/operations.md")),
    }
}

/// Makes an episode known, with the sampling that its calls are to get.
async fn announce(proxy: &Proxy, fields: &Value) -> Result<Answer, Answer> {
    let tag = announced(fields)?;
    let key = (tag.episode.clone(), tag.attempt);
    let force = text(fields, "force_sampling")?.map(|force| force.parse::<Force>());
    let force = force.transpose().map_err(|e| bad(&e))?;
    let written = force.as_ref().map(Force::to_string);
    proxy.store().announce(tag, now(), written).await.map_err(refused)?;
    if let Some(force) = force {
        proxy.force_on(key, force);
    }
    Ok(done())
}

/// An API key for an attempt, with its end.
fn mint(
    proxy: &Proxy,
    (episode, attempt): &(EpisodeId, u32),
    fields: &Value,
) -> Result<Answer, Answer> {
    let seconds = match fields.get("ttl_s") {
        None | Some(Value::Null) => KEY_LIFE_S,
        Some(number) => number
            .as_i64()
            .filter(|seconds| (1..=KEY_LIFE_S_MAX).contains(seconds))
            .ok_or_else(|| error(StatusCode::BAD_REQUEST, "`ttl_s` is not 1 to 31536000"))?,
    };
    let until = now() + seconds * 1_000_000;
    let key = proxy.known.signer.mint(episode, *attempt, until);
    Ok((StatusCode::OK, json!({ "api_key": key, "expires_at": until / 1_000_000 })))
}

fn closing_word(fields: &Value) -> Result<Option<String>, Answer> {
    let word = text(fields, "status")?;
    match word {
        Some(other) if !CLOSING_WORDS.contains(&other.as_str()) => {
            let words = CLOSING_WORDS.join(", ");
            Err(error(StatusCode::BAD_REQUEST, &format!("`status` is none of {words}")))
        }
        known => Ok(known),
    }
}

fn done() -> Answer {
    (StatusCode::OK, json!({ "status": "ok" }))
}

fn which(id: &str, query: Option<&str>) -> Result<(EpisodeId, u32), Answer> {
    Ok((id.parse().map_err(|e| bad(&e))?, attempt(query)?))
}

fn announced(fields: &Value) -> Result<Tag, Answer> {
    let missing = || error(StatusCode::BAD_REQUEST, "`episode_id` is missing");
    let attempt = match fields.get("attempt") {
        None | Some(Value::Null) => Some(0),
        Some(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()),
    };
    let no_attempt = || error(StatusCode::BAD_REQUEST, "`attempt` is not a number from 0");
    let labels = fields.get("labels").and_then(Value::as_object).into_iter().flatten();
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(Tag {
        episode: text(fields, "episode_id")?.ok_or_else(missing)?.parse().map_err(|e| bad(&e))?,
        attempt: attempt.ok_or_else(no_attempt)?,
        group: text(fields, "group_id")?.map(|g| g.parse()).transpose().map_err(|e| bad(&e))?,
        task: text(fields, "task_id")?.map(|t| t.parse()).transpose().map_err(|e| bad(&e))?,
        labels: labels.map(|(name, value)| (name.clone(), word(value))).collect(),
        source: TagSource::Control,
    })
}

async fn summary(proxy: &Proxy, (id, attempt): (EpisodeId, u32)) -> Result<Answer, Answer> {
    let unread = |e: SnapshotError| error(StatusCode::SERVICE_UNAVAILABLE, &e.to_string());
    let mut snapshot = proxy.store().snapshot().await.map_err(unread)?;
    let only = Selection { episode: Some(id.clone()), ..Selection::default() };
    let found = snapshot.summaries(&only).await.map_err(unread)?;
    let Some(found) = found.into_iter().find(|s| s.episode.attempt == attempt) else {
        return Err(refused(CommitError::Unknown(id, attempt)));
    };
    let body = json!({
        "episode_id": found.episode.id.as_str(),
        "attempt": attempt,
        "group_id": found.episode.group.as_ref().map(GroupId::as_str),
        "task_id": found.episode.task.as_ref().map(TaskId::as_str),
        "closed": found.episode.closed_at.is_some(),
        "status": found.episode.status,
        "calls": found.calls,
        "generations": found.generations,
        "with_ids": found.with_ids,
        "incomplete": found.incomplete,
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.completion_tokens,
        "reward": found.reward,
    });
    Ok((StatusCode::OK, body))
}

fn fields(body: &[u8]) -> Result<Value, Answer> {
    if body.trim_ascii().is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice::<Value>(body)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| error(StatusCode::BAD_REQUEST, "the body is not a JSON object"))
}

fn attempt(query: Option<&str>) -> Result<u32, Answer> {
    let pairs = query.unwrap_or("").split('&').filter_map(|pair| pair.split_once('='));
    match pairs.into_iter().find(|(name, _)| *name == "attempt") {
        None => Ok(0),
        Some((_, number)) => number.parse().map_err(|e| bad(&e)),
    }
}

fn reward(fields: &Value) -> Result<Reward, Answer> {
    let value = match fields.get("value") {
        Some(Value::Null) => None,
        Some(Value::Number(number)) => number.as_f64(),
        _ => return Err(error(StatusCode::BAD_REQUEST, "`value` is not a number or null")),
    };
    Ok(Reward {
        scope: scope(fields)?,
        name: text(fields, "name")?.unwrap_or_else(|| "reward".to_owned()),
        value,
        source: text(fields, "source")?.unwrap_or_else(|| "api".to_owned()),
        at: now(),
    })
}

fn scope(fields: &Value) -> Result<RewardScope, Answer> {
    let word = text(fields, "scope")?;
    let call = text(fields, "call_id")?.map(|call| call.parse()).transpose();
    let parts = ScopeParts {
        word: word.as_deref(),
        call: call.map_err(|e| bad(&e))?,
        choice: number(fields, "choice")?,
        tokens: (number(fields, "start")?, number(fields, "end")?),
    };
    RewardScope::new(&parts).map_err(|e| bad(&e))
}

fn number(fields: &Value, name: &str) -> Result<Option<u32>, Answer> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(number) => {
            let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
            let wrong = || format!("`{name}` is not a number from 0");
            number.map(Some).ok_or_else(|| error(StatusCode::BAD_REQUEST, &wrong()))
        }
    }
}

fn text(fields: &Value, name: &str) -> Result<Option<String>, Answer> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(error(StatusCode::BAD_REQUEST, &format!("`{name}` is not a string"))),
    }
}

fn bad(reason: &dyn std::fmt::Display) -> Answer {
    error(StatusCode::BAD_REQUEST, &reason.to_string())
}

fn refused(reason: CommitError) -> Answer {
    let status = match reason {
        CommitError::Unknown(..) | CommitError::UnknownCall(..) => StatusCode::NOT_FOUND,
        CommitError::Closed(..) => StatusCode::CONFLICT,
        CommitError::NotBegun(_)
        | CommitError::Trouble(_)
        | CommitError::Database(_)
        | CommitError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, &reason.to_string())
}

fn error(status: StatusCode, message: &str) -> Answer {
    (status, json!({ "error": { "message": message, "code": status.as_u16() } }))
}
