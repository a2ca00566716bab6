//! The one integration binary. A file a subject; `tidy` checks that none is forgotten.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod differential;
mod disconnect;
mod docs;
mod durable;
mod faults;
mod tags;
mod tapes;
mod tidy;
mod transparency;
mod walk;
mod wires;
