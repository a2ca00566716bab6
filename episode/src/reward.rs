//! Rewards of an episode. They are appended and never overwritten.

use thiserror::Error;

use crate::{CallId, Micros, Provenance};

/// One score of an episode or of a part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reward {
    /// The part of the episode that it scores.
    pub scope: RewardScope,
    /// The name of the score; trainers read the one named `reward`.
    pub name: String,
    /// The value; `None` if it could not be scored, which is not zero.
    pub value: Option<f64>,
    /// The origin of the score.
    pub source: String,
    /// Time at which it was given.
    pub at: Micros,
    /// Who gave it, from where, and over which records.
    pub provenance: Provenance,
}

/// The part of an episode that a reward scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RewardScope {
    /// The whole episode.
    Episode,
    /// The trajectory that ends with this choice of this call.
    Trajectory {
        /// The last call of the trajectory.
        call: CallId,
        /// The choice of that call.
        choice: u32,
    },
    /// One call.
    Call(CallId),
    /// The half-open span `[start, end)` of the tokens that one choice sampled.
    Tokens {
        /// The call.
        call: CallId,
        /// The choice of that call.
        choice: u32,
        /// First token, counted from the first one of the choice.
        start: u32,
        /// One past the last token.
        end: u32,
    },
}

/// The fields that name a scope. [`RewardScope::new`] infers those that are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScopeParts<'a> {
    /// The word of [`RewardScope::as_str`].
    pub word: Option<&'a str>,
    /// The call.
    pub call: Option<CallId>,
    /// The choice of that call; the first if absent.
    pub choice: Option<u32>,
    /// First token and one past the last.
    pub tokens: (Option<u32>, Option<u32>),
}

/// Fields that name no scope.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// The word is none of the four.
    #[error("`{0}` is none of episode, trajectory, call, tokens")]
    Word(String),
    /// A field is missing that the scope needs.
    #[error("a reward of scope `{0}` needs `{1}`")]
    Missing(&'static str, &'static str),
    /// A field is present that the scope does not have.
    #[error("a reward of scope `{0}` has no `{1}`")]
    Surplus(&'static str, &'static str),
    /// The range holds no token.
    #[error("empty token range {0}..{1}")]
    Empty(u32, u32),
    /// The range ends after the last sampled token.
    #[error("token range {0}..{1} exceeds what was sampled: the `end` is {2} at most")]
    Beyond(u32, u32, u32),
}

impl RewardScope {
    /// The scope that `parts` name. Without a word it is `tokens` if a token is named, `call` if
    /// a call is named, and `episode` otherwise.
    ///
    /// # Errors
    /// [`ScopeError`] if a field is missing, does not belong to the scope, or is not valid.
    pub fn new(parts: &ScopeParts<'_>) -> Result<Self, ScopeError> {
        let inferred = match (parts.call, parts.tokens) {
            (None, (None, None)) => "episode",
            (Some(_), (None, None)) => "call",
            _ => "tokens",
        };
        let scope = match parts.word.unwrap_or(inferred) {
            "episode" => Self::Episode,
            "trajectory" => Self::Trajectory {
                call: parts.require_call("trajectory")?,
                choice: parts.choice.unwrap_or(0),
            },
            "call" => Self::Call(parts.require_call("call")?),
            "tokens" => parts.token_range()?,
            other => return Err(ScopeError::Word(other.to_owned())),
        };
        parts.check_surplus(scope)?;
        Ok(scope)
    }

    /// The word that is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Episode => "episode",
            Self::Trajectory { .. } => "trajectory",
            Self::Call(_) => "call",
            Self::Tokens { .. } => "tokens",
        }
    }

    /// The call, unless the scope is the episode.
    pub fn call(self) -> Option<CallId> {
        match self {
            Self::Episode => None,
            Self::Trajectory { call, .. } | Self::Call(call) | Self::Tokens { call, .. } => {
                Some(call)
            }
        }
    }

    /// The choice of the call, if the scope has one.
    pub fn choice(self) -> Option<u32> {
        match self {
            Self::Episode | Self::Call(_) => None,
            Self::Trajectory { choice, .. } | Self::Tokens { choice, .. } => Some(choice),
        }
    }

    /// Checks that a token range lies within the `sampled` tokens of its choice, if their number
    /// is known. A reward of other tokens would reach no row.
    ///
    /// # Errors
    /// [`ScopeError::Beyond`] if it ends after them.
    pub fn within(self, sampled: Option<u32>) -> Result<(), ScopeError> {
        match (self, sampled) {
            (Self::Tokens { start, end, .. }, Some(sampled)) if end > sampled => {
                Err(ScopeError::Beyond(start, end, sampled))
            }
            _ => Ok(()),
        }
    }

    /// First token and one past the last, if the scope is a token range.
    pub fn tokens(self) -> Option<(u32, u32)> {
        match self {
            Self::Tokens { start, end, .. } => Some((start, end)),
            _ => None,
        }
    }
}

