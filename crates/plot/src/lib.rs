//! Charts: values in, SVG text or PNG bytes out, the same for the same values on every machine.
//!
//! A chart is a plain value ([`HeadMapChart`], [`TideChart`], [`MismatchChart`], [`LineChart`]) that is a [`Figure`]: it knows its own
//! size and draws itself on any backend. Nothing here knows models, engines or files. Text is set in a font that is part
//! of the program ([`font`]), so that a machine without fonts draws the same picture.

pub mod font;
mod headmap;
mod lines;
mod mismatch;
mod paint;
mod scale;
mod tide;

use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::prelude::{BitMapBackend, DrawingBackend, SVGBackend, WHITE};
use thiserror::Error;

pub use headmap::{HeadMapChart, HeadRole};
pub use lines::{LineChart, Point, Series};
pub use mismatch::MismatchChart;
pub use scale::clock;
pub use tide::{Groups, TideChart, TideStep};

/// Longest side of a picture in pixels. The largest chart of a real model is far below it.
const MOST_PIXELS: u32 = 20_000;

/// Why a chart could not be drawn.
#[derive(Debug, Error)]
pub enum PlotError {
    /// More pixels than any picture should have.
    #[error(
        "the chart would be {0} × {1} pixels, and a side may have {MOST_PIXELS}: there are too many heads to draw"
    )]
    Size(u32, u32),
    /// The embedded font is no font: a defect of this program.
    #[error("the embedded font cannot be read")]
    Font,
    /// The drawing library.
    #[error("drawing: {0}")]
    Draw(String),
    /// The PNG encoder.
    #[error("PNG: {0}")]
    Png(#[from] png::EncodingError),
}

/// What drawing on a backend answers.
pub type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// A chart.
pub trait Figure {
    /// Width and height in pixels.
    fn size(&self) -> (u32, u32);

    /// Draws the chart on a white area of [`Figure::size`].
    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>) -> Drawn<DB>;
}

fn checked_size(figure: &impl Figure) -> Result<(u32, u32), PlotError> {
    let (width, height) = figure.size();
    if width.max(height) > MOST_PIXELS {
        return Err(PlotError::Size(width, height));
    }
    Ok((width.max(1), height.max(1)))
}

/// Draws on a backend and finishes the picture.
fn render<DB: DrawingBackend>(figure: &impl Figure, backend: DB) -> Result<(), PlotError> {
    font::register()?;
    let area = backend.into_drawing_area();
    let failed = |e: DrawingAreaErrorKind<DB::ErrorType>| PlotError::Draw(e.to_string());
    area.fill(&WHITE).map_err(failed)?;
    figure.draw(&area).map_err(failed)?;
    area.present().map_err(failed)
}

/// The chart as an SVG document.
pub fn svg(figure: &impl Figure) -> Result<String, PlotError> {
    let size = checked_size(figure)?;
    let mut out = String::new();
    render(figure, SVGBackend::with_string(&mut out, size))?;
    Ok(out)
}

/// The chart as a PNG file, 8-bit RGB.
pub fn png(figure: &impl Figure) -> Result<Vec<u8>, PlotError> {
    let (width, height) = checked_size(figure)?;
    let mut pixels = vec![0; 3 * width as usize * height as usize];
    render(figure, BitMapBackend::with_buffer(&mut pixels, (width, height)))?;
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Wide;

    impl Figure for Wide {
        fn size(&self) -> (u32, u32) {
            (MOST_PIXELS + 1, 1)
        }
        fn draw<DB: DrawingBackend>(&self, _: &DrawingArea<DB, Shift>) -> Drawn<DB> {
            Ok(())
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(matches!(svg(&Wide), Err(PlotError::Size(..))));
        assert!(png(&Wide).unwrap_err().to_string().contains("20001 × 1"));
    }

    #[test]
    fn pictures_have_their_size_and_are_the_same_each_time() {
        let chart = TideChart { title: "t".into(), ..TideChart::default() };
        let bytes = png(&chart).unwrap();
        assert_eq!(bytes, png(&chart).unwrap());
        assert_eq!(svg(&chart).unwrap(), svg(&chart).unwrap());
        let reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
        assert_eq!((reader.info().width, reader.info().height), chart.size());
    }
}
