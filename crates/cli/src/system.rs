//! The process: threads, memory; and figures for people.

pub use wnw_plot::clock;

/// Sets up the computing threads: as many as asked for, or as many as the process may use (its affinity and quota
/// counted). Must be called before any are started. `main_drives` says whether the main thread is to be one of them.
pub fn set_threads(threads: Option<u16>, main_drives: bool) {
    let threads =
        threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    // SAFETY: called at the start of `main`, while this is the only thread, so nobody reads the environment.
    // candle's thread pool can be sized in no other way, and by itself it counts all cores of the machine.
    unsafe { std::env::set_var("CANDLE_NUM_THREADS", threads.to_string()) };
    // The main thread, which drives every step, is one of the pool: handing each product to another thread and sleeping
    // until it is done would cost more than many of the products. Building fails only when a pool exists already.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let pool = if main_drives { pool.use_current_thread() } else { pool };
    let _ = pool.build_global();
}

/// The most memory this process has had resident, in bytes; `None` where the system does not say.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Memory that this process can still have, in bytes: what the system calls available, within the limit of its control
/// group; `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let available = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let group = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
    };
    let left = group("memory.max").map(|max| max.saturating_sub(group("memory.current").unwrap_or(0)));
    Some(left.map_or(available, |left| left.min(available)))
}

/// The processor's name, or its architecture where the system does not say.
pub fn processor() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Bytes for people: three digits and a binary unit.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.*} {}", if value < 10.0 { 2 } else { 1 }, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(3 << 30), "3.00 GiB");
        assert_eq!((clock(59.6), clock(3723.0)), ("1:00".into(), "1:02:03".into()));
    }
}
