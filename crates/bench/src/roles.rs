//! Head roles of a model that nobody calibrated, in the proportions of real ones.

use wnw_kv::policies::wnw::WnwParams;
use wnw_kv::profile::{Calibration, PROFILE_VERSION, Profile, ProfileError, WnwOptions};
use wnw_kv::{KvShape, Role, Segments};

use crate::random::Random;

/// Heads that keep everything in the paper (arXiv 2608.22704), of 240.
const ANCHORS: (usize, usize) = (5, 240);
/// Segments that recall holds in each tidal head on speech, mean over steps: three chunks around one centre are four, and
/// those that were left behind stay for a while.
const RECALLED_SEGMENTS: f64 = 4.5;

/// WnW's parameters for a target r_GPU, with λ such that what prefill keeps, rounded to rows, and what recall will add
/// meet it.
pub fn params(
    shape: KvShape,
    tokens_per_second: f64,
    segments: impl Fn(usize) -> Segments,
    r_gpu: f64,
) -> Result<WnwParams, ProfileError> {
    let profile = profile(shape, tokens_per_second);
    let at =
        |lambda: f64| profile.params(&WnwOptions { r_gpu, lambda: Some(lambda), ..WnwOptions::default() });
    let segments = segments(at(0.0)?.segment_rows);
    let rows = segments.ranges().last().map_or(0, |last| last.end).max(1) as f64;
    let share = |params: &WnwParams| {
        let head = |(role, retention): (&Role, &f64)| {
            if *role == Role::Anchor {
                return 1.0;
            }
            let kept = WnwParams::kept_rows(*retention, &segments) as f64 / rows;
            let recalled = (RECALLED_SEGMENTS / segments.len().max(1) as f64).min(1.0);
            kept + if *role == Role::Tidal { (1.0 - kept) * recalled } else { 0.0 }
        };
        params.roles.iter().zip(&params.retention).map(head).sum::<f64>() / params.roles.len() as f64
    };
    if r_gpu >= 1.0 {
        return profile.params(&WnwOptions { r_gpu, ..WnwOptions::default() });
    }
    let (mut low, mut high) = (0.0, 1.0);
    while high < 1e6 && share(&at(high)?) < r_gpu {
        (low, high) = (high, high * 2.0);
    }
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if share(&at(middle)?) < r_gpu { low = middle } else { high = middle }
    }
    at(low)
}

/// A profile whose heads, in random order, matter as unequally as those of real models: the most important twenty times as
/// much as the least.
fn profile(shape: KvShape, tokens_per_second: f64) -> Profile {
    let heads = shape.n_layers * shape.n_kv_heads;
    let mut random = Random::new(heads as u64);
    Profile {
        version: PROFILE_VERSION,
        fingerprint: String::new(),
        model: String::new(),
        shape,
        tokens_per_second,
        calibration: Calibration::default(),
        voice_score: (0..heads).map(|_| (-3.0 * random.unit()).exp()).collect(),
        head_sensitivity: vec![1.0; heads],
        n_anchor: (heads * ANCHORS.0 / ANCHORS.1).max(1),
        lambda: Vec::new(),
        options: WnwOptions::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wnw_kv::PromptLayout;

    #[test]
    fn roles_are_the_papers_and_rows_meet_the_target() {
        let shape = KvShape { n_layers: 30, n_q_heads: 32, n_kv_heads: 8, head_dim: 128 };
        let layout = PromptLayout::around(4, 22_500);
        let made = params(shape, 12.5, |rows| Segments::new(&layout, rows), 0.2).unwrap();
        let count = |role| made.roles.iter().filter(|r| **r == role).count();
        assert_eq!((count(Role::Anchor), count(Role::Tidal), count(Role::Fixed)), (5, 85, 150));
        let segments = Segments::new(&layout, made.segment_rows);
        let kept: usize = made
            .roles
            .iter()
            .zip(&made.retention)
            .map(|(role, r)| if *role == Role::Anchor { 22_500 } else { WnwParams::kept_rows(*r, &segments) })
            .sum();
        let share = kept as f64 / (240.0 * 22_500.0);
        assert!((0.19..0.2).contains(&share), "{share}");
        made.check(240).unwrap();
        let whole = params(shape, 12.5, |rows| Segments::new(&layout, rows), 1.0).unwrap();
        assert!(whole.retention.iter().all(|r| *r == 1.0));
    }
}
