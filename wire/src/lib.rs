//! The only crate that knows provider JSON. No I/O, no clock, not async.
//!
//! The rooms, in the order in which a call meets them:
//! - [`access`], [`route`], [`Request`] and [`lineage`]: the routes that agents may use, the kind
//!   of a call, its body, and the agent that made it. [`without_scheduling`] cuts the fields that
//!   only the user decides.
//! - [`RequestPrint`] and [`request_differences`]: a request held against a recorded one, under
//!   [`IgnoreRules`].
//! - [`BasePath`]: where the routes are on a server.
//! - [`ForcedSampling`] overrides the agent's sampling parameters. [`ServerSampling`] and
//!   [`EffectiveSampling`] tell what a call was sampled with, and [`LogprobFit`] whether its
//!   logprobs are of that distribution.
//! - [`ask`]: the fields that make the upstream report ids and logprobs, and [`ReplyFilter`],
//!   which takes exactly these out of the reply again by splicing bytes.
//! - [`PromptQuestion`] and [`ServerEncoding`]: chats whose prompts are sent as ids.
//! - [`KnownPrompts`]: prompts whose experts are recorded, and need not be asked for again.
//! - [`translate`] and [`ReplyTranslator`]: Messages and Responses calls over a server's chat
//!   route.
//! - [`ReplyKind`] and [`parts`]: whether a reply is an event stream or a document, by its bytes.
//! - [`Splitter`] and [`Event`]: server-sent events out of any chunking.
//! - [`Collector`] and [`Facts`]: the sampled tokens that a reply reports; [`MissingIds`] and
//!   [`PromptLookup`]: the ids that it does not report, and how to ask the server for them.
//! - [`alternatives`], [`sampling_mask`] and [`routing`]: the arrays beside the tokens.
//! - [`conversation`](conversation()) and [`answers`]: the messages of a recorded call, for the
//!   exporter; [`unread_counts`]: the parts of them that were left out. Both and the translations
//!   read chat's messages in one room, `chat`.
//! - [`named_state`] and [`told_ids`]: what a request names of the state that a server keeps, and
//!   what a reply gives of it.
//! - [`engine_route`]: the control routes of engines.
//! - [`ScoreQuestion`] and [`TokenScore`]: the logprobs of ids under a server's model.
//! - [`ServerInfo`], [`Probe`] and [`compare`]: what an upstream is and reports, for the doctor.
#![forbid(unsafe_code)]

mod ask;
mod bounds;
mod chat;
mod conversation;
mod dialect;
mod document;
mod engine_routes;
mod error;
mod hide;
mod json;
mod lineage;
mod parameters;
#[cfg(test)]
mod properties;
mod reply;
mod request;
mod routes;
mod sampling;
mod scheduling;
mod server;
mod shape;
mod sse;
mod token_data;
mod translate;
mod weights;

pub use ask::{
    AskOptions, AskedPrompt, AugmentedRequest, KnownPrompts, LearnedPrompt, PromptField,
    PromptQuestion, REFUSAL_BYTES_MAX, RefusedFields, ServerEncoding, ServerQuestion,
    TemplateQuestion, ask, ids_answer, ids_question, text_answer, text_question, texts_answer,
    texts_question,
};
pub use chat::{Untranslatable, plain_message, sealed_texts, unread_counts};
pub use conversation::{
    BEGUN_MARKS, Conversation, ConversationReader, ListedToken, NamedState, RawConversation,
    ReadMessage, ReplyAnswer, StatePlace, answer, answers, bytes_of_ids, canonical, content_text,
    conversation, is_answer, is_begun_answer, listed_tokens, named_state, names_state,
    parsed_arguments, prepend_turn, prepend_turns, previous_response, raw_conversation, reasoning,
    response_id, stores_reply, tells_state, template_fields, thread_root, told_ids,
    unknown_state_body,
};
pub use dialect::{Dialect, dialect_of_models};
pub use document::ReplyDocument;
pub use document::kind::{ReplyKind, ReplyPart, padding, parts};
pub use engine_routes::{ENGINE_ROUTES, EngineRoute, EngineServer, engine_route};
pub use error::{error_body, error_event, error_text, is_anthropic_error};
pub use hide::ReplyFilter;
pub use json::json_text;
pub use lineage::lineage;
pub use reply::{
    Collector, Facts, MissingIds, PromptLookup, Vocabulary, VocabularyError, rendered_text,
    token_counts,
};
pub use request::{
    IgnoreRules, InvalidIgnoreRule, Request, RequestDifference, RequestPrint, request_differences,
};
pub use routes::base::BasePath;
pub use routes::{
    Access, access, depends_on_body, is_anthropic_call, reports_natively, route, route_for,
    route_with_body, takes_json,
};
pub use sampling::{
    EffectiveSampling, ForcedSampling, ForcedSamplingError, LogprobFit, ServerSampling,
};
pub use scheduling::{is_scheduling_header, without_scheduling};
pub use server::{
    Comparison, Difference, Probe, ScoreError, ScoreQuestion, ServerInfo, TokenScore,
    adapter_request, around_questions, compare, weights_request,
};
pub use shape::shape;
pub use sse::{Event, EventTooLong, ReadEvent, Splitter, events};

pub use token_data::{Alternative, Routing, alternatives, routing, sampling_mask};
pub use translate::{
    ReplyTranslator, TranslatedReply, is_translated, missing_limit_error, server_state_error,
    translate,
};

pub use weights::{
    close_attempt_body, pushed_label, served_label, with_rank_offset, world_size, world_size_body,
};
