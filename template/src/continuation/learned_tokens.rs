//! The texts of tokens, learned from what a server says of them.

/// The largest id that is learned. Servers have no more than some 300,000.
const ID_MAX: u32 = 1 << 22;

/// The texts of a model's tokens, as far as they are known.
///
/// A token may be a part of a character, so a text is bytes.
#[derive(Debug, Default)]
pub struct LearnedTokens(Vec<Option<Box<[u8]>>>);

/// A text with the tokens that it was encoded to.
#[derive(Debug, Clone)]
pub struct EncodedText {
    /// The text.
    pub text: String,
    /// The ids.
    pub ids: Vec<u32>,
    /// For each token the end of its text, in bytes.
    ends: Vec<usize>,
}

impl LearnedTokens {
    /// Learns the texts of the tokens of a text. None if another tokenizer's were learned before.
    pub fn learn(&mut self, encoded: &EncodedText) -> Option<()> {
        let mut start = 0;
        for (id, end) in encoded.ids.iter().zip(&encoded.ends) {
            self.learn_token(*id, &encoded.text.as_bytes()[start..*end])?;
            start = *end;
        }
        Some(())
    }

    /// Learns the text of a token. None if it has another one.
    pub fn learn_token(&mut self, id: u32, text: &[u8]) -> Option<()> {
        let at = usize::try_from(id).ok().filter(|_| id <= ID_MAX)?;
        if at >= self.0.len() {
            self.0.resize(at + 1, None);
        }
        match &self.0[at] {
            Some(known) => (**known == *text).then_some(()),
            None => {
                self.0[at] = Some(text.into());
                Some(())
            }
        }
    }

    /// The text of a token.
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        self.0.get(usize::try_from(id).ok()?)?.as_deref()
    }

    /// The byte of the text of `ids` at which the words that open a reply may start: the last
    /// special token. None if a token is not known, or none is special.
    pub fn opening_at(&self, ids: &[u32]) -> Option<usize> {
        let mut at = None;
        let mut end = 0;
        for id in ids {
            let text = self.token(*id)?;
            if opens_a_turn(text) {
                at = Some(end);
            }
            end += text.len();
        }
        at
    }

    /// The text of tokens; none if one of them is not known.
    pub fn text_of(&self, ids: &[u32]) -> Option<Vec<u8>> {
        let mut text = Vec::with_capacity(ids.len() * 4);
        for id in ids {
            text.extend_from_slice(self.token(*id)?);
        }
        Some(text)
    }
}

impl EncodedText {
    /// A text in bytes, with its tokens and the end of each. None if it is no text.
    pub fn new(ids: Vec<u32>, text: Vec<u8>, ends: Vec<usize>) -> Option<EncodedText> {
        let is_whole = ids.len() == ends.len() && ends.last() == Some(&text.len());
        let is_ascending = ends.is_sorted();
        let text = String::from_utf8(text).ok().filter(|_| is_whole && is_ascending)?;
        Some(EncodedText { text, ids, ends })
    }

    /// The ids of the text from byte `at` on. None if a token crosses that place, or if one could:
    /// neither the text ends there, nor is there a special token on either side of it.
    pub fn ids_from(&self, at: usize) -> Option<&[u32]> {
        let index = self.ends.partition_point(|end| *end <= at);
        let before = index.checked_sub(1)?;
        let is_seam = is_special(self.token(before))
            || index == self.ids.len()
            || is_special(self.token(index));
        (self.ends[before] == at && is_seam).then(|| &self.ids[index..])
    }

    /// The byte at which the words that open a reply may start: the last special token that opens
    /// no thoughts.
    pub fn opening_at(&self) -> usize {
        let last = (0..self.ids.len()).rev().find(|at| opens_a_turn(self.token(*at)));
        last.map_or(0, |last| self.start(last))
    }

