//! Checkpoints of every family from the command line: random weights, real commands.

#[path = "../../model/tests/common/qwen.rs"]
mod qwen;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/qwen")
}

fn wnw(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wnw")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(arguments: &[&str]) -> Value {
    let output = wnw(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A checkpoint with the small tokenizer, and a recording beside it.
fn checkpoint(name: &str) -> tempfile::TempDir {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(data().join(format!("{name}.json"))).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let draw = qwen::Draw { seed: 3, embed: 1.0, final_norm: 1.0 };
    qwen::write(dir.path(), &golden["config"], golden["layout"].as_str().unwrap(), draw);
    qwen::add_tokenizer(dir.path());
    let samples = (0..48_000).map(|i| ((i as f32 * 0.13).sin() * 0.3).to_le_bytes());
    std::fs::write(dir.path().join("tone.f32"), samples.flatten().collect::<Vec<u8>>()).unwrap();
    dir
}

#[test]
fn info_plan_and_transcribe_know_every_family() {
    for (name, family, rate, window) in
        [("omni-release", "Qwen2.5-Omni", 25.0, 300.0), ("asr-release", "Qwen3-ASR", 13.0, 1200.0)]
    {
        let dir = checkpoint(name);
        let path = dir.path().to_str().unwrap();
        let tone = dir.path().join("tone.f32");
        let tone = tone.to_str().unwrap();
        let info = wnw(&["model", "info", path]);
        let info = text(&info.stdout);
        assert!(info.contains(family) && info.contains(&format!("{rate} audio tokens a second")), "{info}");
        let info = json(&["model", "info", path, "--json"]);
        assert_eq!((&info["family"], &info["max_audio_seconds"]), (&family.into(), &window.into()));
        // What is skipped is not part of the model.
        let parts = info["parts"].as_array().unwrap();
        let tensors: u64 = parts.iter().map(|p| p["tensors"].as_u64().unwrap()).sum();
        assert_eq!(tensors as usize, qwen::tensors(&golden_config(name)).len());

        let plan = json(&["plan", "--model", path, "--duration", "1h", "--dtype", "f32", "--json"]);
        assert_eq!(plan["windows"], (3600.0f64 / window).ceil() as u64);
        let positions = plan["plan"]["positions"].as_f64().unwrap();
        assert!(positions >= rate * window, "{plan}");

        let options = ["--dtype", "f32", "--max-new-tokens", "6", "--quiet", "--pcm", "f32le:16000:1"];
        let mut arguments = vec!["transcribe", "--model", path, "--format", "json", "--language", "fr"];
        arguments.extend(options);
        arguments.push(tone);
        let got = json(&arguments);
        assert_eq!(got["language"], "fr");
        let want = if name.starts_with("omni") { 75 } else { 39 };
        assert_eq!(got["audio_tokens"].as_u64().or(got["statistics"]["audio_tokens"].as_u64()), Some(want));

        let mut arguments = vec!["transcribe", "--model", path, "--kv", "wnw", "--kv-roles", "uniform"];
        arguments.extend(["--r-gpu", "0.4"]);
        arguments.extend(options);
        arguments.push(tone);
        let output = wnw(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

fn golden_config(name: &str) -> Value {
    let golden = std::fs::read(data().join(format!("{name}.json"))).unwrap();
    serde_json::from_slice::<Value>(&golden).unwrap()["config"].clone()
}

/// In Mistral's layout query and key rows lie in another order: read so, these would give another text.
#[test]
fn qwen_weights_under_mistrals_name_are_refused() {
    let dir = checkpoint("omni-release");
    let consolidated = dir.path().join("consolidated.safetensors");
    for part in std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.path()) {
        if part.extension().is_some_and(|e| e == "safetensors") {
            std::fs::rename(part, &consolidated).unwrap();
        }
    }
    let tone = dir.path().join("tone.f32");
    let arguments = [
        "transcribe",
        "--model",
        dir.path().to_str().unwrap(),
        "--pcm",
        "f32le:16000:1",
        tone.to_str().unwrap(),
    ];
    let output = wnw(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("call the file model.safetensors"), "{}", text(&output.stderr));
}

/// What a command says on standard error about a checkpoint; it must fail without a panic.
fn complaint(dir: &Path, command: &[&str]) -> String {
    let (path, tone) = (dir.to_str().unwrap().to_owned(), dir.join("tone.f32"));
    let mut arguments = command.to_vec();
    match command[0] {
        "transcribe" => {
            arguments.extend(["--pcm", "f32le:16000:1", "--model", &path, tone.to_str().unwrap()]);
        }
        "plan" => arguments.extend(["--duration", "1m", "--model", &path]),
        _ => arguments.push(&path),
    }
    let output = wnw(&arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    assert!(!message.contains("panicked"), "{message}");
    message
}

/// Overwrites elements of a stored tensor (f32), of all if `at` is `None`.
fn overwrite(file: &Path, tensor: &str, at: Option<usize>, value: f32) {
    let mut bytes = std::fs::read(file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let [from, to] = [0, 1].map(|i| header + json[tensor]["data_offsets"][i].as_u64().unwrap() as usize);
    let elements = bytes[from..to].chunks_exact_mut(4).enumerate();
    elements
        .filter(|(i, _)| at.is_none_or(|at| at == *i))
        .for_each(|(_, e)| e.copy_from_slice(&value.to_le_bytes()));
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn damaged_weights_are_named_with_their_file_before_anything_is_heard() {
    let dir = checkpoint("omni-thinker");
    let shards = [1, 2].map(|i| dir.path().join(format!("model-{i}-of-3.safetensors")));
    for (tensor, at, value, dtype, says) in [
        ("audio_tower.conv1.weight", Some(7), f32::NAN, "q8_0", "element 7 is NaN"),
        ("audio_tower.layers.0.fc1.weight", Some(9), f32::INFINITY, "q8_0", "element 9 is inf"),
        // Of a token that is in no prompt.
        ("model.embed_tokens.weight", Some(3), f32::NAN, "bf16", "element 3 is NaN"),
        ("lm_head.weight", Some(5), f32::NAN, "f32", "element 5 is NaN"),
        // A flipped exponent bit: the block's scale would be infinite.
        ("model.layers.0.mlp.down_proj.weight", Some(33), 1e30, "q8_0", "q8_0 cannot hold"),
        ("lm_head.weight", None, 0.0, "q8_0", "elements are zero"),
        ("model.norm.weight", None, 0.0, "q8_0", "elements are zero"),
        ("audio_tower.layers.0.fc2.weight", None, 0.0, "q8_0", "elements are zero"),
    ] {
        let holds = |file: &&PathBuf| text(&std::fs::read(file).unwrap()).contains(&format!("\"{tensor}\""));
        let weights = shards.iter().find(holds).unwrap();
        let whole = std::fs::read(weights).unwrap();
        overwrite(weights, tensor, at, value);
        let message = complaint(dir.path(), &["transcribe", "--dtype", dtype]);
        for part in [weights.to_str().unwrap(), tensor, says, "fetch it again"] {
            assert!(message.contains(part), "{tensor}: {message}");
        }
        assert!(!message.contains("tone.f32"), "{message}");
        std::fs::write(weights, &whole).unwrap();
    }
    // Finite, and beyond all reason: the recording is not to blame.
    overwrite(&shards[0], "audio_tower.conv1.weight", None, 3e38);
    let message = complaint(dir.path(), &["transcribe"]);
    assert!(message.contains("the audio encoder's output is not finite"), "{message}");
    assert!(message.contains(dir.path().to_str().unwrap()) && !message.contains("--dtype"), "{message}");
}

#[test]
fn files_that_are_not_there_or_not_themselves_are_named_with_what_to_do() {
    let dir = checkpoint("omni-thinker");
    let shard = dir.path().join("model-2-of-3.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    std::fs::remove_file(&shard).unwrap();
    let message = complaint(dir.path(), &["model", "info"]);
    let says = "model-2-of-3.safetensors: no such file, but model.safetensors.index.json names it";
    assert!(message.contains(says) && message.contains("fetch it again"), "{message}");
    std::fs::write(&shard, whole).unwrap();

    for file in ["config.json", "tokenizer.json", "model.safetensors.index.json", "model-1-of-3.safetensors"]
    {
        let path = dir.path().join(file);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").unwrap();
        let message = complaint(dir.path(), &["transcribe"]);
        assert!(message.contains(file) && message.contains("run 'git lfs pull'"), "{file}: {message}");
        if file.ends_with(".json") {
            std::fs::write(&path, [b"\xef\xbb\xbf", &whole[..]].concat()).unwrap();
            let tone = dir.path().join("tone.f32");
            let (model, tone) = (dir.path().to_str().unwrap(), tone.to_str().unwrap());
            let pcm = ["--pcm", "f32le:16000:1", "--max-new-tokens", "2"];
            let output = wnw(&[&["transcribe", "--model", model][..], &pcm, &[tone]].concat());
            assert!(output.status.success(), "{file}: {}", text(&output.stderr));
        }
        std::fs::write(&path, whole).unwrap();
    }
    #[cfg(unix)]
    {
        let config = dir.path().join("config.json");
        std::fs::remove_file(&config).unwrap();
        std::os::unix::fs::symlink("../../blobs/0123", &config).unwrap();
        let message = complaint(dir.path(), &["plan"]);
        assert!(message.contains("config.json: a symbolic link to ../../blobs/0123"), "{message}");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let message = complaint(&link, &["model", "info"]);
        assert!(message.contains("link: a symbolic link to nowhere"), "{message}");
    }
}

#[test]
fn a_configuration_of_another_family_is_suspected() {
    let dir = checkpoint("omni-release");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/config.json");
    std::fs::copy(tiny, dir.path().join("config.json")).unwrap();
    let message = complaint(dir.path(), &["model", "info"]);
    for part in ["missing: ", "unexpected: thinker.", "of another model", "config.json"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn plan_and_info_refuse_the_weight_types_that_transcribe_refuses() {
    let dir = checkpoint("omni-release");
    let [transcribed, planned] =
        ["transcribe", "plan"].map(|command| complaint(dir.path(), &[command, "--dtype", "q6k"]));
    assert!(transcribed.contains("cannot be stored as q6k"), "{transcribed}");
    assert_eq!(transcribed, planned);
}

#[test]
fn what_a_family_cannot_do_is_wrong_usage() {
    let dir = checkpoint("asr-tied");
    let path = dir.path().to_str().unwrap();
    let tone = dir.path().join("tone.f32");
    let tone = tone.to_str().unwrap();
    let refuse = |model: &str, more: &[&str], says: &str| {
        let mut arguments = vec!["transcribe", "--model", model, "--pcm", "f32le:16000:1"];
        arguments.extend(more);
        arguments.push(tone);
        let output = wnw(&arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(says), "{message}");
    };
    refuse(path, &["--task", "translate", "--to", "fr"], "--task: Qwen3-ASR only transcribes");
    refuse(path, &["--task", "chat", "--prompt", "What?"], "--task: Qwen3-ASR only transcribes");
    refuse(path, &["--language", "xx"], "--language: 'xx'");
    refuse("tiny", &["--language", "ja"], "'ja' is no language of Voxtral");
    refuse("tiny", &["--context", "names"], "--context: Voxtral takes no context words");
    // Weights that end too early, and a configuration of a relative.
    let weights = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    let output = wnw(&["model", "info", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("fetch it again"), "{}", text(&output.stderr));
    std::fs::write(dir.path().join("config.json"), r#"{"model_type":"qwen2_audio"}"#).unwrap();
    let output = wnw(&["model", "info", path]);
    assert!(text(&output.stderr).contains("Qwen2-Audio"), "{}", text(&output.stderr));
}

#[test]
fn releases_are_planned_without_a_download() {
    for (name, weights) in [
        ("Qwen/Qwen2.5-Omni-3B", 3.086e9),
        ("Qwen/Qwen2.5-Omni-7B", 7.07e9),
        ("Qwen/Qwen3-ASR-0.6B", 0.596e9),
        ("Qwen/Qwen3-ASR-1.7B", 1.72e9),
    ] {
        let plan = json(&["plan", "--model", name, "--duration", "5m", "--dtype", "bf16", "--json"]);
        let decoder = plan["plan"]["decoder_weights"].as_f64().unwrap() / 2.0;
        assert!((decoder / weights - 1.0).abs() < 0.02, "{name}: {decoder} weights in the decoder");
    }
}

/// Changes `config.json`.
fn change(dir: &Path, change: impl Fn(&mut Value)) {
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

/// Exit code and message.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = wnw(arguments);
    (output.status.code(), text(&output.stderr))
}

/// A plan that says yes where a run says no is worse than none.
#[test]
fn plans_refuse_what_runs_refuse() {
    let dir = checkpoint("omni-release");
    let path = dir.path().to_str().unwrap();
    let tone = dir.path().join("tone.f32");
    let run = |more: &[&str]| {
        let start = ["transcribe", "--model", path, "--quiet", "--pcm", "f32le:16000:1", "--dtype", "f32"];
        refused(&[&start, more, &[tone.to_str().unwrap()]].concat())
    };
    let plan = |more: &[&str]| {
        refused(&[&["plan", "--model", path, "--duration", "1h", "--dtype", "f32"], more].concat())
    };

    let says = "Qwen2.5-Omni takes at most 5m of audio in one pass; use --window 5m or less";
    for (code, message) in [plan(&["--window", "10m"]), run(&["--window", "10m"])] {
        assert!(code == Some(2) && message.contains(says), "{code:?} {message}");
    }
    assert_eq!(plan(&["--window", "5m"]).0, Some(0));

    let start = ["--model", path, "--dtype", "q8_0"];
    let plan_q8 = refused(&[&["plan", "--duration", "1h"], &start[..]].concat());
    let run_q8 =
        refused(&[&["transcribe"], &start[..], &["--pcm", "f32le:16000:1", tone.to_str().unwrap()]].concat());
    for (code, message) in [plan_q8, run_q8] {
        let says = "rows of 48 weights cannot be stored as q8_0, whose blocks hold 32; use --dtype bf16";
        assert!(code != Some(0) && message.contains(says), "{message}");
    }

    // Four heads, all anchors' if one is: nothing less than a quarter can be kept.
    for (code, message) in
        [plan(&["--r-gpu", "1e-12"]), run(&["--kv", "wnw", "--kv-roles", "uniform", "--r-gpu", "1e-12"])]
    {
        assert!(code != Some(0) && message.contains("cannot be met"), "{message}");
    }
    assert_eq!(plan(&["--r-gpu", "0.4"]).0, Some(0));

    change(dir.path(), |c| c["thinker_config"]["text_config"]["max_position_embeddings"] = 1000.into());
    let (code, message) = plan(&[]);
    assert!(code == Some(2) && message.contains("use --window 37s or less"), "{message}");
    assert_eq!(plan(&["--window", "37s"]).0, Some(0));
    assert!(plan(&["--window", "38s"]).1.contains("use --window 37s or less"));
    change(dir.path(), |c| c["thinker_config"]["text_config"]["max_position_embeddings"] = 5.into());
    let (code, message) = plan(&[]);
    assert!(code == Some(2) && message.contains("max_position_embeddings"), "{message}");
    assert!(!message.contains("--window"), "{message}");
    change(dir.path(), |c| c["thinker_config"]["text_config"]["max_position_embeddings"] = 0.into());
    for (code, message) in [plan(&[]), run(&[])] {
        assert!(code == Some(1) && message.contains("max_position_embeddings is 0"), "{message}");
        assert!(message.contains("config.json"), "{message}");
    }
    change(dir.path(), |c| {
        c["thinker_config"]["text_config"]["max_position_embeddings"] = 32768.into();
        c["max_audio_seconds"] = 600.into();
    });
    for (code, message) in [plan(&[]), run(&[])] {
        assert!(code == Some(1) && message.contains("config.json: max_audio_seconds is 600"), "{message}");
    }
}

/// A checkpoint that cannot transcribe does not look fine.
#[test]
fn info_and_plan_need_a_tokenizer_too() {
    let dir = checkpoint("omni-release");
    let path = dir.path().to_str().unwrap();
    let tokenizer = dir.path().join("tokenizer.json");
    let whole = std::fs::read_to_string(&tokenizer).unwrap();
    let check = |says: &str| {
        for arguments in [
            &["model", "info", path][..],
            &["model", "info", path, "--json"],
            &["plan", "--model", path, "-d", "1h"],
        ] {
            let (code, message) = refused(arguments);
            assert!(code == Some(1) && message.contains(says), "{arguments:?}: {message}");
        }
        // The rest of it can be seen all the same.
        assert!(text(&wnw(&["model", "info", path]).stdout).contains("Qwen2.5-Omni"));
    };
    std::fs::write(&tokenizer, &whole[..whole.len() / 2]).unwrap();
    check("tokenizer.json: not a tokenizer");
    std::fs::write(&tokenizer, whole.replace("<|AUDIO|>", "<|other|>")).unwrap();
    check("tokenizer.json: no token '<|AUDIO|>'");
    std::fs::remove_file(&tokenizer).unwrap();
    check("no tokenizer here");
    std::fs::write(&tokenizer, &whole).unwrap();
    change(dir.path(), |c| c["thinker_config"]["audio_token_index"] = 12.into());
    check("token '<|AUDIO|>' has id 303, but");
}
