//! Prompts that the upstream reports as text. Their ids are looked up during the call, so that they
//! are known when it ends.

use std::sync::Arc;

use bytes::Bytes;
use episode::CallEnd;
use hyper::HeaderMap;
use tokio::task::JoinHandle;
use wire::{MissingIds, PromptLookup};

use crate::bounds::PROMPT_END_WAIT;
use crate::upstream::keys::credentials_of;
use crate::upstream::lookups::Lookups;

/// The lookup of a call's prompts.
#[derive(Debug)]
pub(crate) struct PromptFetcher {
    lookups: Arc<Lookups>,
    /// The agent's credentials.
    agent: HeaderMap,
    task: AbortOnDrop,
}

/// A task that is aborted with its call.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<PromptIds>);

/// Prompts with their ids, in the order of the prompts; no ids if the lookup failed.
#[derive(Debug)]
struct PromptIds {
    prompts: PromptLookup,
    ids: Vec<Vec<u32>>,
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PromptFetcher {
    /// Starts the lookup, with the agent's credentials.
    pub(crate) fn start(lookups: &Arc<Lookups>, prompts: PromptLookup, agent: &HeaderMap) -> Self {
        let agent = credentials_of(agent);
        let task = tokio::spawn(look_up(Arc::clone(lookups), prompts, agent.clone()));
        Self { lookups: Arc::clone(lookups), agent, task: AbortOnDrop(task) }
    }

    /// Writes the ids into the end of the call, if anything was sampled.
    pub(crate) async fn fill(self, end: &mut CallEnd, owed: &MissingIds) {
        if end.choices.is_empty() || !end.prompts.is_empty() {
            return;
        }
        if let Ok(Some(ids)) = tokio::time::timeout(PROMPT_END_WAIT, self.ids(owed)).await {
            end.prompts = owed.verified(ids, end.usage.prompt);
        }
    }

    /// The ids of the prompts that were sampled from. The text in the reply decides for a chat: a
    /// template that contains the time may have rendered another text for the lookup.
    async fn ids(mut self, owed: &MissingIds) -> Option<Vec<Vec<u32>>> {
        let PromptIds { mut prompts, ids } = (&mut self.task.0).await.ok()?;
        if !prompts.is_chat() {
            return Some(ids);
        }
        match prompts.take_text(owed.text.clone()?) {
            true => Some(tokenize(&self.lookups, &prompts, &self.agent).await),
            false => Some(ids),
        }
    }
}

async fn look_up(lookups: Arc<Lookups>, mut prompts: PromptLookup, agent: HeaderMap) -> PromptIds {
    if let Some((path, body)) = prompts.template_request() {
        let reply = ask(&lookups, path, body, &agent).await;
        let Some(text) = reply.and_then(|reply| wire::rendered_text(&reply)) else {
            return PromptIds { prompts, ids: Vec::new() };
        };
        prompts.take_text(text);
    }
    let ids = tokenize(&lookups, &prompts, &agent).await;
    PromptIds { prompts, ids }
}

async fn tokenize(lookups: &Lookups, prompts: &PromptLookup, agent: &HeaderMap) -> Vec<Vec<u32>> {
    let mut replies = Vec::new();
    for question in prompts.tokenize_requests() {
        replies.push(match question {
            Some((path, body)) => ask(lookups, path, body, agent).await,
            None => None,
        });
    }
    prompts.ids(&replies)
}

/// The body of a successful reply; for a while none from an upstream of another kind. A question is
/// asked once more if its connection broke, as that of a server that gives up an idle connection
/// just then: it changes nothing there.
async fn ask(lookups: &Lookups, path: &str, body: Bytes, agent: &HeaderMap) -> Option<Bytes> {
    if lookups.declined_prompts.is_recent(agent) {
        return None;
    }
    let (status, reply) = match lookups.client.post(path, body.clone(), agent).await {
        Ok(replied) => replied,
        Err(_) => lookups.client.post(path, body, agent).await.ok()?,
    };
    // A server that has these routes never answers so, whatever an agent sent to it.
    if !status.is_success() && wire::is_anthropic_error(&reply) {
        lookups.declined_prompts.note(agent);
    }
    status.is_success().then_some(reply)
}
