//! The axis of a chart: from zero to a round number above the largest value.

/// What is larger is not a measurement, and not worth an axis.
const LARGEST: f64 = 1e12;
/// Steps that the axis has at most.
const STEPS: f64 = 5.0;

/// An axis from zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    step: f64,
    steps: u32,
}

impl Axis {
    /// An axis that has room for all `values`.
    pub(super) fn new(values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|&v| drawable(v)).fold(0.0, f64::max);
        if max < 1.0 / LARGEST {
            return Self { step: 1.0, steps: 1 };
        }
        let power = 10f64.powf((max / STEPS).log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|s| s * power);
        let step = step.into_iter().find(|s| s * STEPS >= max).unwrap_or(max);
        Self { step, steps: (max / step).ceil().clamp(1.0, STEPS) as u32 }
    }

    /// Where `value` is: 0 at zero, 1 at the end.
    pub(super) fn at(self, value: f64) -> f64 {
        (value / (self.step * f64::from(self.steps))).clamp(0.0, 1.0)
    }

    /// Values to write at the axis.
    pub(super) fn ticks(self) -> impl Iterator<Item = (f64, String)> {
        let digits = (-self.step.log10() + 0.999).floor().clamp(0.0, 9.0) as usize;
        // 2.5 and 0.25 have a digit more than their power of ten.
        let rest = self.step * 10f64.powi(digits as i32);
        let digits = digits + usize::from((rest - rest.round()).abs() > 1e-6);
        (0..=self.steps).map(move |i| {
            let value = self.step * f64::from(i);
            (value, if i == 0 { "0".to_owned() } else { format!("{value:.digits$}") })
        })
    }
}

/// Whether a chart can show this.
pub(super) fn drawable(value: f64) -> bool {
    (0.0..=LARGEST).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_round_and_hold_everything() {
        for (max, ticks) in [
            (217.0, "0 50 100 150 200 250"),
            (100.0, "0 20 40 60 80 100"),
            (3.0, "0 1 2 3"),
            (11.0, "0.0 2.5 5.0 7.5 10.0 12.5"),
            (0.37, "0.0 0.1 0.2 0.3 0.4"),
            (0.012, "0.000 0.0025 0.0050 0.0075 0.0100 0.0125"),
        ] {
            let axis = Axis::new([max].into_iter());
            let found: Vec<_> = axis.ticks().skip(1).map(|(_, text)| text).collect();
            let expected: Vec<_> = ticks.split(' ').skip(1).collect();
            assert_eq!(found, expected);
            assert!(axis.at(max) <= 1.0 && axis.at(max) > 0.7, "{max}");
        }
    }

    #[test]
    fn nothing_from_outside_makes_it_lose_its_way() {
        for value in [0.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE] {
            let axis = Axis::new([value].into_iter());
            assert!((2..=6).contains(&axis.ticks().count()), "{value}");
            let at = axis.at(value);
            assert!(at.is_nan() || (0.0..=1.0).contains(&at), "{value}: {at}");
        }
    }
}
