//! Control requests to several engines: to all at once, or to one after another.
//!
//! Each engine carries out a request or does not. If all that serve did, the answer is that of the
//! first. If one did not, the answer names each. What an engine missed of the weights keeps it
//! behind the fence.

use std::sync::Arc;

use bytes::Bytes;
use episode::Route;
use http::api::reply::{JsonReply, bad_request, error};
use http::body::outgoing::OutgoingBody;
use http::body::read::read_whole;
use http::body::{ReplyBody, full};
use http::headers;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::response::Parts as ReplyParts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::bounds::{DOCUMENT_BYTES_MAX, FAN_OUT_BODY_BYTES_MAX};
use crate::control::error::body_error;
use crate::fleet::engine::Engine;
use crate::fleet::health::served_label;
use crate::fleet::members::PushState;
use crate::proxy::Proxy;

/// The parameter that asks for one engine after another. It is not sent on.
const ROLLING: &str = "rolling=true";
/// The header of an answer that says how many engines carried the request out.
const ENGINES: &str = "x-rolltape-engines";

const START: &str = "/start_weight_update";
const UPDATE: &str = "/update_weights";
const FINISH: &str = "/finish_weight_update";
const WORLD_SIZE: &str = "/get_world_size";

/// The answer of one engine.
struct Answer {
    engine: Arc<Engine>,
    /// True if the engine served calls when it was asked.
    was_serving: bool,
    /// The reply, or the reason for which there is none.
    reply: Result<(ReplyParts, Bytes), String>,
}

/// The words for an engine that was not asked because one before it failed.
const NOT_ASKED: &str = "not asked, because one before it did not carry this out";

impl Answer {
    fn is_success(&self) -> bool {
        self.reply.as_ref().is_ok_and(|(head, _)| head.status.is_success())
    }

    fn status(&self) -> Option<StatusCode> {
        self.reply.as_ref().ok().map(|(head, _)| head.status)
    }

    /// The answer for a document that names each engine.
    fn shown(&self) -> Value {
        match &self.reply {
            Err(reason) => json!({ "status": null, "error": reason }),
            Ok((head, body)) => {
                let text = || Value::String(String::from_utf8_lossy(body).into_owned());
                let body = serde_json::from_slice(body).unwrap_or_else(|_| text());
                json!({ "status": head.status.as_u16(), "body": body })
            }
        }
    }
}

/// A control request, read whole.
struct ControlRequest {
    /// The path in the table of routes.
    route: &'static str,
    head: Parts,
    body: Bytes,
    is_rolling: bool,
}

/// Sends a control request to all engines that answer.
pub(super) async fn to_all(
    proxy: &Proxy,
    route: &'static str,
    request: Request<Incoming>,
    changes_weights: bool,
) -> Result<Response<ReplyBody>, JsonReply> {
    let request = read(proxy, route, request).await?;
    let is_push = changes_weights || route == START;
    if !is_push {
        let engines = asked(proxy, |_| true);
        let answers = ask(proxy, &request, engines).await?;
        return answer(&request, &answers);
    }

    // Nobody takes the labels of meanwhile, and pushes do not cross.
    let mut push = proxy.fleet.pushing.write().await;
    let is_whole = is_whole_push(&request, &push);
    let engines = asked(proxy, |engine| is_whole || route == START || !engine.missed_part());
    let changing = Changing::begin(&engines);
    let answers = ask(proxy, &request, engines).await?;
    note_push(proxy, &request, &answers, &mut push).await;
    match push.is_open {
        // Until its last request: a server may change its weights piece by piece.
        true => changing.keep(),
        false => drop(changing),
    }
    answer(&request, &answers)
}

/// Engines whose weights are being changed. They are no longer when this is dropped, which also
/// happens when the trainer leaves.
struct Changing(Vec<Arc<Engine>>);

impl Changing {
    fn begin(engines: &[Arc<Engine>]) -> Self {
        engines.iter().for_each(|engine| engine.set_changing(true));
        Self(engines.to_vec())
    }

    /// Leaves the engines as they are.
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.iter().for_each(|engine| engine.set_changing(false));
    }
}

