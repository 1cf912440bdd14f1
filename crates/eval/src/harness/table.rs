//! From rows to tables.

use std::cmp::Ordering;
use std::fmt::Write;

use serde::Serialize;
use wnw_engine::FinishReason;
use wnw_kv::policies::METHODS;

use super::{HarnessError, Metric, Row, Scores, Scoring, score};
use crate::bootstrap::{Interval, Resamples, compare, interval};
use crate::chrf::Variant;

/// The arm that others are compared with.
const BASELINE: &str = "full";
const MIB: f64 = (1 << 20) as f64;

/// One arm on one data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Data set.
    pub dataset: String,
    /// Method with type and options.
    pub method: String,
    /// Share of audio rows to keep.
    pub target: Option<f64>,
    /// What `score` is.
    pub metric: Metric,
    /// Recordings with a transcript.
    pub recordings: usize,
    /// Recordings without one; they count in no score.
    pub failed: usize,
    /// Transcripts that did not end by themselves.
    pub not_ended: usize,
    /// The score with its 95 % interval; none without a transcript.
    pub score: Option<Interval>,
    /// Score less that of the full cache, on the recordings that both have; none if these are fewer than two.
    pub difference: Option<Interval>,
    /// Word error rate of the whole hypothesis, in per cent.
    pub plain_wer: f64,
    /// Of words of the cut hypothesis: substitutions.
    pub substitutions: u64,
    /// Deletions.
    pub deletions: u64,
    /// Insertions.
    pub insertions: u64,
    /// Words of the references.
    pub reference_words: u64,
    /// Character error rate in per cent, cut.
    pub cer: f64,
    /// chrF.
    pub chrf: f64,
    /// Words of the whole hypothesis over words of the reference.
    pub length_ratio: f64,
    /// Share of audio KV rows on the device, mean over decode steps.
    pub r_gpu: f64,
    /// Share on the device or recallable, mean over decode steps.
    pub r_gpu_cpu: f64,
    /// Share that attention read, mean over decode steps.
    pub r_read: f64,
    /// The most KV bytes on the device after the prefill, mean over recordings.
    pub kv_bytes: f64,
    /// The same with the prefill.
    pub kv_peak_bytes: f64,
    /// The most KV bytes on the host, mean over recordings.
    pub host_bytes: f64,
    /// Bytes recalled, mean over decode steps.
    pub recalled_bytes_per_step: f64,
    /// Median of a decode step in milliseconds, mean over recordings.
    pub step_ms: f64,
    /// Seconds spent.
    pub seconds: f64,
}

/// A row with its counts.
struct Scored<'a> {
    row: &'a Row,
    scores: Scores,
}

/// One line per data set, method and target: data sets in the order of the rows, methods in that of the registry and then
/// of their options, targets falling.
pub fn lines(rows: &[Row], scoring: &Scoring) -> Result<Vec<Line>, HarnessError> {
    let mut lines = Vec::new();
    for dataset in distinct(rows.iter().map(|r| r.dataset.as_str())) {
        let here: Vec<&Row> = rows.iter().filter(|r| r.dataset == dataset).collect();
        let baseline = scored(here.iter().filter(|r| r.method == BASELINE && r.target.is_none()), scoring)?;
        let mut methods = distinct(here.iter().map(|r| r.method.as_str()));
        methods.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| natural(a, b)));
        for method in methods {
            let of_method = here.iter().filter(|r| r.method == method);
            let mut targets = distinct(of_method.clone().map(|r| r.target.map(f64::to_bits)));
            targets.sort_by(|a, b| {
                let value = |t: &Option<u64>| t.map_or(f64::INFINITY, f64::from_bits);
                value(b).total_cmp(&value(a))
            });
            for target in targets {
                let arm: Vec<&Row> =
                    of_method.clone().filter(|r| r.target.map(f64::to_bits) == target).copied().collect();
                lines.push(line(&arm, &baseline, scoring)?);
            }
        }
    }
    Ok(lines)
}

