//! `wnw plan`.

use std::path::Path;
use std::process::ExitCode;

use comfy_table::{Table, presets};
use serde::Serialize;
use wnw_engine::Request;
use wnw_kv::profile::{ProfileError, WnwOptions, uniform_params, voice_heads};
use wnw_model::config::DecoderConfig;
use wnw_model::{Family, MemoryPlan, WeightDtype, families};

use crate::args::PlanArgs;
use crate::error::CliError;
use crate::models;
use crate::outputs::print;
use crate::system::{bytes, clock};

/// Shorter windows are not proposed: the model pads to this length, so they would save next to nothing.
const SHORTEST_WINDOW: u64 = 30;

/// Runs the command; the exit code is 1 when `--memory` is too little.
pub fn run(args: &PlanArgs) -> Result<ExitCode, CliError> {
    let family = family(&args.model.model, args.model.dtype)?;
    let (decoder, limit) = (family.decoder(), family.max_audio_seconds());
    let duration = args.duration.as_secs_f64();
    if args.window.is_some_and(|w| w.as_secs_f64() < 1.0) {
        return Err(CliError::Usage("--window must be at least 1s".into()));
    }
    args.window.map_or(Ok(()), |window| family.check_window(window.as_secs_f64()))?;
    if let Some(r_gpu) = args.r_gpu {
        keeps(family.as_ref(), r_gpu).map_err(|e| CliError::Usage(format!("--r-gpu: {e}")))?;
    }
    if let Some(row) = misfit(args.model.dtype, decoder) {
        let (dtype, block) = (args.model.dtype, args.model.dtype.block());
        return Err(CliError::Usage(format!(
            "--dtype {dtype}: rows of {row} weights cannot be stored as {dtype}, whose blocks hold {block}; use --dtype bf16"
        )));
    }
    let window = args.window.map_or(limit, |w| w.as_secs_f64()).min(duration);
    let windows = (duration / window).ceil().max(1.0) as u64;
    let plan_for = |dtype: WeightDtype, window: f64| {
        let answer = Request::default().token_cap(window) as u64;
        let plan = MemoryPlan::new(family.as_ref(), dtype, args.model.kv_dtype, window, answer);
        let heads = decoder.n_layers * decoder.n_kv_heads;
        match args.r_gpu {
            Some(r_gpu) if r_gpu < 1.0 => {
                let tidal = voice_heads(r_gpu, heads) as f64 / heads as f64;
                plan.keeping(family.as_ref(), args.model.kv_dtype, r_gpu, tidal)
            }
            _ => plan,
        }
    };
    let plan = plan_for(args.model.dtype, window);
    let max = decoder.max_positions as u64;
    if plan.positions > max {
        let positions = plan.positions;
        let fits = |seconds: &u64| plan_for(args.model.dtype, *seconds as f64).positions <= max;
        let advice = match (1..window.ceil() as u64).rev().find(fits) {
            Some(seconds) => format!("use --window {} or less", time(seconds)),
            None => "max_position_embeddings of its configuration is too small for any recording".into(),
        };
        return Err(CliError::Usage(format!(
            "{} of audio in one pass needs {positions} positions, the model has {max}; {advice}",
            clock(window)
        )));
    }
    let fits = args.memory.is_none_or(|memory| plan.total <= memory);
    let code = if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let alternatives = match args.memory {
        Some(memory) if !fits => {
            let total = |dtype, window| plan_for(dtype, window).total;
            let mut all =
                alternatives(&narrower(args.model.dtype, decoder), args.model.dtype, window, memory, total);
            if args.r_gpu.is_none() {
                all.extend(with_wnw(args, family.as_ref(), &plan, memory));
            }
            all
        }
        _ => Vec::new(),
    };
    if args.json {
        let mut json = serde_json::json!({
            "model": args.model.model, "duration": duration, "windows": windows,
            "dtype": args.model.dtype.to_string(), "kv_dtype": args.model.kv_dtype.to_string(), "plan": plan,
        });
        if let Some(memory) = args.memory {
            json["memory"] = memory.into();
            json["fits"] = fits.into();
            json["alternatives"] = serde_json::to_value(&alternatives)?;
        }
        print(&format!("{}\n", serde_json::to_string_pretty(&json)?))?;
        return Ok(code);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["part", "memory"]);
    for (name, size) in [
        ("encoder and projector weights", plan.encoder_weights),
        ("decoder weights", plan.decoder_weights),
        ("token embeddings", plan.embeddings),
        (if args.r_gpu.is_some() { "KV cache on the device" } else { "KV cache, full" }, plan.kv),
        ("KV cache on the host, at most", plan.host_kv),
        ("prefill (freed before decoding)", plan.prefill),
        ("encoding (freed before the prefill)", plan.encoding),
        ("samples", plan.samples),
        ("the program itself, about", plan.program),
        ("total at the worst moment", plan.total),
    ] {
        if size > 0 {
            table.add_row([name.into(), bytes(size)]);
        }
    }
    let verdict = args.memory.map_or_else(String::new, |memory| verdict(&plan, memory, &alternatives));
    print(&format!(
        "{}: {} of audio in {windows} window{} of at most {}, {} positions each; weights {}, KV {}\n{table}\n{verdict}",
        args.model.model,
        clock(duration),
        if windows == 1 { "" } else { "s" },
        clock(window),
        plan.positions,
        args.model.dtype,
        args.model.kv_dtype,
    ))?;
    Ok(code)
}

