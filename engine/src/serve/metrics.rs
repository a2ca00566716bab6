//! `/metrics`: the engine's counts in the text form of Prometheus.
//!
//! Names and labels are vLLM's where vLLM has them, so that its dashboards and autoscalers read
//! this engine too; what a trainer does to the engine has names of this one, `rolltape_...`.
//! What vLLM has and this engine does not measure is left out rather than shown as zero.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::submit::State;
use crate::control::Standing;
use crate::stats::UpdateStats;

/// The content type of the text form.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is counted.
pub(super) fn render(state: &State) -> String {
    let mut page = Page { text: String::new(), model: escaped(&state.card.name) };
    requests(&mut page, state);
    standing(&mut page, state);
    updates(&mut page, &state.stats.updates);
    page.text
}

/// Requests, tokens and pages.
fn requests(page: &mut Page, state: &State) {
    let stats = &state.stats;
    let gauges: [(&str, &str, &AtomicUsize); 2] = [
        ("vllm:num_requests_running", "Sequences that run.", &stats.running),
        ("vllm:num_requests_waiting", "Choices that wait for a place.", &stats.waiting),
    ];
    for (name, help, gauge) in gauges {
        page.gauge(name, help, gauge.load(Ordering::Relaxed) as f64);
    }
    let used = stats.pages_used.load(Ordering::Relaxed) as f64;
    let total = stats.pages_total.load(Ordering::Relaxed).max(1) as f64;
    page.gauge("vllm:kv_cache_usage_perc", "Part of the pages in use; 1 is all.", used / total);
    let counters: [(&str, &str, &AtomicU64); 5] = [
        ("vllm:prompt_tokens_total", "Tokens of prompts.", &stats.prompt_tokens),
        ("vllm:generation_tokens_total", "Tokens that were sampled.", &stats.generated_tokens),
        (
            "vllm:prefix_cache_queries_total",
            "Tokens looked up among prefixes.",
            &stats.prefix_queries,
        ),
        ("vllm:prefix_cache_hits_total", "Tokens found among prefixes.", &stats.prefix_hits),
        (
            "vllm:num_preemptions_total",
            "Sequences that had to be computed again.",
            &stats.preemptions,
        ),
    ];
    for (name, help, counter) in counters {
        page.counter(name, help, counter.load(Ordering::Relaxed) as f64);
    }
    let finished = [
        ("stop", &stats.stopped),
        ("length", &stats.cut),
        ("abort", &stats.aborted),
        ("error", &stats.failed),
    ];
    let name = "vllm:request_success_total";
    page.by(name, "Replies that ended, by reason.", "finished_reason", &finished);
}

/// Which weights serve, whether generation is paused, and what sleeps.
fn standing(page: &mut Page, state: &State) {
    let Standing { version, paused, pauses, asleep, loaded, .. } = state.gate.board.read();
    let states = [
        ("awake", !asleep.any()),
        ("weights_offloaded", asleep.weights && loaded),
        ("discard_all", asleep.any() && !loaded),
    ];
    let name = "vllm:engine_sleep_state";
    page.metric(name, "gauge", "1 for the state in which the engine is.");
    for (word, is) in states {
        page.sample(name, &format!(",sleep_state=\"{word}\""), f64::from(u8::from(is)));
    }
    let name = "rolltape_weight_version_info";
    let checksum = state.updates.checksum_of(&version).unwrap_or_default();
    let labels = format!(",version=\"{}\",checksum=\"{checksum}\"", escaped(&version));
    page.metric(name, "gauge", "1 for the label and checksum of the weights that serve.");
    page.sample(name, &labels, 1.0);
    let is_paused = f64::from(u8::from(paused.is_some()));
    page.gauge("rolltape_paused", "1 while generation is paused.", is_paused);
    page.counter("rolltape_pauses_total", "Pauses, those of sleep included.", pauses.count as f64);
    let seconds = pauses.seconds(Instant::now());
    let help = "Seconds of all pauses, the one that lasts included.";
    page.counter("rolltape_paused_seconds_total", help, seconds);
}

/// What became of weights that were pushed.
fn updates(page: &mut Page, stats: &UpdateStats) {
    let outcomes = [
        ("exchanged", &stats.exchanged),
        ("relabeled", &stats.relabeled),
        ("repeated", &stats.repeated),
        ("refused", &stats.refused),
        ("failed", &stats.failed),
    ];
    let name = "rolltape_weight_updates_total";
    page.by(name, "Updates of the weights, by what became of them.", "outcome", &outcomes);
    let seconds = stats.exchange_us.load(Ordering::Relaxed) as f64 / 1e6;
    let help = "Seconds that generation stood still while weights were exchanged.";
    page.counter("rolltape_weight_exchange_seconds_total", help, seconds);
}

struct Page {
    text: String,
    /// The value of the label that every sample has.
    model: String,
}

impl Page {
    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.metric(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.metric(name, "counter", help);
        self.sample(name, "", value);
    }

    /// A counter for each value of a label.
    fn by(&mut self, name: &str, help: &str, label: &str, counters: &[(&str, &AtomicU64)]) {
        self.metric(name, "counter", help);
        for (value, counter) in counters {
            let count = counter.load(Ordering::Relaxed) as f64;
            self.sample(name, &format!(",{label}=\"{value}\""), count);
        }
    }

    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let model = self.model.clone();
        let labels = format!("{{engine=\"0\",model_name=\"{model}\"{labels}}}");
        self.line(format_args!("{name}{labels} {value:?}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes any text");
    }
}

/// The value of a label between its quotation marks.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
