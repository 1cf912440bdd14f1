//! `wnw model`.

use comfy_table::{Table, presets};
use serde_json::json;
use wnw_model::checkpoint::Naming;
use wnw_model::{ModelFiles, WeightDtype};

use crate::args::{ModelArgs, ModelCommand};
use crate::error::CliError;
use crate::models;
use crate::outputs::print;
use crate::system::bytes;

/// Runs the command.
pub fn run(args: &ModelArgs) -> Result<(), CliError> {
    let ModelCommand::Info { model, tensors, json } = &args.command;
    let files = models::open("MODEL", model, false)?;
    let text = match json {
        true => format!("{}\n", serde_json::to_string_pretty(&as_json(&files, *tensors))?),
        false => as_text(&files, *tensors),
    };
    print(&text)?;
    // Last, so that the rest can be seen of a checkpoint that cannot be used.
    Ok(files.check_tokenizer()?)
}

/// Parts of the model that memory is counted by, by prefix of the canonical names.
const PARTS: [(&str, &str); 5] = [
    ("audio encoder", "audio_tower."),
    ("projector", "multi_modal_projector."),
    ("embeddings", "language_model.model.embed_tokens."),
    ("output", "language_model.lm_head."),
    ("decoder", "language_model."),
];

struct Part {
    name: &'static str,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

fn parts(files: &ModelFiles) -> Vec<Part> {
    let mut out: Vec<Part> =
        PARTS.iter().map(|(name, _)| Part { name, tensors: 0, parameters: 0, bytes: 0 }).collect();
    for (name, view) in files.checkpoint.tensors() {
        let Some(part) = PARTS.iter().position(|(_, prefix)| name.starts_with(prefix)) else { continue };
        out[part].tensors += 1;
        out[part].parameters += view.elements() as u64;
        out[part].bytes += view.data().len() as u64;
    }
    out
}

fn dtypes(files: &ModelFiles) -> String {
    let mut names: Vec<String> = files.checkpoint.tensors().map(|(_, v)| format!("{:?}", v.dtype)).collect();
    names.sort();
    names.dedup();
    names.join(", ")
}

fn layout(files: &ModelFiles) -> &'static str {
    match files.checkpoint.naming() {
        Naming::HuggingFace => "Hugging Face",
        Naming::Mistral => "Mistral consolidated",
    }
}

fn as_json(files: &ModelFiles, tensors: bool) -> serde_json::Value {
    let parts: Vec<_> = parts(files)
        .iter()
        .map(|p| json!({"part": p.name, "tensors": p.tensors, "parameters": p.parameters, "bytes": p.bytes}))
        .collect();
    let mut out = json!({
        "model": files.name(),
        "family": files.family.name(),
        "layout": layout(files),
        "dtypes": dtypes(files),
        "max_audio_seconds": files.max_audio_seconds(),
        "config": files.family.describe(),
        "parts": parts,
    });
    if tensors {
        let list: Vec<_> = files
            .checkpoint
            .tensors()
            .map(|(_, v)| json!({"name": v.name, "dtype": format!("{:?}", v.dtype), "shape": v.shape}))
            .collect();
        out["tensors"] = list.into();
    }
    out
}

fn as_text(files: &ModelFiles, tensors: bool) -> String {
    let (e, d) = (files.family.encoder(), &files.decoder);
    let mut out = format!(
        "{}: {} ({} layout, {}), up to {} of audio in one pass, {} audio tokens a second\n\
         encoder: {} layers, hidden {}, {} heads × {}, {} mel bins\n\
         decoder: {} layers, hidden {}, {} query and {} KV heads × {}, vocabulary {}, RoPE base {:e}, {} output{}\n",
        files.name(),
        files.family.name(),
        layout(files),
        dtypes(files),
        crate::system::clock(files.max_audio_seconds()),
        files.family.audio_tokens_per_second(),
        e.n_layers,
        e.hidden_size,
        e.n_heads,
        e.head_dim,
        e.n_mels,
        d.n_layers,
        d.hidden_size,
        d.n_q_heads,
        d.n_kv_heads,
        d.head_dim,
        d.vocab_size,
        d.rope_theta,
        if d.tied { "tied" } else { "untied" },
        match (d.qkv_bias, d.qk_norm) {
            (true, _) => ", biased attention",
            (_, true) => ", normalised heads",
            _ => "",
        },
    );
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "part",
        "tensors",
        "parameters",
        "in the file",
        "q8_0",
    ]);
    let refusal = files.check_dtype(WeightDtype::Q8_0).err();
    for p in parts(files) {
        // Encoder, projector and embeddings keep their type; the decoder's layers and output are quantised.
        let quantised = match p.name {
            "decoder" | "output" if refusal.is_some() => "-".into(),
            "decoder" | "output" => bytes(WeightDtype::Q8_0.matrix_bytes(1, p.parameters as usize)),
            _ => bytes(p.bytes),
        };
        table.add_row([
            p.name.into(),
            p.tensors.to_string(),
            p.parameters.to_string(),
            bytes(p.bytes),
            quantised,
        ]);
    }
    out.push_str(&format!("{table}\n"));
    if let Some(refusal) = refusal {
        out.push_str(&format!("no q8_0: {refusal}\n"));
    }
    if tensors {
        for (_, view) in files.checkpoint.tensors() {
            out.push_str(&format!("{} {:?} {:?}\n", view.name, view.dtype, view.shape));
        }
    }
    out
}
