//! Which files of a repository a checkpoint needs.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::Deserialize;

/// Small files, fetched first; the first that is damaged ends the matter early.
const SMALL: [&str; 10] = [
    "config.json",
    "params.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tekken.json",
    "tokenizer_config.json",
    "merges.txt",
    "vocab.json",
    "tokenizer.json",
    "model.safetensors.index.json",
];

/// The files to fetch of those that a repository has, in order; an error says what is missing.
///
/// Where the weights lie in both layouts, `model*.safetensors` is taken and `consolidated.safetensors` left.
pub(super) fn needed<'a>(names: &[&'a str]) -> Result<Vec<&'a str>, &'static str> {
    let has = |name: &str| names.contains(&name);
    let weights = |keep: fn(&str) -> bool| -> Vec<&'a str> {
        let mut found: Vec<_> =
            names.iter().copied().filter(|n| is_plain(n) && n.ends_with(".safetensors") && keep(n)).collect();
        found.sort_unstable();
        found
    };
    let hugging_face = weights(|n| n.starts_with("model"));
    let mistral = weights(|n| n.starts_with("consolidated"));
    let chosen = if has("config.json") && !hugging_face.is_empty() {
        hugging_face
    } else if has("params.json") && !mistral.is_empty() {
        mistral
    } else if has("config.json") || has("params.json") {
        return Err("weights (model*.safetensors or consolidated.safetensors)");
    } else {
        return Err("config.json or params.json");
    };
    let three = ["vocab.json", "merges.txt", "tokenizer_config.json"].into_iter().all(has);
    if !(has("tekken.json") || has("tokenizer.json") || three) {
        return Err(
            "a tokenizer (tekken.json, tokenizer.json, or vocab.json with merges.txt and tokenizer_config.json)",
        );
    }
    let index_is_of_use = chosen.iter().any(|n| n.starts_with("model"));
    let small = SMALL.into_iter().filter(|n| index_is_of_use || !n.ends_with(".index.json"));
    let small = small.filter_map(|n| names.iter().copied().find(|name| *name == n));
    Ok(small.chain(chosen).collect())
}

/// A file at the top of a repository, with a name that is safe in a path.
fn is_plain(name: &str) -> bool {
    !name.starts_with('.') && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// Whether a directory holds a whole checkpoint, in either layout.
pub(super) fn is_complete(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    // `exists` follows the link: a snapshot may point to a blob that is no longer there.
    let names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Ok(files) = needed(&names) else { return false };
    let index = "model.safetensors.index.json";
    if !files.contains(&index) {
        // Shards without an index are the beginning of a download.
        return files.iter().any(|n| !n.contains("-of-") && n.ends_with(".safetensors"));
    }
    let json = std::fs::read(dir.join(index)).ok();
    let Some(index) = json.and_then(|json| serde_json::from_slice::<Index>(&json).ok()) else { return false };
    let shards: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    shards.iter().all(|shard| names.contains(shard))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_of_the_weights_and_nothing_else() {
        let names = [
            ".gitattributes",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "generation_config.json",
            "model-00002-of-00002.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "params.json",
            "preprocessor_config.json",
            "tekken.json",
            "original/model.safetensors",
        ];
        let want = [
            "config.json",
            "params.json",
            "generation_config.json",
            "preprocessor_config.json",
            "tekken.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(needed(&names).unwrap(), want);
        let names =
            ["params.json", "tekken.json", "consolidated.safetensors", "model.safetensors.index.json"];
        assert_eq!(needed(&names).unwrap(), ["params.json", "tekken.json", "consolidated.safetensors"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(needed(&["README.md"]), Err("config.json or params.json"));
        assert!(
            needed(&["config.json", "tekken.json", "pytorch_model.bin"]).unwrap_err().contains("weights")
        );
        let without = ["config.json", "model.safetensors", "vocab.json"];
        assert!(needed(&without).unwrap_err().contains("tokenizer"));
        let qwen = ["config.json", "model.safetensors", "vocab.json", "merges.txt", "spk_dict.pt"];
        assert!(needed(&qwen).unwrap_err().contains("tokenizer_config.json"));
        let qwen = [&qwen[..], &["tokenizer_config.json"]].concat();
        let want = ["config.json", "tokenizer_config.json", "merges.txt", "vocab.json", "model.safetensors"];
        assert_eq!(needed(&qwen).unwrap(), want);
    }
}
