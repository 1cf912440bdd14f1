//! What the KV cache held, in five lines for people.

use wnw_engine::{Statistics, Timing};

use crate::system::{bytes, peak_memory};

/// The report: method, retention, memory, traffic, process.
pub fn kv_report(statistics: &Statistics, timing: &Timing) -> [String; 5] {
    let kv = &statistics.kv;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let parameter = |name: &str| statistics.kv_parameters.get(name).map_or("", String::as_str);
    let roles: Vec<String> = kv
        .roles
        .iter()
        .map(|r| format!("{} {} heads {}", r.heads, r.role.name(), percent(r.r_gpu)))
        .collect();
    let swaps = &kv.swaps;
    let process = peak_memory().map_or_else(|| "not known on this system".to_owned(), bytes);
    [
        if statistics.kv_method != "wnw" {
            let all = statistics.kv_parameters.iter().map(|(name, value)| format!("{name} {value}"));
            format!("  KV method  {}: {}", statistics.kv_method, all.collect::<Vec<_>>().join(", "))
        } else {
            format!(
                "  KV method  {}: r_GPU {} aimed at, λ {}, {} chunks of {} tokens, segments of {}, released after {} steps, selection {}, release {}, warm start {}",
                statistics.kv_method,
                parameter("target_r_gpu"),
                parameter("lambda"),
                parameter("top_chunks"),
                parameter("chunk_tokens"),
                parameter("segment_tokens"),
                parameter("release_after"),
                parameter("selection"),
                parameter("release"),
                parameter("warm_start"),
            )
        },
        format!(
            "  audio kept {} on the device ({}), {} read, {} with the host",
            percent(kv.r_gpu),
            roles.join(", "),
            percent(kv.r_read),
            percent(kv.r_gpu_cpu)
        ),
        format!(
            "  KV memory  device {} ({} with the prefill), host {}",
            bytes(kv.kv_bytes),
            bytes(kv.kv_peak_bytes),
            bytes(kv.host_bytes)
        ),
        format!(
            "  recalled   {:.3} MB a step, waited for {:.3} ms a step ({} segments, {} already there, {} released, {} denied, {} evicted)",
            kv.recalled_bytes_per_step / 1e6,
            timing.recall_wait_ms,
            swaps.recalled_segments,
            swaps.hits,
            swaps.released_segments,
            swaps.denied,
            swaps.evicted
        ),
        format!("  process    {process} at its peak"),
    ]
}
