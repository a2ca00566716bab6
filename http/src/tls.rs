//! TLS of both sides: what a client trusts, and the certificate of a listener.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

/// A certificate or a key that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvalidTls {
    /// A client's further roots are not in PEM.
    #[error("the CA file is not PEM")]
    RootNotPem,
    /// One of a client's further roots is no certificate.
    #[error("a CA of the file is not a certificate")]
    RootNotCertificate,
    /// A listener's chain is not in PEM.
    #[error("the certificate is not PEM")]
    ChainNotPem,
    /// A listener's key is not in PEM.
    #[error("the key is not PEM")]
    KeyNotPem,
    /// A listener's key is that of another certificate.
    #[error("the key does not belong to the certificate")]
    KeyMismatch,
    /// The library offers no version.
    #[error("no TLS version is available")]
    NoVersion,
}

/// The TLS configuration of a client. It trusts the certificates of the system, or Mozilla's if the
/// system has none, and those in `extra_pem`.
///
/// # Errors
/// [`InvalidTls`] if `extra_pem` holds what is no certificate.
pub fn client_config(extra_pem: &[u8]) -> Result<ClientConfig, InvalidTls> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for certificate in CertificateDer::pem_slice_iter(extra_pem) {
        let certificate = certificate.map_err(|_| InvalidTls::RootNotPem)?;
        roots.add(certificate).map_err(|_| InvalidTls::RootNotCertificate)?;
    }

    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|_| InvalidTls::NoVersion)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The TLS configuration of a listener, from a certificate chain and its key in PEM.
///
/// # Errors
/// [`InvalidTls`] if they are not PEM or do not belong together.
pub fn server_config(chain: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, InvalidTls> {
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| InvalidTls::ChainNotPem)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| InvalidTls::KeyNotPem)?;
    let provider = rustls::crypto::ring::default_provider();
    let mut config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|_| InvalidTls::NoVersion)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|_| InvalidTls::KeyMismatch)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
