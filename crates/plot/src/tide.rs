//! The tide chart: where the anchors listened in one recording, what was recalled for it, and what that cost.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::prelude::{DrawingBackend, RGBColor};
use plotters::style::text_anchor::{HPos, VPos};

use crate::paint::{
    BLUE, Frame, GREY, LEVELS, ORANGE, between, dashed, fill, heat, level, line, text, write,
};
use crate::scale::{Scale, clock, label};
use crate::{Drawn, Figure};

/// What is drawn: one window of a recording, decode step by decode step.
#[derive(Clone, Debug, Default)]
pub struct TideChart {
    /// First line: model, recording, window.
    pub title: String,
    /// Second line: method, r_GPU, parameters.
    pub subtitle: String,
    /// Seconds of the recording at which the window starts.
    pub start: f64,
    /// Length of the window's audio in seconds, padding included.
    pub seconds: f64,
    /// Length of one row of [`TideStep::attention`] in seconds; the last row may be cut.
    pub row_seconds: f64,
    /// The window's segments, in seconds from its start.
    pub segments: Vec<Range<f64>>,
    /// The head whose residency is shown; none to leave that panel out.
    pub head: Option<String>,
    /// The steps, in order.
    pub steps: Vec<TideStep>,
}

/// One decode step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TideStep {
    /// Share of the watched heads' attention that lies in each row of audio, `(rows)`.
    pub attention: Vec<f32>,
    /// Segments selected after this step.
    pub wanted: Vec<u32>,
    /// Share of each segment that the shown head had on the device, `(segments)`.
    pub resident: Vec<f32>,
    /// KV bytes allocated on the device.
    pub device_bytes: u64,
    /// What a full cache would have allocated.
    pub full_bytes: u64,
}

/// `n` things in as few groups of equal size as `most` allows; the last group may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    n: usize,
    size: usize,
}

impl Groups {
    /// Groups of at least one.
    pub fn new(n: usize, most: usize) -> Self {
        Self { n, size: n.div_ceil(most.max(1)).max(1) }
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.n.div_ceil(self.size)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Things of a group, but for the last.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What is in each group.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let (n, size) = (self.n, self.size);
        (0..n).step_by(size).map(move |from| from..(from + size).min(n))
    }

    /// Sums of each group's values; `values` has one value for each thing.
    pub fn sums(&self, values: &[f32]) -> Vec<f32> {
        values
            .chunks(self.size)
            .map(|group| group.iter().map(|x| f64::from(*x)).sum::<f64>() as f32)
            .collect()
    }
}

/// Several steps drawn as one column.
#[derive(Debug, PartialEq)]
struct Column {
    attention: Vec<f64>,
    wanted: Vec<bool>,
    resident: Vec<f64>,
    device_bytes: u64,
    full_bytes: u64,
}

impl Column {
    /// Attention and residency are means, a segment is selected if it was in any step, bytes are the most.
    fn of(steps: &[TideStep], rows: usize, segments: usize) -> Self {
        let n = steps.len().max(1) as f64;
        let mut column = Self {
            attention: vec![0.0; rows],
            wanted: vec![false; segments],
            resident: vec![0.0; segments],
            device_bytes: 0,
            full_bytes: 0,
        };
        for step in steps {
            column.attention.iter_mut().zip(&step.attention).for_each(|(sum, x)| *sum += f64::from(*x) / n);
            column.resident.iter_mut().zip(&step.resident).for_each(|(sum, x)| *sum += f64::from(*x) / n);
            for segment in &step.wanted {
                if let Some(wanted) = column.wanted.get_mut(*segment as usize) {
                    *wanted = true;
                }
            }
            column.device_bytes = column.device_bytes.max(step.device_bytes);
            column.full_bytes = column.full_bytes.max(step.full_bytes);
        }
        column
    }
}

const WIDTH: i32 = 1400;
const HEIGHT: i32 = 1000;
const LEFT: i32 = 86;
const RIGHT: i32 = WIDTH - 232;
/// Where legends start.
const LEGEND: i32 = RIGHT + 24;
const BOTTOM: i32 = HEIGHT - 56;
const BYTES: Frame = Frame { left: LEFT, top: 118, right: RIGHT, bottom: 248 };
const MAIN_TOP: i32 = 294;
const HEAD_HEIGHT: i32 = 190;
/// The share of column maxima that the darkest shade is enough for: a few peaks must not make all else pale.
const DARKEST: f64 = 0.95;
const SHADE_POWER: f64 = 0.7;