async fn read(
    proxy: &Proxy,
    route: &'static str,
    request: Request<Incoming>,
) -> Result<ControlRequest, JsonReply> {
    let wait = proxy.config().body_wait;
    let read = read_whole(request, FAN_OUT_BODY_BYTES_MAX, wait).await;
    let (mut head, body) = read.map_err(body_error)?;
    headers::prepare_request(&mut head.headers, Route::Other);
    headers::remove(&mut head.headers, &[CONTENT_ENCODING.as_str()]);
    if proxy.config().control_token.is_some() {
        // The token is for this listener only.
        headers::remove(&mut head.headers, &[AUTHORIZATION.as_str()]);
    }

    let query = head.uri.query().unwrap_or_default();
    let is_rolling = query.split('&').any(|pair| pair == ROLLING);
    let kept: Vec<&str> = query.split('&').filter(|pair| *pair != ROLLING).collect();
    let path = match kept.join("&") {
        query if query.is_empty() => head.uri.path().to_owned(),
        query => format!("{}?{query}", head.uri.path()),
    };
    head.uri = path.parse::<Uri>().map_err(|why| bad_request(&why))?;
    Ok(ControlRequest { route, head, body, is_rolling })
}

/// The engines that get the request: those that answer and that `takes` it.
fn asked(proxy: &Proxy, takes: impl Fn(&Engine) -> bool) -> Vec<Arc<Engine>> {
    let all = proxy.fleet.all();
    all.iter().filter(|engine| !engine.is_down() && takes(engine)).cloned().collect()
}

/// Asks engines at once, or one after another until one fails.
async fn ask(
    proxy: &Proxy,
    request: &ControlRequest,
    engines: Vec<Arc<Engine>>,
) -> Result<Vec<Answer>, JsonReply> {
    if engines.is_empty() {
        return Err(error(StatusCode::SERVICE_UNAVAILABLE, "no upstream answers"));
    }
    let bodies = bodies(&request.body, &engines).await;
    let mut answers = Vec::new();
    // A group forms only if all join at once.
    let joins = bodies.iter().any(|body| *body != request.body);
    if request.is_rolling && !joins {
        let mut has_failed = false;
        for (engine, body) in engines.into_iter().zip(bodies) {
            let was_serving = proxy.fleet.is_open(&engine);
            if has_failed {
                answers.push(Answer { engine, was_serving, reply: Err(NOT_ASKED.to_owned()) });
                continue;
            }
            engine.hold(true);
            let reply = ask_one(&engine, request.head.clone(), body).await;
            engine.hold(false);
            proxy.fleet.tell_room();
            let answer = Answer { engine, was_serving, reply };
            has_failed = !answer.is_success();
            answers.push(answer);
        }
        return Ok(answers);
    }

    let mut asked = JoinSet::new();
    for (index, (engine, body)) in engines.into_iter().zip(bodies).enumerate() {
        let (head, was_serving) = (request.head.clone(), proxy.fleet.is_open(&engine));
        asked.spawn(async move {
            let reply = ask_one(&engine, head, body).await;
            (index, Answer { engine, was_serving, reply })
        });
    }
    let mut indexed: Vec<(usize, Answer)> = Vec::new();
    while let Some(answered) = asked.join_next().await {
        indexed.extend(answered.ok());
    }
    indexed.sort_by_key(|(index, _)| *index);
    Ok(indexed.into_iter().map(|(_, answer)| answer).collect())
}

/// The body for each engine. Where the trainer names the first rank of what it takes for one
/// server, each engine gets the ranks after those of the engines before it.
async fn bodies(body: &Bytes, engines: &[Arc<Engine>]) -> Vec<Bytes> {
    if wire::with_rank_offset(body, 0).is_none() {
        return vec![body.clone(); engines.len()];
    }
    let (mut ranks, mut bodies) = (0, Vec::new());
    for engine in engines {
        bodies.push(match ranks {
            0 => body.clone(),
            ranks => wire::with_rank_offset(body, ranks).unwrap_or_else(|| body.clone()),
        });
        ranks += world_size(engine).await;
    }
    bodies
}

/// The number of an engine's ranks; 1 if it does not say.
async fn world_size(engine: &Engine) -> u64 {
    let reply = engine.server.client.get(WORLD_SIZE).await;
    reply.ok().and_then(|(_, body)| wire::world_size(&body)).unwrap_or(1)
}

