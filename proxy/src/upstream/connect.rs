//! Connections to the upstream, and TLS of both sides.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::body::outgoing::OutgoingBody;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;
use tower_service::Service;

use crate::bounds::{CONNECT_WAIT, UPSTREAM_IDLE_WAIT};

/// A setting that cannot be used.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub struct InvalidSetting(pub(crate) &'static str);

type Connector = HttpsConnector<HttpConnector<Resolver>>;

/// A pool of connections.
pub(crate) type Connections = Client<Connector, OutgoingBody>;

/// A pool of connections for calls. All go to `address` if there is one.
pub(crate) fn client(tls: &ClientConfig, address: Option<IpAddr>, is_http2: bool) -> Connections {
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp_connector(address));
    pool(https, is_http2)
}

/// The address of a host: the one that was chosen, or those that the system finds.
#[derive(Debug, Clone)]
pub(crate) enum Resolver {
    Chosen(IpAddr),
    System(GaiResolver),
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Chosen(_) => Poll::Ready(Ok(())),
            Self::System(system) => system.poll_ready(cx),
        }
    }

    fn call(&mut self, name: Name) -> Self::Future {
        match self {
            // The port is that of the address that is called.
            Self::Chosen(address) => {
                let chosen = vec![SocketAddr::new(*address, 0)].into_iter();
                Box::pin(async move { Ok(chosen) })
            }
            Self::System(system) => {
                let found = system.call(name);
                Box::pin(async move { Ok(found.await?.collect::<Vec<_>>().into_iter()) })
            }
        }
    }
}

fn tcp_connector(address: Option<IpAddr>) -> HttpConnector<Resolver> {
    let resolver = address.map_or_else(|| Resolver::System(GaiResolver::new()), Resolver::Chosen);
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    // With Nagle's algorithm the second small write of a request waits 40 ms for a delayed ACK.
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_WAIT));
    tcp.enforce_http(false);
    tcp
}

fn pool(https: Connector, http2_only: bool) -> Connections {
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
