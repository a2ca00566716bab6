//! Calls of rolltape itself. They take the walk of an agent's call (rewrite, forward, transform,
//! record) without a listener and without a store.

use std::sync::Arc;

use bytes::Bytes;
use episode::{CallEnd, CallId, Route};
use http::body::coding::Coding;
use http::body::request_body::RequestBody;
use http::clock::now;
use http::headers::{is_event_stream, prepare_request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response};
use thiserror::Error;
use uuid::Uuid;
use wire::{Dialect, MissingIds, PromptField};

use crate::config::{Config, InvalidSetting};
use crate::error::CallError;
use crate::record::recording::Recording;
use crate::reply::opening::{ContentPath, Opening};
use crate::reply::relay::unknown_coding;
use crate::reply::transform::{BodyTransform, TransformStep};
use crate::upstream::exchange::AgentRequest;
use crate::upstream::plan::Plan;
use crate::upstream::prompts::PromptFetcher;
use crate::upstream::refusals::RequestClass;
use crate::upstream::rewrite::Rewrite;
use crate::upstream::server::InferenceServer;

/// A client that speaks to an upstream as the proxy does.
#[derive(Debug)]
pub struct Client {
    server: InferenceServer,
    config: Config,
}

/// The reason for which a call has no reply.
#[derive(Debug, Clone, Error)]
#[error("{text}")]
pub struct ClientError {
    text: String,
    is_endless: bool,
}

impl ClientError {
    /// True if the reply has no end within its bound.
    pub fn is_endless(&self) -> bool {
        self.is_endless
    }
}

/// A reply, as it would be recorded.
#[derive(Debug, Clone)]
pub struct ClientReply {
    /// The end of the call. Its reply bytes are those that an agent would have received.
    pub ended: CallEnd,
    /// True if token data was requested that the request itself does not ask for.
    pub asked: bool,
    /// True if the upstream refused to be asked for token ids, so that the call was sent without.
    pub declined: bool,
    /// True if the prompt went to the upstream as ids.
    pub has_prompt: bool,
}

/// A request of rolltape itself.
#[derive(Debug, Clone, Copy)]
pub struct ClientRequest<'a> {
    /// The kind of endpoint that `path` names.
    pub route: Route,
    /// Path and query, from `/v1` on.
    pub path: &'a str,
    /// The body, as an agent would send it.
    pub body: &'a Bytes,
    /// True to ask the upstream for token data, as is done for an agent.
    pub asks: bool,
    /// The prompt of a chat as ids, to be sent beside its messages.
    pub prompt: Option<&'a Arc<PromptField>>,
}

impl From<CallError> for ClientError {
    fn from(error: CallError) -> Self {
        let is_endless = matches!(error, CallError::ReplyTooLong(_));
        Self { text: error.detail(), is_endless }
    }
}

impl Client {
    /// A client without connections yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] if a certificate or the key cannot be used.
    pub fn new(config: Config) -> Result<Self, InvalidSetting> {
        Ok(Self { server: InferenceServer::new(&config)?, config })
    }

    /// True if the upstream is the data listener of another rolltape. It refuses engine control
    /// with a sentence of its own, and does not record the request.
    pub async fn is_recorder(&self) -> bool {
        let reply = self.server.client.get("/is_paused").await;
        reply.is_ok_and(|(status, body)| {
            let sentence = CallError::EngineRoute.to_string();
            status == CallError::EngineRoute.status()
                && String::from_utf8_lossy(&body).contains(&sentence)
        })
    }

    /// The upstream's dialect, from the setting or from its list of models.
    ///
    /// # Errors
    /// [`ClientError`] if the upstream cannot be reached.
    pub async fn dialect(&self) -> Result<Dialect, ClientError> {
        Ok(self.server.probe.dialect(&HeaderMap::new()).await?)
    }

    /// The status and body of `GET path`.
    ///
    /// # Errors
    /// [`ClientError`] if there is no reply, or a reply of more than 16 MiB.
    pub async fn get(&self, path: &str) -> Result<(u16, Bytes), ClientError> {
        let (status, body) = self.server.client.get(path).await?;
        Ok((status.as_u16(), body))
    }

