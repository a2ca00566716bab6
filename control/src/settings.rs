//! Settings of a control listener.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use episode::RewardRange;
use http::bounds::{BODY_WAIT, HEAD_WAIT, IDLE_WAIT, PEER_PART};
use http::server::activity::AgentWaits;
use http::server::listen::{ConnectionBounds, descriptors_kept};
use http::tls::{InvalidTls, server_config};
use store::Location;
use tokio_rustls::rustls::ServerConfig;
use viewer::Viewer;

use crate::bounds::{CONTROL_CONNECTIONS_MAX, CONTROL_STALL_WAIT};
use crate::metrics::ExportCounts;
use crate::metrics::values::MetricsReader;

/// Settings of a control listener.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The reader of the recording.
    pub viewer: Viewer,
    /// The token that requests must carry, if any.
    pub token: Option<String>,
    /// Certificate and key of the listener, if it speaks TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// The store that takes comments, where nothing else is written.
    pub comments_to: Option<Location>,
    /// Ranges of rewards by their names; the value of another name may be any number.
    pub reward_ranges: Vec<RewardRange>,
    /// Names by which the listener may be addressed, besides loopback and its own address.
    pub hosts: Vec<String>,
    /// Longest time of a head.
    pub head_wait: Duration,
    /// Longest wait for a piece of a body.
    pub body_wait: Duration,
    /// Longest time without a request.
    pub idle_wait: Duration,
    /// File descriptors that the process may have, if that is known.
    pub descriptors_max: Option<usize>,
    /// Counts the items of the feed whose rows were made.
    pub feed_items: Arc<AtomicUsize>,
    /// Reads the metrics of the recorder whose listener has these settings.
    pub metrics: MetricsReader,
    /// Counts of what a collector of OpenTelemetry did not get, if there is one.
    pub exports: Option<Arc<ExportCounts>>,
}

impl Settings {
    /// The defaults: an open listener.
    pub fn new(viewer: Viewer) -> Self {
        Self {
            viewer,
            token: None,
            tls: None,
            comments_to: None,
            reward_ranges: Vec::new(),
            hosts: Vec::new(),
            head_wait: HEAD_WAIT,
            body_wait: BODY_WAIT,
            idle_wait: IDLE_WAIT,
            descriptors_max: None,
            feed_items: Arc::default(),
            metrics: MetricsReader::default(),
            exports: None,
        }
    }

    /// Has the listener speak TLS, with a certificate chain and its key in PEM.
    ///
    /// # Errors
    /// [`InvalidTls`] if they are not PEM or do not belong together.
    pub fn set_tls(&mut self, chain: &[u8], key: &[u8]) -> Result<(), InvalidTls> {
        self.tls = Some(server_config(chain, key)?);
        Ok(())
    }

    /// The bounds of connections: half of the descriptors that are not for calls.
    pub(crate) fn connection_bounds(&self) -> ConnectionBounds {
        let connections_max =
            CONTROL_CONNECTIONS_MAX.min(descriptors_kept(self.descriptors_max) / 2);
        ConnectionBounds {
            connections_max,
            per_peer_max: connections_max.div_ceil(PEER_PART),
            waits: AgentWaits {
                head: self.head_wait,
                idle: self.idle_wait,
                stall: CONTROL_STALL_WAIT,
            },
        }
    }
}
