//! `wnw data`: the test sets that there are, what a copy of one holds, and how to get one.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use serde_json::json;
use wnw_eval::dataset::{DatasetSpec, Format, Task, open};

use crate::data_fetch;
use crate::error::CliError;
use crate::outputs::print;

/// `wnw data`.
#[derive(Debug, Args)]
pub struct DataArgs {
    #[command(subcommand)]
    pub command: DataCommand,
}

/// What to do with data sets.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Names, licences, sizes, and whether a copy is in the data directory.
    List {
        #[command(flatten)]
        place: Place,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read a copy's manifests and texts: how many recordings, how long, which.
    Show {
        /// NAME, FORMAT:PATH[#SPLIT], or a path: a directory, a .jsonl or a .parquet.
        #[arg(value_name = "SET")]
        spec: DatasetSpec,
        #[command(flatten)]
        place: Place,
        /// As JSON, with all ids.
        #[arg(long)]
        json: bool,
    },
    /// Download a set, or make one of the embedded model's, and check it.
    Fetch {
        /// Name of the set; of librispeech with its split, such as librispeech#test-clean.
        #[arg(value_name = "NAME")]
        spec: DatasetSpec,
        #[command(flatten)]
        place: Place,
        /// For the tiny sets: where the Asterisk sounds are [default: /usr/share/asterisk/sounds].
        #[arg(long, value_name = "DIR")]
        sounds: Option<PathBuf>,
        /// No progress.
        #[arg(short, long)]
        quiet: bool,
    },
}

/// Where data sets are.
#[derive(Debug, Args)]
pub struct Place {
    /// Where sets without a path are [default: WNW_DATA, or wnw/data in the user's data directory].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Place {
    /// The directory, which need not exist.
    pub fn directory(&self) -> Result<PathBuf, CliError> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user = || {
            if let Some(data) = variable("XDG_DATA_HOME") {
                return Some(data);
            }
            if cfg!(windows) {
                return variable("LOCALAPPDATA");
            }
            let below =
                if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/share" };
            variable("HOME").map(|home| home.join(below))
        };
        let own = self.data_dir.clone().or_else(|| variable("WNW_DATA"));
        own.or_else(|| user().map(|data| data.join("wnw").join("data"))).ok_or_else(|| {
            CliError::Usage("there is no home directory; say with --data-dir where data sets are".into())
        })
    }
}

/// What people want to know of a set before they fetch it.
struct About {
    licence: &'static str,
    size: &'static str,
    what: &'static str,
}

fn about(format: Format) -> Option<About> {
    let about = |licence, size, what| Some(About { licence, size, what });
    let own = "CC-BY-SA-3.0";
    match format {
        Format::TinyEn => about(own, "120 MB", "the embedded model's held-out English, 20 × 2 to 4 min"),
        Format::TinyFr => about(own, "120 MB", "the embedded model's held-out French, 20 × 2 to 4 min"),
        Format::TinyEn2Fr => about(own, "120 MB", "the embedded model's held-out English to French"),
        Format::LibriSpeechLong => about("CC-BY-4.0", "3 GB", "read English, up to 4 min"),
        Format::LibriSpeech => about("CC-BY-4.0", "350 MB a test split", "read English, sentences"),
        Format::LongSpeechAsrFr => about("Apache-2.0", "of 2.03 TB", "French, 10 min"),
        Format::LongSpeechEn2Fr => about("Apache-2.0", "of 2.03 TB", "English to French, 10 min"),
        Format::PriMock57 => about("CC-BY-4.0", "2 GB", "57 mock consultations in English, 4 to 14 min"),
        Format::Directory | Format::Manifest | Format::Parquet => None,
    }
}

