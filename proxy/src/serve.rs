//! The walk of a call.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use episode::{Begun, CallId};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use store::Store;
use uuid::Uuid;
use wire::Dialect;

use crate::accept;
use crate::admitted::Admitted;
use crate::config::Config;
use crate::fault::Fault;
use crate::forward::{Forward, Kind, Outgoing};
use crate::open_call::{OpenCall, now};
use crate::record::Recording;
use crate::rewrite::{self, rewrite};
use crate::tag::{self, Tagged};
use crate::tee::{self, ReplyBody};

/// A proxy: one upstream, one store.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    forward: Forward,
    store: Store,
    pub(crate) admitted: Admitted,
}

impl Proxy {
    /// A proxy that records into `store`.
    pub fn new(config: Config, store: Store) -> Self {
        Self { forward: Forward::new(&config), config, store, admitted: Admitted::default() }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// What the logprobs of the upstream are, as far as it is known.
    fn logprob_kind(&self, dialect: Dialect) -> &str {
        self.config.logprob_kind.as_deref().unwrap_or(match dialect {
            Dialect::Vllm => "raw",
            Dialect::Rolltape => "processed",
            Dialect::OpenAi => "unknown",
        })
    }
}

/// Answers one request, with the upstream's reply or with an error in OpenAI's form.
pub(crate) async fn answer(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    Ok(call(&proxy, request).await.unwrap_or_else(|fault| fault.response()))
}

/// THE walk: accept, tag, rewrite, forward, tee; recorded from before the upstream hears of it.
async fn call(proxy: &Proxy, request: Request<Incoming>) -> Result<Response<ReplyBody>, Fault> {
    let started_at = now();
    let (mut head, body) = accept::read(request, proxy.config.request_bytes_max).await?;
    let tagged = tag::tag(&head.method, &path_of(&head), &mut head.headers)?;
    let route = tagged.route;
    let sent = wire::Request::read(&body).filter(|_| route.generates());

    let begun = begun(&head, tagged, sent.as_ref(), (&body, started_at));
    let (path, model) = (begun.path.clone(), begun.model.clone());
    let key = (begun.tag.episode.clone(), begun.tag.attempt);
    let recording =
        Recording::new(begun.call_id, (route, sent.as_ref()), proxy.config.reply_bytes_max);
    let mut open = OpenCall::begin(&proxy.store, begun, recording).await;

    if !proxy.admitted.contains(&key) {
        open.begun().await?;
        proxy.admitted.insert(key);
    }
    let dialect = match proxy.forward.dialect(&head.headers).await {
        Ok(dialect) => dialect,
        Err(fault) => return Err(open.fail(fault).await),
    };
    open.recording().logprob_kind(proxy.logprob_kind(dialect));
    let rewrite = rewrite(dialect, route, (&body, sent.as_ref()));

    rewrite::request_headers(&mut head.headers, route);
    let streams = sent.as_ref().is_some_and(wire::Request::streams);
    let kind = Kind { route, model, streams };
    let out = Outgoing { method: head.method, path: &path, headers: head.headers, kind };
    let reply = match proxy.forward.exchange(&out, rewrite, &body).await {
        Ok(reply) => reply,
        Err(fault) => return Err(open.fail(fault).await),
    };

    open.begun().await?;
    tee::relay(reply, route.generates(), open, proxy.config.reply_bytes_max).await
}

fn path_of(head: &Parts) -> String {
    head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned()
}

/// The record of a request.
fn begun(
    head: &Parts,
    tagged: Tagged,
    sent: Option<&wire::Request>,
    (body, started_at): (&Bytes, episode::Micros),
) -> Begun {
    Begun {
        call_id: CallId(Uuid::now_v7()),
        tag: tagged.tag,
        started_at,
        method: head.method.as_str().to_owned(),
        path: tagged.path,
        route: tagged.route,
        model: sent.and_then(wire::Request::model),
        request: body.clone(),
        sampling: sent.and_then(wire::Request::sampling),
    }
}
