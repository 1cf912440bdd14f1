//! `wnw eval` as a user meets it, on short pieces of the sample with the embedded model.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wnw_audio::{AudioStream, DecodeOptions, Source};

struct Work(tempfile::TempDir);

impl Work {
    /// A directory with a data set of two recordings.
    fn new() -> Self {
        let work = Self(tempfile::tempdir().unwrap());
        let data = work.path("data");
        std::fs::create_dir(&data).unwrap();
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples");
        let audio =
            AudioStream::open(Source::Path(samples.join("prompts-en.flac")), &DecodeOptions::default())
                .unwrap();
        let audio = audio.read_all().unwrap().samples;
        let words: Value =
            serde_json::from_slice(&std::fs::read(samples.join("prompts-en.words.json")).unwrap()).unwrap();
        // Whole prompts between two times.
        for (name, from, to) in [("a", 0.0, 14.0), ("b", 20.0, 36.0)] {
            let prompts = words["prompts"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|p| p["start"].as_f64().unwrap() >= from && p["end"].as_f64().unwrap() <= to);
            let prompts: Vec<&Value> = prompts.collect();
            let at = |value: &Value| (value.as_f64().unwrap() * 16_000.0) as usize;
            let piece = &audio[at(&prompts[0]["start"])..at(&prompts[prompts.len() - 1]["end"])];
            std::fs::write(data.join(format!("{name}.wav")), wav(piece)).unwrap();
            let text: Vec<&str> = prompts.iter().map(|p| p["text"].as_str().unwrap()).collect();
            std::fs::write(data.join(format!("{name}.txt")), text.join(" ")).unwrap();
        }
        work
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn wnw(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wnw"));
        command.current_dir(self.0.path()).args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs `wnw eval` and gives what it printed.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.wnw(&[&["eval"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn error(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.wnw(&[&["eval"], arguments].concat());
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stderr).unwrap()
    }

    /// Rows without their times, by key.
    fn rows(&self, run: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(run).join("results.jsonl")).unwrap();
        let mut rows: Vec<String> = text
            .lines()
            .skip(1)
            .map(|line| {
                let mut row: Value = serde_json::from_str(line).unwrap();
                row.as_object_mut().unwrap().remove("timing");
                row.to_string()
            })
            .collect();
        rows.sort();
        rows
    }
}

fn wav(samples: &[f32]) -> Vec<u8> {
    let bytes = samples.len() as u32 * 4;
    let mut out = Vec::new();
    out.extend(b"RIFF");
    out.extend((bytes + 36).to_le_bytes());
    out.extend(b"WAVEfmt \x10\0\0\0\x03\0\x01\0");
    out.extend(16_000u32.to_le_bytes());
    out.extend(64_000u32.to_le_bytes());
    out.extend(b"\x04\0\x20\0data");
    out.extend(bytes.to_le_bytes());
    out.extend(samples.iter().flat_map(|s| s.to_le_bytes()));
    out
}

const RUN: [&str; 6] =
    ["--dataset", "dir:data", "--methods", "full,wnw,snapkv:window=16", "--ratios", "0.6,0.3"];

#[test]
fn a_run_goes_on_after_a_cut_and_is_the_sum_of_its_parts() {
    let work = Work::new();
    let table = work.ok(&[&RUN[..], &["--out", "whole"]].concat());
    assert!(table.contains("| method | 0.6 | 0.3 |"), "{table}");
    assert!(table.contains("| snapkv:window=16 |"), "{table}");
    let whole = work.rows("whole");
    // Two recordings, each with the full cache and with two methods at two targets.
    assert_eq!(whole.len(), 2 * (1 + 2 * 2));
    for file in ["manifest.json", "scores.jsonl", "table.md", "table.csv"] {
        assert!(work.path("whole").join(file).metadata().unwrap().len() > 0, "{file}");
    }
    for chart in ["score-data.svg", "bytes-data.svg", "kv-data.svg", "length-data.svg"] {
        let svg = std::fs::read_to_string(work.path("whole").join(chart)).unwrap();
        assert!(svg.contains("snapkv:window=16"), "{chart}");
    }
    let scores = |run: &str| std::fs::read_to_string(work.path(run).join("scores.jsonl")).unwrap();

    // As a kill in the middle of a line leaves it.
    let results = work.path("whole").join("results.jsonl");
    let text = std::fs::read(&results).unwrap();
    let before = scores("whole");
    std::fs::write(&results, &text[..text.len() * 6 / 10]).unwrap();
    work.ok(&[&RUN[..], &["--out", "whole"]].concat());
    assert_eq!(work.rows("whole"), whole);
    assert_eq!(scores("whole"), before);

    for shard in ["0/2", "1/2"] {
        let out = format!("part{}", &shard[..1]);
        work.ok(&[&RUN[..], &["--shard", shard, "--out", &out]].concat());
        assert_eq!(work.rows(&out).len(), whole.len() / 2);
    }
    let output = work.wnw(&["eval", "merge", "part0", "--out", "half"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("no part is shard 1/2"), "{said}");
    let output = work.wnw(&["eval", "merge", "part1", "part0", "--out", "merged"]);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(work.path("merged/manifest.json").exists());
    assert_eq!(work.rows("merged"), whole);
    let lines = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(scores("merged")), lines(before));

    // Scored again, without the model, under other rules.
    let json = work.ok(&["score", "whole", "--normaliser", "none", "--json"]);
    let strict: Value = serde_json::from_str(&json).unwrap();
    let json = work.ok(&["score", "whole", "--json"]);
    let usual: Value = serde_json::from_str(&json).unwrap();
    let wer = |table: &Value| table[0]["score"]["score"].as_f64().unwrap();
    assert!(wer(&strict) >= wer(&usual), "{} {}", wer(&strict), wer(&usual));
    assert!(wer(&usual) < 30.0, "{usual}");
    let part = |line: &Value| line["r_gpu"].as_f64().unwrap();
    assert!((part(&usual[0]) - 1.0).abs() < 1e-9);
    assert!(usual.as_array().unwrap().iter().any(|l| part(l) < 0.5));
}

#[test]
fn a_recording_that_fails_is_a_row() {
    let work = Work::new();
    std::fs::write(work.path("data/c.wav"), b"RIFF\0\0\0\0WAVE").unwrap();
    std::fs::write(work.path("data/c.txt"), "never said").unwrap();
    let run = ["--dataset", "dir:data", "--methods", "full", "--out", "run"];
    let said = work.error(1, &run);
    assert!(said.contains("data c full"), "{said}");
    assert!(said.contains("2 made, 0 were there, 1 failed"), "{said}");
    // Tried again, and written down once.
    let said = work.error(1, &run);
    assert!(said.contains("0 made, 2 were there, 1 failed"), "{said}");
    assert_eq!(work.rows("run").len(), 3);
    let table = std::fs::read_to_string(work.path("run/table.md")).unwrap();
    assert!(table.contains("0 of 2, 1 failed"), "{table}");
}

#[test]
fn what_is_wrong_is_said_before_anything_runs() {
    let work = Work::new();
    let with = |more: &[&'static str]| [&["--dataset", "dir:data", "--out", "run"][..], more].concat();
    for (flags, says) in [
        (with(&["--methods", "nosuch"]), "nosuch"),
        (with(&["--methods", "snapkv:colour=red"]), "colour"),
        (with(&["--methods", "full@int3"]), "int3"),
        (with(&["--ratios", "0"]), "--ratios"),
        (with(&["--ratios", "1.5"]), "--ratios"),
        (with(&["--shard", "2/2"]), "--shard"),
        (with(&["--truncate", "0.5"]), "--truncate"),
        (with(&["--normaliser", "x"]), "normaliser"),
        (with(&["--dataset", "dir:data"]), "two data sets"),
        (vec!["--dataset", "dir:nowhere", "--out", "run"], "nowhere"),
        (vec!["--dataset", "dir:data"], "--out"),
        (vec!["--out", "run"], "--dataset"),
    ] {
        let said = work.error(2, &flags);
        assert!(said.contains(says), "{flags:?}: {said}");
        assert!(!work.path("run/results.jsonl").exists(), "{flags:?}");
    }
    assert!(work.error(1, &["score", "nowhere"]).contains("nowhere"));
    // Results that were made otherwise are not mixed with new ones.
    work.ok(&with(&["--methods", "full", "--limit", "1"]));
    // A method that needs the profile can be added later.
    work.ok(&with(&["--methods", "wnw", "--ratios", "0.4", "--limit", "1"]));
    let said = work.error(1, &with(&["--methods", "full", "--max-new-tokens", "5"]));
    assert!(said.contains("another run"), "{said}");
    std::fs::write(work.path("data/a.txt"), "something else").unwrap();
    std::fs::write(work.path("data/b.txt"), "something else").unwrap();
    let said = work.error(1, &with(&["--methods", "full"]));
    assert!(said.contains("another reference"), "{said}");
}
