//! How object stores are spoken to: the HTTP client and the TLS that the rest of rolltape has.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::{ClientConfig, RootCertStore};

const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// One request: a part of a file, on a slow line.
const REQUEST_WAIT: Duration = Duration::from_secs(300);

/// Makes clients.
#[derive(Debug)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp);
        let tls = tls().map_err(|source| object_store::Error::Generic {
            store: "HTTP",
            source: source.into(),
        })?;
        let mut tcp = Tcp::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_WAIT));
        tcp.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls);
        let https = match plain.as_deref() {
            Some("true") => https.https_or_http(),
            _ => https.https_only(),
        };
        let pool = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(https.enable_http1().wrap_connector(tcp));
        Ok(HttpClient::new(Pool(pool)))
    }
}

/// Trust in the system's roots, and where there are none, in Mozilla's.
fn tls() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// A pool of connections.
#[derive(Debug)]
struct Pool(Client<HttpsConnector<Tcp>, HttpRequestBody>);

#[async_trait]
impl HttpService for Pool {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answered = tokio::time::timeout(REQUEST_WAIT, self.0.request(request)).await;
        let response = answered
            .map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?
            .map_err(|error| {
                let refused = error.is_connect();
                let kind = if refused { HttpErrorKind::Connect } else { HttpErrorKind::Request };
                HttpError::new(kind, error)
            })?;
        let broken = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(broken))))
    }
}
