//! `/metrics`: the engine's counters and gauges in the text format of Prometheus.
//!
//! Names and labels are vLLM's where vLLM has the metric, so that its dashboards and autoscalers
//! read this engine, too. Metrics of weights and pauses have names of their own, `rolltape_...`.
//! Metrics of vLLM that this engine does not measure are absent rather than zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hyper::StatusCode;
use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::calls::{ApiError, HttpCall, HttpReply, typed_reply};
use super::state::ServerState;
use crate::core::status::{EngineStatus, WeightState};
use crate::stats::{Histogram, RequestStats, UpdateStats};

/// The content type of the text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Handles `/metrics`.
pub(super) async fn answer(state: &Arc<ServerState>, _: HttpCall) -> Result<HttpReply, ApiError> {
    let mut page = MetricsPage { model: &state.model.name, families: Vec::new() };
    add_requests(&mut page, state);
    add_tokens(&mut page, state);
    add_histograms(&mut page, &state.stats.requests);
    add_status(&mut page, state);
    add_updates(&mut page, &state.stats.updates);

    let text = TextEncoder::new().encode_to_string(&page.families).map_err(ApiError::failed)?;
    Ok(typed_reply(StatusCode::OK, CONTENT_TYPE, text))
}

/// Adds the metrics of requests and pages.
fn add_requests(page: &mut MetricsPage, state: &ServerState) {
    // Each number is read by itself, so two of them may be of different steps.
    let stats = &state.stats;
    let running = stats.running.load(Ordering::Relaxed) as f64;
    page.gauge("vllm:num_requests_running", "Sequences that run.", running);
    let waiting = stats.waiting.load(Ordering::Relaxed) as f64;
    page.gauge("vllm:num_requests_waiting", "Choices that wait for a place.", waiting);
    let used = stats.pages_used.load(Ordering::Relaxed) as f64;
    let total = stats.pages_total.load(Ordering::Relaxed).max(1) as f64;
    page.gauge("vllm:kv_cache_usage_perc", "Part of the pages in use; 1 is all.", used / total);

    let host_used = stats.host_used.load(Ordering::Relaxed) as f64;
    let host_total = stats.host_total.load(Ordering::Relaxed).max(1) as f64;
    page.gauge(
        "rolltape_kv_host_usage_ratio",
        "Part of the places for pages in the host's memory in use; 1 is all.",
        host_used / host_total,
    );

    page.labeled(
        MetricType::COUNTER,
        "vllm:request_success_total",
        "Replies that ended, by reason.",
        [
            ("stop", &stats.stopped),
            ("length", &stats.cut),
            ("abort", &stats.aborted),
            ("error", &stats.failed),
        ]
        .map(|(reason, counter)| MetricSample::labeled("finished_reason", reason, count(counter))),
    );
}

/// Adds the counters of tokens, and of what happened to them.
fn add_tokens(page: &mut MetricsPage, state: &ServerState) {
    let stats = &state.stats;
    let counters = [
        ("vllm:prompt_tokens_total", "Tokens of prompts.", &stats.prompt_tokens),
        ("vllm:generation_tokens_total", "Tokens that were sampled.", &stats.generated_tokens),
        (
            "vllm:prefix_cache_queries_total",
            "Tokens looked up among prefixes.",
            &stats.prefix_queries,
        ),
        ("vllm:prefix_cache_hits_total", "Tokens found among prefixes.", &stats.prefix_hits),
        (
            "vllm:external_prefix_cache_hits_total",
            "Tokens found among prefixes in the host's memory.",
            &stats.host_hits,
        ),
        (
            "rolltape_kv_host_saved_tokens_total",
            "Tokens whose keys and values were copied to the host's memory.",
            &stats.host_saved,
        ),
        (
            "vllm:num_preemptions_total",
            "Sequences that had to be computed again.",
            &stats.preemptions,
        ),
        (
            "vllm:spec_decode_num_drafts_total",
            "Steps of a sequence in which tokens were guessed.",
            &stats.drafts,
        ),
        (
            "vllm:spec_decode_num_draft_tokens_total",
            "Tokens that were guessed.",
            &stats.draft_tokens,
        ),
        (
            "vllm:spec_decode_num_accepted_tokens_total",
            "Guessed tokens that were right.",
            &stats.accepted_tokens,
        ),
    ];

    for (name, help, counter) in counters {
        page.counter(name, help, count(counter));
    }
}

/// Adds the times and lengths of requests.
fn add_histograms(page: &mut MetricsPage, stats: &RequestStats) {
    let histograms = [
        (
            "vllm:time_to_first_token_seconds",
            "Seconds from the arrival to the first token.",
            &stats.first_token,
        ),
        (
            "vllm:inter_token_latency_seconds",
            "Seconds from one token to the next.",
            &stats.between_tokens,
        ),
        ("vllm:e2e_request_latency_seconds", "Seconds from the arrival to the end.", &stats.whole),
        ("vllm:request_queue_time_seconds", "Seconds in the queue.", &stats.queue),
        (
            "vllm:request_prefill_time_seconds",
            "Seconds from the start to the first token.",
            &stats.prefill,
        ),
        (
            "vllm:request_decode_time_seconds",
            "Seconds from the first token to the last.",
            &stats.decode,
        ),
        ("vllm:request_prompt_tokens", "Tokens of a prompt.", &stats.prompt_tokens),
        ("vllm:request_generation_tokens", "Tokens of a reply.", &stats.generated_tokens),
    ];

    for (name, help, histogram) in histograms {
        page.histogram(name, help, histogram);
    }
}

