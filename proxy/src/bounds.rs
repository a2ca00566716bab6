//! Every bound of the proxy on what an agent, a trainer or the upstream may cost it. Sizes that a
//! user may change are in [`Config`](crate::Config).

use std::time::Duration;

// Connections of agents and trainers.

/// Connections of one listener; a further one is accepted when one has ended.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;
/// Longest TLS handshake.
pub(crate) const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

// Connections to the upstream.

/// Longest wait for a connection.
pub(crate) const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Longest life of an idle connection. Servers close idle connections after five seconds (uvicorn)
/// or more. Ours close sooner, so that no call is sent on a connection that the server closes.
pub(crate) const UPSTREAM_IDLE_WAIT: Duration = Duration::from_secs(4);

// What is asked of the upstream beside calls.

/// Longest wait for the dialect.
pub(crate) const PROBE_WAIT: Duration = Duration::from_secs(10);
/// Longest document that rolltape itself fetches, in bytes.
pub(crate) const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// Longest wait for what the upstream says of its sampling. vLLM inspects the machine at the first
/// question.
pub(crate) const SAMPLING_ASK_WAIT: Duration = Duration::from_secs(30);
/// Longest wait at the end of a call for what the upstream says of its sampling.
pub(crate) const SAMPLING_END_WAIT: Duration = Duration::from_secs(5);
/// Longest wait at the end of a call for the ids of its prompt. Without the ids of its prompt a
/// call makes no row.
pub(crate) const PROMPT_END_WAIT: Duration = Duration::from_secs(5);
/// Longest wait for the label of the upstream's weights.
pub(crate) const WEIGHT_INFO_WAIT: Duration = Duration::from_secs(10);

// Refusals by the upstream.

/// Longest wait for the body of a refusal.
pub(crate) const REFUSAL_WAIT: Duration = Duration::from_secs(5);
/// Request classes whose refused fields are remembered.
pub(crate) const REFUSED_CLASSES_MAX: usize = 1024;
/// Paths beyond the known routes that are remembered.
pub(crate) const STRAY_PATHS_MAX: usize = 64;

// Replies.

/// Longest wait for the rest of a reply after its last finish reason.
pub(crate) const REST_WAIT: Duration = Duration::from_secs(1);

// What is remembered of attempts, conversations and versions.

/// Attempts that are remembered. At the limit all are forgotten and learned again.
pub(crate) const ATTEMPTS_MAX: usize = 100_000;
/// Labels of versions that are remembered. The upstream is not asked about further ones.
pub(crate) const VERSION_LABELS_MAX: usize = 100_000;
/// Ends of conversations that are remembered. The oldest are forgotten first.
pub(crate) const CONVERSATION_ENDS_MAX: usize = 200_000;
/// Bytes of requests and replies that are kept for answers by id. The oldest are dropped first.
pub(crate) const RESPONSE_CACHE_BYTES_MAX: usize = 64 << 20;
/// Longest chain of turns that is put before a request.
pub(crate) const RESPONSE_TURNS_MAX: usize = 10_000;

// The control listener.

/// Longest JSON body, in bytes.
pub(crate) const CONTROL_BODY_BYTES_MAX: usize = 1 << 20;
/// Requests that are served at once; further ones wait.
pub(crate) const CONTROL_REQUESTS_MAX: usize = 256;
/// Longest life of an API key, in seconds.
pub(crate) const KEY_LIFE_S_MAX: i64 = 31_536_000;
/// Largest group.
pub(crate) const GROUP_SIZE_MAX: u32 = 100_000;
/// Longest label and checksum of a version, in bytes.
pub(crate) const VERSION_TEXT_BYTES_MAX: usize = 256;

// The feed.

/// Readers that are served at once.
pub(crate) const FEED_READERS_MAX: usize = 128;
/// Items of one reply.
pub(crate) const FEED_LIMIT_MAX: u32 = 1024;
/// Longest wait for an item, in seconds.
pub(crate) const FEED_WAIT_S_MAX: u32 = 600;
/// Longest lease, in seconds.
pub(crate) const LEASE_S_MAX: u32 = 86_400;
/// Longest wait for the rest of a group, in seconds.
pub(crate) const GROUP_WAIT_S_MAX: u32 = 31_536_000;
