//! A call on its way to an engine. Before anything of it was sent, it may go to the next one; a
//! generation that may have begun is never sent again by rolltape itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::RETRY_AFTER;
use hyper::{Response, StatusCode};
use tokio::time::Instant;

use super::engine::Engine;
use super::members::Fleet;
use super::stall::HeadWait;
use super::threads::Thread;
use crate::bounds::{ABSORB_PAUSE, ABSORB_PAUSE_MAX};
use crate::error::CallError;
use crate::record::open_call::OpenCall;
use crate::upstream::continuation::PathSearch;
use crate::upstream::exchange::AgentRequest;
use crate::upstream::plan::{PlanInput, plan};
use crate::upstream::rewrite::{Rewrite, remove_reserved};

/// A reply, and what the request was.
type Answered = (Response<Incoming>, Rewrite);

impl Fleet {
    /// Sends a call to an engine and waits for the head of its reply.
    ///
    /// # Errors
    /// [`CallError`] if no engine takes the call, or the one that got it did not answer.
    pub(crate) async fn send(
        &self,
        call: &mut OpenCall,
        thread: &Thread,
        input: PlanInput<'_>,
        mut request: AgentRequest<'_>,
    ) -> Result<Answered, CallError> {
        // Before the header that rolltape itself may write for a router.
        remove_reserved(self.config.allow_priority, &mut request.head.headers);
        if let Some(name) = &self.config.fleet.session_header {
            request.head.headers.insert(name, thread.header());
        }
        // The rest of a longer body passes through once.
        let is_whole = request.body.rest.is_none();
        let mut absorption = Absorption::new(self.config.fleet.absorb_for);
        let mut tries = 0;

        loop {
            let place = self.place(thread).await?;
            let engine = Arc::clone(&place.engine);
            call.put_on(place);
            tries += 1;
            let wait = self.is_many().then(|| HeadWait::begin(&engine.signs, thread.attempt()));
            match self.exchange(&engine, call, input, &mut request).await {
                Ok(reply) => {
                    if let Some(wait) = wait {
                        wait.answered(&self.longest_wait);
                    }
                    let pause = absorption.pause(&reply.0).filter(|_| is_whole);
                    let Some((pause, _waiting)) = pause.zip(self.absorb()) else {
                        return Ok(reply);
                    };
                    engine.counts.absorbed.fetch_add(1, Ordering::Relaxed);
                    // The place is free for others meanwhile.
                    drop(reply);
                    call.leave();
                    tokio::time::sleep(pause).await;
                }
                Err(CallError::Unreachable { reason, is_unsent, .. })
                    if self.is_many() && is_unsent && is_whole && tries <= self.all().len() =>
                {
                    engine.suspect(reason);
                }
                Err(error) => {
                    if let (true, CallError::Unreachable { reason, is_unsent, .. }) =
                        (self.is_many(), &error)
                    {
                        match is_unsent {
                            true => engine.suspect(reason),
                            // The agent's request may be at fault.
                            false => engine.note_failed_call(thread.attempt()),
                        }
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Plans a call for the dialect of an engine, and sends it there.
    async fn exchange(
        &self,
        engine: &Engine,
        call: &mut OpenCall,
        input: PlanInput<'_>,
        request: &mut AgentRequest<'_>,
    ) -> Result<Answered, CallError> {
        let (server, headers) = (&engine.server, &request.head.headers);
        // Nothing of the call was sent when only the question for the dialect fails.
        let dialect = server.probe.dialect(headers).await.map_err(CallError::unsent)?;
        call.recording().set_logprob_kind(self.config.logprob_kind_of(dialect));
        let path = server.client.upstream.base.versioned(input.path);
        let input = PlanInput { path: &path, ..input };
        let planned = plan(&self.config, &server.lookups, dialect, input, headers).await;
        call.set_lookups(planned.lookups);

        let known_prompts = self.config.extras.routed_experts.then(|| call.known_prompts());
        let plan = planned.plan.after(known_prompts.as_ref());
        let continuation = call.paths().filter(|paths| plan.may_continue(paths.is_announced));
        let continuation =
            continuation.map(|paths| PathSearch::new(&server.lookups, dialect, paths, headers));
        let prompt = match &continuation {
            Some(continuation) => {
                let chat = plan.chat();
                Some(call.beside_start(continuation.prompt(chat.as_ref())).await)
            }
            None => None,
        };
        let plan = plan.with_prompt(prompt.as_ref().and_then(|prompt| prompt.field.clone()));
        let (reply, rewrite) = call.beside_start(server.exchange.send(request, &plan)).await?;
        let check = continuation.zip(prompt).map(|(it, prompt)| it.check(prompt, &rewrite));
        call.set_prompt_check(check);
        let collector = plan.collector(&rewrite, &self.config);
        call.recording().expect_reply(collector, rewrite.route, rewrite.unasked.clone());
        call.set_asked_prompt(rewrite.asked_prompt.clone());
        Ok((reply, rewrite))
    }
}

/// The waits of a call whose upstream answers 429 or 503.
struct Absorption {
    until: Instant,
    next: Duration,
    is_on: bool,
}

impl Absorption {
    fn new(absorb_for: Duration) -> Self {
        Self {
            until: Instant::now() + absorb_for,
            next: ABSORB_PAUSE,
            is_on: !absorb_for.is_zero(),
        }
    }

    /// The time to wait before the call is sent again; `None` to pass the reply on.
    fn pause(&mut self, reply: &Response<Incoming>) -> Option<Duration> {
        let is_refused = matches!(
            reply.status(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        if !self.is_on || !is_refused {
            return None;
        }
        let asked = reply.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let asked = asked.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let pause = asked.unwrap_or(self.next).max(ABSORB_PAUSE);
        self.next = (self.next * 2).min(ABSORB_PAUSE_MAX);
        (Instant::now() + pause <= self.until).then_some(pause)
    }
}
