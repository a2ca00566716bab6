//! The only integration binary, with one file for each subject. `tidy` checks that none is
//! forgotten.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "skipped tests and counts")]

mod admission;
mod annotations;
mod chains;
mod chaos;
mod circles;
mod codings;
mod comments;
mod continuation;
mod crash;
mod differential;
mod disconnect;
mod disk;
mod docs;
mod durable;
mod engine_routes;
mod every_http;
mod experts;
mod faults;
mod feed;
mod feed_crash;
mod feed_shared;
mod fleet;
mod fleet_shared;
mod fleet_storm;
mod headers;
mod heartbeat;
mod hosted;
mod http;
mod kinds;
mod large;
mod life;
mod llamacpp;
mod natively;
mod postgres;
mod power;
mod provenance;
mod reading;
mod recorder;
mod replay;
mod sampling;
mod sockets;
mod tags;
mod tapes;
mod thoughts;
mod tidy;
mod transparency;
mod upgrade;
mod wait;
mod walk;
mod wires;
