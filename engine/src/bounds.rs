//! Every bound of the engine on what a caller may cost it. Sizes that a user may change are in
//! [`EngineOptions`](crate::EngineOptions).

use std::time::Duration;

// Connections.

/// Connections that are served at once. For a further one, one that waits for its client gives way;
/// if there is none, it is accepted when one has ended.
pub(crate) const CONNECTIONS_MAX: usize = 8192;
/// Bytes of requests and replies of `/v1/responses` that are kept; the oldest go first.
pub(crate) const RESPONSES_BYTES_MAX: usize = 64 << 20;
/// Responses that are sampled in the background at once. Nobody waits for them, so that no other
/// bound holds them.
pub(crate) const BACKGROUND_MAX: usize = 8;
/// Responses that one request continues, one after another.
pub(crate) const RESPONSE_TURNS_MAX: usize = 1024;
/// Calls of one connection of HTTP/2 at once.
pub(crate) const STREAMS_MAX: u32 = 1024;
/// Longest time that a client may leave its reply unread.
pub(crate) const STALL_WAIT: Duration = Duration::from_secs(86_400);
/// Longest silence within the body of a request.
pub(crate) const BODY_IDLE_WAIT: Duration = Duration::from_secs(30);
/// Time for replies under way to finish once the server stops.
pub(crate) const STOP_WAIT: Duration = Duration::from_secs(5);
/// Time for the last step to end after that; a GPU that hangs gets none.
pub(crate) const LAST_STEP_WAIT: Duration = Duration::from_secs(15);
/// Default time of a GPU's step after which the GPU counts as hung.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time between two looks at the step that runs.
pub(crate) const STEP_LOOK_EVERY: Duration = Duration::from_secs(1);

// Bodies of requests.

/// Longest body of JSON, in bytes.
pub(crate) const JSON_BYTES_MAX: usize = 64 << 20;
/// Most memory that the values of a JSON body may take once they are parsed, in bytes; an estimate
/// from above.
pub(crate) const JSON_TREE_BYTES_MAX: usize = 256 << 20;
/// Memory that the parsed JSON bodies of all calls may take together, in bytes. A call beyond it
/// waits.
pub(crate) const JSON_TREES_BYTES_MAX: usize = 512 << 20;
/// Longest wait of a call for that memory.
pub(crate) const JSON_ROOM_WAIT: Duration = Duration::from_secs(30);
/// Longest body of weights, in bytes.
pub(crate) const WEIGHT_BYTES_MAX: usize = 256 << 20;
/// Longest request id that a reply adopts, in bytes.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 128;

// Texts that are encoded.

/// Longest text that is encoded, in bytes for each token of the context. A longer one cannot fit,
/// unless nearly all of its tokens are long runs of one character.
pub(crate) const TEXT_BYTES_PER_TOKEN_MAX: usize = 32;
/// Length of a text that is encoded however short the context is, in bytes.
pub(crate) const TEXT_BYTES_MIN: usize = 64 << 10;
/// Bytes of texts that are encoded at once; further ones wait. A tokenizer takes some 350 bytes of
/// memory for a byte of text.
pub(crate) const ENCODED_BYTES_MAX: usize = 1 << 20;
/// Longest text that is encoded beside other work of its connection's thread, in bytes. It takes
/// about a millisecond.
pub(crate) const SHORT_TEXT_BYTES: usize = 4 << 10;

/// Ids that `/detokenize` turns into text, for each token of the context.
pub(crate) const DETOKENIZED_PER_TOKEN_MAX: usize = 8;
/// Ids that `/detokenize` turns into text however short the context is.
pub(crate) const DETOKENIZED_MIN: usize = 64 << 10;

// Requests for tokens.

