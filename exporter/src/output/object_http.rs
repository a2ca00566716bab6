//! The HTTP client of object stores, with the client and the TLS library that the rest of rolltape
//! uses.

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

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of one request, which may send a part of a file over a slow line.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Makes clients.
#[derive(Debug)]
pub(crate) struct ObjectConnector;

impl HttpConnector for ObjectConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let tls = tls_config().map_err(|source| object_store::Error::Generic {
            store: "HTTP",
            source: source.into(),
        })?;
        let mut tcp = Tcp::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.enforce_http(false);

        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = match options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() {
            Some("true") => builder.https_or_http(),
            _ => builder.https_only(),
        };
        let pool = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector.enable_http1().wrap_connector(tcp));
        Ok(HttpClient::new(ConnectionPool(pool)))
    }
}

/// Trusts the system's root certificates, and where there are none, Mozilla's.
fn tls_config() -> Result<ClientConfig, rustls::Error> {
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
struct ConnectionPool(Client<HttpsConnector<Tcp>, HttpRequestBody>);

#[async_trait]
impl HttpService for ConnectionPool {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = tokio::time::timeout(REQUEST_TIMEOUT, self.0.request(request))
            .await
            .map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?
            .map_err(|error| {
                let kind = match error.is_connect() {
                    true => HttpErrorKind::Connect,
                    false => HttpErrorKind::Request,
                };
                HttpError::new(kind, error)
            })?;
        Ok(response.map(|body| {
            HttpResponseBody::new(
                body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error)),
            )
        }))
    }
}
