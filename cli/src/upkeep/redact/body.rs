//! Secrets in the bytes of a request or a reply.
//!
//! Bytes that hold no secret stay as they are. A text gets a mark in the place of a secret, also
//! where it was sent in pieces: the first piece has the mark. Bytes and token ids of a secret
//! become others of the same number.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ids::IdReader;
use super::places::{Leaf, LeafKind, add_leaves, pieces};
use crate::upkeep::secrets::{SecretFinder, SecretSpan};

/// The byte that takes the place of others where a text is written as numbers.
const FILLER_BYTE: u32 = b'*' as u32;
/// Fewest numbers that are read as a text.
const NUMBERS_MIN: usize = 4;

/// Finds secrets, and writes texts and bodies without them.
pub(in crate::upkeep) struct SecretEditor<'a> {
    pub(in crate::upkeep) finder: &'a SecretFinder,
    pub(in crate::upkeep) ids: Option<&'a IdReader>,
}

/// Bytes that take the place of others.
type ByteEdit = (Range<usize>, Vec<u8>);

/// A part of a text that goes. A mark takes its place, or nothing where an earlier piece has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    range: Range<usize>,
    mark: Option<String>,
}

/// A text of a body, without its quotes and escapes.
struct CutText {
    bytes: Vec<u8>,
    cuts: Vec<Cut>,
    /// True where the escapes could not be read, and the bytes are those between the quotes.
    is_spelled: bool,
}

impl SecretEditor<'_> {
    /// The body without secrets. `None` if it has none.
    pub(super) fn body(&self, body: &[u8]) -> Option<Vec<u8>> {
        let (mut leaves, mut edits) = (Vec::new(), Vec::new());
        for (range, is_document) in pieces(body) {
            let first = leaves.len();
            if is_document && add_leaves(body, range.clone(), &mut leaves).is_some() {
                continue;
            }
            leaves.truncate(first);
            let found = self.finder.spans(&body[range.clone()]).into_iter();
            edits.extend(found.map(|span| {
                let place = span.range.start + range.start..span.range.end + range.start;
                (place, mark(&span.kind).into_bytes())
            }));
        }

        self.edit_texts(body, &leaves, &mut edits);
        self.edit_numbers(body, &leaves, &mut edits);
        edits.sort_by_key(|(range, _)| range.start);
        (!edits.is_empty()).then(|| spliced(body, &edits))
    }

    /// A text without secrets. `None` if it has none.
    pub(super) fn text(&self, text: &str) -> Option<String> {
        let found = self.finder.spans(text.as_bytes()).into_iter();
        let edits: Vec<ByteEdit> =
            found.map(|span| (span.range, mark(&span.kind).into_bytes())).collect();
        let edited = || String::from_utf8_lossy(&spliced(text.as_bytes(), &edits)).into_owned();
        (!edits.is_empty()).then(edited)
    }

    /// Calls `look` with each text of a body: all of it, its texts, texts that were sent in pieces,
    /// and those that numbers say.
    pub(in crate::upkeep) fn each_text(&self, body: &[u8], mut look: impl FnMut(&[u8])) {
        look(body);
        let mut leaves = Vec::new();
        for (range, is_document) in pieces(body) {
            let first = leaves.len();
            if !is_document || add_leaves(body, range, &mut leaves).is_none() {
                leaves.truncate(first);
            }
        }

        let (texts, numbers): (Vec<Leaf>, Vec<Leaf>) =
            leaves.into_iter().partition(|leaf| leaf.kind == LeafKind::Text);
        let texts: Vec<(u64, Vec<u8>)> =
            texts.iter().map(|leaf| (leaf.path, unquoted(body, leaf).0)).collect();
        texts.iter().for_each(|(_, text)| look(text));
        for of_path in by_path(texts.iter().map(|(path, _)| *path)) {
            let pieces: Vec<&[u8]> = of_path.iter().map(|at| texts[*at].1.as_slice()).collect();
            if pieces.len() > 1 {
                look(&pieces.concat());
            }
        }
        for of_path in by_path(numbers.iter().map(|leaf| leaf.path)) {
            let Some(numbers) = read_numbers(body, &numbers, &of_path) else { continue };
            if let Some(bytes) = as_bytes(&numbers) {
                look(&bytes);
            }
            if let Some(reader) = self.ids.filter(|_| numbers.len() >= NUMBERS_MIN) {
                look(reader.text(&numbers).0.as_bytes());
            }
        }
    }

    fn edit_texts(&self, body: &[u8], leaves: &[Leaf], edits: &mut Vec<ByteEdit>) {
        let of_kind = leaves.iter().filter(|leaf| leaf.kind == LeafKind::Text);
        let leaves: Vec<&Leaf> = of_kind.collect();
        let mut texts: Vec<CutText> = leaves.iter().map(|leaf| self.cut_text(body, leaf)).collect();
        for of_path in by_path(leaves.iter().map(|leaf| leaf.path)) {
            self.cut_across(&of_path, &mut texts);
        }
        let cut = leaves.iter().zip(texts);
        edits.extend(cut.filter_map(|(leaf, text)| Some((leaf.range.clone(), text.written()?))));
    }

    /// The text of a leaf, with the secrets that lie in it.
    fn cut_text(&self, body: &[u8], leaf: &Leaf) -> CutText {
        let (bytes, is_spelled) = unquoted(body, leaf);
        let found = self.finder.spans(&bytes).into_iter();
        let cuts = found.map(|SecretSpan { kind, range }| Cut { range, mark: Some(mark(&kind)) });
        CutText { cuts: cuts.collect(), bytes, is_spelled }
    }

    /// Cuts the secrets out that lie in several texts, which were one text before it was sent in
    /// pieces.
    fn cut_across(&self, of_path: &[usize], texts: &mut [CutText]) {
        if of_path.len() < 2 {
            return;
        }

        let whole: Vec<u8> = of_path.iter().flat_map(|at| &texts[*at].bytes).copied().collect();
        for SecretSpan { kind, range } in self.finder.spans(&whole) {
            let (mut start, mut mark) = (0, Some(mark(&kind)));
            let mut parts = Vec::new();
            for at in of_path {
                let end = start + texts[*at].bytes.len();
                let part = range.start.max(start)..range.end.min(end);
                if part.start < part.end {
                    parts.push((*at, part.start - start..part.end - start));
                }
                start = end;
            }
            // One that lies in one text was found there.
            if parts.len() > 1 {
                for (at, range) in parts {
                    texts[at].cuts.push(Cut { range, mark: mark.take() });
                }
            }
        }
    }

    fn edit_numbers(&self, body: &[u8], leaves: &[Leaf], edits: &mut Vec<ByteEdit>) {
        let leaves: Vec<Leaf> =
            leaves.iter().filter(|leaf| leaf.kind == LeafKind::Number).cloned().collect();
        for of_path in by_path(leaves.iter().map(|leaf| leaf.path)) {
            let Some(numbers) = read_numbers(body, &leaves, &of_path) else { continue };
            let in_bytes = as_bytes(&numbers).map_or(Vec::new(), |bytes| self.finder.spans(&bytes));
            let (spans, filler) = match self.ids.filter(|_| numbers.len() >= NUMBERS_MIN) {
                Some(reader) if in_bytes.is_empty() => {
                    (reader.spans(self.finder, &[], &numbers), reader.filler())
                }
                _ => (in_bytes, FILLER_BYTE),
            };
            edits.extend(
                spans
                    .into_iter()
                    .flat_map(|span| span.range)
                    .map(|at| (leaves[of_path[at]].range.clone(), filler.to_string().into_bytes())),
            );
        }
    }
}