const HEAT_LIGHT: RGBColor = RGBColor(0xf7, 0xfa, 0xfd);
const AWAY: RGBColor = RGBColor(0xf2, 0xf6, 0xf2);
const HERE: RGBColor = RGBColor(0x1b, 0x7f, 0x4d);

fn heat_colour(level: u8) -> RGBColor {
    between(HEAT_LIGHT, BLUE, f64::from(level) / f64::from(LEVELS))
}

/// A segment that is whole stands out from one that is nearly so.
fn resident_colour(level: u8) -> RGBColor {
    let share = f64::from(level) / f64::from(LEVELS);
    between(AWAY, HERE, if level == LEVELS { 1.0 } else { 0.7 * share })
}

/// A unit in which `most` bytes are a number of one to three digits.
fn unit(most: u64) -> (f64, &'static str) {
    let units = [(1u64, "bytes"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")];
    let fit = units.into_iter().rev().find(|(size, _)| most >= *size).unwrap_or(units[0]);
    (fit.0 as f64, fit.1)
}

impl TideChart {
    /// Most rows of audio, for [`Groups`]: more would be thinner than two pixels.
    pub const MOST_ROWS: usize = 240;
    /// Most columns.
    pub const MOST_COLUMNS: usize = 1000;

    fn rows(&self) -> usize {
        self.steps.first().map_or(0, |s| s.attention.len())
    }

    fn columns(&self) -> (Groups, Vec<Column>) {
        let groups = Groups::new(self.steps.len(), Self::MOST_COLUMNS);
        let column = |steps| Column::of(&self.steps[steps], self.rows(), self.segments.len());
        (groups, groups.ranges().map(column).collect())
    }

    fn main_frame(&self) -> Frame {
        let bottom = if self.head.is_some() { BOTTOM - HEAD_HEIGHT - 46 } else { BOTTOM };
        Frame { left: LEFT, top: MAIN_TOP, right: RIGHT, bottom }
    }

    fn time_scale(&self, frame: &Frame) -> Scale {
        Scale::linear(0.0, self.seconds, frame.bottom, frame.top)
    }

    fn draw_bytes<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        x: &Scale,
        groups: Groups,
        columns: &[Column],
    ) -> Drawn<DB> {
        let full = columns.iter().map(|c| c.full_bytes).max().unwrap_or(0);
        let most = columns.iter().map(|c| c.device_bytes).max().unwrap_or(0).max(full);
        let (size, name) = unit(most);
        let y = Scale::linear(0.0, 1.08 * most.max(1) as f64 / size, BYTES.bottom, BYTES.top);
        let ticks: Vec<_> = y.ticks(5).into_iter().map(|v| (v, label(v))).collect();
        BYTES.y_marks(area, &y, &ticks, true)?;
        let curve = |bytes: &dyn Fn(&Column) -> u64| -> Vec<(i32, i32)> {
            let mut points = Vec::with_capacity(2 * columns.len());
            for (steps, column) in groups.ranges().zip(columns) {
                let at = y.at(bytes(column) as f64 / size);
                points.extend([(x.at(steps.start as f64), at), (x.at(steps.end as f64), at)]);
            }
            // A level stretch is one line.
            let mut out: Vec<(i32, i32)> = Vec::new();
            for point in points {
                if let [.., a, b] = out[..]
                    && a.1 == point.1
                    && b.1 == point.1
                {
                    out.pop();
                }
                out.push(point);
            }
            out
        };
        let differ = columns.iter().any(|c| c.device_bytes != c.full_bytes);
        if full > 0 && differ {
            dashed(area, &curve(&|c| c.full_bytes), GREY, 2)?;
        }
        let points = curve(&|c| c.device_bytes);
        if points.len() > 1 {
            line(area, points, ORANGE, 2)?;
        }
        BYTES.border(area, &format!("KV on the device, text included ({name})"))?;
        let in_units = |bytes: u64| format!("{:.1} {name}", bytes as f64 / size);
        let middle = HPos::Left;
        let peak = columns.iter().map(|c| c.device_bytes).max().unwrap_or(0);
        line(area, vec![(LEGEND, 140), (LEGEND + 34, 140)], ORANGE, 2)?;
        write(area, "on the device", (LEGEND + 44, 140), text(15, middle, VPos::Center))?;
        write(
            area,
            format!("at most {}", in_units(peak)),
            (LEGEND + 44, 160),
            text(14, middle, VPos::Center),
        )?;
        if full > 0 && differ {
            dashed(area, &[(LEGEND, 196), (LEGEND + 34, 196)], GREY, 2)?;
            write(area, "full cache", (LEGEND + 44, 196), text(15, middle, VPos::Center))?;
            write(
                area,
                format!("at most {}", in_units(full)),
                (LEGEND + 44, 216),
                text(14, middle, VPos::Center),
            )?;
        } else if full > 0 {
            write(area, "(the full cache)", (LEGEND + 44, 180), text(14, middle, VPos::Center))?;
        }
        Ok(())
    }

    fn time_marks<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        frame: &Frame,
        most: usize,
    ) -> Drawn<DB> {
        let end = self.start + self.seconds;
        let scale = Scale::linear(self.start, end, frame.bottom, frame.top);
        let name = |t: f64| if end > 600.0 { clock(t) } else { label(t) };
        let ticks: Vec<_> = scale.time_ticks(most).into_iter().map(|t| (t, name(t))).collect();
        frame.y_marks(area, &scale, &ticks, false)
    }

    fn time_unit(&self) -> &'static str {
        if self.start + self.seconds > 600.0 { "min:s" } else { "s" }
    }

    fn draw_attention<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        xs: &[i32],
        columns: &[Column],
    ) -> Drawn<DB> {
        let frame = self.main_frame();
        let y = self.time_scale(&frame);
        let ys: Vec<i32> = (0..=self.rows()).map(|r| y.at(r as f64 * self.row_seconds)).collect();
        let mut tops: Vec<f64> =
            columns.iter().map(|c| c.attention.iter().copied().fold(0.0, f64::max)).collect();
        tops.sort_unstable_by(f64::total_cmp);
        let top = tops.get(((tops.len() as f64 - 1.0) * DARKEST).max(0.0) as usize).copied().unwrap_or(0.0);
        // A power below 1 shows weak attention beside strong.
        let shade = |c: usize, r: usize| {
            if top > 0.0 { level((columns[c].attention[r] / top).max(0.0).powf(SHADE_POWER)) } else { 0 }
        };
        heat(area, xs, &ys, shade, heat_colour)?;
        self.draw_selection(area, xs, &y, columns)?;
        self.time_marks(area, &frame, 9)?;
        frame.border(
            area,
            &format!("Attention of the watched heads over time in the recording ({})", self.time_unit()),
        )?;

        let (x, at) = (LEGEND, frame.top + 16);
        write(area, "attention to", (x, at), text(15, HPos::Left, VPos::Center))?;
        let rows = format!("{} s of audio", label((self.row_seconds * 100.0).round() / 100.0));
        write(area, rows, (x, at + 19), text(15, HPos::Left, VPos::Center))?;
        let cell = |l: u8| x + 9 * i32::from(l);
        for l in 0..=LEVELS {
            fill(area, [(cell(l), at + 36), (cell(l + 1), at + 54)], heat_colour(l))?;
        }
        let bar = Frame { left: x, top: at + 36, right: cell(LEVELS + 1), bottom: at + 54 };
        bar.border(area, "")?;
        write(area, "0 %", (x, at + 67), text(14, HPos::Left, VPos::Center))?;
        let most = format!("≥ {} %", label((top * 1000.0).round() / 10.0));
        write(area, most, (cell(LEVELS + 1), at + 67), text(14, HPos::Right, VPos::Center))?;
        write(
            area,
            format!("(shade: power {SHADE_POWER})"),
            (x, at + 87),
            text(13, HPos::Left, VPos::Center),
        )?;
        if columns.iter().any(|c| c.wanted.contains(&true)) {
            let box_ = Frame { left: x, top: at + 116, right: x + 28, bottom: at + 136 };
            outline(area, &box_)?;
            write(area, "selected chunks,", (x + 40, at + 118), text(15, HPos::Left, VPos::Center))?;
            write(area, "whole in the next step", (x + 40, at + 136), text(13, HPos::Left, VPos::Center))?;
        }
        Ok(())
    }

    /// Outlines what is selected: lines where a selected cell meets one that is not.
    fn draw_selection<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        xs: &[i32],
        y: &Scale,
        columns: &[Column],
    ) -> Drawn<DB> {
        let segments = self.segments.len();
        let wanted = |c: usize, s: usize| columns.get(c).is_some_and(|c| c.wanted.get(s) == Some(&true));
        // Lines along x below each segment, and above the last.
        for edge in 0..=segments {
            let differs =
                |c: usize| (edge > 0 && wanted(c, edge - 1)) != (edge < segments && wanted(c, edge));
            let at = match self.segments.get(edge) {
                Some(segment) => segment.start,
                None => self.segments.last().map_or(0.0, |s| s.end),
            };
            for run in runs(columns.len(), differs) {
                line(area, vec![(xs[run.start], y.at(at)), (xs[run.end], y.at(at))], ORANGE, 1)?;
            }
        }
        // Lines along y left of each column, and right of the last.
        for (edge, x) in xs.iter().enumerate() {
            let differs = |s: usize| (edge > 0 && wanted(edge - 1, s)) != wanted(edge, s);
            for run in runs(segments, differs) {
                let (low, high) = (self.segments[run.start].start, self.segments[run.end - 1].end);
                line(area, vec![(*x, y.at(low)), (*x, y.at(high))], ORANGE, 1)?;
            }
        }
        Ok(())
    }

    fn draw_residency<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        xs: &[i32],
        columns: &[Column],
        head: &str,
    ) -> Drawn<DB> {
        let frame = Frame { left: LEFT, top: BOTTOM - HEAD_HEIGHT, right: RIGHT, bottom: BOTTOM };
        let y = self.time_scale(&frame);
        // Segments thinner than a pixel are drawn together.
        let groups = Groups::new(self.segments.len(), HEAD_HEIGHT as usize);
        let ranges: Vec<Range<usize>> = groups.ranges().collect();
        let mut ys: Vec<i32> = ranges.iter().map(|r| y.at(self.segments[r.start].start)).collect();
        ys.extend(self.segments.last().map(|s| y.at(s.end)));
        let shade = |c: usize, r: usize| {
            let values = &columns[c].resident[ranges[r].clone()];
            let share = values.iter().sum::<f64>() / values.len().max(1) as f64;
            // The darkest shade is for what is whole.
            if share >= 1.0 - 1e-6 { LEVELS } else { level(share).min(LEVELS - 1) }
        };
        heat(area, xs, &ys, shade, resident_colour)?;
        self.time_marks(area, &frame, 5)?;
        frame.border(
            area,
            &format!("What {head} had on the device, by segment of the recording ({})", self.time_unit()),
        )?;
        let (x, at) = (LEGEND, frame.top + 16);
        for (i, (level, name)) in
            [(LEVELS, "segment whole"), (LEVELS / 2, "half of it"), (0, "nothing of it")]
                .into_iter()
                .enumerate()
        {
            let at = at + 28 * i as i32;
            fill(area, [(x, at - 9), (x + 28, at + 9)], resident_colour(level))?;
            Frame { left: x, top: at - 9, right: x + 28, bottom: at + 9 }.border(area, "")?;
            write(area, name, (x + 40, at), text(15, HPos::Left, VPos::Center))?;
        }
        Ok(())
    }
}