fn scored<'a>(
    rows: impl Iterator<Item = &'a &'a Row>,
    scoring: &Scoring,
) -> Result<Vec<Scored<'a>>, HarnessError> {
    let mut all = Vec::new();
    for row in rows {
        if let Some(scores) = score(row, scoring)? {
            all.push(Scored { row, scores });
        }
    }
    Ok(all)
}

fn line(arm: &[&Row], baseline: &[Scored<'_>], scoring: &Scoring) -> Result<Line, HarnessError> {
    let scored = scored(arm.iter(), scoring)?;
    let first = arm[0];
    let metric = if first.translate_to.is_some() { Metric::Bleu } else { Metric::Wer };
    let of = |scores: &Scores| scores.of(metric);
    let resamples = |n: usize| Resamples::new(n, scoring.resamples, scoring.seed);
    let counts: Vec<Scores> = scored.iter().map(|s| s.scores.clone()).collect();
    let score = match counts.len() {
        0 => None,
        n => Some(interval(&counts, &resamples(n)?, of)?),
    };
    let mut pairs = (Vec::new(), Vec::new());
    for ours in &scored {
        if let Some(theirs) = baseline.iter().find(|b| b.row.recording == ours.row.recording) {
            pairs.0.push(theirs.scores.clone());
            pairs.1.push(ours.scores.clone());
        }
    }
    let is_baseline = first.method == BASELINE && first.target.is_none();
    let against = match pairs.0.len() {
        // One recording says nothing about others.
        n if n > 1 && !is_baseline => Some(compare(&pairs.0, &pairs.1, &resamples(n)?, of)?),
        _ => None,
    };
    let mut sum = Scores::default();
    counts.iter().for_each(|s| sum += s);
    let ran: Vec<_> = scored.iter().filter_map(|s| s.row.ran()).collect();
    let n = ran.len().max(1) as f64;
    let mean = |f: &dyn Fn(&super::Ran) -> f64| ran.iter().map(|r| f(r)).sum::<f64>() / n;
    let steps = ran.iter().map(|r| r.new_tokens).sum::<usize>().max(1) as f64;
    let per_step =
        |f: &dyn Fn(&super::Ran) -> f64| ran.iter().map(|r| f(r) * r.new_tokens as f64).sum::<f64>() / steps;
    Ok(Line {
        dataset: first.dataset.clone(),
        method: first.method.clone(),
        target: first.target,
        metric,
        recordings: ran.len(),
        failed: arm.len() - ran.len(),
        not_ended: ran.iter().filter(|r| r.finish_reason != FinishReason::Stop).count(),
        score,
        difference: against.map(|c| c.difference),
        plain_wer: 100.0 * sum.plain.rate(),
        substitutions: sum.words.substitutions,
        deletions: sum.words.deletions,
        insertions: sum.words.insertions,
        reference_words: sum.words.reference_len(),
        cer: 100.0 * sum.characters.rate(),
        chrf: sum.chrf.score(Variant::Characters),
        length_ratio: sum.plain.hypothesis_len() as f64 / sum.plain.reference_len().max(1) as f64,
        r_gpu: per_step(&|r| r.r_gpu),
        r_gpu_cpu: per_step(&|r| r.r_gpu_cpu),
        r_read: per_step(&|r| r.r_read),
        kv_bytes: mean(&|r| r.kv_bytes as f64),
        kv_peak_bytes: mean(&|r| r.kv_peak_bytes as f64),
        host_bytes: mean(&|r| r.host_bytes as f64),
        recalled_bytes_per_step: per_step(&|r| r.recalled_bytes_per_step),
        step_ms: mean(&|r| r.timing.step_ms),
        seconds: ran.iter().map(|r| r.timing.total).sum(),
    })
}

/// A method's place in the registry; after all others where it has none.
fn place(method: &str) -> usize {
    let name = method.split([':', '@']).next().unwrap_or_default();
    METHODS.iter().position(|entry| entry.name == name).unwrap_or(METHODS.len())
}

/// Numbers in names by their value: `n_voice=4` before `n_voice=12`.
fn natural(a: &str, b: &str) -> Ordering {
    let number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut a, mut b) = (a, b);
    loop {
        let (Some(x), Some(y)) = (a.chars().next(), b.chars().next()) else { return a.len().cmp(&b.len()) };
        // As much of both as is number, or is not.
        let run = |text: &str, like: char| text.find(|c| number(c) != number(like)).unwrap_or(text.len());
        let ((first, rest_a), (second, rest_b)) = (a.split_at(run(a, x)), b.split_at(run(b, y)));
        let by_value =
            first.parse::<f64>().ok().zip(second.parse::<f64>().ok()).map(|(a, b)| a.total_cmp(&b));
        match by_value.unwrap_or_else(|| first.cmp(second)) {
            Ordering::Equal => (a, b) = (rest_a, rest_b),
            other => return other,
        }
    }
}

