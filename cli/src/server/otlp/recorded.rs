//! The task that sends what is recorded: spans, and a log record of each call that ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::ExportCounts;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::collector::{OtlpCollector, RETRY_PAUSES, Sent};
use super::logs::call_record;
use super::queue::LogQueue;
use super::spans::SpanMaker;
use crate::server::changes::ChangePoller;

/// Pause between two looks for changes.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The parts that the task works with.
pub(super) struct RecordedSender {
    pub(super) changes: ChangePoller,
    /// Name of the store.
    pub(super) store: String,
    /// `None` if no spans are sent.
    pub(super) spans: Option<(SpanMaker, OtlpCollector)>,
    /// `None` if no log records are sent.
    pub(super) queue: Option<LogQueue>,
    pub(super) counts: Arc<ExportCounts>,
}

impl RecordedSender {
    /// Sends until `stopped` resolves, then what is left.
    pub(super) async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
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

    async fn send(&mut self, found: &[(&'static str, String)]) {
        if let Some(queue) = &self.queue {
            let calls = found.iter().filter(|(kind, _)| *kind == "call");
            calls.filter_map(|(_, call)| call_record(&self.store, call)).for_each(|record| {
                queue.offer(record);
            });
        }
        self.send_spans(found).await;
    }

    /// Sends the spans of changes, and tries again until the collector answers.
    async fn send_spans(&mut self, found: &[(&'static str, String)]) {
        let Some((maker, collector)) = &mut self.spans else { return };
        let Some((request, count)) = maker.request(found) else { return };
        let [mut pause, longest] = RETRY_PAUSES;
        loop {
            match collector.send::<ExportTraceServiceResponse>(&request).await {
                Sent::Taken => return,
                Sent::Refused { why, lost } => {
                    self.counts.traces.fetch_add(lost.unwrap_or(count), Ordering::Relaxed);
                    return tracing::warn!(%why, "the collector refused spans; they are lost");
                }
                Sent::Failed(why) => tracing::warn!(%why, "spans wait for the collector"),
            }
            sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }
}
