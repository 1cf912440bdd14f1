//! `wnw analyze` as a user meets it: charts and tables, wrong flags, wrong files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

fn wnw(arguments: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wnw"));
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn good(output: Output) -> Output {
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

/// The first 20 s of the shipped recording, as WAV.
fn recording() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let flac = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/prompts-en.flac");
        let options = wnw_audio::DecodeOptions::default();
        let audio = wnw_audio::AudioStream::open(wnw_audio::Source::Path(flac), &options).unwrap();
        let samples = audio.read_all().unwrap().samples;
        let data: Vec<u8> =
            samples[..20 * 16_000].iter().flat_map(|x| ((x * 32767.0) as i16).to_le_bytes()).collect();
        let mut out = b"RIFF".to_vec();
        out.extend((data.len() as u32 + 36).to_le_bytes());
        out.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
        out.extend(16_000u32.to_le_bytes());
        out.extend(32_000u32.to_le_bytes());
        out.extend(b"\x02\0\x10\0data");
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
        out
    })
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("talk.wav"), recording()).unwrap();
        Self(dir)
    }
    fn run(&self, arguments: &[&str]) -> Output {
        wnw(arguments, self.0.path())
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn svg(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path(name)).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        text
    }
    /// Width and height of a PNG that decodes whole, and how many different bytes it has.
    fn png(&self, name: &str) -> (u32, u32, usize) {
        let file = std::fs::File::open(self.path(name)).unwrap();
        let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        let mut seen = [false; 256];
        pixels.iter().for_each(|p| seen[*p as usize] = true);
        (reader.info().width, reader.info().height, seen.iter().filter(|s| **s).count())
    }
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// A profile with made-up scores, of no model that exists.
fn profile(model: &str, layers: usize, kv_heads: usize) -> Value {
    let heads = layers * kv_heads;
    let score = |i: usize| ((i * 7) % heads) as f64 / heads as f64;
    json!({
        "version": 1,
        "fingerprint": "made up",
        "model": model,
        "shape": {"n_layers": layers, "n_q_heads": 2 * kv_heads, "n_kv_heads": kv_heads, "head_dim": 64},
        "tokens_per_second": 12.5,
        "calibration": {"source": "a.flac … z.flac", "label_free": false, "recordings": 50, "seconds": 321.0,
            "tokens": 999, "top_positions": 4, "min_confidence": 0.85},
        "voice_score": (0..heads).map(score).collect::<Vec<_>>(),
        "head_sensitivity": (0..heads).map(|i| 1e-4 * score(i + 1)).collect::<Vec<_>>(),
        "n_anchor": 3,
        "lambda": [],
    })
}

#[test]
fn every_analysis_has_help_with_an_example() {
    for command in ["tide", "mismatch", "mass", "heads", "sweep", "calibration", "runtime"] {
        let output = good(wnw(&["analyze", command, "--help"], Path::new(".")));
        assert!(stdout(&output).contains("Example"), "{command}");
        assert!(stdout(&output).contains(&format!("wnw analyze {command}")), "{command}");
    }
}

