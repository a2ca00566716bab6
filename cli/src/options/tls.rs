//! Certificates and keys of the listeners.

use std::path::PathBuf;

use control::Settings;
use proxy::Config;

use super::address::ListenAddress;
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

/// TLS of the control listener.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Listeners")]
pub(crate) struct ControlTlsArgs {
    /// TLS certificate of --control, in PEM
    ///
    /// It may be that of --tls-cert.
    #[arg(long, value_name = "FILE", requires = "control_tls_key")]
    #[arg(env = "ROLLTAPE_CONTROL_TLS_CERT")]
    control_tls_cert: Option<PathBuf>,
    /// Private key of --control-tls-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "control_tls_cert")]
    #[arg(env = "ROLLTAPE_CONTROL_TLS_KEY")]
    control_tls_key: Option<PathBuf>,
}

impl ControlTlsArgs {
    /// Refuses TLS on a socket of the file system, which no client speaks.
    ///
    /// # Errors
    /// [`Failure`] if the listener is one.
    pub(crate) fn check(&self, control: &ListenAddress) -> Result<(), Failure> {
        match (&self.control_tls_cert, control) {
            (Some(_), ListenAddress::Unix(_)) => {
                Err(Failure::new("a socket in the file system has no TLS")
                    .hint("leave --control-tls-cert out, or give a port with --control"))
            }
            _ => Ok(()),
        }
    }

    /// The scheme of the listener.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.control_tls_cert.is_some() { "https" } else { "http" }
    }

    /// Sets the TLS of `settings`.
    ///
    /// # Errors
    /// [`Failure`] if a file cannot be read, or holds no certificate or key.
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), Failure> {
        if let (Some(certificate), Some(key)) = (&self.control_tls_cert, &self.control_tls_key) {
            let (certificate, key) = (read_file(certificate)?, read_file(key)?);
            settings.set_tls(&certificate, &key).map_err(|e| Failure::of(&e))?;
        }
        Ok(())
    }
}
