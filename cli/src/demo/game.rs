//! The guessing game: finding a secret number with a few guesses.

/// The largest secret.
pub(crate) const HIGH: i64 = 7;
/// The number of guesses in one game.
pub(crate) const GUESSES: u32 = 3;
/// Reward for each guess that agrees with the answers before it, if the secret was not found.
const CREDIT: f64 = 0.1;

/// A game under way.
#[derive(Debug)]
pub(crate) struct Game {
    secret: i64,
    guesses_left: u32,
    /// The numbers that the answers so far leave possible, both ends included.
    open: (i64, i64),
    /// Guesses that agreed with the answers before them.
    consistent: u32,
    found: bool,
}

impl Game {
    /// A new game.
    pub(crate) fn new(secret: i64) -> Self {
        Self { secret, guesses_left: GUESSES, open: (1, HIGH), consistent: 0, found: false }
    }

    /// The first message to the model.
    pub(crate) fn prompt() -> String {
        format!("Find the secret number from 1 to {HIGH}. You have {GUESSES} guesses.")
    }

    /// Answers a guess.
    pub(crate) fn guess(&mut self, number: i64) -> &'static str {
        self.guesses_left = self.guesses_left.saturating_sub(1);
        self.consistent += u32::from((self.open.0..=self.open.1).contains(&number));

        if number == self.secret {
            self.found = true;
            return "correct";
        }
        if self.guesses_left == 0 {
            return "no guesses left";
        }
        if number < self.secret {
            self.open.0 = self.open.0.max(number + 1);
            "higher"
        } else {
            self.open.1 = self.open.1.min(number - 1);
            "lower"
        }
    }

    /// True if the game is over.
    pub(crate) fn is_over(&self) -> bool {
        self.found || self.guesses_left == 0
    }

    /// True if the secret was found.
    pub(crate) fn found(&self) -> bool {
        self.found
    }

    /// 1 if the secret was found, else a small reward for consistent guesses.
    pub(crate) fn reward(&self) -> f64 {
        if self.found { 1.0 } else { CREDIT * f64::from(self.consistent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bisection_wins_and_nonsense_earns_little() {
        let mut game = Game::new(5);
        assert_eq!((game.guess(4), game.guess(6), game.guess(5)), ("higher", "lower", "correct"));
        assert!(game.is_over() && game.reward() == 1.0);
        let mut game = Game::new(5);
        assert_eq!(
            (game.guess(4), game.guess(1), game.guess(2)),
            ("higher", "higher", "no guesses left")
        );
        assert!(game.is_over() && !game.found());
        assert!((game.reward() - CREDIT).abs() < 1e-9);
    }
}