/// Runs the command.
pub fn run(args: &DataArgs) -> Result<(), CliError> {
    match &args.command {
        DataCommand::List { place, json } => list(&place.directory()?, *json),
        DataCommand::Show { spec, place, json } => show(&spec.clone().or_in(&place.directory()?), *json),
        DataCommand::Fetch { spec, place, sounds, quiet } => {
            if spec.path.is_some() || !spec.format.is_named_set() {
                let reason = "fetch takes the name of a set, without a path; --data-dir says where it goes";
                return Err(CliError::Usage(format!("NAME {spec}: {reason}")));
            }
            let spec = spec.clone().or_in(&place.directory()?);
            data_fetch::fetch(&spec, sounds.as_deref(), *quiet)?;
            show(&spec, false)
        }
    }
}

fn list(directory: &Path, json: bool) -> Result<(), CliError> {
    let sets = Format::ALL.into_iter().filter_map(|format| Some((format, about(format)?)));
    let place = |format: Format| directory.join(format.folder());
    // What a broken download left is not the set.
    let whole = |entry: std::fs::DirEntry| !entry.file_name().to_string_lossy().ends_with(".incomplete");
    let is_there =
        |format: Format| std::fs::read_dir(place(format)).is_ok_and(|entries| entries.flatten().any(whole));
    if json {
        let rows: Vec<_> = sets
            .map(|(format, about)| {
                json!({
                    "name": format.name(),
                    "path": place(format),
                    "present": is_there(format),
                    "licence": about.licence,
                    "size": about.size,
                    "description": about.what,
                })
            })
            .collect();
        return print(&format!("{}\n", serde_json::to_string_pretty(&rows)?));
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["set", "there", "size", "licence", "what"]);
    for (format, about) in sets {
        let there = if is_there(format) { "yes" } else { "no" };
        table.add_row([format.name(), there, about.size, about.licence, about.what]);
    }
    print(&format!(
        "{table}\nlooked for in {}; fetch one with `wnw data fetch NAME`\n\
         others: dir:PATH, manifest:FILE.jsonl, parquet:FILE-OR-DIR[#SPLIT]\n",
        directory.display()
    ))
}

fn show(spec: &DatasetSpec, json: bool) -> Result<(), CliError> {
    /// Ids that people see.
    const FIRST: usize = 5;
    let set = open(spec)?;
    let languages: std::collections::BTreeSet<_> =
        set.recordings.iter().filter_map(|r| r.language.as_deref()).collect();
    let tasks: std::collections::BTreeSet<_> = set
        .recordings
        .iter()
        .map(|r| match &r.task {
            Task::Transcribe => "transcribe".to_owned(),
            Task::Translate { to } => format!("translate to {to}"),
        })
        .collect();
    let words: usize = set.recordings.iter().map(|r| r.reference.split_whitespace().count()).sum();
    if json {
        let ids: Vec<_> = set.recordings.iter().map(|r| r.id.as_str()).collect();
        let value = json!({
            "name": set.name,
            "path": spec.path,
            "recordings": set.recordings.len(),
            "seconds": set.seconds(),
            "reference_words": words,
            "languages": languages,
            "tasks": tasks,
            "ids": ids,
        });
        return print(&format!("{}\n", serde_json::to_string_pretty(&value)?));
    }
    let joined = |items: Vec<String>| if items.is_empty() { "not said".to_owned() } else { items.join(", ") };
    let mut ids: Vec<_> = set.recordings.iter().take(FIRST).map(|r| r.id.clone()).collect();
    if set.recordings.len() > FIRST {
        ids.push("…".into());
    }
    let hours = set.seconds().map(|seconds| format!(", {:.2} h", seconds / 3600.0)).unwrap_or_default();
    print(&format!(
        "{} ({})\n{} recordings{hours}, {words} words of reference\ntask: {}; language spoken: {}\nids: {}\n",
        set.name,
        spec.location()?.display(),
        set.recordings.len(),
        joined(tasks.into_iter().collect()),
        joined(languages.into_iter().map(str::to_owned).collect()),
        ids.join(", "),
    ))
}
