//! A scanner that checks byte by byte that a growing text is the start of JSON.

/// The token that may come next, if none is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// A value.
    Value,
    /// After `[`: a value or the end.
    FirstValue,
    /// After `{`: a key or the end.
    FirstKey,
    Key,
    Colon,
    /// After a value inside of brackets: a comma or the end.
    Comma,
    Nothing,
}

/// The token that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenToken {
    None,
    /// A string.
    Text {
        is_key: bool,
    },
    /// After a backslash.
    Escape {
        is_key: bool,
    },
    /// After `\u`, with the number of missing hexadecimal digits.
    Unicode {
        is_key: bool,
        missing: u8,
    },
    /// `true`, `false` or `null`, with the missing bytes.
    Word(&'static [u8]),
    Number(Number),
}

/// The part of a number that came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// Scans one JSON value, as strictly as `json.loads` of Python does.
#[derive(Clone, Debug)]
pub(super) struct JsonScanner {
    brackets: Vec<u8>,
    expect: Expect,
    token: OpenToken,
}

impl Default for JsonScanner {
    fn default() -> Self {
        JsonScanner { brackets: Vec::new(), expect: Expect::Value, token: OpenToken::None }
    }
}

impl JsonScanner {
    /// Number of open brackets.
    pub(super) fn depth(&self) -> usize {
        self.brackets.len()
    }

    /// Returns true if a bracketed value is complete.
    pub(super) fn is_done(&self) -> bool {
        self.brackets.is_empty() && self.token == OpenToken::None && self.expect == Expect::Nothing
    }

    /// Returns true if the next byte that is not white space starts a value.
    pub(super) fn awaits_value(&self) -> bool {
        self.token == OpenToken::None && matches!(self.expect, Expect::Value | Expect::FirstValue)
    }

    /// Returns true if the next byte that is not white space starts a key.
    pub(super) fn awaits_key(&self) -> bool {
        self.token == OpenToken::None && matches!(self.expect, Expect::Key | Expect::FirstKey)
    }

    /// Returns true if a key has just ended.
    pub(super) fn awaits_colon(&self) -> bool {
        self.token == OpenToken::None && self.expect == Expect::Colon
    }

    /// Returns true if no token is open.
    pub(super) fn is_between(&self) -> bool {
        self.token == OpenToken::None
    }

