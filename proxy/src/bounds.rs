//! Every bound of the proxy on what an agent or the upstream may cost it. Sizes that a user
//! may change are in [`Config`](crate::Config).

use std::time::Duration;

// Connections of agents and trainers.

/// Connections of the data listener, if the system has descriptors for them. For a further one, one
/// that waits for its agent gives way; if there is none, it is accepted when one has ended.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;

/// Longest time that an agent may leave its reply unread.
pub(crate) const STALL_WAIT: Duration = Duration::from_secs(900);
/// Most bytes of an upstream's error that is read after the head of its reply was sent.
pub(crate) const LATE_ERROR_BYTES_MAX: usize = 64 << 10;
/// Longest wait of the head of a translated stream for its first bytes, which may be a document's.
pub(crate) const KIND_WAIT: Duration = Duration::from_millis(100);

// Connections to the upstream.

/// Longest wait for a connection.
pub(crate) const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Longest life of an idle connection. Servers close idle connections after five seconds (uvicorn)
/// or more. Ours close sooner, so that no call is sent on a connection that the server closes.
pub(crate) const UPSTREAM_IDLE_WAIT: Duration = Duration::from_secs(4);

/// Pause between two attempts to reach an upstream that is lost.
pub(crate) const UPSTREAM_RETRY: Duration = Duration::from_secs(2);
/// Longest attempt to reach the upstream beside calls, such as that of `/ready`.
pub(crate) const READY_PROBE_WAIT: Duration = Duration::from_secs(2);

// Several upstreams.

/// Engines of one proxy.
pub(crate) const ENGINES_MAX: usize = 1024;
/// Longest name of an engine, in bytes.
pub(crate) const ENGINE_NAME_BYTES_MAX: usize = 128;
/// Largest weight of an engine.
pub(crate) const ENGINE_WEIGHT_MAX: u32 = 1000;
/// Threads that an engine gets by their hash, in percent of its share of all. Beyond, a thread goes
/// to its next best engine.
pub(crate) const ENGINE_LOAD_PERCENT_MAX: u64 = 115;
/// Threads beyond its share that an engine gets in any case. While threads are few, a bound in
/// percent would place them by the order of their arrival, in which several proxies differ.
pub(crate) const ENGINE_LOAD_SLACK: u64 = 3;
/// The same in percent for threads whose engine is gone: their prefix is lost wherever they go, so
/// they fill the engines that have less than their share, such as one that came back.
pub(crate) const ENGINE_MOVED_PERCENT_MAX: u64 = 100;
/// Threads whose engine is remembered. At the limit all are forgotten and placed by their hash.
pub(crate) const THREADS_MAX: usize = 100_000;
/// Attempts of which it is remembered for which prompts experts are recorded. At the limit all are
/// forgotten, and experts are asked for once more.
pub(crate) const EXPERT_ATTEMPTS_MAX: usize = 10_000;
/// Time without a call after which a thread is forgotten: its prefix is likely gone.
pub(crate) const THREAD_LIFE: Duration = Duration::from_secs(3600);
/// Pause between two looks at an engine.
pub(crate) const HEALTH_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for the answer to a look.
pub(crate) const HEALTH_WAIT: Duration = Duration::from_secs(2);
/// Looks in a row that fail before an engine counts as lost. One that takes no connection is lost
/// at once.
pub(crate) const HEALTH_FAILURES: u32 = 2;
/// Least time for which calls of several attempts get no answer before their engine gets no new
/// threads, unless an option says otherwise.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Attempts whose calls fail or get no answer before an engine gets no new threads. Fewer may be at
/// fault themselves.
pub(crate) const STALLED_ATTEMPTS: usize = 3;
/// Time after which a failed call says nothing of its engine any more.
pub(crate) const FAILURE_LIFE: Duration = Duration::from_secs(60);
/// Times the longest wait of late for which a call may wait for its answer before it says something
/// of its engine.
pub(crate) const HEAD_WAIT_FACTOR: u32 = 3;
/// Time for which the longest wait is remembered, and at most twice as long.
pub(crate) const HEAD_WAIT_WINDOW: Duration = Duration::from_secs(600);
/// Pause between two look-ups of the names of upstreams.
pub(crate) const RESOLVE_EVERY: Duration = Duration::from_secs(30);
/// Longest look-up of a name.
pub(crate) const RESOLVE_WAIT: Duration = Duration::from_secs(5);
/// Calls that wait for an engine; further ones get a 503 at once.
pub(crate) const ENGINE_WAITING_MAX: usize = 10_000;
/// Longest wait of a call for an engine that is up.
pub(crate) const ENGINE_WAIT: Duration = Duration::from_secs(10);
/// Longest wait of a call for an engine that is not full.
pub(crate) const ROOM_WAIT: Duration = Duration::from_secs(600);
/// Calls that wait because an upstream answered 429 or 503; further such answers are passed on.
pub(crate) const ABSORBED_CALLS_MAX: usize = 10_000;
/// Shortest pause before a call is sent again after a 429 or 503; it doubles.
pub(crate) const ABSORB_PAUSE: Duration = Duration::from_millis(500);
/// Longest such pause, unless the upstream asks for a longer one.
pub(crate) const ABSORB_PAUSE_MAX: Duration = Duration::from_secs(8);

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
/// Longest wait for the upstream's answer how it encodes a prompt, and for a text of recorded ids.
pub(crate) const ENCODE_WAIT: Duration = Duration::from_secs(10);
/// Models of an upstream whose tokens are remembered. At the limit all are learned again.
pub(crate) const TOKEN_MODELS_MAX: usize = 64;
/// Shapes of requests of which it is remembered whether the upstream encodes them as it says. At
/// the limit all are forgotten.
pub(crate) const PROMPT_SHAPES_MAX: usize = 100_000;
/// Tokens whose texts are asked for at once.
pub(crate) const TOKEN_TEXTS_MAX: usize = 8192;
/// Texts of tokens that make a character together, for each model. At the limit all are forgotten.
pub(crate) const TOKEN_RUNS_MAX: usize = 65_536;
/// Time for which an upstream that tells the texts of tokens is known to tell them exactly. It may
/// have been restarted with another tokenizer.
pub(crate) const TOKEN_TEXTS_LIFE: Duration = Duration::from_secs(600);
/// Longest wait for the label of the upstream's weights.
pub(crate) const WEIGHT_INFO_WAIT: Duration = Duration::from_secs(10);

