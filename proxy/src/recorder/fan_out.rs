//! Control requests to several engines: to all at once, or to one after another.
//!
//! Each engine carries out a request or does not. What an engine missed of the weights keeps it
//! behind the fence.

use std::sync::Arc;

use bytes::Bytes;
use episode::{AttemptId, Route};
use http::body::outgoing::OutgoingBody;
use http::headers;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use hyper::http::request::Parts;
use hyper::http::response::Parts as ReplyParts;
use hyper::{Request, StatusCode};
use tokio::task::JoinSet;
use wire::{Dialect, EngineRoute};

use crate::bounds::DOCUMENT_BYTES_MAX;
use crate::fleet::engine::Engine;
use crate::fleet::health::served_label;
use crate::fleet::members::PushState;
use crate::proxy::Proxy;

const START: &str = "/start_weight_update";
const UPDATE: &str = "/update_weights";
const FINISH: &str = "/finish_weight_update";
const WORLD_SIZE: &str = "/get_world_size";
const CLOSE: &str = "/close_attempt";

/// The words for an engine that was not asked because one before it failed.
const NOT_ASKED: &str = "not asked, because one before it did not carry this out";

/// The answer of one engine to a control request.
#[derive(Debug)]
pub struct EngineAnswer {
    engine: Arc<Engine>,
    was_serving: bool,
    reply: Result<(ReplyParts, Bytes), String>,
}

impl EngineAnswer {
    /// The name of the engine.
    pub fn upstream(&self) -> &str {
        self.engine.name()
    }

    /// True if the engine served calls when it was asked.
    pub fn was_serving(&self) -> bool {
        self.was_serving
    }

    /// True if the engine carried the request out.
    pub fn is_success(&self) -> bool {
        self.status().is_some_and(|status| status.is_success())
    }

    /// The status of the reply, if there is one.
    pub fn status(&self) -> Option<StatusCode> {
        self.reply.as_ref().ok().map(|(head, _)| head.status)
    }

    /// The reply, without the headers that belong to its connection.
    ///
    /// # Errors
    /// The reason for which there is none.
    pub fn reply(&self) -> Result<(&ReplyParts, &Bytes), &str> {
        match &self.reply {
            Ok((head, body)) => Ok((head, body)),
            Err(reason) => Err(reason),
        }
    }
}

/// A control request, read whole.
pub(super) struct ControlRequest {
    route: &'static EngineRoute,
    head: Parts,
    body: Bytes,
    is_rolling: bool,
}

impl ControlRequest {
    /// A request whose body is without its coding.
    pub(super) fn new(
        route: &'static EngineRoute,
        mut head: Parts,
        body: Bytes,
        is_rolling: bool,
    ) -> Self {
        headers::prepare_request(&mut head.headers, Route::Other);
        headers::remove(&mut head.headers, &[CONTENT_ENCODING.as_str()]);
        Self { route, head, body, is_rolling }
    }

    /// The path in the table of routes.
    fn path(&self) -> &'static str {
        self.route.path
    }
}

/// Sends a control request to all engines that answer.
pub(super) async fn ask_all(proxy: &Proxy, request: ControlRequest) -> Vec<EngineAnswer> {
    let is_push = request.route.changes_weights || request.path() == START;
    if !is_push {
        let engines = asked(proxy, |_| true);
        return ask(proxy, &request, engines).await;
    }

    // Nobody takes the labels of meanwhile, and pushes do not cross.
    let mut push = proxy.fleet.pushing.write().await;
    let is_whole = is_whole_push(&request, &push);
    let takes = |engine: &Engine| is_whole || request.path() == START || !engine.missed_part();
    let engines = asked(proxy, takes);
    if engines.is_empty() {
        return Vec::new();
    }

    let changing = Changing::begin(&engines);
    let answers = ask(proxy, &request, engines).await;
    note_push(proxy, &request, &answers, &mut push).await;
    match push.is_open {
        // Until its last request: a server may change its weights piece by piece.
        true => changing.keep(),
        false => drop(changing),
    }
    answers
}

