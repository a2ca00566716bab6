//! Every bound on what is read of a request or of a reply. What is beyond a bound passes as bytes,
//! and is not read.

// JSON.

/// Deepest nesting of brackets.
pub(crate) const DEPTH_MAX: usize = 512;
/// Members of an object whose members are looked at.
pub(crate) const MEMBERS_MAX: usize = 4096;
/// Values of a document that is held as a tree. A value takes about 100 bytes.
pub(crate) const TREE_VALUES_MAX: usize = 1 << 18;
/// Longest value of a request that is read for its sampling parameters, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 10;
/// Longest name of a model, in bytes.
pub(crate) const MODEL_BYTES_MAX: usize = 1024;

// Streams.

/// Longest event, in bytes. No first chunk with prompt ids is as long.
pub(crate) const EVENT_BYTES_MAX: usize = 64 << 20;
/// Lines of an event.
pub(crate) const EVENT_LINES_MAX: usize = 65_536;
/// Deltas of a frame that is split.
pub(crate) const DELTAS_MAX: usize = 1024;
/// Bytes of all frames that one frame is split into.
pub(crate) const SPLIT_BYTES_MAX: usize = 4 << 20;

// Replies.

/// Choices of a reply, if its request asks for as many.
pub(crate) const CHOICES_MAX: u32 = 65_536;
/// Prompts of a request whose ids are collected.
pub(crate) const PROMPTS_MAX: u32 = 65_536;
/// Ids of one prompt.
pub(crate) const PROMPT_TOKENS_MAX: usize = 4 << 20;
/// Entries of one list of ids, logprobs or other data of tokens in one document or event.
pub(crate) const LIST_MAX: usize = 1 << 18;
/// Spans of versions in one document or event.
pub(crate) const SPANS_MAX: usize = 1024;
/// Bytes that the ids and logprobs of a reply occupy.
pub(crate) const TOKEN_BYTES_MAX: usize = 64 << 20;
/// Bytes that the other data of a reply's tokens occupies: alternatives, masks, experts.
pub(crate) const TOKEN_COLUMN_BYTES_MAX: usize = 192 << 20;
/// Prompts of an attempt whose experts are known to be recorded. At the limit the oldest is
/// forgotten, and the experts of what continues it are asked for once more.
pub(crate) const KNOWN_PROMPTS_MAX: usize = 16;
/// Longest name of a finish reason, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 256;
/// Longest stop string, in bytes.
pub(crate) const STOP_BYTES_MAX: usize = 4096;
/// Longest error that is kept, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 64 << 10;
/// Ids of kept state that are taken from one reply.
pub(crate) const STATE_IDS_MAX: usize = 4096;
/// Longest reply that is read for the conversation that it continues, in bytes.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;
