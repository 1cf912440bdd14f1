//! The program as a user meets it: flags, files, exit codes, messages.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

fn wnw(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wnw"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    wnw(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// 16-bit mono WAV at 16 kHz; sizes in the header are `declared` when given, as pipes write them.
fn wav(samples: &[i16], declared: Option<u32>) -> Vec<u8> {
    let data = declared.unwrap_or(samples.len() as u32 * 2);
    let mut out = Vec::new();
    out.extend(b"RIFF");
    out.extend(declared.unwrap_or(data + 36).to_le_bytes());
    out.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    out.extend(16_000u32.to_le_bytes());
    out.extend(32_000u32.to_le_bytes());
    out.extend(b"\x02\0\x10\0data");
    out.extend(data.to_le_bytes());
    out.extend(samples.iter().flat_map(|s| s.to_le_bytes()));
    out
}

fn tone(seconds: f64) -> Vec<i16> {
    (0..(seconds * 16_000.0) as usize).map(|i| ((i as f64 * 0.17).sin() * 9000.0) as i16).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
    fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
    fn names(&self, below: &str) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.path(below))
            .map(|d| d.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
            .unwrap_or_default();
        names.sort();
        names
    }
}

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in
        [&["transcribe"][..], &["bench", "decode"], &["model", "info"], &["plan"], &["completions"]]
    {
        let output = run(&[command, &["--help"]].concat());
        assert!(output.status.success());
        assert!(stdout(&output).contains("Example"), "{command:?}");
    }
    let completions = run(&["completions", "bash"]);
    assert!(stdout(&completions).contains("transcribe"));
}

