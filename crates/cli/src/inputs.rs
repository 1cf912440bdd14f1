//! Which recordings a command line means.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use wnw_audio::{SUFFIXES, Source};

use crate::error::CliError;

/// A recording and where its result goes below the output directory.
#[derive(Clone, Debug)]
pub struct Input {
    /// Where to read.
    pub source: Source,
    /// Name for messages and results.
    pub name: String,
    /// Path of the result below the output directory, without a suffix. It depends on this input alone, so that a later
    /// run finds it again whatever else is then on the command line.
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
            let root = if argument.is_dir() { argument } else { argument.parent().unwrap_or(argument) };
            add(argument, root, recursive, &mut out)?;
            continue;
        };
        let paths = glob::glob(pattern).map_err(|e| CliError::Usage(format!("pattern '{pattern}': {e}")))?;
        let mut matched: Vec<PathBuf> = paths.map(|p| p.unwrap_or_else(|e| e.path().to_owned())).collect();
        matched.sort();
        if matched.is_empty() {
            return Err(CliError::Usage(format!("pattern '{pattern}' matches no file")));
        }
        let root = pattern_root(pattern);
        for path in matched {
            add(&path, &root, recursive, &mut out)?;
        }
    }
    Ok(out)
}

/// The part of a pattern before its first component with a wildcard.
fn pattern_root(pattern: &str) -> PathBuf {
    let wild = |c: &Component<'_>| c.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    Path::new(pattern).components().take_while(|c| !wild(c)).collect()
}

/// Path of a recording below `root`, without a suffix and without anything that leads elsewhere.
fn stem_below(path: &Path, root: &Path) -> PathBuf {
    let clean = |p: &Path| p.components().filter(|c| *c != Component::CurDir).collect::<PathBuf>();
    let (path, root) = (clean(path), clean(root));
    let below = path.strip_prefix(&root).unwrap_or(&path).with_extension("");
    let stem: PathBuf = below.components().filter(|c| matches!(c, Component::Normal(_))).collect();
    if stem.as_os_str().is_empty() { "recording".into() } else { stem }
}

/// Adds a file, or the recordings in a directory; results are named by the path below `root`.
fn add(path: &Path, root: &Path, recursive: bool, out: &mut Vec<Input>) -> Result<(), CliError> {
    if !path.is_dir() {
        out.push(Input::file(path.into(), stem_below(path, root)));
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
                    out.push(Input::file(entry.path().into(), stem_below(entry.path(), root)));
                }
            }
            // A link that leads back up, or nowhere, is no recording; what cannot be read may hold some.
            Err(error) => {
                let unreadable = error.path().unwrap_or(path);
                if error.loop_ancestor().is_none() && (unreadable.is_dir() || has_suffix(unreadable)) {
                    out.push(Input::file(unreadable.into(), stem_below(unreadable, root)));
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

/// Refuses two recordings whose results would have the same name. Found before any work; a name that gave way to
/// another would depend on what else is on the command line.
pub fn check_distinct(inputs: &[Input]) -> Result<(), CliError> {
    let mut seen: HashMap<&Path, &Input> = HashMap::new();
    for input in inputs {
        // A directory that cannot be read is reported as such, and has no result.
        if matches!(&input.source, Source::Path(path) if path.is_dir()) {
            continue;
        }
        let Some(first) = seen.insert(&input.stem, input) else { continue };
        let name = input.stem.display();
        return Err(CliError::Usage(if first.name == input.name {
            format!("'{}' is given twice; with --output-dir give it once", input.name)
        } else {
            format!(
                "--output-dir: the results of '{}' and '{}' would both be named '{name}'; rename one, give them in two runs with different directories, or give the directory above both with --recursive",
                first.name, input.name
            )
        }));
    }
    Ok(())
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
        assert_eq!(stems(std::slice::from_ref(&root), true), ["a", "a", "b", "sub/c"]);
        assert_eq!(stems(&[root.join("*.wav")], false), ["a", "b"]);
        assert_eq!(stems(&[root.join("*/*.OGG"), root.join("sub/*")], false), ["sub/c", "c"]);
        assert_eq!(stems(&[root.join("*")], true), ["a", "a", "b", "notes", "sub/c"]);
        std::fs::write(at("sub/b.wav"), b"").unwrap();
        assert_eq!(stems(&[root.join("b.wav"), root.join("./sub/../sub/b.wav")], false), ["b", "b"]);
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
    #[test]
    fn names_do_not_depend_on_the_rest_and_a_clash_is_told() {
        let check = |stems: &[(&str, &str)]| {
            let inputs: Vec<_> = stems.iter().map(|(p, s)| Input::file(p.into(), s.into())).collect();
            check_distinct(&inputs).map_err(|e| e.to_string())
        };
        assert_eq!(check(&[("x/a.wav", "a"), ("x/b.wav", "b"), ("y/a.wav", "y/a")]), Ok(()));
        let clash = check(&[("x/a.wav", "a"), ("b.wav", "b"), ("y/a.mp3", "a")]).unwrap_err();
        assert!(clash.contains("'x/a.wav' and 'y/a.mp3'") && clash.contains("rename"), "{clash}");
        assert!(check(&[("a.wav", "a"), ("a.wav", "a")]).unwrap_err().contains("twice"));
        assert_eq!(stem_below(Path::new("a/../../b.v2.wav"), Path::new("a")), Path::new("b.v2"));
        assert_eq!(stem_below(Path::new("./talks/a.wav"), Path::new("talks")), Path::new("a"));
        assert_eq!(
            stem_below(Path::new("talks/2023/a.wav"), &pattern_root("./talks/*/a*")),
            Path::new("2023/a")
        );
    }
}
