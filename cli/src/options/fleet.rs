//! Options on several upstreams, and on a router behind this proxy.

use std::time::Duration;

use hyper::header::HeaderName;
use proxy::Config;

use super::parse::{header, seconds};

/// Options on where a call goes.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Fleet")]
pub(super) struct FleetArgs {
    /// Seconds to retry a call after a 429 or 503 [default: 0]
    ///
    /// The call waits and is sent again. After this time the agent gets the upstream's answer.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_ABSORB_429_FOR")]
    absorb_429_for: Option<u64>,
    /// Seconds before a silent upstream counts as stalled [default: 60]
    ///
    /// Of several upstreams, one gets no new threads at which calls of three episodes wait so long,
    /// and three times as long as any call that was answered in the last ten minutes. 0 to give it
    /// some all the same.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_STALLED_AFTER")]
    stalled_after: Option<u64>,
    /// Header in which the upstream finds a call's thread
    ///
    /// Such as x-session-id, for a router behind rolltape that keeps a thread on one server.
    #[arg(long, value_name = "NAME", value_parser = header, env = "ROLLTAPE_SESSION_HEADER")]
    session_header: Option<HeaderName>,
    /// Send calls to upstreams with older weights, too
    ///
    /// By default, of several upstreams only those with the newest weights get calls: the newest
    /// that were pushed through the control listener.
    #[arg(long, env = "ROLLTAPE_NO_VERSION_FENCE")]
    no_version_fence: bool,
}

impl FleetArgs {
    /// Sets the fleet's part of `config`.
    pub(super) fn apply(&self, config: &mut Config) {
        config.fleet.session_header.clone_from(&self.session_header);
        config.fleet.absorb_for = Duration::from_secs(self.absorb_429_for.unwrap_or(0));
        if let Some(seconds) = self.stalled_after {
            config.fleet.stalled_after = Duration::from_secs(seconds);
        }
        config.fleet.fences_versions = !self.no_version_fence;
    }
}