/// Values in the order in which they first come.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn target(target: Option<f64>) -> String {
    target.map_or_else(|| "–".into(), |t| format!("{t}"))
}

/// A name as it can stand between the bars of a table.
fn cell(name: &str) -> String {
    name.replace('|', "\\|")
}

/// A table of all lines for people, in Markdown.
pub fn markdown(lines: &[Line]) -> String {
    let mut out = String::from(
        "| data set | method | target | score | 95 % | against full (95 %) | S / D / I | not ended | r_GPU % | r_GPU+CPU % | read % | device MiB | host MiB | MB/step | ms/token |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for l in lines {
        let (score, range) = match l.score {
            Some(i) => (format!("{} {:.1}", l.metric.name(), i.score), format!("{:.1}–{:.1}", i.low, i.high)),
            None => ("–".into(), "–".into()),
        };
        let difference = l
            .difference
            .map_or_else(|| "–".into(), |d| format!("{:+.1} ({:+.1} to {:+.1})", d.score, d.low, d.high));
        let failed = if l.failed > 0 { format!(", {} failed", l.failed) } else { String::new() };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} | {score} | {range} | {difference} | {} / {} / {} | {} of {}{failed} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {:.3} | {:.2} |",
            cell(&l.dataset),
            cell(&l.method),
            target(l.target),
            l.substitutions,
            l.deletions,
            l.insertions,
            l.not_ended,
            l.recordings,
            100.0 * l.r_gpu,
            100.0 * l.r_gpu_cpu,
            100.0 * l.r_read,
            l.kv_bytes / MIB,
            l.host_bytes / MIB,
            l.recalled_bytes_per_step / 1e6,
            l.step_ms,
        );
    }
    out
}

/// For each data set a table of methods by targets, as the paper prints them, in Markdown: the score, and in brackets
/// the transcripts that did not end, if any.
pub fn overview(lines: &[Line]) -> String {
    let mut out = String::new();
    for dataset in distinct(lines.iter().map(|l| l.dataset.as_str())) {
        let here: Vec<&Line> = lines.iter().filter(|l| l.dataset == dataset).collect();
        let mut columns = distinct(here.iter().filter_map(|l| l.target));
        columns.sort_by(|a, b| b.total_cmp(a));
        let mut columns: Vec<Option<f64>> = columns.into_iter().map(Some).collect();
        if columns.is_empty() {
            columns.push(None);
        }
        let metric = here[0].metric.name();
        let most = here.iter().map(|l| l.recordings + l.failed).max().unwrap_or(0);
        let heads: Vec<String> = columns.iter().map(|t| target(*t)).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "**{}**, {metric}, {most} recording{}; in brackets: not ended\n\n| method | {} |\n|---|{}",
            cell(dataset),
            if most == 1 { "" } else { "s" },
            heads.join(" | "),
            "---|".repeat(columns.len())
        );
        for method in distinct(here.iter().map(|l| l.method.as_str())) {
            let of = |t: Option<f64>| here.iter().find(|l| l.method == method && l.target == t);
            // What keeps everything has one score for all targets.
            let cells = columns.iter().map(|t| match of(*t).or(of(None)).map(|l| (l.score, l.not_ended)) {
                Some((Some(s), 0)) => format!("{:.1}", s.score),
                Some((Some(s), n)) => format!("{:.1} ({n})", s.score),
                _ => "–".into(),
            });
            let _ = writeln!(out, "| {} | {} |", cell(method), cells.collect::<Vec<_>>().join(" | "));
        }
        out.push('\n');
    }
    out
}

