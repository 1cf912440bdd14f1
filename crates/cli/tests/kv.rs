//! `--kv wnw`, subtitles and times, as a user meets them, on the embedded model with its profile.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use wnw_audio::{AudioStream, DecodeOptions, Source};

/// Seconds of the sample that are transcribed.
const SECONDS: usize = 45;

/// The start of the sample recording, as a WAV file for all tests.
fn recording() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/prompts-en.flac");
        let audio = AudioStream::open(Source::Path(sample), &DecodeOptions::default()).unwrap();
        let samples = &audio.read_all().unwrap().samples[..SECONDS * 16_000];
        let mut wav = Vec::new();
        let bytes = samples.len() as u32 * 4;
        wav.extend(b"RIFF");
        wav.extend((bytes + 36).to_le_bytes());
        wav.extend(b"WAVEfmt \x10\0\0\0\x03\0\x01\0");
        wav.extend(16_000u32.to_le_bytes());
        wav.extend(64_000u32.to_le_bytes());
        wav.extend(b"\x04\0\x20\0data");
        wav.extend(bytes.to_le_bytes());
        wav.extend(samples.iter().flat_map(|s| s.to_le_bytes()));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kv-recording.wav");
        std::fs::write(&path, wav).unwrap();
        path.display().to_string()
    })
}

fn transcribe(flags: &[&str]) -> Output {
    // One thread: tests run side by side, and threads that wait for each other would take turns on the same cores.
    let all = [&["--threads", "1", "transcribe", "--language", "en", recording()][..], flags].concat();
    Command::new(env!("CARGO_BIN_EXE_wnw")).args(all).stdin(Stdio::null()).output().unwrap()
}

