//! Places in a JSON document, found without building it.
//!
//! Edits are byte splices: bytes that are not replaced stay as they were, down to key order,
//! spacing and the spelling of numbers. The scan checks structure (brackets, strings, separators),
//! not the spelling of scalars: a document that is wrong only there is left to its reader to
//! refuse.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;
use smallvec::SmallVec;

use crate::bounds::{DEPTH_MAX, MEMBERS_MAX, TREE_VALUES_MAX};

mod blocks;
pub(crate) mod digits;
mod encoding;
mod mended;
mod nesting;
mod outline;
mod scan;
mod spelling;
mod truth;

pub(crate) use encoding::is_object_elsewhere;
pub(crate) use mended::mended;
pub(crate) use nesting::Nesting;
pub(crate) use outline::{Brackets, Outline};
pub(crate) use scan::end_of_plain_text;
pub use spelling::json_text;
pub(crate) use spelling::{half, inner_tree, make_readable, marked_number};
pub(crate) use truth::{truth, truth_of};

/// Members of an object that take no memory of the heap.
const MEMBERS_ROOM: usize = 16;

/// A document that is not structurally JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// One member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// The key between its quotes, as spelled.
    key: Range<usize>,
    /// The value, without surrounding space.
    pub(crate) value: Range<usize>,
}

impl Member {
    /// The start of the member: the opening quote of its key.
    fn start(&self) -> usize {
        self.key.start - 1
    }

    /// The bytes of the key, with its escapes resolved.
    pub(crate) fn name<'a>(&self, doc: &'a [u8]) -> Cow<'a, [u8]> {
        let spelled = &doc[self.key.clone()];
        match spelled.contains(&b'\\') {
            false => Cow::Borrowed(spelled),
            true => Cow::Owned(self.key(doc).into_owned().into_bytes()),
        }
    }

    /// The key, with its escapes resolved.
    pub(crate) fn key<'a>(&self, doc: &'a [u8]) -> Cow<'a, str> {
        let spelled = &doc[self.key.clone()];
        match std::str::from_utf8(spelled) {
            Ok(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
            _ => {
                let quoted = &doc[self.key.start - 1..self.key.end + 1];
                Cow::Owned(serde_json::from_slice(quoted).unwrap_or_default())
            }
        }
    }
}

/// A document that tells where its values end: plain bytes, which are scanned for it each time, or
/// an [`Outline`].
pub(crate) trait Ends {
    /// The whole document.
    fn bytes(&self) -> &[u8];

    /// The end of the value that starts at `start`.
    fn end_of(&self, start: usize) -> Result<usize, Malformed>;
}

impl Ends for [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn end_of(&self, start: usize) -> Result<usize, Malformed> {
        match self.get(start).ok_or(Malformed)? {
            b'"' => string(self, start),
            b'{' | b'[' => bracketed(self, start),
            b'}' | b']' | b',' | b':' => Err(Malformed),
            _ => Ok(scalar(self, start)),
        }
    }
}

/// The one value of a document, without surrounding space.
pub(crate) fn root<D: Ends + ?Sized>(document: &D) -> Result<Range<usize>, Malformed> {
    let doc = document.bytes();
    let start = skip_space(doc, 0);
    let end = document.end_of(start)?;
    if skip_space(doc, end) != doc.len() {
        return Err(Malformed);
    }
    Ok(start..end)
}

/// The document as a tree; `None` if it is not JSON, or holds too many values. What a tree cannot
/// hold is marked: [`json_text`] writes it as it was.
pub(crate) fn tree(doc: &[u8]) -> Option<Value> {
    // A value and its comma take two bytes.
    if doc.len() / 2 > TREE_VALUES_MAX && values(doc) > TREE_VALUES_MAX {
        return None;
    }
    let parsed = serde_json::from_slice(doc).ok();
    if parsed.is_some() && !spelling::may_need_marks(doc) {
        return parsed;
    }
    let marked = spelling::marked(doc).and_then(|marked| serde_json::from_str(&marked).ok());
    marked.or(parsed)
}

/// The number of values in a document, and of keys.
fn values(doc: &[u8]) -> usize {
    let (mut count, mut at) = (1, 0);
    while let Some(byte) = doc.get(at) {
        match byte {
            b'"' => match string(doc, at) {
                Ok(end) => at = end,
                Err(Malformed) => return count,
            },
            b',' | b':' | b'[' | b'{' => {
                count += 1;
                at += 1;
            }
            _ => at += 1,
        }
    }
    count
}

