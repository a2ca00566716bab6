//! Formats: the records of an export, and the names of their columns.
//!
//! A format is a list of columns over one kind of record, under the names of the trainer that reads
//! it.
//! - [`table`]: columns as names and getters, and their Arrow arrays.
//! - [`records`]: builders that take rows and make records, one for each kind of record.
//! - [`sample`]: a row with its numbers, of which most formats are columns.
//! - [`conversations`]: formats of messages, and the turns that they train.
//! - [`trainers`]: the formats of trainers.
//! - [`chat_json`]: messages in the form of OpenAI's API. [`refusals`]: reasons to refuse a row.

mod chat_json;
mod conversations;
pub(crate) mod records;
mod refusals;
mod sample;
mod table;
mod trainers;

#[cfg(test)]
mod tests;
