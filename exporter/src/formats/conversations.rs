//! Formats of conversations: `sft`, `sft-tokens`, `kto`, `openai`, `preference`,
//! `openai-preference`.
//!
//! [`trained_messages`] finds the messages that a row trains, and [`main_conversation`] joins the
//! rows of one conversation.

pub(crate) mod kto;
pub(crate) mod main_conversation;
pub(crate) mod openai;
pub(crate) mod preference;
pub(crate) mod sft;
pub(crate) mod sft_tokens;
pub(crate) mod trained_messages;
