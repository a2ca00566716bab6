//! The control listener, and the walk of a request to it: the page, the route, who asks, the body,
//! the handler.
//!
//! A field or parameter that is unknown is refused by its name. Requests to the upstream's control
//! routes are forwarded unread. Who asks is checked on every route but `GET /health`.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use episode::AttemptId;
use http::api::query::Query;
use http::api::reply::{JsonReply, done, error, ok};
use http::body::ReplyBody;
use http::body::read::read_whole;
use http::headers;
use http::server::edge;
use http::server::endpoint::Endpoint;
use http::server::listen;
use http::server::listen::{ClientRules, Listener};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, StatusCode};
use proxy::Recorder;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use wire::EngineRoute;

use crate::bounds::{
    ANNOTATIONS_BODY_BYTES_MAX, CONTROL_BODY_BYTES_MAX, CONTROL_DRAIN_WAIT, CONTROL_REQUESTS_MAX,
    PRUNE_BODY_BYTES_MAX,
};
use crate::door::Door;
use crate::error::{body_error, commit_error};
use crate::feed::readers::FeedReaders;
use crate::metrics::MetricSources;
use crate::reading::Reading;
use crate::routes::{ControlRoute, Handler, JsonHandler};
use crate::settings::Settings;
use crate::{
    admission, annotations, engines, episodes, feed, keys, openapi, prune, rewards, upstreams,
    versions,
};

/// Serves the control listener of a recorder until `shutdown`.
pub async fn serve_control(
    recorder: Recorder,
    settings: Settings,
    listener: impl Into<Endpoint>,
    shutdown: impl Future<Output = ()>,
) {
    // This task holds the store, so it must end with this function however that ends.
    let mut tasks = JoinSet::new();
    let followed = recorder.clone();
    tasks.spawn(async move { followed.follow_versions().await });

    let listener = listener_of(&settings, listener.into());
    let door = Door::new(&settings, &listener.socket);
    let readers = Arc::new(FeedReaders::new(Arc::clone(&settings.feed_items)));
    let metrics = Arc::new(MetricSources {
        recorder: recorder.clone(),
        readers: Arc::clone(&readers),
        gate: Arc::clone(&door.gate),
        exports: settings.exports.clone(),
    });
    settings.metrics.point_to(&metrics);
    let control = Arc::new(Control {
        door,
        reading: Reading::new(settings.viewer.clone().in_room(recorder.reading_room())),
        readers,
        metrics,
        requests: Semaphore::new(CONTROL_REQUESTS_MAX),
        recorder: recorder.clone(),
        settings,
    });
    let stopping = Arc::clone(&control);
    let shutdown = async move {
        shutdown.await;
        stopping.reading.stop();
        // The calls may have used up the time of the drain.
        recorder.begin_drain().max(Instant::now() + CONTROL_DRAIN_WAIT)
    };
    let answer = move |request| answer(Arc::clone(&control), request);
    listen::serve(listener, edge::service(answer, panicked), shutdown).await;
    tasks.shutdown().await;
}

/// Serves what people read of a recording until `shutdown`. Of what they write it takes comments,
/// if the settings name a store for them.
pub async fn serve_reading(
    settings: Settings,
    listener: impl Into<Endpoint>,
    shutdown: impl Future<Output = ()>,
) {
    let listener = listener_of(&settings, listener.into());
    let door = Door::new(&settings, &listener.socket);
    let reading = Reading::new(settings.viewer.clone());
    let shared = Arc::new(ReadingListener { door, reading, settings });
    let stopping = Arc::clone(&shared);
    let shutdown = async move {
        shutdown.await;
        stopping.reading.stop();
        Instant::now() + CONTROL_DRAIN_WAIT
    };
    let answer = move |request: Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move {
            let reply = respond_to_reader(&shared, request).await;
            Ok(reply.unwrap_or_else(JsonReply::into_response))
        }
    };
    listen::serve(listener, edge::service(answer, panicked), shutdown).await;
}

fn listener_of(settings: &Settings, socket: Endpoint) -> Listener {
    let tls = settings.tls.clone().map(TlsAcceptor::from);
    let (bounds, rules) = (settings.connection_bounds(), ClientRules::default());
    Listener { tls, bounds, rules, socket }
}