#[test]
fn the_tide_of_a_recording() {
    let folder = Folder::new();
    let flags = [
        "analyze",
        "tide",
        "--language",
        "en",
        "--kv",
        "wnw",
        "--kv-roles",
        "uniform",
        "--r-gpu",
        "0.3",
        "talk.wav",
    ];
    let output = good(folder.run(&flags));
    assert!(stderr(&output).contains("talk.tide.svg, talk.tide.png"), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    let svg = folder.svg("talk.tide.svg");
    for part in [
        "tiny: talk.wav, window 0, 0:00 to 0:20",
        "wnw (bf16): r_GPU 0.",
        "anchor",
        "recalled a step",
        "on the device",
        "full cache",
        "KiB",
        "selected chunks",
        "segment whole",
        "KV head ",
        "decode step",
        "s of audio",
        "(s)",
    ] {
        assert!(svg.contains(part), "{part}");
    }
    let (width, height, colours) = folder.png("talk.tide.png");
    assert_eq!((width, height), (1400, 1000));
    assert!(colours > 20, "{colours}");
    // The same run draws the same bytes; one head can be asked for.
    good(folder.run(&[&flags[..], &["-o", "again.svg", "-o", "again.png", "--quiet"]].concat()));
    assert_eq!(svg, folder.svg("again.svg"));
    assert_eq!(
        std::fs::read(folder.path("talk.tide.png")).unwrap(),
        std::fs::read(folder.path("again.png")).unwrap()
    );
    good(folder.run(&[&flags[..], &["-o", "head.svg", "--head", "7.3", "--max-new-tokens", "5"]].concat()));
    assert!(folder.svg("head.svg").contains("What KV head 7.3 had on the device"));
}

#[test]
fn the_tide_of_a_full_cache_leaves_out_what_does_not_exist() {
    let folder = Folder::new();
    let flags =
        ["analyze", "tide", "--watch", "2.0", "--watch", "4.1", "--window", "10", "--window-index", "1"];
    good(folder.run(&[&flags[..], &["--max-new-tokens", "12", "-o", "full.svg", "talk.wav"]].concat()));
    let svg = folder.svg("full.svg");
    assert!(svg.contains("window 1, 0:") && svg.contains("full cache (bf16): r_GPU 1.000"));
    assert!(svg.contains("watched heads 2.0 4.1"));
    for absent in ["selected chunks", "segment whole", "recalled"] {
        assert!(!svg.contains(absent), "{absent}");
    }
    let output = folder.run(&[&flags[..4], &["--window-index", "3", "talk.wav"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no window 3"), "{}", stderr(&output));
}

#[test]
fn the_mismatch_as_table_json_and_chart() {
    let folder = Folder::new();
    let flags = ["analyze", "mismatch", "--language", "en", "talk.wav"];
    let output = good(folder.run(&[&flags[..], &["-o", "m.svg", "-o", "m.png"]].concat()));
    let text = stdout(&output);
    for part in [
        "1 recording, 375 audio positions",
        "first 10 % of positions",
        "Jaccard",
        "K/(2T−K)",
        "heads under 0.1",
        "--top 10%",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let svg = folder.svg("m.svg");
    for part in [
        "prefill against decode attention",
        "first answer token",
        "uniform",
        "Jaccard, K = 100",
        "of 32 heads",
    ] {
        assert!(svg.contains(part), "{part}");
    }
    assert_eq!((folder.png("m.png").0, folder.png("m.png").1), (1400, 560));

    let output =
        good(folder.run(&[&flags[..], &["--json", "--top", "50,10%", "talk.wav", "--quiet"]].concat()));
    let got: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(got["kv_method"], "full");
    assert_eq!(got["recordings"].as_array().unwrap().len(), 2);
    let mean = &got["mean"];
    assert_eq!(mean["audio_positions"], 750);
    for side in ["prefill", "decode"] {
        let mass = &mean[side];
        let sum = mass["first_half"].as_f64().unwrap() + mass["second_half"].as_f64().unwrap();
        assert!((sum - 1.0).abs() < 1e-9);
        let grid: f64 = mass["grid"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).sum();
        assert!((grid - 1.0).abs() < 1e-9);
        assert!((0.0..=1.0).contains(&mass["audio_share"].as_f64().unwrap()));
    }
    let overlap = &mean["overlap"];
    assert_eq!((overlap[0]["top"].as_str(), overlap[0]["k"].as_f64()), (Some("50"), Some(50.0)));
    assert_eq!((overlap[1]["top"].as_str(), overlap[1]["k"].as_f64()), (Some("10%"), Some(38.0)));
    assert_eq!(overlap[0]["heads"].as_array().unwrap().len(), 32);
    assert!((overlap[0]["random"].as_f64().unwrap() - 50.0 / 700.0).abs() < 1e-9);
    // Twice the same recording has the figures of one.
    assert_eq!(got["recordings"][0]["decode"], got["recordings"][1]["decode"]);
    let same = mean["decode"]["first_half"].as_f64().unwrap()
        - got["recordings"][0]["decode"]["first_half"].as_f64().unwrap();
    assert!(same.abs() < 1e-12);
}

#[test]
fn the_head_map_of_a_profile() {
    let folder = Folder::new();
    let text = profile("some <model>", 30, 8).to_string();
    std::fs::write(folder.path("p.json"), text).unwrap();
    good(folder.run(&["analyze", "heads", "p.json"]));
    let svg = folder.svg("p.svg");
    for part in [
        "some &lt;model&gt;: heads that follow the audio",
        "a.flac … z.flac (50 recordings, 321 s, 999 answer tokens); roles at r_GPU 0.2",
        "Voice score",
        "anchor (3)",
        "tidal (87)",
        "fixed (150)",
        "KV heads of a layer",
    ] {
        assert!(svg.contains(part), "{part}");
    }
    assert!(folder.png("p.png").0 > 800);
    good(folder.run(&["analyze", "heads", "p.json", "--r-gpu", "0.4", "-o", "deep/map.svg"]));
    assert!(folder.svg("deep/map.svg").contains("roles at r_GPU 0.4"));
    for (name, change, says) in [
        ("short.json", json!({"voice_score": [1.0]}), "1 values of voice_score"),
        ("old.json", json!({"version": 9}), "format 9"),
        (
            "huge.json",
            json!({"shape": {"n_layers": u64::MAX, "n_q_heads": 2, "n_kv_heads": 3, "head_dim": 1}}),
            "absurd",
        ),
        (
            "none.json",
            json!({"shape": {"n_layers": 0, "n_q_heads": 0, "n_kv_heads": 0, "head_dim": 1}}),
            "damaged",
        ),
    ] {
        let mut bad = profile("x", 30, 8);
        for (key, value) in change.as_object().unwrap() {
            bad[key] = value.clone();
        }
        std::fs::write(folder.path(name), bad.to_string()).unwrap();
        let output = folder.run(&["analyze", "heads", name, "-o", "bad.svg"]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stderr(&output));
        assert!(stderr(&output).contains(name) && stderr(&output).contains(says), "{}", stderr(&output));
    }
    std::fs::write(folder.path("empty.json"), "{}").unwrap();
    for missing in ["gone.json", "empty.json", "talk.wav"] {
        let output = folder.run(&["analyze", "heads", missing, "-o", "bad.svg"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(missing), "{}", stderr(&output));
    }
    assert!(!folder.path("bad.svg").exists());
}

#[test]
fn two_calibrations_side_by_side() {
    let folder = Folder::new();
    let first = profile("a model", 4, 8);
    let mut second = first.clone();
    // Voice scores the other way round: the best heads are others.
    second["voice_score"].as_array_mut().unwrap().reverse();
    second["calibration"]["source"] = json!("other.flac");
    let mut foreign = first.clone();
    foreign["fingerprint"] = json!("another");
    for (name, profile) in [("a.json", &first), ("b.json", &second), ("c.json", &foreign)] {
        std::fs::write(folder.path(name), profile.to_string()).unwrap();
    }
    let same = good(folder.run(&["analyze", "calibration", "a.json", "a.json", "--json"]));
    let same: Value = serde_json::from_str(stdout(&same)).unwrap();
    assert_eq!((same["anchor"]["both"].as_u64(), same["anchor"]["jaccard"].as_f64()), (Some(3), Some(1.0)));
    assert!((same["importance"]["spearman"].as_f64().unwrap() - 1.0).abs() < 1e-12);
    let output =
        good(folder.run(&["analyze", "calibration", "a.json", "b.json", "--json", "-o", "both.svg"]));
    let pair: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert!(pair["voice_score"]["pearson"].as_f64().unwrap() < 0.9, "{pair}");
    assert!((pair["head_sensitivity"]["pearson"].as_f64().unwrap() - 1.0).abs() < 1e-12);
    assert!(folder.svg("both.svg").contains("other.flac"));
    let table = good(folder.run(&["analyze", "calibration", "a.json", "b.json", "--r-gpu", "0.4"]));
    assert!(stdout(&table).contains("roles at r_GPU 0.4") && stdout(&table).contains("| anchor "));
    let output = folder.run(&["analyze", "calibration", "a.json", "c.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("different models"), "{}", stderr(&output));
}

#[test]
fn a_steps_time_and_traffic_by_tidal_heads() {
    let folder = Folder::new();
    let flags = ["analyze", "runtime", "--language", "en", "talk.wav", "--repeat", "1", "--tidal", "1,28"];
    let output = good(folder.run(&[&flags[..], &["--json", "-o", "time.svg"]].concat()));
    let rows: Value = serde_json::from_str(stdout(&output)).unwrap();
    let number = |row: usize, name: &str| rows[row][name].as_f64().unwrap();
    assert!(rows[0]["tidal"].is_null() && number(0, "mb_per_step") == 0.0 && number(0, "r_gpu") == 1.0);
    assert_eq!((rows[1]["tidal"].as_u64(), rows[2]["tidal"].as_u64()), (Some(1), Some(28)));
    assert!(number(2, "mb_per_step") > number(1, "mb_per_step"), "{rows}");
    assert!(folder.svg("time.svg").contains("waiting for recalled rows"));
}

#[test]
fn the_attention_that_methods_keep() {
    let folder = Folder::new();
    let flags = ["analyze", "mass", "--language", "en", "talk.wav", "--ratios", "0.8,0.2"];
    let methods = ["--methods", "full,wnw,snapkv,streaming-llm"];
    let output = good(folder.run(&[&flags[..], &methods, &["--json"]].concat()));
    let rows: Value = serde_json::from_str(stdout(&output)).unwrap();
    let rows = rows.as_array().unwrap();
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    assert_eq!(rows.len(), 1 + 3 * 2);
    assert_eq!((number(&rows[0], "rows"), number(&rows[0], "decode")), (1.0, 1.0));
    for row in &rows[1..] {
        assert!((number(row, "rows") - number(row, "target")).abs() < 0.1, "{row}");
        assert!(number(row, "decode") <= number(row, "reachable") + 1e-12, "{row}");
    }
    // Chosen by attention, the same number of rows holds more of it than rows chosen by place.
    let of = |method: &str| rows.iter().rfind(|r| r["method"] == method).unwrap();
    assert!(number(of("snapkv"), "prefill") > number(of("streaming-llm"), "prefill"));
    assert!(number(of("wnw"), "reachable") > number(of("wnw"), "decode"));
    let output = folder.run(&[&flags[..], &["--methods", "nosuch"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let output = folder.run(&[&flags[..], &["--methods", "snapkv,affpool"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("affpool"), "{}", stderr(&output));
}

#[test]
fn one_option_at_several_values() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("set")).unwrap();
    std::fs::rename(folder.path("talk.wav"), folder.path("set/talk.wav")).unwrap();
    std::fs::write(folder.path("set/talk.txt"), "whatever is said").unwrap();
    let flags = ["analyze", "sweep", "--dataset", "dir:set", "--ratios", "0.3", "--out", "run"];
    let over = ["--over", "top_chunks=1,3", "--over", "signal=product,voice"];
    let output = good(folder.run(&[&flags[..], &over].concat()));
    for method in ["full", "wnw:top_chunks=1", "wnw:top_chunks=3", "wnw:signal=product", "wnw:signal=voice"] {
        assert!(stdout(&output).contains(&format!("| {method} |")), "{method}: {}", stdout(&output));
    }
    assert!(folder.svg("run/sweep-top_chunks-set.svg").contains("top_chunks"));
    // Names are no numbers: a table says it all.
    assert!(!folder.path("run/sweep-signal-set.svg").exists());
    let output = folder.run(&[&flags[..], &["--over", "colour=1"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("colour"), "{}", stderr(&output));
}

#[test]
fn wrong_usage_is_told_before_any_work_and_leaves_nothing() {
    let folder = Folder::new();
    std::fs::write(folder.path("text.wav"), b"no recording").unwrap();
    std::fs::write(folder.path("other.json"), profile("tiny", 30, 8).to_string()).unwrap();
    for (code, arguments, says) in [
        (2, &["tide", "talk.wav", "-o", "tide.pdf"][..], ".svg or .png"),
        (2, &["tide", "talk.wav", "--head", "x"], "LAYER.HEAD"),
        (2, &["tide", "talk.wav", "--kv", "wnw", "--kv-roles", "uniform", "--head", "99.0"], "--head 99.0"),
        (2, &["tide", "talk.wav", "--watch", "0.9"], "--watch 0.9"),
        (
            2,
            &["tide", "talk.wav", "--watch", "0.1", "--kv", "wnw", "--kv-roles", "uniform"],
            "--watch is for methods other than wnw",
        ),
        (2, &["tide", "talk.wav", "--r-gpu", "0.2"], "--kv wnw"),
        (2, &["tide", "talk.wav", "--kv-profile", "other.json"], "other.json"),
        (2, &["tide", "talk.wav", "--language", "english"], "--language"),
        (2, &["tide", "talk.wav", "--max-new-tokens", "0"], "--max-new-tokens"),
        (2, &["tide", "talk.wav", "--window", "1ms"], "--window"),
        (2, &["tide"], "FILE"),
        (1, &["tide", "gone.wav", "--watch", "0.0"], "gone.wav"),
        (1, &["tide", "text.wav", "--watch", "0.0"], "text.wav"),
        (2, &["mismatch", "talk.wav", "-o", "x"], "--output x"),
        (2, &["mismatch", "talk.wav", "--top", "0"], "--top"),
        (2, &["mismatch", "talk.wav", "--top", "200%"], "10%"),
        (2, &["mismatch", "talk.wav", "--model", "./nowhere"], "./nowhere"),
        (1, &["mismatch", "gone.wav"], "gone.wav"),
        (2, &["heads", "other.json", "-o", "map.jpg"], ".svg or .png"),
        (2, &["heads", "other.json", "--r-gpu", "0"], "--r-gpu"),
        (2, &["calibration", "other.json", "gone.json"], "gone.json"),
        (2, &["runtime", "talk.wav", "--tidal", "29"], "--tidal 29"),
        (2, &["runtime", "talk.wav", "--repeat", "0"], "--repeat"),
        (2, &["sweep", "--dataset", "dir:gone", "--over", "n_voice=4", "--out", "run"], "gone"),
    ] {
        let output = folder.run(&[&["analyze"], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked") && output.stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(folder.names(), ["other.json", "talk.wav", "text.wav"]);
}

#[test]
fn silence_has_nothing_to_analyze() {
    let folder = Folder::new();
    let mut silent = recording()[..44 + 64_000].to_vec();
    silent[44..].fill(0);
    silent[4..8].copy_from_slice(&64_036u32.to_le_bytes());
    silent[40..44].copy_from_slice(&64_000u32.to_le_bytes());
    std::fs::write(folder.path("silent.wav"), silent).unwrap();
    for (arguments, says) in [
        (&["tide", "silent.wav", "--watch", "0.0"][..], "nothing to draw"),
        (&["mismatch", "silent.wav"], "nothing to measure"),
    ] {
        let output = folder.run(&[&["analyze"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}
