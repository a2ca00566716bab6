//! Ranges that the values of rewards must be in.

use std::fmt::{self, Display};
use std::str::FromStr;

use thiserror::Error;

use crate::Reward;

/// The values that rewards of one name may have, both ends included. Null is always one.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardRange {
    /// The name.
    pub name: String,
    /// The least value.
    pub least: f64,
    /// The greatest value.
    pub most: f64,
}

/// A value that a reward may not have.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RefusedReward {
    /// It is not a number.
    #[error("the reward `{0}` is {1}, which is not a finite number")]
    NotFinite(String, f64),
    /// It is outside its range.
    #[error("the reward `{name}` is {value}, which is not in its range {range}")]
    OutOfRange {
        /// The name of the reward.
        name: String,
        /// Its value.
        value: f64,
        /// The range.
        range: String,
    },
}

/// A text that is no range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not a name and two numbers such as reward=0..1")]
pub struct InvalidRange;

impl FromStr for RewardRange {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let (name, range) = text.rsplit_once('=').ok_or(InvalidRange)?;
        let (least, most) = range.split_once("..").ok_or(InvalidRange)?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
        let (least, most) = number(least).zip(number(most)).ok_or(InvalidRange)?;
        if name.is_empty() || least > most {
            return Err(InvalidRange);
        }
        Ok(Self { name: name.to_owned(), least, most })
    }
}

impl Display for RewardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.least, self.most)
    }
}

impl Reward {
    /// Checks that the value is a finite number within all ranges of its name, or null.
    ///
    /// # Errors
    /// [`RefusedReward`] that names the range.
    pub fn check(&self, ranges: &[RewardRange]) -> Result<(), RefusedReward> {
        let Some(value) = self.value else { return Ok(()) };
        if !value.is_finite() {
            return Err(RefusedReward::NotFinite(self.name.clone(), value));
        }
        let mut of_name = ranges.iter().filter(|range| range.name == self.name);
        match of_name.find(|range| value < range.least || value > range.most) {
            None => Ok(()),
            Some(range) => Err(RefusedReward::OutOfRange {
                name: self.name.clone(),
                value,
                range: range.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Provenance, RewardScope};

    #[test]
    fn a_range_is_a_name_and_two_numbers() {
        let read = |text: &str| text.parse::<RewardRange>();
        let range = |name: &str, least, most| RewardRange { name: name.to_owned(), least, most };
        assert_eq!(read("reward=0..1"), Ok(range("reward", 0.0, 1.0)));
        assert_eq!(read("a=b=-1.5..-1"), Ok(range("a=b", -1.5, -1.0)));
        assert_eq!(read("x=2..2").unwrap().to_string(), "2..2");
        for text in ["", "0..1", "=0..1", "a=1", "a=1..0", "a=0..inf", "a=NaN..1", "a=0..", "a=..1"]
        {
            assert_eq!(read(text), Err(InvalidRange), "{text}");
        }
    }

    #[test]
    fn a_value_is_null_or_a_number_within_the_ranges_of_its_name() {
        let ranges = ["reward=0..1", "style=-2..2", "style=-1..9"].map(|r| r.parse().unwrap());
        let check = |name: &str, value: Option<f64>| {
            let scope = RewardScope::Episode;
            let (name, source) = (name.to_owned(), String::new());
            let provenance = Provenance::default();
            Reward { scope, name, value, source, at: 0, provenance }.check(&ranges)
        };
        let good = [("reward", Some(0.0)), ("reward", Some(1.0)), ("reward", None)];
        for (name, value) in good.into_iter().chain([("style", Some(2.0)), ("other", Some(9e9))]) {
            assert_eq!(check(name, value), Ok(()), "{name} {value:?}");
        }
        let refused = |name: &str, value: f64| check(name, Some(value)).unwrap_err().to_string();
        let said = "the reward `reward` is 1.01, which is not in its range 0..1";
        assert_eq!(refused("reward", 1.01), said);
        assert!(refused("style", -1.5).ends_with("range -1..9"));
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(refused("other", value).contains("not a finite number"), "{value}");
        }
    }
}