fn outline<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, frame: &Frame) -> Drawn<DB> {
    let Frame { left, top, right, bottom } = *frame;
    line(area, vec![(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], ORANGE, 1)
}

/// Maximal ranges of `0..n` in which `holds`.
fn runs(n: usize, holds: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for i in (0..n).filter(|i| holds(*i)) {
        match out.last_mut() {
            Some(run) if run.end == i => run.end = i + 1,
            _ => out.push(i..i + 1),
        }
    }
    out
}

impl Figure for TideChart {
    fn size(&self) -> (u32, u32) {
        (WIDTH as u32, HEIGHT as u32)
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB> {
        write(area, self.title.as_str(), (20, 14), text(26, HPos::Left, VPos::Top))?;
        write(area, self.subtitle.as_str(), (20, 52), text(17, HPos::Left, VPos::Top))?;
        let (groups, columns) = self.columns();
        let x = Scale::linear(0.0, self.steps.len() as f64, LEFT, RIGHT);
        let mut xs: Vec<i32> = groups.ranges().map(|r| x.at(r.start as f64)).collect();
        xs.push(x.at(self.steps.len() as f64));
        self.draw_bytes(area, &x, groups, &columns)?;
        if !columns.is_empty() {
            self.draw_attention(area, &xs, &columns)?;
            if let Some(head) = &self.head {
                self.draw_residency(area, &xs, &columns, head)?;
            }
        }
        // One axis of steps for all panels.
        let ticks: Vec<_> =
            x.ticks(12).into_iter().filter(|t| t.fract() == 0.0).map(|t| (t, label(t))).collect();
        let lowest = Frame { left: LEFT, top: MAIN_TOP, right: RIGHT, bottom: BOTTOM };
        lowest.x_marks(area, &x, &ticks, false, true)?;
        BYTES.x_marks(area, &x, &ticks, false, false)?;
        self.main_frame().x_marks(area, &x, &ticks, false, false)?;
        let per = groups.size();
        let name = if per > 1 {
            format!("decode step (one token each; a column is {per} steps)")
        } else {
            "decode step (one token each)".into()
        };
        write(area, name, ((LEFT + RIGHT) / 2, BOTTOM + 40), text(16, HPos::Center, VPos::Center))
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_few_and_cover_everything() {
        let groups = Groups::new(7, 3);
        assert_eq!((groups.size(), groups.len()), (3, 3));
        assert_eq!(groups.ranges().collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
        assert_eq!(groups.sums(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), [6.0, 15.0, 7.0]);
        assert_eq!(Groups::new(1000, 1000).len(), 1000);
        assert_eq!((Groups::new(1001, 1000).len(), Groups::new(1001, 1000).size()), (501, 2));
        assert!(Groups::new(0, 5).is_empty() && Groups::new(0, 5).ranges().next().is_none());
        assert_eq!(Groups::new(3, 0).len(), 1);
    }

    #[test]
    fn a_column_is_the_mean_the_union_and_the_most_of_its_steps() {
        let a = TideStep {
            attention: vec![0.25, 0.75],
            wanted: vec![0],
            resident: vec![1.0, 0.5, 0.0],
            device_bytes: 10,
            full_bytes: 40,
        };
        let b = TideStep {
            attention: vec![0.75, 0.25],
            wanted: vec![2, 9],
            resident: vec![0.0, 0.5, 0.0],
            device_bytes: 30,
            full_bytes: 44,
        };
        let want = Column {
            attention: vec![0.5, 0.5],
            wanted: vec![true, false, true],
            resident: vec![0.5, 0.5, 0.0],
            device_bytes: 30,
            full_bytes: 44,
        };
        assert_eq!(Column::of(&[a, b], 2, 3), want);
    }

    #[test]
    fn runs_and_units() {
        assert_eq!(runs(6, |i| i != 2 && i != 5), [0..2, 3..5]);
        assert!(runs(0, |_| true).is_empty());
        assert_eq!(
            (unit(0).1, unit(1023).1, unit(5 << 20).1, unit(1 << 40).1),
            ("bytes", "bytes", "MiB", "GiB")
        );
    }

    fn chart(steps: usize, rows: usize, segments: usize) -> TideChart {
        let step = |s: usize| TideStep {
            attention: (0..rows).map(|r| if r * steps / rows == s { 0.5 } else { 0.001 }).collect(),
            wanted: vec![(s * segments / steps.max(1)) as u32],
            resident: (0..segments).map(|g| ((g + s) % 5) as f32 / 4.0).collect(),
            device_bytes: 1_000_000 + 100 * s as u64,
            full_bytes: 4_000_000,
        };
        TideChart {
            title: "tiny: talk.wav".into(),
            subtitle: "wnw".into(),
            start: 0.0,
            seconds: 2.0 * segments as f64,
            row_seconds: 2.0 * segments as f64 / rows.max(1) as f64,
            segments: (0..segments).map(|s| 2.0 * s as f64..2.0 * s as f64 + 2.0).collect(),
            head: Some("layer 1, KV head 2".into()),
            steps: (0..steps).map(step).collect(),
        }
    }

    #[test]
    fn it_is_drawn_short_long_and_empty() {
        for (steps, rows, segments) in [(1, 1, 1), (60, 188, 15), (2500, 240, 900)] {
            let svg = crate::svg(&chart(steps, rows, segments)).unwrap();
            for part in [
                "tiny: talk.wav",
                "full cache",
                "MiB",
                "selected chunks",
                "layer 1, KV head 2",
                "decode step",
            ] {
                assert!(svg.contains(part), "{part}");
            }
            assert_eq!(svg.contains("a column is 3 steps"), steps == 2500);
            assert!(svg.len() < 20_000_000, "{}", svg.len());
        }
        crate::png(&TideChart::default()).unwrap();
        let odd = TideChart { seconds: f64::NAN, head: None, ..chart(3, 2, 2) };
        assert!(!crate::svg(&odd).unwrap().contains("segment whole"));
    }
}
