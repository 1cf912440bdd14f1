//! `wnw calibrate` as a user meets it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn wnw(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wnw"));
    command.args(["--threads", "1", "calibrate", "--language", "en"]).args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    wnw(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
    fn wav(&self, name: &str, samples: &[f32]) -> String {
        let pcm: Vec<u8> = samples.iter().flat_map(|x| ((x * 32_767.0) as i16).to_le_bytes()).collect();
        let mut out = Vec::new();
        out.extend(b"RIFF");
        out.extend((pcm.len() as u32 + 36).to_le_bytes());
        out.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
        out.extend(16_000u32.to_le_bytes());
        out.extend(32_000u32.to_le_bytes());
        out.extend(b"\x02\0\x10\0data");
        out.extend((pcm.len() as u32).to_le_bytes());
        out.extend(pcm);
        std::fs::write(self.path(name), out).unwrap();
        self.path(name)
    }
    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(name)).unwrap()).unwrap()
    }
}

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

/// Prompts of the shipped recording between two times: samples, text, and words on the new clock.
fn shipped(from: f64, to: f64) -> (Vec<f32>, String, Value) {
    let path = wnw_audio::Source::Path(sample("prompts-en.flac"));
    let audio = wnw_audio::AudioStream::open(path, &wnw_audio::DecodeOptions::default()).unwrap();
    let samples = audio.read_all().unwrap().samples;
    let json: Value =
        serde_json::from_slice(&std::fs::read(sample("prompts-en.words.json")).unwrap()).unwrap();
    let inside = |p: &&Value| p["start"].as_f64().unwrap() >= from && p["end"].as_f64().unwrap() <= to;
    let prompts: Vec<&Value> = json["prompts"].as_array().unwrap().iter().filter(inside).collect();
    let start = prompts[0]["start"].as_f64().unwrap() - 0.1;
    let end = prompts[prompts.len() - 1]["end"].as_f64().unwrap() + 0.1;
    let text: Vec<&str> = prompts.iter().map(|p| p["text"].as_str().unwrap()).collect();
    let words = prompts.iter().flat_map(|p| p["words"].as_array().unwrap()).map(|w| {
        let at = |key: &str| w[key].as_f64().unwrap() - start;
        serde_json::json!({ "word": w["word"], "start": at("start"), "end": at("end") })
    });
    let words = serde_json::json!({ "words": words.collect::<Vec<_>>() });
    (samples[(start * 16e3) as usize..(end * 16e3) as usize].to_vec(), text.join(" "), words)
}

#[test]
fn a_recording_calibrates_itself_and_is_taken_up_again() {
    let folder = Folder::new();
    let speech = folder.wav("speech.wav", &shipped(0.0, 20.0).0);
    let silence = folder.wav("silence.wav", &[0.0; 16_000]);
    let output = folder.path("new/profile.json");
    let arguments = ["--self", "-o", &output, &speech, &silence];

    let first = run(&arguments);
    assert!(first.status.success(), "{}", stderr(&first));
    let warning = stderr(&first);
    assert!(warning.contains("silence.wav: left out: the model hears no words in it"), "{warning}");
    assert!(warning.contains("calibrated on 1 of 2 recordings"), "{warning}");
    let profile = folder.json("new/profile.json");
    assert_eq!(profile["calibration"]["label_free"], true);
    assert_eq!(profile["calibration"]["recordings"], 1);
    assert!(profile["calibration"]["tokens"].as_u64().unwrap() > 20, "{profile}");
    let scores = profile["voice_score"].as_array().unwrap();
    assert!(scores[24].as_f64().unwrap() > 0.2, "layer 6, head 0, follows the audio: {scores:?}");

    // Again: the journal has it all, and the profile is the same to the bit.
    let bytes = std::fs::read(&output).unwrap();
    let journal = folder.path("new/profile.json.self.journal.jsonl");
    let kept = std::fs::read(&journal).unwrap();
    std::fs::remove_file(&output).unwrap();
    assert!(run(&arguments).status.success());
    assert_eq!(
        (std::fs::read(&output).unwrap(), std::fs::read(&journal).unwrap()),
        (bytes.clone(), kept.clone())
    );
    // After a cut in the middle of a line, too.
    std::fs::write(&journal, &kept[..kept.len() * 2 / 3]).unwrap();
    assert!(run(&arguments).status.success());
    assert_eq!(std::fs::read(&output).unwrap(), bytes);
    // Another threshold takes the transcripts from there; one that no time meets says so.
    let strict = run(&[&arguments[..], &["--min-confidence", "1"]].concat());
    assert_eq!(strict.status.code(), Some(1));
    assert!(stderr(&strict).contains("lower --min-confidence"), "{}", stderr(&strict));

    // λ is fitted to the recordings that were used.
    let fitted = run(&[&arguments[..], &["--fit-lambda", "0.5"]].concat());
    assert!(fitted.status.success(), "{}", stderr(&fitted));
    let fit = folder.json("new/profile.json")["lambda"][0].clone();
    assert_eq!(fit["target"], 0.5);
    assert!((0.3..0.7).contains(&fit["measured"].as_f64().unwrap()), "{fit}");

    // The profile serves.
    let mut transcribe = Command::new(env!("CARGO_BIN_EXE_wnw"));
    transcribe.args([
        "transcribe",
        "--quiet",
        "--kv",
        "wnw",
        "--r-gpu",
        "0.4",
        "--language",
        "en",
        "--kv-profile",
    ]);
    let text = transcribe.args([&output, &speech]).stdin(Stdio::null()).output().unwrap();
    assert!(text.status.success() && !text.stdout.is_empty(), "{}", stderr(&text));
}

