//! Which recordings a command line means.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

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

impl Input {
    fn file(path: PathBuf, stem: PathBuf) -> Self {
        Self { name: path.display().to_string(), source: Source::Path(path), stem }
    }
}

/// Expands files, patterns, directories and `-`, in the order given; files from patterns and directories are sorted.
///
/// A name that matches nothing, and whatever a directory or pattern does not let us read, is still an input: it fails
/// on its own, like any other file, and the rest go on.
pub fn expand(arguments: &[PathBuf], recursive: bool) -> Result<Vec<Input>, CliError> {
    let mut out: Vec<Input> = Vec::new();
    for argument in arguments {
        if argument == Path::new("-") {
            if out.iter().any(|i| matches!(i.source, Source::Stdin)) {
                return Err(CliError::Usage("standard input ('-') can be read only once".into()));
            }
            out.push(Input { source: Source::Stdin, name: "-".into(), stem: "stdin".into() });
            continue;
        }
        let pattern = argument.to_str().filter(|a| !argument.exists() && a.contains(['*', '?', '[']));
        let Some(pattern) = pattern else {
            add(argument, recursive, &mut out)?;
            continue;
        };
        let paths = glob::glob(pattern).map_err(|e| CliError::Usage(format!("pattern '{pattern}': {e}")))?;
        let mut matched: Vec<PathBuf> = paths.map(|p| p.unwrap_or_else(|e| e.path().to_owned())).collect();
        matched.sort();
        if matched.is_empty() {
            return Err(CliError::Usage(format!("pattern '{pattern}' matches no file")));
        }
        for path in matched {
            add(&path, recursive, &mut out)?;
        }
    }
    distinguish(&mut out);
    Ok(out)
}

fn add(path: &Path, recursive: bool, out: &mut Vec<Input>) -> Result<(), CliError> {
    if !path.is_dir() {
        let stem = path.file_stem().map_or_else(|| PathBuf::from("recording"), PathBuf::from);
        out.push(Input::file(path.into(), stem));
        return Ok(());
    }
    let name = path.display();
    if !recursive {
        return Err(CliError::Usage(format!(
            "{name} is a directory; use --recursive to take its recordings"
        )));
    }
    let before = out.len();
    for entry in walkdir::WalkDir::new(path).follow_links(true).sort_by_file_name() {
        match entry {
            Ok(entry) => {
                if entry.file_type().is_file() && has_suffix(entry.path()) {
                    let relative = entry.path().strip_prefix(path).unwrap_or(entry.path());
                    out.push(Input::file(entry.path().into(), relative.with_extension("")));
                }
            }
            // A link that leads back up, or nowhere, is no recording; what cannot be read may hold some.
            Err(error) => {
                let unreadable = error.path().unwrap_or(path);
                if error.loop_ancestor().is_none() && (unreadable.is_dir() || has_suffix(unreadable)) {
                    out.push(Input::file(unreadable.into(), unreadable.into()));
                }
            }
        }
    }
    if out.len() == before {
        let suffixes = SUFFIXES.join(", ");
        return Err(CliError::Usage(format!("{name} holds no recordings ({suffixes})")));
    }
    Ok(())
}

fn has_suffix(path: &Path) -> bool {
    let suffix = path.extension().and_then(|s| s.to_str()).map(str::to_ascii_lowercase);
    suffix.is_some_and(|s| SUFFIXES.contains(&s.as_str()))
}

/// Gives inputs that share a stem results of their own: `a.mp3` and `a.wav` by their whole file name, `2023/a.wav` and
/// `2024/a.wav` by their whole path, which does not depend on what else is on the command line.
fn distinguish(inputs: &mut [Input]) {
    rename_shared(inputs, |input, path| {
        let mut name = input.stem.clone().into_os_string();
        if let Some(suffix) = path.extension() {
            name.push(".");
            name.push(suffix);
        }
        name.into()
    });
    rename_shared(inputs, |_, path| {
        let parts: Vec<_> = path
            .components()
            .filter_map(|c| match c {
                Component::Normal(part) => Some(part.to_string_lossy()),
                Component::ParentDir => Some("..".into()),
                _ => None,
            })
            .collect();
        parts.join("_").into()
    });
}

fn rename_shared(inputs: &mut [Input], rename: impl Fn(&Input, &Path) -> PathBuf) {
    let mut counts: HashMap<PathBuf, usize> = HashMap::new();
    for input in inputs.iter() {
        *counts.entry(input.stem.clone()).or_default() += 1;
    }
    for input in inputs.iter_mut() {
        if let (Source::Path(path), true) = (&input.source, counts[&input.stem] > 1) {
            input.stem = rename(input, path);
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
        let root = dir.path().to_owned();
        let stems = |arguments: &[PathBuf], recursive| {
            expand(arguments, recursive)
                .unwrap()
                .iter()
                .map(|i| i.stem.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(stems(std::slice::from_ref(&root), true), ["a.mp3", "a.wav", "b", "sub/c"]);
        assert_eq!(stems(&[root.join("*.wav")], false), ["a", "b"]);
        std::fs::write(at("sub/b.wav"), b"").unwrap();
        let same_name = stems(&[root.join("b.wav"), root.join("sub/b.wav")], false);
        assert!(same_name[0].ends_with("_b.wav") && same_name[1].ends_with("_sub_b.wav"), "{same_name:?}");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("b.wav"), at("sub/link.wav")).unwrap();
            std::os::unix::fs::symlink("/nowhere/at/all", at("sub/latest")).unwrap();
            std::os::unix::fs::symlink(".", at("sub/here")).unwrap();
            assert_eq!(stems(&[root.join("sub")], true), ["b", "c", "link"]);
        }
        assert!(expand(std::slice::from_ref(&root), false).unwrap_err().to_string().contains("--recursive"));
        assert!(expand(&[root.join("*.zip")], false).unwrap_err().to_string().contains("matches no file"));
        assert!(expand(&["-".into(), "-".into()], false).is_err());
        assert_eq!(expand(&[root.join("gone.wav")], false).unwrap().len(), 1);
    }
}
