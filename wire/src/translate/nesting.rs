//! The end of JSON text that arrives in pieces.

/// Tells when JSON text that arrives in pieces has closed its outermost bracket.
#[derive(Debug, Default)]
pub(in crate::translate) struct Nesting {
    depth: u32,
    begun: bool,
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    pub(in crate::translate) fn push(&mut self, piece: &str) {
        for byte in piece.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                b'{' | b'[' if !self.in_text => {
                    self.begun = true;
                    self.depth = self.depth.saturating_add(1);
                }
                b'}' | b']' if !self.in_text => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    pub(in crate::translate) fn closed(&self) -> bool {
        self.begun && self.depth == 0
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
            assert!(!nesting.closed(), "{piece}");
        }
        nesting.push("} ");
        assert!(nesting.closed());
    }
}
