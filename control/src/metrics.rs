//! Metrics, in the text format of Prometheus.
//!
//! - `values`: the same as values, for whoever sends them elsewhere.

pub(crate) mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::api::auth::Gate;
use http::api::reply::{JsonReply, error};
use http::body::{ReplyBody, full};
use http::clock::now;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, GaugeVec, IntCounterVec, Opts, Registry, TextEncoder};
use proxy::{AdmissionStatus, EngineState, Recorder, UpstreamStatus};
use store::{ConsumerCounts, SnapshotError};

use crate::error::snapshot_error;
use crate::feed::readers::FeedReaders;
use crate::feed::{dropped, oldest_age_s, total};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The reason for which there are no metrics.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The backlog of the feed cannot be read.
    #[error(transparent)]
    Store(#[from] SnapshotError),
    /// A metric is malformed.
    #[error("metrics cannot be encoded: {0}")]
    Encoding(#[from] prometheus::Error),
}

/// Counts of what a collector of OpenTelemetry should have got, and did not: it was slow, away, or
/// refused it.
#[derive(Debug, Default)]
pub struct ExportCounts {
    /// Spans.
    pub traces: AtomicU64,
    /// Points of metrics.
    pub metrics: AtomicU64,
    /// Log records.
    pub logs: AtomicU64,
}

/// The places from which the metrics of a control listener are read.
#[derive(Debug)]
pub(crate) struct MetricSources {
    pub(crate) recorder: Recorder,
    pub(crate) readers: Arc<FeedReaders>,
    pub(crate) gate: Arc<Gate>,
    /// `None` without a collector.
    pub(crate) exports: Option<Arc<ExportCounts>>,
}

impl MetricSources {
    /// Returns all metrics.
    pub(crate) async fn page(&self) -> Result<Response<ReplyBody>, JsonReply> {
        let page = self.gathered().await.and_then(|families| {
            let mut text = Vec::new();
            TextEncoder::new().encode(&families, &mut text)?;
            Ok(Bytes::from(text))
        });
        let page = page.map_err(|why| match why {
            MetricsError::Store(why) => snapshot_error(why),
            why @ MetricsError::Encoding(_) => {
                error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string())
            }
        })?;
        let mut reply = Response::new(full(page));
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
        Ok(reply)
    }

    /// All metrics, as they are now.
    async fn gathered(&self) -> Result<Vec<MetricFamily>, MetricsError> {
        let consumers = self.readers.consumers(&self.recorder).await?;
        let (at, admission) = (now(), self.recorder.admission().await?);
        Ok(self.families(&FeedCounts { consumers, at, admission })?)
    }

    fn families(&self, feed: &FeedCounts) -> Result<Vec<MetricFamily>, prometheus::Error> {
        let (page, recorder) = (Page(Registry::new()), &self.recorder);
        let upstreams = recorder.upstreams().all();
        add_calls(&page, recorder)?;
        add_reach(&page, &upstreams)?;
        add_memory(&page, recorder)?;
        add_store(&page, recorder)?;
        add_upstreams(&page, &upstreams, recorder.upstreams().waiting())?;
        add_feed(&page, &feed.consumers, feed.at)?;
        if let Some(status) = &feed.admission {
            add_admission(&page, status)?;
        }
        add_refused(&page, &self.gate)?;
        if let Some(counts) = &self.exports {
            add_exports(&page, counts)?;
        }
        Ok(page.0.gather())
    }
}

/// Counts for a page that are read off the store.
struct FeedCounts {
    consumers: Vec<ConsumerCounts>,
    /// The present time.
    at: i64,
    /// `None` without a rule of admission.
    admission: Option<AdmissionStatus>,
}

/// The metrics of one page. The values are read from their sources for each page.
struct Page(Registry);

