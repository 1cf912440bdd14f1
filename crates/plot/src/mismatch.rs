//! The mismatch chart: attention at the start of the answer against attention over all of it.

use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};

use crate::paint::{BLUE, Frame, GREY, ORANGE, dashed, fill, line, text, write};
use crate::scale::{Scale, label};
use crate::{Drawn, Figure};

/// What is drawn: density, cumulative mass, and how much the strongest positions overlap in each head.
#[derive(Clone, Debug, Default)]
pub struct MismatchChart {
    /// First line: model, recordings.
    pub title: String,
    /// Second line: what was measured.
    pub subtitle: String,
    /// Mass of the first answer token's attention in equal parts of the audio, sum 1, `(parts)`.
    pub prefill: Vec<f64>,
    /// The same, mean over all answer tokens, `(parts)`.
    pub decode: Vec<f64>,
    /// Jaccard of the two top-K sets of each KV head, `(heads)`.
    pub heads: Vec<f64>,
    /// What K is, for the heading.
    pub top: String,
    /// Jaccard of two random sets of this size.
    pub random: f64,
}

const WIDTH: i32 = 1400;
const HEIGHT: i32 = 560;
const TOP: i32 = 132;
const BOTTOM: i32 = HEIGHT - 64;
const DENSITY: Frame = Frame { left: 76, top: TOP, right: 500, bottom: BOTTOM };
const CUMULATIVE: Frame = Frame { left: 580, top: TOP, right: 940, bottom: BOTTOM };
const HEADS: Frame = Frame { left: 1020, top: TOP, right: WIDTH - 30, bottom: BOTTOM };
/// Bars of the histogram.
const BARS: usize = 20;
/// A head below this overlaps hardly at all (the paper's figure).
const LOW: f64 = 0.1;

/// Sums of the first 0, 1, 2, … parts; one more than parts.
fn cumulative(mass: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    std::iter::once(0.0)
        .chain(mass.iter().map(|m| {
            sum += m;
            sum
        }))
        .collect()
}

/// How many values lie in each of [`BARS`] equal parts of 0 to 1; 1 belongs to the last.
fn histogram(values: &[f64]) -> [usize; BARS] {
    let mut out = [0; BARS];
    for value in values.iter().filter(|v| v.is_finite()) {
        // A value on an edge belongs above it, however it was rounded.
        out[((value * BARS as f64 + 1e-9).max(0.0) as usize).min(BARS - 1)] += 1;
    }
    out
}

fn percent(ticks: Vec<f64>) -> Vec<(f64, String)> {
    ticks.into_iter().map(|t| (t, format!("{} %", label(100.0 * t)))).collect()
}

fn position_marks<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, frame: &Frame) -> Drawn<DB> {
    let x = Scale::linear(0.0, 1.0, frame.left, frame.right);
    frame.x_marks(area, &x, &percent(x.ticks(5)), true, true)?;
    let middle = (frame.left + frame.right) / 2;
    write(area, "position in the audio", (middle, frame.bottom + 42), text(16, HPos::Center, VPos::Center))
}

impl MismatchChart {
    fn draw_density<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB> {
        let density = |mass: &[f64]| mass.iter().map(|m| m * mass.len() as f64).collect::<Vec<_>>();
        let curves = [(density(&self.prefill), ORANGE), (density(&self.decode), BLUE)];
        let all = || curves.iter().flat_map(|(c, _)| c).copied().filter(|d| *d > 0.0 && d.is_finite());
        // Whole decades around what there is, at most four below uniform.
        let decade = |d: f64| 10f64.powf(d);
        let low = decade(all().fold(1.0, f64::min).log10().floor().clamp(-4.0, -1.0));
        let high = decade(all().fold(1.0, f64::max).log10().ceil().clamp(1.0, 6.0));
        let y = Scale::logarithmic(low, high, DENSITY.bottom, DENSITY.top);
        position_marks(area, &DENSITY)?;
        let ticks: Vec<_> = y.ticks(9).into_iter().map(|t| (t, format!("{}×", label(t)))).collect();
        DENSITY.y_marks(area, &y, &ticks, true)?;
        let uniform = y.at(1.0);
        dashed(area, &[(DENSITY.left, uniform), (DENSITY.right, uniform)], GREY, 2)?;
        for (curve, colour) in &curves {
            let x = Scale::linear(0.0, curve.len() as f64, DENSITY.left, DENSITY.right);
            let points: Vec<_> =
                curve.iter().enumerate().map(|(i, d)| (x.at(i as f64 + 0.5), y.at(*d))).collect();
            if points.len() > 1 {
                line(area, points, *colour, 2)?;
            }
        }
        DENSITY.border(area, "Attention mass by position (1× = uniform)")
    }

