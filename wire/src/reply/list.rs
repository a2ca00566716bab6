//! Lists of a reply, read within bounds: neither their number nor their length is the upstream's
//! to decide.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::bounds::LIST_MAX;

/// Bytes of an id and its comma, for the first guess of a list's length.
const ID_BYTES: usize = 6;

/// A list of at most `MAX` elements; those that follow are passed over.
#[derive(Debug)]
pub(super) struct Capped<T, const MAX: usize = LIST_MAX> {
    pub(super) items: Vec<T>,
    /// True if elements were passed over.
    pub(super) is_cut: bool,
}

impl<T, const MAX: usize> Default for Capped<T, MAX> {
    fn default() -> Self {
        Self { items: Vec::new(), is_cut: false }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Capped<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut list = Self::default();
        let each = Each::new(|item| {
            list.items.push(item);
            list.items.len() < MAX
        });
        let is_cut = each.deserialize(deserializer)?;
        Ok(Self { is_cut, ..list })
    }
}

impl<const MAX: usize> Capped<u32, MAX> {
    /// Reads a list of ids; `None` is null.
    pub(super) fn of_ids(json: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        match plain_ids(json).filter(|ids| ids.len() <= MAX) {
            Some(items) => Ok(Some(Self { items, is_cut: false })),
            None => serde_json::from_slice(json),
        }
    }
}

/// The ids of a list that is spelled as servers spell it; `None` for any other JSON. serde reads a
/// number in twice the time.
fn plain_ids(json: &[u8]) -> Option<Vec<u32>> {
    let inner = json.strip_prefix(b"[")?.strip_suffix(b"]")?;
    if inner.is_empty() {
        return Some(Vec::new());
    }
    let mut ids = Vec::with_capacity(inner.len() / ID_BYTES);
    for text in inner.split(|byte| *byte == b',') {
        ids.push(plain_id(text.strip_prefix(b" ").unwrap_or(text))?);
    }
    Some(ids)
}

/// The id of these digits, if they are spelled as servers spell it.
pub(super) fn plain_id(digits: &[u8]) -> Option<u32> {
    let is_spelled = match digits {
        [] => false,
        [b'0', rest @ ..] => rest.is_empty(),
        // More digits may be too much for 32 bits.
        _ => digits.len() <= 9,
    };
    if !is_spelled {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |id, digit| digit.is_ascii_digit().then(|| id * 10 + u32::from(digit - b'0')))
}

/// Reads a list and gives its elements to a function, one by one, until it returns false. Returns
/// true if elements were passed over.
pub(super) struct Each<T, F> {
    take: F,
    of: PhantomData<T>,
}

impl<T, F: FnMut(T) -> bool> Each<T, F> {
    pub(super) fn new(take: F) -> Self {
        Self { take, of: PhantomData }
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> bool> DeserializeSeed<'de> for Each<T, F> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> bool> Visitor<'de> for Each<T, F> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<bool, A::Error> {
        while let Some(item) = list.next_element()? {
            if !(self.take)(item) {
                break;
            }
        }
        let mut is_cut = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            is_cut = true;
        }
        Ok(is_cut)
    }
}

/// Gives the elements of `list` to `take`, one by one, until it returns false. Returns true if
/// elements were passed over.
pub(super) fn each<'a, T: Deserialize<'a>>(
    list: &'a RawValue,
    take: impl FnMut(T) -> bool,
) -> Result<bool, serde_json::Error> {
    Each::new(take).deserialize(&mut serde_json::Deserializer::from_str(list.get()))
}

/// A text of at most `bytes_max` bytes; the rest is cut.
pub(super) fn short(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.shrink_to_fit();
    }
    text
}

/// A value whose text has at most `bytes_max` bytes; of a longer one the beginning, as text.
pub(super) fn short_value(raw: &RawValue, bytes_max: usize) -> Value {
    let text = raw.get();
    let whole = (text.len() <= bytes_max).then(|| serde_json::from_str(text).ok()).flatten();
    whole.unwrap_or_else(|| Value::from(&text[..text.floor_char_boundary(bytes_max)]))
}

/// The value, unless it is null.
pub(super) fn filled(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_serde_reads_them() {
        for text in [
            "[]",
            "[0]",
            "[1,2]",
            "[1, 22]",
            "[ 1,2 ]",
            "[1,\n2]",
            "[1,2,3]",
            "null",
            "[01]",
            "[-1]",
            "[1.0]",
            "[1,]",
            "[,]",
            "[ ]",
            "[4294967295]",
            "[4294967296]",
            "[1 2]",
            "[1,2,\"x\"]",
            "[\"1\"]",
            "{}",
            "",
            "[",
            "[1",
            "[1,2]]",
            "[[1]]",
            "[999999999]",
            "[+1]",
        ] {
            let read = Capped::<u32, 2>::of_ids(text.as_bytes());
            let expected = serde_json::from_str::<Option<Capped<u32, 2>>>(text);
            let shown = |list: Option<Capped<u32, 2>>| list.map(|list| (list.items, list.is_cut));
            assert_eq!(read.map(shown).ok(), expected.map(shown).ok(), "{text}");
        }
    }

    #[test]
    fn a_list_is_read_up_to_its_bound() {
        let read = |text: &str| serde_json::from_str::<Capped<u32, 2>>(text);
        for (text, items, is_cut) in
            [("[]", vec![], false), ("[1,2]", vec![1, 2], false), ("[1,2,\"x\"]", vec![1, 2], true)]
        {
            let list = read(text).unwrap();
            assert_eq!((list.items, list.is_cut), (items, is_cut), "{text}");
        }
        assert!(read("[1,-2]").is_err() && read("{}").is_err());
        assert!(read("[1,2,]").is_err(), "what is passed over must be JSON, too");
    }

    #[test]
    fn long_values_are_cut() {
        let of = |text: &str| short_value(serde_json::from_str(text).unwrap(), 4);
        assert_eq!((of("7"), of("\"ab\"")), (Value::from(7), Value::from("ab")));
        assert_eq!(of("[1,2,3]"), Value::from("[1,2"));
        assert_eq!(short("aé".to_owned(), 2), "a");
    }
}