impl Page {
    fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    fn gauge(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GaugeVec, prometheus::Error> {
        let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }
}

const NONE: [&str; 0] = [];

fn add_calls(page: &Page, recorder: &Recorder) -> Result<(), prometheus::Error> {
    let counts = recorder.call_counts();
    page.counter("rolltape_calls_begun_total", "Calls of agents.", &NONE)?
        .with_label_values(&NONE)
        .inc_by(counts.begun);
    page.gauge("rolltape_calls_in_flight", "Calls under way.", &NONE)?
        .with_label_values(&NONE)
        .set(counts.in_flight as f64);
    let help = "Calls that have ended, by their outcome.";
    let ended = page.counter("rolltape_calls_ended_total", help, &["outcome"])?;
    for (outcome, count) in counts.ended {
        ended.with_label_values(&[outcome]).inc_by(count);
    }
    let help = "Heartbeats in replies of calls that have ended.";
    page.counter("rolltape_heartbeats_total", help, &NONE)?
        .with_label_values(&NONE)
        .inc_by(counts.heartbeats);
    let help = "Calls whose prompt was to be sent as ids, by what came of it.";
    let continued = page.counter("rolltape_continued_calls_total", help, &["reason"])?;
    // A metric without a value is not on the page.
    continued.with_label_values(&["exact"]);
    for (reason, count) in counts.continued {
        continued.with_label_values(&[reason]).inc_by(count);
    }
    Ok(())
}

fn add_reach(page: &Page, upstreams: &[UpstreamStatus]) -> Result<(), prometheus::Error> {
    let help = "Calls whose added fields the upstream refused, and that were answered without.";
    page.counter("rolltape_asks_refused_total", help, &NONE)?
        .with_label_values(&NONE)
        .inc_by(upstreams.iter().map(|one| one.asks_refused).sum());

    let help = "1 if the last attempt to reach the upstream, or one of several, succeeded.";
    page.gauge("rolltape_upstream_up", help, &NONE)?
        .with_label_values(&NONE)
        .set(flag(upstreams.iter().any(|one| one.is_reached)));
    Ok(())
}

fn add_memory(page: &Page, recorder: &Recorder) -> Result<(), prometheus::Error> {
    let memory = recorder.memory_counts();
    for (name, help, bytes) in [
        ("rolltape_memory_bytes", "Memory of requests and replies.", memory.held),
        ("rolltape_memory_bytes_max", "The most that they may take.", memory.bytes_max),
    ] {
        page.gauge(name, help, &NONE)?.with_label_values(&NONE).set(bytes as f64);
    }
    let help = "Calls that were refused because there was no memory.";
    page.counter("rolltape_calls_shed_total", help, &NONE)?
        .with_label_values(&NONE)
        .inc_by(memory.shed);
    Ok(())
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// The metrics of each upstream.
fn add_upstreams(
    page: &Page,
    upstreams: &[UpstreamStatus],
    waiting_calls: [usize; 2],
) -> Result<(), prometheus::Error> {
    let label = ["upstream"];
    let states = page.gauge(
        "rolltape_upstream_state",
        "1 for the state of an upstream, 0 for the others.",
        &["upstream", "state"],
    )?;
    let help = "Calls under way at an upstream.";
    let calls = page.gauge("rolltape_upstream_calls_in_flight", help, &label)?;
    let help = "Threads of episodes that an upstream is remembered to have the prefix of.";
    let threads = page.gauge("rolltape_upstream_threads", help, &label)?;
    let help = "Calls that an upstream got.";
    let begun = page.counter("rolltape_upstream_calls_begun_total", help, &label)?;
    let help = "Calls that an upstream got of threads that were on another one.";
    let moved = page.counter("rolltape_upstream_calls_moved_total", help, &label)?;
    let help = "Failures of an upstream: of connections, of replies and of its health.";
    let failed = page.counter("rolltape_upstream_failures_total", help, &label)?;
    let help = "Replies 429 and 503 of an upstream that were waited for, not passed on.";
    let absorbed = page.counter("rolltape_upstream_absorbed_total", help, &label)?;
    for upstream in upstreams {
        let name = [upstream.spec.name.as_str()];
        for one in EngineState::ALL {
            let is_so = flag(one == upstream.state);
            states.with_label_values(&[name[0], one.as_str()]).set(is_so);
        }
        calls.with_label_values(&name).set(upstream.calls as f64);
        threads.with_label_values(&name).set(upstream.threads as f64);
        for (counter, number) in [
            (&begun, upstream.begun),
            (&moved, upstream.moved),
            (&failed, upstream.failed),
            (&absorbed, upstream.absorbed),
        ] {
            counter.with_label_values(&name).inc_by(number);
        }
    }
    let help = "Calls that wait: for an upstream that takes them, or after its 429 or 503.";
    let waiting = page.gauge("rolltape_upstream_calls_waiting", help, &["reason"])?;
    for (reason, count) in ["room", "refused"].into_iter().zip(waiting_calls) {
        waiting.with_label_values(&[reason]).set(count as f64);
    }
    Ok(())
}

fn add_store(page: &Page, recorder: &Recorder) -> Result<(), prometheus::Error> {
    let counts = recorder.store().record_counts();
    let help = "Records of calls and of control requests, by what became of them.";
    let records = page.counter("rolltape_store_records_total", help, &["result"])?;
    let results =
        [("written", counts.written), ("refused", counts.refused), ("failed", counts.failed)];
    for (result, count) in results {
        records.with_label_values(&[result]).inc_by(count);
    }

    // The queue is bounded: calls wait when it is full.
    let (queued, queued_max) = recorder.store().queued();
    let help = "Records that wait to be written.";
    page.gauge("rolltape_store_queue_records", help, &NONE)?
        .with_label_values(&NONE)
        .set(queued as f64);
    let help = "Records that may wait to be written.";
    page.gauge("rolltape_store_queue_records_max", help, &NONE)?
        .with_label_values(&NONE)
        .set(queued_max as f64);
    Ok(())
}

fn add_refused(page: &Page, gate: &Gate) -> Result<(), prometheus::Error> {
    let help = "Requests refused at the control listener, by the reason.";
    let refused = page.counter("rolltape_control_refused_total", help, &["reason"])?;
    for (refusal, count) in gate.refused() {
        refused.with_label_values(&[refusal.name()]).inc_by(count);
    }
    Ok(())
}

fn add_exports(page: &Page, counts: &ExportCounts) -> Result<(), prometheus::Error> {
    let help = "What the collector of OpenTelemetry did not get, by the signal.";
    let dropped = page.counter("rolltape_otlp_dropped_total", help, &["signal"])?;
    let ExportCounts { traces, metrics, logs } = counts;
    for (signal, count) in [("traces", traces), ("metrics", metrics), ("logs", logs)] {
        dropped.with_label_values(&[signal]).inc_by(count.load(Ordering::Relaxed));
    }
    Ok(())
}

fn add_feed(page: &Page, consumers: &[ConsumerCounts], at: i64) -> Result<(), prometheus::Error> {
    let label = ["consumer"];
    let help = "Finished attempts that could be handed out now.";
    let depth = page.gauge("rolltape_feed_depth", help, &label)?;
    let help = "Finished attempts that wait: for their group, a reward, or a delay to end.";
    let waiting = page.gauge("rolltape_feed_waiting", help, &label)?;
    let help = "How long the oldest of those that could be handed out has been finished.";
    let oldest_age = page.gauge("rolltape_feed_oldest_age_seconds", help, &label)?;
    let leased = page.gauge("rolltape_feed_leased", "Attempts that are leased.", &label)?;
    for counts in consumers {
        let consumer = [counts.consumer.as_str()];
        depth.with_label_values(&consumer).set(counts.backlog.ready as f64);
        waiting.with_label_values(&consumer).set(counts.backlog.waiting as f64);
        oldest_age.with_label_values(&consumer).set(oldest_age_s(counts, at));
        leased.with_label_values(&consumer).set(counts.leased as f64);
    }

    // A counter counts over the life of the store.
    for event in ["delivered", "redelivered", "acked", "nacked"] {
        let name = format!("rolltape_feed_{event}_total");
        let attempts = page.counter(&name, &format!("Attempts {event}."), &label)?;
        for counts in consumers {
            let consumer = [counts.consumer.as_str()];
            attempts.with_label_values(&consumer).inc_by(total(counts, event));
        }
    }

    let help = "Attempts dropped, by the reason.";
    let attempts = page.counter("rolltape_feed_dropped_total", help, &["consumer", "reason"])?;
    for counts in consumers {
        for (reason, count) in dropped(counts) {
            attempts.with_label_values(&[counts.consumer.as_str(), reason]).inc_by(count);
        }
    }
    Ok(())
}

fn add_admission(page: &Page, status: &AdmissionStatus) -> Result<(), prometheus::Error> {
    let AdmissionStatus { rule, counts, waiting, admitted, refused } = status;
    let help = "Attempts that the rule of admission counts, by their state.";
    let attempts = page.gauge("rolltape_admission_attempts", help, &["state"])?;
    for (state, count) in
        [("open", counts.open), ("finished", counts.finished), ("idle", counts.idle)]
    {
        attempts.with_label_values(&[state]).set(count as f64);
    }
    for (name, help, value) in [
        ("rolltape_admission_taken", "Places that attempts and their groups take.", counts.taken),
        ("rolltape_admission_limit", "Places that there are.", rule.limit()),
        ("rolltape_admission_calls_waiting", "First calls that wait for a place.", *waiting as u64),
    ] {
        page.gauge(name, help, &NONE)?.with_label_values(&NONE).set(value as f64);
    }
    let help = "First calls of attempts, by whether they got a place in time.";
    let calls = page.counter("rolltape_admission_calls_total", help, &["result"])?;
    for (result, count) in [("admitted", *admitted), ("refused", *refused)] {
        calls.with_label_values(&[result]).inc_by(count);
    }
    Ok(())
}
