//! Getting a copy of a data set: downloaded, or for the embedded model's sets made from installed packages.

use std::path::Path;

use wnw_eval::dataset::tiny::{TinySources, compose};
use wnw_eval::dataset::{DatasetSpec, Format, open, primock57_files, unpack};
use wnw_model::hub::{HubError, HubOptions, fetch_url};

use crate::error::CliError;
use crate::progress::Bar;

const LIBRISPEECH_LONG: &str = "https://storage.googleapis.com/librispeech_long/v0_1.tar.gz";
const LIBRISPEECH: &str = "https://www.openslr.org/resources/12";
const PRIMOCK57: &str = "https://github.com/babylonhealth/primock57";
const PRIMOCK57_FILES: &str = "https://raw.githubusercontent.com/babylonhealth/primock57/HEAD";
const PRIMOCK57_SOUND: &str = "https://media.githubusercontent.com/media/babylonhealth/primock57/HEAD";
const LONGSPEECH: &str = "https://huggingface.co/datasets/AIDC-AI/Marco_Longspeech";

/// SHA-256 of LibriSpeech's archives.
const LIBRISPEECH_SPLITS: [(&str, &str); 4] = [
    ("dev-clean", "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3"),
    ("dev-other", "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365"),
    ("test-clean", "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23"),
    ("test-other", "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29"),
];

/// Gets a set to its place. A copy that is whole is left as it is.
pub fn fetch(spec: &DatasetSpec, sounds: Option<&Path>, quiet: bool) -> Result<(), CliError> {
    if open(spec).is_ok() {
        return Ok(());
    }
    let place = spec.location()?;
    let bar = Bar::new(quiet);
    let done = match spec.format {
        Format::TinyEn | Format::TinyFr | Format::TinyEn2Fr => make(spec.format, place, sounds, &bar),
        Format::LibriSpeechLong => {
            if !quiet {
                bar.line("LibriSpeech-Long has no published checksum: the archive is checked by its own and by its contents");
            }
            archive(LIBRISPEECH_LONG, None, place, &bar)
        }
        Format::LibriSpeech => {
            let split = spec.part.as_deref().unwrap_or_default();
            let Some((_, checksum)) = LIBRISPEECH_SPLITS.iter().find(|(name, _)| *name == split) else {
                let names: Vec<_> = LIBRISPEECH_SPLITS.iter().map(|(name, _)| *name).collect();
                return Err(CliError::Usage(format!(
                    "NAME {}: the splits to test on are {}",
                    spec.name(),
                    names.join(", ")
                )));
            };
            // Each split in a folder of its own, so that one can be added to another.
            archive(&format!("{LIBRISPEECH}/{split}.tar.gz"), Some(checksum), &place.join(split), &bar)
        }
        Format::PriMock57 => primock57(place, &bar),
        Format::LongSpeechAsrFr | Format::LongSpeechEn2Fr => Err(CliError::Data(format!(
            "{}: {LONGSPEECH} has 2.03 TB, most of it for other tasks, and is not fetched whole: put LongSpeechQA, the \
             all_audios.jsonl of each part, and the recordings that the rows name below {}; `wnw data show {}` says which are \
             missing",
            spec.name(),
            place.display(),
            spec.name()
        ))),
        Format::Directory | Format::Manifest | Format::Parquet => {
            Err(CliError::Usage(format!("NAME {spec}: not the name of a set that can be fetched")))
        }
    };
    bar.clear();
    done?;
    open(spec)?;
    Ok(())
}

fn make(format: Format, place: &Path, sounds: Option<&Path>, bar: &Bar) -> Result<(), CliError> {
    let mut sources = TinySources::default();
    if let Some(sounds) = sounds {
        sources.sounds = sounds.to_owned();
    }
    let made = compose(format, &sources, place, &mut |done, total| {
        bar.work(format.name(), done as f64 / total.max(1) as f64);
    });
    made.map_err(|error| CliError::Data(format!("{}: {error}", format.name())))
}

/// Downloads an archive and unpacks it; the place is there only once that is done.
fn archive(url: &str, sha256: Option<&str>, place: &Path, bar: &Bar) -> Result<(), CliError> {
    let parent = place.parent().unwrap_or(Path::new("."));
    let file = parent.join(format!("{}.tar.gz", place.file_name().unwrap_or_default().to_string_lossy()));
    download(url, &file, sha256, place, bar)?;
    let write = |source| CliError::Write { path: place.to_owned(), source };
    let dir = tempfile::Builder::new().prefix(".wnw-data-").tempdir_in(parent).map_err(write)?;
    unpack(&file, dir.path())?;
    let unpacked = dir.keep();
    std::fs::rename(&unpacked, place).map_err(|source| {
        let _ = std::fs::remove_dir_all(&unpacked);
        write(source)
    })?;
    std::fs::remove_file(&file).map_err(|source| CliError::Write { path: file, source })
}

/// Transcripts as they are; of each recording first its Git LFS pointer, which has the checksum.
fn primock57(place: &Path, bar: &Bar) -> Result<(), CliError> {
    let (sounds, transcripts) = primock57_files();
    for name in &transcripts {
        let path = place.join(name);
        if !path.is_file() {
            download(&format!("{PRIMOCK57_FILES}/{name}"), &path, None, place, bar)?;
        }
    }
    for name in &sounds {
        let path = place.join(name);
        if path.is_file() {
            continue;
        }
        let pointer = path.with_extension("pointer");
        download(&format!("{PRIMOCK57_FILES}/{name}"), &pointer, None, place, bar)?;
        let text = std::fs::read_to_string(&pointer).unwrap_or_default();
        let checksum = text.lines().find_map(|line| line.strip_prefix("oid sha256:")).map(str::trim);
        let Some(checksum) = checksum else {
            return Err(CliError::Data(format!(
                "{}: is no Git LFS pointer; the repository has changed: clone {PRIMOCK57} with Git LFS to {}",
                pointer.display(),
                place.display()
            )));
        };
        download(&format!("{PRIMOCK57_SOUND}/{name}"), &path, Some(checksum), place, bar)?;
        std::fs::remove_file(&pointer).map_err(|source| CliError::Write { path: pointer, source })?;
    }
    Ok(())
}

fn download(url: &str, path: &Path, sha256: Option<&str>, place: &Path, bar: &Bar) -> Result<(), CliError> {
    let options = HubOptions::from_lookup(|name| std::env::var(name).ok());
    let fetched =
        fetch_url(url, path, sha256, &options, &mut |name, done, total| bar.download(name, done, total));
    fetched.map_err(|error| CliError::Hub(explain(url, &error, place)))
}

fn explain(url: &str, error: &HubError, place: &Path) -> String {
    let message = error.to_string();
    let message = if message.contains(url) { message } else { format!("{url}: {message}") };
    format!("{message}; or put a copy, unpacked, at {}", place.display())
}
