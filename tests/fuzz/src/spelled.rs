//! JSON that keeps the spelling of every leaf, every key and every duplicate. It is read by
//! `serde_json`, not by the walker of `wire`.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A value with its spelling.
#[derive(Debug, PartialEq)]
pub enum Spelled<'a> {
    Leaf(&'a str),
    List(Vec<Spelled<'a>>),
    Object(Vec<(String, Spelled<'a>)>),
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Each)
    }
}

/// The members of an object with the text of their values, duplicates included.
pub fn members_of(json: &str) -> Option<Vec<(String, &str)>> {
    let members: Members<'_> = serde_json::from_str(json).ok()?;
    Some(members.0.into_iter().map(|(key, value)| (key, value.get())).collect())
}

/// The same for a body; `None` if it is not an object, or not JSON at any depth.
pub fn root_members(body: &[u8]) -> Option<Vec<(String, &str)>> {
    serde_json::from_slice::<Value>(body).ok().filter(Value::is_object)?;
    members_of(std::str::from_utf8(body).ok()?)
}

impl<'a> Spelled<'a> {
    /// Reads a document; `None` if it is not JSON, or deeper than `serde_json` reads.
    pub fn read(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice::<Value>(json).ok()?;
        Some(Self::of(std::str::from_utf8(json).ok()?.trim()))
    }

    fn of(json: &'a str) -> Self {
        match json.as_bytes()[0] {
            b'{' => {
                let members = members_of(json).expect("it was read before");
                Self::Object(members.into_iter().map(|(k, v)| (k, Self::of(v))).collect())
            }
            b'[' => {
                let items: Vec<&RawValue> = serde_json::from_str(json).expect("so was this");
                Self::List(items.into_iter().map(|item| Self::of(item.get())).collect())
            }
            _ => Self::Leaf(json),
        }
    }

    /// The same without every member whose key is among `keys`, however deep.
    pub fn without(self, keys: &[&str]) -> Self {
        match self {
            Self::Leaf(_) => self,
            Self::List(items) => {
                Self::List(items.into_iter().map(|item| item.without(keys)).collect())
            }
            Self::Object(members) => Self::Object(
                members
                    .into_iter()
                    .filter(|(key, _)| !keys.contains(&key.as_str()))
                    .map(|(key, value)| (key, value.without(keys)))
                    .collect(),
            ),
        }
    }

    /// Returns true if it holds a member with one of `keys` at any depth.
    pub fn has(&self, keys: &[&str]) -> bool {
        match self {
            Self::Leaf(_) => false,
            Self::List(items) => items.iter().any(|item| item.has(keys)),
            Self::Object(members) => {
                members.iter().any(|(key, value)| keys.contains(&key.as_str()) || value.has(keys))
            }
        }
    }
}
