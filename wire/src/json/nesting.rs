//! The end of JSON text that arrives in pieces.

/// Tells when JSON text that arrives in pieces has closed its outermost bracket.
#[derive(Debug, Default)]
pub(crate) struct Nesting {
    depth: u32,
    has_opened: bool,
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    /// Reads the next piece of the text.
    pub(crate) fn push(&mut self, piece: &str) {
        for byte in piece.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                b'{' | b'[' if !self.in_text => {
                    self.has_opened = true;
                    self.depth = self.depth.saturating_add(1);
                }
                b'}' | b']' if !self.in_text => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Returns true once the outermost bracket has closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.has_opened && self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_closes_with_the_outermost_bracket() {
        let mut nesting = Nesting::default();
        for piece in [" ", "{\"a\\", "\"}\": [", "{\"b\": \"]\\\\\"}", "]"] {
            nesting.push(piece);
            assert!(!nesting.is_closed(), "{piece}");
        }
        nesting.push("} ");
        assert!(nesting.is_closed());
    }
}
