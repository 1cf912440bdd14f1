//! `wnw bench`.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use wnw_audio::{AudioStream, DecodeOptions as AudioOptions};
use wnw_bench::decode::{self, DecodeOptions, DecodeRow};
use wnw_bench::growth::{self, GrowthOptions};
use wnw_bench::limit::{self, Limit, Operand, READ_BYTES, ReadRate};
use wnw_bench::session::KvArm;
use wnw_bench::stages::{self, Stage};
use wnw_engine::{Engine, EngineError, Event, Phase, Request};
use wnw_model::shapes::ModelShape;
use wnw_model::{Decoder, LoadOptions};

use crate::bench_args::{
    BenchArgs, BenchCommand, BenchKv, DecodeArgs, DecodeAudioArgs, EncoderArgs, FirstTokenArgs, GrowthArgs,
    LimitArgs, MelArgs, PrefillArgs, ShapeArgs, TellArgs,
};
use crate::bench_tables::{decode_table, growth_table, limit_table, stage_table};
use crate::error::CliError;
use crate::inputs::expand;
use crate::outputs::print;
use crate::progress::Bar;
use crate::{models, signals, system};

/// Seconds for the limits that other figures are told beside.
const LIMIT_SECONDS: f64 = 0.7;

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    match &args.command {
        BenchCommand::Limit(args) => run_limit(args),
        BenchCommand::Decode(args) => run_decode(args),
        BenchCommand::Growth(args) => run_growth(args),
        BenchCommand::Prefill(args) => run_prefill(args),
        BenchCommand::Encoder(args) => run_encoder(args),
        BenchCommand::Mel(args) => run_mel(args),
        BenchCommand::DecodeAudio(args) => run_decode_audio(args),
        BenchCommand::FirstToken(args) => run_first_token(args),
    }
}

fn threads() -> usize {
    rayon::current_num_threads()
}

/// What every report says of the machine.
#[derive(Serialize)]
struct Machine {
    processor: String,
    threads: usize,
    /// Memory bandwidth of these threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<ReadRate>,
}

impl Machine {
    fn new(read: Option<ReadRate>) -> Self {
        Self { processor: system::processor(), threads: threads(), read }
    }
}

/// Prints JSON, or text.
fn tell(
    args: &TellArgs,
    json: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&json())?)),
        false => print(&text()),
    }
}

fn run_limit(args: &LimitArgs) -> Result<(), CliError> {
    require(args.size, None)?;
    let limit = Limit::measure(threads(), args.size, args.seconds);
    let machine = Machine::new(None);
    tell(
        &args.tell,
        || json!({ "machine": &machine, "limit": &limit }),
        || format!("{}, {} threads\n{}", machine.processor, machine.threads, limit_table(&limit)),
    )
}

/// The shape with the layers asked for.
fn shape(args: &ShapeArgs) -> Result<ModelShape, CliError> {
    let mut shape = ModelShape::find(&args.shape)
        .ok_or_else(|| CliError::Usage(format!("--shape {}: no such shape", args.shape)))?;
    if let Some(layers) = args.layers {
        if layers > shape.decoder.n_layers {
            let most = shape.decoder.n_layers;
            return Err(CliError::Usage(format!("--layers {layers}: {} has {most}", args.shape)));
        }
        shape.decoder.n_layers = layers;
    }
    Ok(shape)
}

/// Refuses what there is no memory for, before any of it is taken.
fn require(needed: u64, memory: Option<u64>) -> Result<(), CliError> {
    match memory.or_else(system::available_memory) {
        Some(available) if available < needed => Err(CliError::Memory { needed, available }),
        _ => Ok(()),
    }
}

fn random_decoder(args: &ShapeArgs, shape: &ModelShape, bar: &Bar) -> Result<Decoder, CliError> {
    Ok(Decoder::random(&shape.decoder, args.dtype, args.seed, |done, total| bar.loading(done, total))?)
}

/// Bandwidth beside which a report's figures are told.
fn bandwidth(bar: &Bar, needed: u64) -> ReadRate {
    bar.work("measuring the memory", 0.0);
    // A small test needs no large buffer, and gets a figure that means little.
    limit::read_rate(threads(), READ_BYTES.min(needed.max(64 << 20)), LIMIT_SECONDS)
}