impl ScopeParts<'_> {
    fn require_call(&self, word: &'static str) -> Result<CallId, ScopeError> {
        self.call.ok_or(ScopeError::Missing(word, "call_id"))
    }

    fn token_range(&self) -> Result<RewardScope, ScopeError> {
        let (call, choice) = (self.require_call("tokens")?, self.choice.unwrap_or(0));
        let start = self.tokens.0.ok_or(ScopeError::Missing("tokens", "start"))?;
        let end = self.tokens.1.ok_or(ScopeError::Missing("tokens", "end"))?;
        if start >= end {
            return Err(ScopeError::Empty(start, end));
        }
        Ok(RewardScope::Tokens { call, choice, start, end })
    }

    /// Refuses a field that the scope does not have: it is a mistake of the sender.
    fn check_surplus(&self, scope: RewardScope) -> Result<(), ScopeError> {
        let surplus = [
            ("call_id", self.call.is_some() && scope.call().is_none()),
            ("choice", self.choice.is_some() && scope.choice().is_none()),
            ("start", self.tokens.0.is_some() && scope.tokens().is_none()),
            ("end", self.tokens.1.is_some() && scope.tokens().is_none()),
        ];
        match surplus.into_iter().find(|(_, is_surplus)| *is_surplus) {
            Some((part, _)) => Err(ScopeError::Surplus(scope.as_str(), part)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const CALL: CallId = CallId(Uuid::from_u128(7));

    fn parts<'a>(
        word: Option<&'a str>,
        call: Option<CallId>,
        choice: Option<u32>,
        tokens: (Option<u32>, Option<u32>),
    ) -> ScopeParts<'a> {
        ScopeParts { word, call, choice, tokens }
    }

    #[test]
    fn a_scope_is_inferred_from_its_parts() {
        let none = (None, None);
        let new = |parts: ScopeParts<'_>| RewardScope::new(&parts).unwrap();
        assert_eq!(new(ScopeParts::default()), RewardScope::Episode);
        assert_eq!(new(parts(None, Some(CALL), None, none)), RewardScope::Call(CALL));
        let tokens = RewardScope::Tokens { call: CALL, choice: 0, start: 2, end: 5 };
        assert_eq!(new(parts(None, Some(CALL), None, (Some(2), Some(5)))), tokens);
        let leaf = RewardScope::Trajectory { call: CALL, choice: 3 };
        assert_eq!(new(parts(Some("trajectory"), Some(CALL), Some(3), none)), leaf);
    }

    #[test]
    fn a_scope_is_made_again_of_what_it_says() {
        for scope in [
            RewardScope::Episode,
            RewardScope::Call(CALL),
            RewardScope::Trajectory { call: CALL, choice: 1 },
            RewardScope::Tokens { call: CALL, choice: 2, start: 0, end: 1 },
        ] {
            let span = scope.tokens().unzip();
            let again = parts(Some(scope.as_str()), scope.call(), scope.choice(), span);
            assert_eq!(RewardScope::new(&again), Ok(scope));
        }
    }

    #[test]
    fn parts_that_name_nothing_are_refused_with_a_sentence() {
        let none = (None, None);
        let cases = [
            (parts(Some("turn"), None, None, none), "`turn` is none of"),
            (parts(Some("trajectory"), None, None, none), "needs `call_id`"),
            (parts(Some("episode"), Some(CALL), None, none), "`episode` has no `call_id`"),
            (parts(None, Some(CALL), Some(0), none), "`call` has no `choice`"),
            (parts(Some("call"), Some(CALL), None, (Some(0), None)), "`call` has no `start`"),
            (parts(None, Some(CALL), None, (Some(0), None)), "needs `end`"),
            (parts(None, None, None, (Some(0), Some(1))), "needs `call_id`"),
            (parts(None, Some(CALL), None, (Some(4), Some(4))), "empty token range 4..4"),
        ];
        for (parts, said) in cases {
            let error = RewardScope::new(&parts).unwrap_err().to_string();
            assert!(error.contains(said), "{parts:?}: {error}");
        }
    }
}
