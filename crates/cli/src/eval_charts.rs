//! The plots of a run over data sets.

use std::path::Path;

use wnw_eval::harness::{Line, Metric, Row, Scoring, score};
use wnw_plot::{LineChart, Point, Series};

use crate::charts;
use crate::error::CliError;

const MIB: f64 = (1 << 20) as f64;
/// Lines that one chart of bytes over steps can have and still be read.
const MOST_CURVES: usize = 14;

/// Draws, for each data set: the score over the target, the score over the bytes on the device, the bytes over the steps of one
/// recording, and the length of the answer over that of the reference.
pub fn draw(dir: &Path, rows: &[Row], lines: &[Line], scoring: &Scoring) -> Result<(), CliError> {
    let mut datasets: Vec<&str> = lines.iter().map(|l| l.dataset.as_str()).collect();
    datasets.dedup();
    for dataset in datasets {
        let lines: Vec<&Line> = lines.iter().filter(|l| l.dataset == dataset).collect();
        let mut rows: Vec<&Row> = rows.iter().filter(|r| r.dataset == dataset).collect();
        // As in the table, so that a method has the same colour in all charts; rows of a method keep their order.
        let methods = by_method(&lines);
        rows.sort_by_key(|row| methods.iter().position(|(name, _)| *name == row.method));
        let charts = [
            ("score", by_target(dataset, &lines)),
            ("bytes", by_bytes(dataset, &lines)),
            ("kv", kv_curves(dataset, &rows)),
            ("length", lengths(dataset, &rows, scoring)?),
        ];
        for (name, chart) in charts {
            let chart = match chart {
                Some(chart) => chart,
                None => continue,
            };
            charts::draw(&chart, &[dir.join(format!("{name}-{}.svg", file_name(dataset)))])?;
        }
    }
    Ok(())
}

/// A data set's name as part of a file's: letters, digits, dots, dashes and underscores.
pub fn file_name(dataset: &str) -> String {
    dataset.chars().map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' }).collect()
}

/// The methods of some lines, each with its lines.
fn by_method<'a>(lines: &[&'a Line]) -> Vec<(&'a str, Vec<&'a Line>)> {
    let mut methods: Vec<(&str, Vec<&Line>)> = Vec::new();
    for line in lines {
        match methods.iter_mut().find(|(name, _)| *name == line.method) {
            Some((_, all)) => all.push(line),
            None => methods.push((&line.method, vec![line])),
        }
    }
    methods
}

fn point(line: &Line, x: f64) -> Option<Point> {
    line.score.map(|s| Point { x, y: s.score, low: s.low, high: s.high })
}

fn score_chart(dataset: &str, lines: &[&Line]) -> LineChart {
    let (label, title) = match lines[0].metric {
        Metric::Wer => ("truncated WER, %", "Word error rate"),
        Metric::Bleu => ("BLEU", "BLEU"),
    };
    let recordings = lines.iter().map(|l| l.recordings + l.failed).max().unwrap_or(0);
    LineChart {
        title: format!("{title} on {dataset}"),
        subtitle: format!("{recordings} recordings; bars: 95 % of the bootstrap's resamples"),
        y_label: label.into(),
        ..LineChart::default()
    }
}

fn by_target(dataset: &str, lines: &[&Line]) -> Option<LineChart> {
    let targets: Vec<f64> = lines.iter().filter_map(|l| l.target).collect();
    if targets.is_empty() {
        return None;
    }
    let series = by_method(lines).into_iter().map(|(name, lines)| {
        let points = lines.iter().flat_map(|line| match line.target {
            Some(target) => point(line, target).into_iter().collect::<Vec<_>>(),
            // What keeps everything is the same at every target.
            None => targets.iter().filter_map(|t| point(line, *t)).collect(),
        });
        let mut points: Vec<Point> = points.collect();
        points.sort_by(|a, b| b.x.total_cmp(&a.x));
        points.dedup();
        Series { name: name.into(), points, joined: true }
    });
    Some(LineChart {
        x_label: "share of audio KV kept on the device (falling)".into(),
        falling: true,
        series: series.collect(),
        ..score_chart(dataset, lines)
    })
}

fn by_bytes(dataset: &str, lines: &[&Line]) -> Option<LineChart> {
    let series = by_method(lines).into_iter().map(|(name, lines)| {
        let mut points: Vec<Point> =
            lines.iter().filter_map(|line| point(line, line.kv_bytes / MIB)).collect();
        points.sort_by(|a, b| b.x.total_cmp(&a.x));
        Series { name: name.into(), points, joined: true }
    });
    Some(LineChart {
        x_label: "most KV on the device after the prefill, the answer's text included, MiB (falling)".into(),
        falling: true,
        series: series.collect(),
        ..score_chart(dataset, lines)
    })
}

fn kv_curves(dataset: &str, rows: &[&Row]) -> Option<LineChart> {
    let curves: Vec<(&Row, &[(usize, u64)])> = rows
        .iter()
        .filter_map(|r| Some((*r, r.ran()?.kv_curve.as_slice())))
        .filter(|(_, c)| !c.is_empty())
        .collect();
    let recording = curves.iter().map(|(row, _)| &row.recording).min()?;
    let mut curves: Vec<_> = curves.iter().filter(|(row, _)| row.recording == *recording).collect();
    // More lines than there are colours: of each method the one that keeps least.
    if curves.len() > MOST_CURVES {
        let least = |row: &Row| {
            curves
                .iter()
                .filter(|(r, _)| r.method == row.method)
                .filter_map(|(r, _)| r.target)
                .min_by(f64::total_cmp)
        };
        let kept: Vec<bool> = curves.iter().map(|(row, _)| row.target == least(row)).collect();
        let mut kept = kept.into_iter();
        curves.retain(|_| kept.next().unwrap_or(true));
    }
    let series = curves.iter().map(|(row, curve)| Series {
        name: row.target.map_or_else(|| row.method.clone(), |t| format!("{} {t}", row.method)),
        points: curve.iter().map(|(step, bytes)| Point::exact(*step as f64, *bytes as f64 / MIB)).collect(),
        joined: true,
    });
    Some(LineChart {
        title: format!("KV on the device, {dataset} {recording}"),
        subtitle: "allocated bytes, text included".into(),
        x_label: "decode step".into(),
        y_label: "MiB".into(),
        series: series.collect(),
        ..LineChart::default()
    })
}

fn lengths(dataset: &str, rows: &[&Row], scoring: &Scoring) -> Result<Option<LineChart>, CliError> {
    let mut series: Vec<Series> = Vec::new();
    for row in rows {
        let Some(scores) = score(row, scoring).map_err(wnw_eval::harness::HarnessError::from)? else {
            continue;
        };
        let (x, y) = (scores.plain.reference_len() as f64, scores.plain.hypothesis_len() as f64);
        match series.iter_mut().find(|s| s.name == row.method) {
            Some(series) => series.points.push(Point::exact(x, y)),
            None => series.push(Series {
                name: row.method.clone(),
                points: vec![Point::exact(x, y)],
                joined: false,
            }),
        }
    }
    Ok((!series.is_empty()).then(|| LineChart {
        title: format!("Length of the answers on {dataset}"),
        subtitle: "a point is a recording at a target; on the line both are as long".into(),
        x_label: "words of the reference".into(),
        y_label: "words of the answer".into(),
        diagonal: true,
        series,
        ..LineChart::default()
    }))
}
