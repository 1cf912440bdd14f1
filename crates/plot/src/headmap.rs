//! The head map: what calibration found of every KV head, and what became of it.

use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::{Rectangle, Text};
use plotters::prelude::{Color, DrawingBackend, RGBColor};
use plotters::style::text_anchor::{HPos, VPos};

use crate::paint::{between, text};
use crate::{Drawn, Figure};

/// What is drawn: four panels of layers × KV heads. Lists are `(n_layers, n_kv_heads)`.
#[derive(Clone, Debug, Default)]
pub struct HeadMapChart {
    /// First line: model.
    pub title: String,
    /// Second line: calibration set, figures.
    pub subtitle: String,
    /// KV heads of a layer.
    pub n_kv_heads: usize,
    /// Voice score of each head.
    pub voice: Vec<f64>,
    /// Head sensitivity of each head.
    pub sensitivity: Vec<f64>,
    /// Product of the two.
    pub product: Vec<f64>,
    /// Role of each head.
    pub roles: Vec<HeadRole>,
}

/// What a head does with the audio it does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadRole {
    /// Keeps all; its attention says what is recalled.
    Anchor,
    /// Recalls what it does not keep.
    Tidal,
    /// Drops what it does not keep.
    Fixed,
}

impl HeadRole {
    const ALL: [Self; 3] = [Self::Anchor, Self::Tidal, Self::Fixed];

    fn name(self) -> &'static str {
        match self {
            Self::Anchor => "anchor",
            Self::Tidal => "tidal",
            Self::Fixed => "fixed",
        }
    }

    fn colour(self) -> RGBColor {
        match self {
            Self::Anchor => RGBColor(0xe6, 0x55, 0x0d),
            Self::Tidal => RGBColor(0x4f, 0x9b, 0xcb),
            Self::Fixed => RGBColor(0xe4, 0xe4, 0xe4),
        }
    }
}

const LEFT: u32 = 70;
const TOP: u32 = 116;
const GAP: u32 = 40;
const BOTTOM: u32 = 122;
/// Least width of a panel: that of its legend.
const LEGEND: u32 = 190;
/// From nothing to the panel's largest value.
const LIGHT: RGBColor = RGBColor(0xf3, 0xf7, 0xfb);
const DARK: RGBColor = RGBColor(0x08, 0x3a, 0x7a);

/// The colour of a share of the largest value, 0 to 1.
fn shade(share: f64) -> RGBColor {
    between(LIGHT, DARK, share)
}

/// Indices to label: all of few, every fifth of many.
fn labelled(n: usize) -> impl Iterator<Item = usize> {
    (0..n).step_by(if n <= 12 { 1 } else { 5 })
}

/// A score in three digits.
fn number(x: f64) -> String {
    if x == 0.0 || (1e-2..1e4).contains(&x) { format!("{x:.2}") } else { format!("{x:.1e}") }
}

impl HeadMapChart {
    fn n_layers(&self) -> usize {
        self.roles.len() / self.n_kv_heads.max(1)
    }

    /// Width and height of a head's cell.
    fn cell(&self) -> (u32, u32) {
        let fit = |room: usize, n: usize| (room / n.max(1)).clamp(6, 44) as u32;
        (fit(240, self.n_kv_heads), fit(540, self.n_layers()))
    }

    fn panel_width(&self) -> u32 {
        (self.cell().0 * self.n_kv_heads as u32).max(LEGEND)
    }

    /// One panel's cells with its heading and the labels of its heads; `colour` gives a head's.
    fn draw_cells<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        left: u32,
        heading: &str,
        colour: impl Fn(usize) -> RGBColor,
    ) -> Drawn<DB> {
        let (width, height) = self.cell();
        let x = |head: usize| (left + width * head as u32) as i32;
        let y = |layer: usize| (TOP + height * layer as u32) as i32;
        area.draw(&Text::new(
            heading.to_owned(),
            (x(0), TOP as i32 - 32),
            text(17, HPos::Left, VPos::Center),
        ))?;
        for head in labelled(self.n_kv_heads) {
            let at = (x(head) + width as i32 / 2, TOP as i32 - 9);
            area.draw(&Text::new(head.to_string(), at, text(13, HPos::Center, VPos::Center)))?;
        }
        for i in 0..self.roles.len() {
            let (layer, head) = (i / self.n_kv_heads, i % self.n_kv_heads);
            let corners = [(x(head), y(layer)), (x(head + 1) - 1, y(layer + 1) - 1)];
            area.draw(&Rectangle::new(corners, colour(i).filled()))?;
        }
        Ok(())
    }

    fn draw_score<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        left: u32,
        heading: &str,
        values: &[f64],
    ) -> Drawn<DB> {
        let most = values.iter().fold(0.0, |m: f64, x| if x.is_finite() { m.max(*x) } else { m });
        let share = |i: usize| values.get(i).map_or(0.0, |x| if most > 0.0 { x / most } else { 0.0 });
        self.draw_cells(area, left, heading, |i| shade(share(i)))?;
        let y = (self.size().1 - BOTTOM + 30) as i32;
        let steps = 38;
        for step in 0..steps {
            let x = left as i32 + step * 5;
            let colour = shade(f64::from(step) / f64::from(steps - 1));
            area.draw(&Rectangle::new([(x, y), (x + 5, y + 14)], colour.filled()))?;
        }
        let end = left as i32 + 5 * steps;
        area.draw(&Text::new("0", (left as i32, y + 28), text(15, HPos::Left, VPos::Center)))?;
        area.draw(&Text::new(number(most), (end, y + 28), text(15, HPos::Right, VPos::Center)))
    }
}

