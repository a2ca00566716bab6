//! Numbers for monitoring, in the text format of Prometheus.

use std::fmt::{Display, Write};

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use store::ConsumerCounts;

use super::answers::{Answer, unread};
use super::feed::{age, dropped};
use crate::fault::whole;
use crate::open_call::now;
use crate::proxy::Proxy;
use crate::tee::ReplyBody;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics.
struct Page(String);

impl Page {
    /// A metric with its samples, each with labels as they are written.
    fn metric<V: Display>(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

/// All that is counted.
pub(super) async fn page(proxy: &Proxy) -> Result<Response<ReplyBody>, Answer> {
    let at = now();
    let mut snapshot = proxy.store().snapshot().await.map_err(unread)?;
    let consumers = snapshot.consumers(at).await.map_err(unread)?;
    let mut page = Page(String::new());
    calls(&mut page, proxy);
    feed(&mut page, &consumers, at);
    let mut reply = Response::new(whole(Bytes::from(page.0)));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    Ok(reply)
}

fn calls(page: &mut Page, proxy: &Proxy) {
    let bare = |value: u64| [(String::new(), value)];
    let (begun, in_flight, ended) = proxy.watch.counts();
    let (queued, queued_max) = proxy.store().queued();
    page.metric(("rolltape_calls_begun_total", "counter"), "Calls of agents.", bare(begun));
    let by_outcome = ended.iter().map(|(outcome, n)| (format!("{{outcome=\"{outcome}\"}}"), *n));
    page.metric(
        ("rolltape_calls_ended_total", "counter"),
        "Calls that have ended, by their outcome.",
        by_outcome,
    );
    page.metric(
        ("rolltape_calls_in_flight", "gauge"),
        "Calls under way.",
        [(String::new(), in_flight)],
    );
    page.metric(
        ("rolltape_store_queue_records", "gauge"),
        "Records that wait to be written.",
        bare(queued as u64),
    );
    page.metric(
        ("rolltape_store_queue_records_max", "gauge"),
        "Records that may wait to be written.",
        bare(queued_max as u64),
    );
}

fn feed(page: &mut Page, consumers: &[ConsumerCounts], at: i64) {
    // Names are ids: nothing in them needs to be escaped.
    let of = |counts: &ConsumerCounts| format!("{{consumer=\"{}\"}}", counts.consumer);
    let each = |value: &dyn Fn(&ConsumerCounts) -> f64| -> Vec<(String, f64)> {
        consumers.iter().map(|counts| (of(counts), value(counts))).collect()
    };
    let depth = each(&|counts| counts.depth as f64);
    page.metric(
        ("rolltape_feed_depth", "gauge"),
        "Finished attempts that are neither leased, acked nor dropped.",
        depth,
    );
    page.metric(
        ("rolltape_feed_oldest_age_seconds", "gauge"),
        "How long the oldest of them has been finished.",
        each(&|counts| age(counts, at)),
    );
    page.metric(
        ("rolltape_feed_leased", "gauge"),
        "Attempts that are leased.",
        each(&|counts| counts.leased as f64),
    );
    for what in ["delivered", "redelivered", "acked", "nacked"] {
        let name = format!("rolltape_feed_{what}_total");
        let value = |counts: &ConsumerCounts| *counts.tally.get(what).unwrap_or(&0) as f64;
        page.metric((&name, "counter"), &format!("Attempts {what}."), each(&value));
    }
    let why = |counts: &ConsumerCounts| {
        let name = counts.consumer.clone();
        let one = move |(why, count): (&str, u64)| {
            (format!("{{consumer=\"{name}\",reason=\"{why}\"}}"), count)
        };
        dropped(counts).map(one).collect::<Vec<_>>()
    };
    page.metric(
        ("rolltape_feed_dropped_total", "counter"),
        "Attempts dropped, by the reason.",
        consumers.iter().flat_map(why),
    );
}
