//! The proxy's options: its upstream, its limits, its TLS and its control listener.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderName;
use proxy::{AllowedPath, Config, Upstream};
use store::{Budget, Location};

use super::address::ListenAddress;
use super::control::ControlArgs;
use super::engine::bytes;
use super::memory::half_of_memory;
use super::parse::{header, seconds};
use super::signing::SigningFile;
use super::telemetry::TelemetryArgs;
use super::upstream::{UpstreamArgs, read_file};
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
    /// Longest request that is held and recorded in full, in MiB; longer ones pass through, up to
    /// 1 GiB [default: 64]
    #[arg(long, value_name = "MIB", env = "ROLLTAPE_REQUEST_MIB")]
    request_mib: Option<usize>,
    /// Let calls of different groups share prefixes in rolltape's own engine. Its `cached_tokens`
    /// then tell an agent what others sent
    #[arg(long, env = "ROLLTAPE_SHARE_PREFIXES")]
    share_prefixes: bool,
    /// Most memory that the requests and replies of all calls take, such as 4GiB; calls beyond it
    /// get a 503 [default: half of the machine's or the container's]
    #[arg(long, value_name = "BYTES", value_parser = bytes, env = "ROLLTAPE_MEMORY_MAX")]
    memory_max: Option<u64>,
    /// Let calls pass to sampling routes that report no tokens; they are recorded as plain
    /// exchanges
    #[arg(long, env = "ROLLTAPE_ALLOW_UNRECORDED_SAMPLING")]
    allow_unrecorded_sampling: bool,
    /// A method and a path that agents may use beside those that are served by default, such as
    /// 'POST /tokenize' or 'GET /v1/files/*'; repeatable
    #[arg(long, value_name = "'METHOD /PATH'", value_delimiter = ',', env = "ROLLTAPE_ALLOW_PATH")]
    allow_path: Vec<AllowedPath>,
    /// Name the call of each reply in its header x-rolltape-call-id
    #[arg(long, env = "ROLLTAPE_CALL_ID_HEADER")]
    call_id_header: bool,
    /// Header that tells the upstream which thread a call belongs to, for a router behind rolltape
    /// that keeps threads on one server, such as x-session-id
    #[arg(long, value_name = "NAME", value_parser = header, env = "ROLLTAPE_SESSION_HEADER")]
    session_header: Option<HeaderName>,
    /// Seconds for which a call waits and is sent again where the upstream answers 429 or 503,
    /// before the agent gets such an answer [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_ABSORB_429_FOR")]
    absorb_429_for: Option<u64>,
    /// Let those of several upstreams get calls that have older weights than the newest that were
    /// pushed through the control listener
    #[arg(long, env = "ROLLTAPE_NO_VERSION_FENCE")]
    no_version_fence: bool,
    /// Let agents' requests name a priority, a worker or a slot of the upstream
    #[arg(long, env = "ROLLTAPE_ALLOW_PRIORITY")]
    pub(crate) allow_priority: bool,
    /// An origin whose web pages may spend the upstream's key: a scheme and a host, null or *;
    /// repeatable
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', env = "ROLLTAPE_ALLOW_ORIGIN")]
    allow_origin: Vec<String>,
    /// Seconds that an agent has for the head of a request [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_HEAD_WAIT_S")]
    head_wait_s: Option<u64>,
    /// Seconds that an agent has for each piece of a request body, and for a small body
    /// [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_BODY_WAIT_S")]
    body_wait_s: Option<u64>,
    /// Seconds that an agent may keep a connection without a request [default: 900]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_IDLE_WAIT_S")]
    idle_wait_s: Option<u64>,
    /// Seconds of silence in a reply after which its agent gets a byte without a meaning, and then
    /// again; never if absent
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_HEARTBEAT_S")]
    heartbeat_s: Option<u64>,
    /// Seconds that calls in flight have to end after the first signal to stop [default: 20]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_DRAIN_WAIT_S")]
    drain_wait_s: Option<u64>,
    /// Take only calls with an API key that the control listener made
    #[arg(long, env = "ROLLTAPE_REQUIRE_KEY")]
    pub(crate) require_key: bool,
    /// File of the secrets that sign API keys, which servers of one database share [default: the
    /// store's name and -keys]
    #[arg(long, value_name = "FILE", env = "ROLLTAPE_SIGNING_KEY_FILE")]
    signing_key_file: Option<PathBuf>,
    /// Most calls of an episode that was announced without such a limit
    #[arg(long, value_name = "CALLS", env = "ROLLTAPE_EPISODE_CALLS")]
    episode_calls: Option<u64>,
    /// Most sampled tokens of such an episode; a call that has begun may exceed them
    #[arg(long, value_name = "TOKENS", env = "ROLLTAPE_EPISODE_TOKENS")]
    episode_tokens: Option<u64>,
    /// Seconds from its first call in which calls of such an episode may begin
    #[arg(long, value_name = "SECONDS", env = "ROLLTAPE_EPISODE_SECONDS")]
    episode_seconds: Option<u64>,
    /// TLS certificate of --listen, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "ROLLTAPE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "ROLLTAPE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Relay everybody's calls with the upstream's key, although --listen is beyond loopback
    #[arg(long, env = "ROLLTAPE_ALLOW_OPEN_RELAY")]
    allow_open_relay: bool,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
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

        if let Some(mib) = self.request_mib {
            config.request_bytes_kept = mib.saturating_mul(1 << 20);
        }
        config.memory_bytes_max = self.memory_max.unwrap_or_else(half_of_memory);
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let tls = proxy::server_tls(&read_file(certificate)?, &read_file(key)?);
            config.tls = Some(tls.map_err(|e| Failure::of(&e))?);
        }
        config.share_prefixes = self.share_prefixes;
        config.call_id_header = self.call_id_header;
        config.heartbeat = self.heartbeat_s.map(Duration::from_secs);
        self.set_waits(&mut config);
        let secrets = SigningFile::of(self.signing_key_file.as_deref(), store)?;
        config.signing_secrets = Some(Arc::new(secrets));
        config.budget = Budget {
            calls: self.episode_calls,
            tokens: self.episode_tokens,
            seconds: self.episode_seconds,
        };
        config.allow_unrecorded_sampling = self.allow_unrecorded_sampling;
        config.require_key = self.require_key;
        config.allowed_paths.clone_from(&self.allow_path);
        config.allow_priority = self.allow_priority;
        config.fleet.session_header.clone_from(&self.session_header);
        config.fleet.absorb_for = Duration::from_secs(self.absorb_429_for.unwrap_or(0));
        config.fleet.fences_versions = !self.no_version_fence;
        config.allowed_origins.clone_from(&self.allow_origin);
        Ok(config)
    }

    /// Refuses an address at which everybody could spend the upstream's key.
    ///
    /// # Errors
    /// [`Failure`] if agents beyond this machine could call without a key of their own.
    pub(crate) fn check_relay(&self, listen: &ListenAddress) -> Result<(), Failure> {
        let has_key = self.upstream.has_key();
        if listen.is_of_this_machine() || !has_key || self.require_key || self.allow_open_relay {
            return Ok(());
        }
        let sentence = format!("whoever reaches {listen} could spend the upstream's key");
        Err(Failure::new(sentence).hint(
            "require a key of every agent with --require-key, listen on loopback, or let everybody \
             call with --allow-open-relay",
        ))
    }

    fn set_waits(&self, config: &mut Config) {
        let waits = [
            (self.head_wait_s, &mut config.head_wait),
            (self.body_wait_s, &mut config.body_wait),
            (self.idle_wait_s, &mut config.idle_wait),
            (self.drain_wait_s, &mut config.drain_wait),
        ];
        for (seconds, wait) in waits {
            if let Some(seconds) = seconds {
                *wait = Duration::from_secs(seconds);
            }
        }
    }

    /// The variables that an agent must not find in its environment: those that hold the control
    /// listener's token or the upstream's key, and those that name them.
    pub(crate) fn secret_variables(&self) -> Vec<&str> {
        let named = [self.control.token.control_token_env.as_deref(), self.upstream.key_variable()];
        SECRET_VARIABLES.into_iter().chain(named.into_iter().flatten()).collect()
    }
}
