//! The proxy's options, a struct for each topic of `--help`.

use proxy::{Config, Upstream};
use store::Location;

use super::address::ListenAddress;
use super::agents::AgentArgs;
use super::control::ControlArgs;
use super::fleet::FleetArgs;
use super::limits::{BudgetArgs, LimitArgs};
use super::telemetry::TelemetryArgs;
use super::tls::TlsArgs;
use super::upstream::UpstreamArgs;
use crate::exit::Failure;

/// Variables that a harness keeps from its agents: the control listener's token, its file and the
/// store that it lies beside, and the names of the variables that hold secrets.
const SECRET_VARIABLES: [&str; 7] = [
    "ROLLTAPE_CONTROL_TOKEN",
    "ROLLTAPE_CONTROL_TOKEN_FILE",
    "ROLLTAPE_STORE",
    "ROLLTAPE_SIGNING_KEY_FILE",
    "ROLLTAPE_CONTROL_TOKEN_ENV",
    "ROLLTAPE_UPSTREAM_KEY_ENV",
    "ROLLTAPE_UPSTREAM_KEY_FILE",
];

/// The options of a recording proxy.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    #[command(flatten)]
    pub(crate) agents: AgentArgs,
    #[command(flatten)]
    budget: BudgetArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
}

impl ProxyArgs {
    /// The settings of a proxy in front of `upstream` that records into `store`.
    ///
    /// # Errors
    /// [`Failure`] if a file cannot be used or a variable is not set.
    pub(crate) fn config(
        &self,
        upstream: Upstream,
        own_engine: bool,
        store: &Location,
    ) -> Result<Config, Failure> {
        let mut config = self.upstream.config(upstream, own_engine)?;
        self.tls.apply(&mut config)?;
        self.agents.apply(&mut config, store)?;
        config.budget = self.budget.budget();
        self.fleet.apply(&mut config);
        self.limits.apply(&mut config);
        Ok(config)
    }

    /// Refuses an address at which everybody could spend the upstream's key.
    ///
    /// # Errors
    /// [`Failure`] if agents beyond this machine could call without a key of their own.
    pub(crate) fn check_relay(&self, listen: &ListenAddress) -> Result<(), Failure> {
        let has_key = self.upstream.has_key();
        let is_guarded = self.agents.require_key || listen.is_of_this_machine();
        if is_guarded || !has_key || self.agents.allow_open_relay {
            return Ok(());
        }
        let sentence = format!("whoever reaches {listen} could spend the upstream's key");
        Err(Failure::new(sentence).hint(
            "require a key of every agent with --require-key, listen on loopback, or let everybody \
             call with --allow-open-relay",
        ))
    }

    /// The variables that an agent must not find in its environment: those that hold the control
    /// listener's token or the upstream's key, and those that name them.
    pub(crate) fn secret_variables(&self) -> Vec<&str> {
        let named = [self.control.token.control_token_env.as_deref(), self.upstream.key_variable()];
        SECRET_VARIABLES.into_iter().chain(named.into_iter().flatten()).collect()
    }
}