    fn draw_cumulative<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB> {
        let frame = &CUMULATIVE;
        let y = Scale::linear(0.0, 1.0, frame.bottom, frame.top);
        position_marks(area, frame)?;
        frame.y_marks(area, &y, &percent(y.ticks(5)), true)?;
        dashed(area, &[(frame.left, frame.bottom), (frame.right, frame.top)], GREY, 2)?;
        for (mass, colour) in [(&self.prefill, ORANGE), (&self.decode, BLUE)] {
            let x = Scale::linear(0.0, mass.len() as f64, frame.left, frame.right);
            let points: Vec<_> =
                cumulative(mass).into_iter().enumerate().map(|(i, c)| (x.at(i as f64), y.at(c))).collect();
            if points.len() > 1 {
                line(area, points, colour, 2)?;
            }
        }
        frame.border(area, "Cumulative attention mass")
    }

    fn draw_heads<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB> {
        let frame = &HEADS;
        let bars = histogram(&self.heads);
        let most = bars.iter().copied().max().unwrap_or(0).max(1);
        let y = Scale::linear(0.0, 1.1 * most as f64, frame.bottom, frame.top);
        let x = Scale::linear(0.0, 1.0, frame.left, frame.right);
        let whole = |t: &f64| t.fract() == 0.0;
        let ticks: Vec<_> = y.ticks(6).into_iter().filter(whole).map(|t| (t, label(t))).collect();
        frame.y_marks(area, &y, &ticks, true)?;
        for (i, bar) in bars.iter().enumerate().filter(|(_, bar)| **bar > 0) {
            let edge = |i: usize| x.at(i as f64 / BARS as f64);
            let corners = [(edge(i) + 1, y.at(*bar as f64)), (edge(i + 1) - 1, frame.bottom)];
            fill(area, corners, BLUE)?;
        }
        let marks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0].map(|t| (t, label(t)));
        frame.x_marks(area, &x, &marks, false, true)?;
        let middle = (frame.left + frame.right) / 2;
        let name = format!("Jaccard, {}", self.top);
        write(area, name, (middle, frame.bottom + 42), text(16, HPos::Center, VPos::Center))?;
        let at = x.at(self.random);
        dashed(area, &[(at, frame.top), (at, frame.bottom)], GREY, 2)?;
        frame.border(area, "KV heads by overlap of the two top sets")?;
        let low = self.heads.iter().filter(|h| **h < LOW).count();
        let note = format!("{low} of {} heads under {LOW}", self.heads.len());
        write(area, note, (frame.right - 10, frame.top + 18), text(15, HPos::Right, VPos::Center))?;
        let note = format!("dashed: random sets, {}", label((1000.0 * self.random).round() / 1000.0));
        write(area, note, (frame.right - 10, frame.top + 40), text(15, HPos::Right, VPos::Center))
    }
}

impl Figure for MismatchChart {
    fn size(&self) -> (u32, u32) {
        (WIDTH as u32, HEIGHT as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB> {
        write(area, self.title.as_str(), (20, 12), text(26, HPos::Left, VPos::Top))?;
        write(area, self.subtitle.as_str(), (20, 48), text(17, HPos::Left, VPos::Top))?;
        self.draw_density(area)?;
        self.draw_cumulative(area)?;
        self.draw_heads(area)?;
        let y = 90;
        let mut x = DENSITY.left;
        for (colour, name, dashes) in [
            (ORANGE, "first answer token (what prefill sees)", false),
            (BLUE, "mean over all answer tokens", false),
            (GREY, "uniform", true),
        ] {
            let sample = [(x, y), (x + 34, y)];
            if dashes {
                dashed(area, &sample, colour, 2)?
            } else {
                line(area, sample.to_vec(), colour, 3)?
            }
            write(area, name, (x + 44, y), text(16, HPos::Left, VPos::Center))?;
            x += 380;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_bars_by_hand() {
        assert_eq!(cumulative(&[0.5, 0.25, 0.25]), [0.0, 0.5, 0.75, 1.0]);
        let bars = histogram(&[0.0, 0.04, 0.05, 0.1, 0.3, 0.99, 1.0, f64::NAN]);
        assert_eq!((bars[0], bars[1], bars[2], bars[6], bars[19]), (2, 1, 1, 1, 2));
        assert_eq!(bars.iter().sum::<usize>(), 7);
    }

    #[test]
    fn it_is_drawn_with_all_parts_and_from_nothing() {
        let chart = MismatchChart {
            title: "tiny".into(),
            subtitle: "2 recordings".into(),
            prefill: (0..200).map(|i| if i == 0 { 0.6 } else { 0.4 / 199.0 }).collect(),
            decode: vec![0.005; 200],
            heads: (0..32).map(|i| f64::from(i) / 40.0).collect(),
            top: "K = 100".into(),
            random: 0.0067,
        };
        let svg = crate::svg(&chart).unwrap();
        for part in [
            "tiny",
            "uniform",
            "position in the audio",
            "Jaccard, K = 100",
            "4 of 32 heads under 0.1",
            "40 %",
        ] {
            assert!(svg.contains(part), "{part}");
        }
        assert!(crate::png(&chart).unwrap().starts_with(b"\x89PNG"));
        crate::svg(&MismatchChart::default()).unwrap();
        crate::png(&MismatchChart { prefill: vec![f64::NAN; 3], decode: vec![0.0; 3], ..chart }).unwrap();
    }
}
