//! Charts as files: `.svg` or `.png`, by suffix.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use wnw_plot::{Figure, png, svg};

use crate::error::CliError;
use crate::outputs::{check_name, write_bytes, write_whole};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Svg,
    Png,
}

fn form(path: &Path) -> Option<Form> {
    match path.extension()?.to_ascii_lowercase().to_str()? {
        "svg" => Some(Form::Svg),
        "png" => Some(Form::Png),
        _ => None,
    }
}

/// Refuses, before any work, files that are neither SVG nor PNG by name; `flag` named them.
pub fn check(flag: &str, paths: &[PathBuf]) -> Result<(), CliError> {
    for path in paths {
        check_name(path)?;
        if form(path).is_none() {
            return Err(CliError::Usage(format!(
                "{flag} {}: a chart is .svg or .png, by its name",
                path.display()
            )));
        }
    }
    Ok(())
}

/// The files given, or `base` with both suffixes added.
pub fn targets(given: &[PathBuf], base: &Path) -> Vec<PathBuf> {
    if !given.is_empty() {
        return given.to_vec();
    }
    let with = |suffix: &str| {
        let mut name: OsString = base.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    vec![with(".svg"), with(".png")]
}

/// Draws a chart into files that passed [`check`].
pub fn draw(figure: &impl Figure, paths: &[PathBuf]) -> Result<(), CliError> {
    for path in paths {
        match form(path) {
            Some(Form::Png) => write_bytes(path, &png(figure)?)?,
            _ => write_whole(path, &svg(figure)?)?,
        }
    }
    Ok(())
}

/// The files' names, for a line to people.
pub fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A recording's name in a title: that of the file, without where it lies.
pub fn title(name: &str) -> String {
    let file = Path::new(name).file_name().map_or(name.into(), |n| n.to_string_lossy());
    short(&file)
}

/// Names in titles are cut to what has room, at the front: the end of a path says more.
pub fn short(name: &str) -> String {
    const MOST: usize = 60;
    let n = name.chars().count();
    if n <= MOST {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(n - MOST + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suffix_decides() {
        assert!(check("-o", &["a.svg".into(), "b.PNG".into()]).is_ok());
        for bad in ["a.pdf", "svg", ".svg", "a"] {
            let error = check("--map", &[bad.into()]).unwrap_err().to_string();
            assert!(error.contains("--map") && error.contains(".svg or .png"), "{error}");
        }
        let both = targets(&[], Path::new("out/talk.v2"));
        assert_eq!(both, [PathBuf::from("out/talk.v2.svg"), "out/talk.v2.png".into()]);
        assert_eq!(targets(&["x.png".into()], Path::new("y")), [PathBuf::from("x.png")]);
        assert_eq!((title("a/b/talk.mp3"), title("-")), ("talk.mp3".into(), "-".into()));
        assert_eq!(short(&"é".repeat(100)).chars().count(), 60);
    }
}
