//! The only crate that knows provider JSON. No I/O, no clock, not async.
//!
//! In the order in which a call meets them:
//! - [`route`] and [`Request`]: what kind of call it is and what its body says.
//! - [`ask`]: what to add so that the upstream reports ids and logprobs, and [`Hide`], which takes
//!   exactly that out of the reply again, by splicing bytes.
//! - [`translate`] and [`Back`]: calls on other wires over a server's chat route.
//! - [`lineage`]: which of its agents made the call.
//! - [`Splitter`] and [`Event`]: server-sent events out of any chunking.
//! - [`Collector`] and [`Facts`]: what the reply says about the tokens that were sampled.
//! - [`Owed`] and [`Prompts`]: what a reply leaves to be asked of its server.
//! - [`alternatives`], [`kept`] and [`routing`]: the arrays beside the tokens, for the exporter.
//! - [`conversation`] and [`answers`]: the messages of a recorded call, for the exporter;
//!   [`rendering`] and [`token_texts`]: what else says how they became tokens;
//!   [`response_id`] and [`previous_response`]: which call it goes on from, where a server keeps
//!   what was said.
//! - [`Sampler`] and [`Effective`]: how a server samples by itself, and what a call was sampled
//!   with; [`Fit`]: whether its logprobs are of that.
//! - [`Probe`], [`Server`] and [`likeness`]: what an upstream is and gives, for the doctor.
#![forbid(unsafe_code)]

mod ask;
mod canonical;
mod chain;
mod conversation;
mod dialect;
mod effective;
mod fault;
mod force;
mod hide;
mod json;
mod likeness;
mod lineage;
mod mask;
mod owed;
mod probe;
#[cfg(test)]
mod properties;
mod rendering;
mod reply;
mod request;
mod routes;
mod sampler;
mod server;
mod sides;
mod sse;
mod token_text;
mod translate;
mod vocabulary;

pub use ask::{Asked, REFUSAL_BYTES_MAX, Refused, Wants, ask};
pub use canonical::{canonical, content_text, parsed_arguments, reasoning};
pub use chain::{behind, is_to_be_kept, previous_response, response_id, whole_request};
pub use conversation::{Answer, Conversation, Written, answers, conversation, written};
pub use dialect::{Dialect, dialect_of_models};
pub use effective::{Effective, Fit};
pub use fault::{error_body, error_event, error_text};
pub use force::{BadForce, Force};
pub use hide::Hide;
pub use likeness::{Difference, Likeness, likeness};
pub use lineage::lineage;
pub use owed::{Owed, Prompts, rendered_text};
pub use probe::Probe;
pub use rendering::rendering;
pub use reply::{Collector, Facts, counts};
pub use request::Request;
pub use routes::{route, route_at, route_of, samples_unheard, tells_natively};
pub use sampler::Sampler;
pub use server::Server;
pub use sides::{Alternative, Routing, alternatives, kept, routing};
pub use sse::{Event, EventTooLong, Splitter};
pub use token_text::token_texts;
pub use translate::{
    Back, Document, Untranslatable, lacks_limit, leans_on_state, translate, translates,
};
pub use vocabulary::{NoVocabulary, Vocabulary};