fn run_decode(args: &DecodeArgs) -> Result<(), CliError> {
    let with_wnw = args.kv.contains(&BenchKv::Wnw);
    if !args.r_gpu.is_empty() && !with_wnw {
        return Err(CliError::Usage("--r-gpu needs --kv wnw: the full cache keeps everything".into()));
    }
    if args.recall_cost && !with_wnw {
        return Err(CliError::Usage("--recall-cost needs --kv wnw: the full cache recalls nothing".into()));
    }
    let shares = if args.r_gpu.is_empty() { vec![0.2] } else { args.r_gpu.clone() };
    let arms = args.kv.iter().flat_map(|kv| match kv {
        BenchKv::Full => vec![KvArm::Full],
        BenchKv::Wnw => shares.iter().map(|r_gpu| KvArm::Wnw(*r_gpu)).collect(),
    });
    let mut options = DecodeOptions {
        shape: shape(&args.shape)?,
        dtype: args.shape.dtype,
        kv_dtype: args.shape.kv_dtype,
        audio: args.audio.iter().map(Duration::as_secs_f64).collect(),
        arms: arms.collect(),
        batch: args.batch.clone(),
        steps: args.steps,
        sweep: args.sweep,
        swap: args.swap,
        host_place: args.host_tier.clone().unwrap_or_default(),
        recall_cost: args.recall_cost,
        seed: args.shape.seed,
    };
    require(options.bytes_needed(), args.shape.memory)?;
    // What the model was trained for is no limit of its time.
    let decoder = &mut options.shape.decoder;
    decoder.max_positions = decoder.max_positions.max(usize::MAX / 2);
    let bar = Bar::new(args.tell.quiet);
    let read = bandwidth(&bar, options.bytes_needed());
    let decoder = random_decoder(&args.shape, &options.shape, &bar)?;
    let mut rows: Vec<DecodeRow> = Vec::new();
    let total = (options.audio.len() * options.arms.len() * options.batch.len()) as f64;
    let done = std::cell::Cell::new(0.0);
    decode::run(
        &decoder,
        &options,
        read.gb_per_s,
        &mut |what| bar.work(what, done.get() / total),
        &mut |row| {
            done.set(done.get() + 1.0);
            rows.push(row);
        },
    )?;
    bar.clear();
    let weights = options.shape.decoder_bytes(options.dtype);
    let peak = system::peak_memory();
    let machine = Machine::new(Some(read));
    let json = || {
        json!({
            "machine": &machine, "shape": args.shape.shape, "layers": options.shape.decoder.n_layers,
            "dtype": args.shape.dtype.to_string(), "kv_dtype": args.shape.kv_dtype.to_string(),
            "seed": args.shape.seed, "weights_bytes": weights, "peak_memory_bytes": peak, "rows": &rows,
        })
    };
    tell(&args.tell, json, || {
        format!(
            "{}\n{}{}",
            title(&machine, &args.shape, &options.shape),
            decode_table(&rows),
            peak.map_or_else(String::new, |peak| format!(
                "weights {}, peak memory of the process {}\n",
                system::bytes(weights),
                system::bytes(peak)
            )),
        )
    })
}

/// The line above a table.
fn title(machine: &Machine, args: &ShapeArgs, shape: &ModelShape) -> String {
    let read = machine.read.map_or_else(String::new, |read| {
        format!(", memory {:.1} GB/s (median {:.1})", read.gb_per_s, read.median_gb_per_s)
    });
    format!(
        "{} with {} layers, weights {}, KV {}; {}, {} threads{read}",
        args.shape, shape.decoder.n_layers, args.dtype, args.kv_dtype, machine.processor, machine.threads
    )
}

