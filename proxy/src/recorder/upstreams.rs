//! The upstreams of a running recorder: listed, changed, and sent control requests.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use episode::Route;
use http::body::outgoing::OutgoingBody;
use http::headers;
use hyper::Response;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use wire::{Dialect, EngineRoute};

use super::fan_out::{self, EngineAnswer};
use crate::config::spec::EngineSpec;
use crate::error::RequestError;
use crate::fleet::engine::{Engine, EngineState};
use crate::fleet::members::ChangeError;
use crate::proxy::Proxy;
use crate::upstream::trailers;

/// The upstreams of a recorder.
#[derive(Debug, Clone, Copy)]
pub struct Upstreams<'a>(&'a Proxy);

/// An upstream at this moment. Its numbers count since it was added.
#[derive(Debug, Clone)]
pub struct UpstreamStatus {
    /// Its name, address and limits.
    pub spec: EngineSpec,
    /// Its dialect, if it is known.
    pub dialect: Option<Dialect>,
    /// The state, which decides whether it gets new calls.
    pub state: EngineState,
    /// The reason why it gets none; `None` while it is well.
    pub reason: Option<&'static str>,
    /// True if the last attempt to reach it succeeded.
    pub is_reached: bool,
    /// The label of its weights, if it is known.
    pub weight_version: Option<String>,
    /// Calls in flight there.
    pub calls: usize,
    /// Threads whose prefix it is remembered to have.
    pub threads: usize,
    /// Calls that it got.
    pub begun: u64,
    /// Of these, calls of threads that were on another one.
    pub moved: u64,
    /// Failures of connections, of replies and of looks.
    pub failed: u64,
    /// Answers 429 and 503 that no agent saw.
    pub absorbed: u64,
    /// Calls whose added fields it refused, and that were answered without.
    pub asks_refused: u64,
}

impl<'a> Upstreams<'a> {
    pub(super) fn new(proxy: &'a Proxy) -> Self {
        Self(proxy)
    }

    /// All upstreams, in the order in which they were named.
    pub fn all(&self) -> Vec<UpstreamStatus> {
        self.0.fleet.all().iter().map(|engine| self.status(engine)).collect()
    }

    fn status(&self, engine: &Engine) -> UpstreamStatus {
        let fleet = &self.0.fleet;
        let number = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        UpstreamStatus {
            spec: engine.spec.clone(),
            dialect: engine.spec.dialect.or(engine.server.probe.known()),
            state: fleet.state(engine),
            reason: engine.down_because().or_else(|| fleet.stalled_because(engine)),
            is_reached: engine.server.client.lost_because().is_none(),
            weight_version: engine.label(),
            calls: engine.calls(),
            threads: fleet.threads_on(engine),
            begun: number(&engine.counts.begun),
            moved: number(&engine.counts.moved),
            failed: number(&engine.counts.failed),
            absorbed: number(&engine.counts.absorbed),
            asks_refused: engine.server.exchange.refusals.count(),
        }
    }

    /// True if there are several, or were. One alone is treated as one.
    pub fn are_many(&self) -> bool {
        self.0.fleet.is_many()
    }

    /// Calls that wait: for an upstream that takes them, and because of a 429 or 503.
    pub fn waiting(&self) -> [usize; 2] {
        self.0.fleet.waiting()
    }

    /// Tries to reach the upstream; of several, one that takes calls.
    ///
    /// # Errors
    /// Its address and the reason if it cannot be reached.
    pub async fn reach(&self) -> Result<String, (String, &'static str)> {
        let engine = self.0.fleet.any();
        let address = engine.spec.upstream.to_string();
        match engine.server.client.try_reach().await {
            Ok(()) => Ok(address),
            Err(reason) => Err((address, reason)),
        }
    }

    /// Adds an upstream, or changes the one of its name.
    ///
    /// # Errors
    /// [`ChangeError`] if it cannot be used.
    pub async fn add(&self, spec: EngineSpec) -> Result<(), ChangeError> {
        self.0.fleet.add(spec).await
    }

    /// Gives an upstream no new calls; returns the number of those in flight.
    ///
    /// # Errors
    /// [`ChangeError`] if it is unknown.
    pub fn drain(&self, name: &str) -> Result<usize, ChangeError> {
        let all = self.0.fleet.all();
        let named = all.iter().find(|engine| engine.name() == name);
        let engine = named.ok_or_else(|| ChangeError::Unknown(name.to_owned()))?;
        engine.drain();
        Ok(engine.calls())
    }

    /// Removes an upstream.
    ///
    /// # Errors
    /// [`ChangeError`] if it is unknown, or the last.
    pub async fn remove(&self, name: &str) -> Result<(), ChangeError> {
        self.0.fleet.remove(name).await
    }

    /// Forwards a control request to one upstream, unread.
    ///
    /// # Errors
    /// [`RequestError`] if there is no reply.
    pub async fn forward(
        &self,
        mut head: Parts,
        body: Incoming,
        changes_weights: bool,
    ) -> Result<Response<Incoming>, RequestError> {
        headers::prepare_request(&mut head.headers, Route::Other);
        let engine = self.0.fleet.any();
        let body = OutgoingBody::streamed(Bytes::new(), trailers::cleaned(body), u64::MAX);
        let mut reply = engine.server.client.control(head, body).await?;
        if reply.status().is_success() && changes_weights {
            self.0.tracker.versions.request_check();
            engine.server.lookups.weights_changed();
        }
        headers::remove_hop_by_hop(reply.headers_mut());
        Ok(reply)
    }

    /// Sends a control request to all upstreams that answer: at once, or, if it `is_rolling`, to
    /// one after another. Empty if none answers.
    pub async fn ask_all(
        &self,
        route: &'static EngineRoute,
        (head, body): (Parts, Bytes),
        is_rolling: bool,
    ) -> Vec<EngineAnswer> {
        fan_out::ask_all(self.0, fan_out::ControlRequest::new(route, head, body, is_rolling)).await
    }
}
