//! An inference server, as the proxy meets it.

use std::net::IpAddr;
use std::sync::Arc;

use http::tls;
use rustls::ClientConfig;
use wire::Dialect;

use crate::config::address::Upstream;
use crate::config::{Config, InvalidSetting};
use crate::upstream::client::UpstreamClient;
use crate::upstream::exchange::Exchange;
use crate::upstream::lookups::Lookups;
use crate::upstream::probe::DialectProbe;

/// An inference server.
#[derive(Debug)]
pub(crate) struct InferenceServer {
    /// Single requests, such as those of the control listener.
    pub(crate) client: Arc<UpstreamClient>,
    pub(crate) probe: DialectProbe,
    pub(crate) lookups: Arc<Lookups>,
    pub(crate) exchange: Exchange,
}

/// A server, as it is known before it is asked.
#[derive(Debug)]
pub(crate) struct ServerSpec {
    pub(crate) upstream: Upstream,
    pub(crate) dialect: Option<Dialect>,
    /// The one of the host's addresses that is called, if the host has several.
    pub(crate) address: Option<IpAddr>,
}

impl InferenceServer {
    /// The one upstream of a configuration, without connections yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] if a certificate or the key cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Self, InvalidSetting> {
        let upstream = config.upstream.clone();
        let spec = ServerSpec { upstream, dialect: config.dialect, address: None };
        Self::from_spec(config, spec, &tls::client_config(&config.upstream_ca)?)
    }

    /// The server of `spec`, without connections yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] if its address or the key cannot be used.
    pub(crate) fn from_spec(
        config: &Config,
        spec: ServerSpec,
        tls: &ClientConfig,
    ) -> Result<Self, InvalidSetting> {
        let ServerSpec { upstream, dialect, address } = spec;
        let client = Arc::new(UpstreamClient::new(config, upstream, address, tls)?);
        let lookups = Arc::new(Lookups::new(&client));
        Ok(Self {
            probe: DialectProbe::new(&client, dialect),
            exchange: Exchange::new(&client, &lookups, config.request_bytes_max),
            lookups,
            client,
        })
    }
}
