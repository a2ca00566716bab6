//! What the upstream says of how it samples: asked for beside a call, and held for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use episode::{Ended, Route};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use tokio::task::JoinHandle;
use wire::{Dialect, Effective, Force, Owed, Request, Sampler};

use crate::forward::Forward;

/// How long what was told is held. A server that was started anew meanwhile, without that a call
/// failed, is asked again after it.
const HELD_FOR: Duration = Duration::from_secs(60);
/// How long the upstream may take to tell. vLLM looks at the machine when it is first asked.
const ASK_WAIT: Duration = Duration::from_secs(30);
/// How long the end of a call waits for that.
const END_WAIT: Duration = Duration::from_secs(5);

/// What the upstream last said of how it samples.
#[derive(Debug, Default)]
pub(crate) struct Samplers {
    held: Mutex<Held>,
    /// Those who ask at once ask once.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    told: Option<(Instant, Arc<Sampler>)>,
    /// How often it was forgotten.
    forgotten: u64,
}

/// What is to be said of how a call was sampled, once it has ended.
#[derive(Debug)]
pub(crate) struct Sampling {
    effective: Effective,
    told: Told,
    route: Route,
    /// Whether the user said what the logprobs are.
    kind_named: bool,
}

/// What the upstream says, or will have said.
#[derive(Debug)]
enum Told {
    Now(Arc<Sampler>),
    Soon(JoinHandle<Arc<Sampler>>, Dialect),
}

impl Samplers {
    /// Forgets it: the upstream may be another one now.
    pub(crate) fn forget(&self) {
        let mut held = self.held();
        held.told = None;
        held.forgotten += 1;
    }

    fn fresh(&self) -> Option<Arc<Sampler>> {
        let held = self.held();
        let told = held.told.as_ref().filter(|(at, _)| at.elapsed() < HELD_FOR);
        told.map(|(_, sampler)| Arc::clone(sampler))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forward {
    /// How the upstream samples; asked with the agent's own credentials.
    pub(crate) async fn learn(&self, dialect: Dialect, agent: &HeaderMap) -> Arc<Sampler> {
        let _turn = self.samplers.turn.lock().await;
        if let Some(told) = self.samplers.fresh() {
            return told;
        }
        let forgotten = self.samplers.held().forgotten;
        let mut sampler = Sampler::of(dialect);
        let mut answered = true;
        for path in Sampler::paths(dialect) {
            match tokio::time::timeout(ASK_WAIT, self.fetch(path, agent)).await {
                Ok(Ok((status, page))) if status.is_success() && sampler.take(&page) => break,
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => answered = false,
            }
        }
        if let Some((path, body)) = sampler.end_question() {
            match tokio::time::timeout(ASK_WAIT, self.post(path, body, agent)).await {
                Ok(Ok((status, page))) if status.is_success() => sampler.take_end(&page),
                _ => answered = false,
            }
        }
        let sampler = Arc::new(sampler);
        let mut held = self.samplers.held();
        if answered && held.forgotten == forgotten {
            held.told = Some((Instant::now(), Arc::clone(&sampler)));
        }
        sampler
    }
}

impl Sampling {
    /// The sampling of a call to `route`; the upstream is asked beside it, where it is not known
    /// how it samples.
    pub(crate) fn new(
        forward: &Arc<Forward>,
        dialect: Dialect,
        (route, sent, force): (Route, &Request, &Force),
        agent: &HeaderMap,
    ) -> Self {
        let told = match forward.samplers.fresh() {
            Some(sampler) => Told::Now(sampler),
            None if Sampler::paths(dialect).is_empty() => Told::Now(Arc::new(Sampler::of(dialect))),
            None => {
                let forward = Arc::clone(forward);
                let mut headers = HeaderMap::new();
                headers.extend(agent.get(AUTHORIZATION).map(|key| (AUTHORIZATION, key.clone())));
                let asked = async move { forward.learn(dialect, &headers).await };
                Told::Soon(tokio::spawn(asked), dialect)
            }
        };
        let effective = match (dialect, route) {
            (Dialect::Sglang | Dialect::Rolltape, Route::Generate) => {
                Effective::asked_natively(sent)
            }
            _ => Effective::asked(dialect, sent, force),
        };
        Self { effective, told, route, kind_named: false }
    }

    /// The same, where the user said what the logprobs are.
    pub(crate) fn with_kind_named(self, kind_named: bool) -> Self {
        Self { kind_named, ..self }
    }

    /// Writes it into the end of the call, where anything was sampled.
    pub(crate) async fn fill(mut self, ended: &mut Ended, owed: &Owed) {
        if ended.choices.is_empty() {
            return;
        }
        let sampler = match self.told {
            Told::Now(sampler) => sampler,
            Told::Soon(asked, dialect) => match tokio::time::timeout(END_WAIT, asked).await {
                Ok(Ok(sampler)) => sampler,
                _ => Arc::new(Sampler::of(dialect)),
            },
        };
        if let Some(end) = sampler.end() {
            owed.end(end, &mut ended.choices);
        }
        self.effective.served(&sampler);
        if ended.translated.is_none() {
            self.effective.heard(self.route, &ended.reply);
        }
        ended.sampled_with = Some(self.effective.to_json());
        if let Some(kind) = sampler.logprob_kind().filter(|_| !self.kind_named) {
            kind.clone_into(&mut ended.logprob_kind);
        }
    }
}
