//! The sampling parameters of a call. The upstream is asked for its defaults during the call.

use std::sync::Arc;

use episode::{CallEnd, Route};
use hyper::HeaderMap;
use tokio::task::JoinHandle;
use wire::{Dialect, EffectiveSampling, ForcedSampling, MissingIds, Request, ServerSampling};

use crate::bounds::SAMPLING_END_WAIT;
use crate::upstream::keys::credentials_of;
use crate::upstream::lookups::Lookups;

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
        lookups: &Arc<Lookups>,
        dialect: Dialect,
        route: Route,
        effective: EffectiveSampling,
        agent: &HeaderMap,
    ) -> Self {
        let source = match lookups.samplers.get() {
            Some(sampler) => SamplerSource::Known(sampler),
            None if ServerSampling::paths(dialect).is_empty() => {
                SamplerSource::Known(Arc::new(ServerSampling::for_dialect(dialect)))
            }
            None => {
                let lookups = Arc::clone(lookups);
                let credentials = credentials_of(agent);
                let answer = async move { lookups.sampler(dialect, &credentials).await };
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
            self.effective.fill_from_reply(self.route, &end.reply.read());
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
