//! `/metrics`: the engine's counts in the text form of Prometheus.
//!
//! Names and labels are vLLM's, so that its dashboards and autoscalers read this engine too.
//! What vLLM has and this engine does not measure is left out rather than shown as zero.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::submit::State;

/// The content type of the text form.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is counted.
pub(super) fn render(state: &State) -> String {
    let stats = &state.stats;
    let mut page = Page { text: String::new(), model: escaped(&state.card.name) };
    let gauges: [(&str, &str, &AtomicUsize); 2] = [
        ("num_requests_running", "Sequences that run.", &stats.running),
        ("num_requests_waiting", "Choices that wait for a place.", &stats.waiting),
    ];
    for (name, help, gauge) in gauges {
        page.metric(name, "gauge", help);
        page.sample(name, "", gauge.load(Ordering::Relaxed) as f64);
    }
    let used = stats.pages_used.load(Ordering::Relaxed) as f64;
    let total = stats.pages_total.load(Ordering::Relaxed).max(1) as f64;
    page.metric("kv_cache_usage_perc", "gauge", "Part of the pages in use; 1 is all.");
    page.sample("kv_cache_usage_perc", "", used / total);
    let counters: [(&str, &str, &AtomicU64); 5] = [
        ("prompt_tokens", "Tokens of prompts.", &stats.prompt_tokens),
        ("generation_tokens", "Tokens that were sampled.", &stats.generated_tokens),
        ("prefix_cache_queries", "Tokens looked up among prefixes.", &stats.prefix_queries),
        ("prefix_cache_hits", "Tokens found among prefixes.", &stats.prefix_hits),
        ("num_preemptions", "Sequences that had to be computed again.", &stats.preemptions),
    ];
    for (name, help, counter) in counters {
        let name = format!("{name}_total");
        page.metric(&name, "counter", help);
        page.sample(&name, "", counter.load(Ordering::Relaxed) as f64);
    }
    let finished = [
        ("stop", &stats.stopped),
        ("length", &stats.cut),
        ("abort", &stats.aborted),
        ("error", &stats.failed),
    ];
    page.metric("request_success_total", "counter", "Replies that ended, by reason.");
    for (reason, counter) in finished {
        let label = format!(",finished_reason=\"{reason}\"");
        page.sample("request_success_total", &label, counter.load(Ordering::Relaxed) as f64);
    }
    page.text
}

struct Page {
    text: String,
    /// The value of the label that every sample has.
    model: String,
}

impl Page {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP vllm:{name} {help}"));
        self.line(format_args!("# TYPE vllm:{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let model = self.model.clone();
        let labels = format!("{{engine=\"0\",model_name=\"{model}\"{labels}}}");
        self.line(format_args!("vllm:{name}{labels} {value:?}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes any text");
    }
}

/// The value of a label between its quotation marks.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
