//! The fields that make an upstream report ids and logprobs, added on the agent's behalf.
//!
//! Each server has its own names for them, its own places for the answers, and its own traps. A
//! field is only added if its answer can be hidden again exactly: see [`ReplyFilter`].

mod builder;
mod continuation;
mod known_prompts;
mod llamacpp;
mod openai;
mod refused;
mod sglang;
mod vllm;

use bytes::Bytes;
use episode::Route;

use crate::dialect::Dialect;
use crate::hide::ReplyFilter;
use crate::request::Request;
use builder::{NotAsked, RequestBuilder};
pub use continuation::told_texts::{
    ServerQuestion, TemplateQuestion, ids_answer, ids_question, text_answer, text_question,
    texts_answer, texts_question,
};
pub use continuation::{PromptField, PromptQuestion, ServerEncoding};
pub use known_prompts::{AskedPrompt, KnownPrompts, LearnedPrompt};
pub use refused::{REFUSAL_BYTES_MAX, RefusedFields};

/// The data that every call asks an upstream for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskOptions {
    /// The dialect of the upstream.
    pub dialect: Dialect,
    /// Asks a hosted server for logprobs. They can change billing and routing there.
    pub hosted_logprobs: bool,
    /// Number of alternatives to record beside each token.
    pub top_logprobs: u32,
    /// Records which experts each token was routed to.
    pub routed_experts: bool,
    /// The first token whose experts are asked for. Those before are recorded already.
    pub experts_from: usize,
    /// Records which tokens truncated sampling left to choose from.
    pub sampling_mask: bool,
    /// Fields that this upstream refused, and that are left out.
    pub refused: RefusedFields,
}

impl AskOptions {
    /// Ids, logprobs and versions from a server of `dialect`, and nothing more.
    pub fn for_dialect(dialect: Dialect) -> Self {
        Self {
            dialect,
            hosted_logprobs: false,
            top_logprobs: 0,
            routed_experts: false,
            experts_from: 0,
            sampling_mask: false,
            refused: RefusedFields::default(),
        }
    }
}

/// A request with the added fields, and the filter that hides their answers.
#[derive(Debug, Clone)]
pub struct AugmentedRequest {
    /// The body to send.
    pub body: Bytes,
    /// Headers to send beside the agent's own.
    pub headers: Vec<(&'static str, &'static str)>,
    /// Takes the answers to the added fields out of the reply.
    pub hide: ReplyFilter,
    /// Names of the fields that were added.
    pub added: Vec<&'static str>,
    /// True if the prompt is sent as ids.
    pub has_prompt: bool,
    /// True if experts are asked for from [`AskOptions::experts_from`] on only.
    pub starts_experts: bool,
    /// The reason for asking for less than the token ids need.
    pub unasked: Option<&'static str>,
}

/// Adds to `request` the fields that make the upstream report what it sampled. `has_header` tells
/// which headers the agent itself sent. `prompt` is that of a chat as ids, if they are sent in
/// place of the server's own.
pub fn ask(
    options: &AskOptions,
    route: Route,
    request: &Request,
    prompt: Option<&PromptField>,
    has_header: impl Fn(&str) -> bool,
) -> AugmentedRequest {
    let mut builder = RequestBuilder::new(request, options.refused, options.dialect);

    let asked = match options.dialect {
        _ if !route.generates() => Err(NotAsked("the route samples nothing")),
        // Its other routes are translated to chat and have no fields for ids.
        Dialect::Rolltape if matches!(route, Route::Responses | Route::Messages) => {
            Err(NotAsked("the engine reports ids on its chat route only"))
        }
        // This route always reports ids, and its prompts are ids already.
        Dialect::Rolltape if route == Route::Generate => {
            Err(NotAsked("the route always reports its ids"))
        }
        Dialect::Vllm | Dialect::Rolltape => vllm::ask(&mut builder, options, route),
        Dialect::Sglang => sglang::ask(&mut builder, options, route, &has_header),
        Dialect::Llamacpp => llamacpp::ask(&mut builder, route),
        Dialect::OpenAi => openai::ask(&mut builder, options, route),
    };

    match asked {
        Ok(()) => {
            if let Some(prompt) = prompt {
                builder.set(prompt.name, prompt.value.as_str(), &[]);
            }
            builder.finish()
        }
        // The builder may have grown before the reason was found, so the request starts over.
        Err(NotAsked(reason)) => {
            let plain =
                RequestBuilder::new(request, RefusedFields::default(), options.dialect).finish();
            AugmentedRequest { unasked: Some(reason), ..plain }
        }
    }
}
