//! Tables of `wnw bench` for people.

use comfy_table::{Table, presets};
use wnw_bench::decode::DecodeRow;
use wnw_bench::growth::Growth;
use wnw_bench::limit::{Limit, Peak};
use wnw_bench::stages::Stage;

use crate::system::clock;

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    table
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "–".into())
}

/// Bandwidth by threads, then peaks.
pub fn limit_table(limit: &Limit) -> String {
    let mut read = table(["threads", "memory read GB/s", "median"]);
    for rate in &limit.read {
        read.add_row([
            rate.threads.to_string(),
            format!("{:.1}", rate.gb_per_s),
            format!("{:.1}", rate.median_gb_per_s),
        ]);
    }
    let mut peak = table(["operand", "threads", "GFLOP/s"]);
    for row in &limit.peak {
        peak.add_row([
            row.operand.name().to_owned(),
            row.threads.to_string(),
            row.gflops.map_or_else(|| "no instruction".into(), |x| format!("{x:.0}")),
        ]);
    }
    format!("{read}\n\n{peak}\n")
}

/// One line a combination.
pub fn decode_table(rows: &[DecodeRow]) -> String {
    let mut out = table([
        "audio",
        "KV",
        "batch",
        "ms",
        "p99",
        "tok/s",
        "weights ms",
        "KV ms",
        "plan ms",
        "weights MB",
        "KV MB",
        "MB/step",
        "GB/s",
        "share",
        "weights share",
        "KV share",
        "r_GPU",
        "wait ms",
        "recall adds",
    ]);
    for row in rows {
        let method = match row.kv {
            "full" => "full".to_owned(),
            kv => format!("{kv} {} {} {}", row.r_gpu_target, row.sweep, row.swap),
        };
        out.add_row([
            clock(row.audio_seconds),
            method,
            row.batch.to_string(),
            format!("{:.2}", row.ms_median),
            format!("{:.2}", row.ms_p99),
            format!("{:.1}", row.tokens_per_s),
            format!("{:.2}", row.parts_ms.weights),
            format!("{:.2}", row.parts_ms.kv),
            format!("{:.2}", row.parts_ms.plan),
            format!("{:.1}", row.bytes.weights as f64 / 1e6),
            format!("{:.1}", row.bytes.kv / 1e6),
            format!("{:.3}", row.mb_per_step),
            format!("{:.1}", row.gb_per_s),
            percent(row.share),
            percent(row.weights_share),
            percent(row.kv_share),
            format!("{:.3}", row.r_gpu),
            format!("{:.2}", row.recall_wait_ms),
            or_dash(row.recall_added.map(|x| format!("{:+.1} %", 100.0 * x))),
        ]);
    }
    format!("{out}\n")
}

/// Three moments, and what they say.
pub fn growth_table(growth: &Growth) -> String {
    let mut out = table(["at", "text", "ms", "KV ms", "KV MB", "r_GPU"]);
    for moment in [&growth.early, &growth.early_with_late_text, &growth.late] {
        out.add_row([
            clock(moment.at_seconds),
            moment.text.to_string(),
            format!("{:.2}", moment.ms_median),
            format!("{:.2}", moment.kv_ms_median),
            format!("{:.1}", moment.kv_bytes / 1e6),
            format!("{:.3}", moment.r_gpu),
        ]);
    }
    format!(
        "{out}\nlate over early: {:+.1} %, of which not due to text: {:+.1} %\n",
        100.0 * growth.growth,
        100.0 * growth.growth_beyond_text
    )
}

/// One line a stage; shares of each peak that there is.
pub fn stage_table(rows: &[Stage], peaks: &[Peak]) -> String {
    let mut out = table(["stage", "audio", "seconds", "× real time", "GFLOP", "GFLOP/s", "of peak"]);
    for row in rows {
        let shares = peaks
            .iter()
            .filter_map(|p| Some(format!("{} {}", percent(row.gflops? / p.gflops?), p.operand.name())));
        let shares: Vec<String> = shares.collect();
        out.add_row([
            row.stage.to_owned(),
            clock(row.audio_seconds),
            format!("{:.3}", row.seconds),
            format!("{:.1}", row.times_real_time),
            or_dash(row.gflop.map(|x| format!("{x:.0}"))),
            or_dash(row.gflops.map(|x| format!("{x:.0}"))),
            or_dash((!shares.is_empty()).then(|| shares.join(", "))),
        ]);
    }
    let few = rows.iter().find_map(|row| row.layers);
    let note =
        few.map_or_else(String::new, |n| format!("{n} layers only: real time is that of these layers\n"));
    format!("{out}\n{note}")
}