    /// Takes a byte. Returns false if the text is then not the start of any JSON.
    pub(super) fn push(&mut self, byte: u8) -> bool {
        match self.token {
            OpenToken::None => self.start(byte),
            OpenToken::Text { is_key } => match byte {
                b'"' => self.end(is_key),
                b'\\' => self.open(OpenToken::Escape { is_key }),
                0..0x20 => false,
                _ => true,
            },

            // Escapes stay inside of their string.
            OpenToken::Escape { is_key } => match byte {
                b'u' => self.open(OpenToken::Unicode { is_key, missing: 4 }),
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                    self.open(OpenToken::Text { is_key })
                }
                _ => false,
            },
            OpenToken::Unicode { is_key, missing } => {
                let next = match missing {
                    1 => OpenToken::Text { is_key },
                    _ => OpenToken::Unicode { is_key, missing: missing - 1 },
                };
                byte.is_ascii_hexdigit() && self.open(next)
            }

            OpenToken::Word(rest) => match rest.split_first() {
                Some((first, [])) if *first == byte => self.end(false),
                Some((first, rest)) if *first == byte => self.open(OpenToken::Word(rest)),
                _ => false,
            },
            OpenToken::Number(number) => self.number(number, byte),
        }
    }

    /// Enters a token.
    fn open(&mut self, token: OpenToken) -> bool {
        self.token = token;
        true
    }

    /// Leaves a token. It was a value if it was not a key.
    fn end(&mut self, is_key: bool) -> bool {
        self.token = OpenToken::None;
        self.expect = match (is_key, self.brackets.is_empty()) {
            (true, _) => Expect::Colon,
            (false, true) => Expect::Nothing,
            (false, false) => Expect::Comma,
        };
        true
    }

    /// Takes a byte outside of tokens.
    fn start(&mut self, byte: u8) -> bool {
        let inner = self.brackets.last().copied();
        match (self.expect, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => true,
            (Expect::FirstKey, b'}') | (Expect::FirstValue, b']') => self.close(),
            (Expect::Comma, b'}') if inner == Some(b'{') => self.close(),
            (Expect::Comma, b']') if inner == Some(b'[') => self.close(),
            (Expect::Comma, b',') => {
                self.expect = if inner == Some(b'{') { Expect::Key } else { Expect::Value };
                true
            }
            (Expect::FirstKey | Expect::Key, b'"') => self.open(OpenToken::Text { is_key: true }),
            (Expect::Colon, b':') => {
                self.expect = Expect::Value;
                true
            }
            (Expect::Value | Expect::FirstValue, _) => self.value(byte),
            _ => false,
        }
    }

    /// Takes the first byte of a value.
    fn value(&mut self, byte: u8) -> bool {
        match byte {
            b'{' | b'[' => {
                self.brackets.push(byte);
                self.expect = if byte == b'{' { Expect::FirstKey } else { Expect::FirstValue };
                true
            }
            b'"' => self.open(OpenToken::Text { is_key: false }),
            b't' => self.open(OpenToken::Word(b"rue")),
            b'f' => self.open(OpenToken::Word(b"alse")),
            b'n' => self.open(OpenToken::Word(b"ull")),
            b'-' => self.open(OpenToken::Number(Number::Minus)),
            b'0' => self.open(OpenToken::Number(Number::Zero)),
            b'1'..=b'9' => self.open(OpenToken::Number(Number::Whole)),
            _ => false,
        }
    }

    /// Takes a closing bracket.
    fn close(&mut self) -> bool {
        self.brackets.pop();
        self.end(false)
    }

    /// Takes a byte in or after a number.
    fn number(&mut self, number: Number, byte: u8) -> bool {
        use Number::{E, Exponent, Fraction, Minus, Point, Sign, Whole, Zero};
        let next = match (number, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => E,
            (E, b'+' | b'-') => Sign,
            (E | Sign | Exponent, b'0'..=b'9') => Exponent,
            // The byte after a number is not part of it.
            (Zero | Whole | Fraction | Exponent, _) => return self.end(false) && self.start(byte),
            _ => return false,
        };
        self.open(OpenToken::Number(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if all of `text` is a bracketed JSON value.
    fn whole(text: &str) -> bool {
        let mut scan = JsonScanner::default();
        text.bytes().all(|byte| scan.push(byte)) && scan.is_done()
    }

    #[test]
    fn it_agrees_with_a_parser() {
        let texts = [
            "{}",
            "[]",
            "{\"a\":1}",
            " { \"a\" : [ 1 , -0.5e+3 , 0 ] , \"b\\u00e9\\n\" : { } } ",
            "[true,false,null,\"\\\\\"]",
            "[[[]],{\"a\":{\"b\":[]}}]",
            "{a:1}",
            "{\"a\":}",
            "{\"a\":1,}",
            "[1,]",
            "[,1]",
            "{\"a\" 1}",
            "[1 2]",
            "[01]",
            "[1.]",
            "[-]",
            "[1e]",
            "[tru]",
            "[\"\\x\"]",
            "[\"\\u12g4\"]",
            "[\"\n\"]",
            "[}",
            "{\"a\":1]",
            "[]]",
            "[",
        ];
        for text in texts {
            let expected = serde_json::from_str::<serde_json::Value>(text).is_ok();
            assert_eq!(whole(text), expected, "{text}");
        }
    }

    #[test]
    fn every_start_of_json_is_taken() {
        let text = "{\"a\": [1.5e-7, \"é\\u00e9\", {\"b\": null}], \"c\": -12}";
        for end in 0..text.len() {
            let mut scan = JsonScanner::default();
            assert!(text.bytes().take(end).all(|byte| scan.push(byte)), "{end}");
            assert!(!scan.is_done());
        }
    }
}
