//! Log records that wait for the collector. Whoever has one offers it and goes on: when too many
//! wait, it is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::ExportCounts;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::collector::{Complaint, OtlpCollector, RETRY_PAUSES, Sent};
use super::logs;
use crate::log::events;

/// Records that may wait.
const RECORDS_MAX: usize = 2048;
/// Records of one request.
const BATCH_MAX: usize = 512;
/// Wait for more records of a request.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// The way to the collector.
#[derive(Debug, Clone)]
pub(super) struct LogQueue {
    waiting: mpsc::Sender<LogRecord>,
    counts: Arc<ExportCounts>,
}

impl LogQueue {
    /// Has a record sent, unless too many wait.
    pub(super) fn offer(&self, record: LogRecord) {
        if self.waiting.try_send(record).is_err() {
            self.counts.logs.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The parts that the task works with.
pub(super) struct LogSender {
    waiting: mpsc::Receiver<LogRecord>,
    collector: OtlpCollector,
    resource: Resource,
    counts: Arc<ExportCounts>,
    complaint: Complaint,
}

/// A queue, and the task that empties it.
pub(super) fn records(
    collector: OtlpCollector,
    resource: Resource,
    counts: &Arc<ExportCounts>,
) -> (LogQueue, LogSender) {
    let (sender, waiting) = mpsc::channel(RECORDS_MAX);
    let queue = LogQueue { waiting: sender, counts: Arc::clone(counts) };
    let (counts, complaint) = (Arc::clone(counts), Complaint::default());
    (queue, LogSender { waiting, collector, resource, counts, complaint })
}

/// Offers the events of the log from now on.
pub(super) fn follow_log(queue: &LogQueue) {
    let queue = queue.clone();
    events::follow(move |event| queue.offer(logs::event_record(&event)));
}

impl LogSender {
    /// Sends until `stopped` resolves, then what is left.
    pub(super) async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                _ = &mut stopped => break,
                _ = self.waiting.recv_many(&mut batch, BATCH_MAX) => {}
            }
            if batch.is_empty() {
                return;
            }
            let _ = timeout(BATCH_WAIT, self.fill(&mut batch)).await;
            self.send(batch).await;
        }

        // What comes from now on is counted.
        self.waiting.close();
        let mut batch = Vec::new();
        while self.waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    /// Fills a request.
    async fn fill(&mut self, batch: &mut Vec<LogRecord>) {
        while batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            if self.waiting.recv_many(batch, room).await == 0 {
                return;
            }
        }
    }

    /// Sends records, and tries again until the collector answers.
    async fn send(&mut self, batch: Vec<LogRecord>) {
        let count = batch.len() as u64;
        let request = logs::request(&self.resource, batch);
        let [mut pause, longest] = RETRY_PAUSES;
        loop {
            match self.collector.send::<ExportLogsServiceResponse>(&request).await {
                Sent::Taken => return self.complaint.end(),
                Sent::Refused { why, lost } => {
                    self.counts.logs.fetch_add(lost.unwrap_or(count), Ordering::Relaxed);
                    return self.complaint.make("log records", why);
                }
                Sent::Failed(_) => {}
            }
            sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_dropped_and_counted() {
        let counts = Arc::new(ExportCounts::default());
        let collector = OtlpCollector::new("http://127.0.0.1:1".parse().unwrap()).unwrap();
        let (queue, sender) = records(collector, Resource::default(), &counts);
        for _ in 0..RECORDS_MAX + 3 {
            queue.offer(LogRecord::default());
        }
        assert_eq!(counts.logs.load(Ordering::Relaxed), 3);
        assert_eq!(sender.waiting.len(), RECORDS_MAX);
        drop(sender);
        queue.offer(LogRecord::default());
        assert_eq!(counts.logs.load(Ordering::Relaxed), 4);
    }
}
