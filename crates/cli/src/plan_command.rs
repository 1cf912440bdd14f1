//! `wnw plan`.

use std::path::Path;

use comfy_table::{Table, presets};
use wnw_engine::Request;
use wnw_model::config::VoxtralConfig;
use wnw_model::{MemoryPlan, ModelFiles};

use crate::args::PlanArgs;
use crate::error::CliError;
use crate::models;
use crate::outputs::print;
use crate::system::{bytes, clock};

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), CliError> {
    let (config, limit) = architecture(&args.model.model)?;
    let duration = args.duration.as_secs_f64();
    let window = args.window.map_or(limit, |w| w.as_secs_f64()).min(duration);
    let windows = (duration / window).ceil().max(1.0) as u64;
    let answer = Request::default().token_cap(window) as u64;
    let plan = MemoryPlan::new(&config, args.model.dtype, args.model.kv_dtype, window, answer);
    let max = config.decoder.max_positions as u64;
    if plan.positions > max {
        let positions = plan.positions;
        return Err(CliError::Usage(format!(
            "--window: {} of audio needs {positions} positions, the model has {max}",
            clock(window)
        )));
    }
    if args.json {
        let json = serde_json::json!({
            "model": args.model.model, "duration": duration, "windows": windows,
            "dtype": args.model.dtype.to_string(), "kv_dtype": args.model.kv_dtype.to_string(), "plan": plan,
        });
        return print(&format!("{}\n", serde_json::to_string_pretty(&json)?));
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["part", "memory"]);
    for (name, size) in [
        ("encoder and projector weights", plan.encoder_weights),
        ("decoder weights", plan.decoder_weights),
        ("token embeddings", plan.embeddings),
        ("KV cache, full", plan.kv),
        ("prefill (freed before decoding)", plan.prefill),
        ("encoding (freed before the prefill)", plan.encoding),
        ("samples", plan.samples),
        ("total at the worst moment", plan.total),
    ] {
        table.add_row([name.into(), bytes(size)]);
    }
    print(&format!(
        "{}: {} of audio in {windows} window{} of at most {}, {} positions each; weights {}, KV {}\n{table}\n",
        args.model.model,
        clock(duration),
        if windows == 1 { "" } else { "s" },
        clock(window),
        plan.positions,
        args.model.dtype,
        args.model.kv_dtype,
    ))
}

/// The architecture and the longest window of a model: from its files, or by name for the releases whose sizes are
/// public, so that a plan needs no download.
fn architecture(model: &str) -> Result<(VoxtralConfig, f64), CliError> {
    if !Path::new(model).exists() {
        let name = model.split('@').next().unwrap_or(model);
        if let Some(config) = VoxtralConfig::released(name) {
            return Ok((config, 1800.0));
        }
    }
    let files: ModelFiles = models::open("--model", model, false)?;
    let limit = files.max_audio_seconds();
    Ok((files.config, limit))
}
