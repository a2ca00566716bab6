//! Texts and numbers of JSON documents, at their places in the bytes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use serde::de::IgnoredAny;

/// Deepest nesting that is looked into.
const DEPTH_MAX: usize = 200;
/// Members that tell which of several texts a piece in a stream of events belongs to.
const INDEXES: [&str; 4] = ["index", "output_index", "content_index", "item_id"];

/// A text or a number of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    /// Its bytes, quotes included.
    pub(super) range: Range<usize>,
    /// The same for leaves under the same names: the pieces of a text that was sent in pieces.
    pub(super) path: u64,
    pub(super) kind: LeafKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeafKind {
    /// The name of a member, or a text that is no element of an array of numbers.
    Text,
    /// A whole number in an array.
    Number,
}

/// Splits a body into JSON documents and what lies between them: the whole body is one document, or
/// each line is, behind `data:` or by itself. The flag says which are documents.
pub(super) fn pieces(body: &[u8]) -> Vec<(Range<usize>, bool)> {
    if is_document(body) {
        return vec![(0..body.len(), true)];
    }

    let mut pieces = Vec::new();
    let (mut at, mut between) = (0, 0);
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let head = if line.starts_with(b"data:") { b"data:".len() } else { 0 };
        let (start, end) = (at + head, at + line.len());
        if matches!(line[head..].trim_ascii().first(), Some(b'{' | b'[' | b'"'))
            && is_document(&line[head..])
        {
            pieces.push((between..start, false));
            pieces.push((start..end, true));
            between = end;
        }
        at = end;
    }
    pieces.push((between..body.len(), false));
    pieces.retain(|(range, _)| !range.is_empty());
    pieces
}

fn is_document(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// Appends the leaves of the document at `range` of a body. `None` if it is nested too deeply.
pub(super) fn add_leaves(body: &[u8], range: Range<usize>, leaves: &mut Vec<Leaf>) -> Option<()> {
    let mut walk = Walk { body: &body[..range.end], at: range.start, leaves };
    walk.value(0, false, 0)
}

/// A walk through one document, which is known to be JSON.
struct Walk<'a> {
    body: &'a [u8],
    at: usize,
    leaves: &'a mut Vec<Leaf>,
}

impl Walk<'_> {
    fn value(&mut self, path: u64, is_element: bool, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.next()? {
            b'{' => self.object(path, depth),
            b'[' => self.array(path, depth),
            b'"' => self.text(path).map(drop),
            _ => self.scalar(path, is_element),
        }
    }

    /// The members of an object. Where one of them is an index, the leaves inside are those of that
    /// index alone.
    fn object(&mut self, path: u64, depth: usize) -> Option<()> {
        let first = self.leaves.len();
        let mut index = None;
        self.at += 1;
        loop {
            match self.next()? {
                b'}' => break,
                b',' => self.at += 1,
                _ => {
                    let name = self.text(0)?;
                    let of_member = mixed(path, &self.body[name.clone()]);
                    // Past the colon.
                    self.next()?;
                    self.at += 1;

                    self.next()?;
                    let start = self.at;
                    self.value(of_member, false, depth + 1)?;
                    let name = &self.body[name.start + 1..name.end - 1];
                    if INDEXES.iter().any(|index| index.as_bytes() == name) {
                        index = Some(mixed(index.unwrap_or(0), &self.body[start..self.at]));
                    }
                }
            }
        }
        self.at += 1;

        if let Some(index) = index {
            let inside = self.leaves[first..].iter_mut().filter(|leaf| leaf.path != 0);
            inside.for_each(|leaf| leaf.path = mixed(leaf.path, &index.to_le_bytes()));
        }
        Some(())
    }

    fn array(&mut self, path: u64, depth: usize) -> Option<()> {
        let of_element = mixed(path, b"[]");
        self.at += 1;
        loop {
            match self.next()? {
                b']' => break,
                b',' => self.at += 1,
                _ => self.value(of_element, true, depth + 1)?,
            }
        }
        self.at += 1;
        Some(())
    }

    /// A text, of which the place is returned.
    fn text(&mut self, path: u64) -> Option<Range<usize>> {
        let start = self.at;
        let mut at = start + 1;
        loop {
            at += memchr_quote(self.body.get(at..)?)?;
            if self.body[at] == b'"' {
                break;
            }
            at += 2;
        }
        self.at = at + 1;
        self.leaves.push(Leaf { range: start..self.at, path, kind: LeafKind::Text });
        Some(start..self.at)
    }

    fn scalar(&mut self, path: u64, is_element: bool) -> Option<()> {
        let start = self.at;
        let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
        let rest = self.body.get(start..)?;
        self.at += rest.iter().position(ends).unwrap_or(rest.len());
        let is_number = self.body[start..self.at].iter().all(u8::is_ascii_digit);
        if is_element && is_number {
            self.leaves.push(Leaf { range: start..self.at, path, kind: LeafKind::Number });
        }
        Some(())
    }

    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        let rest = self.body.get(self.at..)?;
        self.at += rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
        self.body.get(self.at).copied()
    }
}

/// The next quote or backslash.
fn memchr_quote(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'))
}

fn mixed(path: u64, with: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (path, with).hash(&mut hasher);
    // 0 is of what has no path.
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str) -> Vec<(String, u64, LeafKind)> {
        let mut leaves = Vec::new();
        for (range, is_document) in pieces(body.as_bytes()) {
            if is_document {
                add_leaves(body.as_bytes(), range, &mut leaves).unwrap();
            }
        }
        let leaf = |leaf: Leaf| (body[leaf.range].to_owned(), leaf.path, leaf.kind);
        leaves.into_iter().map(leaf).collect()
    }

    #[test]
    fn texts_and_whole_numbers_of_arrays_are_found() {
        let found = found(r#" {"a": "x\"y", "b": [1, 2.5, "z", {"c": 7}], "d": 3} "#);
        let texts: Vec<&str> = found.iter().map(|(text, ..)| text.as_str()).collect();
        assert_eq!(texts, ["\"a\"", r#""x\"y""#, "\"b\"", "1", "\"z\"", "\"c\"", "\"d\""]);
        assert_eq!(found[3].2, LeafKind::Number);
    }

    #[test]
    fn pieces_of_one_text_have_one_path_and_those_of_others_another() {
        let event = |index, text| {
            format!(
                "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
            )
        };
        let body = [event(0, "ab"), event(1, "xy"), event(0, "cd"), "data: [DONE]\n\n".to_owned()];
        let found = found(&body.concat());
        let path = |text: &str| found.iter().find(|one| one.0 == format!("\"{text}\"")).unwrap().1;
        assert_eq!(path("ab"), path("cd"));
        assert_ne!(path("ab"), path("xy"));
        assert_eq!(path("content"), 0);
    }

    #[test]
    fn what_is_no_document_lies_between_them() {
        let body = b"event: x\ndata: {\"a\":1}\n\nnot json\n";
        let split: Vec<(&[u8], bool)> =
            pieces(body).into_iter().map(|(range, is)| (&body[range], is)).collect();
        let expected: [(&[u8], bool); 3] =
            [(b"event: x\ndata:", false), (b" {\"a\":1}\n", true), (b"\nnot json\n", false)];
        assert_eq!(split, expected);
        assert_eq!(pieces(b"plain {"), [(0..7, false)]);
    }
}
