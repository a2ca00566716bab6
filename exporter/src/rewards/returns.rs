//! Returns: what each turn of a branch led to, later rewards counting for less.

/// What was said of one turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    /// Nothing: it adds nothing.
    Silent,
    /// That it could not be scored: no return that it is part of is known.
    Unscored,
    /// Its reward.
    Scored(f64),
}

impl Step {
    /// A last statement, if there is one.
    pub(crate) fn said(statement: Option<Option<f64>>) -> Self {
        match statement {
            None => Self::Silent,
            Some(None) => Self::Unscored,
            Some(Some(value)) => Self::Scored(value),
        }
    }

    /// Both together, as what a turn got in all.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unscored, _) | (_, Self::Unscored) => Self::Unscored,
            (Self::Silent, one) | (one, Self::Silent) => one,
            (Self::Scored(one), Self::Scored(other)) => Self::Scored(one + other),
        }
    }

    pub(crate) fn value(self) -> Option<f64> {
        match self {
            Self::Scored(value) => Some(value),
            Self::Silent | Self::Unscored => None,
        }
    }
}

/// For each turn its reward plus `gamma` times the return of the turn after it in the branch,
/// whenever the calls arrived. None where nothing was said from there on, or where something could
/// not be scored.
pub(crate) fn returns(steps: &[Step], gamma: f64) -> Vec<Option<f64>> {
    let mut later = Step::Silent;
    let mut returns: Vec<Option<f64>> = Vec::with_capacity(steps.len());
    for step in steps.iter().rev() {
        if let Step::Scored(value) = &mut later {
            *value *= gamma;
        }
        later = step.and(later);
        returns.push(later.value());
    }
    returns.reverse();
    returns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SILENT: Step = Step::Silent;

    fn scored(value: f64) -> Step {
        Step::Scored(value)
    }

    #[test]
    fn a_last_reward_is_discounted_once_a_turn() {
        let found = returns(&[SILENT, SILENT, scored(1.0)], 0.5);
        assert_eq!(found, [Some(0.25), Some(0.5), Some(1.0)]);
        // 2 + 0.9 (-1 + 0.9 x 10)
        let found = returns(&[scored(2.0), scored(-1.0), scored(10.0)], 0.9);
        assert!((found[0].unwrap() - 9.2).abs() < 1e-12, "{found:?}");
        assert_eq!(found[2], Some(10.0));
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        assert_eq!(returns(&[SILENT, SILENT], 0.5), [None, None]);
        assert_eq!(returns(&[scored(1.0), SILENT], 0.5), [Some(1.0), None]);
        let found = returns(&[scored(1.0), Step::Unscored, scored(1.0)], 0.5);
        assert_eq!(found, [None, None, Some(1.0)]);
        assert_eq!(returns(&[], 0.5), []);
    }

    proptest! {
        #[test]
        fn a_return_is_the_sum_of_its_discounted_rewards(
            rewards in prop::collection::vec(-9.0..9.0f64, 1..9),
            gamma in 0.0..=1.0f64,
        ) {
            let steps: Vec<Step> = rewards.iter().copied().map(scored).collect();
            for (turn, found) in returns(&steps, gamma).into_iter().enumerate() {
                let later = rewards[turn..].iter().zip(0..);
                let sum: f64 = later.map(|(reward, n)| reward * gamma.powi(n)).sum();
                prop_assert!((found.unwrap() - sum).abs() < 1e-9);
            }
        }
    }
}
