//! Certificates that are made for one test.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate authority that nobody else knows.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Default for Authority {
    fn default() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key is made");
        let pem = params.self_signed(&key).expect("a certificate is made").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }
}

impl Authority {
    /// Its certificate, in PEM.
    pub fn pem(&self) -> &[u8] {
        self.pem.as_bytes()
    }

    /// Chain and key in PEM of a server on loopback.
    pub fn server(&self) -> (String, String) {
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let params = CertificateParams::new(names).expect("good names");
        let key = KeyPair::generate().expect("a key is made");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate is made");
        (signed.pem(), key.serialize_pem())
    }

    /// A server on loopback that agrees to one of `protocols`.
    pub(crate) fn server_config(&self, protocols: &[&str]) -> Arc<ServerConfig> {
        let (chain, key) = self.server();
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
        let chain = chain.collect::<Result<_, _>>().expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("the key belongs to the certificate");
        config.alpn_protocols = names(protocols);
        Arc::new(config)
    }

    /// A client that trusts this authority alone.
    pub(crate) fn client_config(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem()).expect("PEM")).expect("a CA");
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = names(protocols);
        Arc::new(config)
    }
}

fn names(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.as_bytes().to_vec()).collect()
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
