//! Parts that chat has no form for: refused by translations, kept by the record.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The key of a message that holds the parts of it that were not read, as they came.
const UNREAD: &str = "unread_parts";
/// The key of a message that holds what stood beside it in the conversation and was not read.
const UNREAD_ITEMS: &str = "unread_items";

/// A request that has no equivalent in chat; the reason as text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Untranslatable(pub(crate) String);

/// A manner of reading the parts of a conversation: for a translation, which refuses what it cannot
/// carry over, or for the record, which keeps the rest.
#[derive(Debug)]
pub(crate) struct PartReader {
    is_strict: bool,
    left: Vec<Value>,
}

impl PartReader {
    /// A reader for translations: the first part without a form in chat is an error.
    pub(crate) fn strict() -> Self {
        Self { is_strict: true, left: Vec::new() }
    }

    /// A reader for the record: a part without a form in chat costs only itself.
    pub(crate) fn lenient() -> Self {
        Self { is_strict: false, left: Vec::new() }
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Leaves a part out.
    ///
    /// # Errors
    /// The reason, in a translation.
    pub(crate) fn leave(
        &mut self,
        part: &Value,
        reason: impl FnOnce() -> Untranslatable,
    ) -> Result<(), Untranslatable> {
        if self.is_strict {
            return Err(reason());
        }
        self.left.push(part.clone());
        Ok(())
    }

    /// Leaves out a part that translations leave out as well.
    pub(crate) fn skip(&mut self, part: &Value) {
        if !self.is_strict {
            self.left.push(part.clone());
        }
    }

    /// Returns true if parts were left out that no message holds yet.
    pub(crate) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Puts what was left out into the message that it was part of.
    pub(crate) fn put_into(&mut self, message: &mut Map<String, Value>) {
        add(message, UNREAD, std::mem::take(&mut self.left));
    }

    /// Puts what was left out beside the message that it followed.
    pub(crate) fn put_beside(&mut self, message: &mut Map<String, Value>) {
        add(message, UNREAD_ITEMS, std::mem::take(&mut self.left));
    }
}

fn add(message: &mut Map<String, Value>, key: &str, left: Vec<Value>) {
    match message.get_mut(key) {
        _ if left.is_empty() => {}
        Some(Value::Array(known)) => known.extend(left),
        _ => drop(message.insert(key.to_owned(), Value::Array(left))),
    }
}

/// Adds what was not read of `other` to what was not read of a message.
pub(crate) fn keep_unread(message: &mut Map<String, Value>, other: &Map<String, Value>) {
    for key in [UNREAD, UNREAD_ITEMS] {
        add(message, key, other.get(key).and_then(Value::as_array).cloned().unwrap_or_default());
    }
}

/// The parts of a message that were not read, as they came.
pub(crate) fn unread_parts(message: &Value) -> &[Value] {
    listed(message, UNREAD)
}

fn listed<'a>(message: &'a Value, key: &str) -> &'a [Value] {
    message.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The number of parts of messages, and of items beside them, that were not read, by their type.
pub fn unread_counts<'a>(messages: impl IntoIterator<Item = &'a Value>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let of_message = |message| listed(message, UNREAD).iter().chain(listed(message, UNREAD_ITEMS));
    for part in messages.into_iter().flat_map(of_message) {
        *counts.entry(unread_type(part)).or_default() += 1;
    }
    counts
}

/// The texts that a server sealed in what was not read of a message, or beside it.
pub fn sealed_texts(message: &Value) -> Vec<&str> {
    let left = listed(message, UNREAD).iter().chain(listed(message, UNREAD_ITEMS));
    left.filter_map(|part| part.get("encrypted_content")?.as_str()).collect()
}

/// The type of a part; without one, the kind of JSON value that it is.
fn unread_type(part: &Value) -> String {
    let kind = match part {
        Value::Object(fields) => match fields.get("type").or(fields.get("role")) {
            Some(Value::String(kind)) => kind.as_str(),
            _ => "object",
        },
        Value::Array(_) => "list",
        Value::String(_) => "text",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
    };
    kind.to_owned()
}
