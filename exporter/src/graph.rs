//! The graph of an episode: which choice each call continues, and the paths that this makes.
//!
//! In the order of the walk:
//! - [`node`]: one choice of one call. [`scan`] reads the calls of an episode, and `chain` puts
//!   together what the server kept of a conversation.
//! - [`forest`]: the nodes, and what each of them continues. [`thread`] finds that by token prefix,
//!   never by arrival order: `index` finds the longest path, [`resolve`] tells equals apart, and
//!   `leads` finds where the words go on and the tokens do not.
//! - `message_ids`: the messages of a call as numbers, `message_numbers` gives them out, `written`
//!   reads them from a body.
//! - [`path`]: the paths of a forest. [`merge`] finds them: [`family`] orders them, [`kind`] says
//!   what each is for, [`judged`] whether its tokens may be trained.
//! - [`tree`]: the same, for those who draw or count it.

mod chain;
pub(crate) mod family;
pub(crate) mod forest;
mod index;
pub(crate) mod judged;
pub(crate) mod kind;
mod leads;
pub(crate) mod merge;
pub(crate) mod message_ids;
mod message_numbers;
pub(crate) mod node;
pub(crate) mod path;
pub(crate) mod resolve;
pub(crate) mod scan;
pub(crate) mod thread;
pub(crate) mod tree;
mod written;
