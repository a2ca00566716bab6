//! The reading of a recording over HTTP: documents, recorded bodies, live events, and the page that
//! shows them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::api::query::Query;
use http::api::reply::{JsonReply, bad_request, error};
use http::body::{BoxError, ChannelBody, ReplyBody, full};
use http_body_util::BodyExt;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Response, StatusCode};
use store::{OpenError, SnapshotError};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use viewer::{Answer, EventReader, PageFile, View, ViewError, Viewer, page_file};

use crate::bounds::{EVENT_BEAT, EVENT_LOOK_EVERY, EVENT_STREAMS_MAX, PASSES_MAX, READS_MAX};
use crate::error::{broken, snapshot_error};
use crate::routes::ControlRoute;

/// The policy for browsers: the page loads nothing of another host, and no script in a document.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";
/// A body that somebody else wrote may do nothing in a browser, whatever it is.
pub(crate) const BODY_POLICY: &str = "default-src 'none'; sandbox; frame-ancestors 'none'";

/// The reading of one recording, within bounds.
pub(crate) struct Reading {
    viewer: Viewer,
    /// Bounds the questions that are answered at once; further ones wait.
    reads: Semaphore,
    /// Bounds the passes over many attempts, each of which takes the place of a question for long.
    passes: Semaphore,
    /// Bounds the streams of events.
    streams: Arc<Semaphore>,
    /// True once the listener stops: streams of events end.
    stopping: watch::Sender<bool>,
}

impl Reading {
    pub(crate) fn new(viewer: Viewer) -> Self {
        Self {
            viewer,
            reads: Semaphore::new(READS_MAX),
            passes: Semaphore::new(PASSES_MAX),
            streams: Arc::new(Semaphore::new(EVENT_STREAMS_MAX)),
            stopping: watch::Sender::new(false),
        }
    }

    /// Ends the streams of events.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Answers a question.
    pub(crate) async fn read(
        &self,
        route: &ControlRoute,
        view: View,
        id: &str,
        query: Option<&str>,
    ) -> Result<Response<ReplyBody>, JsonReply> {
        let parameters = parameters(route, query)?;
        let _pass = match view {
            View::Checks => Some(self.passes.try_acquire().map_err(|_| judging())?),
            _ => None,
        };
        let _permit = self.reads.acquire().await;
        let (viewer, id) = (self.viewer.clone(), id.to_owned());
        let answered = spawn_blocking(move || {
            Handle::current().block_on(viewer.answer(view, &id, &parameters))
        });
        match answered.await.map_err(|why| broken(&why))?.map_err(refused)? {
            Answer::Document(text) => {
                Ok(response(Bytes::from(text), "application/json", BODY_POLICY))
            }
            Answer::Body(body) => Ok(response(body, "text/plain; charset=utf-8", BODY_POLICY)),
        }
    }

    /// A stream of what changes from now on.
    pub(crate) async fn changes(
        &self,
        route: &ControlRoute,
        query: Option<&str>,
    ) -> Result<Response<ReplyBody>, JsonReply> {
        let parameters = parameters(route, query)?;
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            let message = format!("at most {EVENT_STREAMS_MAX} streams of events at a time");
            return Err(error(StatusCode::SERVICE_UNAVAILABLE, &message));
        };
        let mut changes = EventReader::new(self.viewer.clone(), &parameters).map_err(refused)?;
        // The first look fixes the moment, before the reply says that the stream has begun.
        let looked =
            spawn_blocking(move || Handle::current().block_on(changes.look()).map(|_| changes));
        let changes = looked.await.map_err(|why| broken(&why))?.map_err(refused)?;

        let (sender, receiver) = mpsc::channel(1);
        let stream = EventStream { changes, _permit: permit, stopping: self.stopping.subscribe() };
        tokio::spawn(stream.send_all(sender));
        let body = ChannelBody(receiver).boxed_unsync();
        Ok(headed(Response::new(body), "text/event-stream", BODY_POLICY))
    }
}