// Refusals by the upstream.

/// Longest wait for the body of a refusal.
pub(crate) const REFUSAL_WAIT: Duration = Duration::from_secs(5);
/// Kinds of requests whose refused fields are remembered. The oldest are forgotten first.
pub(crate) const REFUSED_CLASSES_MAX: usize = 16_384;
/// Longest time for which refused fields are remembered. The upstream may have changed since.
pub(crate) const REFUSED_CLASS_LIFE: Duration = Duration::from_secs(600);
/// Paths beyond the known routes that are remembered.
pub(crate) const STRAY_PATHS_MAX: usize = 64;

// Requests of agents.

/// Paths off the list that the log names.
pub(crate) const REFUSED_PATHS_MAX: usize = 64;
// Memory of calls: their requests, and their replies until they are on disk.

/// Bytes of an event that has not ended, with which a stream without memory is broken off.
pub(crate) const STALLED_EVENT_BYTES_MAX: usize = 1 << 20;

// Content codings.

/// Coded bytes of a reply that are decoded at a time.
pub(crate) const DECODED_PIECE_BYTES_MAX: usize = 8 << 10;

// Replies.

/// Bytes by which the record of a reply grows at least.
pub(crate) const REPLY_PIECE_BYTES: usize = 512;
/// Longest wait for the rest of a reply after its last finish reason.
pub(crate) const REST_WAIT: Duration = Duration::from_secs(1);

/// Shortest key of the operator that is masked in what is stored and what agents get, in bytes. A
/// shorter one may be an ordinary word.
pub(crate) const MASKED_KEY_BYTES_MIN: usize = 16;

// What is remembered of attempts, conversations and versions.

