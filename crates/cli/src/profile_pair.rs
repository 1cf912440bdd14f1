//! `wnw analyze calibration`: two profiles of one model side by side.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use wnw_kv::Role;
use wnw_kv::profile::{Profile, WnwOptions};
use wnw_plot::{LineChart, Point, Series};

use crate::args::parse_share;
use crate::charts;
use crate::error::CliError;
use crate::head_map::{R_GPU, read};
use crate::outputs::print;

/// For `--help`.
pub const EXAMPLES: &str = "\
Example: wnw analyze calibration english.json french.json -o both.svg

Correlations are Pearson's, over KV heads, and Spearman's, of their ranks. Roles are those at --r-gpu with each profile's own defaults (Appendix D of \
arXiv 2608.22704 compares calibration on two languages like this).";

/// `wnw analyze calibration`.
#[derive(Debug, Args)]
pub struct CalibrationArgs {
    /// A profile of `wnw calibrate`.
    #[arg(value_name = "PROFILE")]
    pub first: PathBuf,
    /// Another of the same model.
    #[arg(value_name = "PROFILE")]
    pub second: PathBuf,
    /// Target r_GPU whose roles are compared.
    #[arg(long, value_name = "SHARE", default_value_t = R_GPU, value_parser = parse_share)]
    pub r_gpu: f64,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Draw each head's importance in both, .svg or .png; may be given twice.
    #[arg(short, long, value_name = "FILE")]
    pub output: Vec<PathBuf>,
}

/// How two lists of scores go together.
#[derive(Clone, Copy, Debug, Serialize)]
struct Correlation {
    pearson: f64,
    spearman: f64,
}

/// Heads of a role in both profiles.
#[derive(Clone, Debug, Serialize)]
struct Overlap {
    first: usize,
    second: usize,
    both: usize,
    /// Both over either.
    jaccard: f64,
}

#[derive(Serialize)]
struct Pair {
    model: String,
    r_gpu: f64,
    heads: usize,
    voice_score: Correlation,
    head_sensitivity: Correlation,
    importance: Correlation,
    anchor: Overlap,
    tidal: Overlap,
    fixed: Overlap,
    /// Anchor and tidal heads together.
    voice_heads: Overlap,
}

/// Runs the command.
pub fn run(args: &CalibrationArgs) -> Result<(), CliError> {
    charts::check("--output", &args.output)?;
    let (a, b) = (read(&args.first)?, read(&args.second)?);
    if a.fingerprint != b.fingerprint || a.shape != b.shape {
        return Err(CliError::Usage(format!(
            "{} and {} are of different models: {} ({}) and {} ({})",
            args.first.display(),
            args.second.display(),
            charts::short(&a.model),
            charts::short(&a.fingerprint),
            charts::short(&b.model),
            charts::short(&b.fingerprint)
        )));
    }
    let pair = pair(&a, &b, args.r_gpu)?;
    if !args.output.is_empty() {
        charts::draw(&chart(&a, &b, &pair), &args.output)?;
    }
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&pair)?)),
        false => print(&text(&a, &b, &pair)),
    }
}

fn roles(profile: &Profile, r_gpu: f64) -> Result<Vec<Role>, CliError> {
    // Roles do not depend on λ, and a λ given cannot be out of reach.
    let options = WnwOptions { r_gpu, lambda: Some(0.0), ..profile.options.clone() };
    Ok(profile.params(&options).map_err(|e| CliError::Usage(e.to_string()))?.roles)
}

fn pair(a: &Profile, b: &Profile, r_gpu: f64) -> Result<Pair, CliError> {
    let (ra, rb) = (roles(a, r_gpu)?, roles(b, r_gpu)?);
    let heads = |roles: &[Role], wanted: &[Role]| -> BTreeSet<usize> {
        roles.iter().enumerate().filter(|(_, r)| wanted.contains(r)).map(|(i, _)| i).collect()
    };
    let overlap = |wanted: &[Role]| {
        let (x, y) = (heads(&ra, wanted), heads(&rb, wanted));
        let both = x.intersection(&y).count();
        let either = x.union(&y).count();
        let jaccard = if either == 0 { 1.0 } else { both as f64 / either as f64 };
        Overlap { first: x.len(), second: y.len(), both, jaccard }
    };
    let correlation = |x: &[f64], y: &[f64]| Correlation {
        pearson: pearson(x, y),
        spearman: pearson(&ranks(x), &ranks(y)),
    };
    Ok(Pair {
        model: a.model.clone(),
        r_gpu,
        heads: ra.len(),
        voice_score: correlation(&a.voice_score, &b.voice_score),
        head_sensitivity: correlation(&a.head_sensitivity, &b.head_sensitivity),
        importance: correlation(&a.importance(), &b.importance()),
        anchor: overlap(&[Role::Anchor]),
        tidal: overlap(&[Role::Tidal]),
        fixed: overlap(&[Role::Fixed]),
        voice_heads: overlap(&[Role::Anchor, Role::Tidal]),
    })
}

