//! The scorer of recorded ids: a server, or a model folder behind one.

use std::collections::HashSet;

use bytes::Bytes;
use wire::TokenScore;

/// The outcome of scoring ids.
#[derive(Debug, Clone, PartialEq)]
pub enum Scored {
    /// One score a token; none for the first.
    Scores(Vec<Option<TokenScore>>),
    /// The server does not take these ids, for a reason.
    Refused(String),
}

/// A server that scores recorded ids. Its weights are those of one label at a time.
#[expect(async_fn_in_trait, reason = "no caller needs the future to be sent to another thread")]
pub trait ScoringServer {
    /// The reason why it cannot be asked.
    type Error;

    /// Changes to the weights of a label. Returns false where these are not at hand.
    ///
    /// # Errors
    /// [`Self::Error`] when they are at hand and cannot be used.
    async fn use_weights(&mut self, version: Option<&str>) -> Result<bool, Self::Error>;

    /// Returns the labels of other weights that are at hand, the nearest first.
    fn weights_beside(&self, version: Option<&str>) -> Vec<String>;

    /// Returns the names of the models and adapters that it serves; the base model is the first.
    fn models(&self) -> Vec<String>;

    /// Scores ids under a model of [`Self::models`], or under the first where it has no such name.
    ///
    /// # Errors
    /// [`Self::Error`] when it does not answer. Ids that it refuses are no error.
    async fn score(&mut self, model: &str, ids: &[u32]) -> Result<Scored, Self::Error>;

    /// Returns the ids of a chat request's messages by its own template.
    async fn encode(&mut self, chat: &Bytes) -> Option<Vec<u32>>;

    /// Returns the text of ids.
    async fn decode(&mut self, ids: &[u32]) -> Option<String>;

    /// Returns the id that its tokenizer puts in front of every text, if any.
    async fn first_id(&mut self) -> Option<u32>;
}

/// Characters of the pieces by which texts are compared.
const PIECE: usize = 3;
/// Share of the pieces of a text below which it is another text. A lost token costs a few.
const SAME_MIN: f64 = 0.4;

/// Returns true where the text of ids is about a text that the agent received. White space is not
/// compared, since servers strip it.
pub fn says(decoded: &str, received: &str) -> bool {
    let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<Vec<_>>();
    let (decoded, received) = (plain(decoded), plain(received));
    let size = PIECE.min(received.len()).max(1);
    let there: HashSet<&[char]> = decoded.windows(size).collect();
    let found = received.windows(size).filter(|piece| there.contains(piece)).count();
    found as f64 >= SAME_MIN * received.windows(size).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_compared_without_white_space() {
        assert!(says("<|im_start|> a b\n\nc<|im_end|>", "a b\nc "));
        assert!(says("The cities of Italy Rome, Milan", "The cities of Italy are Rome, Milan"));
        assert!(!says("zyx 12 unter", "The cities of Italy are Rome, Milan"));
        assert!(says("b", "b") && !says("b", "c") && says("b", ""));
    }
}
