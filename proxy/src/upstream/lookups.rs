//! Lookups: what an upstream is asked beside a call, and remembers to have said.

use std::sync::Arc;

use hyper::HeaderMap;
use tokio::time::timeout;
use wire::{Dialect, ServerSampling};

use crate::bounds::SAMPLING_ASK_WAIT;
use crate::upstream::client::UpstreamClient;
use crate::upstream::declined::{self, DeclinedQuestion};
use crate::upstream::encodings::Encodings;
use crate::upstream::models::ModelList;
use crate::upstream::sampler_cache::SamplerCache;

/// The client of lookups, with the answers that are kept.
#[derive(Debug)]
pub(crate) struct Lookups {
    pub(super) client: Arc<UpstreamClient>,
    pub(super) samplers: SamplerCache,
    models: ModelList,
    /// The list of models, if the upstream does not tell it.
    declined_models: DeclinedQuestion,
    /// The ids of texts, which an upstream of another kind than was said does not tell.
    pub(super) declined_prompts: DeclinedQuestion,
    /// How the upstream encodes prompts.
    pub(super) encodings: Encodings,
}

impl Lookups {
    pub(super) fn new(client: &Arc<UpstreamClient>) -> Self {
        Self {
            client: Arc::clone(client),
            samplers: SamplerCache::default(),
            models: ModelList::default(),
            declined_models: DeclinedQuestion::default(),
            declined_prompts: DeclinedQuestion::default(),
            encodings: Encodings::default(),
        }
    }

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
            match timeout(SAMPLING_ASK_WAIT, self.client.fetch(path, agent)).await {
                Ok(Ok((status, page))) if status.is_success() && sampler.take(&page) => break,
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => is_answered = false,
            }
        }
        // Some servers do not report the end token of a turn; they are asked for its id once.
        if let Some((path, body)) = sampler.end_token_request() {
            match timeout(SAMPLING_ASK_WAIT, self.client.post(path, body, agent)).await {
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

    /// True if the upstream lists the model, or lists none.
    pub(super) async fn has_model(&self, name: &str, agent: &HeaderMap) -> bool {
        if self.models.contains(name) || self.declined_models.is_recent(agent) {
            return true;
        }
        match self.client.fetch("/v1/models", agent).await {
            Ok((status, list)) if status.is_success() => self.models.replace(&list),
            Ok((status, _)) if declined::is_lasting(status) => {
                self.declined_models.note(agent);
                return true;
            }
            _ => return true,
        }
        self.models.contains(name)
    }

    /// Notes that the upstream may have other weights now.
    pub(crate) fn weights_changed(&self) {
        self.samplers.clear();
    }
}