    fn token(&self, at: usize) -> &[u8] {
        &self.text.as_bytes()[self.start(at)..self.ends[at]]
    }

    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// True for a token that a tokenizer cuts out of a text before anything is merged, by its form:
/// `<|im_end|>`, `</s>`, `[INST]` and the like.
fn is_special(token: &[u8]) -> bool {
    match token {
        [b'<', .., b'>'] => token.len() > 2,
        [b'[', name @ .., b']'] => {
            !name.is_empty() && name.iter().all(|byte| matches!(byte, b'A'..=b'Z' | b'_' | b'/'))
        }
        _ => false,
    }
}

/// True for a special token that is no tag around thoughts. A template may open a reply with one.
fn opens_a_turn(token: &[u8]) -> bool {
    is_special(token) && !matches!(token, b"<think>" | b"</think>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(tokens: &[(u32, &[u8])]) -> Option<EncodedText> {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for (_, token) in tokens {
            text.extend_from_slice(token);
            ends.push(text.len());
        }
        EncodedText::new(tokens.iter().map(|(id, _)| *id).collect(), text, ends)
    }

    const TURN: &[u8] = b"<|im_start|>";

    #[test]
    fn a_text_is_cut_beside_special_tokens_only() {
        let tokens: [(u32, &[u8]); 5] =
            [(1, TURN), (2, b"hi"), (3, b" \xC3"), (4, b"\xA9"), (1, TURN)];
        let read = encoded(&tokens).unwrap();
        assert_eq!(read.text, "<|im_start|>hi é<|im_start|>");
        assert_eq!(read.opening_at(), "<|im_start|>hi é".len());
        assert_eq!(read.ids_from("<|im_start|>".len()), Some(&[2, 3, 4, 1][..]));
        assert_eq!(read.ids_from("<|im_start|>hi é".len()), Some(&[1][..]));
        assert_eq!(read.ids_from(read.text.len()), Some(&[][..]), "nothing follows");
        assert_eq!(read.ids_from("<|im_start|>hi".len()), None, "no special token beside it");
        assert_eq!(read.ids_from("<|im_start|>h".len()), None, "within a token");
        assert_eq!(read.ids_from(0), None);
        assert!(encoded(&tokens[..3]).is_none(), "half a character");
    }

    #[test]
    fn texts_are_learned_and_another_tokenizer_is_noticed() {
        let mut learned = LearnedTokens::default();
        let tokens: [(u32, &[u8]); 4] = [(1, TURN), (2, b"hi"), (3, b" \xC3"), (4, b"\xA9")];
        learned.learn(&encoded(&tokens).unwrap()).unwrap();
        assert_eq!(learned.text_of(&[3, 4, 2]).unwrap(), " éhi".as_bytes());
        assert_eq!(learned.text_of(&[5]), None);
        assert_eq!(learned.opening_at(&[1, 2, 1, 3, 4]), Some("<|im_start|>hi".len()));
        assert!(learned.learn(&encoded(&[(2, b"ho")]).unwrap()).is_none());
    }

    #[test]
    fn tags_of_thoughts_are_among_the_words_that_open_a_reply() {
        let read = encoded(&[(1, TURN), (2, b"a"), (3, b"<think>"), (4, b"\n")]).unwrap();
        let mut learned = LearnedTokens::default();
        learned.learn(&read).unwrap();
        assert_eq!((read.opening_at(), learned.opening_at(&read.ids)), (0, Some(0)));
        assert_eq!(read.ids_from("<|im_start|>a".len()), Some(&[3, 4][..]));
    }

    #[test]
    fn special_tokens_are_told_by_their_form() {
        for token in ["<s>", "</s>", "[INST]", "[/INST]", "<\u{ff5c}User\u{ff5c}>"] {
            assert!(is_special(token.as_bytes()), "{token}");
        }
        for token in ["<>", "[a]", "[]", "<", "a>", ""] {
            assert!(!is_special(token.as_bytes()), "{token}");
        }
    }
}
