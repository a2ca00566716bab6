//! Signals for a collector of OpenTelemetry: spans and log records of what is recorded, events of
//! the server's log, and its metrics.
//!
//! Spans and records of calls are made from the store, as a reader of the recording sees it, so
//! that no call waits for them. While the collector takes no spans nothing more is read, and the
//! store keeps what is to be sent.
//!
//! - `environment`: OpenTelemetry's own variables. `collector`: one request to the collector.
//! - `attributes`, `call`: what spans and log records say, and their ids.
//! - `spans` makes spans of changes, `logs` records; `recorded` is the task that sends both.
//! - `queue`: log records that wait, within a bound, and the task that sends them.
//! - `metrics`: the task that sends the metrics of the control listener.

mod attributes;
mod call;
mod collector;
mod environment;
mod logs;
mod metrics;
mod queue;
mod recorded;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use control::Settings;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use viewer::Viewer;

use self::collector::OtlpCollector;
use self::environment::Signals;
use self::metrics::MetricsSender;
use self::recorded::RecordedSender;
use self::spans::SpanMaker;
use super::ServerOptions;
use super::changes::ChangePoller;
use crate::exit::Failure;

/// Longest wait for what is sent last when the server stops.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The tasks that send.
#[derive(Debug)]
pub(crate) struct OtlpExport {
    recorded: Option<SendingTask>,
    logs: Option<SendingTask>,
    metrics: Option<SendingTask>,
}

/// A task that sends until it is told to stop, and then what is left.
#[derive(Debug)]
struct SendingTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl SendingTask {
    fn spawn<Sending>(run: impl FnOnce(oneshot::Receiver<()>) -> Sending) -> Self
    where
        Sending: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(run(stopped)) }
    }

    /// Waits for what is sent last, at most until `end`.
    async fn finish(self, what: &str, end: Instant) {
        let Self { stop, mut task } = self;
        let _ = stop.send(());
        if timeout_at(end, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the collector does not answer: the last {what} are lost");
        }
    }
}

impl OtlpExport {
    /// Starts to send what is recorded from now on, if there is a collector, and the metrics of the
    /// control listener that gets these settings. What the collector does not get is counted there.
    ///
    /// # Errors
    /// [`Failure`] if a variable of OpenTelemetry is malformed, or the store cannot be read.
    pub(crate) async fn start(
        options: &ServerOptions,
        settings: &mut Settings,
    ) -> Result<Option<Self>, Failure> {
        let Some(endpoint) = &options.proxy.telemetry.otlp_endpoint else { return Ok(None) };
        let counts = settings.exports.insert(Arc::default());
        let (signals, every) = (Signals::read()?, environment::metrics_interval()?);
        let resource = attributes::resource()?;
        let collector = |url: &hyper::Uri| OtlpCollector::new(url.clone());

        let (mut queue, mut logs) = (None, None);
        if signals.has_logs {
            let (waiting, sender) =
                queue::records(collector(&endpoint.logs)?, resource.clone(), counts);
            logs = Some(SendingTask::spawn(|stopped| sender.run(stopped)));
            queue::follow_log(&waiting);
            queue = Some(waiting);
        }
        let spans = match signals.has_traces {
            true => Some((
                SpanMaker::new(&options.store, resource.clone()),
                collector(&endpoint.traces)?,
            )),
            false => None,
        };
        let recorded = match signals.has_traces || signals.has_logs {
            true => {
                let (changes, counts) =
                    (changes_from_now(&settings.viewer).await?, Arc::clone(counts));
                let store = options.store.to_string();
                let sender = RecordedSender { changes, store, spans, queue, counts };
                Some(SendingTask::spawn(|stopped| sender.run(stopped)))
            }
            false => None,
        };
        let metrics = match signals.has_metrics {
            true => {
                let (reader, collector) = (settings.metrics.clone(), collector(&endpoint.metrics)?);
                let sender = MetricsSender::new((reader, every), collector, resource, counts);
                Some(SendingTask::spawn(|stopped| sender.run(stopped)))
            }
            false => None,
        };
        Ok(Some(Self { recorded, logs, metrics }))
    }

    /// Sends the metrics a last time, while there still is what they are read from.
    pub(crate) async fn finish_metrics(&mut self) {
        if let Some(task) = self.metrics.take() {
            task.finish("metrics", Instant::now() + LAST_WAIT).await;
        }
    }

    /// Sends what was recorded last, unless the collector takes too long.
    pub(crate) async fn finish(self) {
        let end = Instant::now() + LAST_WAIT;
        if let Some(task) = self.recorded {
            task.finish("spans", end).await;
        }
        if let Some(task) = self.logs {
            task.finish("log records", end).await;
        }
    }
}

/// Changes that are made from now on.
async fn changes_from_now(viewer: &Viewer) -> Result<ChangePoller, Failure> {
    let mut changes = ChangePoller::new(viewer.clone()).map_err(|e| Failure::of(&e))?;
    // What is found later was recorded later.
    changes.look().await.map_err(|e| Failure::of(&e))?;
    Ok(changes)
}
