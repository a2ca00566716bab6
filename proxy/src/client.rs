//! Calls of rolltape's own: the same walk as an agent's (rewrite, forward, lens, record), without
//! a listener and without a store.

use std::sync::Arc;

use bytes::Bytes;
use episode::{CallId, Ended, Outcome, Route};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response};
use thiserror::Error;
use uuid::Uuid;
use wire::{Dialect, Owed, Splitter};

use crate::accept::Taken;
use crate::coding::Coding;
use crate::config::Config;
use crate::connect::BadSetting;
use crate::fault::Fault;
use crate::forward::{Forward, Kind, Sent};
use crate::headers::request_headers;
use crate::lens::{Events, Lens, Step};
use crate::open_call::now;
use crate::prompts::Asking;
use crate::record::Recording;
use crate::rewrite::{Plan, Rewrite};
use crate::tee;

/// Speaks to an upstream as the proxy would.
#[derive(Debug)]
pub struct Client {
    forward: Arc<Forward>,
    config: Config,
}

/// A call of which there is no reply.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub struct NoReply(String);

/// A reply, as it would be recorded.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The record; its bytes are those that an agent would have been given.
    pub ended: Ended,
    /// Whether the upstream was asked for anything on the agent's behalf.
    pub asked: bool,
    /// Whether the upstream was asked for tokens and refused, so that the call went without.
    pub declined: bool,
}

/// A request of rolltape's own.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The kind of endpoint that `path` names.
    pub route: Route,
    /// Path and query, from `/v1` on.
    pub path: &'a str,
    /// The body, as an agent would send it.
    pub body: &'a Bytes,
    /// Whether the upstream is asked for tokens, as it is for an agent.
    pub asks: bool,
}

impl From<Fault> for NoReply {
    fn from(fault: Fault) -> Self {
        Self(fault.to_string())
    }
}

impl Client {
    /// A client without connections yet.
    ///
    /// # Errors
    /// [`BadSetting`] when a certificate or the key cannot be used.
    pub fn new(config: Config) -> Result<Self, BadSetting> {
        Ok(Self { forward: Arc::new(Forward::new(&config)?), config })
    }

    /// Whether the upstream is a rolltape that records: such a one keeps agents from the engine's
    /// control routes, in words of its own, and records nothing of it.
    pub async fn is_recorder(&self) -> bool {
        let told = self.forward.get("/is_paused").await;
        told.is_ok_and(|(status, body)| {
            let words = Fault::Engine.to_string();
            status == Fault::Engine.status() && String::from_utf8_lossy(&body).contains(&words)
        })
    }

    /// How the upstream speaks, by the setting or by its list of models.
    ///
    /// # Errors
    /// [`NoReply`] when it cannot be reached.
    pub async fn dialect(&self) -> Result<Dialect, NoReply> {
        Ok(self.forward.dialect(&HeaderMap::new()).await?)
    }

    /// The status and body of `GET path`.
    ///
    /// # Errors
    /// [`NoReply`] when there is none, or none of a bearable size.
    pub async fn get(&self, path: &str) -> Result<(u16, Bytes), NoReply> {
        let (status, body) = self.forward.get(path).await?;
        Ok((status.as_u16(), body))
    }

    /// Calls as an agent does and reads the reply to its end. What the upstream refused before is
    /// asked again.
    ///
    /// # Errors
    /// [`NoReply`] when there is none that can be read.
    pub async fn call(&self, question: Question<'_>) -> Result<Reply, NoReply> {
        self.forward.forget_refused();
        let dialect = self.forward.dialect(&HeaderMap::new()).await?;
        let sent = wire::Request::read(question.body);
        let about = (question.route, sent.as_ref());
        let plan = Plan::new(&self.config, dialect, &self.config.force, about);
        let plan = if question.asks { plan } else { plan.unasking() };
        let head = self.head(question);
        let asks = plan.rewrite(wire::Refused::default(), &head.headers).asks;
        let asking = plan.prompts().filter(|_| question.asks);
        let asking = asking.map(|p| Asking::begin(&self.forward, p, &head.headers));
        let outgoing = Sent {
            head,
            path: question.path,
            body: Taken {
                raw: question.body.clone(),
                text: question.body.clone(),
                ..Taken::default()
            },
            kind: Kind::of(question.route, about.1.and_then(wire::Request::model), about.1),
        };
        let (reply, rewrite) = self.forward.exchange(outgoing, &plan).await?;
        let asked = rewrite.asks;
        let declined = asks && rewrite.refused.loses_ids() && reply.status().is_success();
        let bytes_max = self.config.reply_bytes_max;
        let mut recording = Recording::new(CallId(Uuid::nil()), question.route, bytes_max);
        recording.logprob_kind(self.config.logprob_kind_of(dialect));
        recording.expects(plan.collector(&rewrite, &self.config), &rewrite);
        let (mut ended, owed) =
            read(reply, rewrite, recording, (question.route, bytes_max)).await?;
        if let Some(asking) = asking {
            asking.fill(&mut ended, &owed).await;
            if let Some(end) = self.forward.learn(dialect, &HeaderMap::new()).await.end() {
                owed.end(end, &mut ended.choices);
            }
        }
        Ok(Reply { ended, asked, declined })
    }

    /// The head that an agent of this wire would send.
    fn head(&self, question: Question<'_>) -> Parts {
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = Method::POST;
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if question.route == Route::Messages {
            head.headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
            if self.config.upstream_key.is_some() {
                // Where the key is put on this wire.
                head.headers.insert("x-api-key", HeaderValue::from_static("rolltape"));
            }
        }
        request_headers(&mut head.headers, question.route);
        head
    }
}

/// Reads a reply to its end.
async fn read(
    reply: Response<Incoming>,
    rewrite: Rewrite,
    mut recording: Recording,
    (agent, bytes_max): (Route, usize),
) -> Result<(Ended, Owed), Fault> {
    let (mut head, mut body) = reply.into_parts();
    let decoder =
        Coding::of(&head.headers).decoder(bytes_max).ok_or_else(|| tee::unreadable(&head))?;
    recording.status(head.status.as_u16());
    if !tee::is_stream(&head) {
        let read = tee::read(body, decoder, &mut recording, bytes_max).await;
        let (read, _) = read.map_err(|(_, fault)| fault)?;
        tee::turned(&mut head, read, rewrite.manner, &mut recording);
        return Ok(recording.finish(Outcome::Complete, now()));
    }
    let (manner, upstream) = (rewrite.manner, rewrite.route);
    let events = Events { splitter: Splitter::default(), decoder, manner, upstream, agent };
    let mut lens = Lens::Events(Box::new(events));
    loop {
        let step = match body.frame().await {
            None => lens.end(&mut recording),
            Some(Err(error)) => lens.cut(error.to_string(), &mut recording),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => lens.bytes(bytes, &mut recording),
                Err(_) => continue,
            },
        };
        if let Step::End { outcome, .. } = step {
            return Ok(recording.finish(outcome, now()));
        }
    }
}