#[test]
fn wrong_usage_is_exit_code_2_and_names_the_flag() {
    let folder = Folder::new();
    let file = folder.write("a.wav", &wav(&tone(0.1), None));
    for (flags, says) in [
        (&["--task", "chat"][..], "--prompt"),
        (&["--prompt", "hello"], "--task chat"),
        (&["--task", "translate", "--language", "en"], "--language"),
        (&["--task", "translate", "--to", "tlh"], "--to"),
        (&["--language", "english"], "--language"),
        (&["--to", "fr"], "--task translate"),
        (&["--window", "1ms"], "--window"),
        (&["--max-new-tokens", "0"], "--max-new-tokens"),
        (&["--dtype", "q3"], "q8_0"),
        (&["--kv", "magic"], "full"),
        (&["--kv-dtype", "int2"], "int4"),
        (&["--window=-1"], "--window"),
        (&["--top-p", "0"], "--top-p"),
        (&["--temperature", "hot"], "--temperature"),
        (&["--tokens-per-second", "nan"], "--tokens-per-second"),
        (&["--pcm", "s17le:16000:1"], "--pcm"),
        (&["--skip-existing"], "--output-dir"),
        (&["--timings"], "--format json"),
        (&["--top-p", "0.9"], "--temperature"),
        (&["--temperature", "0", "--seed", "0"], "--temperature"),
        (&["--threads", "0"], "--threads"),
        (&["--batch", "0"], "--batch"),
        (&["--format", "xml"], "--format"),
        (&["--model", "./no/such/directory"], "./no/such/directory"),
    ] {
        let output = run(&[&["transcribe", &file], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{flags:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
    assert_eq!(run(&["transcribe"]).status.code(), Some(2));
    assert_eq!(run(&["transcribe", folder.0.path().to_str().unwrap()]).status.code(), Some(2));
}

#[test]
fn one_bad_recording_does_not_stop_the_others() {
    let folder = Folder::new();
    let good = folder.write("good.wav", &wav(&tone(1.0), None));
    let also = folder.write("also.wav", &wav(&tone(0.5), None));
    let empty = folder.write("empty.wav", b"");
    let text = folder.write("text.mp3", b"this is no recording, whatever its name says");
    let header = folder.write("header.wav", &wav(&[], None));
    let gone = folder.path("gone.wav");
    let out = folder.path("out");
    let files = [&good, &empty, &text, &header, &gone, &also].map(String::as_str);
    let output = run(&[&["transcribe", "--output-dir", &out, "--max-new-tokens", "5"], &files[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        folder.names("out"),
        ["also.txt", "good.txt"],
        "whole results of the good ones and nothing else"
    );
    let says = stderr(&output);
    for bad in [&empty, &text, &header, &gone] {
        assert!(says.contains(&format!("wnw: error: {bad}: ")), "{says}");
        assert!(says.contains(&format!("  failed: {bad}\n")), "{says}");
    }
    assert!(says.contains("2 transcribed, 0 skipped, 4 failed"), "{says}");
    assert!(!says.contains("panicked"), "{says}");

    let output = run(&[&["transcribe", "--format", "json", "--max-new-tokens", "5"], &files[..]].concat());
    let all: Value = serde_json::from_str(stdout(&output)).unwrap();
    let errors = all.as_array().unwrap().iter().filter(|o| o["error"].is_string()).count();
    assert_eq!((all.as_array().unwrap().len(), errors), (6, 4));
}

#[test]
fn finished_recordings_are_skipped_on_request() {
    let folder = Folder::new();
    let a = folder.write("a.wav", &wav(&tone(0.3), None));
    let b = folder.write("b.wav", &wav(&tone(0.3), None));
    let out = folder.path("out");
    assert!(run(&["transcribe", "--output-dir", &out, "--max-new-tokens", "3", &a]).status.success());
    std::fs::write(folder.path("out/a.txt"), "kept").unwrap();
    let again =
        run(&["transcribe", "--output-dir", &out, "--max-new-tokens", "3", "--skip-existing", &a, &b]);
    assert!(stderr(&again).contains("1 transcribed, 1 skipped, 0 failed"), "{}", stderr(&again));
    assert_eq!(std::fs::read_to_string(folder.path("out/a.txt")).unwrap(), "kept");
    assert_eq!(folder.names("out"), ["a.txt", "b.txt"]);
}

#[test]
fn a_result_is_named_by_its_recording_alone() {
    let folder = Folder::new();
    for dir in ["talks", "talks/x", "talks/y"] {
        std::fs::create_dir(folder.path(dir)).unwrap();
    }
    let a = folder.write("talks/x/a.wav", &wav(&tone(0.2), None));
    let out = folder.path("out");
    let with = |more: &[&str]| {
        run(&[&["transcribe", "--output-dir", &out, "--max-new-tokens", "2", "--skip-existing"], more]
            .concat())
    };
    let talks = folder.path("talks");
    assert!(with(&["--recursive", &talks]).status.success());
    // Another recording of the same name changes nothing.
    let other = folder.write("talks/y/a.wav", &wav(&tone(0.2), None));
    let again = with(&["--recursive", &talks]);
    assert!(stderr(&again).contains("1 transcribed, 1 skipped, 0 failed"), "{}", stderr(&again));
    let pattern = with(&[&format!("{talks}/*/a.*")]);
    assert!(stderr(&pattern).contains("0 transcribed, 2 skipped, 0 failed"), "{}", stderr(&pattern));
    let names = |dir: &str| folder.names(&format!("out/{dir}"));
    assert_eq!(
        (names(""), names("x"), names("y")),
        (vec!["x".into(), "y".into()], vec!["a.txt".into()], vec!["a.txt".into()])
    );

    let clash = with(&[&a, &other]);
    assert_eq!(clash.status.code(), Some(2));
    let says = stderr(&clash);
    assert!(says.contains(&a) && says.contains(&other) && says.contains("rename"), "{says}");
    assert!(!says.contains("real time"), "found before the work: {says}");
    let unnamed = run(&["transcribe", "--max-new-tokens", "2", &a, &other]);
    assert!(unnamed.status.success(), "on standard output names do not matter");
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_named_is_told_before_the_work() {
    let folder = Folder::new();
    let good = folder.write("good.wav", &wav(&tone(0.2), None));
    let long = folder.write(&format!("{}.w", "n".repeat(253)), &wav(&tone(0.2), None));
    let out = folder.path("out");
    let output = run(&["transcribe", "--output-dir", &out, "--max-new-tokens", "2", &long, &good]);
    assert_eq!(output.status.code(), Some(1));
    let says = stderr(&output);
    assert!(
        says.contains("255 bytes at most") && says.contains("1 transcribed, 0 skipped, 1 failed"),
        "{says}"
    );
    assert!(!says.contains(&format!("{long}: 0:00 in")), "{says}");
    assert_eq!(folder.names("out"), ["good.txt"]);
}

#[test]
fn text_of_several_recordings_has_a_header_where_there_is_text() {
    let folder = Folder::new();
    let bad = folder.write("bad.wav", b"no audio");
    let good = folder.write("good.wav", &wav(&tone(1.0), None));
    let silent = folder.write("silent.wav", &wav(&[0; 16_000], None));
    let alone = run(&["transcribe", "--quiet", "--max-new-tokens", "4", &good]);
    let output = run(&["transcribe", "--quiet", "--max-new-tokens", "4", &bad, &good, &bad, &silent, &bad]);
    assert_eq!(output.status.code(), Some(1));
    let want = format!("==> {good} <==\n{}\n==> {silent} <==\n\n", stdout(&alone));
    assert_eq!(stdout(&output), want);
    assert_eq!(stderr(&output).matches(&format!("wnw: error: {bad}: ")).count(), 3);
}

#[test]
fn json_has_the_fields_of_the_schema_and_is_the_same_each_time() {
    let folder = Folder::new();
    let file = folder.write("a.wav", &wav(&tone(2.0), None));
    let arguments =
        ["transcribe", "--format", "json", "--quiet", "--language", "en", "--max-new-tokens", "6", &file];
    let first = run(&arguments);
    assert_eq!(first.stdout, run(&arguments).stdout);
    let json: Value = serde_json::from_str(stdout(&first)).unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/transcript.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let schema = &schema["$defs"]["transcript"];
    for field in schema["required"].as_array().unwrap() {
        assert!(json.get(field.as_str().unwrap()).is_some(), "{field} is missing");
    }
    for field in json.as_object().unwrap().keys() {
        assert!(schema["properties"].get(field).is_some(), "{field} is not in the schema");
    }
    for field in json["statistics"].as_object().unwrap().keys() {
        assert!(
            schema["properties"]["statistics"]["properties"].get(field).is_some(),
            "{field} is not in the schema"
        );
    }
    assert_eq!((json["language"].as_str(), json["duration"].as_f64()), (Some("en"), Some(2.0)));
    assert_eq!(json["statistics"]["audio_tokens"], 375);
    let timed = run(&[&arguments[..], &["--timings"]].concat());
    assert!(
        serde_json::from_slice::<Value>(&timed.stdout).unwrap()["timing"]["total"].as_f64().unwrap() > 0.0
    );
}

#[test]
fn a_lost_place_is_begun_again_unless_told_not_to() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples/prompts-en.flac");
    // A cap at which the model is far from the end of its text.
    let arguments = |more: &[&'static str]| {
        let mut command = wnw(&["transcribe", "--language", "en", "--format", "json"]);
        command.args(["--tokens-per-second", "2"]).args(more).arg(&sample);
        command.output().unwrap()
    };
    let finish = |output: &Output| {
        let json: Value = serde_json::from_str(stdout(output)).unwrap();
        let kinds =
            json["warnings"].as_array().unwrap().iter().map(|w| w["kind"].as_str().unwrap().to_owned());
        (json["finish_reason"].as_str().unwrap().to_owned(), kinds.collect::<Vec<_>>())
    };
    let (with, without) = (arguments(&[]), arguments(&["--no-recovery"]));
    let (reason, kinds) = finish(&with);
    assert_eq!(reason, "stop", "{}", stderr(&with));
    assert!(kinds.contains(&"restart".to_owned()), "{kinds:?}");
    assert!(stderr(&with).contains("transcribed again from"), "{}", stderr(&with));
    assert_eq!(finish(&without), ("length".to_owned(), vec!["length".to_owned()]));
}

#[test]
fn standard_input_takes_any_container_and_raw_samples() {
    let feed = |bytes: &[u8], flags: &[&str]| {
        let mut child =
            wnw(&[&["transcribe", "--format", "json", "--quiet", "--max-new-tokens", "6", "-"], flags]
                .concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let samples = tone(1.5);
    let raw: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let plain = feed(&wav(&samples, None), &[]);
    assert_eq!(plain["duration"], 1.5);
    for other in [
        feed(&wav(&samples, Some(0xffff_ffff)), &[]),
        feed(&wav(&samples, Some(0)), &[]),
        feed(&raw, &["--pcm", "s16le:16000:1"]),
    ] {
        assert_eq!(other["tokens"], plain["tokens"]);
        assert_eq!(other["duration"], plain["duration"]);
    }
}

#[test]
fn silence_gives_no_text_and_says_so() {
    let folder = Folder::new();
    let file = folder.write("silence.wav", &wav(&vec![0; 48_000], None));
    let output = run(&["transcribe", "--format", "json", &file]);
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!((json["text"].as_str(), json["warnings"][0]["kind"].as_str()), (Some(""), Some("silence")));
    assert!(stderr(&output).contains("warning"));
    assert!(output.status.success());
}

#[test]
fn a_cut_off_answer_is_a_warning_and_with_strict_an_error() {
    let flac = sample("prompts-en.flac").display().to_string();
    let flags =
        ["transcribe", "--format", "json", "--max-new-tokens", "3", "--window", "20", "--max-duration", "1h"];
    let output = run(&[&flags[..], &[&flac]].concat());
    let json: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(json["finish_reason"], "length");
    assert!(stderr(&output).contains("--max-new-tokens"));
    assert!(json["segments"].as_array().unwrap().len() > 3, "the other windows go on");
    assert!(output.status.success());
    let strict = run(&[&flags[..], &["--strict", &flac]].concat());
    assert_eq!(strict.status.code(), Some(1));
    assert!(strict.stdout.is_empty(), "nothing that looks whole");
    let long = run(&["transcribe", "--max-duration", "10s", &flac]);
    assert_eq!(long.status.code(), Some(1));
    assert!(stderr(&long).contains("--max-duration"), "{}", stderr(&long));
}

#[cfg(target_os = "linux")]
#[test]
fn full_disks_and_closed_pipes() {
    let folder = Folder::new();
    let file = folder.write("a.wav", &wav(&tone(1.0), None));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = wnw(&["transcribe", "--format", "json", "--max-new-tokens", "4", &file])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("standard output"), "{}", stderr(&output));

    let blocked = folder.write("blocked", b"a file where the directory should be");
    let output = run(&["transcribe", "--max-new-tokens", "4", "--output-dir", &blocked, &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
    assert!(
        !stderr(&output).contains("real time"),
        "found before the work, not after it: {}",
        stderr(&output)
    );
    for command in [&["completions", "bash"][..], &["plan", "--duration", "1h"], &["model", "info", "tiny"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = wnw(command).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }

    let mut child = wnw(&["model", "info", "tiny", "--tensors"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_soon_and_leaves_no_result() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        interrupt(signal, code);
    }
}

#[cfg(unix)]
fn interrupt(signal: &str, code: i32) {
    let folder = Folder::new();
    let out = folder.path("out");
    let samples: Vec<i16> = tone(30.0).iter().cycle().take(16_000 * 1200).copied().collect();
    let file = folder.write("long.wav", &wav(&samples, None));
    let child = wnw(&["transcribe", "--output-dir", &out, "--no-repetition-guard", &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    assert!(folder.names("out").is_empty());
}

#[cfg(unix)]
#[test]
fn the_limit_on_file_sizes_is_a_failed_write_and_leaves_nothing() {
    let folder = Folder::new();
    let file = folder.write("a.wav", &wav(&tone(0.2), None));
    let out = folder.path("out");
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 0 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_wnw"), "transcribe"])
        .args(["--max-new-tokens", "2", "--output-dir", &out, &file])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("a.txt: cannot write: File too large"), "{}", stderr(&output));
    assert!(folder.names("out").is_empty());
}

/// Answers every request with 404, as the hub does for names it does not know.
fn empty_hub() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ =
                stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    address
}

#[test]
fn models_that_the_hub_does_not_give_are_explained_by_every_command() {
    let folder = Folder::new();
    let file = folder.write("a.wav", &wav(&tone(0.2), None));
    let hub = empty_hub();
    for (arguments, named) in [
        (&["transcribe", "--model", "no/such", &file][..], "--model no/such: "),
        (&["plan", "--model", "no/such", "--duration", "1h"], "--model no/such: "),
        (&["model", "info", "no/such"], "MODEL no/such: "),
    ] {
        for (variable, value, why, what) in [
            ("HF_ENDPOINT", hub.as_str(), "the hub has no such model", "a checkpoint directory"),
            ("HF_HUB_OFFLINE", "1", "not in the cache", "unset it once"),
        ] {
            let output = wnw(arguments)
                .env("HF_HOME", folder.path("cache"))
                .env_remove("HTTPS_PROXY")
                .env_remove("https_proxy")
                .env_remove("ALL_PROXY")
                .env_remove("all_proxy")
                .env(variable, value)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            let says = stderr(&output);
            assert!(says.contains(&format!("{named}{why}")) && says.contains(what), "{arguments:?}: {says}");
        }
    }
    let output = run(&["model", "info", "nothing"]);
    assert!(stderr(&output).contains("MODEL nothing: no such directory"), "{}", stderr(&output));
}

#[test]
fn model_directories_that_cannot_be_used_say_why() {
    let folder = Folder::new();
    let recording = folder.write("a.wav", &wav(&tone(0.2), None));
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny");
    let copy = |name: &str, change: &dyn Fn(&Path)| {
        let dir = folder.0.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        for file in ["config.json", "tekken.json", "model.safetensors"] {
            std::fs::copy(tiny.join(file), dir.join(file)).unwrap();
        }
        change(&dir);
        dir.display().to_string()
    };
    let edit = |dir: &Path, file: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(dir.join(file)).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        std::fs::write(dir.join(file), text.replacen(from, to, 1)).unwrap();
    };
    let cases: Vec<(String, &str)> = vec![
        (copy("no-config", &|d| std::fs::remove_file(d.join("config.json")).unwrap()), "config.json"),
        (copy("no-tokenizer", &|d| std::fs::remove_file(d.join("tekken.json")).unwrap()), "tekken.json"),
        (
            copy("no-weights", &|d| std::fs::remove_file(d.join("model.safetensors")).unwrap()),
            "no weights here",
        ),
        (copy("realtime", &|d| edit(d, "config.json", "\"voxtral\"", "\"voxtral_realtime\"")), "Realtime"),
        (copy("other-features", &|d| edit(d, "tekken.json", "16000", "8000")), "8000"),
        (copy("streaming", &|d| edit(d, "tekken.json", "instruct", "streaming")), "Realtime"),
        (
            copy("more-layers", &|d| {
                edit(d, "config.json", "\"num_hidden_layers\": 8", "\"num_hidden_layers\": 9")
            }),
            "layers.8.",
        ),
        (
            copy("fewer-layers", &|d| {
                edit(d, "config.json", "\"num_hidden_layers\": 8", "\"num_hidden_layers\": 7")
            }),
            "unexpected",
        ),
        (
            copy("truncated", &|d| {
                let file = std::fs::OpenOptions::new().write(true).open(d.join("model.safetensors")).unwrap();
                file.set_len(1_000_000).unwrap();
            }),
            "not a complete safetensors file",
        ),
        (
            copy("nan", &|d| {
                // One norm's weights become NaN: 8-bit products would hide it.
                let path = d.join("model.safetensors");
                let mut bytes = std::fs::read(&path).unwrap();
                let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
                let at = &json["language_model.model.norm.weight"]["data_offsets"];
                let range = 8 + header + at[0].as_u64().unwrap() as usize
                    ..8 + header + at[1].as_u64().unwrap() as usize;
                bytes[range].fill(0xff);
                std::fs::write(path, bytes).unwrap();
            }),
            "model.norm.weight",
        ),
        (folder.path("a.wav"), "a.wav"),
    ];
    for (dir, says) in cases {
        let output = run(&["transcribe", "--model", &dir, &recording]);
        assert!(!output.status.success(), "{dir}");
        assert!(stderr(&output).contains(says), "{dir}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{dir}: {}", stderr(&output));
    }
    // The unchanged copy gives what the embedded model gives.
    let whole = copy("whole", &|_| {});
    let arguments = ["transcribe", "--quiet", "--max-new-tokens", "6", &recording, "--model"];
    assert_eq!(
        run(&[&arguments[..], &[&whole]].concat()).stdout,
        run(&[&arguments[..], &["tiny"]].concat()).stdout
    );
    // q6k needs rows of 256.
    let output = run(&["transcribe", "--dtype", "q6k", &recording]);
    assert!(stderr(&output).contains("q8_0"), "{}", stderr(&output));
}

#[test]
fn info_and_plan_are_readable_by_people_and_scripts() {
    let info = run(&["model", "info", "tiny"]);
    assert!(stdout(&info).contains("8 query and 4 KV heads"), "{}", stdout(&info));
    let info: Value =
        serde_json::from_slice(&run(&["model", "info", "tiny", "--json", "--tensors"]).stdout).unwrap();
    let parameters: u64 =
        info["parts"].as_array().unwrap().iter().map(|p| p["parameters"].as_u64().unwrap()).sum();
    let listed: u64 = info["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product::<u64>())
        .sum();
    assert_eq!(parameters, listed);
    let plan = ["plan", "--model", "mistralai/Voxtral-Mini-3B-2507", "--duration", "1h"];
    assert!(stdout(&run(&plan)).contains("2 windows of at most 30:00"), "{}", stdout(&run(&plan)));
    let json: Value = serde_json::from_slice(&run(&[&plan[..], &["--json"]].concat()).stdout).unwrap();
    assert!(json["plan"]["kv"].as_u64().unwrap() > 2_700_000_000);
    assert!(json.get("fits").is_none());
    assert_eq!(run(&["plan", "--duration", "soon"]).status.code(), Some(2));
    let unit = run(&[&plan[..], &["--memory", "8"]].concat());
    assert_eq!(unit.status.code(), Some(2));
    assert!(stderr(&unit).contains("--memory") && stderr(&unit).contains("8GiB"), "{}", stderr(&unit));

    let enough = run(&[&plan[..], &["--memory", "16GiB"]].concat());
    assert!(enough.status.success());
    assert!(stdout(&enough).contains("fits into 16.0 GiB"), "{}", stdout(&enough));
    assert!(stdout(&enough).contains("the program itself"), "{}", stdout(&enough));
    let little = run(&[&plan[..], &["--memory", "8GB"]].concat());
    assert_eq!(little.status.code(), Some(1));
    assert!(stdout(&little).contains("does not fit into"), "{}", stdout(&little));
    let little = run(&[&plan[..], &["--memory", "8GB", "--json"]].concat());
    assert_eq!(little.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&little.stdout).unwrap();
    assert_eq!((json["fits"].as_bool(), json["memory"].as_u64()), (Some(false), Some(8_000_000_000)));
    let alternatives = json["alternatives"].as_array().unwrap();
    assert!(!alternatives.is_empty());
    for alternative in alternatives {
        // What it proposes does fit, by its own account, and a second more does not.
        let (seconds, dtype) =
            (alternative["window"].as_f64().unwrap(), alternative["dtype"].as_str().unwrap());
        let fits = |seconds: f64| {
            let flags = ["--memory", "8GB", "--dtype", dtype, "--window", &seconds.to_string()];
            run(&[&plan[..], &flags].concat()).status.success()
        };
        assert!(fits(seconds), "{alternative}");
        assert!(seconds == 1800.0 || !fits(seconds + 1.0), "{alternative}");
    }
    let hopeless = run(&[&plan[..], &["--memory", "1GiB"]].concat());
    assert!(stdout(&hopeless).contains("smaller model"), "{}", stdout(&hopeless));
}

#[test]
fn recordings_that_are_transcribed_together_have_the_same_results() {
    let folder = Folder::new();
    let audio = std::fs::read(sample("prompts-en.flac")).unwrap();
    let whole = folder.write("whole.flac", &audio);
    let quiet = folder.write("quiet.wav", &wav(&tone(3.0), None));
    let broken = folder.write("broken.flac", &audio[..9000]);
    let short = folder.write("silent.wav", &wav(&[0; 16_000], None));
    let files = [quiet.as_str(), &whole, &broken, "/no/such/file.wav", &short];
    for format in ["text", "json"] {
        for flags in [&["--kv", "wnw"][..], &["--threads", "1", "--window", "20s"], &["--strict"]] {
            let arguments =
                [&["transcribe", "--language", "en", "--format", format], &files[..], flags].concat();
            let alone = run(&arguments);
            let together = run(&[&arguments[..], &["--batch", "3"]].concat());
            assert_eq!(alone.status.code(), Some(1), "{}", stderr(&alone));
            assert_eq!(together.status.code(), Some(1), "{}", stderr(&together));
            assert_eq!(stdout(&alone), stdout(&together), "{format} {flags:?}");
            let failed = |o: &Output| {
                stderr(o).lines().filter(|l| l.contains("failed")).map(str::to_owned).collect::<Vec<_>>()
            };
            assert_eq!(failed(&alone), failed(&together));
        }
    }
    let directory = folder.path("out");
    let output = run(&["transcribe", "--batch", "2", "-q", "--output-dir", &directory, &quiet, &whole]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(folder.names("out"), ["quiet.txt", "whole.txt"]);
}