/// All lines as comma-separated values, one column for each number.
pub fn csv(lines: &[Line]) -> String {
    let mut out = String::from(
        "dataset,method,target,metric,recordings,failed,not_ended,score,score_low,score_high,difference,difference_low,difference_high,plain_wer,substitutions,deletions,insertions,reference_words,cer,chrf,length_ratio,r_gpu,r_gpu_cpu,r_read,kv_bytes,kv_peak_bytes,host_bytes,recalled_bytes_per_step,step_ms,seconds\n",
    );
    let quoted = |text: &str| {
        if text.contains(['"', ',', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text.to_owned()
        }
    };
    let number = |x: Option<f64>| x.map_or_else(String::new, |x| format!("{x}"));
    for l in lines {
        let three = |i: Option<Interval>| {
            [number(i.map(|i| i.score)), number(i.map(|i| i.low)), number(i.map(|i| i.high))].join(",")
        };
        let metric = match l.metric {
            Metric::Wer => "wer",
            Metric::Bleu => "bleu",
        };
        let _ = writeln!(
            out,
            "{},{},{},{metric},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            quoted(&l.dataset),
            quoted(&l.method),
            number(l.target),
            l.recordings,
            l.failed,
            l.not_ended,
            three(l.score),
            three(l.difference),
            l.plain_wer,
            l.substitutions,
            l.deletions,
            l.insertions,
            l.reference_words,
            l.cer,
            l.chrf,
            l.length_ratio,
            l.r_gpu,
            l.r_gpu_cpu,
            l.r_read,
            l.kv_bytes,
            l.kv_peak_bytes,
            l.host_bytes,
            l.recalled_bytes_per_step,
            l.step_ms,
            l.seconds,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Ran, RowResult, Timing};

    fn row(recording: &str, method: &str, target: Option<f64>, text: Option<&str>) -> Row {
        let result = match text {
            None => RowResult::Failed { error: "gone".into() },
            Some(text) => RowResult::Done(Box::new(Ran {
                text: text.into(),
                finish_reason: if text.contains("five five") {
                    FinishReason::Repetition
                } else {
                    FinishReason::Stop
                },
                warnings: Vec::new(),
                duration: 2.0,
                new_tokens: 10,
                r_gpu: 0.25,
                r_gpu_cpu: 0.5,
                r_read: 0.25,
                kv_bytes: 1 << 20,
                kv_peak_bytes: 2 << 20,
                host_bytes: 1 << 19,
                recalled_bytes_per_step: 1000.0,
                kv_curve: Vec::new(),
                timing: Timing { total: 1.0, step_ms: 2.0, ..Timing::default() },
            })),
        };
        Row {
            dataset: "d".into(),
            recording: recording.into(),
            method: method.into(),
            target,
            translate_to: None,
            reference: "One, two three four.".into(),
            result,
        }
    }

    fn some_rows() -> Vec<Row> {
        vec![
            row("a", "full", None, Some("one two three four.")),
            row("b", "full", None, Some("one two four.")),
            row("a", "snapkv", Some(0.4), Some("one two")),
            row("b", "snapkv", Some(0.4), Some("one two four.")),
            row("a", "wnw", Some(0.2), Some("one two three four. five five five five")),
            row("b", "wnw", Some(0.2), None),
            row("a", "wnw", Some(0.4), Some("one two\nthree four.")),
        ]
    }

    #[test]
    fn lines_count_what_was_said() {
        let lines = lines(&some_rows(), &Scoring::default()).unwrap();
        let arms: Vec<_> = lines.iter().map(|l| (l.method.as_str(), l.target)).collect();
        assert_eq!(arms, [("full", None), ("wnw", Some(0.4)), ("wnw", Some(0.2)), ("snapkv", Some(0.4))]);
        assert_eq!(lines[3].difference.unwrap().score, 25.0);
        assert_eq!(lines[0].score.unwrap().score, 12.5);
        assert_eq!((lines[0].deletions, lines[0].difference), (1, None));
        assert_eq!(lines[1].score.unwrap().score, 0.0);
        // 4 words allow ⌊4.8⌋ = 4: what comes after is cut in the score, and not in the plain rate.
        let looping = &lines[2];
        assert_eq!((looping.recordings, looping.failed, looping.not_ended), (1, 1, 1));
        assert_eq!((looping.score.unwrap().score, looping.plain_wer), (0.0, 100.0));
        // Only recording a has both: too few to compare.
        assert_eq!(looping.difference, None);
        assert_eq!(looping.length_ratio, 2.0);
    }

    #[test]
    fn methods_stand_in_the_order_of_the_registry_and_numbers_by_value() {
        let mut names = [
            "zzz",
            "snapkv",
            "wnw:n_voice=12",
            "wnw",
            "wnw:n_voice=4",
            "wnw:chunk=2:segment=1",
            "full",
            "wnw@int8",
        ];
        names.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| natural(a, b)));
        assert_eq!(
            names,
            [
                "full",
                "wnw",
                "wnw:chunk=2:segment=1",
                "wnw:n_voice=4",
                "wnw:n_voice=12",
                "wnw@int8",
                "snapkv",
                "zzz"
            ]
        );
        assert_eq!(natural("a1.5b", "a1.5b"), Ordering::Equal);
        assert_eq!(natural("a..", "a1"), ".".cmp("1"));
    }

    #[test]
    fn translations_are_scored_by_bleu() {
        let rows: Vec<Row> =
            some_rows().into_iter().map(|r| Row { translate_to: Some("fr".into()), ..r }).collect();
        let lines = lines(&rows, &Scoring::default()).unwrap();
        assert_eq!(lines[0].metric, Metric::Bleu);
        assert!(markdown(&lines).contains("| BLEU "), "{}", markdown(&lines));
    }

    #[test]
    fn tables_have_a_cell_for_everything() {
        let lines = lines(&some_rows(), &Scoring::default()).unwrap();
        let table = markdown(&lines);
        let widths: Vec<usize> = table.lines().map(|l| l.matches('|').count()).collect();
        assert!(widths.iter().all(|w| *w == widths[0]), "{table}");
        assert!(table.contains("1 of 1, 1 failed"), "{table}");
        assert_eq!(cell("a|b"), "a\\|b");
        let overview = overview(&lines);
        assert!(overview.contains("| method | 0.4 | 0.2 |"), "{overview}");
        assert!(overview.contains("| full | 12.5 | 12.5 |"), "{overview}");
        assert!(overview.contains("| wnw | 0.0 | 0.0 (1) |"), "{overview}");
        let csv = csv(&lines);
        let columns: Vec<usize> = csv.lines().map(|l| l.matches(',').count()).collect();
        assert!(columns.iter().all(|c| *c == columns[0]), "{csv}");
        let alone = super::overview(&lines[..1]);
        assert!(alone.contains("| method | – |\n|---|---|\n| full | 12.5 |"), "{alone}");
    }
}
