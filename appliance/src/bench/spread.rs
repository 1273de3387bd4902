//! Samples of one figure, and what is said of them.

/// The middle of the samples, and their quarters as the spread: both stand fast when the machine
/// is busy with something else for some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// A quarter of the samples is below.
    pub low: f64,
    /// Half of the samples are below.
    pub median: f64,
    /// A quarter of the samples is above.
    pub high: f64,
}

impl Spread {
    /// The spread of `samples`, which get sorted.
    ///
    /// # Panics
    /// Where there are no samples.
    #[must_use]
    pub fn of(samples: &mut [f64]) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |quarter: usize| samples[(samples.len() - 1) * quarter / 4];
        Self { low: at(1), median: at(2), high: at(3) }
    }

    /// The same in another unit.
    #[must_use]
    pub fn scaled(self, by: f64) -> Self {
        Self { low: self.low * by, median: self.median * by, high: self.high * by }
    }
}

impl std::ops::AddAssign for Spread {
    fn add_assign(&mut self, other: Self) {
        self.low += other.low;
        self.median += other.median;
        self.high += other.high;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters() {
        let spread = Spread::of(&mut [5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(spread, Spread { low: 2.0, median: 3.0, high: 4.0 });
        assert_eq!(Spread::of(&mut [7.0]).scaled(2.0).high, 14.0);
    }
}