async fn ask_one(engine: &Engine, head: Parts, body: Bytes) -> Result<(ReplyParts, Bytes), String> {
    let body = OutgoingBody::whole(body, None);
    let reply = engine.server.client.control(head, body).await.map_err(|error| error.detail())?;
    let (head, body) = reply.into_parts();
    let body = Limited::new(body, DOCUMENT_BYTES_MAX).collect().await;
    Ok((head, body.map_err(|error| error.to_string())?.to_bytes()))
}

/// True if weights are whole after this request. One with a label is a push of its own.
fn is_whole_push(request: &ControlRequest, push: &PushState) -> bool {
    let label = || wire::pushed_label(request.head.uri.query(), &request.body);
    request.route != START
        && request.route != FINISH
        && (!push.is_open || request.route != UPDATE || label().is_some())
}

/// Notes which engines have the weights that were pushed.
async fn note_push(
    proxy: &Proxy,
    request: &ControlRequest,
    answers: &[Answer],
    push: &mut PushState,
) {
    let is_whole = is_whole_push(request, push);
    match request.route {
        START => push.is_open = true,
        _ if is_whole || request.route == FINISH => push.is_open = false,
        _ => {}
    }
    for answer in answers {
        // An engine that misses a part gets no later one.
        let missed = push.is_open && !answer.is_success();
        answer.engine.set_missed_part(missed);
    }
    if push.is_open || !answers.iter().any(Answer::is_success) {
        return;
    }

    let fleet = &proxy.fleet;
    let number = fleet.fence.push() + 1;
    let pushed = wire::pushed_label(request.head.uri.query(), &request.body);
    let mut newest = None;
    for answer in answers.iter().filter(|answer| answer.is_success()) {
        let label = served_label(&answer.engine).await.or_else(|| pushed.clone());
        newest = newest.or_else(|| label.clone());
        answer.engine.acknowledge(number, label);
        answer.engine.server.lookups.weights_changed();
    }
    // The engines know of it before the fence does.
    fleet.fence.raise(number, newest);
    fleet.tell_room();
    proxy.tracker.versions.request_check();
}

/// One answer for all.
fn answer(request: &ControlRequest, answers: &[Answer]) -> Result<Response<ReplyBody>, JsonReply> {
    // One that was behind the fence and stays there takes nothing from those that serve.
    let failed = answers.iter().any(|answer| !answer.is_success() && answer.was_serving);
    let first = answers.iter().find(|answer| answer.is_success());
    let Some(first) = first.filter(|_| !failed) else { return Err(failure(answers)) };
    let Ok((head, body)) = &first.reply else { return Err(failure(answers)) };

    let mut head = head.clone();
    let mut body = body.clone();
    if request.route == WORLD_SIZE && request.head.method == Method::GET {
        let sizes = answers.iter().filter_map(|answer| answer.reply.as_ref().ok());
        body = wire::world_size_body(sizes.filter_map(|(_, body)| wire::world_size(body)).sum());
    }
    headers::remove_hop_by_hop(&mut head.headers);
    headers::remove(&mut head.headers, &[CONTENT_LENGTH.as_str()]);
    let succeeded = answers.iter().filter(|answer| answer.is_success()).count();
    head.headers.insert(ENGINES, HeaderValue::from(succeeded));
    Ok(Response::from_parts(head, full(body)))
}

/// The answer that names each engine. Its status is that of all, or a 502.
fn failure(answers: &[Answer]) -> JsonReply {
    let failed: Vec<&Answer> = answers.iter().filter(|answer| !answer.is_success()).collect();
    let names: Vec<String> =
        failed.iter().map(|answer| format!("`{}`", answer.engine.name())).collect();
    let message = format!(
        "{} of {} upstreams did not carry this out: {}",
        failed.len(),
        answers.len(),
        names.join(", ")
    );
    let status = answers.first().and_then(Answer::status);
    let is_common = answers.iter().all(|answer| answer.status() == status);
    let status = status.filter(|_| is_common).unwrap_or(StatusCode::BAD_GATEWAY);
    let each: Map<String, Value> =
        answers.iter().map(|answer| (answer.engine.name().to_owned(), answer.shown())).collect();
    let reply = error(status, &message);
    let mut body = reply.body;
    body["upstreams"] = Value::Object(each);
    JsonReply { status, body, allow: None }
}
