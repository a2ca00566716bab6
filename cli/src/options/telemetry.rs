//! `--otlp-endpoint`.

use hyper::Uri;

/// The destination of telemetry.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct TelemetryArgs {
    /// OpenTelemetry collector for spans, metrics and logs
    ///
    /// Such as http://127.0.0.1:4318. OTEL_EXPORTER_OTLP_HEADERS may hold a key for it;
    /// OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER and OTEL_LOGS_EXPORTER=none leave a signal out.
    #[arg(long, value_name = "URL", value_parser = endpoint, env = "ROLLTAPE_OTLP_ENDPOINT")]
    pub(crate) otlp_endpoint: Option<OtlpEndpoint>,
}

/// The URLs at which a collector takes each signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtlpEndpoint {
    pub(crate) traces: Uri,
    pub(crate) metrics: Uri,
    pub(crate) logs: Uri,
}

/// The paths of OTLP over HTTP: spans, metrics, logs.
const PATHS: [&str; 3] = ["/v1/traces", "/v1/metrics", "/v1/logs"];

/// The URLs of a collector's URL, which may have the path of a signal already.
fn endpoint(text: &str) -> Result<OtlpEndpoint, String> {
    let base = text.trim_end_matches('/');
    let base = PATHS.iter().find_map(|path| base.strip_suffix(path)).unwrap_or(base);
    let url = |path: &str| -> Result<Uri, String> {
        let url: Uri = format!("{base}{path}").parse().map_err(|_| not_a_url(text))?;
        match url.scheme_str() {
            Some("http" | "https") => Ok(url),
            _ => Err(not_a_url(text)),
        }
    };
    let [traces, metrics, logs] = PATHS.map(url);
    Ok(OtlpEndpoint { traces: traces?, metrics: metrics?, logs: logs? })
}

fn not_a_url(text: &str) -> String {
    format!("`{text}` is not a URL such as http://127.0.0.1:4318")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_the_signals_are_added_once() {
        for text in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            let found = endpoint(text).unwrap();
            assert_eq!(found.traces, "http://c:4318/v1/traces");
            assert_eq!(found.metrics, "http://c:4318/v1/metrics");
            assert_eq!(found.logs, "http://c:4318/v1/logs");
        }
        let found = endpoint("https://c/api/otel").unwrap();
        assert_eq!(found.logs, "https://c/api/otel/v1/logs");
        for text in ["c:4318", "grpc://c:4317", "http://"] {
            assert!(endpoint(text).unwrap_err().contains("is not a URL"), "{text}");
        }
    }
}
