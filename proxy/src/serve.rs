//! The walk of a call.

use std::convert::Infallible;
use std::sync::Arc;

use episode::{Begun, CallId, Micros};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use uuid::Uuid;
use wire::Force;

use crate::accept::{self, Taken};
use crate::chains::Asked;
use crate::fault::Fault;
use crate::forward::{Kind, Sent};
use crate::headers;
use crate::open_call::{OpenCall, Room, ToPlan, now};
use crate::proxy::Proxy;
use crate::record::Recording;
use crate::tag::{self, Tagged};
use crate::tee::{self, Reader, ReplyBody};
use crate::upgrade;

type Answered = Result<Response<ReplyBody>, Fault>;

/// Answers one request, with the upstream's reply or with an error in the form of its wire.
pub(crate) async fn answer(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let route = tag::route_of(request.method(), request.uri().path());
    // Never closed.
    let room = Arc::clone(&proxy.calls).acquire_owned().await.ok();
    let answered = if tag::is_control(request.uri().path()) {
        Err(Fault::Engine)
    } else if !proxy.config().allow_unrecorded_sampling
        && tag::samples_unheard(request.method(), request.uri().path())
    {
        Err(Fault::Unheard)
    } else if upgrade::is_wanted(&request) {
        upgrade::relay(&proxy, request).await
    } else {
        call(&proxy, request, room).await
    };
    Ok(answered.unwrap_or_else(|fault| fault.response(route)))
}

/// THE walk: accept, tag, rewrite, forward, tee; recorded from before the upstream hears of it.
async fn call(proxy: &Proxy, request: Request<Incoming>, room: Room) -> Answered {
    let started_at = now();
    let (mut head, body) = accept::read(request, proxy.config().request_bytes()).await?;
    let sent = wire::Request::read(&body.text);
    let mut tagged = tag::tag(&proxy.known, &mut head, sent.as_ref(), started_at)?;
    let (route, key) = (tagged.route, (tagged.tag.episode.clone(), tagged.tag.attempt));

    let force = proxy.force_of(&key);
    let thread = tagged.thread.take();
    let begun = begun(&head, tagged, (sent.as_ref(), &force), (&body, started_at));
    let (path, model) = (begun.path.clone(), begun.model.clone());
    let asked = Asked::of(&begun, &head.headers);
    let recording = Recording::new(begun.call_id, route, proxy.config().reply_bytes_max);
    let mut open = OpenCall::begin(proxy, begun, recording, room).await;
    open.carries_on(&proxy.known, thread, asked);
    let whole = proxy.known.chains.whole(proxy.store(), &key, (route, sent.as_ref())).await;

    open.admitted(&proxy.admitted, key).await?;
    let dialect = match proxy.forward.dialect(&head.headers).await {
        Ok(dialect) => dialect,
        Err(fault) => return Err(open.fail(fault).await),
    };
    let (sent, whole) = (sent.as_ref(), whole.as_ref());
    let call = ToPlan { route, path: &path, sent, whole, force: &force };
    let plan = open.planned(proxy, dialect, call, &head.headers).await;

    let accepts = headers::Accepts::of(&head.headers);
    headers::request_headers(&mut head.headers, route);
    let kind = Kind::of(route, model, sent);
    let outgoing = Sent { head, path: &path, body, kind };
    let (reply, rewrite) = match proxy.forward.exchange(outgoing, &plan).await {
        Ok(exchanged) => exchanged,
        Err(fault) => return Err(open.fail(fault).await),
    };
    open.recording().expects(plan.collector(&rewrite, proxy.config()), &rewrite);

    open.begun().await?;
    let bytes_max = proxy.config().reply_bytes_max;
    tee::relay(reply, rewrite, open, Reader { route, accepts, bytes_max }).await
}

/// The record of a request.
pub(crate) fn begun(
    head: &Parts,
    tagged: Tagged,
    (sent, force): (Option<&wire::Request>, &Force),
    (body, started_at): (&Taken, Micros),
) -> Begun {
    let sent = sent.filter(|_| tagged.route.generates());
    Begun {
        call_id: CallId(Uuid::now_v7()),
        tag: tagged.tag,
        started_at,
        method: head.method.as_str().to_owned(),
        path: tagged.path,
        route: tagged.route,
        model: sent.and_then(wire::Request::model),
        request: body.text.clone(),
        sampling: sent.and_then(|request| force.sampling(request)),
        lineage: tagged.lineage,
    }
}
