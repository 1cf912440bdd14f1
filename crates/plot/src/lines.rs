//! The line chart: series of points over one axis, with ranges where they are known.

use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::Circle;
use plotters::prelude::{Color, DrawingBackend, RGBColor};
use plotters::style::text_anchor::{HPos, VPos};

use crate::paint::{Frame, GREY, line, text, write};
use crate::scale::{Scale, label};
use crate::{Drawn, Figure};

/// What is drawn.
#[derive(Clone, Debug, Default)]
pub struct LineChart {
    /// First line.
    pub title: String,
    /// Second line.
    pub subtitle: String,
    /// Below the x axis.
    pub x_label: String,
    /// Above the y axis.
    pub y_label: String,
    /// Whether the largest x lies at the left, as the paper draws retention.
    pub falling: bool,
    /// Whether y is drawn by logarithm.
    pub logarithmic: bool,
    /// A straight line from the origin with slope 1: where x and y should be the same.
    pub diagonal: bool,
    /// The series, in the order of the legend.
    pub series: Vec<Series>,
}

/// One series.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Points with the range in which each lies; a range from a value to itself is not drawn.
    pub points: Vec<Point>,
    /// Whether points are joined.
    pub joined: bool,
}

/// One point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Along the x axis.
    pub x: f64,
    /// Along the y axis.
    pub y: f64,
    /// Lower end of its range.
    pub low: f64,
    /// Upper end of its range.
    pub high: f64,
}

impl Point {
    /// A point without a range.
    pub fn exact(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }

    fn is_finite(&self) -> bool {
        [self.x, self.y, self.low, self.high].iter().all(|v| v.is_finite())
    }
}

/// Colours of the series, told apart also by those who see few colours (Okabe and Ito 2008, and darker twins).
const COLOURS: [RGBColor; 14] = [
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x8c, 0x8c, 0x8c),
    RGBColor(0x7a, 0x33, 0x00),
    RGBColor(0x00, 0x3a, 0x5c),
    RGBColor(0x00, 0x4f, 0x39),
    RGBColor(0x7b, 0x2d, 0x5b),
    RGBColor(0x80, 0x58, 0x00),
    RGBColor(0x9b, 0x8f, 0x00),
];

const WIDTH: i32 = 1100;
const TOP: i32 = 130;
const PLOT_HEIGHT: i32 = 420;
const BELOW: i32 = 76;
const LEGEND_ROW: i32 = 24;
const LEGEND_COLUMNS: i32 = 4;
const FRAME: Frame = Frame { left: 86, top: TOP, right: WIDTH - 30, bottom: TOP + PLOT_HEIGHT };

impl LineChart {
    fn legend_rows(&self) -> i32 {
        (self.series.len() as i32 + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|s| &s.points).filter(|p| p.is_finite())
    }

    fn x_scale(&self) -> Scale {
        let low = self.points().map(|p| p.x).fold(f64::INFINITY, f64::min);
        let high = self.points().map(|p| p.x).fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let (low, high) = if self.diagonal { (0.0, high) } else { (low, high) };
        let (first, last) = if self.falling {
            (FRAME.right - 20, FRAME.left + 20)
        } else {
            (FRAME.left + 20, FRAME.right - 20)
        };
        Scale::linear(low, high, first, last)
    }

    fn y_scale(&self) -> Scale {
        let high = self.points().map(|p| p.high.max(p.y)).fold(0.0, f64::max);
        if self.logarithmic {
            let low = self.points().map(|p| p.y).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
            let low = if low.is_finite() { low } else { 1.0 };
            // Whole decades around what there is.
            let (low, high) = (low.log10().floor(), high.max(low * 1.01).log10().ceil());
            return Scale::logarithmic(10f64.powf(low), 10f64.powf(high), FRAME.bottom, FRAME.top);
        }
        Scale::linear(0.0, if high > 0.0 { 1.05 * high } else { 1.0 }, FRAME.bottom, FRAME.top)
    }

