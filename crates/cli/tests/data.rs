//! `wnw data` as a user meets it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs the program with nothing of the user's environment that bears on data sets.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wnw"));
    for name in [
        "WNW_DATA",
        "XDG_DATA_HOME",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "HF_HUB_OFFLINE",
    ] {
        command.env_remove(name);
    }
    command.arg("data").args(arguments).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn talks(dir: &Path) {
    for (name, bytes) in
        [("a.wav", "x"), ("a.txt", "one\r\ntwo"), ("sub/b.flac", "x"), ("sub/b.txt", "three")]
    {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

#[test]
fn list_says_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    talks(&dir.path().join("tiny-fr"));
    for (arguments, variables) in [
        (vec!["list", "--json", "--data-dir", place], vec![]),
        (vec!["list", "--json"], vec![("WNW_DATA", place)]),
    ] {
        let rows: Vec<Value> = serde_json::from_str(&stdout(&run(&arguments, &variables))).unwrap();
        assert_eq!(rows.len(), 8);
        let there: Vec<_> =
            rows.iter().filter(|row| row["present"] == true).map(|row| row["name"].clone()).collect();
        assert_eq!(there, ["tiny-fr"]);
        assert!(rows.iter().all(|row| !row["licence"].as_str().unwrap().is_empty()));
    }
    let text = stdout(&run(&["list"], &[("XDG_DATA_HOME", place)]));
    assert!(text.contains("primock57") && text.contains(&format!("{place}/wnw/data")), "{text}");
}

#[test]
fn show_counts_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    talks(dir.path());
    let json: Value = serde_json::from_str(&stdout(&run(&["show", "--json", place], &[]))).unwrap();
    assert_eq!((&json["recordings"], &json["reference_words"]), (&2.into(), &3.into()));
    assert_eq!(
        (&json["ids"][1], &json["tasks"][0], &json["seconds"]),
        (&"sub/b".into(), &"transcribe".into(), &Value::Null)
    );
    let text = stdout(&run(&["show", &format!("dir:{place}")], &[]));
    assert!(text.contains("2 recordings, 3 words") && text.contains("ids: a, sub/b"), "{text}");
    std::fs::remove_file(dir.path().join("sub/b.txt")).unwrap();
    let output = run(&["show", place], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("recording 'sub/b' has no text (1 of 2"), "{}", stderr(&output));
}

#[test]
fn wrong_names_are_wrong_usage() {
    for (arguments, expected) in [
        (vec!["show", "librispech"], "one of tiny-en"),
        (vec!["show", "librispeech"], "#test-clean"),
        (vec!["fetch", "dir:/tmp"], "without a path"),
        (vec!["fetch", "tiny-en:/tmp"], "without a path"),
        (vec!["fetch", "librispeech#train-clean-100"], "test-other"),
    ] {
        let output = run(&arguments, &[("WNW_DATA", "/nonexistent")]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    let output = run(&["show", "primock57"], &[("WNW_DATA", "/nonexistent")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent/primock57"), "{}", stderr(&output));
}

#[test]
fn without_a_network_fetch_names_the_address_and_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    for (name, address, folder) in [
        ("librispeech-long", "storage.googleapis.com/librispeech_long/v0_1.tar.gz", "librispeech-long"),
        ("librispeech#dev-other", "openslr.org/resources/12/dev-other.tar.gz", "librispeech"),
        ("primock57", "githubusercontent.com/babylonhealth/primock57", "primock57"),
    ] {
        let output = run(&["fetch", name, "--data-dir", place], &[("HF_HUB_OFFLINE", "1")]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(address) && error.contains(&format!("{place}/{folder}")), "{error}");
        assert!(error.contains("HF_HUB_OFFLINE is set") && error.contains("put a copy"), "{error}");
    }
    let output = run(&["fetch", "longspeech-en2fr", "--data-dir", place], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("2.03 TB") && stderr(&output).contains("all_audios.jsonl"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn without_the_prompts_fetch_names_the_packages() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    for (name, package) in
        [("tiny-en", "asterisk-core-sounds-en-wav"), ("tiny-fr", "asterisk-core-sounds-fr-g722")]
    {
        let output = run(&["fetch", name, "--data-dir", place, "--sounds", "/nonexistent"], &[]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(package) && error.contains("/nonexistent/"), "{error}");
        // Nothing half made stays behind.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
