//! The sampling parameters of a call. The upstream is asked for its defaults during the call.

use std::sync::Arc;

use episode::{CallEnd, Route};
use hyper::HeaderMap;
use tokio::task::JoinHandle;
use wire::{Dialect, EffectiveSampling, ForcedSampling, MissingIds, Request, ServerSampling};

use crate::bounds::{SAMPLING_ASK_WAIT, SAMPLING_END_WAIT};
use crate::upstream::forward::{Forward, credentials_of};

/// The sampling parameters of one call.
#[derive(Debug)]
pub(crate) struct CallSampling {
    effective: EffectiveSampling,
    source: SamplerSource,
    route: Route,
    /// True if the user named the kind of logprobs.
    is_kind_named: bool,
}

/// The upstream's defaults.
#[derive(Debug)]
enum SamplerSource {
    Known(Arc<ServerSampling>),
    /// The upstream is being asked. The dialect stands in if it does not answer in time.
    Pending(JoinHandle<Arc<ServerSampling>>, Dialect),
}

impl Forward {
    /// The upstream's sampling defaults; asked for with the agent's credentials.
    pub(crate) async fn sampler(&self, dialect: Dialect, agent: &HeaderMap) -> Arc<ServerSampling> {
        let cache = &self.samplers;
        let _question = cache.question.lock().await;
        if let Some(sampler) = cache.get() {
            return sampler;
        }
        // Read before the question: an answer is not stored if the cache is cleared meanwhile.
        let generation = cache.generation();

        // The servers differ in the page that lists the defaults; the first one that exists counts.
        let mut sampler = ServerSampling::for_dialect(dialect);
        let mut is_answered = true;
        for path in ServerSampling::paths(dialect) {
            match tokio::time::timeout(SAMPLING_ASK_WAIT, self.fetch(path, agent)).await {
                Ok(Ok((status, page))) if status.is_success() && sampler.take(&page) => break,
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => is_answered = false,
            }
        }
        // Some servers do not report the end token of a turn; they are asked for its id once.
        if let Some((path, body)) = sampler.end_token_request() {
            match tokio::time::timeout(SAMPLING_ASK_WAIT, self.post(path, body, agent)).await {
                Ok(Ok((status, page))) if status.is_success() => sampler.take_end_token(&page),
                _ => is_answered = false,
            }
        }

        let sampler = Arc::new(sampler);
        if is_answered {
            cache.store(&sampler, generation);
        }
        sampler
    }
}

impl CallSampling {
    /// The parameters of a request, with those of `force` in their place.
    pub(crate) fn requested(
        dialect: Dialect,
        route: Route,
        request: &Request,
        force: &ForcedSampling,
    ) -> EffectiveSampling {
        match (dialect, route) {
            (Dialect::Sglang | Dialect::Rolltape, Route::Generate) => {
                EffectiveSampling::from_native_request(request)
            }
            _ => EffectiveSampling::from_request(dialect, request, force),
        }
    }

    /// The parameters of a call to `route`. The upstream is asked for its defaults unless they are
    /// cached.
    pub(crate) fn start(
        forward: &Arc<Forward>,
        dialect: Dialect,
        route: Route,
        effective: EffectiveSampling,
        agent: &HeaderMap,
    ) -> Self {
        let source = match forward.samplers.get() {
            Some(sampler) => SamplerSource::Known(sampler),
            None if ServerSampling::paths(dialect).is_empty() => {
                SamplerSource::Known(Arc::new(ServerSampling::for_dialect(dialect)))
            }
            None => {
                let forward = Arc::clone(forward);
                let credentials = credentials_of(agent);
                let answer = async move { forward.sampler(dialect, &credentials).await };
                SamplerSource::Pending(tokio::spawn(answer), dialect)
            }
        };
        Self { effective, source, route, is_kind_named: false }
    }

    /// Sets whether the user named the kind of logprobs.
    pub(crate) fn with_kind_named(self, is_kind_named: bool) -> Self {
        Self { is_kind_named, ..self }
    }

    /// Writes the parameters into the end of the call, if anything was sampled.
    pub(crate) async fn fill(mut self, end: &mut CallEnd, owed: &MissingIds) {
        if end.choices.is_empty() {
            return;
        }
        let sampler = self.source.sampler().await;
        if let Some(end_token) = sampler.end_token() {
            owed.append_end_token(end_token, &mut end.choices);
        }

        self.effective.fill_from_server(&sampler);
        if end.translated.is_none() {
            self.effective.fill_from_reply(self.route, &end.reply);
        }
        end.sampled_with = Some(self.effective.to_json());
        if let Some(kind) = sampler.logprob_kind().filter(|_| !self.is_kind_named) {
            kind.clone_into(&mut end.logprob_kind);
        }
    }
}

impl SamplerSource {
    async fn sampler(&mut self) -> Arc<ServerSampling> {
        match self {
            Self::Known(sampler) => Arc::clone(sampler),
            Self::Pending(answer, dialect) => {
                match tokio::time::timeout(SAMPLING_END_WAIT, answer).await {
                    Ok(Ok(sampler)) => sampler,
                    _ => Arc::new(ServerSampling::for_dialect(*dialect)),
                }
            }
        }
    }
}
