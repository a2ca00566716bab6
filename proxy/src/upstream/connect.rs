//! Connections to the upstream, and TLS of both sides.

use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

use crate::bounds::{CONNECT_WAIT, UPSTREAM_IDLE_WAIT};
use crate::config::Config;
use crate::outgoing::OutgoingBody;

/// A setting that cannot be used.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub struct InvalidSetting(pub(crate) &'static str);

/// A pool of connections.
pub(crate) type Connections = Client<HttpsConnector<HttpConnector>, OutgoingBody>;

/// A pool of connections for calls.
pub(crate) fn client(config: &Config) -> Result<Connections, InvalidSetting> {
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(client_tls(&config.upstream_ca)?)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp_connector());
    Ok(pool(https, config.upstream_http2))
}

/// A pool of HTTP/1.1 connections, for upgrades.
pub(crate) fn http1_client(config: &Config) -> Result<Connections, InvalidSetting> {
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(client_tls(&config.upstream_ca)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp_connector());
    Ok(pool(https, false))
}

fn tcp_connector() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // With Nagle's algorithm the second small write of a request waits 40 ms for a delayed ACK.
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_WAIT));
    tcp.enforce_http(false);
    tcp
}

fn pool(https: HttpsConnector<HttpConnector>, http2_only: bool) -> Connections {
    Client::builder(TokioExecutor::new())
        .http1_preserve_header_case(true)
        .http2_only(http2_only)
        .pool_idle_timeout(UPSTREAM_IDLE_WAIT)
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .build(https)
}

/// The TLS configuration of a client. It trusts the certificates of the system, or Mozilla's if the
/// system has none, and those in `extra_pem`.
///
/// # Errors
/// [`InvalidSetting`] if `extra_pem` holds what is no certificate.
pub fn client_tls(extra_pem: &[u8]) -> Result<ClientConfig, InvalidSetting> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for certificate in CertificateDer::pem_slice_iter(extra_pem) {
        let certificate =
            certificate.map_err(|_| InvalidSetting("the upstream's CA file is not PEM"))?;
        roots
            .add(certificate)
            .map_err(|_| InvalidSetting("the upstream's CA is not a certificate"))?;
    }

    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|_| InvalidSetting("no TLS version is available"))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The TLS configuration of a listener, from a certificate chain and its key in PEM.
///
/// # Errors
/// [`InvalidSetting`] if they are not PEM or do not belong together.
pub fn server_tls(chain: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, InvalidSetting> {
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| InvalidSetting("the certificate is not PEM"))?;
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|_| InvalidSetting("the key is not PEM"))?;
    let provider = rustls::crypto::ring::default_provider();
    let mut config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|_| InvalidSetting("no TLS version is available"))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|_| InvalidSetting("the key does not belong to the certificate"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
