//! Metrics as values.

use std::sync::{Arc, OnceLock, Weak};

use prometheus::proto::{Metric as PrometheusMetric, MetricFamily, MetricType};

use super::{MetricSources, MetricsError};

/// The start of the names of counters that count over the life of the store.
const OF_THE_STORE: &str = "rolltape_feed_";

/// A metric with all its points.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Its name on the page of metrics.
    pub name: String,
    /// A sentence that says what it is.
    pub help: String,
    /// The way in which its points change.
    pub kind: MetricKind,
    /// A point for each combination of labels.
    pub points: Vec<MetricPoint>,
}

/// The way in which the points of a metric change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// They count since the process began.
    Counter,
    /// They count over the life of the store.
    StoreCounter,
    /// They go up and down.
    Gauge,
}

/// A value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricPoint {
    /// Names and values of its labels.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: f64,
}

/// A reader of the metrics of one control listener. It does not keep the listener's recorder alive.
#[derive(Debug, Clone, Default)]
pub struct MetricsReader(Arc<OnceLock<Weak<MetricSources>>>);

impl MetricsReader {
    /// Has the reader read these sources from now on. The first ones stay.
    pub(crate) fn point_to(&self, sources: &Arc<MetricSources>) {
        let _ = self.0.set(Arc::downgrade(sources));
    }

    /// All metrics, as they are now; `None` if the listener does not serve.
    ///
    /// # Errors
    /// [`MetricsError`] if the store cannot be read.
    pub async fn read(&self) -> Result<Option<Vec<Metric>>, MetricsError> {
        let Some(sources) = self.0.get().and_then(Weak::upgrade) else { return Ok(None) };
        let families = sources.gathered().await?;
        Ok(Some(families.iter().map(metric).collect()))
    }
}

fn metric(family: &MetricFamily) -> Metric {
    let kind = match family.get_field_type() {
        MetricType::COUNTER if family.name().starts_with(OF_THE_STORE) => MetricKind::StoreCounter,
        MetricType::COUNTER => MetricKind::Counter,
        _ => MetricKind::Gauge,
    };
    Metric {
        name: family.name().to_owned(),
        help: family.help().to_owned(),
        kind,
        points: family.get_metric().iter().map(|one| point(one, kind)).collect(),
    }
}

fn point(metric: &PrometheusMetric, kind: MetricKind) -> MetricPoint {
    let pair =
        |label: &prometheus::proto::LabelPair| (label.name().to_owned(), label.value().to_owned());
    MetricPoint {
        labels: metric.get_label().iter().map(pair).collect(),
        value: match kind {
            MetricKind::Gauge => metric.get_gauge().get_value(),
            _ => metric.get_counter().get_value(),
        },
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};

    use super::*;

    #[test]
    fn a_value_has_the_name_the_labels_and_the_kind_of_the_page() {
        let registry = Registry::new();
        for (name, count) in [("rolltape_calls_total", 3), ("rolltape_feed_acked_total", 2)] {
            let counter = IntCounterVec::new(Opts::new(name, "Help."), &["by"]).unwrap();
            registry.register(Box::new(counter.clone())).unwrap();
            counter.with_label_values(&["x"]).inc_by(count);
        }
        let gauge = GaugeVec::new(Opts::new("rolltape_memory_bytes", "Help."), &[]).unwrap();
        registry.register(Box::new(gauge.clone())).unwrap();
        gauge.with_label_values::<&str>(&[]).set(0.5);

        let found: Vec<Metric> = registry.gather().iter().map(metric).collect();
        let told = |metric: &Metric| (metric.name.clone(), metric.kind, metric.points[0].value);
        assert_eq!(
            found.iter().map(told).collect::<Vec<_>>(),
            [
                ("rolltape_calls_total".to_owned(), MetricKind::Counter, 3.0),
                ("rolltape_feed_acked_total".to_owned(), MetricKind::StoreCounter, 2.0),
                ("rolltape_memory_bytes".to_owned(), MetricKind::Gauge, 0.5),
            ]
        );
        assert_eq!(found[0].points[0].labels, [("by".to_owned(), "x".to_owned())]);
        assert_eq!(found[0].help, "Help.");
    }
}
