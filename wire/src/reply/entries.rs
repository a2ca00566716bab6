//! Lists of logprobs that are spelled as servers spell them, read in one pass.
//!
//! serde passes over the alternatives of each entry once to find their end and once to check them.
//! Whatever is spelled in another way is `None` here and left to serde, so that both read the same.

use super::choice::SampledToken;
use super::list::{Capped, plain_id};
use crate::bounds::LIST_MAX;

/// Bytes of an entry with one alternative, for the first guess of a list's length.
const ENTRY_BYTES: usize = 160;

/// A token in a list of logprobs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct PlainEntry<'a> {
    pub(super) logprob: Option<f64>,
    pub(super) id: Option<u32>,
    pub(super) token: Option<&'a str>,
    /// The bytes of the token, as a list in JSON.
    pub(super) bytes: Option<&'a str>,
    /// The alternatives, as a list in JSON.
    pub(super) top_logprobs: Option<&'a str>,
}

impl PlainEntry<'_> {
    /// The token. Its bytes are kept only where they are needed.
    pub(super) fn sampled(&self, keeps_bytes: bool) -> SampledToken {
        let in_name = |name: &str| name.strip_prefix("token_id:")?.parse().ok();
        SampledToken {
            logprob: self.logprob,
            id: self.id.or_else(|| self.token.and_then(in_name)),
            bytes: if keeps_bytes { self.token_bytes() } else { None },
        }
    }

    /// The bytes of the token; the text stands in for them if there are none.
    fn token_bytes(&self) -> Option<Vec<u8>> {
        let given: Option<Option<Capped<u8>>> =
            self.bytes.and_then(|raw| serde_json::from_str(raw).ok());
        let given = given.flatten().map(|bytes| bytes.items);
        given.or_else(|| Some(self.token?.as_bytes().to_vec()))
    }
}

/// The entries of a list; `None` if it is spelled in another way, too long, or no such list.
pub(super) fn plain_entries(list: &[u8]) -> Option<Vec<PlainEntry<'_>>> {
    let mut reader = EntryReader { json: std::str::from_utf8(list).ok()?, at: 0 };
    let mut entries = Vec::with_capacity(list.len() / ENTRY_BYTES + 1);
    reader.list(|reader| {
        entries.push(reader.entry(true)?);
        (entries.len() <= LIST_MAX).then_some(())
    })?;
    (reader.at == list.len()).then_some(entries)
}

