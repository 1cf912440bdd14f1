//! What the KV cache held and moved, summed over decode steps and windows.

use serde::Serialize;
use wnw_kv::{KvStore, Role, SwapCounters};

/// What the heads of one role held, mean over decode steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoleStatistics {
    /// The role.
    pub role: Role,
    /// KV heads that have it.
    pub heads: usize,
    /// Share of these heads' audio rows on the device.
    pub r_gpu: f64,
}

/// One role's sums; a later window may be without it.
#[derive(Clone, Copy, Debug)]
struct RoleSum {
    role: Role,
    /// Heads in the first window that had the role.
    heads: usize,
    /// Of those windows.
    steps: u64,
    /// Sum over steps of the share of rows.
    share: f64,
}

/// Sums over decode steps.
#[derive(Clone, Debug, Default)]
pub struct KvSums {
    windows: usize,
    steps: u64,
    resident: f64,
    read: f64,
    reachable: f64,
    roles: Vec<RoleSum>,
    waited: f64,
    counters: SwapCounters,
    device_peak: u64,
    prefill_peak: u64,
    host_peak: u64,
    store_roles: Vec<Role>,
    rows: Vec<u64>, // used again by each step
}

impl KvSums {
    /// Begins a window; call when its store is filled. `roles` are the policy's; without any they are what heads keep.
    pub fn begin(&mut self, store: &KvStore, roles: Vec<Role>) {
        self.windows += 1;
        self.store_roles = if roles.is_empty() { store.roles() } else { roles };
        self.host_peak = self.host_peak.max(store.report().host_bytes);
        self.device_peak = self.device_peak.max(store.device_bytes());
    }

    /// Counts what a step's attention saw; call before the swap that follows it.
    pub fn step(&mut self, store: &KvStore) {
        let mut rows = std::mem::take(&mut self.rows);
        store.head_rows_into(&mut rows);
        let read = rows.iter().sum::<u64>() as f64;
        store.held_rows_into(&mut rows);
        let n_audio = store.layout().n_audio() as f64;
        let share = |rows: f64, heads: f64| if n_audio == 0.0 { 1.0 } else { rows / (heads * n_audio) };
        self.steps += 1;
        self.read += share(read, rows.len() as f64);
        self.resident += share(rows.iter().sum::<u64>() as f64, rows.len() as f64);
        let mut reachable = 0.0;
        for (role, rows) in self.store_roles.iter().zip(&rows) {
            reachable += if *role == Role::Tidal { n_audio } else { *rows as f64 };
        }
        self.reachable += share(reachable, rows.len() as f64);
        for role in [Role::Anchor, Role::Tidal, Role::Fixed, Role::Whole] {
            let held = self.store_roles.iter().zip(&rows).filter(|(r, _)| **r == role);
            let (heads, held) = held.fold((0, 0), |(heads, sum), (_, rows)| (heads + 1, sum + rows));
            if heads == 0 {
                continue;
            }
            let share = share(held as f64, heads as f64);
            match self.roles.iter_mut().find(|r| r.role == role) {
                Some(sum) => (sum.steps, sum.share) = (sum.steps + 1, sum.share + share),
                // A later window, which may be short and keep everything, has other roles: they are not mixed.
                None if self.windows > 1 => {}
                None => self.roles.push(RoleSum { role, heads, steps: 1, share }),
            }
        }
        self.rows = rows;
        self.device_peak = self.device_peak.max(store.device_bytes());
    }

    /// Ends a window.
    pub fn end(&mut self, store: &KvStore) {
        let swaps = store.report().swaps;
        self.counters.recalled_segments += swaps.recalled_segments;
        self.counters.recalled_bytes += swaps.recalled_bytes;
        self.counters.released_segments += swaps.released_segments;
        self.counters.hits += swaps.hits;
        self.counters.denied += swaps.denied;
        self.counters.evicted += swaps.evicted;
        self.waited += store.waited().as_secs_f64();
        self.device_peak = self.device_peak.max(store.device_bytes());
        self.prefill_peak = self.prefill_peak.max(store.device().peak());
    }

    fn mean(&self, sum: f64) -> f64 {
        if self.steps == 0 { 1.0 } else { sum / self.steps as f64 }
    }

    /// The figures for the transcript.
    pub fn statistics(&self) -> KvStatistics {
        let mut roles: Vec<RoleStatistics> = self
            .roles
            .iter()
            .map(|r| RoleStatistics { role: r.role, heads: r.heads, r_gpu: r.share / r.steps as f64 })
            .collect();
        roles.sort_unstable_by_key(|r| r.role);
        KvStatistics {
            r_gpu: self.mean(self.resident),
            r_read: self.mean(self.read),
            r_gpu_cpu: self.mean(self.reachable),
            kv_bytes: self.device_peak,
            kv_peak_bytes: self.prefill_peak,
            host_bytes: self.host_peak,
            recalled_bytes_per_step: if self.steps == 0 {
                0.0
            } else {
                self.counters.recalled_bytes as f64 / self.steps as f64
            },
            swaps: self.counters,
            roles,
        }
    }

    /// Mean milliseconds of a step that were spent waiting for recalled rows.
    pub fn wait_ms(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.waited * 1e3 / self.steps as f64 }
    }
}

/// KV figures of a transcript; the same for the same input and flags.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KvStatistics {
    /// Share of audio KV rows on the device, mean over decode steps (r_GPU).
    pub r_gpu: f64,
    /// Share that attention read, mean over decode steps: less than r_GPU where rows are there and not looked at.
    pub r_read: f64,
    /// Share on the device or recallable, mean over decode steps (r_GPU+CPU).
    pub r_gpu_cpu: f64,
    /// The most KV bytes allocated on the device at once, text included, after the prefill.
    pub kv_bytes: u64,
    /// The same with the prefill, when one layer's full keys and values are there beside what was kept so far.
    pub kv_peak_bytes: u64,
    /// The most KV bytes on the host at once.
    pub host_bytes: u64,
    /// Bytes recalled from the host, mean over decode steps.
    pub recalled_bytes_per_step: f64,
    /// What was moved.
    pub swaps: SwapCounters,
    /// By role of the heads: roles and numbers of the first window, means over all windows.
    pub roles: Vec<RoleStatistics>,
}