fn run_growth(args: &GrowthArgs) -> Result<(), CliError> {
    let (early, late) = (args.early.as_secs_f64(), args.audio.as_secs_f64());
    if early >= late {
        return Err(CliError::Usage("--early must lie before the end of --audio".into()));
    }
    let mut options = GrowthOptions {
        shape: shape(&args.shape)?,
        dtype: args.shape.dtype,
        kv_dtype: args.shape.kv_dtype,
        seconds: late,
        // Room for the steps that are measured there.
        moments: [early, (late - 15.0).max(early)],
        arm: if args.r_gpu < 1.0 { KvArm::Wnw(args.r_gpu) } else { KvArm::Full },
        steps: args.steps,
        swap: args.swap,
        host_place: args.host_tier.clone().unwrap_or_default(),
        seed: args.shape.seed,
    };
    require(options.bytes_needed(), args.shape.memory)?;
    options.shape.decoder.max_positions = usize::MAX / 2;
    let bar = Bar::new(args.tell.quiet);
    let read = bandwidth(&bar, options.bytes_needed());
    let decoder = random_decoder(&args.shape, &options.shape, &bar)?;
    let growth = growth::run(&decoder, &options, &mut |what| bar.work(what, 0.5))?;
    bar.clear();
    let machine = Machine::new(Some(read));
    let json = || {
        json!({
            "machine": &machine, "shape": args.shape.shape, "layers": options.shape.decoder.n_layers,
            "dtype": args.shape.dtype.to_string(), "kv_dtype": args.shape.kv_dtype.to_string(),
            "audio_seconds": late, "r_gpu_target": args.r_gpu, "growth": &growth,
        })
    };
    tell(&args.tell, json, || {
        format!("{}\n{}", title(&machine, &args.shape, &options.shape), growth_table(&growth))
    })
}

/// Stages with the peaks beside which they are told.
fn tell_stages(
    args: &TellArgs,
    title: &str,
    more: Value,
    rows: &[Stage],
    with_peaks: bool,
) -> Result<(), CliError> {
    let peaks: Vec<_> = match with_peaks {
        true => Operand::ALL.map(|operand| limit::peak(operand, threads(), LIMIT_SECONDS)).to_vec(),
        false => Vec::new(),
    };
    let machine = Machine::new(None);
    let json = || {
        let mut out = json!({ "machine": &machine, "rows": rows });
        for (name, value) in more.as_object().into_iter().flatten() {
            out[name] = value.clone();
        }
        if with_peaks {
            out["peak"] = json!(&peaks);
            for (row, stage) in out["rows"].as_array_mut().into_iter().flatten().zip(rows) {
                for peak in &peaks {
                    let share = stage.gflops.zip(peak.gflops).map(|(done, peak)| done / peak);
                    row[format!("share_of_{}_peak", peak.operand.name())] = json!(share);
                }
            }
        }
        out
    };
    tell(args, json, || {
        format!("{title}{}, {} threads\n{}", machine.processor, machine.threads, stage_table(rows, &peaks))
    })
}

fn run_prefill(args: &PrefillArgs) -> Result<(), CliError> {
    let mut shape = shape(&args.shape)?;
    let longest = args.audio.iter().map(Duration::as_secs_f64).fold(0.0, f64::max);
    let positions = (longest * shape.tokens_per_second) as u64;
    let d = &shape.decoder;
    // Keys and values stored, and a layer's in f32; the states in f32.
    let row = d.kv_shape().bytes_per_position(args.shape.kv_dtype)
        + 4 * (2 * d.n_kv_heads * d.head_dim + d.hidden_size) as u64;
    require(shape.decoder_bytes(args.shape.dtype) + positions * row, args.shape.memory)?;
    shape.decoder.max_positions = usize::MAX / 2;
    let bar = Bar::new(args.tell.quiet);
    let decoder = random_decoder(&args.shape, &shape, &bar)?;
    let mut rows = Vec::new();
    for (i, audio) in args.audio.iter().enumerate() {
        bar.work("prefill", i as f64 / args.audio.len() as f64);
        let seconds = audio.as_secs_f64();
        let stage =
            stages::prefill(&decoder, &shape.decoder, shape.tokens_per_second, seconds, args.shape.kv_dtype)?;
        rows.push(Stage { layers: args.shape.layers, ..stage });
    }
    bar.clear();
    let more = json!({
        "shape": args.shape.shape, "layers": shape.decoder.n_layers, "dtype": args.shape.dtype.to_string(),
    });
    let title = format!(
        "{} with {} layers, weights {}; ",
        args.shape.shape, shape.decoder.n_layers, args.shape.dtype
    );
    tell_stages(&args.tell, &title, more, &rows, true)
}