struct EntryReader<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> EntryReader<'a> {
    /// Reads a list, each element by `element`.
    fn list(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.takes(b']') {
            return Some(());
        }
        loop {
            element(self)?;
            match self.next()? {
                b',' => self.skip_space(),
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Reads an entry, or an alternative, which has none of its own.
    fn entry(&mut self, has_alternatives: bool) -> Option<PlainEntry<'a>> {
        let mut entry = PlainEntry::default();
        self.expect(b'{')?;
        loop {
            let key = self.text()?;
            self.expect(b':')?;
            self.skip_space();
            match key {
                "token" => fill(&mut entry.token, self.text()?)?,
                "logprob" => fill(&mut entry.logprob, self.number()?)?,
                "id" => fill(&mut entry.id, self.id()?)?,
                "bytes" => {
                    let bytes = self.spelled(|reader| reader.list(|reader| reader.byte()))?;
                    fill(&mut entry.bytes, bytes)?;
                }
                "top_logprobs" if has_alternatives => {
                    let list =
                        |reader: &mut Self| reader.list(|reader| reader.entry(false).map(drop));
                    fill(&mut entry.top_logprobs, self.spelled(list)?)?;
                }
                _ => return None,
            }
            match self.next()? {
                b',' => self.skip_space(),
                b'}' => return Some(entry),
                _ => return None,
            }
        }
    }

    /// The text that `read` reads.
    fn spelled(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<&'a str> {
        let start = self.at;
        read(self)?;
        self.json.get(start..self.at)
    }

    /// Reads a string without escapes.
    fn text(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let rest = &self.json.as_bytes()[self.at..];
        let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..b' '))?;
        let start = self.at;
        self.at += length;
        self.expect(b'"')?;
        self.json.get(start..start + length)
    }

    fn number(&mut self) -> Option<f64> {
        let start = self.at;
        self.takes(b'-');
        // A zero before another digit is no JSON.
        let is_zero = self.takes(b'0');
        if self.digits() == is_zero {
            return None;
        }
        if self.takes(b'.') && !self.digits() {
            return None;
        }
        if self.takes(b'e') || self.takes(b'E') {
            let _sign = self.takes(b'-') || self.takes(b'+');
            if !self.digits() {
                return None;
            }
        }
        self.json[start..self.at].parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// Passes over digits; false if there are none.
    fn digits(&mut self) -> bool {
        let start = self.at;
        while self.json.as_bytes().get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        self.at > start
    }

    fn id(&mut self) -> Option<u32> {
        let start = self.at;
        self.digits();
        plain_id(&self.json.as_bytes()[start..self.at])
    }

    /// Passes over an element of a list of bytes. Whoever needs them reads them again.
    fn byte(&mut self) -> Option<()> {
        self.id().map(drop)
    }

    fn next(&mut self) -> Option<u8> {
        let byte = *self.json.as_bytes().get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.takes(byte).then_some(())
    }

    /// Passes over `byte`, if it is next.
    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.json.as_bytes().get(self.at) == Some(&byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Passes over the space behind a separator.
    fn skip_space(&mut self) {
        self.takes(b' ');
    }
}

/// Fills a place once: serde refuses a field that comes twice.
fn fill<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::chat::LogprobEntry;
    use super::*;

    /// The same list as serde reads it.
    fn by_serde(json: &str) -> Option<Vec<LogprobEntry<'_>>> {
        let list: Capped<LogprobEntry<'_>> = serde_json::from_str(json).ok()?;
        Some(list.items)
    }

    #[test]
    fn servers_spellings_are_read() {
        for (json, count) in [
            ("[]", 0),
            (r#"[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}]"#, 1),
            (
                r#"[{"token": "a", "logprob": -1.5e-3, "bytes": [97, 98], "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": [98]}]}, {"id": 7, "logprob": 0}]"#,
                2,
            ),
        ] {
            let read = plain_entries(json.as_bytes()).unwrap();
            assert_eq!(read.len(), count, "{json}");
        }
        for other in [
            "null",
            "[{}]",
            "[1]",
            r#"[{"token":"\n"}]"#,
            r#"[{"token":"a","token":"b"}]"#,
            r#"[{"logprob":01}]"#,
            r#"[{"logprob":1e999}]"#,
            r#"[{"logprob":null}]"#,
            r#"[{"token":"a"},]"#,
            r#"[{"token":"a"}] "#,
            r#"[{"top_logprobs":[{"top_logprobs":[]}]}]"#,
        ] {
            assert_eq!(plain_entries(other.as_bytes()), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_here_is_read_by_serde_alike(parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "{", "}", "[", "]", ",", ":", " ", "\"token\"", "\"logprob\"", "\"id\"", "\"bytes\"",
                "\"top_logprobs\"", "\"a\"", "\"é\"", "\"\\n\"", "1", "0", "-0.25", "1e3", "2E-2", "00",
                "1.", "-", "300", "null", "4294967296", "{\"token\":\"a\",\"logprob\":-1.5}",
                "\"bytes\":[97,300]", "\"top_logprobs\":[{\"token\":\"b\"}]", "\"logprob\": -0.125",
            ]),
            0..8,
        )) {
            for json in [
                format!("[{}]", parts.concat()),
                format!("[{{{}}}]", parts.concat()),
                format!("[{{\"token\":\"a\",{}}}]", parts.concat()),
            ] {
                let Some(plain) = plain_entries(json.as_bytes()) else { continue };
                let serde = by_serde(&json);
                prop_assert!(serde.is_some(), "{json}");
                for (plain, serde) in plain.into_iter().zip(serde.unwrap()) {
                    prop_assert_eq!(plain, serde.plain(), "{}", &json);
                }
            }
        }
    }
}
