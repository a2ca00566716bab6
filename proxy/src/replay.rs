//! Calls that are answered from a recording.
//!
//! An attempt may have a deck: the calls of a recorded attempt. A call that matches one of them
//! gets the bytes of its reply, is recorded as given again, and never reaches the upstream.
//! - `deck`: the recorded calls, and which of them answers a request.
//! - `decks`: the decks of all attempts.
//! - `answer`: the walk of such a call.
//! - `body`: the bytes of the reply, which end once the call is on disk.
//! - `told`: what a person reads of a request that matches none.

pub(crate) mod answer;
mod body;
mod deck;
pub(crate) mod decks;
mod told;
