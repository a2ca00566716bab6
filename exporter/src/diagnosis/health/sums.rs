//! Sums of numbers that are seen once: means, deviations, correlations.

/// The count, the mean and the spread of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Moments {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl Moments {
    /// Adds a number.
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Adds all numbers of others.
    pub(crate) fn join(&mut self, others: &Self) {
        let count = self.count + others.count;
        if others.count == 0 {
            return;
        }
        let apart = others.mean - self.mean;
        let share = others.count as f64 / count as f64;
        self.squares += others.squares + apart * apart * self.count as f64 * share;
        self.mean += apart * share;
        self.count = count;
    }

    /// Returns the variance of a sample; 0 of fewer than two.
    pub(crate) fn variance(&self) -> f64 {
        if self.count < 2 { 0.0 } else { self.squares / (self.count - 1) as f64 }
    }

    /// Returns the standard deviation of a sample.
    pub(crate) fn std(&self) -> f64 {
        self.variance().sqrt()
    }

    /// Returns the standard error of the mean.
    pub(crate) fn error(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.std() / (self.count as f64).sqrt() }
    }
}

/// Returns how many standard errors two means lie apart; 0 where they are equal.
pub(crate) fn sigmas(one: &Moments, other: &Moments) -> f64 {
    ratio((one.mean - other.mean).abs(), one.error().hypot(other.error()))
}

/// The number of cases, and of those in which something happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) cases: u64,
    pub(crate) times: u64,
}

impl Rate {
    /// Adds a case.
    pub(crate) fn add(&mut self, happened: bool) {
        self.cases += 1;
        self.times += u64::from(happened);
    }

    /// Adds all cases of another.
    pub(crate) fn join(&mut self, other: &Self) {
        self.cases += other.cases;
        self.times += other.times;
    }

    /// Returns the share of the cases; 0 of none.
    pub(crate) fn share(&self) -> f64 {
        if self.cases == 0 { 0.0 } else { self.times as f64 / self.cases as f64 }
    }

    /// Returns how many standard errors two rates lie apart, if both were one.
    pub(crate) fn sigmas(&self, other: &Self) -> f64 {
        let mut both = *self;
        both.join(other);
        let spread = both.share() * (1.0 - both.share());
        let cases = 1.0 / self.cases.max(1) as f64 + 1.0 / other.cases.max(1) as f64;
        ratio((self.share() - other.share()).abs(), (spread * cases).sqrt())
    }
}

fn ratio(difference: f64, error: f64) -> f64 {
    if difference == 0.0 { 0.0 } else { difference / error }
}

/// Pairs of numbers, for their correlation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PairSums {
    pub(crate) count: u64,
    x: Moments,
    y: Moments,
    products: f64,
}

impl PairSums {
    /// Adds a pair.
    pub(crate) fn add(&mut self, x: f64, y: f64) {
        let before = x - self.x.mean;
        self.x.add(x);
        self.y.add(y);
        self.products += before * (y - self.y.mean);
        self.count += 1;
    }

    /// Adds the pairs of a group as distances from the means of that group.
    pub(crate) fn join_centered(&mut self, group: &Self) {
        self.count += group.count;
        self.x.squares += group.x.squares;
        self.y.squares += group.y.squares;
        self.products += group.products;
    }

    /// Returns the correlation; none where one of the two does not vary.
    pub(crate) fn correlation(&self) -> Option<f64> {
        let spread = (self.x.squares * self.y.squares).sqrt();
        (spread > 0.0).then(|| self.products / spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|value| moments.add(*value));
        moments
    }

    #[test]
    fn moments_of_parts_are_those_of_the_whole() {
        let values = [1.0, 4.0, -2.0, 8.0, 0.5];
        let whole = moments(&values);
        assert!((whole.mean - 2.3).abs() < 1e-12 && (whole.variance() - 14.7).abs() < 1e-12);
        for cut in 0..=values.len() {
            let mut joined = moments(&values[..cut]);
            joined.join(&moments(&values[cut..]));
            assert!((joined.variance() - whole.variance()).abs() < 1e-12, "{cut}");
            assert!((joined.mean - whole.mean).abs() < 1e-12, "{cut}");
        }
        assert_eq!((moments(&[]).error(), moments(&[3.0]).std()), (0.0, 0.0));
    }

    #[test]
    fn correlations_within_groups_leave_out_what_groups_differ_by() {
        let mut all = PairSums::default();
        for level in [0.0, 100.0] {
            let mut group = PairSums::default();
            for (x, y) in [(0.0, 3.0), (1.0, 2.0), (2.0, 1.0)] {
                group.add(x + level, y + level);
            }
            assert!((group.correlation().unwrap() + 1.0).abs() < 1e-12);
            all.join_centered(&group);
        }
        assert!((all.correlation().unwrap() + 1.0).abs() < 1e-12);
        assert_eq!(PairSums::default().correlation(), None);
    }

    #[test]
    fn rates_and_means_lie_apart_by_their_errors() {
        let rate = |times, cases| Rate { cases, times };
        assert!(rate(50, 100).sigmas(&rate(10, 100)) > 6.0);
        assert!(rate(5, 10).sigmas(&rate(4, 10)) < 1.0);
        assert_eq!(rate(0, 10).sigmas(&rate(0, 10)), 0.0);
        let (low, high) = (moments(&[0.0, 0.1, 0.2]), moments(&[1.0, 1.1, 1.2]));
        assert!(sigmas(&low, &high) > 10.0 && sigmas(&low, &low) == 0.0);
    }
}
