//! The only crate that knows provider JSON. No I/O, no clock, not async.
//!
//! The rooms, in the order in which a call meets them:
//! - [`route`], [`Request`] and [`lineage`]: the kind of a call, its body, and the agent that
//!   made it.
//! - [`ForcedSampling`] overrides the agent's sampling parameters. [`ServerSampling`] and
//!   [`EffectiveSampling`] tell what a call was sampled with, and [`LogprobFit`] whether its
//!   logprobs are of that distribution.
//! - [`ask`]: the fields that make the upstream report ids and logprobs, and [`ReplyFilter`],
//!   which takes exactly these out of the reply again by splicing bytes.
//! - [`translate`] and [`ReplyTranslator`]: Messages and Responses calls over a server's chat
//!   route.
//! - [`Splitter`] and [`Event`]: server-sent events out of any chunking.
//! - [`Collector`] and [`Facts`]: the sampled tokens that a reply reports; [`MissingIds`] and
//!   [`PromptLookup`]: the ids that it does not report, and how to ask the server for them.
//! - [`alternatives`], [`sampling_mask`] and [`routing`]: the arrays beside the tokens.
//! - [`conversation`](conversation()) and [`answers`]: the messages of a recorded call, for the
//!   exporter.
//! - [`ServerInfo`], [`Probe`] and [`compare`]: what an upstream is and reports, for the doctor.
#![forbid(unsafe_code)]

mod ask;
mod conversation;
mod dialect;
mod error;
mod hide;
mod json;
mod lineage;
#[cfg(test)]
mod properties;
mod reply;
mod request;
mod routes;
mod sampling;
mod server;
mod sides;
mod sse;
mod translate;

pub use ask::{AskOptions, AugmentedRequest, REFUSAL_BYTES_MAX, RefusedFields, ask};
pub use conversation::{
    Answer, Conversation, RawConversation, answers, canonical, content_text, conversation,
    parsed_arguments, prepend_turn, prepend_turns, previous_response, raw_conversation, reasoning,
    response_id, stores_reply, template_fields, token_texts,
};
pub use dialect::{Dialect, dialect_of_models};
pub use error::{error_body, error_event, error_text};
pub use hide::ReplyFilter;
pub use lineage::lineage;
pub use reply::{
    Collector, Facts, MissingIds, PromptLookup, Vocabulary, VocabularyError, rendered_text,
    token_counts,
};
pub use request::Request;
pub use routes::{reports_natively, route, route_for, route_with_body, samples_unrecorded};
pub use sampling::{
    EffectiveSampling, ForcedSampling, ForcedSamplingError, LogprobFit, ServerSampling,
};
pub use server::{Comparison, Difference, Probe, ServerInfo, compare};
pub use sides::{Alternative, Routing, alternatives, routing, sampling_mask};
pub use sse::{Event, EventTooLong, Splitter};
pub use translate::{
    ReplyTranslator, TranslatedReply, Untranslatable, is_translated, missing_limit_error,
    server_state_error, translate,
};

pub use ask::{AskOptions as Wants, AugmentedRequest as Asked, RefusedFields as Refused}; // alias
pub use conversation::RawConversation as Written; // alias
pub use conversation::template_fields as rendering; // alias
pub use conversation::{prepend_turn as whole_request, prepend_turns as behind}; // alias
pub use conversation::{raw_conversation as written, stores_reply as is_to_be_kept}; // alias
pub use hide::ReplyFilter as Hide; // alias
pub use reply::{MissingIds as Owed, PromptLookup as Prompts}; // alias
pub use reply::{VocabularyError as NoVocabulary, token_counts as counts}; // alias
pub use routes::{reports_natively as tells_natively, route_for as route_at}; // alias
pub use routes::{route_with_body as route_of, samples_unrecorded as samples_unheard}; // alias
pub use sampling::ServerSampling as Sampler; // alias
pub use sampling::{EffectiveSampling as Effective, ForcedSampling as Force}; // alias
pub use sampling::{ForcedSamplingError as BadForce, LogprobFit as Fit}; // alias
pub use server::{Comparison as Likeness, ServerInfo as Server, compare as likeness}; // alias
pub use sides::sampling_mask as kept; // alias
pub use translate::server_state_error as leans_on_state; // alias
pub use translate::{ReplyTranslator as Back, TranslatedReply as Document}; // alias
pub use translate::{is_translated as translates, missing_limit_error as lacks_limit}; // alias