/// Attempts that are remembered. At the limit all are forgotten and learned again.
pub(crate) const ATTEMPTS_MAX: usize = 100_000;
/// Messages of the requests of a recording that is replayed, over all requests, of which a hash is
/// kept. A longer one is not replayed.
pub(crate) const DECK_MESSAGES_MAX: usize = 4_000_000;
/// Labels of versions that are remembered. The upstream is not asked about further ones.
pub(crate) const VERSION_LABELS_MAX: usize = 100_000;
/// Bytes of the recorded paths that prompts can begin with; at most a quarter of the memory of
/// calls. Attempts that were not used for longest are forgotten first, and read from the store
/// when they go on.
pub(crate) const PATH_BYTES_MAX: usize = 256 << 20;
/// Paths of an attempt whose text is looked for at its next call. The oldest are dropped first.
pub(crate) const PATHS_WAITING_MAX: usize = 16_384;
/// Ends of conversations that are remembered. The oldest are forgotten first.
pub(crate) const CONVERSATION_ENDS_MAX: usize = 200_000;
/// Bytes of requests and replies that are kept for answers by id. The oldest are dropped first.
pub(crate) const RESPONSE_CACHE_BYTES_MAX: usize = 64 << 20;
/// Ids of responses, items and conversations that are remembered with their attempts. The oldest
/// are forgotten first, and looked for in the recording.
pub(crate) const OWN_IDS_MAX: usize = 1 << 19;
/// Longest id of a response that is looked up, in bytes.
pub(crate) const RESPONSE_ID_BYTES_MAX: usize = 512;
/// Longest chain of turns that is put before a request.
pub(crate) const RESPONSE_TURNS_MAX: usize = 10_000;

// Keys, words and budgets.

/// Labels of one call.
pub(crate) const CALL_LABELS_MAX: usize = 32;
/// Longest name of a label, in bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 200;
/// Longest value of a label, in bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 2048;
/// Longest body without a JSON object that counts as a probe, in bytes.
pub(crate) const PROBE_BYTES_MAX: usize = 64 << 10;
/// Secrets that verify API keys: the one that signs, and earlier ones that have not ended.
pub(crate) const SIGNING_SECRETS_MAX: usize = 8;
/// Time after which the signing secrets are read again, because another process may rotate them.
pub(crate) const SIGNING_SECRETS_AGE_MAX: Duration = Duration::from_secs(1);
/// Time that calls have to end after their episode was closed. Later their records are ended.
pub(crate) const CUT_WAIT: Duration = Duration::from_millis(1500);
/// Pause between two looks at calls that are to end.
pub(crate) const CUT_PAUSE: Duration = Duration::from_millis(20);

// Admission by version.

/// First calls that wait for their attempt to begin; further ones get a 503 at once.
pub(crate) const ADMISSION_WAITING_MAX: usize = 10_000;
/// Pause between two looks for places that other processes made.
pub(crate) const ADMISSION_LOOK_EVERY: Duration = Duration::from_millis(500);
/// Shortest pause between two looks.
pub(crate) const ADMISSION_PAUSE: Duration = Duration::from_millis(20);
/// Seconds after which a refused first call may be sent again.
pub(crate) const ADMISSION_RETRY_AFTER_S: u16 = 5;

// Reading beside calls.

/// The part of the memory of calls that readers of the recording may have: one in so many.
pub(crate) const READING_MEMORY_PART: u64 = 3;
/// Bytes that readers borrow at a time.
pub(crate) const READING_PIECE_BYTES: u64 = 64 << 10;
/// The part of the memory of calls that the calls of one attempt may hold in the store, without
/// what they repeat: one in so many.
pub(crate) const ATTEMPT_MEMORY_PART: u64 = 12;
/// Bytes that the calls of an attempt may hold in any case.
pub(crate) const ATTEMPT_BYTES_MIN: u64 = 32 << 20;
/// Longest wait of a call for the memory in which it reads back what it goes on from.
pub(crate) const READ_BACK_WAIT: Duration = Duration::from_secs(5);
/// Copies of the longest body of an attempt that a call makes when it reads the attempt back: its
/// bytes, those of the two before it, and its values.
pub(crate) const READ_BACK_COPIES: u64 = 4;
/// Copies of the turns before a request: their bytes, their values, the request that holds them,
/// and the one for the upstream.
pub(crate) const HISTORY_COPIES: usize = 4;
/// Copies of a reply that is given again: its bytes, its pieces, and what is recorded of them.
pub(crate) const GIVEN_COPIES: usize = 3;