    /// Sends a call as an agent does and reads the reply to its end. Fields that the upstream
    /// refused before are tried again.
    ///
    /// # Errors
    /// [`ClientError`] if there is no reply that can be read.
    pub async fn call(&self, request: ClientRequest<'_>) -> Result<ClientReply, ClientError> {
        self.server.exchange.refusals.clear();
        let dialect = self.server.probe.dialect(&HeaderMap::new()).await?;
        let json = wire::Request::read(request.body);
        let full_plan =
            Plan::new(&self.config, dialect, &self.config.force, request.route, json.as_ref());
        let full_plan = full_plan.with_prompt(request.prompt.cloned());
        let plan = if request.asks { full_plan } else { full_plan.without_asking() };
        let head = Self::head(request.route);
        // Compared with the rewrite that the upstream accepts, to tell what it declined.
        let asks = plan.rewrite(wire::RefusedFields::default(), &head.headers).asks;
        let prompts = plan.prompts().filter(|_| request.asks);
        let lookup = prompts
            .map(|prompts| PromptFetcher::start(&self.server.lookups, prompts, &head.headers));

        let body = RequestBody {
            raw: request.body.clone(),
            decoded: request.body.clone(),
            ..RequestBody::default()
        };
        let class = RequestClass::new(None, request.route, json.as_ref());
        let mut outgoing = AgentRequest { head, path: request.path, body, class };
        let (reply, rewrite) = self.server.exchange.send(&mut outgoing, &plan).await?;
        let (asked, has_prompt) = (rewrite.asks, rewrite.has_prompt);
        let declined = asks && rewrite.refused.loses_ids() && reply.status().is_success();

        let bytes_max = self.config.reply_bytes_max;
        let mut recording = Recording::new(CallId(Uuid::nil()), request.route, bytes_max);
        recording.set_logprob_kind(self.config.logprob_kind_of(dialect));
        let collector = plan.collector(&rewrite, &self.config);
        recording.expect_reply(collector, rewrite.route, rewrite.unasked.clone());
        let (mut ended, owed) =
            ReplyReader { rewrite, recording, route: request.route, bytes_max }.read(reply).await?;

        // There is no `OpenCall` to fill in what the upstream reports apart from its reply.
        if let Some(lookup) = lookup {
            lookup.fill(&mut ended, &owed).await;
            if let Some(end) =
                self.server.lookups.sampler(dialect, &HeaderMap::new()).await.end_token()
            {
                owed.append_end_token(end, &mut ended.choices);
            }
        }
        Ok(ClientReply { ended, asked, declined, has_prompt })
    }

    /// The head that an agent of this wire would send.
    fn head(route: Route) -> Parts {
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = Method::POST;
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if route == Route::Messages {
            head.headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        }
        prepare_request(&mut head.headers, route);
        head
    }
}

/// Reads a reply to its end.
struct ReplyReader {
    rewrite: Rewrite,
    recording: Recording,
    /// The route that was called.
    route: Route,
    bytes_max: usize,
}

impl ReplyReader {
    async fn read(mut self, reply: Response<Incoming>) -> Result<(CallEnd, MissingIds), CallError> {
        let (head, mut body) = reply.into_parts();
        let coding = Coding::of(&head.headers);
        let decoder = coding.decoder(self.bytes_max).ok_or_else(|| unknown_coding(&head))?;
        let recording = &mut self.recording;
        recording.set_status(head.status.as_u16());

        // The bytes of a step are for an agent; here only the recording counts.
        let path = ContentPath {
            content: self.rewrite.transform,
            upstream: self.rewrite.route,
            agent: self.route,
            status: head.status.as_u16(),
            bytes_max: self.bytes_max,
        };
        let opening = Opening::new(decoder, is_event_stream(&head.headers), path);
        let mut transform = BodyTransform::Opening(Box::new(opening));
        let mut left = self.bytes_max;
        loop {
            let step = match body.frame().await {
                None => transform.end(recording),
                Some(Err(error)) => transform.break_off(error.to_string(), recording),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => {
                        let too_long = CallError::ReplyTooLong(self.bytes_max);
                        left = left.checked_sub(bytes.len()).ok_or(too_long)?;
                        transform.push(bytes, recording)
                    }
                    Err(_) => continue,
                },
            };
            if let TransformStep::End { outcome, .. } = step {
                return Ok(self.recording.finish(outcome, now()));
            }
        }
    }
}