#[test]
fn what_cannot_be_used_is_said_before_the_work() {
    let folder = Folder::new();
    let silence = folder.wav("silence.wav", &[0.0; 16_000]);
    let output = folder.path("profile.json");
    let fails = |arguments: &[&str], code: i32, parts: &[&str]| {
        let result = run(&[&["-o", &output], arguments].concat());
        let message = stderr(&result);
        assert_eq!(result.status.code(), Some(code), "{arguments:?}: {message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{arguments:?}: {message}"));
        assert!(!Path::new(&output).exists());
    };
    fails(&["--self", &silence], 1, &["none of the 1 recordings", "no words", "speech"]);
    let empty = folder.path("empty.wav");
    std::fs::write(&empty, b"").unwrap();
    fails(&["--self", &silence, &empty], 1, &["empty.wav"]);
    fails(&["--self", &folder.wav("none.wav", &[]), &silence], 1, &["none.wav"]);
    fails(&["--self", &silence, &silence], 2, &["given twice"]);
    fails(&["--self", "--tier", "x", &silence], 2, &["--tier"]);
    fails(&["--self", "--n-anchor", "33", &silence], 2, &["--n-anchor 33", "32 KV heads"]);
    fails(&["--self", "--min-confidence", "1.5", &silence], 2, &["between 0 and 1"]);
    fails(&["--self", "--fit-lambda", "1", &silence], 2, &["--fit-lambda 1"]);
    fails(&[&silence], 2, &["no reference", "silence.txt", "--self"]);
    std::fs::write(folder.path("silence.txt"), "a word").unwrap();
    fails(&[&silence], 2, &["no word alignment"]);
    // Words of another text: nothing could be counted.
    let other = r#"{"words":[{"word":"other","start":0,"end":1}]}"#;
    std::fs::write(folder.path("silence.words.json"), other).unwrap();
    fails(&[&silence], 1, &["no answer token", "alignments"]);
    std::fs::write(folder.path("silence.txt"), " \n").unwrap();
    fails(&[&silence], 1, &["silence.wav", "reference is empty"]);
}

#[test]
fn labelled_results_are_of_the_files_as_they_are() {
    let folder = Folder::new();
    let label = |name: &str, from: f64, to: f64| {
        let (samples, text, words) = shipped(from, to);
        std::fs::write(folder.path(&format!("{name}.txt")), text).unwrap();
        std::fs::write(folder.path(&format!("{name}.words.json")), words.to_string()).unwrap();
        folder.wav(&format!("{name}.wav"), &samples)
    };
    let (a, b) = (label("a", 0.0, 3.0), label("b", 6.7, 11.7));
    let output = folder.path("profile.json");
    let tokens = |files: &[&str]| {
        let result = run(&[&["-o", &output], files].concat());
        assert!(result.status.success(), "{}", stderr(&result));
        folder.json("profile.json")["calibration"]["tokens"].as_u64().unwrap()
    };
    let both = tokens(&[&a, &b]);
    let journal = folder.path("profile.json.journal.jsonl");
    let lines = || std::fs::read_to_string(&journal).unwrap().lines().count();
    assert_eq!(lines(), 3);
    // What the journal holds of other recordings does not count.
    let one = tokens(&[&a]);
    assert!(one > 0 && one < both && lines() == 3, "{one} {both}");
    assert_eq!(tokens(&[&b]), both - one);
    // A reference that was changed is measured again.
    std::fs::write(folder.path("a.txt"), "Your temporary greeting.").unwrap();
    let changed = tokens(&[&a]);
    assert!(changed < one && lines() == 4, "{changed} {one}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_and_keeps_what_is_done() {
    let folder = Folder::new();
    let short = folder.wav("short.wav", &shipped(0.0, 3.0).0);
    let long = folder.wav("long.wav", &shipped(0.0, 230.0).0);
    let output = folder.path("profile.json");
    let journal = folder.path("profile.json.self.journal.jsonl");
    let mut child = wnw(&["--self", "-o", &output, &short, &long])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let clock = std::time::Instant::now();
    // The header, and the first recording.
    while std::fs::read_to_string(&journal).unwrap_or_default().lines().count() < 2 {
        assert!(clock.elapsed().as_secs() < 120 && child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let status = child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(!Path::new(&output).exists());
    assert_eq!(std::fs::read_to_string(&journal).unwrap().lines().count(), 2);
}
