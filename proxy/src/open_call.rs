//! A call between its begun record and its end. However it is let go of, the store hears of it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use episode::{Begun, Micros, Outcome, Route};
use hyper::HeaderMap;
use store::{Ack, CommitError, Store};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use wire::{Dialect, Force, Request};

use crate::admitted::{Admitted, Key};
use crate::chains::Asked;
use crate::conversations::Thread;
use crate::fault::Fault;
use crate::learn::Sampling;
use crate::prompts::Asking;
use crate::proxy::Proxy;
use crate::record::Recording;
use crate::rewrite::Plan;
use crate::tag::Known;
use crate::watch::{Open, Watch};

/// A call whose way upstream is to be planned.
#[derive(Clone, Copy)]
pub(crate) struct ToPlan<'a> {
    pub(crate) route: Route,
    pub(crate) path: &'a str,
    /// The agent's request, where its body is a JSON object.
    pub(crate) sent: Option<&'a Request>,
    /// The request behind the conversation that it goes on from, where that is kept here.
    pub(crate) whole: Option<&'a Request>,
    pub(crate) force: &'a Force,
}

/// The end of a call on its way to the disk. It gets there whether or not this is waited for.
pub(crate) type Commit = JoinHandle<Result<(), CommitError>>;

/// A place among the calls in flight, for those that take one.
pub(crate) type Room = Option<OwnedSemaphorePermit>;

/// A call that was begun and has not ended. Dropped, it ends as `client_gone`, or as `complete`
/// where the whole answer was there: the one reason for which hyper drops a call is that its agent
/// has left.
#[derive(Debug)]
pub(crate) struct OpenCall {
    store: Store,
    begun: Option<Ack>,
    recording: Option<Recording>,
    watch: Arc<Watch>,
    /// Until its end is on disk its episode is not handed out.
    open: Option<Open>,
    /// The version that was said to be current when it began.
    stamp: Option<String>,
    /// Its place among the calls in flight.
    _room: Room,
    /// The conversation that its answer carries on.
    thread: Option<(Arc<Known>, Thread)>,
    /// What a later call may go on from by the name of its response.
    chain: Option<(Arc<Known>, Asked)>,
    sampling: Option<Sampling>,
    /// Its prompts, where the upstream is asked for them beside it.
    asking: Option<Asking>,
}

impl OpenCall {
    /// Queues the begun record; it rides with the commit under way. The call keeps `room` until it
    /// has ended.
    pub(crate) async fn begin(
        proxy: &Proxy,
        begun: Begun,
        recording: Recording,
        room: Room,
    ) -> Self {
        let watch = Arc::clone(&proxy.watch);
        let stamp = watch.begun();
        let mut call = Self {
            store: proxy.store().clone(),
            begun: None,
            recording: Some(recording),
            open: Some(watch.open(begun.call_id)),
            watch,
            stamp,
            _room: room,
            thread: None,
            chain: None,
            sampling: None,
            asking: None,
        };
        call.begun = Some(call.store.begin(begun).await);
        call
    }

    /// Lets the call's answer carry on the conversation that gave it its episode, and later calls
    /// go on from its response by its name.
    pub(crate) fn carries_on(
        &mut self,
        known: &Arc<Known>,
        thread: Option<Thread>,
        asked: Option<Asked>,
    ) {
        self.thread = thread.map(|thread| (Arc::clone(known), thread));
        self.chain = asked.map(|asked| (Arc::clone(known), asked));
    }

