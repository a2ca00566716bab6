//! Connections to the upstream: TLS, HTTP versions, keep-alive.

use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

use crate::config::Config;
use crate::outgoing::Outgoing;

const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Servers close idle connections after five seconds (uvicorn) or more. Ours are let go of sooner,
/// so that no call meets one that is being closed.
const IDLE_WAIT: Duration = Duration::from_secs(4);

/// A setting that cannot be used.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub struct BadSetting(pub(crate) &'static str);

/// A pool of connections.
pub(crate) type Connections = Client<HttpsConnector<HttpConnector>, Outgoing>;

/// The pool that `config` asks for.
pub(crate) fn client(config: &Config) -> Result<Connections, BadSetting> {
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls(&config.upstream_ca)?)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp());
    Ok(pool(https, config.upstream_http2))
}

/// A pool for HTTP/1.1 alone.
pub(crate) fn http1_client(config: &Config) -> Result<Connections, BadSetting> {
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls(&config.upstream_ca)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp());
    Ok(pool(https, false))
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // Without it the second small write of a request waits for the peer's delayed ACK: 40 ms.
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_WAIT));
    tcp.enforce_http(false);
    tcp
}

fn pool(https: HttpsConnector<HttpConnector>, http2: bool) -> Connections {
    Client::builder(TokioExecutor::new())
        .http1_preserve_header_case(true)
        .http2_only(http2)
        .pool_idle_timeout(IDLE_WAIT)
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .build(https)
}

/// Trust in the system's roots, in those of `more`, and where the system has none, in Mozilla's.
fn tls(more: &[u8]) -> Result<ClientConfig, BadSetting> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for certificate in CertificateDer::pem_slice_iter(more) {
        let certificate =
            certificate.map_err(|_| BadSetting("the upstream's CA file is not PEM"))?;
        roots.add(certificate).map_err(|_| BadSetting("the upstream's CA is no certificate"))?;
    }
    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|_| BadSetting("no TLS version is left"))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// What a listener needs to speak TLS, from a certificate chain and its key in PEM.
///
/// # Errors
/// [`BadSetting`] when they are not PEM or do not belong together.
pub fn server_tls(chain: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, BadSetting> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|_| BadSetting("the certificate is not PEM"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| BadSetting("the key is not PEM"))?;
    let provider = rustls::crypto::ring::default_provider();
    let mut config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|_| BadSetting("no TLS version is left"))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|_| BadSetting("the key is not the certificate's"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
