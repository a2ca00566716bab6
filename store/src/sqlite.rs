//! A store in a SQLite file.
//!
//! - `open`: pragmas, migrations, refusals; `lock` keeps a second recorder out; `private` keeps
//!   other users out.
//! - `checkpoint` keeps the WAL short; `identity` notices that the file was moved.
//! - `space` gives free pages back.

pub(crate) mod checkpoint;
pub(crate) mod identity;
pub(crate) mod lock;
pub(crate) mod open;
pub(crate) mod private;
pub(crate) mod space;
