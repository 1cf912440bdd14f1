//! What charts are painted with: colours, text, frames with axes, and heat.

use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::prelude::{Color, DrawingBackend, IntoFont, RGBColor, TextStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Drawn;
use crate::font::FAMILY;
use crate::scale::Scale;

pub(crate) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub(crate) const GREY: RGBColor = RGBColor(0x77, 0x77, 0x77);
pub(crate) const FAINT: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);
pub(crate) const BLUE: RGBColor = RGBColor(0x08, 0x3a, 0x7a);
pub(crate) const ORANGE: RGBColor = RGBColor(0xe6, 0x55, 0x0d);

/// Text of a size in pixels, anchored at its place.
pub(crate) fn text(size: i32, h: HPos, v: VPos) -> TextStyle<'static> {
    (FAMILY, size).into_font().color(&INK).pos(Pos::new(h, v))
}

/// The colour of a share between two; what is no number counts as nothing.
pub(crate) fn between(light: RGBColor, dark: RGBColor, share: f64) -> RGBColor {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let mix = |a: u8, b: u8| (f64::from(a) + share * (f64::from(b) - f64::from(a))).round() as u8;
    RGBColor(mix(light.0, dark.0), mix(light.1, dark.1), mix(light.2, dark.2))
}

/// Draws one line of text.
pub(crate) fn write<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    what: impl Into<String>,
    at: (i32, i32),
    style: TextStyle<'static>,
) -> Drawn<DB> {
    area.draw(&Text::new(what.into(), at, style))
}

/// Draws connected lines.
pub(crate) fn line<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    points: Vec<(i32, i32)>,
    colour: RGBColor,
    width: u32,
) -> Drawn<DB> {
    area.draw(&PathElement::new(points, colour.stroke_width(width)))
}

/// Draws a line of dashes.
pub(crate) fn dashed<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    points: &[(i32, i32)],
    colour: RGBColor,
    width: u32,
) -> Drawn<DB> {
    const DASH: f64 = 8.0;
    // How far the pattern has come runs on over corners.
    let mut along = 0.0;
    for pair in points.windows(2) {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (x1 - x0).hypot(y1 - y0);
        let mut at = 0.0;
        while at < length {
            let phase = along % (2.0 * DASH);
            let end = if phase < DASH { DASH - phase } else { 2.0 * DASH - phase };
            let next = (at + end.max(0.5)).min(length);
            if phase < DASH {
                let point = |t: f64| {
                    let t = t / length;
                    ((x0 + t * (x1 - x0)).round() as i32, (y0 + t * (y1 - y0)).round() as i32)
                };
                line(area, vec![point(at), point(next)], colour, width)?;
            }
            along += next - at;
            at = next;
        }
    }
    Ok(())
}

/// Fills a rectangle between two corners.
pub(crate) fn fill<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    corners: [(i32, i32); 2],
    colour: RGBColor,
) -> Drawn<DB> {
    area.draw(&Rectangle::new(corners, colour.filled()))
}

/// The rectangle that a panel's values are drawn in, in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub left: i32,
    pub top: i32,
    pub right: i32,
    pub bottom: i32,
}

impl Frame {
    /// Draws the border and, above it, the panel's heading.
    pub fn border<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, heading: &str) -> Drawn<DB> {
        let Self { left, top, right, bottom } = *self;
        let corners = vec![(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        line(area, corners, GREY, 1)?;
        write(area, heading, (left, top - 14), text(17, HPos::Left, VPos::Center))
    }

    /// Marks and numbers at the left, with faint lines across if `grid`.
    pub fn y_marks<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        scale: &Scale,
        ticks: &[(f64, String)],
        grid: bool,
    ) -> Drawn<DB> {
        for (value, label) in ticks {
            let y = scale.at(*value);
            if grid {
                line(area, vec![(self.left, y), (self.right, y)], FAINT, 1)?;
            }
            line(area, vec![(self.left - 5, y), (self.left, y)], GREY, 1)?;
            write(area, label.as_str(), (self.left - 9, y), text(15, HPos::Right, VPos::Center))?;
        }
        Ok(())
    }

    /// Marks below, with numbers if `numbers`, and faint lines upwards if `grid`.
    pub fn x_marks<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        scale: &Scale,
        ticks: &[(f64, String)],
        grid: bool,
        numbers: bool,
    ) -> Drawn<DB> {
        for (value, label) in ticks {
            let x = scale.at(*value);
            if grid {
                line(area, vec![(x, self.top), (x, self.bottom)], FAINT, 1)?;
            }
            line(area, vec![(x, self.bottom), (x, self.bottom + 5)], GREY, 1)?;
            if numbers {
                write(area, label.as_str(), (x, self.bottom + 9), text(15, HPos::Center, VPos::Top))?;
            }
        }
        Ok(())
    }
}

/// Shades of a heat picture, without the one for nothing.
pub(crate) const LEVELS: u8 = 16;

/// The shade of a share, 0 to [`LEVELS`].
pub(crate) fn level(share: f64) -> u8 {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    (share * f64::from(LEVELS)).round() as u8
}

/// Paints cells between pixel edges: column `c` from `xs[c]` to `xs[c + 1]`, row `r` from `ys[r]` to `ys[r + 1]`.
///
/// Cells of one shade side by side become one rectangle, and nothing is painted only once, so that an SVG's size follows
/// what can be seen in it and not the number of cells.
pub(crate) fn heat<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    xs: &[i32],
    ys: &[i32],
    level: impl Fn(usize, usize) -> u8,
    colour: impl Fn(u8) -> RGBColor,
) -> Drawn<DB> {
    let ([left, .., right], [first, .., last]) = (xs, ys) else { return Ok(()) };
    let cell = |x0: i32, x1: i32, y0: i32, y1: i32| [(x0, y0.min(y1)), (x1, y0.max(y1))];
    fill(area, cell(*left, *right, *first, *last), colour(0))?;
    for (row, y) in ys.windows(2).enumerate() {
        let mut start = 0;
        for column in 1..xs.len() {
            let here = level(start, row);
            if column + 1 < xs.len() && level(column, row) == here {
                continue;
            }
            if here > 0 {
                fill(area, cell(xs[start], xs[column], y[0], y[1]), colour(here))?;
            }
            start = column;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_shades() {
        assert_eq!((level(0.0), level(1.0), level(0.5), level(7.0), level(f64::NAN)), (0, 16, 8, 16, 0));
        let (light, dark) = (RGBColor(0, 100, 200), RGBColor(100, 0, 200));
        assert_eq!(between(light, dark, 0.5), RGBColor(50, 50, 200));
        assert_eq!(between(light, dark, f64::NAN), light);
    }
}
