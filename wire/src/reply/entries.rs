//! Lists of logprobs that are spelled as servers spell them, read in one pass.
//!
//! serde passes over the alternatives of each entry once to find their end and once to check them.
//! Whatever is spelled in another way is `None` here and left to serde, so that both read the same.

use super::choice::SampledToken;
use super::lenient::Lenient;
use super::list::{Capped, plain_id};
use crate::bounds::LIST_MAX;
use crate::json::end_of_plain_text;

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
        let given: Option<Lenient<Capped<u8>>> =
            self.bytes.and_then(|raw| serde_json::from_str(raw).ok());
        let given = given.and_then(Lenient::value).map(|bytes| bytes.items);
        // A text that replaces what is no text does not tell the token.
        let text = self.token.filter(|text| !text.contains(char::REPLACEMENT_CHARACTER));
        given.or_else(|| Some(text?.as_bytes().to_vec()))
    }
}

/// The entries of a list; `None` if it is spelled in another way, too long, or no such list.
pub(super) fn plain_entries(list: &[u8]) -> Option<Vec<PlainEntry<'_>>> {
    let mut reader = EntryReader { json: std::str::from_utf8(list).ok()?, at: 0 };
    let mut entries = Vec::with_capacity(list.len() / ENTRY_BYTES + 1);
    reader.list(|reader| {
        entries.push(reader.entry()?);
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

    /// Reads an entry.
    fn entry(&mut self) -> Option<PlainEntry<'a>> {
        let mut entry = PlainEntry::default();
        self.object(|reader, key| match key {
            "token" => fill(&mut entry.token, reader.text()?),
            "logprob" => fill(&mut entry.logprob, reader.number()?.parse().ok()?),
            "id" => fill(&mut entry.id, reader.id()?),
            "bytes" => fill(&mut entry.bytes, reader.spelled(Self::bytes)?),
            "top_logprobs" => {
                let list = |reader: &mut Self| reader.list(Self::alternative);
                fill(&mut entry.top_logprobs, reader.spelled(list)?)
            }
            _ => None,
        })?;
        Some(entry)
    }

    /// Passes over an alternative. Whoever needs it reads it again.
    fn alternative(&mut self) -> Option<()> {
        let (mut token, mut logprob, mut id, mut bytes) = (None, None, None, None);
        self.object(|reader, key| match key {
            "token" => fill(&mut token, reader.text().map(drop)?),
            "logprob" => fill(&mut logprob, reader.number().map(drop)?),
            "id" => fill(&mut id, reader.id().map(drop)?),
            "bytes" => fill(&mut bytes, reader.bytes()?),
            _ => None,
        })
    }

    /// Reads an object, each value by `member`, which is given the key.
    fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let key = self.text()?;
            self.expect(b':')?;
            self.skip_space();
            member(self, key)?;
            match self.next()? {
                b',' => self.skip_space(),
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Passes over a list of bytes. Whoever needs them reads them again.
    fn bytes(&mut self) -> Option<()> {
        self.list(|reader| {
            let is_zero = reader.takes(b'0');
            (reader.digits() != is_zero).then_some(())
        })
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
        let start = self.at;
        self.at = end_of_plain_text(self.json.as_bytes(), start);
        let text = self.json.get(start..self.at)?;
        self.expect(b'"')?;
        Some(text)
    }

    /// Reads the spelling of a finite number.
    fn number(&mut self) -> Option<&'a str> {
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

        let has_exponent = self.takes(b'e') || self.takes(b'E');
        if has_exponent {
            let _sign = self.takes(b'-') || self.takes(b'+');
            if !self.digits() {
                return None;
            }
        }

        let text = &self.json[start..self.at];
        let is_finite = || text.parse().is_ok_and(f64::is_finite);
        let is_small = !has_exponent && text.len() < f64::MAX_10_EXP as usize;
        (is_small || is_finite()).then_some(text)
    }

    /// Passes over digits; false if there are none.
    fn digits(&mut self) -> bool {
        let start = self.at;
        let rest = &self.json.as_bytes()[start..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at > start
    }

    fn id(&mut self) -> Option<u32> {
        let (id, count) = plain_id(&self.json.as_bytes()[self.at..])?;
        self.at += count;
        Some(id)
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

    use super::super::lenient::Held;
    use super::super::logprobs::LogprobEntry;
    use super::*;

    /// The same list as serde reads it.
    fn by_serde(json: &str) -> Option<Vec<LogprobEntry<'_>>> {
        let list: Lenient<Capped<Held<LogprobEntry<'_>>>> = serde_json::from_str(json).ok()?;
        let entries = list.value()?.items.into_iter();
        entries.map(Lenient::members).collect()
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
            r#"[{"top_logprobs":[{"logprob":1e999}]}]"#,
            r#"[{"top_logprobs":[{"token":"a","token":"b"}]}]"#,
            r#"[{"bytes":[097]}]"#,
            r#"[{"bytes":[1,]}]"#,
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