/// Pearson's correlation; of values that are all the same, 0.
fn pearson(x: &[f64], y: &[f64]) -> f64 {
    let n = x.len() as f64;
    let (mx, my) = (x.iter().sum::<f64>() / n, y.iter().sum::<f64>() / n);
    let sum = |f: &dyn Fn(f64, f64) -> f64| x.iter().zip(y).map(|(a, b)| f(a - mx, b - my)).sum::<f64>();
    let (xy, xx, yy) = (sum(&|a, b| a * b), sum(&|a, _| a * a), sum(&|_, b| b * b));
    if xx > 0.0 && yy > 0.0 { xy / (xx * yy).sqrt() } else { 0.0 }
}

/// Places in the order of the values, from 0; equal values share the mean of their places.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut out = vec![0.0; values.len()];
    for tied in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let first = order.iter().position(|i| *i == tied[0]).unwrap_or(0) as f64;
        tied.iter().for_each(|i| out[*i] = first + (tied.len() - 1) as f64 / 2.0);
    }
    out
}

fn text(a: &Profile, b: &Profile, pair: &Pair) -> String {
    let mut scores = Table::new();
    scores.load_style(presets::ASCII_MARKDOWN).set_header(["score", "Pearson", "Spearman"]);
    for (name, c) in [
        ("voice score (VS)", pair.voice_score),
        ("head sensitivity (HS)", pair.head_sensitivity),
        ("VS×HS", pair.importance),
    ] {
        scores.add_row([name.to_owned(), format!("{:.3}", c.pearson), format!("{:.3}", c.spearman)]);
    }
    let mut heads = Table::new();
    heads.load_style(presets::ASCII_MARKDOWN).set_header(["heads", "first", "second", "both", "Jaccard"]);
    for (name, o) in [
        ("anchor", &pair.anchor),
        ("tidal", &pair.tidal),
        ("fixed", &pair.fixed),
        ("anchor or tidal", &pair.voice_heads),
    ] {
        heads.add_row([
            name.to_owned(),
            o.first.to_string(),
            o.second.to_string(),
            o.both.to_string(),
            format!("{:.2}", o.jaccard),
        ]);
    }
    let of = |p: &Profile| {
        let c = &p.calibration;
        let labels = if c.label_free { ", its own transcripts" } else { "" };
        format!(
            "{} ({} recordings, {} answer tokens{labels})",
            charts::short(&c.source),
            c.recordings,
            c.tokens
        )
    };
    format!(
        "{}, {} KV heads\nfirst:  {}\nsecond: {}\n\n{scores}\n\nroles at r_GPU {}\n\n{heads}\n",
        pair.model,
        pair.heads,
        of(a),
        of(b),
        pair.r_gpu
    )
}

fn chart(a: &Profile, b: &Profile, pair: &Pair) -> LineChart {
    let most = |scores: &[f64]| scores.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let (x, y) = (a.importance(), b.importance());
    let (mx, my) = (most(&x), most(&y));
    LineChart {
        title: format!("{}: importance of its heads in two calibrations", charts::short(&pair.model)),
        subtitle: format!(
            "VS×HS over its largest; Pearson {:.3}, Spearman {:.3}; {} of {} anchors the same",
            pair.importance.pearson, pair.importance.spearman, pair.anchor.both, pair.anchor.first
        ),
        x_label: charts::short(&a.calibration.source),
        y_label: charts::short(&b.calibration.source),
        diagonal: true,
        series: vec![Series {
            name: "KV heads".into(),
            points: x.iter().zip(&y).map(|(x, y)| Point::exact(x / mx, y / my)).collect(),
            joined: false,
        }],
        ..LineChart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlations_by_hand() {
        assert_eq!(ranks(&[3.0, 1.0, 2.0, 1.0]), [3.0, 0.5, 2.0, 0.5]);
        assert!((pearson(&[1.0, 2.0, 3.0], &[2.0, 4.0, 6.0]) - 1.0).abs() < 1e-12);
        assert!((pearson(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
        // Deviations (−1, 0, 1) and (−1, 1, 0): 1 / 2.
        assert!((pearson(&[1.0, 2.0, 3.0], &[1.0, 3.0, 2.0]) - 0.5).abs() < 1e-12);
        assert_eq!(pearson(&[1.0, 1.0], &[1.0, 2.0]), 0.0);
    }
}
