//! Lists of a reply, read within bounds: neither their number nor their length is the upstream's
//! to decide.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::lenient::{Expected, Lenient};
use crate::bounds::LIST_MAX;
use crate::json::digits;

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

impl<'de, T: Deserialize<'de>, const MAX: usize> Expected<'de> for Capped<T, MAX> {
    fn of_list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        let mut read = Self::default();
        let each = Each::new(|item| {
            read.items.push(item);
            read.items.len() < MAX
        });
        let is_cut = each.visit_seq(list)?;
        Ok(Some(Self { is_cut, ..read }))
    }
}

/// Ids of tokens, at most `MAX`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Ids<const MAX: usize = LIST_MAX> {
    pub(super) items: Vec<u32>,
    /// True if ids were passed over.
    pub(super) is_cut: bool,
    /// True if the list holds something else than ids, in places that are lost.
    pub(super) is_damaged: bool,
}

impl<const MAX: usize> Ids<MAX> {
    /// Returns true if there are ids, and none is lost.
    pub(super) fn are_whole(&self) -> bool {
        !self.is_cut && !self.is_damaged && !self.items.is_empty()
    }

    /// Reads a list of ids.
    pub(super) fn of_json(json: &[u8]) -> Result<Lenient<Self>, serde_json::Error> {
        match plain_ids(json).filter(|ids| ids.len() <= MAX) {
            Some(items) => Ok(Lenient::Value(Self { items, ..Self::default() })),
            None => serde_json::from_slice(json),
        }
    }
}

impl<'de, const MAX: usize> Expected<'de> for Ids<MAX> {
    fn of_list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        let read = Capped::<Lenient<u32>, MAX>::of_list(list)?.unwrap_or_default();
        let count = read.items.len();
        let items: Vec<u32> = read.items.into_iter().filter_map(Lenient::value).collect();
        Ok(Some(Self { is_damaged: items.len() < count, items, is_cut: read.is_cut }))
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
    let mut at = 0;
    loop {
        let (id, count) = plain_id(inner.get(at..)?)?;
        ids.push(id);
        at += count;
        match inner.get(at) {
            None => return Some(ids),
            Some(b',') => at += 1 + usize::from(inner.get(at + 1) == Some(&b' ')),
            Some(_) => return None,
        }
    }
}

/// The id that `text` begins with and its digits, if it is spelled as servers spell it.
#[inline]
pub(super) fn plain_id(text: &[u8]) -> Option<(u32, usize)> {
    let (id, count) = digits::leading(text);
    // No vocabulary has so many ids that more digits are needed.
    let is_short = (1..digits::DIGITS_MAX).contains(&count);
    let has_zeros = count > 1 && text.first() == Some(&b'0');
    (is_short && !has_zeros).then_some((id, count))
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

/// A text or an integer of at most `bytes_max` bytes. Anything else, and the beginning of what is
/// longer, is a text as it was spelled: no digit is lost.
pub(super) fn short_value(raw: &RawValue, bytes_max: usize) -> Value {
    let text = raw.get();
    let whole = (text.len() <= bytes_max).then(|| serde_json::from_str(text).ok()).flatten();
    match whole {
        Some(Value::String(text)) => Value::String(text),
        Some(Value::Number(number)) if !number.is_f64() => Value::Number(number),
        _ => Value::from(&text[..text.floor_char_boundary(bytes_max)]),
    }
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
            let read = Ids::<2>::of_json(text.as_bytes());
            let expected = serde_json::from_str::<Lenient<Ids<2>>>(text);
            assert_eq!(read.ok(), expected.ok(), "{text}");
        }
    }

    #[test]
    fn a_list_is_read_up_to_its_bound() {
        let read = |text: &str| serde_json::from_str::<Lenient<Capped<u32, 2>>>(text);
        for (text, items, is_cut) in
            [("[]", vec![], false), ("[1,2]", vec![1, 2], false), ("[1,2,\"x\"]", vec![1, 2], true)]
        {
            let list = read(text).unwrap().value().unwrap();
            assert_eq!((list.items, list.is_cut), (items, is_cut), "{text}");
        }
        assert!(read("[1,-2]").is_err() && read("{}").unwrap().is_other());
        assert!(read("[1,2,]").is_err(), "what is passed over must be JSON, too");
    }

    #[test]
    fn what_is_no_id_is_missed() {
        let of = |text: &str| Ids::<4>::of_json(text.as_bytes()).unwrap().value().unwrap();
        for whole in ["[7,8]", "[7.0,\"8\"]", "[7, 8e0]"] {
            assert_eq!(of(whole), Ids { items: vec![7, 8], ..Ids::default() }, "{whole}");
        }
        for other in ["[7,-1]", "[7,null]", "[7,\"x\"]", "[7,[8]]", "[7,1.5]", "[7,4294967296]"] {
            let ids = of(other);
            assert_eq!((&ids.items[..], ids.is_damaged), (&[7][..], true), "{other}");
        }
        let cut = of("[1,2,3,4,null]");
        assert_eq!((cut.items.len(), cut.is_cut, cut.is_damaged), (4, true, false));
    }

    #[test]
    fn long_values_are_cut() {
        let of = |text: &str| short_value(serde_json::from_str(text).unwrap(), 4);
        assert_eq!((of("7"), of("\"ab\"")), (Value::from(7), Value::from("ab")));
        assert_eq!(of("[1,2,3]"), Value::from("[1,2"));
        let digits = "123456789012345678901234567890";
        let value = short_value(serde_json::from_str(digits).unwrap(), 99);
        assert_eq!((value, of("1.50")), (Value::from(digits), Value::from("1.50")));
        assert_eq!(short("aé".to_owned(), 2), "a");
    }
}
