//! Advantages: how much better an attempt did than the others of its group.
//!
//! The population is the attempts of the group that have a reward. An attempt that was not scored
//! is not part of it and has no advantage. Where only one attempt has a reward, there is nothing to
//! compare it with, so it has none either; 0 would mean that it did as expected.

/// Rule that makes an advantage of the rewards of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Advantage {
    /// No advantage.
    #[default]
    None,
    /// `(r - mean) / (std + epsilon)`, with the standard deviation of a sample ([`STD_DDOF`]); GRPO
    /// (Shao et al., 2024).
    Grpo,
    /// `r - mean`; Dr. GRPO (Liu et al., 2025).
    DrGrpo,
    /// `r` less the mean of the other attempts; RLOO (Ahmadian et al., 2024).
    Rloo,
}

/// Delta degrees of freedom of the standard deviation: 1, as trainers use.
pub const STD_DDOF: u32 = 1;
/// Term that keeps the division of GRPO finite where all rewards are alike.
pub const EPSILON: f64 = 1e-6;

impl Advantage {
    /// All rules.
    pub const ALL: [Self; 4] = [Self::None, Self::Grpo, Self::DrGrpo, Self::Rloo];

    /// Returns the word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Grpo => "grpo",
            Self::DrGrpo => "dr-grpo",
            Self::Rloo => "rloo",
        }
    }
}

/// Returns the mean; none for an empty list.
pub fn mean(rewards: &[f64]) -> Option<f64> {
    (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64)
}

/// Returns the standard deviation with [`STD_DDOF`]; none for fewer than two rewards.
pub fn std(rewards: &[f64]) -> Option<f64> {
    let mean = mean(rewards).filter(|_| rewards.len() > STD_DDOF as usize)?;
    let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
    Some((squares / (rewards.len() - STD_DDOF as usize) as f64).sqrt())
}

/// Returns the advantage of each attempt of a group. `rewards` has one entry an attempt.
pub(crate) fn advantages(rule: Advantage, rewards: &[Option<f64>]) -> Vec<Option<f64>> {
    let known: Vec<f64> = rewards.iter().copied().flatten().collect();
    let (Some(mean), Some(std)) = (mean(&known), std(&known)) else {
        return vec![None; rewards.len()];
    };
    let count = known.len() as f64;
    let advantage = |reward: f64| match rule {
        Advantage::None => None,
        Advantage::Grpo => Some((reward - mean) / (std + EPSILON)),
        Advantage::DrGrpo => Some(reward - mean),
        // r - (sum - r) / (n - 1), written as the scaled distance to the mean.
        Advantage::Rloo => Some((reward - mean) * count / (count - 1.0)),
    };
    rewards.iter().map(|reward| reward.and_then(advantage)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(rule: Advantage, rewards: &[Option<f64>], expected: &[Option<f64>]) {
        let found = advantages(rule, rewards);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let close = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 5e-6,
                (found, expected) => found == expected,
            };
            assert!(close, "{rule:?}: {found:?} is not {expected:?}");
        }
    }

    /// Four answers, one right: mean 1/4, sum of squares 9/16 + 3/16 = 3/4, std sqrt(1/4) = 1/2.
    #[test]
    fn a_group_worked_by_hand() {
        let rewards = [Some(1.0), Some(0.0), Some(0.0), Some(0.0)];
        check(Advantage::Grpo, &rewards, &[Some(1.5), Some(-0.5), Some(-0.5), Some(-0.5)]);
        check(Advantage::DrGrpo, &rewards, &[Some(0.75), Some(-0.25), Some(-0.25), Some(-0.25)]);
        // Of the right one the others' mean is 0; of each wrong one it is 1/3.
        let third = Some(-1.0 / 3.0);
        check(Advantage::Rloo, &rewards, &[Some(1.0), third, third, third]);
        check(Advantage::None, &rewards, &[None; 4]);
    }

    /// `torch.tensor([1., 2., 3., 6.]).std()` is 2.1602469; `numpy.std` (ddof 0) would be 1.8708.
    #[test]
    fn the_standard_deviation_is_that_of_a_sample() {
        assert!((std(&[1.0, 2.0, 3.0, 6.0]).unwrap() - 2.160_246_9).abs() < 1e-7);
        let rewards = [1.0, 2.0, 3.0, 6.0].map(Some);
        let expected = [-0.925_820, -0.462_910, 0.0, 1.388_730].map(Some);
        check(Advantage::Grpo, &rewards, &expected);
    }

    #[test]
    fn a_null_reward_is_not_in_the_population_and_is_not_zero() {
        let rewards = [Some(1.0), None, Some(0.0)];
        check(Advantage::DrGrpo, &rewards, &[Some(0.5), None, Some(-0.5)]);
        check(Advantage::Rloo, &rewards, &[Some(1.0), None, Some(-1.0)]);
    }

    #[test]
    fn one_alone_has_no_advantage_and_equals_have_zero() {
        for rule in [Advantage::Grpo, Advantage::DrGrpo, Advantage::Rloo] {
            check(rule, &[Some(1.0)], &[None]);
            check(rule, &[None, Some(1.0)], &[None, None]);
            check(rule, &[], &[]);
            check(rule, &[Some(0.1); 3], &[Some(0.0); 3]);
        }
    }

    proptest! {
        #[test]
        fn each_rule_is_its_formula(
            rewards in prop::collection::vec(prop::option::weighted(0.8, -9.0..9.0f64), 0..12),
        ) {
            let known: Vec<f64> = rewards.iter().copied().flatten().collect();
            let count = known.len() as f64;
            let sum: f64 = known.iter().sum();
            for (at, reward) in rewards.iter().enumerate() {
                let expected = reward.filter(|_| known.len() > 1);
                let rloo = expected.map(|r| r - (sum - r) / (count - 1.0));
                let plain = expected.map(|r| r - sum / count);
                let squares: f64 = known.iter().map(|r| (r - sum / count).powi(2)).sum();
                let scaled = plain.map(|r| r / ((squares / (count - 1.0)).sqrt() + 1e-6));
                for (rule, expected) in [
                    (Advantage::Rloo, rloo),
                    (Advantage::DrGrpo, plain),
                    (Advantage::Grpo, scaled),
                ] {
                    let found = advantages(rule, &rewards)[at];
                    prop_assert_eq!(found.is_some(), expected.is_some());
                    let close = (found.unwrap_or(0.0) - expected.unwrap_or(0.0)).abs() < 1e-6;
                    prop_assert!(close, "{:?}: {:?} {:?}", rule, found, expected);
                }
            }
        }

        #[test]
        fn the_advantages_of_a_group_sum_to_zero(
            rewards in prop::collection::vec(-9.0..9.0f64, 2..12),
        ) {
            let rewards: Vec<_> = rewards.into_iter().map(Some).collect();
            for rule in [Advantage::Grpo, Advantage::DrGrpo, Advantage::Rloo] {
                let sum: f64 = advantages(rule, &rewards).into_iter().flatten().sum();
                prop_assert!(sum.abs() < 1e-6, "{:?}: {}", rule, sum);
            }
        }
    }
}