/// A file of the page, if the path is one.
pub(crate) fn file(path: &str) -> Option<Response<ReplyBody>> {
    let PageFile { content_type, content } = page_file(path)?;
    Some(response(Bytes::from_static(content), content_type, PAGE_POLICY))
}

/// The parameters of a query, of which the route knows all.
fn parameters(
    route: &ControlRoute,
    query: Option<&str>,
) -> Result<Vec<(String, String)>, JsonReply> {
    let query = Query::parse(query)?;
    query.check_known(&route.query_names())?;
    Ok(query.pairs().to_vec())
}

fn judging() -> JsonReply {
    let message = "a run is being judged for another reader: ask again in some seconds";
    error(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn refused(why: ViewError) -> JsonReply {
    match why {
        ViewError::Parameter(why) => bad_request(&why),
        ViewError::Missing(why) => error(StatusCode::NOT_FOUND, &why),
        ViewError::Store(why) => snapshot_error(why),
    }
}

fn response(body: Bytes, content_type: &'static str, policy: &'static str) -> Response<ReplyBody> {
    headed(Response::new(full(body)), content_type, policy)
}

fn headed(
    mut response: Response<ReplyBody>,
    content_type: &'static str,
    policy: &'static str,
) -> Response<ReplyBody> {
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    guard(headers, policy);
    response
}

/// Sets what a browser must know of a reply.
pub(crate) fn guard(headers: &mut HeaderMap, policy: &'static str) {
    let same_origin = HeaderName::from_static("cross-origin-resource-policy");
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, policy),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (same_origin, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// A stream of changes on its way to a reader.
struct EventStream {
    changes: EventReader,
    _permit: OwnedSemaphorePermit,
    stopping: watch::Receiver<bool>,
}

impl EventStream {
    /// Sends what changes until the reader leaves or the listener stops.
    async fn send_all(mut self, sender: mpsc::Sender<Result<Bytes, BoxError>>) {
        let mut sent_at = Instant::now();
        // Tells the reader at once that the stream is open.
        let mut next = Bytes::from_static(b": open\n\n");
        loop {
            if !next.is_empty() {
                sent_at = Instant::now();
                if sender.send(Ok(next)).await.is_err() {
                    return;
                }
            }

            tokio::select! {
                _ = self.stopping.wait_for(|stopping| *stopping) => return,
                () = sender.closed() => return,
                () = tokio::time::sleep(EVENT_LOOK_EVERY) => {}
            }

            let mut changes = self.changes;
            let looked =
                spawn_blocking(move || (Handle::current().block_on(changes.look()), changes));
            let Ok((found, changes)) = looked.await else { return };
            self.changes = changes;
            next = match found {
                Ok(found) => events(&found, sent_at.elapsed()),
                // The next look finds what this one would have found.
                Err(ViewError::Store(SnapshotError::Open(OpenError::Busy(..)))) => {
                    events(&[], sent_at.elapsed())
                }
                Err(why) => {
                    let _ = sender.send(Err(BoxError::from(why))).await;
                    return;
                }
            };
        }
    }
}

/// Changes as server-sent events; a comment if there are none for some time.
fn events(found: &[(&'static str, String)], silence: Duration) -> Bytes {
    if found.is_empty() && silence >= EVENT_BEAT {
        return Bytes::from_static(b": \n\n");
    }
    let events = found.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n"));
    Bytes::from(events.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::ROUTES;

    #[tokio::test]
    async fn a_second_run_is_not_judged_beside_the_first() {
        let missing = store::Location::File("/nowhere/rolltape.db".into());
        let reading = Reading::new(Viewer::new(missing, None));
        let route = ROUTES.iter().find(|route| route.path == "/checks").unwrap();
        let said = async || {
            let answer = reading.read(route, View::Checks, "", None).await;
            answer.unwrap_err().body.to_string()
        };

        let first = reading.passes.try_acquire().unwrap();
        assert!(said().await.contains("a run is being judged for another reader"));
        drop(first);
        assert!(said().await.contains("/nowhere/rolltape.db"), "the store is asked");
    }
}
