//! `wnw bench` on a tiny shape: what it prints, and what it refuses. Times mean nothing here; counts and bytes do.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wnw"));
    command.arg("bench").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&run(&[arguments, &["--json"]].concat()))).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn sample() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/prompts-en.flac").display().to_string()
}

#[test]
fn every_part_has_help_with_an_example() {
    for command in ["limit", "decode", "growth", "prefill", "encoder", "mel", "decode-audio", "first-token"] {
        assert!(text(&run(&[command, "--help"])).contains("Example"), "{command}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2_and_names_the_flag() {
    for (arguments, says) in [
        (&["decode", "--shape", "gpt"][..], "--shape"),
        (&["decode"], "--shape"),
        (&["decode", "--shape", "tiny", "--audio", "0s"], "--audio"),
        (&["decode", "--shape", "tiny", "--kv", "h2o"], "--kv"),
        (&["decode", "--shape", "tiny", "--kv", "full", "--r-gpu", "0.2"], "--kv wnw"),
        (&["decode", "--shape", "tiny", "--kv", "full", "--recall-cost"], "--kv wnw"),
        (&["decode", "--shape", "tiny", "--r-gpu", "1.5"], "--r-gpu"),
        (&["decode", "--shape", "tiny", "--batch", "0"], "--batch"),
        (&["decode", "--shape", "tiny", "--steps", "0"], "--steps"),
        (&["decode", "--shape", "tiny", "--sweep", "up"], "speech, worst or still"),
        (&["decode", "--shape", "tiny", "--swap", "never"], "overlap or sync"),
        (&["decode", "--shape", "tiny", "--dtype", "q3"], "q8_0"),
        (&["decode", "--shape", "tiny", "--layers", "9"], "--layers"),
        (&["growth", "--shape", "tiny", "--audio", "1m", "--early", "2m"], "--early"),
        (&["prefill", "--shape", "tiny", "--layers", "0"], "--layers"),
        (&["encoder", "--shape", "qwen2.5-omni-3b"], "--shape"),
        (&["encoder", "--shape", "tiny", "--layers", "5"], "--layers"),
        (&["mel", "--audio", "long"], "--audio"),
        (&["decode-audio"], "FILE"),
        (&["limit", "--seconds", "1e9"], "--seconds"),
        (&["limit", "--size", "3"], "--size"),
        (&[], "Usage"),
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_bytes_needed() {
    for arguments in [
        &["decode", "--shape", "tiny", "--memory", "2MiB"][..],
        &["prefill", "--shape", "tiny", "--memory", "2MiB"],
        &["growth", "--shape", "tiny", "--memory", "2MiB"],
        // 24 G weights in bf16 are 47 GB.
        &["decode", "--shape", "voxtral-small-24b", "--dtype", "bf16", "--memory", "40GiB"],
        &["decode", "--shape", "voxtral-mini-3b", "--audio", "30m", "--batch", "8", "--memory", "16GiB"],
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("bytes)") && said.contains("of memory"), "{arguments:?}: {said}");
    }
}

#[test]
fn limits_have_a_line_for_every_number_of_threads() {
    let limit = json(&["limit", "--size", "4MiB", "--seconds", "0.01", "--threads", "2"]);
    let read = limit["limit"]["read"].as_array().unwrap();
    assert_eq!(read.len(), 2);
    assert!(read.iter().all(|r| number(&r["gb_per_s"]) >= number(&r["median_gb_per_s"])));
    assert_eq!(limit["limit"]["peak"].as_array().unwrap().len(), 6);
    assert_eq!(limit["machine"]["threads"], 2);
    let table = text(&run(&["limit", "--size", "4MiB", "--seconds", "0.01", "--threads", "1"]));
    assert!(table.contains("| 1 ") && table.contains("int8"), "{table}");
}

#[test]
fn decode_tells_time_and_bytes_by_part() {
    let arguments =
        ["decode", "--shape", "tiny", "--audio", "30s,1m", "--batch", "1,2", "--steps", "7", "-q"];
    let out = json(&[&arguments[..], &["--r-gpu", "0.2,0.4", "--recall-cost", "--threads", "2"]].concat());
    let rows = out["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * 2, "lengths, methods, batches");
    assert!(number(&out["machine"]["read"]["gb_per_s"]) > 0.0);
    assert!(number(&out["peak_memory_bytes"]) > number(&out["weights_bytes"]));
    for row in rows {
        for name in ["ms_median", "ms_p99", "tokens_per_s", "gb_per_s", "share", "weights_share", "kv_share"]
        {
            assert!(number(&row[name]) > 0.0, "{name}: {row}");
        }
        assert!(number(&row["ms_p99"]) >= number(&row["ms_median"]));
        assert_eq!(row["steps"], 7);
        let target = number(&row["r_gpu_target"]);
        let full = row["kv"] == "full";
        assert_eq!(target == 1.0, full);
        // Short audio is recalled in large part.
        let r_gpu = number(&row["r_gpu"]);
        assert!(if full { r_gpu == 1.0 } else { (target - 0.1..target + 0.2).contains(&r_gpu) }, "{row}");
        assert!(number(&row["bytes"]["weights"]) > 3e6);
    }
    // Keys and values of 375 audio rows, 8 of text, and the steps': 4 KiB each.
    let kv = number(&rows[0]["bytes"]["kv"]);
    assert!((383.0 * 4096.0..415.0 * 4096.0).contains(&kv), "{kv}");
    let table =
        text(&run(&[&arguments[..], &["--sweep", "worst", "--swap", "sync", "--kv", "wnw"]].concat()));
    assert!(table.contains("wnw 0.2 worst sync") && table.contains("weights share"), "{table}");
    let file = tempfile::tempdir().unwrap();
    let place = format!("file:{}", file.path().display());
    let on_file = json(&["decode", "--shape", "tiny", "--kv", "wnw", "--host-tier", &place, "--steps", "3"]);
    assert!(number(&on_file["rows"][0]["host_bytes"]) > 0.0);
}

#[test]
fn growth_tells_what_text_adds_apart() {
    let out = json(&["growth", "--shape", "tiny", "--audio", "4m", "--steps", "5", "-q"]);
    let growth = &out["growth"];
    assert_eq!(growth["early"]["text"], 210);
    assert_eq!(growth["late"]["text"], 787);
    assert_eq!(growth["late"]["at_seconds"], 225.0);
    let sum = |name: &str| number(&growth[name]["ms_median"]);
    let more = (sum("late") - sum("early_with_late_text")) / sum("early");
    assert!((number(&growth["growth_beyond_text"]) - more).abs() < 1e-9);
    assert!(text(&run(&["growth", "--shape", "tiny", "--audio", "2m", "--steps", "3"])).contains("text"));
}

#[test]
fn stages_tell_real_time_and_the_share_of_the_peak() {
    let prefill = json(&["prefill", "--shape", "tiny", "--audio", "10s,20s", "--layers", "2", "-q"]);
    assert_eq!(prefill["rows"].as_array().unwrap().len(), 2);
    let encoder = json(&["encoder", "--shape", "tiny", "--layers", "1", "-q"]);
    for row in [&prefill["rows"][0], &prefill["rows"][1], &encoder["rows"][0]] {
        assert!(number(&row["gflops"]) > 0.0 && number(&row["share_of_f32_peak"]) > 0.0, "{row}");
        assert!((number(&row["times_real_time"]) * number(&row["real_time_factor"]) - 1.0).abs() < 1e-6);
    }
    assert_eq!((&prefill["layers"], &encoder["rows"][0]["layers"]), (&2.into(), &1.into()));
    let mel = json(&["mel", "--audio", "5s"]);
    assert!(number(&mel["rows"][0]["times_real_time"]) > 1.0);
    assert!(mel["rows"][0]["gflops"].is_null());
    let audio = json(&["decode-audio", &sample()]);
    let rows = audio["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| number(&row["audio_seconds"]) > 100.0));
    let missing = run(&["decode-audio", "/no/such/file.wav"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/file.wav"));
}

#[test]
fn the_first_token_comes_after_loading() {
    let out = json(&["first-token", &sample(), "-q"]);
    assert!(number(&out["first_token_seconds"]) > number(&out["load_seconds"]));
    assert_eq!(out["model"], "tiny");
}