impl Figure for HeadMapChart {
    fn size(&self) -> (u32, u32) {
        let height = TOP + self.cell().1 * self.n_layers() as u32 + BOTTOM;
        (LEFT + 4 * (self.panel_width() + GAP), height)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB> {
        area.draw(&Text::new(self.title.clone(), (20, 14), text(24, HPos::Left, VPos::Top)))?;
        area.draw(&Text::new(self.subtitle.clone(), (20, 46), text(17, HPos::Left, VPos::Top)))?;
        let left = |panel: u32| LEFT + panel * (self.panel_width() + GAP);
        self.draw_score(area, left(0), "Voice score (VS)", &self.voice)?;
        self.draw_score(area, left(1), "Head sensitivity (HS)", &self.sensitivity)?;
        self.draw_score(area, left(2), "VS × HS", &self.product)?;
        self.draw_cells(area, left(3), "Role", |i| self.roles[i].colour())?;
        let bottom = (self.size().1 - BOTTOM) as i32;
        for (i, role) in HeadRole::ALL.into_iter().enumerate() {
            let (x, y) = (left(3) as i32, bottom + 37 + 24 * i as i32);
            let count = self.roles.iter().filter(|r| **r == role).count();
            area.draw(&Rectangle::new([(x, y - 8), (x + 26, y + 8)], role.colour().filled()))?;
            let label = format!("{} ({count})", role.name());
            area.draw(&Text::new(label, (x + 36, y), text(15, HPos::Left, VPos::Center)))?;
        }
        let height = self.cell().1;
        for layer in labelled(self.n_layers()) {
            let y = TOP + height * layer as u32 + height / 2;
            let at = (LEFT as i32 - 8, y as i32);
            area.draw(&Text::new(layer.to_string(), at, text(13, HPos::Right, VPos::Center)))?;
        }
        let corner = (LEFT as i32 - 8, TOP as i32 - 9);
        area.draw(&Text::new("layer", corner, text(13, HPos::Right, VPos::Center)))?;
        let caption = "columns: KV heads of a layer";
        area.draw(&Text::new(caption, (LEFT as i32, bottom + 12), text(13, HPos::Left, VPos::Center)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(n_layers: usize, n_kv_heads: usize) -> HeadMapChart {
        let n = n_layers * n_kv_heads;
        let role = |i: usize| HeadRole::ALL[if i % 7 == 3 { 0 } else { 1 + i % 2 }];
        let value = |i: usize| ((i * 37) % 100) as f64 / 100.0;
        HeadMapChart {
            title: "a <model>".into(),
            subtitle: "50 recordings".into(),
            n_kv_heads,
            voice: (0..n).map(value).collect(),
            sensitivity: (0..n).map(|i| value(i + 5) * 1e-4).collect(),
            product: (0..n).map(|i| value(i) * value(i + 5) * 1e-4).collect(),
            roles: (0..n).map(role).collect(),
        }
    }

    #[test]
    fn it_is_drawn_for_models_of_any_size() {
        for (layers, heads) in [(8, 4), (30, 8), (36, 2), (1, 1), (80, 64)] {
            let chart = chart(layers, heads);
            let svg = crate::svg(&chart).unwrap();
            assert!(svg.contains("a &lt;model&gt;") && svg.to_lowercase().contains("#e6550d"));
            assert!(crate::png(&chart).unwrap().starts_with(b"\x89PNG"));
        }
    }

    #[test]
    fn nothing_and_nonsense_are_still_charts() {
        crate::svg(&HeadMapChart::default()).unwrap();
        let mut odd = chart(2, 2);
        odd.voice = vec![f64::NAN, f64::INFINITY, -1.0, 0.0];
        odd.sensitivity.clear();
        crate::svg(&odd).unwrap();
        crate::png(&odd).unwrap();
    }

    #[test]
    fn the_largest_value_is_darkest() {
        assert_eq!((shade(0.0), shade(1.0), shade(f64::NAN)), (LIGHT, DARK, LIGHT));
        assert_eq!(
            (number(0.0), number(0.634), number(2.36e-4)),
            ("0.00".into(), "0.63".into(), "2.4e-4".into())
        );
    }
}
