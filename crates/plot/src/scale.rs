//! From values to pixels, and where an axis has its marks.

/// A map from values to pixels along one axis. Values beyond the ends are drawn at the ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    from: f64,
    to: f64,
    first: i32,
    last: i32,
    logarithmic: bool,
}

impl Scale {
    /// `from` lies at pixel `first`, `to` at `last`.
    pub fn linear(from: f64, to: f64, first: i32, last: i32) -> Self {
        // An empty range still has a place for its one value.
        let to = if to > from { to } else { from + 1.0 };
        Self { from, to, first, last, logarithmic: false }
    }

    /// The same by logarithm, for values above 0.
    pub fn logarithmic(from: f64, to: f64, first: i32, last: i32) -> Self {
        let from = from.max(f64::MIN_POSITIVE);
        let to = if to > from { to } else { 10.0 * from };
        Self { from, to, first, last, logarithmic: true }
    }

    /// The pixel of a value.
    pub fn at(&self, value: f64) -> i32 {
        let share = if self.logarithmic {
            (value.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.first + (share * f64::from(self.last - self.first)).round() as i32
    }

    /// Round values for marks, at most about `most`: 1, 2 or 5 times a power of ten, or powers of ten.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        if self.logarithmic {
            let decades = self.from.log10().ceil() as i32..=self.to.log10().floor() as i32;
            return decades.map(|e| 10f64.powi(e)).collect();
        }
        let least = (self.to - self.from) / most.max(1) as f64;
        let power = 10f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= least * (1.0 - 1e-9));
        self.multiples(step.unwrap_or(10.0 * power))
    }

    /// Marks of a time axis in seconds: whole seconds, minutes, hours.
    pub fn time_ticks(&self, most: usize) -> Vec<f64> {
        const STEPS: [f64; 15] = [
            1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
            18000.0,
        ];
        let least = (self.to - self.from) / most.max(1) as f64;
        self.multiples(STEPS.into_iter().find(|s| *s >= least).unwrap_or(36_000.0))
    }

    fn multiples(&self, step: f64) -> Vec<f64> {
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        // An axis has room for so many at the most, whatever the step.
        (first..=last).take(200).map(|i| i as f64 * step).collect()
    }
}

/// A number as short as a mark allows: 0.5, 20, 1500.
pub(crate) fn label(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".into() } else { text.into() }
}

/// Seconds as `m:ss`, with hours when there are any.
pub fn clock(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_they_should() {
        let scale = Scale::linear(10.0, 20.0, 100, 300);
        assert_eq!((scale.at(10.0), scale.at(15.0), scale.at(20.0)), (100, 200, 300));
        assert_eq!((scale.at(-1e9), scale.at(f64::INFINITY), scale.at(f64::NAN)), (100, 300, 100));
        let up = Scale::linear(0.0, 4.0, 300, 100);
        assert_eq!((up.at(0.0), up.at(1.0)), (300, 250));
        let log = Scale::logarithmic(0.01, 100.0, 0, 400);
        assert_eq!((log.at(1.0), log.at(10.0), log.at(0.0)), (200, 300, 0));
        assert_eq!(Scale::linear(3.0, 3.0, 0, 10).at(3.0), 0);
    }

    #[test]
    fn marks_are_round_numbers() {
        assert_eq!(Scale::linear(0.0, 1.0, 0, 1).ticks(5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(
            Scale::linear(0.0, 730.0, 0, 1).ticks(8),
            [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0]
        );
        assert_eq!(
            Scale::linear(0.0, 240.0, 0, 1).time_ticks(8),
            [0.0, 30.0, 60.0, 90.0, 120.0, 150.0, 180.0, 210.0, 240.0]
        );
        assert_eq!(Scale::linear(65.0, 100.0, 0, 1).time_ticks(4), [70.0, 80.0, 90.0, 100.0].map(|x: f64| x));
        assert_eq!(Scale::logarithmic(0.02, 50.0, 0, 1).ticks(9), [0.1, 1.0, 10.0]);
        assert_eq!(
            (label(0.6000000000000001), label(20.0), label(0.0)),
            ("0.6".into(), "20".into(), "0".into())
        );
        assert_eq!((clock(65.4), clock(3600.0)), ("1:05".into(), "1:00:00".into()));
    }
}
