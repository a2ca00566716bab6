//! The metrics of the control listener's page, sent at an interval.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{ExportCounts, Metric, MetricKind, MetricPoint, MetricsReader};
use http::clock::now;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric as OtlpMetric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::attributes::{Attributes, SCHEMA_URL, scope};
use super::collector::{Complaint, OtlpCollector, Sent};

/// The parts that the task works with.
pub(super) struct MetricsSender {
    reader: MetricsReader,
    every: Duration,
    collector: OtlpCollector,
    resource: Resource,
    counts: Arc<ExportCounts>,
    complaint: Complaint,
    /// Start of the process, in nanoseconds since 1970.
    started_ns: u64,
}

/// The times at which points were read and counters began, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Times {
    started_ns: u64,
    now_ns: u64,
}

impl MetricsSender {
    /// Sends what `reader` reads, `every` so often.
    pub(super) fn new(
        (reader, every): (MetricsReader, Duration),
        collector: OtlpCollector,
        resource: Resource,
        counts: &Arc<ExportCounts>,
    ) -> Self {
        let (counts, complaint) = (Arc::clone(counts), Complaint::default());
        Self { reader, every, collector, resource, counts, complaint, started_ns: now_ns() }
    }

    /// Sends until `stopped` resolves, then once more.
    pub(super) async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let stops = tokio::select! {
                () = sleep(self.every) => false,
                _ = &mut stopped => true,
            };
            self.send().await;
            if stops {
                return;
            }
        }
    }

    /// Sends the metrics once. What the collector does not take is not sent again: the next values
    /// count it, too.
    async fn send(&mut self) {
        let metrics = match self.reader.read().await {
            Ok(Some(metrics)) => metrics,
            Ok(None) => return,
            Err(error) => return self.complaint.make("metrics", error.to_string()),
        };
        let count = metrics.iter().map(|metric| metric.points.len() as u64).sum();
        let times = Times { started_ns: self.started_ns, now_ns: now_ns() };
        let request = request(&self.resource, metrics, times);

        let (why, lost) = match self.collector.send::<ExportMetricsServiceResponse>(&request).await
        {
            Sent::Taken => return self.complaint.end(),
            Sent::Refused { why, lost } => (why, lost.unwrap_or(count)),
            Sent::Failed(why) => (why, count),
        };
        self.counts.metrics.fetch_add(lost, Ordering::Relaxed);
        self.complaint.make("metrics", why);
    }
}

fn now_ns() -> u64 {
    now().unsigned_abs() * 1_000
}

/// The request that carries these metrics.
fn request(resource: &Resource, metrics: Vec<Metric>, times: Times) -> ExportMetricsServiceRequest {
    let scoped = ScopeMetrics {
        scope: Some(scope()),
        metrics: metrics.into_iter().map(|metric| otlp(metric, times)).collect(),
        schema_url: SCHEMA_URL.to_owned(),
    };
    let of_resource = ResourceMetrics {
        resource: Some(resource.clone()),
        scope_metrics: vec![scoped],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }
}

/// A metric under the name that it has for Prometheus. It has no unit: a collector that writes for
/// Prometheus would add it to the name a second time.
fn otlp(metric: Metric, times: Times) -> OtlpMetric {
    let Metric { name, help, kind, points } = metric;
    // The start of a counter that is older than the process is not known.
    let start = if kind == MetricKind::Counter { times.started_ns } else { 0 };
    let data_points = points.into_iter().map(|one| point(one, kind, start, times.now_ns)).collect();
    let data = match kind {
        MetricKind::Gauge => Data::Gauge(Gauge { data_points }),
        MetricKind::Counter | MetricKind::StoreCounter => Data::Sum(Sum {
            data_points,
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic: true,
        }),
    };
    OtlpMetric { name, description: help, data: Some(data), ..OtlpMetric::default() }
}

fn point(point: MetricPoint, kind: MetricKind, start: u64, at: u64) -> NumberDataPoint {
    let mut attributes = Attributes::default();
    for (name, value) in &point.labels {
        attributes = attributes.text(name, value.as_str());
    }
    let value = match kind {
        MetricKind::Gauge => Value::AsDouble(point.value),
        MetricKind::Counter | MetricKind::StoreCounter => Value::AsInt(point.value as i64),
    };
    NumberDataPoint {
        attributes: attributes.0,
        start_time_unix_nano: start,
        time_unix_nano: at,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(kind: MetricKind, value: f64) -> Data {
        let points = vec![MetricPoint { labels: vec![("a".into(), "b".into())], value }];
        let metric = Metric { name: "n".into(), help: "h".into(), kind, points };
        otlp(metric, Times { started_ns: 5, now_ns: 9 }).data.unwrap()
    }

    #[test]
    fn a_counter_is_a_cumulative_sum_since_its_start() {
        for (kind, start) in [(MetricKind::Counter, 5), (MetricKind::StoreCounter, 0)] {
            let Data::Sum(sum) = sent(kind, 7.0) else { panic!("{kind:?} is no sum") };
            assert!(sum.is_monotonic);
            assert_eq!(sum.aggregation_temporality(), AggregationTemporality::Cumulative);
            let point = &sum.data_points[0];
            assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (start, 9));
            assert_eq!(point.value, Some(Value::AsInt(7)));
            assert_eq!(point.attributes[0].key, "a");
        }
    }

    #[test]
    fn a_gauge_is_a_gauge() {
        let Data::Gauge(gauge) = sent(MetricKind::Gauge, 0.5) else { panic!("no gauge") };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(0.5)));
    }
}
