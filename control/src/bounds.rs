//! Every bound of the control listener on what a trainer, a person or an engine may cost it.

use std::time::Duration;

// Connections and requests.

/// Connections of the control listener, if the system has descriptors for them.
pub(crate) const CONTROL_CONNECTIONS_MAX: usize = 1024;
/// Longest time that a trainer may leave rows of the feed unread: the longest lease.
pub(crate) const CONTROL_STALL_WAIT: Duration = Duration::from_secs(86_400);
/// Time that control requests under way have at least when the calls have ended after a shutdown
/// request.
pub(crate) const CONTROL_DRAIN_WAIT: Duration = Duration::from_secs(1);
/// Longest JSON body, in bytes.
pub(crate) const CONTROL_BODY_BYTES_MAX: usize = 1 << 20;
/// Longest body of a control request that goes to several engines, in bytes.
pub(crate) const FAN_OUT_BODY_BYTES_MAX: usize = 512 << 20;
/// Requests that are served at once; further ones wait.
pub(crate) const CONTROL_REQUESTS_MAX: usize = 256;
/// Longest body of annotations, in bytes.
pub(crate) const ANNOTATIONS_BODY_BYTES_MAX: usize = 32 << 20;
/// Longest body of a prune, which may list attempts that stay, in bytes.
pub(crate) const PRUNE_BODY_BYTES_MAX: usize = 32 << 20;

// Episodes, keys and versions.

/// Longest life of an API key, in seconds.
pub(crate) const KEY_LIFE_S_MAX: i64 = 31_536_000;
/// Largest group.
pub(crate) const GROUP_SIZE_MAX: u32 = 100_000;
/// Longest label and checksum of a version, in bytes.
pub(crate) const VERSION_TEXT_BYTES_MAX: usize = 256;
/// Comments of one request.
pub(crate) const COMMENTS_MAX: usize = 1_000;
/// Longest name of a stream of annotations, in bytes.
pub(crate) const ANNOTATION_TEXT_BYTES_MAX: usize = 256;

// The feed.

/// Readers that are served at once.
pub(crate) const FEED_READERS_MAX: usize = 128;
/// Looks of one reader for items that no other process takes first.
pub(crate) const FEED_LOOKS_MAX: u32 = 16;
/// Longest wait for the store in the middle of a reply.
pub(crate) const FEED_STORE_WAIT: Duration = Duration::from_secs(60);
/// Consumers whose last query is remembered.
pub(crate) const FEED_ASKED_MAX: usize = 1024;
/// Items of one reply.
pub(crate) const FEED_LIMIT_MAX: u32 = 1024;
/// Longest wait for an item, in seconds.
pub(crate) const FEED_WAIT_S_MAX: u32 = 600;
/// Longest lease, in seconds.
pub(crate) const LEASE_S_MAX: u32 = 86_400;
/// Longest wait for the rest of a group, in seconds.
pub(crate) const GROUP_WAIT_S_MAX: u32 = 31_536_000;

// Admission by version.

/// Attempts that a batch of a rule may have, and versions between beginning and training.
pub(crate) const ADMISSION_BATCH_MAX: u32 = 1_000_000;
/// Longest wait of a first call for its attempt to begin, unless the rule has another.
pub(crate) const ADMISSION_WAIT: Duration = Duration::from_secs(60);
/// Longest such wait that a rule may have, in seconds.
pub(crate) const ADMISSION_WAIT_S_MAX: u32 = 600;
/// Time without a call after which an open attempt no longer counts, unless the rule has another.
pub(crate) const ADMISSION_IDLE: Duration = Duration::from_secs(3600);

// Reading.

/// Questions about a recording that are answered at once; further ones wait.
pub(crate) const READS_MAX: usize = 4;
/// Passes over many attempts at a time.
pub(crate) const PASSES_MAX: usize = 1;
/// Streams of events at a time.
pub(crate) const EVENT_STREAMS_MAX: usize = 32;
/// Pause between two looks of a stream of events.
pub(crate) const EVENT_LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest silence of a stream of events: then a comment is sent.
pub(crate) const EVENT_BEAT: Duration = Duration::from_secs(15);
