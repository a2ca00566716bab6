//! `--otlp-endpoint`.

use hyper::Uri;

/// The destination of spans.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct TelemetryArgs {
    /// OpenTelemetry collector for a span of each generation
    ///
    /// Such as http://127.0.0.1:4318. OTEL_EXPORTER_OTLP_HEADERS may hold a key for it.
    #[arg(long, value_name = "URL", value_parser = traces_url, env = "ROLLTAPE_OTLP_ENDPOINT")]
    pub(crate) otlp_endpoint: Option<Uri>,
}

/// The path of OTLP over HTTP for spans.
const TRACES_PATH: &str = "/v1/traces";

/// The URL for spans of a collector's URL, which may have the path for spans already.
fn traces_url(text: &str) -> Result<Uri, String> {
    let base = text.trim_end_matches('/').trim_end_matches(TRACES_PATH);
    let url: Uri = format!("{base}{TRACES_PATH}").parse().map_err(|_| not_a_url(text))?;
    match url.scheme_str() {
        Some("http" | "https") => Ok(url),
        _ => Err(not_a_url(text)),
    }
}

fn not_a_url(text: &str) -> String {
    format!("`{text}` is not a URL such as http://127.0.0.1:4318")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_added_once() {
        for text in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(traces_url(text).unwrap(), "http://c:4318/v1/traces");
        }
        assert_eq!(traces_url("https://c/api/otel").unwrap(), "https://c/api/otel/v1/traces");
        for text in ["c:4318", "grpc://c:4317", "http://"] {
            assert!(traces_url(text).unwrap_err().contains("is not a URL"), "{text}");
        }
    }
}
