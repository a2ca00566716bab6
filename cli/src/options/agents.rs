//! Options on what agents may do.

use std::path::PathBuf;
use std::sync::Arc;

use proxy::{AllowedPath, Config, EpisodePrefix};
use store::Location;

use super::signing::SigningFile;
use crate::exit::Failure;

/// Options on keys and routes of agents.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Agents")]
pub(crate) struct AgentArgs {
    /// Take only calls with an API key of the control listener
    #[arg(long, env = "ROLLTAPE_REQUIRE_KEY")]
    pub(crate) require_key: bool,
    /// Text before the name of every episode that a client names
    ///
    /// So that people who share a store do not collide: with `ann.`, a call to /e/run-1 is recorded
    /// as ann.run-1. Names that begin with it stay.
    #[arg(long, value_name = "PREFIX", env = "ROLLTAPE_EPISODE_PREFIX")]
    pub(crate) episode_prefix: Option<EpisodePrefix>,
    /// File of the secrets that sign API keys
    ///
    /// Servers of one database share it. [default: the store's name and -keys]
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_SIGNING_KEY_FILE")]
    signing_key_file: Option<PathBuf>,
    /// Another route for agents: a method and a path; repeatable
    ///
    /// Such as 'POST /tokenize' or 'GET /v1/files/*'. The routes that are served by default stay.
    #[arg(long, value_name = "'METHOD /PATH'", value_delimiter = ',', env = "ROLLTAPE_ALLOW_PATH")]
    allow_path: Vec<AllowedPath>,
    /// Let calls pass to sampling routes that report no tokens
    ///
    /// They are recorded as plain exchanges. By default they are refused.
    #[arg(long, env = "ROLLTAPE_ALLOW_UNRECORDED_SAMPLING")]
    allow_unrecorded_sampling: bool,
    /// Let requests name state that is not their attempt's
    ///
    /// Without it, `previous_response_id`, `conversation` and `item_reference` name what a reply to
    /// the same attempt gave.
    #[arg(long, env = "ROLLTAPE_ALLOW_FOREIGN_STATE")]
    allow_foreign_state: bool,
    /// Origin whose web pages may call; repeatable
    ///
    /// A scheme and a host, null or *. Its pages can spend the upstream's key.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', env = "ROLLTAPE_ALLOW_ORIGIN")]
    allow_origin: Vec<String>,
    /// Let requests name a priority, a worker or a slot
    ///
    /// The upstream then gets these fields. By default they are removed.
    #[arg(long, env = "ROLLTAPE_ALLOW_PRIORITY")]
    pub(crate) allow_priority: bool,
    /// Let everybody who reaches --listen use the upstream's key
    ///
    /// Without it an upstream's key needs --require-key or a --listen on loopback.
    #[arg(long, env = "ROLLTAPE_ALLOW_OPEN_RELAY")]
    pub(super) allow_open_relay: bool,
    /// Share prefixes between groups in rolltape's own engine
    ///
    /// Its `cached_tokens` then tell an agent what others sent.
    #[arg(long, env = "ROLLTAPE_SHARE_PREFIXES")]
    share_prefixes: bool,
    /// Name each call in its reply's x-rolltape-call-id
    #[arg(long, env = "ROLLTAPE_CALL_ID_HEADER")]
    call_id_header: bool,
}

impl AgentArgs {
    /// Sets the agents' part of `config`.
    ///
    /// # Errors
    /// [`Failure`] if there is no place for the secrets that sign keys.
    pub(super) fn apply(&self, config: &mut Config, store: &Location) -> Result<(), Failure> {
        let secrets = SigningFile::of(self.signing_key_file.as_deref(), store)?;
        config.signing_secrets = Some(Arc::new(secrets));
        config.require_key = self.require_key;
        config.allowed_paths.clone_from(&self.allow_path);
        config.allow_unrecorded_sampling = self.allow_unrecorded_sampling;
        config.allow_foreign_state = self.allow_foreign_state;
        config.allowed_origins.clone_from(&self.allow_origin);
        config.allow_priority = self.allow_priority;
        config.share_prefixes = self.share_prefixes;
        config.call_id_header = self.call_id_header;
        config.episode_prefix = self.episode_prefix.clone().unwrap_or_default();
        Ok(())
    }
}
