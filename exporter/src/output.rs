//! Output: rows in, files out.
//!
//! - [`sink`] makes records of rows, has them encoded, and puts the files in place.
//! - [`encode`] encodes records (`parquet` with its `footer`, `jsonl`); `open_file` does so in a
//!   thread of its own.
//! - [`target`] is the place of the files, which become visible only when they are whole.
//!   [`objects`] is an object store, reached through `object_http`.
//! - `statements` are the tables beside the rows: `annotations`, `comments`.
//! - `layout` names the files, `manifest` lists their content, `card` describes them to `datasets`,
//!   and [`read_export`] reads an export again.

mod annotations;
mod card;
mod comments;
pub(crate) mod encode;
mod footer;
pub(crate) mod jsonl;
mod layout;
mod manifest;
mod object_http;
pub(crate) mod objects;
mod open_file;
mod parquet;
pub(crate) mod read_export;
pub(crate) mod sink;
mod statements;
pub(crate) mod target;
