//! Limits of calls and of episodes.

use std::time::Duration;

use proxy::Config;
use store::Budget;

use super::engine::bytes;
use super::memory::half_of_memory;
use super::parse::seconds;

/// Limits of memory and time.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Longest request to record in full [default: 64]
    ///
    /// Longer ones pass through, up to 1 GiB.
    #[arg(long, value_name = "MIB", env = "ROLLTAPE_REQUEST_MIB")]
    request_mib: Option<usize>,
    /// Memory of all calls [default: half of the machine's]
    ///
    /// A number of bytes, or such as 4GiB. It holds requests and replies; calls beyond it get a
    /// 503. In a container the default is half of the container's memory.
    #[arg(long, value_name = "BYTES", value_parser = bytes, env = "ROLLTAPE_MEMORY_MAX")]
    memory_max: Option<u64>,
    /// Time for calls in flight to end at a stop [default: 20]
    ///
    /// It begins with the first signal.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_DRAIN_WAIT_S")]
    drain_wait_s: Option<u64>,
    /// Silence before a padding byte is sent [default: never]
    ///
    /// A comment in a stream, white space before a document. Clients skip it. It is sent again
    /// after each such silence.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_HEARTBEAT_S")]
    heartbeat_s: Option<u64>,
    /// Time for the head of a request [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_HEAD_WAIT_S")]
    head_wait_s: Option<u64>,
    /// Time for each piece of a request body [default: 60]
    ///
    /// A small body has to arrive as a whole in this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_BODY_WAIT_S")]
    body_wait_s: Option<u64>,
    /// Time for which a connection may be idle [default: 900]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ROLLTAPE_IDLE_WAIT_S")]
    idle_wait_s: Option<u64>,
}

impl LimitArgs {
    /// Sets the limits of `config`.
    pub(super) fn apply(&self, config: &mut Config) {
        if let Some(mib) = self.request_mib {
            config.request_bytes_kept = mib.saturating_mul(1 << 20);
        }
        config.memory_bytes_max = self.memory_max.unwrap_or_else(half_of_memory);
        config.heartbeat = self.heartbeat_s.map(Duration::from_secs);

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
}

/// Limits of episodes that were announced without their own.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Budgets of episodes")]
pub(super) struct BudgetArgs {
    /// Most calls of an episode
    ///
    /// It holds for episodes that were announced without such a limit.
    #[arg(long, value_name = "CALLS", env = "ROLLTAPE_EPISODE_CALLS")]
    episode_calls: Option<u64>,
    /// Most sampled tokens of an episode
    ///
    /// A call that has begun may exceed them. It holds for episodes that were announced without
    /// such a limit.
    #[arg(long, value_name = "TOKENS", env = "ROLLTAPE_EPISODE_TOKENS")]
    episode_tokens: Option<u64>,
    /// Time from the first call in which calls may begin
    ///
    /// It holds for episodes that were announced without such a limit.
    #[arg(long, value_name = "SECONDS", env = "ROLLTAPE_EPISODE_SECONDS")]
    episode_seconds: Option<u64>,
}

impl BudgetArgs {
    /// The budget of an episode.
    pub(super) fn budget(&self) -> Budget {
        Budget {
            calls: self.episode_calls,
            tokens: self.episode_tokens,
            seconds: self.episode_seconds,
        }
    }
}
