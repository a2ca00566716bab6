//! OpenTelemetry spans of what is recorded: one of each generation, one of each attempt that is
//! closed, one of each reward. An attempt is one trace.
//!
//! They are made from the store, as a reader of the recording sees it, so that no call waits for
//! them. While the collector is away nothing more is read, and the store keeps what is to be sent.
//!
//! - `document` makes spans of changes; `collector` sends them.

mod collector;
mod document;

use std::time::Duration;

use store::Location;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use viewer::Viewer;

use self::collector::{Collector, Sent};
use self::document::SpanMaker;
use super::changes::ChangePoller;
use crate::exit::Failure;
use crate::options::telemetry::TelemetryArgs;

/// Pause between two looks for changes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pause after a failure; it doubles up to the second one.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Longest wait for the last spans when the server stops.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// A task that sends spans.
#[derive(Debug)]
pub(crate) struct SpanExport {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The parts that the task works with.
struct Sender {
    changes: ChangePoller,
    maker: SpanMaker,
    collector: Collector,
}

impl SpanExport {
    /// Starts to send what is recorded from now on, if there is a collector.
    ///
    /// # Errors
    /// [`Failure`] if a variable of OpenTelemetry is malformed, or the store cannot be read.
    pub(crate) async fn start(
        args: &TelemetryArgs,
        viewer: &Viewer,
        store: &Location,
    ) -> Result<Option<Self>, Failure> {
        let Some(url) = &args.otlp_endpoint else { return Ok(None) };
        let collector = Collector::new(url.clone())?;
        let mut changes = ChangePoller::new(viewer.clone()).map_err(|e| Failure::of(&e))?;
        // What is found later was recorded later.
        changes.look().await.map_err(|e| Failure::of(&e))?;

        let maker = SpanMaker::new(&store.to_string())?;
        let sender = Sender { changes, maker, collector };
        let (stop, stopped) = oneshot::channel();
        Ok(Some(Self { stop, task: tokio::spawn(sender.run(stopped)) }))
    }

    /// Sends what was recorded last, unless the collector takes too long.
    pub(crate) async fn finish(self) {
        let Self { stop, mut task } = self;
        let _ = stop.send(());
        if timeout(LAST_WAIT, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the collector does not answer: the last spans are lost");
        }
    }
}

impl Sender {
    /// Sends until `stopped` resolves, then what is left.
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let stops = tokio::select! {
                () = sleep(LOOK_EVERY) => false,
                _ = &mut stopped => true,
            };

            // A look finds a bounded number of changes.
            loop {
                match self.changes.look().await {
                    Ok(Some(found)) if found.is_empty() => break,
                    Ok(Some(found)) => self.send(&found).await,
                    Ok(None) => return,
                    Err(error) => {
                        tracing::warn!(%error, "spans pause: the store cannot be read");
                        break;
                    }
                }
            }

            if stops {
                return;
            }
        }
    }

    /// Sends the spans of changes, and tries again until the collector answers.
    async fn send(&mut self, found: &[(&'static str, String)]) {
        let Some(request) = self.maker.request(found) else { return };
        let [mut pause, longest] = RETRY_PAUSES;
        loop {
            match self.collector.send(&request).await {
                Sent::Taken => return,
                Sent::Refused(why) => {
                    return tracing::warn!(%why, "the collector refused spans; they are lost");
                }
                Sent::Failed(why) => tracing::warn!(%why, "spans wait for the collector"),
            }
            sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }
}