/// True if `doc` is an object that is nested too deeply or has too many members, so that its
/// members cannot be looked at.
pub(crate) fn is_beyond_bounds(doc: &[u8]) -> bool {
    let (mut depth, mut separators, mut at) = (0_usize, 0_usize, skip_space(doc, 0));
    if doc.get(at) != Some(&b'{') {
        return false;
    }

    while let Some(byte) = doc.get(at) {
        at += 1;
        match byte {
            b'"' => match string(doc, at - 1) {
                Ok(end) => at = end,
                Err(Malformed) => return false,
            },
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => separators += 1,
            _ => {}
        }

        if depth > DEPTH_MAX || separators >= MEMBERS_MAX {
            return true;
        }
    }

    false
}

/// The members of an object. Objects of most replies have few, which need no memory of the heap.
pub(crate) type Members = SmallVec<[Member; MEMBERS_ROOM]>;

/// The members of the object at `object`, in order; duplicates stay. More than [`MEMBERS_MAX`] are
/// an error.
pub(crate) fn members<D: Ends + ?Sized>(
    document: &D,
    object: &Range<usize>,
) -> Result<Members, Malformed> {
    let mut found = Members::new();
    list(document.bytes(), object, b'{', |doc, at| {
        let key = at + 1..string(doc, at)? - 1;
        let colon = skip_space(doc, key.end + 1);
        if doc.get(colon) != Some(&b':') {
            return Err(Malformed);
        }
        let start = skip_space(doc, colon + 1);
        let end = document.end_of(start)?;
        if found.len() == MEMBERS_MAX {
            return Err(Malformed);
        }
        found.push(Member { key, value: start..end });
        Ok(end)
    })?;
    Ok(found)
}

