//! The exchange of a call with an upstream: the request is sent, and sent again without the fields
//! that the upstream refuses.

use std::sync::Arc;

use bytes::Bytes;
use http::body::outgoing::OutgoingBody;
use http::body::request_body::RequestBody;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use tokio::time::timeout;
use wire::REFUSAL_BYTES_MAX;

use crate::bounds::REFUSAL_WAIT;
use crate::error::CallError;
use crate::upstream::client::{OutgoingHead, UpstreamClient};
use crate::upstream::lookups::Lookups;
use crate::upstream::plan::Plan;
use crate::upstream::refusals::{Refusals, RequestClass};
use crate::upstream::rewrite::{self, Rewrite};
use crate::upstream::stray::{SentRequest, StrayWarnings};
use crate::upstream::trailers;

/// The sender of calls to an upstream.
#[derive(Debug)]
pub(crate) struct Exchange {
    client: Arc<UpstreamClient>,
    /// What was looked up is forgotten when the upstream may have been restarted.
    lookups: Arc<Lookups>,
    request_bytes_max: u64,
    pub(crate) refusals: Refusals,
    stray_warnings: StrayWarnings,
}

/// A request of an agent, its headers prepared for the upstream.
#[derive(Debug)]
pub(crate) struct AgentRequest<'a> {
    pub(crate) head: Parts,
    /// Path and query, without a tag.
    pub(crate) path: &'a str,
    pub(crate) body: RequestBody,
    pub(crate) class: RequestClass,
}

impl Exchange {
    pub(super) fn new(
        client: &Arc<UpstreamClient>,
        lookups: &Arc<Lookups>,
        request_bytes_max: u64,
    ) -> Self {
        Self {
            client: Arc::clone(client),
            lookups: Arc::clone(lookups),
            request_bytes_max,
            refusals: Refusals::default(),
            stray_warnings: StrayWarnings::default(),
        }
    }

    /// Sends a call. After a 400 or a 422 that rolltape's own fields may have caused, it is sent
    /// again with fewer of them, at last with none. The fields that the upstream accepted are
    /// remembered. The returned [`Rewrite`] is that of the reply.
    pub(crate) async fn send(
        &self,
        request: &mut AgentRequest<'_>,
        plan: &Plan<'_>,
    ) -> Result<(Response<Incoming>, Rewrite), CallError> {
        if let Some(refusal) = plan.refusal() {
            return Err(refusal);
        }
        if let Some(rest) = request.body.rest.take() {
            let rewrite = plan.too_long();
            // The beginning is held until it is sent, and its memory given back then.
            let RequestBody { raw: beginning, memory, .. } = std::mem::take(&mut request.body);
            let body =
                OutgoingBody::streamed(beginning, trailers::cleaned(rest), self.request_bytes_max)
                    .charged_to(memory);
            let reply = self.client.send_once(head_for(request, &rewrite), body).await;
            return Ok((self.checked(request, reply)?, rewrite));
        }

        // Start with the fields that requests of this class are known to be accepted with.
        let known = self.refusals.of(&request.class);
        let mut refused = known;
        loop {
            let rewrite = plan.rewrite(refused, &request.head.headers);
            let bytes = rewrite.body.clone().unwrap_or_else(|| request.body.raw.clone());
            let body = || OutgoingBody::whole(bytes.clone(), request.body.trailers.clone());
            let reply = self.client.send_whole(head_for(request, &rewrite), body).await;
            let reply = self.checked(request, reply)?;
            if may_blame_fields(reply.status()) && rewrite.asks {
                refused = refused.after(&rewrite.added, &read_refusal(reply).await);
                continue;
            }

            // Another error status, such as 429, has nothing to do with our fields.
            if reply.status().is_success() {
                match refused {
                    _ if refused != known => self.refusals.remember(&request.class, refused),
                    _ if refused.is_none() && rewrite.asks => {
                        self.refusals.note_accepted(&request.class);
                    }
                    _ => {}
                }
            }
            return Ok((reply, rewrite));
        }
    }

    /// Looks at the answer to a call.
    fn checked(
        &self,
        agent: &AgentRequest<'_>,
        result: Result<Response<Incoming>, CallError>,
    ) -> Result<Response<Incoming>, CallError> {
        if result.as_ref().map_or(true, |reply| reply.status().is_server_error()) {
            // The server may have been restarted with other defaults.
            self.lookups.samplers.clear();
        }
        let reply = result?;
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(CallError::Broken("it switched protocols, which nobody asked for".into()));
        }
        let (method, route) = (&agent.head.method, agent.class.route);
        let is_own_base = self.client.upstream.base.is_own();
        let sent = SentRequest { method, path: agent.path, route, is_own_base };
        self.stray_warnings.check(sent, reply.status());
        Ok(reply)
    }
}

/// The head of a call as it is rewritten.
fn head_for<'a>(agent: &AgentRequest<'a>, rewrite: &Rewrite) -> OutgoingHead<'a> {
    let mut headers = agent.head.headers.clone();
    rewrite::set_headers(rewrite, &mut headers);
    let path = rewrite.path.unwrap_or(agent.path);
    // The extensions hold the spelling of the agent's header names.
    let extensions = agent.head.extensions.clone();
    OutgoingHead { extensions, ..OutgoingHead::new(agent.head.method.clone(), path, headers) }
}

/// True for the answers of servers to fields that they do not know.
fn may_blame_fields(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
}

/// The body of a refusal; empty if it cannot be read.
async fn read_refusal(reply: Response<Incoming>) -> Bytes {
    let body = Limited::new(reply.into_body(), REFUSAL_BYTES_MAX).collect();
    match timeout(REFUSAL_WAIT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    }
}
