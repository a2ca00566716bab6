//! Rewards: statements about an episode, appended and never overwritten.

use thiserror::Error;

use crate::{CallId, Micros};

/// One statement about how well an episode, or a part of it, went.
#[derive(Debug, Clone, PartialEq)]
pub struct Reward {
    /// What it is about.
    pub scope: RewardScope,
    /// The name of this part of the reward; `reward` is the one that trainers read.
    pub name: String,
    /// The value; `None` says that it could not be scored, which is not zero.
    pub value: Option<f64>,
    /// Who said so.
    pub source: String,
    /// When it was said.
    pub at: Micros,
}

/// The part of an episode that a reward is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RewardScope {
    /// All of it.
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
        /// First token, counted from the choice's own first one.
        start: u32,
        /// One past the last token.
        end: u32,
    },
}

/// What names a scope, as people and columns say it. What is left out is inferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScopeParts<'a> {
    /// The word of [`RewardScope::as_str`].
    pub word: Option<&'a str>,
    /// The call.
    pub call: Option<CallId>,
    /// The choice of that call; the first if left out.
    pub choice: Option<u32>,
    /// First token and one past the last.
    pub tokens: (Option<u32>, Option<u32>),
}

/// Parts that name no scope.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// The word is none of the four.
    #[error("`{0}` is none of episode, trajectory, call, tokens")]
    Word(String),
    /// A part is missing that such a scope has.
    #[error("a reward of scope `{0}` needs `{1}`")]
    Missing(&'static str, &'static str),
    /// A part is given that such a scope does not have.
    #[error("a reward of scope `{0}` has no `{1}`")]
    Surplus(&'static str, &'static str),
    /// The span holds no token.
    #[error("tokens {0} to {1} are none")]
    Empty(u32, u32),
    /// The span goes on behind the last token.
    #[error("tokens {0} to {1} were not all sampled: the `end` is {2} at most")]
    Beyond(u32, u32, u32),
}

impl RewardScope {
    /// The scope that the parts name. Without a word it is `tokens` where a token is named, `call`
    /// where a call is, else `episode`.
    ///
    /// # Errors
    /// [`ScopeError`] when a part is missing, does not belong, or names nothing.
    pub fn new(parts: &ScopeParts<'_>) -> Result<Self, ScopeError> {
        let inferred = match (parts.call, parts.tokens) {
            (None, (None, None)) => "episode",
            (Some(_), (None, None)) => "call",
            _ => "tokens",
        };
        let scope = match parts.word.unwrap_or(inferred) {
            "episode" => Self::Episode,
            "trajectory" => Self::Trajectory {
                call: parts.needed("trajectory")?,
                choice: parts.choice.unwrap_or(0),
            },
            "call" => Self::Call(parts.needed("call")?),
            "tokens" => parts.span()?,
            other => return Err(ScopeError::Word(other.to_owned())),
        };
        parts.check(scope).map(|()| scope)
    }

    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Episode => "episode",
            Self::Trajectory { .. } => "trajectory",
            Self::Call(_) => "call",
            Self::Tokens { .. } => "tokens",
        }
    }

    /// The call that it names.
    pub fn call(self) -> Option<CallId> {
        match self {
            Self::Episode => None,
            Self::Trajectory { call, .. } | Self::Call(call) | Self::Tokens { call, .. } => {
                Some(call)
            }
        }
    }

    /// The choice that it names.
    pub fn choice(self) -> Option<u32> {
        match self {
            Self::Episode | Self::Call(_) => None,
            Self::Trajectory { choice, .. } | Self::Tokens { choice, .. } => Some(choice),
        }
    }

    /// Holds a span to how many tokens its choice sampled, where that is known: a reward of others
    /// would reach no row.
    ///
    /// # Errors
    /// [`ScopeError::Beyond`] when it ends behind them.
    pub fn within(self, sampled: Option<u32>) -> Result<(), ScopeError> {
        match (self, sampled) {
            (Self::Tokens { start, end, .. }, Some(sampled)) if end > sampled => {
                Err(ScopeError::Beyond(start, end, sampled))
            }
            _ => Ok(()),
        }
    }

    /// First token and one past the last.
    pub fn tokens(self) -> Option<(u32, u32)> {
        match self {
            Self::Tokens { start, end, .. } => Some((start, end)),
            _ => None,
        }
    }
}

impl ScopeParts<'_> {
    fn needed(&self, word: &'static str) -> Result<CallId, ScopeError> {
        self.call.ok_or(ScopeError::Missing(word, "call_id"))
    }

    fn span(&self) -> Result<RewardScope, ScopeError> {
        let (call, choice) = (self.needed("tokens")?, self.choice.unwrap_or(0));
        let start = self.tokens.0.ok_or(ScopeError::Missing("tokens", "start"))?;
        let end = self.tokens.1.ok_or(ScopeError::Missing("tokens", "end"))?;
        if start >= end {
            return Err(ScopeError::Empty(start, end));
        }
        Ok(RewardScope::Tokens { call, choice, start, end })
    }

    /// A part that the scope does not have is a slip, not something to be dropped.
    fn check(&self, scope: RewardScope) -> Result<(), ScopeError> {
        let surplus = [
            ("call_id", self.call.is_some() && scope.call().is_none()),
            ("choice", self.choice.is_some() && scope.choice().is_none()),
            ("start", self.tokens.0.is_some() && scope.tokens().is_none()),
            ("end", self.tokens.1.is_some() && scope.tokens().is_none()),
        ];
        match surplus.into_iter().find(|(_, is)| *is) {
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
            (parts(None, Some(CALL), None, (Some(4), Some(4))), "4 to 4 are none"),
        ];
        for (parts, said) in cases {
            let error = RewardScope::new(&parts).unwrap_err().to_string();
            assert!(error.contains(said), "{parts:?}: {error}");
        }
    }
}
