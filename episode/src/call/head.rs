//! Headers of a reply.

/// Headers of a reply as the agent received it, in their order: those that say more than how the
/// bytes were carried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyHead(pub Vec<(String, String)>);

impl ReplyHead {
    /// Bytes of names and values that are kept; headers beyond them are not.
    pub const BYTES_MAX: usize = 4096;

    /// As one text with a line `NAME: VALUE` for each; `None` if there are none.
    pub fn to_text(&self) -> Option<String> {
        let lines: Vec<String> =
            self.0.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Reads what [`Self::to_text`] writes.
    pub fn of_text(text: &str) -> Self {
        let line = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_owned(), value.to_owned()))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Adds a header; one with a line break, or beyond the bound, is left out.
    pub fn add(&mut self, name: &str, value: &str) {
        let held: usize = self.0.iter().map(|(name, value)| name.len() + value.len()).sum();
        let is_long = held + name.len() + value.len() > Self::BYTES_MAX;
        if !is_long && !value.contains(['\r', '\n']) {
            self.0.push((name.to_owned(), value.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let mut head = ReplyHead::default();
        assert_eq!(head.to_text(), None);
        head.add("content-type", "application/json");
        head.add("x-note", "a: b");
        head.add("x-empty", "");
        head.add("x-broken", "a\nb");
        head.add("x-long", &"a".repeat(ReplyHead::BYTES_MAX));
        assert_eq!(head.0.len(), 3);
        assert_eq!(ReplyHead::of_text(&head.to_text().unwrap()), head);
    }
}
