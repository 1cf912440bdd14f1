//! The font of all charts: a part of DejaVu Sans (`crates/plot/fonts`), embedded.

use std::sync::OnceLock;

use plotters::style::{FontStyle, register_font};

use crate::PlotError;

/// The font family. An SVG names it, and its reader may have none of these but the last: hence the list. Verdana has
/// nearly the same widths.
pub const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// Latin, Greek, punctuation, a few signs; licence beside it.
const BYTES: &[u8] = include_bytes!("../fonts/DejaVuSans-subset.ttf");

/// Makes the font known to the drawing library, once per process.
pub(crate) fn register() -> Result<(), PlotError> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let done = DONE.get_or_init(|| register_font(FAMILY, FontStyle::Normal, BYTES).is_ok());
    if *done { Ok(()) } else { Err(PlotError::Font) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_font_is_whole_and_small() {
        register().unwrap();
        register().unwrap();
        assert!(BYTES.len() < 60_000);
    }
}