/// Flags with which a recording fits.
#[derive(Debug, PartialEq, Serialize)]
struct Alternative {
    /// Longest window in seconds.
    window: f64,
    dtype: WeightDtype,
    /// Bytes needed.
    total: u64,
    #[serde(skip)]
    flags: String,
}

/// Length of rows of weights that a type cannot hold, if the decoder has such.
fn misfit(dtype: WeightDtype, d: &DecoderConfig) -> Option<usize> {
    let rows = [d.hidden_size, d.n_q_heads * d.head_dim, d.intermediate_size];
    rows.into_iter().find(|k| !k.is_multiple_of(dtype.block()))
}

/// Weight types that take less than `dtype` and can hold this model, the widest first.
fn narrower(dtype: WeightDtype, d: &DecoderConfig) -> Vec<WeightDtype> {
    let size = |dtype: WeightDtype| dtype.matrix_bytes(1 << 8, 1 << 8);
    [WeightDtype::Bf16, WeightDtype::Q8_0, WeightDtype::Q6k]
        .into_iter()
        .filter(|other| size(*other) < size(dtype) && misfit(*other, d).is_none())
        .collect()
}

/// What fits into `memory`: the longest window, and the widest type of weights; if neither is enough, both together.
fn alternatives(
    narrower: &[WeightDtype],
    dtype: WeightDtype,
    window: f64,
    memory: u64,
    total: impl Fn(WeightDtype, f64) -> u64,
) -> Vec<Alternative> {
    let longest = |dtype: WeightDtype| {
        let (mut low, mut high) = (SHORTEST_WINDOW - 1, window as u64);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if total(dtype, middle as f64) <= memory {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Some(low).filter(|s| *s >= SHORTEST_WINDOW)
    };
    let shorter = |dtype: WeightDtype, seconds: u64, more: &str| {
        let window = seconds as f64;
        let flags = format!("--window {}{more}", time(seconds));
        Alternative { window, dtype, total: total(dtype, window), flags }
    };
    let mut out: Vec<Alternative> = longest(dtype).map(|s| shorter(dtype, s, "")).into_iter().collect();
    let other = narrower.iter().find(|d| total(**d, window) <= memory);
    out.extend(other.map(|d| Alternative {
        window,
        dtype: *d,
        total: total(*d, window),
        flags: format!("--dtype {d}"),
    }));
    if out.is_empty() {
        let both = narrower.iter().find_map(|d| Some((*d, longest(*d)?)));
        out.extend(both.map(|(d, s)| shorter(d, s, &format!(" --dtype {d}"))));
    }
    out
}

/// The same window and weights with a fifth of the audio KV on the device, if that is enough.
fn with_wnw(args: &PlanArgs, family: &dyn Family, plan: &MemoryPlan, memory: u64) -> Option<Alternative> {
    let r_gpu = WnwOptions::default().r_gpu;
    keeps(family, r_gpu).ok()?;
    let decoder = family.decoder();
    let heads = decoder.n_layers * decoder.n_kv_heads;
    let tidal = voice_heads(r_gpu, heads) as f64 / heads as f64;
    let total = plan.keeping(family, args.model.kv_dtype, r_gpu, tidal).total;
    let flags = format!("--kv wnw --r-gpu {r_gpu}");
    let fits = Alternative { window: plan.seconds, dtype: args.model.dtype, total, flags };
    (total <= memory).then_some(fits)
}

/// Refuses a share that WnW cannot keep, as a run without a profile would: its anchor heads keep everything.
fn keeps(family: &dyn Family, r_gpu: f64) -> Result<(), ProfileError> {
    let options = WnwOptions { r_gpu, ..WnwOptions::default() };
    uniform_params(family.decoder().kv_shape(), family.audio_tokens_per_second(), &options).map(drop)
}

/// Seconds as a flag takes them: `12m30s`.
fn time(seconds: u64) -> String {
    humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string().replace(' ', "")
}

fn verdict(plan: &MemoryPlan, memory: u64, alternatives: &[Alternative]) -> String {
    if plan.total <= memory {
        return format!("fits into {}, with {} to spare\n", bytes(memory), bytes(memory - plan.total));
    }
    let mut out = format!("does not fit into {}: {} too much", bytes(memory), bytes(plan.total - memory));
    if alternatives.is_empty() {
        out.push_str("; nor does any shorter --window or smaller --dtype: a smaller model is needed\n");
        return out;
    }
    out.push_str("; this fits:\n");
    for alternative in alternatives {
        out.push_str(&format!("  {} ({})\n", alternative.flags, bytes(alternative.total)));
    }
    out
}

/// The family of a model with its sizes: from its files, or by name for the releases whose sizes are public, so that a
/// plan needs no download. A type of weights that the model cannot have is refused as it is when the model is loaded.
fn family(model: &str, dtype: WeightDtype) -> Result<Box<dyn Family>, CliError> {
    if !Path::new(model).exists() {
        let name = model.split('@').next().unwrap_or(model);
        if let Some(family) = families::released(name) {
            return Ok(family);
        }
    }
    let files = models::open("--model", model, false)?;
    files.check_tokenizer()?;
    files.check_dtype(dtype)?;
    Ok(files.family)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 bytes of weights (50, 40 in the smaller types) and one byte for each second.
    fn total(dtype: WeightDtype, window: f64) -> u64 {
        window as u64
            + match dtype {
                WeightDtype::Bf16 => 100,
                WeightDtype::Q8_0 => 50,
                _ => 40,
            }
    }

    fn flags(memory: u64) -> Vec<String> {
        let types = [WeightDtype::Q8_0, WeightDtype::Q6k];
        let found = alternatives(&types, WeightDtype::Bf16, 300.0, memory, total);
        assert!(found.iter().all(|a| a.total <= memory && total(a.dtype, a.window) == a.total), "{found:?}");
        found.into_iter().map(|a| a.flags).collect()
    }

    #[test]
    fn what_fits_is_the_longest_window_and_the_widest_type() {
        assert_eq!(flags(390), ["--window 4m50s", "--dtype q8_0"]);
        assert_eq!(flags(345), ["--window 4m5s", "--dtype q6k"]);
        assert_eq!(flags(130), ["--window 30s"]);
        assert_eq!(flags(129), ["--window 1m19s --dtype q8_0"]);
        assert_eq!(flags(75), ["--window 35s --dtype q6k"]);
        assert!(flags(69).is_empty());
    }

    #[test]
    fn types_that_cannot_hold_the_model_are_not_proposed() {
        let family = families::released("mistralai/Voxtral-Mini-3B-2507").unwrap();
        let mut config = family.decoder().clone();
        let types = |config: &DecoderConfig, dtype| narrower(dtype, config);
        assert_eq!(
            types(&config, WeightDtype::F32),
            [WeightDtype::Bf16, WeightDtype::Q8_0, WeightDtype::Q6k]
        );
        assert_eq!(types(&config, WeightDtype::Q8_0), [WeightDtype::Q6k]);
        // Those that are planned by name can be held in any type, so that nothing need be refused.
        for name in
            ["Qwen/Qwen2.5-Omni-3B", "Qwen/Qwen2.5-Omni-7B", "Qwen/Qwen3-ASR-0.6B", "Qwen/Qwen3-ASR-1.7B"]
        {
            assert_eq!(
                types(families::released(name).unwrap().decoder(), WeightDtype::F32).len(),
                3,
                "{name}"
            );
        }
        config.hidden_size = 3072 + 32;
        assert_eq!(types(&config, WeightDtype::F16), [WeightDtype::Q8_0]);
    }
}