    /// How the call goes upstream. What its reply will not tell is asked for from now on.
    pub(crate) async fn planned<'a>(
        &mut self,
        proxy: &Proxy,
        dialect: Dialect,
        call: ToPlan<'a>,
        agent: &HeaderMap,
    ) -> Plan<'a> {
        let ToPlan { route, path, sent, whole, force } = call;
        let route = wire::route_at(dialect, route, path);
        self.sampled(proxy, dialect, (route, sent, force), agent);
        let plan = Plan::new(proxy.config(), dialect, force, (route, sent)).behind(whole);
        let plan = proxy.forward.fit(plan, agent).await;
        let prompts = plan.prompts();
        self.asking = prompts.map(|prompts| Asking::begin(&proxy.forward, prompts, agent));
        plan
    }

    /// Notes what the call is sampled with, and what its logprobs are.
    fn sampled(
        &mut self,
        proxy: &Proxy,
        dialect: Dialect,
        (route, sent, force): (Route, Option<&Request>, &Force),
        agent: &HeaderMap,
    ) {
        let config = proxy.config();
        self.recording().logprob_kind(config.logprob_kind_of(dialect));
        self.sampling = sent.filter(|_| route.generates()).map(|sent| {
            Sampling::new(&proxy.forward, dialect, (route, sent, force), agent)
                .with_kind_named(config.logprob_kind.is_some())
        });
    }

    /// Waits until the begun record is on disk: no byte of the reply leaves before.
    pub(crate) async fn begun(&mut self) -> Result<(), CommitError> {
        let Some(ack) = self.begun.take() else { return Ok(()) };
        let done = ack.done().await;
        if done.is_err() {
            // There is no open row that could be ended.
            self.recording = None;
        }
        done
    }

    /// Waits for that where this process does not know the attempt to be open: a late call costs
    /// the upstream nothing.
    pub(crate) async fn admitted(
        &mut self,
        admitted: &Admitted,
        key: Key,
    ) -> Result<(), CommitError> {
        if !admitted.contains(&key) {
            self.begun().await?;
            admitted.insert(key);
        }
        Ok(())
    }

    /// The recording, to add to.
    pub(crate) fn recording(&mut self) -> &mut Recording {
        self.recording.as_mut().expect("a call that ended is not kept")
    }

    /// How the call ends when its agent leaves now.
    pub(crate) fn left(&self) -> Outcome {
        self.recording.as_ref().map_or(Outcome::ClientGone, Recording::left)
    }

    /// Ends the call.
    pub(crate) fn end(mut self, outcome: Outcome) -> Commit {
        self.write(outcome, None).expect("only `end` and `begun` take the recording")
    }

    /// Ends a call that `fault` ended, and gives back what the agent is to be told.
    pub(crate) async fn fail(mut self, fault: Fault) -> Fault {
        if let Err(unrecorded) = self.begun().await {
            return unrecorded.into();
        }
        let Some(commit) = self.write(Outcome::UpstreamFailed, Some(&fault)) else { return fault };
        match commit.await.unwrap_or(Err(CommitError::Stopped)) {
            Ok(()) => fault,
            Err(unrecorded) => unrecorded.into(),
        }
    }

    /// Puts the end of the call on its way, in a task of its own: the agent may leave meanwhile.
    fn write(&mut self, outcome: Outcome, fault: Option<&Fault>) -> Option<Commit> {
        let recording = self.recording.take()?;
        if let Some((known, thread)) = self.thread.take().filter(|_| fault.is_none())
            && let Some(answer) = recording.answer()
        {
            known.conversations.answered(&thread, &answer);
        }
        let (mut ended, owed) = recording.finish(outcome, now());
        if let Some(fault) = fault {
            fault.mark(&mut ended);
        }
        if let Some((known, asked)) = self.chain.take() {
            known.chains.ended(asked, &ended);
        }
        self.watch.ended(&mut ended, self.stamp.take());
        let (store, watch, open) = (self.store.clone(), self.watch.clone(), self.open.take());
        let (sampling, asking) = (self.sampling.take(), self.asking.take());
        Some(tokio::spawn(async move {
            if let Some(asking) = asking {
                asking.fill(&mut ended, &owed).await;
            }
            if let Some(sampling) = sampling {
                sampling.fill(&mut ended, &owed).await;
            }
            watch.fill(&store, &mut ended).await;
            let done = store.end(ended).await.done().await;
            drop(open);
            done
        }))
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.write(self.left(), None);
        self.watch.gone();
    }
}

/// The time, for records.
pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use bytes::Bytes;
    use episode::{CallId, Lineage, Tag, TagSource};
    use store::{Durability, Selection, Writer};
    use tokio::task::unconstrained;
    use uuid::Uuid;

    use super::*;
    use crate::config::Config;

    /// More than any queue takes.
    const RECORDS_MAX: usize = 100_000;

    fn begun() -> Begun {
        let tag = Tag {
            episode: "e".parse().unwrap(),
            attempt: 0,
            group: None,
            task: None,
            labels: Vec::new(),
            source: TagSource::Path,
        };
        Begun {
            call_id: CallId(Uuid::now_v7()),
            tag,
            started_at: 1,
            method: "POST".into(),
            path: "/v1/chat/completions".into(),
            route: Route::Chat,
            model: None,
            request: Bytes::new(),
            sampling: None,
            lineage: Lineage::default(),
        }
    }

    async fn proxy(folder: &tempfile::TempDir) -> (Proxy, Writer) {
        let at = folder.path().join("test.db");
        let (store, writer) = Store::open(at.as_path(), Durability::Process).await.unwrap();
        let config = Config::new("http://127.0.0.1:9".parse().unwrap());
        (Proxy::start(config, store).await.unwrap(), writer)
    }

    /// What `future` comes to at once, if anything. Nothing else runs meanwhile.
    fn at_once<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(unconstrained(future)).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_call_that_fails_ends_though_its_agent_leaves_before_there_is_room_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let (proxy, writer) = proxy(&folder).await;
        let begun_here = begun();
        let call_id = begun_here.call_id;
        let recording = Recording::new(call_id, Route::Chat, 10);
        let mut open = OpenCall::begin(&proxy, begun_here, recording, None).await;
        open.begun().await.unwrap();
        let filled = (0..RECORDS_MAX).find(|_| at_once(proxy.store().begin(begun())).is_pending());
        assert!(filled.is_some(), "the queue has a bound");
        let fault = Fault::Unreachable("u".into(), "refused".into());
        assert!(at_once(open.fail(fault)).is_pending(), "there is no room");
        let ended = async {
            loop {
                let mut snapshot = proxy.store().snapshot().await.unwrap();
                let episodes = snapshot.episodes(&Selection::default()).await.unwrap();
                let calls = snapshot.calls(&episodes[0]).await.unwrap();
                let call = calls.into_iter().find(|call| call.begun.call_id == call_id).unwrap();
                if let Some(ended) = call.ended {
                    return ended;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("an end");
        assert_eq!((ended.outcome, ended.status), (Outcome::UpstreamFailed, Some(502)));
        drop(proxy);
        writer.finish().await;
    }
}
