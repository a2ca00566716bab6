//! A call between its begun record and its end. However it is let go of, the store hears of it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use episode::{Begun, Micros, Outcome};
use store::{Ack, CommitError, Store};
use tokio::task::JoinHandle;

use crate::conversations::Thread;
use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::record::Recording;
use crate::tag::Known;
use crate::watch::{Open, Watch};

/// The end of a call on its way to the disk. It gets there whether or not this is waited for.
pub(crate) type Commit = JoinHandle<Result<(), CommitError>>;

/// A call that was begun and has not ended. Dropped, it ends as `client_gone`: the one reason
/// for which hyper drops a call is that its agent has left.
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
    /// The conversation that its answer carries on.
    thread: Option<(Arc<Known>, Thread)>,
}

impl OpenCall {
    /// Queues the begun record; it rides with the commit under way.
    pub(crate) async fn begin(proxy: &Proxy, begun: Begun, recording: Recording) -> Self {
        let watch = Arc::clone(&proxy.watch);
        let stamp = watch.begun();
        let mut call = Self {
            store: proxy.store().clone(),
            begun: None,
            recording: Some(recording),
            open: Some(watch.open(begun.call_id)),
            watch,
            stamp,
            thread: None,
        };
        call.begun = Some(call.store.begin(begun).await);
        call
    }

    /// Lets the call's answer carry on the conversation that gave it its episode.
    pub(crate) fn in_thread(&mut self, known: &Arc<Known>, thread: Option<Thread>) {
        self.thread = thread.map(|thread| (Arc::clone(known), thread));
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

    /// The recording, to add to.
    pub(crate) fn recording(&mut self) -> &mut Recording {
        self.recording.as_mut().expect("a call that ended is not kept")
    }

    /// Ends the call.
    pub(crate) fn end(mut self, outcome: Outcome) -> Commit {
        self.write(outcome).expect("only `end` and `begun` take the recording")
    }

    /// Ends a call that `fault` ended, and gives back what the agent is to be told.
    pub(crate) async fn fail(mut self, fault: Fault) -> Fault {
        if let Err(unrecorded) = self.begun().await {
            return unrecorded.into();
        }
        let Some(recording) = self.recording.take() else { return fault };
        let mut ended = recording.finish(Outcome::UpstreamFailed, now());
        fault.mark(&mut ended);
        self.watch.ended(&mut ended, self.stamp.take());
        self.watch.fill(&self.store, &mut ended).await;
        match self.store.end(ended).await.done().await {
            Ok(()) => fault,
            Err(unrecorded) => unrecorded.into(),
        }
    }

    fn write(&mut self, outcome: Outcome) -> Option<Commit> {
        let recording = self.recording.take()?;
        if let Some((known, thread)) = self.thread.take()
            && let Some(answer) = recording.answer()
        {
            known.conversations.answered(&thread, &answer);
        }
        let mut ended = recording.finish(outcome, now());
        self.watch.ended(&mut ended, self.stamp.take());
        let (store, watch, open) = (self.store.clone(), self.watch.clone(), self.open.take());
        Some(tokio::spawn(async move {
            watch.fill(&store, &mut ended).await;
            let done = store.end(ended).await.done().await;
            drop(open);
            done
        }))
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.write(Outcome::ClientGone);
        self.watch.gone();
    }
}

/// The time, for records.
pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}
