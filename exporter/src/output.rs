//! Output: rows in, files out.
//!
//! - [`sink`] makes records of rows, has them encoded, and puts the files in place.
//! - [`encode`] makes bytes of records (`parquet`, `jsonl`), `open_file` in a thread of its own.
//! - [`target`] is where files go, and how they become visible only when they are whole; [`object`]
//!   a store of objects, spoken to by `object_http`.
//! - `layout` names the files, `manifest` says what they hold, `card` says it to `datasets`, and
//!   [`exported`] reads it back.

mod card;
pub(crate) mod encode;
pub(crate) mod exported;
pub(crate) mod jsonl;
mod layout;
mod manifest;
pub(crate) mod object;
mod object_http;
mod open_file;
mod parquet;
pub(crate) mod sink;
pub(crate) mod target;