    fn draw_series<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        series: &Series,
        colour: RGBColor,
        (x, y): (&Scale, &Scale),
    ) -> Drawn<DB> {
        let points: Vec<&Point> = series.points.iter().filter(|p| p.is_finite()).collect();
        if series.joined && points.len() > 1 {
            line(area, points.iter().map(|p| (x.at(p.x), y.at(p.y))).collect(), colour, 2)?;
        }
        for p in &points {
            let (px, low, high) = (x.at(p.x), y.at(p.low), y.at(p.high));
            if low != high {
                line(area, vec![(px, low), (px, high)], colour, 1)?;
                [low, high]
                    .iter()
                    .try_for_each(|v| line(area, vec![(px - 4, *v), (px + 4, *v)], colour, 1))?;
            }
            // Many joined points are a curve; dots would hide it.
            if !series.joined || points.len() <= 30 {
                area.draw(&Circle::new((px, y.at(p.y)), 4, colour.filled()))?;
            }
        }
        Ok(())
    }
}

impl Figure for LineChart {
    fn size(&self) -> (u32, u32) {
        (WIDTH as u32, (FRAME.bottom + BELOW + self.legend_rows() * LEGEND_ROW + 12) as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB> {
        write(area, self.title.as_str(), (20, 12), text(26, HPos::Left, VPos::Top))?;
        write(area, self.subtitle.as_str(), (20, 48), text(17, HPos::Left, VPos::Top))?;
        let (x, y) = (self.x_scale(), self.y_scale());
        let marks = |ticks: Vec<f64>| ticks.into_iter().map(|t| (t, label(t))).collect::<Vec<_>>();
        FRAME.x_marks(area, &x, &marks(x.ticks(10)), true, true)?;
        FRAME.y_marks(area, &y, &marks(y.ticks(8)), true)?;
        let middle = (FRAME.left + FRAME.right) / 2;
        write(
            area,
            self.x_label.as_str(),
            (middle, FRAME.bottom + 42),
            text(17, HPos::Center, VPos::Center),
        )?;
        if self.diagonal {
            let end = self.points().map(|p| p.x.max(p.y)).fold(0.0, f64::max);
            line(area, vec![(x.at(0.0), y.at(0.0)), (x.at(end), y.at(end))], GREY, 1)?;
        }
        let colours = COLOURS.iter().cycle();
        for (series, colour) in self.series.iter().zip(colours.clone()) {
            self.draw_series(area, series, *colour, (&x, &y))?;
        }
        FRAME.border(area, &self.y_label)?;
        for ((i, series), colour) in (0..).zip(&self.series).zip(colours) {
            let left = FRAME.left + i % LEGEND_COLUMNS * ((FRAME.right - FRAME.left) / LEGEND_COLUMNS);
            let at = FRAME.bottom + BELOW + i / LEGEND_COLUMNS * LEGEND_ROW;
            line(area, vec![(left, at), (left + 26, at)], *colour, 3)?;
            write(area, series.name.as_str(), (left + 34, at), text(15, HPos::Left, VPos::Center))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> LineChart {
        let points = [(0.8, 6.0), (0.4, 7.0), (0.2, 110.0)];
        let series = |name: &str, joined| Series {
            name: name.into(),
            points: points.map(|(x, y)| Point { x, y, low: 0.9 * y, high: 1.2 * y }).to_vec(),
            joined,
        };
        LineChart {
            title: "WER".into(),
            y_label: "WER %".into(),
            x_label: "r_GPU".into(),
            falling: true,
            series: (0..17).map(|i| series(&format!("method {i}"), i % 2 == 0)).collect(),
            ..LineChart::default()
        }
    }

    #[test]
    fn it_is_drawn_with_all_series_and_from_nothing() {
        let svg = crate::svg(&chart()).unwrap();
        for part in ["WER %", "r_GPU", "method 0", "method 16", "0.4"] {
            assert!(svg.contains(part), "{part}");
        }
        crate::svg(&LineChart { logarithmic: true, diagonal: true, ..chart() }).unwrap();
        crate::svg(&LineChart::default()).unwrap();
        crate::svg(&LineChart { logarithmic: true, ..LineChart::default() }).unwrap();
        let odd = vec![Point::exact(f64::NAN, 1.0), Point::exact(1.0, f64::INFINITY), Point::exact(0.0, 0.0)];
        let series = vec![Series { name: "odd".into(), points: odd, joined: true }];
        crate::png(&LineChart { series, logarithmic: true, ..LineChart::default() }).unwrap();
    }

    #[test]
    fn the_largest_share_is_at_the_left_when_x_falls() {
        let (falling, rising) = (chart().x_scale(), LineChart { falling: false, ..chart() }.x_scale());
        assert!(falling.at(0.8) < falling.at(0.2));
        assert!(rising.at(0.8) > rising.at(0.2));
    }
}
