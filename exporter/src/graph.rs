//! The graph of an episode: which choice each call continues, and the paths that result.
//!
//! In the order of the walk:
//! - [`scan`] reads the calls of an episode and makes their [`node`]s, one a choice.
//!   [`previous_responses`] restores conversations that the server kept. [`policies`] says which
//!   models are versions of one.
//! - [`thread`] links the nodes into a [`forest`] by token prefix, never by arrival order.
//!   [`prefix_index`] finds the longest path that a prompt starts with. [`resolve`] chooses between
//!   equal paths. [`text_parents`] finds parents by text where the tokens differ.
//! - [`message_ids`] maps messages to numbers. [`message_numbers`] assigns the numbers, and
//!   [`body_messages`] reads messages from a request body.
//! - [`merge`] turns the forest into [`paths`]. [`descendants`] orders the nodes, [`kind`] says
//!   what a path is for, [`assessment`] says which tokens may be trained.
//! - [`derive`] is these steps in one, for all that is made of an attempt.

pub(crate) mod assessment;
mod body_messages;
pub(crate) mod derive;
pub(crate) mod descendants;
pub(crate) mod forest;
pub(crate) mod kind;
pub(crate) mod merge;
pub(crate) mod message_ids;
mod message_numbers;
pub(crate) mod node;
pub(crate) mod paths;
mod policies;
mod prefix_index;
pub(crate) mod previous_responses;
pub(crate) mod resolve;
pub(crate) mod scan;
mod text_parents;
pub(crate) mod thread;
pub(crate) mod trunk;
