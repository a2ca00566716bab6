//! Prompts that the upstream tells as text: their ids are asked for beside the call, so that they
//! are there when it ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use episode::Ended;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use tokio::task::JoinHandle;
use wire::{Owed, Prompts};

use crate::forward::Forward;

/// How long the end of a call waits for the ids of its prompt. Without them it makes no row.
const END_WAIT: Duration = Duration::from_secs(5);

/// Prompts that are asked for.
#[derive(Debug)]
pub(crate) struct Asking {
    forward: Arc<Forward>,
    agent: HeaderMap,
    begun: Begun,
}

/// What was asked beside the call, given up with it.
#[derive(Debug)]
struct Begun(JoinHandle<Known>);

/// Prompts with their ids, by place; an empty list where there are none.
type Known = (Prompts, Vec<Vec<u32>>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Asking {
    /// Asks with the agent's own credentials.
    pub(crate) fn begin(forward: &Arc<Forward>, prompts: Prompts, agent: &HeaderMap) -> Self {
        let mut key = HeaderMap::new();
        key.extend(agent.get(AUTHORIZATION).map(|value| (AUTHORIZATION, value.clone())));
        let begun = tokio::spawn(ask(Arc::clone(forward), prompts, key.clone()));
        Self { forward: Arc::clone(forward), agent: key, begun: Begun(begun) }
    }

    /// Writes the ids into the end of the call, where anything was sampled.
    pub(crate) async fn fill(self, ended: &mut Ended, owed: &Owed) {
        if ended.choices.is_empty() || !ended.prompts.is_empty() {
            return;
        }
        if let Ok(Some(ids)) = tokio::time::timeout(END_WAIT, self.ids(owed)).await {
            ended.prompts = owed.believed(ids, ended.usage.prompt);
        }
    }

    /// The ids of the prompts that were sampled from. Of a chat that is the text in the reply: a
    /// template that knows the time may have made another one meanwhile.
    async fn ids(mut self, owed: &Owed) -> Option<Vec<Vec<u32>>> {
        let (mut prompts, known) = (&mut self.begun.0).await.ok()?;
        if !prompts.is_chat() {
            return Some(known);
        }
        match prompts.take_text(owed.text.clone()?) {
            true => Some(tokenized(&self.forward, &prompts, &self.agent).await),
            false => Some(known),
        }
    }
}

async fn ask(forward: Arc<Forward>, mut prompts: Prompts, agent: HeaderMap) -> Known {
    if let Some(question) = prompts.rendering() {
        let answer = answer(&forward, question, &agent).await;
        let Some(text) = answer.and_then(|answer| wire::rendered_text(&answer)) else {
            return (prompts, Vec::new());
        };
        prompts.take_text(text);
    }
    let ids = tokenized(&forward, &prompts, &agent).await;
    (prompts, ids)
}

async fn tokenized(forward: &Forward, prompts: &Prompts, agent: &HeaderMap) -> Vec<Vec<u32>> {
    let mut answers = Vec::new();
    for question in prompts.tokenizing() {
        answers.push(match question {
            Some(question) => answer(forward, question, agent).await,
            None => None,
        });
    }
    prompts.ids(&answers)
}

async fn answer(
    forward: &Forward,
    (path, body): (&str, Bytes),
    agent: &HeaderMap,
) -> Option<Bytes> {
    let (status, answer) = forward.post(path, body, agent).await.ok()?;
    status.is_success().then_some(answer)
}