impl CutText {
    /// The JSON of the text without what is cut out. `None` if nothing is.
    fn written(mut self) -> Option<Vec<u8>> {
        if self.cuts.is_empty() {
            return None;
        }
        self.cuts.sort_by_key(|cut| cut.range.start);
        let mut edits: Vec<ByteEdit> = Vec::new();
        for Cut { range, mark } in self.cuts {
            let mark = mark.unwrap_or_default().into_bytes();
            match edits.last_mut() {
                Some((last, first)) if range.start < last.end => {
                    last.end = last.end.max(range.end);
                    if first.is_empty() {
                        *first = mark;
                    }
                }
                _ => edits.push((range, mark)),
            }
        }

        let text = spliced(&self.bytes, &edits);
        Some(match self.is_spelled {
            true => [b"\"", text.as_slice(), b"\""].concat(),
            false => serde_json::to_vec(&String::from_utf8_lossy(&text)).unwrap_or_default(),
        })
    }
}

/// The bytes of a text, and whether its escapes could not be read, so that they are in it.
fn unquoted(body: &[u8], leaf: &Leaf) -> (Vec<u8>, bool) {
    let literal = &body[leaf.range.clone()];
    match serde_json::from_slice::<String>(literal) {
        Ok(text) => (text.into_bytes(), false),
        Err(_) => (literal[1..literal.len() - 1].to_vec(), true),
    }
}

