//! Which recordings a command line means.

use std::path::{Path, PathBuf};

use wnw_audio::Source;

use crate::error::CliError;

/// Suffixes of files that are taken from directories. Files named on the command line are taken whatever their name.
const SUFFIXES: [&str; 24] = [
    "3gp", "aac", "aif", "aifc", "aiff", "caf", "flac", "m4a", "m4b", "m4v", "mka", "mkv", "mov", "mp1",
    "mp2", "mp3", "mp4", "oga", "ogg", "ogv", "opus", "wav", "wave", "webm",
];

/// A recording and where its result goes below the output directory.
#[derive(Clone, Debug)]
pub struct Input {
    /// Where to read.
    pub source: Source,
    /// Name for messages and results.
    pub name: String,
    /// Path of the result below the output directory, without a suffix.
    pub stem: PathBuf,
}

/// Expands files, patterns, directories and `-`, in the order given; files from patterns and directories are sorted.
///
/// A name that matches nothing is still an input: it fails on its own, like any other file, and the rest go on.
pub fn expand(arguments: &[String], recursive: bool) -> Result<Vec<Input>, CliError> {
    let mut out: Vec<Input> = Vec::new();
    for argument in arguments {
        if argument == "-" {
            out.push(Input { source: Source::Stdin, name: "-".into(), stem: "stdin".into() });
            continue;
        }
        let path = Path::new(argument);
        if !path.exists() && argument.contains(['*', '?', '[']) {
            let paths =
                glob::glob(argument).map_err(|e| CliError::Usage(format!("pattern '{argument}': {e}")))?;
            let mut matched: Vec<PathBuf> = paths.filter_map(Result::ok).collect();
            matched.sort();
            if matched.is_empty() {
                return Err(CliError::Usage(format!("pattern '{argument}' matches no file")));
            }
            for path in matched {
                add(&path, recursive, &mut out)?;
            }
        } else {
            add(path, recursive, &mut out)?;
        }
    }
    if out.iter().filter(|i| i.name == "-").count() > 1 {
        return Err(CliError::Usage("standard input ('-') can be read only once".into()));
    }
    distinguish(&mut out);
    Ok(out)
}

fn add(path: &Path, recursive: bool, out: &mut Vec<Input>) -> Result<(), CliError> {
    if !path.is_dir() {
        let stem = path.file_stem().map_or_else(|| PathBuf::from("recording"), PathBuf::from);
        out.push(Input { source: Source::Path(path.into()), name: path.display().to_string(), stem });
        return Ok(());
    }
    if !recursive {
        return Err(CliError::Usage(format!(
            "{} is a directory; use --recursive to take its recordings",
            path.display()
        )));
    }
    let before = out.len();
    for entry in walkdir::WalkDir::new(path).sort_by_file_name() {
        let entry = entry.map_err(|e| CliError::Usage(format!("{}: {e}", path.display())))?;
        let suffix = entry.path().extension().and_then(|s| s.to_str()).map(str::to_ascii_lowercase);
        if entry.file_type().is_file() && suffix.is_some_and(|s| SUFFIXES.contains(&s.as_str())) {
            let relative = entry.path().strip_prefix(path).unwrap_or(entry.path());
            out.push(Input {
                source: Source::Path(entry.path().into()),
                name: entry.path().display().to_string(),
                stem: relative.with_extension(""),
            });
        }
    }
    if out.len() == before {
        return Err(CliError::Usage(format!(
            "{} holds no recordings ({})",
            path.display(),
            SUFFIXES.join(", ")
        )));
    }
    Ok(())
}

/// Gives inputs that share a stem (`a.mp3` and `a.wav`, or two directories' `a.wav`) results of their own: first with
/// their whole file name, then with a number.
fn distinguish(inputs: &mut [Input]) {
    let clashes = |inputs: &[Input], i: usize| inputs.iter().filter(|o| o.stem == inputs[i].stem).count() > 1;
    let shared: Vec<usize> = (0..inputs.len()).filter(|i| clashes(inputs, *i)).collect();
    for i in shared {
        if let Some(suffix) = Path::new(&inputs[i].name).extension() {
            let mut name = inputs[i].stem.clone().into_os_string();
            name.push(".");
            name.push(suffix);
            inputs[i].stem = name.into();
        }
    }
    for i in 1..inputs.len() {
        let stem = inputs[i].stem.clone();
        let mut number = 2;
        while inputs[..i].iter().any(|o| o.stem == inputs[i].stem) {
            let mut name = stem.clone().into_os_string();
            name.push(format!("-{number}"));
            inputs[i].stem = name.into();
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_patterns_and_clashes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        for name in ["b.wav", "a.mp3", "a.wav", "notes.txt", "sub/c.OGG"] {
            std::fs::write(at(name), b"").unwrap();
        }
        let root = dir.path().display().to_string();
        let stems = |arguments: &[String], recursive| {
            expand(arguments, recursive)
                .unwrap()
                .iter()
                .map(|i| i.stem.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(stems(&[root.clone()], true), ["a.mp3", "a.wav", "b", "sub/c"]);
        assert_eq!(stems(&[format!("{root}/*.wav")], false), ["a", "b"]);
        let twice = [format!("{root}/b.wav"), format!("{root}/b.wav")];
        assert_eq!(stems(&twice, false), ["b.wav", "b.wav-2"]);
        assert!(expand(&[root.clone()], false).unwrap_err().to_string().contains("--recursive"));
        assert!(
            expand(&[format!("{root}/*.zip")], false).unwrap_err().to_string().contains("matches no file")
        );
        assert!(expand(&["-".into(), "-".into()], false).is_err());
        assert_eq!(expand(&[format!("{root}/gone.wav")], false).unwrap().len(), 1);
    }
}
