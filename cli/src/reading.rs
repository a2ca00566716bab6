//! Commands that show a recording to people, one file each.
//!
//! [`source`] reads a store or asks a server, in the same documents. [`message`], [`call_line`] and
//! [`numbers`] turn parts of them into lines; [`prices`] and [`costs`] put prices on them.

pub(crate) mod audit;
pub(crate) mod call_line;
mod costs;
pub(crate) mod diff;
pub(crate) mod episodes;
pub(crate) mod health;
mod message;
mod named;
mod numbers;
mod prices;
pub(crate) mod show;
mod source;
pub(crate) mod sql;
pub(crate) mod stats;
pub(crate) mod tail;
pub(crate) mod view;

pub(crate) use self::source::page_address;