/// Adds the metrics of weights, pauses and sleep.
fn add_status(page: &mut MetricsPage, state: &ServerState) {
    let EngineStatus { version, paused, pauses, asleep, weights, .. } = state.engine.status();
    let loaded = weights != WeightState::Absent;
    // As in vLLM there is a sample for each state; the one of the present state is 1.
    page.labeled(
        MetricType::GAUGE,
        "vllm:engine_sleep_state",
        "1 for the state in which the engine is.",
        [
            ("awake", !asleep.any()),
            ("weights_offloaded", asleep.weights && loaded),
            ("discard_all", asleep.any() && !loaded),
        ]
        .map(|(name, is_state)| MetricSample::labeled("sleep_state", name, flag(is_state))),
    );

    let checksum = state.updates.checksum_of(&version).unwrap_or_default();
    page.labeled(
        MetricType::GAUGE,
        "rolltape_weight_version_info",
        "1 for the label and checksum of the weights that serve.",
        [MetricSample {
            labels: vec![label_pair("version", &version), label_pair("checksum", &checksum)],
            value: 1.0,
        }],
    );

    let is_paused = flag(paused.is_some());
    page.gauge("rolltape_paused", "1 while generation is paused.", is_paused);
    page.counter("rolltape_pauses_total", "Pauses, those of sleep included.", pauses.count as f64);
    let seconds = pauses.seconds(Instant::now());
    let help = "Seconds of all pauses, the one that lasts included.";
    page.counter("rolltape_paused_seconds_total", help, seconds);
}

/// Adds the metrics of weight updates.
fn add_updates(page: &mut MetricsPage, stats: &UpdateStats) {
    page.labeled(
        MetricType::COUNTER,
        "rolltape_weight_updates_total",
        "Updates of the weights, by outcome.",
        [
            ("exchanged", &stats.exchanged),
            ("relabeled", &stats.relabeled),
            ("repeated", &stats.repeated),
            ("refused", &stats.refused),
            ("failed", &stats.failed),
        ]
        .map(|(outcome, counter)| MetricSample::labeled("outcome", outcome, count(counter))),
    );
    let seconds = stats.exchange_us.load(Ordering::Relaxed) as f64 / 1e6;
    let help = "Seconds that generation stood still while weights were exchanged.";
    page.counter("rolltape_weight_exchange_seconds_total", help, seconds);
}

fn count(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// A value of a metric, with the labels that tell it from the others.
struct MetricSample {
    labels: Vec<LabelPair>,
    value: f64,
}

impl MetricSample {
    fn labeled(name: &str, label: &str, value: f64) -> MetricSample {
        MetricSample { labels: vec![label_pair(name, label)], value }
    }
}

/// The metrics of a page, in their order.
struct MetricsPage<'a> {
    /// The value of the label `model_name`, which every sample has.
    model: &'a str,
    families: Vec<MetricFamily>,
}

impl MetricsPage<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.labeled(MetricType::GAUGE, name, help, [MetricSample { labels: Vec::new(), value }]);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.labeled(MetricType::COUNTER, name, help, [MetricSample { labels: Vec::new(), value }]);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let cumulative = histogram.cumulative();
        let buckets = histogram.bounds.iter().zip(&cumulative).map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(*count);
            bucket
        });
        let mut values = prometheus::proto::Histogram::default();
        values.set_bucket(buckets.collect());
        values.set_sample_count(cumulative.last().copied().unwrap_or_default());
        values.set_sample_sum(histogram.sum());

        let mut metric = Metric::default();
        metric.set_label(self.common_labels());
        metric.set_histogram(values);
        let mut family = family(MetricType::HISTOGRAM, name, help);
        family.mut_metric().push(metric);
        self.families.push(family);
    }

    fn common_labels(&self) -> Vec<LabelPair> {
        vec![label_pair("engine", "0"), label_pair("model_name", self.model)]
    }

    /// Adds a metric with the given samples.
    fn labeled<const N: usize>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        samples: [MetricSample; N],
    ) {
        let mut family = family(kind, name, help);
        for MetricSample { labels, value } in samples {
            let mut metric = Metric::default();
            metric.set_label(self.common_labels().into_iter().chain(labels).collect());
            match kind {
                MetricType::COUNTER => metric.set_counter(counter_of(value)),
                _ => metric.set_gauge(gauge_of(value)),
            }
            family.mut_metric().push(metric);
        }
        self.families.push(family);
    }
}

fn family(kind: MetricType, name: &str, help: &str) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family
}

fn counter_of(value: f64) -> Counter {
    let mut counter = Counter::default();
    counter.set_value(value);
    counter
}

fn gauge_of(value: f64) -> Gauge {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    gauge
}

fn label_pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}
