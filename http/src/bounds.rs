//! The bounds of HTTP: connections, heads and bodies, and the memory that they take.

use std::time::Duration;

// Connections of clients.

/// Shortest time after a reply before its connection may give way.
pub(crate) const IDLE_AGE_MIN: Duration = Duration::from_millis(100);
/// Shortest time of a connection without a request before it may give way.
pub(crate) const SILENT_AGE_MIN: Duration = Duration::from_millis(20);
/// The part of all connections that gives way at once when there is no room: one in so many.
pub(crate) const GIVE_WAY_PART: usize = 64;
/// Pause between two looks for connections that may give way, while there is no room.
pub(crate) const ROOM_CHECK: Duration = Duration::from_millis(10);
/// Pause between two looks for connections whose times are over.
pub(crate) const EXPIRY_CHECK: Duration = Duration::from_secs(1);
/// Pause after the system refused a connection.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Longest TLS handshake.
pub(crate) const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Longest head of a request, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request, and of a reply over HTTP/1.
pub(crate) const HEADERS_MAX: usize = 1024;
/// Longest head of a reply over HTTP/2, in bytes: about as much as hyper takes over HTTP/1.
pub(crate) const REPLY_HEAD_BYTES_MAX: u32 = 400 << 10;
/// Bytes that HTTP/2 counts for each header beside its name and value (RFC 9113, section 6.5.2).
pub(crate) const FIELD_OVERHEAD_BYTES: usize = 32;
/// Slowest body, in bytes a second; a body always has the time of one piece besides.
pub(crate) const BODY_BYTES_PER_S_MIN: u64 = 1024;
/// Requests of one HTTP/2 connection at once, unless another number is set.
pub(crate) const STREAMS_MAX: u32 = 200;
/// Bytes of a reply over HTTP/2 that are sent at a time: each shows whether the agent reads.
pub(crate) const STREAM_PIECE_BYTES_MAX: usize = 64 << 10;
/// Pause between two pings of an HTTP/2 connection.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for the answer to a ping.
pub(crate) const PING_WAIT: Duration = Duration::from_secs(30);
/// Pause between two looks at an agent that shut its writing side.
pub(crate) const HALF_CLOSE_CHECK: Duration = Duration::from_millis(200);
/// Longest wait for bytes of a reply that tell whether an agent has left or only shut its writing
/// side in mid-reply.
pub(crate) const LEAVE_WAIT: Duration = Duration::from_millis(300);
/// Bytes that the system may hold for an agent that does not read.
pub(crate) const AGENT_SEND_BYTES_MAX: usize = 256 << 10;

/// The part of a listener's connections that one address may have: one in so many. Loopback may
/// have all.
pub const PEER_PART: usize = 2;
/// Longest time of a head, unless another is set.
pub const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Longest wait for a piece of a body, unless another is set.
pub const BODY_WAIT: Duration = Duration::from_secs(60);
/// Longest time without a request, unless another is set.
pub const IDLE_WAIT: Duration = Duration::from_secs(900);
/// Descriptors kept for the store, the control listener and what else is not a call: an eighth of
/// those that the process may have, at least and at most so many.
pub(crate) const DESCRIPTORS_KEPT: std::ops::RangeInclusive<usize> = 64..=1024;

// Tokens.

/// Time after which a request with a wrong token is answered.
pub(crate) const WRONG_TOKEN_WAIT: Duration = Duration::from_secs(1);
/// Requests with a wrong token that wait; further ones are answered 429 at once.
pub(crate) const WRONG_TOKENS_WAITING_MAX: usize = 1024;
/// Shortest time between two lines of the log about refused requests.
pub(crate) const REFUSALS_LOG_EVERY: Duration = Duration::from_secs(10);

// Memory of requests and of replies until they are sent.

/// Part of the ceiling up to which new calls are admitted: 3 of 4.
pub(crate) const MEMORY_ADMIT_SHARE: (u64, u64) = (3, 4);
/// Bytes that are charged at a time.
pub(crate) const MEMORY_PIECE_BYTES: u64 = 4096;
/// Bytes of the account that may be freed before their pages are given back to the system.
pub(crate) const MEMORY_FREED_BYTES_MAX: u64 = 64 << 20;
/// Pause between two looks of a reply that waits for memory.
pub(crate) const MEMORY_POLL_WAIT: Duration = Duration::from_millis(20);
/// Part of the ceiling up to which all replies grow: 7 of 9. The rest is for one at a time.
pub(crate) const MEMORY_REPLY_SHARE: (u64, u64) = (7, 9);
/// Longest wait of a reply for memory. Then it is recorded as far as it was read.
pub(crate) const MEMORY_REPLY_WAIT: Duration = Duration::from_secs(5);
/// Copies of a body that is held whole: the one that came, and the one that is sent on.
pub const BODY_COPIES: usize = 2;

// Content codings.

/// Bytes that any coded body may decode to.
pub(crate) const DECODED_BYTES_FREE: u64 = 1 << 20;
/// Decoded bytes for each byte that was sent, beyond [`DECODED_BYTES_FREE`]. JSON shrinks by a
/// factor of 5 to 30, and a history that repeats itself by up to 100.
pub(crate) const DECODED_RATIO_MAX: u64 = 200;
/// Longest window of a decoder, in bytes: that of brotli without its extension.
pub(crate) const DECODER_WINDOW_BYTES_MAX: usize = 16 << 20;
/// Longest window of zstd, as a power of two: 8 MiB, the most that HTTP allows (RFC 9659).
pub(crate) const ZSTD_WINDOW_LOG_MAX: u32 = 23;

// The clock.

/// Pause between two comparisons with the system's clock, in microseconds.
pub(crate) const CLOCK_CHECK_US: i64 = 1_000_000;
/// The part of the time that passes by which the system's clock can draw ours: one in so many.
pub(crate) const CLOCK_DRAW_PART: i64 = 10;
/// Difference from the system's clock that the log tells of, in microseconds.
pub(crate) const CLOCK_JUMP_US: i64 = 60_000_000;
