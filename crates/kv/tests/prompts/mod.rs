//! Prompts made of noise, and attention by the definition, for tests of policies.
#![allow(dead_code)] // each test file uses a part

use std::collections::BTreeMap;

use wnw_kv::policies::budget::Budget;
use wnw_kv::policies::registry::{BuildError, Entry, Inputs};
use wnw_kv::profile::{Calibration, PROFILE_VERSION, Profile, WnwOptions};
use wnw_kv::{
    HeadSelection, KvDtype, KvShape, KvStore, LayerView, Policy, PromptLayout, PromptRows, StoreOptions,
};

pub const SCALE: f32 = 0.4;

pub fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32 / (1u64 << 24) as f32) * 4.0 - 2.0
        })
        .collect()
}

/// Stretches of text and audio in turn, beginning with text.
pub fn layout(lengths: &[usize]) -> PromptLayout {
    let (mut at, mut audio) = (0, Vec::new());
    for (i, length) in lengths.iter().enumerate() {
        if i % 2 == 1 {
            audio.push(at..at + length);
        }
        at += length;
    }
    PromptLayout::new(at, audio).unwrap()
}

pub fn shape(n_layers: usize, n_kv_heads: usize, group: usize, head_dim: usize) -> KvShape {
    KvShape { n_layers, n_q_heads: n_kv_heads * group, n_kv_heads, head_dim }
}

/// Width of [`Prompt::x`].
pub const WIDTH: usize = 5;

/// A prompt's keys, values and queries, and states for what looks at these.
pub struct Prompt {
    pub shape: KvShape,
    pub layout: PromptLayout,
    pub profile: Profile,
    pub k: Vec<Vec<f32>>, // per layer (n_kv_heads, len, head_dim)
    pub v: Vec<Vec<f32>>,
    pub q: Vec<Vec<f32>>, // per layer (len, n_q_heads, head_dim)
    pub x: Vec<f32>,      // (len, WIDTH)
}

impl Prompt {
    pub fn new(shape: KvShape, layout: PromptLayout, seed: u64) -> Self {
        let size = |heads: usize| heads * layout.len() * shape.head_dim;
        let many = |size: usize, salt: u64| {
            (0..shape.n_layers as u64).map(|l| noise(size, seed ^ (salt + 97 * l))).collect()
        };
        let heads = shape.n_layers * shape.n_kv_heads;
        let scores =
            |salt: u64| noise(heads, seed ^ salt).iter().map(|x| f64::from(x.abs()) / 4.0 + 0.5).collect();
        let profile = Profile {
            version: PROFILE_VERSION,
            fingerprint: String::new(),
            model: String::new(),
            shape,
            tokens_per_second: 5.0,
            calibration: Calibration::default(),
            voice_score: scores(11),
            head_sensitivity: scores(12),
            n_anchor: 1,
            lambda: vec![],
            options: WnwOptions::default(),
        };
        let (k, v, q) = (
            many(size(shape.n_kv_heads), 1),
            many(size(shape.n_kv_heads), 2),
            many(size(shape.n_q_heads), 3),
        );
        let x = noise(layout.len() * WIDTH, seed ^ 4);
        Self { shape, layout, profile, k, v, q, x }
    }

    pub fn policy(
        &self,
        entry: &Entry,
        budget: Budget,
        options: &[(&str, &str)],
    ) -> Result<Box<dyn Policy>, BuildError> {
        let options: BTreeMap<String, String> =
            options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (shape, profile) = (self.shape, Some(&self.profile));
        entry.policy(&Inputs { shape, layout: &self.layout, budget, profile, options: &options })
    }

    /// Selections of all heads, `(n_layers, n_kv_heads)`, as lists of rows; and a store that took them.
    pub fn prefill(&self, policy: &mut dyn Policy) -> (Vec<Vec<u32>>, KvStore) {
        self.prefill_into(policy, &StoreOptions { dtype: KvDtype::F32, ..StoreOptions::default() })
    }

