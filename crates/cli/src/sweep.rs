//! `wnw analyze sweep`: one method with one option at several values, over data sets (the paper's ablations).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use wnw_eval::harness::{Line, MethodSpec, Metric};
use wnw_plot::{LineChart, Point, Series};

use crate::charts;
use crate::error::CliError;
use crate::eval_charts::file_name;
use crate::eval_command::{RunArgs, evaluate};

/// For `--help`.
pub const EXAMPLES: &str = "\
Examples:
  wnw analyze sweep --dataset tiny-en --limit 4 --methods full,wnw --over n_voice=4,8,16,32 --ratios 0.2,0.1 --out runs/voice
  wnw analyze sweep --dataset tiny-en --over signal=product,voice,sensitivity --over selection=per-segment,global --ratios 0.1 --out runs/a

Each --over varies one option and leaves the others as they are; options are those of docs/methods.md. Everything else, results and tables too, is as \
in `wnw eval`. A plot over the values is drawn where these are numbers.";

/// `wnw analyze sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Option and its values, NAME=VALUE,VALUE…; may be repeated. Every method given that has an option of this name takes part.
    #[arg(long, required = true, value_name = "NAME=LIST")]
    pub over: Vec<Over>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// An option with the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    name: String,
    values: Vec<String>,
}

impl FromStr for Over {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, values) = text.split_once('=').ok_or("write NAME=VALUE,VALUE…")?;
        let values: Vec<String> = values.split(',').map(|v| v.trim().to_owned()).collect();
        if name.is_empty() || values.iter().any(String::is_empty) {
            return Err("write NAME=VALUE,VALUE…".into());
        }
        Ok(Self { name: name.to_owned(), values })
    }
}

impl Over {
    fn has(&self, method: &str) -> bool {
        wnw_kv::policies::registry::find(method)
            .is_ok_and(|entry| entry.options.iter().any(|(option, _)| *option == self.name))
    }
}

/// The methods with each value of each option; those that have none of the options stay as they are, to compare with.
fn varied(methods: &[MethodSpec], overs: &[Over]) -> Result<Vec<MethodSpec>, CliError> {
    if let Some(over) = overs.iter().find(|over| !methods.iter().any(|m| over.has(&m.method))) {
        return Err(CliError::Usage(format!(
            "--over {}: none of --methods has this option (docs/methods.md)",
            over.name
        )));
    }
    let mut all = Vec::new();
    for method in methods {
        let mine: Vec<&Over> = overs.iter().filter(|over| over.has(&method.method)).collect();
        if mine.is_empty() {
            all.push(method.clone());
        }
        for over in mine {
            for value in &over.values {
                let mut with = method.clone();
                with.options.insert(over.name.clone(), value.clone());
                if !all.contains(&with) {
                    all.push(with);
                }
            }
        }
    }
    Ok(all)
}

/// Runs the command.
pub fn run(args: &SweepArgs) -> Result<ExitCode, CliError> {
    let methods = varied(&args.run.methods, &args.over)?;
    let (lines, code) = evaluate(&args.run, &methods)?;
    let Some(out) = &args.run.out else { return Ok(code) };
    args.over.iter().try_for_each(|over| draw(out, over, &lines))?;
    Ok(code)
}

/// A plot per data set of the score over the values.
fn draw(out: &Path, over: &Over, lines: &[Line]) -> Result<(), CliError> {
    let key = format!(":{}=", over.name);
    let mut sets: BTreeMap<&str, BTreeMap<String, Vec<Point>>> = BTreeMap::new();
    let mut metrics: BTreeMap<&str, Metric> = BTreeMap::new();
    for line in lines {
        let Some((before, rest)) = line.method.split_once(&key) else { continue };
        let (value, after) =
            rest.split_once(':').map_or((rest, String::new()), |(v, a)| (v, format!(":{a}")));
        let (Ok(x), Some(score)) = (value.parse::<f64>(), line.score) else { continue };
        let series = line.target.map_or_else(String::new, |t| format!(" at {t}"));
        let name = format!("{before}{after}{series}");
        let point = Point { x, y: score.score, low: score.low, high: score.high };
        sets.entry(&line.dataset).or_default().entry(name).or_default().push(point);
        metrics.insert(&line.dataset, line.metric);
    }
    for (dataset, series) in sets {
        let chart = LineChart {
            title: format!("{} by {}", dataset, over.name),
            subtitle: "bars: 95 % of the bootstrap's resamples".into(),
            x_label: over.name.clone(),
            y_label: metrics.get(dataset).map_or("score", |m| m.name()).into(),
            series: series
                .into_iter()
                .map(|(name, mut points)| {
                    points.sort_by(|a, b| a.x.total_cmp(&b.x));
                    Series { name, points, joined: true }
                })
                .collect(),
            ..LineChart::default()
        };
        charts::draw(&chart, &[out.join(format!("sweep-{}-{}.svg", over.name, file_name(dataset)))])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_option_varies_at_a_time() {
        let methods: Vec<MethodSpec> = ["full", "wnw:n_anchor=2"].map(|m| m.parse().unwrap()).to_vec();
        let overs: Vec<Over> = ["top_chunks=1,3", "signal=voice"].map(|o| o.parse().unwrap()).to_vec();
        let all = varied(&methods, &overs).unwrap();
        let options: Vec<String> = all
            .iter()
            .map(|m| m.options.iter().map(|(k, v)| format!("{k}={v} ")).collect::<String>())
            .collect();
        assert_eq!(
            options,
            ["", "n_anchor=2 top_chunks=1 ", "n_anchor=2 top_chunks=3 ", "n_anchor=2 signal=voice "]
        );
        let unknown = ["colour=1".parse().unwrap()];
        assert!(varied(&methods, &unknown).unwrap_err().to_string().contains("colour"));
        for bad in ["x", "=1", "x=", "x=1,,2"] {
            assert!(bad.parse::<Over>().is_err(), "{bad}");
        }
    }
}
