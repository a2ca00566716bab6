//! Several engines behind one address: which of them gets a call, and which may.
//!
//! - `resolve`: host names with several addresses.
//! - `engine`: an engine, its state and its calls.
//! - `pick`: the choice among engines, as a function. `threads`: where each thread is.
//! - `fence`: the weights that an engine must have. `members`: all engines, and the choice for a
//!   call.
//! - `send`: a call on its way to an engine, and to the next one if it takes no connection.
//! - `health`: the look at each engine, again and again. `stall`: signs that an engine answers its
//!   looks and not its calls.

pub(crate) mod engine;
pub(crate) mod fence;
pub(crate) mod health;
pub(crate) mod members;
mod pick;
mod resolve;
pub(crate) mod send;
mod stall;
pub(crate) mod threads;