/// The reply to a request whose answer panicked.
fn panicked() -> Response<ReplyBody> {
    let message = "the request could not be answered; the log of rolltape says why";
    error(StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
}

/// A listener that reads.
struct ReadingListener {
    door: Door,
    reading: Reading,
    settings: Settings,
}

async fn respond_to_reader(
    listener: &ReadingListener,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, JsonReply> {
    let ReadingListener { door, reading, settings } = listener;
    let (head, body) = request.into_parts();
    if let Some(file) = door.page_file(&head)? {
        return Ok(file);
    }
    let (route, parameter) = door.let_in(&head).await?;
    let query = head.uri.query();
    match route.handler {
        Handler::Health => Ok(done().into_response()),
        Handler::Read(view) => reading.read(route, view, &parameter, query).await,
        Handler::Changes => reading.changes(route, query).await,
        Handler::Json(JsonHandler::ShowReadToken) => Ok(door.show_read_token().into_response()),
        Handler::Json(JsonHandler::AddAnnotations) => {
            let Some(store) = &settings.comments_to else { return Err(only_reads()) };
            let request = Request::from_parts(head, body);
            let (head, body) =
                read_json(request, CONTROL_BODY_BYTES_MAX, settings.body_wait).await?;
            let provenance = door.provenance(&head.extensions);
            annotations::add_beside(store, &body, &provenance).await.map(JsonReply::into_response)
        }
        _ => Err(only_reads()),
    }
}

fn only_reads() -> JsonReply {
    let message = "this listener only reads a recording; `rolltape serve` has the rest";
    error(StatusCode::NOT_FOUND, message)
}

/// A control listener.
struct Control {
    recorder: Recorder,
    settings: Settings,
    door: Door,
    reading: Reading,
    readers: Arc<FeedReaders>,
    metrics: Arc<MetricSources>,
    /// Bounds the requests that are served at once. Those that the gate refuses take no permit, nor
    /// do bodies of JSON that are still being read. A request to the upstream's control routes has
    /// one while its body passes.
    requests: Semaphore,
}

async fn answer(
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    Ok(respond(&control, request).await.unwrap_or_else(JsonReply::into_response))
}

async fn respond(
    control: &Control,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, JsonReply> {
    let (head, body) = request.into_parts();
    if let Some(file) = control.door.page_file(&head)? {
        return Ok(file);
    }
    let (route, parameter) = control.door.let_in(&head).await?;

    let query = head.uri.query();
    match route.handler {
        Handler::Health => Ok(done().into_response()),
        Handler::Read(view) => control.reading.read(route, view, &parameter, query).await,
        Handler::Changes => control.reading.changes(route, query).await,
        Handler::Metrics => {
            let _permit = control.requests.acquire().await;
            control.metrics.page().await
        }
        Handler::Engine(of_engine) => {
            control.forward(Some(of_engine), Request::from_parts(head, body)).await
        }
        Handler::Models => control.forward(None, Request::from_parts(head, body)).await,
        Handler::Feed => {
            let (head, body) =
                control.read_json(Request::from_parts(head, body), CONTROL_BODY_BYTES_MAX).await?;
            let _permit = control.requests.acquire().await;
            feed::hand_out(&control.recorder, &control.readers, head.uri.query(), &body).await
        }
        Handler::Json(handler) => {
            let most = match handler {
                JsonHandler::AddAnnotations => ANNOTATIONS_BODY_BYTES_MAX,
                JsonHandler::Prune => PRUNE_BODY_BYTES_MAX,
                _ => CONTROL_BODY_BYTES_MAX,
            };
            let (head, body) = control.read_json(Request::from_parts(head, body), most).await?;
            let _permit = control.requests.acquire().await;
            let query = head.uri.query();
            let request = JsonRequest {
                route,
                handler,
                parameter: &parameter,
                query,
                body: &body,
                head: &head,
            };
            request.answer(control).await.map(JsonReply::into_response)
        }
    }
}

impl Control {
    /// Forwards a request to the upstream, or one for a control route to all of them.
    async fn forward(
        &self,
        of_engine: Option<&'static EngineRoute>,
        mut request: Request<Incoming>,
    ) -> Result<Response<ReplyBody>, JsonReply> {
        let _permit = self.requests.acquire().await;
        if self.settings.token.is_some() {
            // The token is for this listener only.
            headers::remove(request.headers_mut(), &[AUTHORIZATION.as_str()]);
        }
        match of_engine {
            Some(route) if self.recorder.upstreams().are_many() => {
                engines::to_all(&self.recorder, route, request, self.settings.body_wait).await
            }
            of_engine => {
                let changes_weights = of_engine.is_some_and(|route| route.changes_weights);
                engines::forward(&self.recorder, request, changes_weights).await
            }
        }
    }

    /// Reads a request whole, before its permit is taken: a slow one holds up nobody.
    async fn read_json(
        &self,
        request: Request<Incoming>,
        most: usize,
    ) -> Result<(Parts, Bytes), JsonReply> {
        read_json(request, most, self.settings.body_wait).await
    }
}

/// Reads a request whole. A body must say that it is JSON: a web page cannot send such a one to
/// another origin without asking first.
async fn read_json(
    request: Request<Incoming>,
    most: usize,
    wait: Duration,
) -> Result<(Parts, Bytes), JsonReply> {
    let (head, body) = read_whole(request, most, wait).await.map_err(body_error)?;
    if body.is_empty() || is_json(&head.headers) {
        return Ok((head, body));
    }
    let message = "this route takes JSON; send content-type: application/json";
    Err(error(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// True if a content type is given, and only that of JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter().peekable();
    types.peek().is_some()
        && types.all(|value| {
            let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
            essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
        })
}

/// A request to a route that takes and returns JSON.
struct JsonRequest<'a> {
    route: &'static ControlRoute,
    handler: JsonHandler,
    /// The value of the path's parameter; empty if it has none.
    parameter: &'a str,
    query: Option<&'a str>,
    body: &'a [u8],
    head: &'a Parts,
}

impl JsonRequest<'_> {
    async fn answer(&self, control: &Control) -> Result<JsonReply, JsonReply> {
        let (recorder, body) = (&control.recorder, self.body);
        match self.handler {
            JsonHandler::Ready => ready(recorder).await,
            JsonHandler::OpenApi => Ok(ok(openapi::document())),
            JsonHandler::ShowReadToken => Ok(control.door.show_read_token()),

            JsonHandler::AnnounceEpisode => episodes::announce(recorder, body).await,
            JsonHandler::ShowEpisode => episodes::show(recorder, self.attempt(recorder)?).await,
            JsonHandler::SignKey => keys::sign(recorder, self.attempt(recorder)?, body).await,
            JsonHandler::RevokeKeys => keys::revoke(recorder, self.attempt(recorder)?, body).await,
            JsonHandler::RotateSecrets => keys::rotate(recorder, body),
            JsonHandler::AddReward => {
                let provenance = control.door.provenance(&self.head.extensions);
                let reward = rewards::read(body, &control.settings.reward_ranges, provenance)?;
                rewards::add(recorder, self.attempt(recorder)?, reward).await
            }
            JsonHandler::CloseEpisode => {
                episodes::close(recorder, self.attempt(recorder)?, body).await
            }

            JsonHandler::DeleteEpisode => prune::delete(recorder, self.attempt(recorder)?).await,
            JsonHandler::Prune => prune::prune(recorder, body).await,

            JsonHandler::AddAnnotations => {
                let provenance = control.door.provenance(&self.head.extensions);
                annotations::add(recorder, body, &provenance).await
            }

            JsonHandler::ListConsumers => feed::list_consumers(recorder, &control.readers).await,
            JsonHandler::AckLease => feed::ack(recorder, self.parameter, body).await,
            JsonHandler::NackLease => feed::nack(recorder, self.parameter, body).await,
            JsonHandler::RenewLease => feed::renew(recorder, self.parameter, body).await,

            JsonHandler::SetAdmission => admission::set(recorder, body).await,
            JsonHandler::ShowAdmission => admission::show(recorder).await,
            JsonHandler::LiftAdmission => admission::lift(recorder).await,

            JsonHandler::DeclareVersion => versions::declare(recorder, body).await,
            JsonHandler::ListVersions => versions::list(recorder).await,

            JsonHandler::ListUpstreams => Ok(upstreams::list(recorder)),
            JsonHandler::AddUpstream => upstreams::add(recorder, body).await,
            JsonHandler::DrainUpstream => upstreams::drain(recorder, self.parameter),
            JsonHandler::RemoveUpstream => upstreams::remove(recorder, self.parameter).await,
        }
    }

    /// The attempt that the path and the query name, as the recorder names it.
    fn attempt(&self, recorder: &Recorder) -> Result<AttemptId, JsonReply> {
        let query = Query::parse(self.query)?;
        query.check_known(&self.route.query_names())?;
        let attempt = episodes::attempt_key(self.parameter, query.get("attempt"))?;
        episodes::with_prefix(recorder, attempt)
    }
}

/// Reports whether a call could be forwarded and recorded now, and the address of the upstream.
async fn ready(recorder: &Recorder) -> Result<JsonReply, JsonReply> {
    if recorder.drain().borrow().is_some() {
        let message = "rolltape is draining: it takes no more calls and is about to stop";
        return Err(error(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    recorder.store().probe().await.map_err(commit_error)?;
    upstreams::ready(recorder).await
}
