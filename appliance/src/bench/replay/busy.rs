//! How busy the box was during the iterations alone.

/// Busy time of the box's cores, as it was seen from time to time.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Time and busy time until then, both in nanoseconds and ascending.
    samples: Vec<(u64, u64)>,
}

impl Busy {
    /// At the time `now` the cores had worked for `busy`.
    pub(super) fn note(&mut self, now: u64, busy: u64) {
        self.samples.push((now, busy));
    }

    /// Share of the time of `spans`, each with begin and end, that the cores worked.
    pub(super) fn share(&self, spans: &[(u64, u64)]) -> f64 {
        let time: u64 = spans.iter().map(|(begin, end)| end - begin).sum();
        let busy: f64 = spans.iter().map(|&(begin, end)| self.until(end) - self.until(begin)).sum();
        if time > 0 { busy / time as f64 } else { 0.0 }
    }

    /// Busy time until `at`, on the line between the samples around it.
    fn until(&self, at: u64) -> f64 {
        let after = self.samples.partition_point(|&(time, _)| time <= at);
        let (Some(&(t0, b0)), next) =
            (self.samples[..after].last().or(self.samples.first()), self.samples.get(after))
        else {
            return 0.0;
        };
        match next {
            Some(&(t1, b1)) if t1 > t0 => {
                let part = at.saturating_sub(t0) as f64 / (t1 - t0) as f64;
                b0 as f64 + part * (b1 - b0) as f64
            }
            _ => b0 as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_spans_count() {
        let mut busy = Busy::default();
        assert!(busy.share(&[(0, 10)]).abs() < 1e-9);
        for (now, ns) in [(100, 0), (200, 100), (300, 100), (400, 150)] {
            busy.note(now, ns);
        }
        for (spans, share) in [
            (vec![(100, 200)], 1.0),
            (vec![(200, 300)], 0.0),
            (vec![(150, 250)], 0.5),
            (vec![(100, 200), (300, 400)], 0.75),
            (vec![(0, 100), (400, 500)], 0.0),
        ] {
            assert!((busy.share(&spans) - share).abs() < 1e-9, "{spans:?}");
        }
    }
}
