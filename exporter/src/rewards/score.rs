//! Scores of turns, and their discounted returns.

/// The latest reward of one thing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Score {
    /// No reward was given. It adds nothing.
    NotGiven,
    /// The reward is null: the thing could not be scored. Every return that includes it is null.
    Null,
    /// The reward.
    Value(f64),
}

impl Score {
    /// Reads a reward that was given. A value that is not finite is null.
    pub(crate) fn given(value: Option<f64>) -> Self {
        match value.filter(|value| value.is_finite()) {
            Some(value) => Self::Value(value),
            None => Self::Null,
        }
    }

    pub(crate) fn is_given(self) -> bool {
        self != Self::NotGiven
    }

    /// Returns this score, or `other` where this one was not given.
    pub(crate) fn or(self, other: Self) -> Self {
        if self.is_given() { self } else { other }
    }

    /// Adds two scores of one turn.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Null, _) | (_, Self::Null) => Self::Null,
            (Self::NotGiven, one) | (one, Self::NotGiven) => one,
            (Self::Value(one), Self::Value(other)) => Self::Value(one + other),
        }
    }

    pub(crate) fn value(self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotGiven | Self::Null => None,
        }
    }
}

/// Returns for each turn its score plus `gamma` times the return of the next turn of the branch.
///
/// The order of the branch counts, not that in which the calls came. A return is none where no
/// score was given from there on, or where one of them is null.
pub(crate) fn returns(scores: &[Score], gamma: f64) -> Vec<Option<f64>> {
    let mut later = Score::NotGiven;
    let mut returns: Vec<Option<f64>> = Vec::with_capacity(scores.len());
    for score in scores.iter().rev() {
        if let Score::Value(value) = &mut later {
            *value *= gamma;
        }
        later = score.and(later);
        returns.push(later.value());
    }
    returns.reverse();
    returns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOT_GIVEN: Score = Score::NotGiven;

    fn value(value: f64) -> Score {
        Score::Value(value)
    }

    #[test]
    fn a_last_reward_is_discounted_once_a_turn() {
        let found = returns(&[NOT_GIVEN, NOT_GIVEN, value(1.0)], 0.5);
        assert_eq!(found, [Some(0.25), Some(0.5), Some(1.0)]);
        // 2 + 0.9 (-1 + 0.9 x 10)
        let found = returns(&[value(2.0), value(-1.0), value(10.0)], 0.9);
        assert!((found[0].unwrap() - 9.2).abs() < 1e-12, "{found:?}");
        assert_eq!(found[2], Some(10.0));
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        assert_eq!(returns(&[NOT_GIVEN, NOT_GIVEN], 0.5), [None, None]);
        assert_eq!(returns(&[value(1.0), NOT_GIVEN], 0.5), [Some(1.0), None]);
        let found = returns(&[value(1.0), Score::Null, value(1.0)], 0.5);
        assert_eq!(found, [None, None, Some(1.0)]);
        assert_eq!(returns(&[], 0.5), []);
    }

    proptest! {
        #[test]
        fn a_return_is_the_sum_of_its_discounted_rewards(
            rewards in prop::collection::vec(-9.0..9.0f64, 1..9),
            gamma in 0.0..=1.0f64,
        ) {
            let steps: Vec<Score> = rewards.iter().copied().map(value).collect();
            for (turn, found) in returns(&steps, gamma).into_iter().enumerate() {
                let later = rewards[turn..].iter().zip(0..);
                let sum: f64 = later.map(|(reward, n)| reward * gamma.powi(n)).sum();
                prop_assert!((found.unwrap() - sum).abs() < 1e-9);
            }
        }
    }
}
