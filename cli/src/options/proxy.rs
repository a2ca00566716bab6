//! The proxy's options: its upstream, its limits, its TLS and the control listener's token.

use std::path::PathBuf;

use proxy::{Config, Upstream};

use super::upstream::{UpstreamArgs, read_file};
use crate::exit::Failure;

/// Variables that a harness keeps from its agents: the control listener's token as the Python
/// package reads it, and the names of the variables that hold secrets.
const SECRET_VARIABLES: [&str; 3] =
    ["ROLLTAPE_CONTROL_TOKEN", "ROLLTAPE_CONTROL_TOKEN_ENV", "ROLLTAPE_UPSTREAM_KEY_ENV"];

/// The options of a recording proxy.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    /// Longest request that is held and recorded in full, in MiB; longer ones pass through, up to
    /// 1 GiB [default: 64]
    #[arg(long, value_name = "MIB", env = "ROLLTAPE_REQUEST_MIB")]
    request_mib: Option<usize>,
    /// Let calls pass to sampling routes that report no tokens; they are recorded as plain
    /// exchanges
    #[arg(long, env = "ROLLTAPE_ALLOW_UNRECORDED_SAMPLING")]
    allow_unrecorded_sampling: bool,
    /// TLS certificate of --listen, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "ROLLTAPE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "ROLLTAPE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) token: ControlToken,
}

/// The token that the control listener requires.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ControlToken {
    /// Environment variable that holds the control listener's token; without it no token is
    /// required
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_CONTROL_TOKEN_ENV")]
    control_token_env: Option<String>,
}

impl ControlToken {
    /// Reads the token, if a variable is named.
    ///
    /// # Errors
    /// [`Failure`] if the variable is unset or empty.
    pub(crate) fn read(&self) -> Result<Option<String>, Failure> {
        let Some(name) = &self.control_token_env else { return Ok(None) };
        let token = std::env::var(name).ok().filter(|token| !token.is_empty());

        token.map(Some).ok_or_else(|| {
            Failure::new(format!("the environment variable `{name}` holds no token"))
                .hint("set it to the control listener's token, or leave --control-token-env out")
        })
    }
}

impl ProxyArgs {
    /// The settings of a proxy in front of `upstream`.
    ///
    /// # Errors
    /// [`Failure`] if a file cannot be used or a variable is not set.
    pub(crate) fn config(&self, upstream: Upstream, own_engine: bool) -> Result<Config, Failure> {
        let mut config = self.upstream.config(upstream, own_engine)?;

        if let Some(mib) = self.request_mib {
            config.request_bytes_kept = mib.saturating_mul(1 << 20);
        }
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let tls = proxy::server_tls(&read_file(certificate)?, &read_file(key)?);
            config.tls = Some(tls.map_err(|e| Failure::of(&e))?);
        }
        config.allow_unrecorded_sampling = self.allow_unrecorded_sampling;
        config.control_token = self.token.read()?;
        Ok(config)
    }

    /// The variables that an agent must not find in its environment: those that hold the control
    /// listener's token or the upstream's key, and those that name them.
    pub(crate) fn secret_variables(&self) -> Vec<&str> {
        let named = [self.token.control_token_env.as_deref(), self.upstream.key_variable()];
        SECRET_VARIABLES.into_iter().chain(named.into_iter().flatten()).collect()
    }
}
