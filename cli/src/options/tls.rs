//! `--tls-cert` and `--tls-key`.

use std::path::PathBuf;

use proxy::Config;

use super::upstream::read_file;
use crate::exit::Failure;

/// TLS of the data listener.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Listeners")]
pub(super) struct TlsArgs {
    /// TLS certificate of --listen, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "ROLLTAPE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "ROLLTAPE_TLS_KEY")]
    tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Sets the TLS of `config`.
    ///
    /// # Errors
    /// [`Failure`] if a file cannot be read, or holds no certificate or key.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let (certificate, key) = (read_file(certificate)?, read_file(key)?);
            config.set_tls(&certificate, &key).map_err(|e| Failure::of(&e))?;
        }
        Ok(())
    }
}