fn ok(flags: &[&str]) -> String {
    let output = transcribe(flags);
    assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(flags: &[&str]) -> Value {
    serde_json::from_str(&ok(&[flags, &["--format", "json"]].concat())).unwrap()
}

fn error(flags: &[&str]) -> String {
    let output = transcribe(flags);
    assert!(!output.status.success(), "{flags:?} must fail");
    assert!(output.stdout.is_empty(), "{flags:?} must print nothing");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_part_of_the_cache_is_reported_and_does_not_depend_on_where_the_rest_lies() {
    let wnw = ["--kv", "wnw", "--r-gpu", "0.3"];
    let overlap = json(&wnw);
    let statistics = &overlap["statistics"];
    let number = |name: &str| statistics[name].as_f64().unwrap();
    assert!(number("r_gpu") > 0.1 && number("r_gpu") < 0.5, "{statistics}");
    assert!(number("r_gpu_cpu") > number("r_gpu"));
    assert!(number("host_bytes") > 0.0 && number("recalled_bytes_per_step") > 0.0);
    assert_eq!(statistics["kv_parameters"]["target_r_gpu"], "0.3000");
    let roles: Vec<&str> =
        statistics["roles"].as_array().unwrap().iter().map(|r| r["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["anchor", "tidal", "fixed"]);

    let folder = tempfile::tempdir().unwrap();
    let place = format!("file:{}", folder.path().display());
    for other in [&["--swap", "sync"][..], &["--host-tier", &place]] {
        let got = json(&[&wnw[..], other].concat());
        assert_eq!(got["tokens"], overlap["tokens"], "{other:?}");
        assert_eq!(got["statistics"], overlap["statistics"], "{other:?}");
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing stays in the host tier's directory"
    );

    let report = transcribe(&wnw);
    let report = String::from_utf8(report.stderr).unwrap();
    for line in ["KV method", "audio kept", "KV memory", "recalled", "process"] {
        assert!(report.contains(line), "{line} in {report}");
    }
}

#[test]
fn all_of_the_cache_is_the_full_cache() {
    let full = json(&[]);
    for flags in [&["--kv", "wnw", "--r-gpu", "1"][..], &["--kv", "wnw", "--kv-budget", "1GiB"]] {
        let all = json(flags);
        assert_eq!(all["tokens"], full["tokens"], "{flags:?}");
        assert_eq!(all["statistics"]["r_gpu"], 1.0);
    }
}

#[test]
fn a_budget_is_kept_or_refused_with_the_least_that_works() {
    let refused = error(&["--kv", "wnw", "--kv-budget", "100KiB"]);
    let least: u64 = refused.split("at least ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let budget = format!("{least}B");
    let got = json(&["--kv", "wnw", "--kv-budget", &budget]);
    assert!(got["statistics"]["kv_bytes"].as_u64().unwrap() <= least, "{}", got["statistics"]);
    let hardly = got["statistics"]["r_gpu"].as_f64().unwrap() < 0.1;
    let warned = |t: &Value| t["warnings"].as_array().unwrap().iter().any(|w| w["kind"] == "kv-budget");
    assert!(hardly && warned(&got), "{}", got["warnings"]);
    assert!(!warned(&json(&["--kv", "wnw", "--kv-budget", "1GiB"])));
    let less = format!("{}B", least - 1);
    assert!(error(&["--kv", "wnw", "--kv-budget", &less]).contains("--kv-budget"));
    assert!(error(&["--kv-budget", "100KiB"]).contains("full"));
}

#[test]
fn flags_that_make_no_sense_are_refused_by_name() {
    for (flags, says) in [
        (&["--r-gpu", "0.2"][..], "--kv wnw"),
        (&["--top-chunks", "2"], "--top-chunks needs --kv wnw"),
        (&["--swap", "sync"], "--swap needs --kv wnw"),
        (&["--release", "whole"], "--release needs --kv wnw"),
        (&["--kv", "wnw", "--r-gpu", "0"], "--r-gpu"),
        (&["--kv", "wnw", "--r-gpu", "nan"], "--r-gpu"),
        (&["--kv", "wnw", "--lambda", "1", "--kv-budget", "1MiB"], "--lambda"),
        (&["--kv", "wnw", "--lambda=-1"], "--lambda"),
        (&["--kv", "wnw", "--segment", "2", "--chunk", "3"], "whole number of segments"),
        (&["--kv", "wnw", "--segment", "0"], "segment"),
        (&["--kv", "wnw", "--top-chunks", "0"], "--top-chunks"),
        (&["--kv", "wnw", "--n-anchor", "0"], "anchor"),
        (&["--kv", "wnw", "--n-anchor", "33"], "anchor"),
        (&["--kv", "wnw", "--host-tier", "file:/nowhere"], "/nowhere"),
        (&["--kv", "wnw", "--kv-profile", "/nowhere.json"], "/nowhere.json"),
        (&["--kv", "wnw", "--kv-roles", "uniform", "--format", "srt"], "uniform"),
        (&["--timestamps", "word"], "--format json"),
    ] {
        let error = error(flags);
        assert!(error.contains(says), "{flags:?}: {error}");
        assert!(!error.contains("panicked"), "{flags:?}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("p.json");
    for (body, says) in [("", "not a profile"), ("{}", "not a profile"), ("[1]", "not a profile")] {
        std::fs::write(&profile, body).unwrap();
        let error = error(&["--kv", "wnw", "--kv-profile", &profile.display().to_string()]);
        assert!(error.contains(says) && error.contains("p.json"), "{body:?}: {error}");
    }
}

#[test]
fn words_have_times_in_order_within_the_recording() {
    for kv in [&[][..], &["--kv", "wnw", "--r-gpu", "0.4"]] {
        let got = json(&[kv, &["--timestamps", "word"]].concat());
        let words = got["words"].as_array().unwrap();
        assert!(words.len() > 20, "{}", words.len());
        let spoken: Vec<&str> = words.iter().map(|w| w["word"].as_str().unwrap()).collect();
        assert_eq!(spoken.join(" "), got["text"].as_str().unwrap());
        let mut last = 0.0;
        for word in words {
            let (start, end) = (word["start"].as_f64().unwrap(), word["end"].as_f64().unwrap());
            assert!(start >= last && end >= start && end <= SECONDS as f64, "{word}");
            assert!((0.0..=1.0).contains(&word["confidence"].as_f64().unwrap()));
            last = start;
        }
        // Nearly all of the recording is speech.
        assert!(last > 0.8 * SECONDS as f64, "{last}");
    }
}

#[test]
fn subtitles_are_what_players_read() {
    let srt = ok(&["--format", "srt", "-q"]);
    let cues: Vec<&str> = srt.trim_end().split("\n\n").collect();
    assert!(cues.len() > 3);
    let seconds = |time: &str, mark: char| -> f64 {
        let parts: Vec<f64> = time.replace(mark, ".").split(':').map(|p| p.parse().unwrap()).collect();
        parts.iter().fold(0.0, |sum, part| sum * 60.0 + part)
    };
    let mut last = 0.0;
    for (i, cue) in cues.iter().enumerate() {
        let mut lines = cue.lines();
        assert_eq!(lines.next(), Some(&*(i + 1).to_string()));
        let (from, to) = lines.next().unwrap().split_once(" --> ").unwrap();
        let (from, to) = (seconds(from, ','), seconds(to, ','));
        assert!(from >= last && to > from && to <= SECONDS as f64, "{cue}");
        assert!(lines.all(|l| !l.is_empty()));
        last = to;
    }
    let vtt = ok(&["--format", "vtt", "-q"]);
    assert!(vtt.starts_with("WEBVTT\n\n"));
    assert_eq!(vtt.matches(" --> ").count(), cues.len());
    assert!(vtt.lines().filter(|l| l.contains(" --> ")).all(|l| !l.contains(',')));
}

#[test]
fn methods_for_comparison_go_by_name_and_keep_their_budget() {
    for method in
        ["streaming-llm", "h2o", "snapkv", "pyramidkv", "tova", "adakv", "audiokv", "razor-attention"]
    {
        let got = json(&["--kv", method, "--r-gpu", "0.4"]);
        assert_eq!(got["statistics"]["kv_method"], method);
        let r_gpu = got["statistics"]["r_gpu"].as_f64().unwrap();
        assert!((r_gpu - 0.4).abs() < 2e-3, "{method}: {r_gpu}");
    }
    // Whole pages; what attention reads, what is on the device and what came back are told apart.
    for method in ["arkvale", "freekv", "quest"] {
        let got = json(&["--kv", method, "--r-gpu", "0.4"]);
        let statistics = &got["statistics"];
        let number = |name: &str| statistics[name].as_f64().unwrap();
        assert_eq!(statistics["kv_method"], method);
        assert_eq!(number("r_gpu_cpu"), 1.0);
        if method == "quest" {
            assert!(number("r_gpu") == 1.0 && number("r_read") < 1.0, "{statistics}");
            assert_eq!((number("host_bytes"), number("recalled_bytes_per_step")), (0.0, 0.0));
        } else {
            assert!((number("r_gpu") - 0.4).abs() < 0.04, "{method}: {statistics}");
            assert_eq!(number("r_read"), number("r_gpu"));
            assert!(number("host_bytes") > 0.0 && number("recalled_bytes_per_step") > 0.0);
            let other = json(&["--kv", method, "--r-gpu", "0.4", "--swap", "sync"]);
            assert_eq!(other["tokens"], got["tokens"], "{method}");
            assert_eq!(other["statistics"], got["statistics"], "{method}");
            let bytes = json(&["--kv", method, "--kv-budget", "2MB"]);
            assert!(bytes["statistics"]["kv_bytes"].as_u64().unwrap() <= 2_000_000, "{method}");
        }
    }
    assert!(error(&["--kv", "quest", "--kv-budget", "2MB"]).contains("at least"));
    assert!(error(&["--kv", "snapkv", "--swap", "sync"]).contains("--swap needs --kv wnw"));
    let bytes = json(&["--kv", "snapkv", "--kv-budget", "2MB", "--kv-option", "kernel=5"]);
    assert!(bytes["statistics"]["kv_bytes"].as_u64().unwrap() <= 2_000_000);
    assert_eq!(bytes["statistics"]["kv_parameters"]["kernel"], "5");
    // Found without the model.
    for (method, option, says) in [
        ("snapkv", "nope=1", "it has window"),
        ("snapkv", "window=x", "window cannot be x"),
        ("wnw-dense", "nope=1", "n_tidal"),
    ] {
        let flags = ["--model", "./nowhere", "--kv", method, "--kv-option", option];
        let output = transcribe(&flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(says) && said.contains(method), "{said}");
    }
    // A profile's scores are looked at when it is there.
    let output = transcribe(&["--kv", "audiokv", "--kv-option", "scores=colour"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(error(&["--kv", "snapkv", "--kv-option", "window"]).contains("NAME=VALUE"));
    assert!(error(&["--kv", "snapkv", "--top-chunks", "2"]).contains("--kv wnw"));
    assert!(error(&["--kv-option", "window=1"]).contains("--kv-option"));
}

#[test]
fn quantised_kv_takes_the_bytes_that_its_format_says_and_works_with_every_method() {
    let number = |got: &Value, name: &str| got["statistics"][name].as_f64().unwrap();
    let plain = json(&[]);
    // Of 32 elements: 64 bytes in bf16; 32 codes and a scale; 16 bytes of codes, a scale and a minimum.
    for (dtype, share) in [("int8", 36.0 / 64.0), ("int4", 20.0 / 64.0)] {
        let got = json(&["--kv-dtype", dtype]);
        assert_eq!(got["statistics"]["kv_dtype"], dtype);
        assert_eq!(number(&got, "kv_bytes"), number(&plain, "kv_bytes") * share, "{dtype}");
        let same = json(&["--kv", "wnw", "--r-gpu", "1", "--kv-dtype", dtype]);
        assert_eq!(same["tokens"], got["tokens"], "{dtype}: all of the cache is the full cache");
    }
    let wnw = ["--kv", "wnw", "--r-gpu", "0.3"];
    let int8 = ["--kv-dtype", "int8"];
    let (bf16, got) = (json(&wnw), json(&[&wnw[..], &int8].concat()));
    assert_eq!(number(&got, "host_bytes"), number(&bf16, "host_bytes") * 36.0 / 64.0);
    assert!(number(&got, "recalled_bytes_per_step") > 0.0);
    let folder = tempfile::tempdir().unwrap();
    let place = format!("file:{}", folder.path().display());
    let file = json(&[&wnw[..], &int8, &["--host-tier", &place, "--swap", "sync"]].concat());
    assert_eq!((&file["tokens"], &file["statistics"]), (&got["tokens"], &got["statistics"]));
}

/// Merged rows are counted in relation to the audio before any merge, and words still have their times.
#[test]
fn merged_audio_keeps_its_budget_and_its_times() {
    let full = json(&[]);
    let all = json(&["--kv", "affpool", "--r-gpu", "1"]);
    assert_eq!(all["tokens"], full["tokens"]);
    assert_eq!(all["statistics"]["r_gpu"], 1.0);
    let full_bytes = full["statistics"]["kv_bytes"].as_u64().unwrap();
    for r_gpu in ["0.8", "0.4"] {
        let got = json(&["--kv", "affpool", "--r-gpu", r_gpu, "--timestamps", "word"]);
        let statistics = &got["statistics"];
        let target: f64 = r_gpu.parse().unwrap();
        let kept = statistics["r_gpu"].as_f64().unwrap();
        assert!(kept <= target && kept > target - 0.02, "{statistics}");
        assert_eq!(statistics["r_gpu_cpu"], statistics["r_gpu"]);
        assert_eq!(statistics["r_read"], statistics["r_gpu"]);
        assert_eq!(statistics["audio_tokens"], full["statistics"]["audio_tokens"]);
        assert!(statistics["kv_bytes"].as_u64().unwrap() < full_bytes);
        let words = got["words"].as_array().unwrap();
        let starts: Vec<f64> = words.iter().map(|word| word["start"].as_f64().unwrap()).collect();
        assert!(starts.windows(2).all(|w| w[0] <= w[1]), "{starts:?}");
        assert!(starts.iter().all(|start| (0.0..=SECONDS as f64).contains(start)), "{starts:?}");
    }
    // One threshold for both places.
    let tau = json(&["--kv", "affpool", "--kv-option", "tau=0.9", "--kv-option", "position=mean"]);
    assert_eq!(tau["statistics"]["kv_parameters"]["tau"], "0.9");
    assert!(tau["statistics"]["r_gpu"].as_f64().unwrap() < 1.0, "{}", tau["statistics"]);
    let bytes = json(&["--kv", "affpool", "--kv-budget", "2MB"]);
    assert!(bytes["statistics"]["kv_bytes"].as_u64().unwrap() <= 2_000_000);
    assert!(error(&["--kv", "affpool", "--swap", "sync"]).contains("--swap needs --kv wnw"));
    assert!(error(&["--kv", "affpool", "--kv-option", "tau=2"]).contains("tau cannot be 2"));
}