/// The numbers at these leaves; `None` if one is too large for an id.
fn read_numbers(body: &[u8], leaves: &[Leaf], of_path: &[usize]) -> Option<Vec<u32>> {
    let read = |at: &usize| {
        let digits = std::str::from_utf8(&body[leaves[*at].range.clone()]).ok()?;
        digits.parse().ok()
    };
    of_path.iter().map(read).collect()
}

fn as_bytes(numbers: &[u32]) -> Option<Vec<u8>> {
    numbers.iter().map(|number| u8::try_from(*number).ok()).collect()
}

/// The mark that takes the place of a secret in a text.
pub(super) fn mark(kind: &str) -> String {
    format!("[redacted {kind}]")
}

/// The indexes of those with one path, for each path.
fn by_path(paths: impl Iterator<Item = u64>) -> Vec<Vec<usize>> {
    let mut of_path: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, path) in paths.enumerate().filter(|(_, path)| *path != 0) {
        of_path.entry(path).or_default().push(at);
    }
    of_path.into_values().collect()
}

/// The bytes with other ones in the place of some, which are in order and apart.
fn spliced(bytes: &[u8], edits: &[ByteEdit]) -> Vec<u8> {
    let (mut new, mut at) = (Vec::with_capacity(bytes.len()), 0);
    for (range, with) in edits {
        new.extend_from_slice(&bytes[at..range.start]);
        new.extend_from_slice(with);
        at = range.end;
    }
    new.extend_from_slice(&bytes[at..]);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ghp_a1B2c3D4e5f6a1B2c3D4e5f6a1B2c3D4e5f6";

    fn edited(body: &str) -> Option<String> {
        let finder = SecretFinder::usual().unwrap();
        let editor = SecretEditor { finder: &finder, ids: None };
        Some(String::from_utf8(editor.body(body.as_bytes())?).unwrap())
    }

    #[test]
    fn all_but_the_secret_stays_byte_for_byte() {
        let body =
            |key: &str| format!("{{ \"a\" : 1.50, \"b\":[\"say \\u0022{key}\\u0022\", \"é\"] }}\n");
        let expected = "{ \"a\" : 1.50, \"b\":[\"say \\\"[redacted GitHub token]\\\"\", \"é\"] }\n";
        assert_eq!(edited(&body(KEY)).unwrap(), expected);
        assert_eq!(edited(&body("ghp_short")), None);
    }

    #[test]
    fn a_secret_in_the_json_of_a_json_text_leaves_both_whole() {
        let inner = serde_json::json!({"command": format!("export K=\"{KEY}\"")}).to_string();
        let body = serde_json::json!({"arguments": inner}).to_string();
        let outer: serde_json::Value = serde_json::from_str(&edited(&body).unwrap()).unwrap();
        let inner: serde_json::Value =
            serde_json::from_str(outer["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(inner["command"], "export K=\"[redacted GitHub token]\"");
    }

    #[test]
    fn a_secret_that_was_sent_in_pieces_is_cut_out_of_each() {
        let event = |index: u8, text: &str| {
            format!(
                "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
            )
        };
        let body = [
            event(0, "the key is gh"),
            event(1, "other"),
            event(0, &KEY[2..20]),
            event(0, &format!("{} and", &KEY[20..])),
            "data: [DONE]\n\n".to_owned(),
        ];
        let expected = [
            event(0, "the key is [redacted GitHub token]"),
            event(1, "other"),
            event(0, ""),
            event(0, " and"),
            "data: [DONE]\n\n".to_owned(),
        ];
        assert_eq!(edited(&body.concat()).unwrap(), expected.concat());
    }

    #[test]
    fn bytes_of_tokens_become_as_many_others() {
        let tokens: Vec<_> = [&KEY[..9], &KEY[9..]]
            .iter()
            .map(|part| serde_json::json!({"token": part, "bytes": part.as_bytes()}))
            .collect();
        let edited = edited(&serde_json::json!({ "content": tokens }).to_string()).unwrap();
        let edited: serde_json::Value = serde_json::from_str(&edited).unwrap();
        assert_eq!(edited["content"][0]["token"], "[redacted GitHub token]");
        assert_eq!(edited["content"][1]["token"], "");
        assert_eq!(edited["content"][0]["bytes"], serde_json::json!(vec![42; 9]));
        assert_eq!(edited["content"][1]["bytes"].as_array().unwrap().len(), KEY.len() - 9);
    }

    #[test]
    fn what_is_no_json_is_searched_as_it_is() {
        let expected = Some("key=[redacted GitHub token]&a=b".to_owned());
        assert_eq!(edited(&format!("key={KEY}&a=b")), expected);
    }
}