/// Tells rolltape's own engines that an attempt is closed, so that its prefixes go first.
pub(super) async fn tell_closed(proxy: &Proxy, attempt: &AttemptId) {
    let is_own = |engine: &Engine| engine.server.probe.known() == Some(Dialect::Rolltape);
    let engines = asked(proxy, is_own);
    let Some(route) = wire::engine_route(CLOSE).filter(|_| !engines.is_empty()) else { return };
    let kind = (CONTENT_TYPE, "application/json");
    let Ok(empty) = Request::post(CLOSE).header(kind.0, kind.1).body(()) else { return };

    let body = wire::close_attempt_body(&attempt.to_string());
    let request = ControlRequest::new(route, empty.into_parts().0, body, false);
    for answer in ask(proxy, &request, engines).await {
        // Its prefixes are then the last to be used, and go in their turn.
        if let Err(error) = answer.reply() {
            tracing::debug!(error, upstream = answer.upstream(), "an engine keeps prefixes");
        }
    }
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
) -> Vec<EngineAnswer> {
    let bodies = bodies(&request.body, &engines).await;
    // A group forms only if all join at once.
    let joins = bodies.iter().any(|body| *body != request.body);
    let asked = engines.into_iter().zip(bodies);
    match request.is_rolling && !joins {
        true => ask_in_turn(proxy, request, asked).await,
        false => ask_at_once(proxy, request, asked).await,
    }
}

async fn ask_in_turn(
    proxy: &Proxy,
    request: &ControlRequest,
    asked: impl Iterator<Item = (Arc<Engine>, Bytes)>,
) -> Vec<EngineAnswer> {
    let (mut answers, mut has_failed) = (Vec::new(), false);
    for (engine, body) in asked {
        let was_serving = proxy.fleet.is_open(&engine);
        if has_failed {
            answers.push(EngineAnswer { engine, was_serving, reply: Err(NOT_ASKED.to_owned()) });
            continue;
        }
        engine.hold(true);
        let reply = ask_one(&engine, request.head.clone(), body).await;
        engine.hold(false);
        proxy.fleet.tell_room();
        let answer = EngineAnswer { engine, was_serving, reply };
        has_failed = !answer.is_success();
        answers.push(answer);
    }
    answers
}

/// The answers are in the order of the engines.
async fn ask_at_once(
    proxy: &Proxy,
    request: &ControlRequest,
    asked: impl Iterator<Item = (Arc<Engine>, Bytes)>,
) -> Vec<EngineAnswer> {
    let mut under_way = JoinSet::new();
    for (index, (engine, body)) in asked.enumerate() {
        let (head, was_serving) = (request.head.clone(), proxy.fleet.is_open(&engine));
        under_way.spawn(async move {
            let reply = ask_one(&engine, head, body).await;
            (index, EngineAnswer { engine, was_serving, reply })
        });
    }

    let mut indexed: Vec<(usize, EngineAnswer)> = Vec::new();
    while let Some(answered) = under_way.join_next().await {
        indexed.extend(answered.ok());
    }
    indexed.sort_by_key(|(index, _)| *index);
    indexed.into_iter().map(|(_, answer)| answer).collect()
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
    let (mut head, body) = reply.into_parts();
    headers::remove_hop_by_hop(&mut head.headers);
    let body = Limited::new(body, DOCUMENT_BYTES_MAX).collect().await;
    Ok((head, body.map_err(|error| error.to_string())?.to_bytes()))
}

/// True if weights are whole after this request. One with a label is a push of its own.
fn is_whole_push(request: &ControlRequest, push: &PushState) -> bool {
    let label = || wire::pushed_label(request.head.uri.query(), &request.body);
    request.path() != START
        && request.path() != FINISH
        && (!push.is_open || request.path() != UPDATE || label().is_some())
}

/// Notes which engines have the weights that were pushed.
async fn note_push(
    proxy: &Proxy,
    request: &ControlRequest,
    answers: &[EngineAnswer],
    push: &mut PushState,
) {
    let is_whole = is_whole_push(request, push);
    match request.path() {
        START => push.is_open = true,
        _ if is_whole || request.path() == FINISH => push.is_open = false,
        _ => {}
    }
    for answer in answers {
        // An engine that misses a part gets no later one.
        let missed = push.is_open && !answer.is_success();
        answer.engine.set_missed_part(missed);
    }
    if push.is_open || !answers.iter().any(EngineAnswer::is_success) {
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