fn run_encoder(args: &EncoderArgs) -> Result<(), CliError> {
    let shape = ModelShape::find(&args.shape).and_then(|shape| shape.voxtral);
    let config = shape.ok_or_else(|| {
        CliError::Usage(format!("--shape {}: its encoder is not one that this measures", args.shape))
    })?;
    let most = config.encoder.n_layers;
    if let Some(layers) = args.layers.filter(|n| *n > most) {
        return Err(CliError::Usage(format!("--layers {layers}: the encoder of {} has {most}", args.shape)));
    }
    let bar = Bar::new(args.tell.quiet);
    bar.work("making weights", 0.0);
    let (encoder, config) = stages::random_encoder(&config, args.dtype, args.layers)?;
    bar.work("encoding", 0.5);
    let stage = stages::encoder(&*encoder, &config, args.chunks)?;
    bar.clear();
    let rows = [Stage { layers: args.layers, ..stage }];
    let layers = config.encoder.n_layers;
    let more = json!({ "shape": args.shape, "layers": layers, "dtype": args.dtype.to_string() });
    let title = format!("{} encoder with {layers} layers, weights {}; ", args.shape, args.dtype);
    tell_stages(&args.tell, &title, more, &rows, true)
}

fn run_mel(args: &MelArgs) -> Result<(), CliError> {
    let rows = [stages::mel(args.audio.as_secs_f64())?];
    tell_stages(&args.tell, "", json!({}), &rows, false)
}

fn run_decode_audio(args: &DecodeAudioArgs) -> Result<(), CliError> {
    let mut rows = Vec::new();
    for input in expand(&args.files, false)? {
        rows.extend(stages::decode_audio(&input.source)?);
    }
    tell_stages(&args.tell, "", json!({}), &rows, false)
}

fn run_first_token(args: &FirstTokenArgs) -> Result<(), CliError> {
    let started = Instant::now();
    let inputs = expand(std::slice::from_ref(&args.file), false)?;
    let [input] = &inputs[..] else {
        return Err(CliError::Usage("the first token is that of one recording".into()));
    };
    let bar = Bar::new(args.tell.quiet);
    let files = models::open("--model", &args.model, args.tell.quiet)?;
    let model =
        files.load(&LoadOptions { dtype: Some(args.dtype) }, |done, total| bar.loading(done, total))?;
    let engine = Engine::new(model);
    let loaded = started.elapsed();
    let audio =
        AudioStream::open(input.source.clone(), &AudioOptions::default()).map_err(EngineError::from)?;
    let duration = audio.info().duration;
    let mut first = None;
    let mut hear = |event: Event| {
        if signals::interrupted() {
            return ControlFlow::Break(());
        }
        // The first step of decoding is told when its token was chosen.
        if matches!(&event, Event::Progress(p) if p.phase == Phase::Decode && p.tokens > 0) {
            first = Some(started.elapsed());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let result = signals::while_listening(|| engine.transcribe(audio, &Request::default(), &mut hear));
    bar.clear();
    let Some(first) = first else {
        return Err(match result {
            Err(EngineError::Cancelled) => CliError::Interrupted,
            Err(error) => error.into(),
            Ok(_) => CliError::Data(format!("{}: the model wrote no token", input.name)),
        });
    };
    let (loaded, first) = (loaded.as_secs_f64(), first.as_secs_f64());
    let machine = Machine::new(None);
    let json = || {
        json!({
            "machine": &machine, "file": input.name, "model": args.model, "dtype": args.dtype.to_string(),
            "audio_seconds": duration, "load_seconds": loaded, "first_token_seconds": first,
        })
    };
    tell(&args.tell, json, || {
        format!("{}: first token after {first:.2} s, of which loading {loaded:.2} s\n", input.name)
    })
}