/// Calls `take` with each element of the array at `array`, in order, until it fails.
pub(crate) fn each_element<D: Ends + ?Sized>(
    document: &D,
    array: &Range<usize>,
    mut take: impl FnMut(Range<usize>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    list(document.bytes(), array, b'[', |_, at| {
        let end = document.end_of(at)?;
        take(at..end)?;
        Ok(end)
    })
}

/// The first `count` elements of the array at `array`, or all if there are fewer.
pub(crate) fn first_elements<D: Ends + ?Sized>(
    document: &D,
    array: &Range<usize>,
    count: usize,
) -> Result<Vec<Range<usize>>, Malformed> {
    let mut found = Vec::new();
    let walked = each_element(document, array, |element| {
        if found.len() == count {
            return Err(Malformed);
        }
        found.push(element);
        Ok(())
    });
    if found.len() < count {
        walked?;
    }
    Ok(found)
}

/// Walks the items between two brackets; `item` takes an item's start and returns its end.
fn list(
    doc: &[u8],
    place: &Range<usize>,
    open: u8,
    mut item: impl FnMut(&[u8], usize) -> Result<usize, Malformed>,
) -> Result<(), Malformed> {
    if doc.get(place.start) != Some(&open) {
        return Err(Malformed);
    }
    let mut at = skip_space(doc, place.start + 1);
    if at + 1 == place.end {
        return Ok(());
    }

    loop {
        at = skip_space(doc, item(doc, at)?);
        match doc.get(at) {
            Some(b',') => at = skip_space(doc, at + 1),
            Some(b'}' | b']') if at + 1 == place.end => return Ok(()),
            _ => return Err(Malformed),
        }
    }
}

pub(crate) fn skip_space(doc: &[u8], mut at: usize) -> usize {
    while matches!(doc.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The end of the scalar that starts at `start`.
fn scalar(doc: &[u8], start: usize) -> usize {
    doc[start..].iter().position(ends_scalar).map_or(doc.len(), |length| start + length)
}

fn ends_scalar(byte: &u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b':' | b'"' | b' ' | b'\t' | b'\n' | b'\r')
}

/// The end of the string whose opening quote is at `start`.
fn string(doc: &[u8], start: usize) -> Result<usize, Malformed> {
    if doc.get(start) != Some(&b'"') {
        return Err(Malformed);
    }
    let mut at = start + 1;
    loop {
        at = scan::end_of_text(doc, at);
        match doc.get(at).ok_or(Malformed)? {
            b'"' => return Ok(at + 1),
            // A backslash and what it escapes.
            _ => at += 2,
        }
    }
}

/// The end of the object or array that starts at `start`.
fn bracketed(doc: &[u8], start: usize) -> Result<usize, Malformed> {
    // A bit for each bracket that must still close, so that depth costs neither stack nor heap.
    let mut is_brace = [0_u64; DEPTH_MAX / 64 + 1];
    let (mut depth, mut at) = (0, start);

    loop {
        at = scan::structure(doc, at);
        match doc.get(at).ok_or(Malformed)? {
            b'"' => {
                at = string(doc, at)?;
                continue;
            }
            open @ (b'{' | b'[') => {
                if depth == DEPTH_MAX {
                    return Err(Malformed);
                }
                let bit = 1 << (depth % 64);
                match open {
                    b'{' => is_brace[depth / 64] |= bit,
                    _ => is_brace[depth / 64] &= !bit,
                }
                depth += 1;
            }
            close => {
                depth -= 1;
                let opened_by_brace = is_brace[depth / 64] >> (depth % 64) & 1 == 1;
                if opened_by_brace != (*close == b'}') {
                    return Err(Malformed);
                }
                if depth == 0 {
                    return Ok(at + 1);
                }
            }
        }
        at += 1;
    }
}

/// The places to cut so that some members leave their object, each with one comma. `is_removed`
/// has an entry for each member.
pub(crate) fn cuts(members: &[Member], is_removed: &[bool]) -> Vec<Range<usize>> {
    let Some(end) = members.last().map(|last| last.value.end) else { return Vec::new() };
    let mut cuts = Vec::new();
    let mut at = 0;

    // Each turn cuts one run of removed members.
    while let Some(first) = (at..members.len()).find(|i| is_removed[*i]) {
        let next = (first..members.len()).find(|i| !is_removed[*i]);
        cuts.push(match (next, first.checked_sub(1)) {
            (Some(next), _) => members[first].start()..members[next].start(),
            // The last run takes the comma before it.
            (None, Some(before)) => members[before].value.end..end,
            (None, None) => members[0].start()..end,
        });
        at = next.unwrap_or(members.len());
    }
    cuts
}

/// Replacements of places by bytes, made in one pass.
#[derive(Debug, Default)]
pub(crate) struct Edits(Vec<(Range<usize>, Cow<'static, str>)>);

impl Edits {
    /// Replaces the bytes at `place` by `with`; an empty place inserts.
    pub(crate) fn put(&mut self, place: Range<usize>, with: impl Into<Cow<'static, str>>) {
        self.0.push((place, with.into()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same replacements, each at the places that `places` has for its own. The first of them
    /// gets the new bytes.
    pub(crate) fn moved<P>(self, places: impl Fn(Range<usize>) -> P) -> Self
    where
        P: IntoIterator<Item = Range<usize>>,
    {
        let mut moved = Self::default();
        for (range, with) in self.0 {
            let mut with = Some(with);
            for place in places(range) {
                moved.put(place, with.take().unwrap_or_default());
            }
        }
        moved
    }

    /// The document with every replacement made. Places must not overlap.
    pub(crate) fn apply(mut self, doc: &[u8]) -> Vec<u8> {
        self.0.sort_by_key(|(place, _)| (place.start, place.end));
        let added: usize = self.0.iter().map(|(_, with)| with.len()).sum();
        let mut edited = Vec::with_capacity(doc.len() + added);
        let mut kept = 0;
        for (place, with) in self.0 {
            edited.extend_from_slice(&doc[kept..place.start]);
            edited.extend_from_slice(with.as_bytes());
            kept = place.end;
        }
        edited.extend_from_slice(&doc[kept..]);
        edited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(doc: &str) -> Vec<(String, String)> {
        let doc = doc.as_bytes();
        let text = |r: &Range<usize>| String::from_utf8(doc[r.clone()].to_vec()).unwrap();
        members(doc, &root(doc).unwrap())
            .unwrap()
            .iter()
            .map(|m| (m.key(doc).into_owned(), text(&m.value)))
            .collect()
    }

    #[test]
    fn members_are_found_whatever_the_spelling() {
        let doc = r#" { "a" : 1.50e+2 ,"b":"x\"}\\", "c\u0061":[1,{"d":[]}] , "a":null} "#;
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(
            keys(doc),
            [
                pair("a", "1.50e+2"),
                pair("b", r#""x\"}\\""#),
                pair("ca", r#"[1,{"d":[]}]"#),
                pair("a", "null")
            ]
        );
        assert_eq!(keys("{}"), []);
        assert_eq!(keys("{ \n }"), []);
    }

    #[test]
    fn elements_are_found() {
        let doc = &br#"[ 1, "two,]" , [3] ,{}]"#[..];
        let array = root(doc).unwrap();
        let found = first_elements(doc, &array, 9).unwrap();
        assert_eq!(first_elements(doc, &array, 2).unwrap(), found[..2]);
        let texts: Vec<_> =
            found.into_iter().map(|r| std::str::from_utf8(&doc[r]).unwrap()).collect();
        assert_eq!(texts, ["1", "\"two,]\"", "[3]", "{}"]);
    }

    #[test]
    fn what_is_not_json_is_malformed() {
        for bad in ["", "{", "[}", "{]", "\"", "\"\\", "{} x", "{\"a\" 1}", "}", "{\"a\":}"] {
            let doc = bad.as_bytes();
            let found = root(doc).and_then(|r| members(doc, &r));
            assert_eq!(found, Err(Malformed), "{bad}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(root(deep.as_bytes()), Err(Malformed));
    }

    #[test]
    fn what_is_beyond_a_bound_is_told_from_what_is_not_json() {
        let fields = |count: usize| format!("{{{}}}", vec![r#""a":[1,2]"#; count].join(","));
        for (doc, is_beyond) in [
            (fields(MEMBERS_MAX), false),
            (fields(MEMBERS_MAX + 1), true),
            (format!("{{\"a\":{}", "[".repeat(DEPTH_MAX)), true),
            (format!("{{\"a\":\"{}\"}}", "[,".repeat(DEPTH_MAX * 10)), false),
            ("{\"a\"".to_owned(), false),
            ("[1]".to_owned(), false),
        ] {
            let doc = doc.as_bytes();
            assert_eq!(is_beyond_bounds(doc), is_beyond, "{}", doc.len());
            assert_eq!(
                root(doc).and_then(|object| members(doc, &object)).is_ok(),
                doc.len() > 9 && !is_beyond
            );
        }
    }

    #[test]
    fn a_tree_has_a_bound() {
        let list = |count: usize| format!("[{}1]", "1,".repeat(count)).into_bytes();
        assert!(tree(&list(TREE_VALUES_MAX - 10)).is_some());
        assert!(tree(&list(TREE_VALUES_MAX)).is_none());
        let text = format!("[\"{}\"]", "[1,".repeat(TREE_VALUES_MAX));
        assert!(tree(text.as_bytes()).is_some(), "a text is one value");
    }

    #[test]
    fn members_leave_with_their_commas() {
        let doc = &br#"{ "a":1, "b" : [2,3] ,"c":4 }"#[..];
        let all = members(doc, &root(doc).unwrap()).unwrap();
        let without = |gone: [bool; 3]| {
            let mut edits = Edits::default();
            cuts(&all, &gone).into_iter().for_each(|cut| edits.put(cut, ""));
            String::from_utf8(edits.apply(doc)).unwrap()
        };
        assert_eq!(without([true, false, false]), r#"{ "b" : [2,3] ,"c":4 }"#);
        assert_eq!(without([false, true, false]), r#"{ "a":1, "c":4 }"#);
        assert_eq!(without([false, false, true]), r#"{ "a":1, "b" : [2,3] }"#);
        assert_eq!(without([false, true, true]), r#"{ "a":1 }"#);
        assert_eq!(without([true, false, true]), r#"{ "b" : [2,3] }"#);
        assert_eq!(without([true, true, true]), "{  }");
        assert_eq!(without([false; 3]).as_bytes(), doc);
    }

    #[test]
    fn edits_leave_every_other_byte() {
        let mut edits = Edits::default();
        edits.put(3..3, "+");
        edits.put(0..1, "A");
        assert_eq!(edits.apply(b"abcde"), b"Abc+de");
    }
}
