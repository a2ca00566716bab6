//! Forks: where a prompt left a history that was known when it was sent, why, and what that cost.
//!
//! A fork is described from the later call. When it began, turns were on record whose tokens its
//! prompt starts with, and then does not continue. Tries at one prompt are no forks, and neither
//! are calls whose prompts hold the whole history.
//!
//! [`finder`] finds them, [`builder`] describes them: [`rules`] finds the [`Cause`], [`excerpts`]
//! shows the place with the [`token_texts`]. [`table`] is the table beside the rows.

pub(crate) mod builder;
mod excerpts;
mod finder;
mod rules;
pub(crate) mod table;
pub(crate) mod token_texts;

use serde::Serialize;

use crate::notes::cause::Cause;

/// One place where a history was left.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fork {
    /// The episode.
    pub episode_id: String,
    /// Number of the attempt at it.
    pub attempt: u32,
    /// The call whose prompt leaves the history.
    pub call_id: String,
    /// The first row that holds that call.
    pub trajectory_id: String,
    /// The call in whose tokens, prompt or answer, the history was left.
    pub parent_call_id: String,
    /// The first row that holds the newest turn of that history.
    pub parent_trajectory_id: String,
    /// Kind of the first row that holds the call.
    pub kind: &'static str,
    /// The first token that differs, counted from the start of both; none without ids.
    pub position: Option<u32>,
    /// True where the model sampled the token of the history at that position; none without ids.
    pub in_sampled: Option<bool>,
    /// Number of prompt tokens from there on, which the server must read anew; none without ids.
    pub prefill_tokens: Option<u32>,
    /// Number of history tokens from there on, which the prompt does not continue; none without
    /// ids.
    pub lost_tokens: Option<u32>,
    /// Number of those that the model had sampled; none without ids.
    pub lost_sampled_tokens: Option<u32>,
    /// The likely cause.
    pub cause: Cause,
    /// Other differences between the two calls.
    pub also: Vec<Cause>,
    /// Advice on what to change.
    pub advice: &'static str,
    /// Text that both have just before the position.
    pub text_before: String,
    /// Text of the history from there on.
    pub text_known: String,
    /// Text of the prompt from there on.
    pub text_sent: String,
    /// Source of these texts: `tokenizer`, `messages`, `logprobs`, `ids`; empty where nothing is
    /// recorded.
    pub text_source: &'static str,
    /// The first ids of the history from there on.
    pub ids_known: Vec<u32>,
    /// The first ids of the prompt from there on.
    pub ids_sent: Vec<u32>,
    /// The reason for which the recorder did not send the ids of the history; none if it was not
    /// to.
    pub continued: Option<&'static str>,
}

#[cfg(test)]
mod tests;