/// Choices of one call, over all its prompts.
pub(crate) const CHOICES_MAX: usize = 4096;
/// Choices that wait, over all calls.
pub(crate) const WAITING_CHOICES_MAX: usize = 4 * CHOICES_MAX;
/// Outputs that wait for a slow caller before tokens are merged, beside one for each end.
pub(crate) const OUTPUTS_MAX: usize = 64;
/// Prompts of one call of SGLang's `/generate`.
pub(crate) const PROMPTS_MAX: usize = 1024;
/// Ids whose logprobs one request may ask for.
pub(crate) const LOGPROB_IDS_MAX: usize = 128;
/// Token sequences that one request may forbid.
pub(crate) const BAD_WORDS_MAX: usize = 512;
/// Bytes of all texts that one request forbids.
pub(crate) const BAD_WORD_BYTES_MAX: usize = 16 << 10;
/// Ids that may end a reply by a request.
pub(crate) const STOP_IDS_MAX: usize = 1024;
/// Texts that may end a reply. Each is searched for behind every token.
pub(crate) const STOPS_MAX: usize = 256;
/// Bytes of all texts that may end a reply.
pub(crate) const STOP_BYTES_MAX: usize = 16 << 10;
/// Longest `cache_salt`, in bytes.
pub(crate) const SALT_BYTES_MAX: usize = 1024;

// Prescribed forms.

/// Largest form, in bytes.
pub(crate) const FORM_BYTES_MAX: usize = 128 << 10;
/// Deepest nesting of groups in a regular expression or in rules. The JSON parser bounds that of
/// schemas.
pub(crate) const FORM_DEPTH_MAX: usize = 200;
/// Forms that are compiled at once; further ones wait. A form may take a core for seconds.
pub(crate) const FORMS_AT_ONCE: usize = 2;
/// Patterns that one text of a schema must match together. The time to compile them doubles with
/// each.
pub(crate) const JOINT_PATTERNS_MAX: usize = 8;
/// Largest `multipleOf` of a schema, without its decimal point. Each remainder takes memory.
pub(crate) const MULTIPLE_MAX: u64 = 20_000;
/// Stack for compiling a form, in bytes. Memory is used only as deep as the form is nested.
pub(crate) const FORM_STACK_BYTES: usize = 256 << 20;
/// Time for one token of a form above which the form is slow. In a step with other work, at most
/// one reply of a slow form gets a token.
pub(crate) const SLOW_MASK: Duration = Duration::from_millis(10);
/// Rest of all slow forms after one of them got a token, as a multiple of the time that it took.
/// Others run meanwhile.
pub(crate) const SLOW_REST: u32 = 4;
/// Longest time for one token of a form: its mask and its match. A reply that needs longer fails.
pub(crate) const MASK_WAIT: Duration = Duration::from_millis(500);
/// Longest time for the first mask of a form, which is computed beside the engine's steps.
pub(crate) const FIRST_MASK_WAIT: Duration = Duration::from_secs(2);
/// Time that the tokens of a form may take beyond [`MASK_TOKEN_WAIT`] each, in one reply. The
/// tables of a new form are filled with its first masks.
pub(crate) const MASK_START_WAIT: Duration = Duration::from_secs(1);
/// Mean time for one token of a form, once [`MASK_START_WAIT`] is used up.
pub(crate) const MASK_TOKEN_WAIT: Duration = Duration::from_millis(20);

// What is remembered of replies and weights.

/// Memory of remembered replies, in bytes. The half that was not used for longest is forgotten
/// first.
pub(crate) const REMEMBERED_BYTES_MAX: usize = 256 << 20;
/// Labels of weights whose checksums are remembered.
pub(crate) const LABELS_MAX: usize = 65_536;
/// Longest label of weights, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 1024;
/// Longest name of an adapter, in bytes.
pub(crate) const ADAPTER_NAME_BYTES_MAX: usize = 256;
/// Adapters that requests may name, those that are read from their folders again included.
pub(crate) const ADAPTERS_MAX: usize = 4096;
/// Conversations of one call to `/v1/chat/completions/batch`.
pub(crate) const BATCH_CHATS_MAX: usize = 1024;

// Commands and weight transfers.

/// Commands that wait for the engine thread.
pub(crate) const COMMANDS_MAX: usize = 64;
/// Largest value of a trainer's store that is read, in bytes.
pub(crate) const STORE_VALUE_BYTES_MAX: u64 = 1 << 20;
/// Longest header of a safetensors file, in bytes.
pub(crate) const TENSOR_HEADER_BYTES_MAX: u64 = 100_000_000;
/// One part in so many of a GPU's memory stays free for steps while weights arrive.
pub(crate) const FREE_PART: usize = 32;
