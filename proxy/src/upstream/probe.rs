//! The probe of an upstream's dialect.

use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use wire::Dialect;

use crate::bounds::{PROBE_WAIT, READY_PROBE_WAIT};
use crate::error::CallError;
use crate::upstream::client::UpstreamClient;
use crate::upstream::declined::{self, DeclinedQuestion};

/// The dialect of an upstream, once it is known.
#[derive(Debug)]
pub(crate) struct DialectProbe {
    client: Arc<UpstreamClient>,
    dialect: OnceCell<Dialect>,
    declined: DeclinedQuestion,
    wait: Duration,
}

/// The reason for which a probe does not tell the dialect.
enum DialectError {
    Failed(CallError),
    /// The upstream answered with an error status.
    Declined,
}

impl DialectProbe {
    /// A probe of what the user has not set.
    pub(super) fn new(client: &Arc<UpstreamClient>, set: Option<Dialect>) -> Self {
        let dialect = set.map_or_else(OnceCell::new, OnceCell::from);
        let declined = DeclinedQuestion::default();
        Self { client: Arc::clone(client), dialect, declined, wait: PROBE_WAIT }
    }

    /// The upstream's dialect; probed once, with our own key or the credentials of the first agent.
    /// An upstream that declines the probe is treated as `openai`. It is probed again by the next
    /// agent with other credentials, and by all after a while.
    pub(crate) async fn dialect(&self, agent: &HeaderMap) -> Result<Dialect, CallError> {
        // The timeout includes the wait for earlier callers, who probe one after another.
        let probe = self.dialect.get_or_try_init(|| self.probe(agent));
        match timeout(self.wait, probe).await {
            Ok(Ok(dialect)) => Ok(*dialect),
            Ok(Err(DialectError::Declined)) => Ok(Dialect::OpenAi),
            Ok(Err(DialectError::Failed(error))) => Err(error),
            Err(_) => Err(self.client.unreachable_because("no answer", "no answer")),
        }
    }

    /// Reads the dialect from the list of models, whose owner names the server.
    async fn probe(&self, agent: &HeaderMap) -> Result<Dialect, DialectError> {
        let nobody = HeaderMap::new();
        let agent = if self.client.has_key() { &nobody } else { agent };
        if self.declined.is_recent(agent) {
            return Err(DialectError::Declined);
        }

        let (status, models) =
            self.client.fetch("/v1/models", agent).await.map_err(DialectError::Failed)?;
        let dialect = match status.is_success() {
            true => wire::dialect_of_models(&models),
            // None of the servers with a dialect of their own answers in this form.
            false if wire::is_anthropic_error(&models) => Dialect::OpenAi,
            false => {
                if declined::is_lasting(status) {
                    self.declined.note(agent);
                }
                return Err(DialectError::Declined);
            }
        };
        let name = dialect.as_str();
        tracing::info!(upstream = %self.client.upstream, dialect = name, "upstream found");
        Ok(dialect)
    }

    /// Probes an upstream that is called with our own key, before anybody calls it.
    pub(crate) async fn probe_early(&self) {
        if self.client.has_key() && self.known().is_none() {
            let _ = timeout(READY_PROBE_WAIT, self.dialect(&HeaderMap::new())).await;
        }
    }

    /// The dialect, if it was probed or set.
    pub(crate) fn known(&self) -> Option<Dialect> {
        self.dialect.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use http::tls::client_config;
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn a_silent_upstream_keeps_no_call_waiting_behind_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}", listener.local_addr().unwrap());
        let (config, tls) = (Config::new(upstream.parse().unwrap()), client_config(&[]).unwrap());
        let client = UpstreamClient::new(&config, config.upstream.clone(), None, &tls).unwrap();
        let mut probe = DialectProbe::new(&Arc::new(client), None);
        probe.wait = Duration::from_secs(5);
        let (asked, agent) = (Instant::now(), HeaderMap::new());
        let (a, b, c, d, e) = tokio::join!(
            probe.dialect(&agent),
            probe.dialect(&agent),
            probe.dialect(&agent),
            probe.dialect(&agent),
            probe.dialect(&agent),
        );
        assert!(
            [a, b, c, d, e].iter().all(|told| matches!(told, Err(CallError::Unreachable { .. })))
        );
        assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    }
}