    /// The same with a store of other options.
    pub fn prefill_into(&self, policy: &mut dyn Policy, options: &StoreOptions) -> (Vec<Vec<u32>>, KvStore) {
        let options = StoreOptions { segment_rows: policy.segment_rows(), ..options.clone() };
        let mut store = KvStore::new(self.shape, self.layout.clone(), &options);
        let observed = policy.observes(&self.layout);
        assert!(observed.windows(2).all(|w| w[0] < w[1]) && observed.iter().all(|p| *p < self.layout.len()));
        let (row, n_audio) = (self.shape.n_q_heads * self.shape.head_dim, self.layout.n_audio() as u32);
        let mut kept = Vec::new();
        let (mut rows, mut x) = (PromptRows::new(self.layout.len()), self.x.clone());
        for layer in 0..self.shape.n_layers {
            if let Some(merge) = policy.before_layer(layer, &rows, &x) {
                assert!(observed.is_empty());
                rows.merge(&merge, &self.layout, &mut x).unwrap();
            }
            let q: Vec<f32> =
                observed.iter().flat_map(|p| &self.q[layer][p * row..(p + 1) * row]).copied().collect();
            let view = LayerView {
                layer,
                shape: self.shape,
                layout: &self.layout,
                k: &self.k[layer],
                v: &self.v[layer],
                observed: &observed,
                q: &q,
                scale: SCALE,
            };
            let selection = rows.restrict(policy.after_prefill(&view), &self.layout).unwrap();
            assert_eq!(selection.len(), self.shape.n_kv_heads);
            for head in &selection {
                let rows = match head {
                    HeadSelection::All => (0..n_audio).collect(),
                    HeadSelection::Only(rows) | HeadSelection::Tiered(rows) => rows.clone(),
                };
                assert!(rows.windows(2).all(|w| w[0] < w[1]), "{}: not ascending: {rows:?}", policy.name());
                assert!(rows.last().is_none_or(|last| *last < n_audio), "{}: past the end", policy.name());
                kept.push(rows);
            }
            store.admit(&view, &selection).unwrap();
            store.check_integrity().unwrap();
        }
        (kept, store)
    }

    pub fn kept(&self, entry: &Entry, budget: Budget, options: &[(&str, &str)]) -> Vec<Vec<u32>> {
        self.prefill(self.policy(entry, budget, options).unwrap().as_mut()).0
    }

    /// Positions of the audio rows.
    pub fn positions(&self) -> Vec<usize> {
        self.layout.audio().iter().flat_map(Clone::clone).collect()
    }

    /// Softmax weights of one query over the keys at `rows`, by the definition.
    pub fn weights(&self, layer: usize, kv_head: usize, q: &[f32], rows: &[usize]) -> Vec<f64> {
        let (n, hd) = (self.layout.len(), self.shape.head_dim);
        let dot = |row: &usize| {
            let k = &self.k[layer][(kv_head * n + row) * hd..][..hd];
            q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * f64::from(SCALE)
        };
        let exp: Vec<f64> = rows.iter().map(|row| dot(row).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.into_iter().map(|e| e / sum).collect()
    }

    /// Σ over `queries` of the attention of each query head of a group at each audio row, `(group, n_audio)`.
    pub fn sums(&self, layer: usize, kv_head: usize, queries: &[usize]) -> Vec<Vec<f64>> {
        let (hd, group, positions) = (self.shape.head_dim, self.shape.group(), self.positions());
        let mut out = vec![vec![0.0; positions.len()]; group];
        for (head, out) in out.iter_mut().enumerate() {
            for &query in queries {
                let at = (query * self.shape.n_q_heads + kv_head * group + head) * hd;
                let seen: Vec<usize> = (0..=query).collect();
                let weights = self.weights(layer, kv_head, &self.q[layer][at..at + hd], &seen);
                positions
                    .iter()
                    .zip(out.iter_mut())
                    .for_each(|(p, sum)| *sum += weights.get(*p).unwrap_or(&0.0));
            }
        }
        out
    }

    /// Checks a layer's attention `out` for queries `q`, both `(n_q_heads, head_dim)`, against that over all text and, in
    /// each KV head, the audio rows of `kept`.
    pub fn check_attention(&self, name: &str, layer: usize, q: &[f32], out: &[f32], kept: &[Vec<u32>]) {
        let (n, hd, group) = (self.layout.len(), self.shape.head_dim, self.shape.group());
        let positions = self.positions();
        for q_head in 0..self.shape.n_q_heads {
            let kv_head = q_head / group;
            let kept = &kept[kv_head];
            let dropped = |p: &usize| {
                positions.binary_search(p).is_ok_and(|o| kept.binary_search(&(o as u32)).is_err())
            };
            let rows: Vec<usize> = (0..n).filter(|p| !dropped(p)).collect();
            let weights = self.weights(layer, kv_head, &q[q_head * hd..][..hd], &rows);
            for (i, got) in out[q_head * hd..][..hd].iter().enumerate() {
                let v = |row: &usize| f64::from(self.v[layer][(kv_head * n + row) * hd + i]);
                let want: f64 = rows.iter().zip(&weights).map(|(row, w)| w * v(row)).sum();
                let close = rows.is_empty() || (f64::from(*got) - want).abs() < 1e-4;
                assert!(close, "{name}: attention {got} for {want}");
            }
        }
    }
}
