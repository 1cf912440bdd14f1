//! What the report says is what the process has. Alone in its file: no other test may allocate meanwhile.
#![cfg(target_os = "linux")]
#![allow(clippy::single_range_in_vec_init)]

use wnw_kv::policies::Full;
use wnw_kv::{
    HeadSelection, HostPlace, KvShape, KvStore, LayerView, Policy, PromptLayout, StoreOptions, SwapPlan,
};

const SHAPE: KvShape = KvShape { n_layers: 12, n_q_heads: 4, n_kv_heads: 4, head_dim: 64 };
const N_AUDIO: usize = 8000;

/// Every fifth row on the device, the others on the host.
struct Fifth;

impl Policy for Fifth {
    fn name(&self) -> &'static str {
        "fifth"
    }
    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let kept: Vec<u32> = (0..view.layout.n_audio() as u32).step_by(5).collect();
        vec![HeadSelection::Tiered(kept); view.shape.n_kv_heads]
    }
}

/// Resident memory of this process in bytes.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 1024
}

fn fill(policy: &mut dyn Policy, options: &StoreOptions, layout: &PromptLayout, rows: &[f32]) -> KvStore {
    let mut store = KvStore::new(SHAPE, layout.clone(), options);
    for layer in 0..SHAPE.n_layers {
        let view =
            LayerView { layer, shape: SHAPE, layout, k: rows, v: rows, observed: &[], q: &[], scale: 1.0 };
        let selection = policy.after_prefill(&view);
        store.admit(&view, &selection).unwrap();
    }
    store
}

#[test]
fn the_report_agrees_with_the_process() {
    #[allow(clippy::single_range_in_vec_init)] // one recording
    let layout = PromptLayout::new(N_AUDIO + 4, vec![2..N_AUDIO + 2]).unwrap();
    let rows: Vec<f32> = (0..SHAPE.n_kv_heads * layout.len() * SHAPE.head_dim).map(|i| i as f32).collect();
    let full_bytes = (12 * 4 * N_AUDIO * 64 * 2 * 2) as u64;
    // The allocator keeps a little for itself.
    let close = |grown: i64, said: u64| {
        let (grown, said) = (grown as f64, said as f64);
        assert!(
            (grown - said).abs() < 0.05 * said + 2e6,
            "the process grew by {grown:.0}, the report says {said:.0}"
        );
    };

    let before = resident();
    // From the smallest to the largest: what the allocator keeps of one is used for the next.
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { host_place: HostPlace::File(dir.path().into()), ..StoreOptions::default() };
    let mut store = fill(&mut Fifth, &options, &layout, &rows);
    let report = store.report();
    assert!((report.device_bytes as f64 / full_bytes as f64 - 0.2).abs() < 0.02, "{}", report.device_bytes);
    assert_eq!(report.host_bytes, full_bytes / 5 * 4);
    // The host file is not in memory until it is read.
    close(resident() - before, report.device_bytes);
    store.swap(&SwapPlan { wanted: (0..10).collect(), release: vec![] }).unwrap();
    let recalled = store.report();
    assert!(recalled.device_bytes > report.device_bytes);
    drop(store);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let store = fill(&mut Fifth, &StoreOptions::default(), &layout, &rows);
    let report = store.report();
    close(resident() - before, report.device_bytes + report.host_bytes);
    drop(store);

    let store = fill(&mut Full, &StoreOptions::default(), &layout, &rows);
    let report = store.report();
    assert!(report.device_bytes >= full_bytes && report.device_bytes < full_bytes + full_bytes / 20);
    close(resident() - before, report.device_bytes);
}
