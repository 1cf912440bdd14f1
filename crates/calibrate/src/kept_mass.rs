//! How much of the answer's attention falls on what a KV method keeps.
//!
//! One forced pass over prompt and answer with the full cache, as in [`crate::mismatch`]; each method sees the prompt's
//! part of every layer, as it would at its own prefill, and says what it keeps. The attention that the answer's queries
//! pay to these rows, over what they pay to all audio rows, is the method's *kept mass*: what it would need and has. A
//! method that loses mass cannot get it back, unless it recalls rows; for those the share that lies on the device or the
//! host counts too.

use std::ops::{ControlFlow, Range};

use rayon::prelude::*;
use serde::Serialize;
use wnw_kv::{HeadSelection, LayerView, Policy, PromptLayout};
use wnw_model::SpeechModel;
use wnw_model::prompt::{Prompt, Task};

use crate::CalibrateError;
use crate::forced::observe;

/// Shares of audio attention, 0 to 1, summed over all layers and query heads as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KeptMass {
    /// Share of audio rows that are kept on the device at prefill.
    pub rows: f64,
    /// Of the attention of the first answer token's query, which prefill sees: the share on kept rows.
    pub prefill: f64,
    /// Of the attention of all answer tokens' queries: the share on kept rows.
    pub decode: f64,
    /// The same on rows that are kept or can be recalled.
    pub reachable: f64,
}

impl KeptMass {
    /// The mean of several, each weighing the same; nothing of none.
    pub fn mean(all: &[Self]) -> Self {
        let mean = |value: fn(&Self) -> f64| all.iter().map(value).sum::<f64>() / all.len().max(1) as f64;
        Self {
            rows: mean(|m| m.rows),
            prefill: mean(|m| m.prefill),
            decode: mean(|m| m.decode),
            reachable: mean(|m| m.reachable),
        }
    }
}

/// What [`measure`] takes its policies from: a prompt's, in the order of the figures.
pub type Policies<'a> = dyn Fn(&PromptLayout) -> Result<Vec<Box<dyn Policy>>, CalibrateError> + 'a;

/// Runs prompt and `answer` through the model; one figure for each policy that `policies` makes for the prompt.
/// `samples` are 16 kHz mono, no longer than the model takes in one pass; `answer` is without the end of sequence.
///
/// `progress` is told the share that is done, 0 to 1; when it breaks, [`CalibrateError::Cancelled`].
pub fn measure(
    model: &SpeechModel,
    samples: &[f32],
    task: &Task,
    answer: &[u32],
    policies: &Policies<'_>,
    progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<Vec<KeptMass>, CalibrateError> {
    let probe =
        |prompt: &Prompt, queries| Ok(Probe::new(queries, prompt.layout.clone(), policies(&prompt.layout)?));
    Ok(observe(model, samples, task, answer, probe, progress)?.finish())
}

/// A method that asks others what they would keep, and keeps no audio itself.
struct Probe {
    /// Positions of the answer's queries.
    queries: Range<usize>,
    /// The prompt without its answer.
    prompt: PromptLayout,
    policies: Vec<Box<dyn Policy>>,
    /// What each policy observes.
    observed: Vec<Vec<usize>>,
    sums: Vec<Sums>,
    all: Sums,
    heads: usize,
}

#[derive(Clone, Copy, Default)]
struct Sums {
    rows: f64,
    prefill: f64,
    decode: f64,
    reachable: f64,
}

impl Probe {
    fn new(queries: Range<usize>, prompt: PromptLayout, policies: Vec<Box<dyn Policy>>) -> Self {
        let observed: Vec<Vec<usize>> = policies.iter().map(|p| p.observes(&prompt)).collect();
        let sums = vec![Sums::default(); policies.len()];
        Self { queries, prompt, policies, observed, sums, all: Sums::default(), heads: 0 }
    }

    fn finish(self) -> Vec<KeptMass> {
        let of = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let rows = (self.heads * self.prompt.n_audio()) as f64;
        let share = |s: &Sums| KeptMass {
            rows: of(s.rows, rows),
            prefill: of(s.prefill, self.all.prefill),
            decode: of(s.decode, self.all.decode),
            reachable: of(s.reachable, self.all.decode),
        };
        self.sums.iter().map(share).collect()
    }
}

impl Policy for Probe {
    fn name(&self) -> &'static str {
        "kept-mass-probe"
    }

    fn observes(&self, _layout: &PromptLayout) -> Vec<usize> {
        let mut all: Vec<usize> =
            self.observed.iter().flatten().copied().chain(self.queries.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
        let (n_audio, n_kv_heads) = (self.prompt.n_audio(), view.shape.n_kv_heads);
        let place = |position: usize| view.observed.partition_point(|p| *p < position);
        let queries = place(self.queries.start)..place(self.queries.end);
        // Attention of the first query and of all, summed over the query heads of each KV head, (n_audio) each.
        let attention: Vec<[Vec<f64>; 2]> = (0..n_kv_heads)
            .into_par_iter()
            .map(|kv_head| {
                let mut sums = [vec![0.0; n_audio], vec![0.0; n_audio]];
                view.audio_attention(kv_head, queries.clone(), |observed, _, weights| {
                    let [first, all] = &mut sums;
                    if observed == queries.start {
                        first.iter_mut().zip(weights).for_each(|(sum, w)| *sum += f64::from(*w));
                    }
                    all.iter_mut().zip(weights).for_each(|(sum, w)| *sum += f64::from(*w));
                });
                sums
            })
            .collect();
        for [first, all] in &attention {
            self.all.prefill += first.iter().sum::<f64>();
            self.all.decode += all.iter().sum::<f64>();
        }
        let rows = Rows::of_prompt(view, self.prompt.len());
        for ((policy, observed), sums) in self.policies.iter_mut().zip(&self.observed).zip(&mut self.sums) {
            let q_row = view.shape.n_q_heads * view.shape.head_dim;
            let q: Vec<f32> = observed
                .iter()
                .flat_map(|position| &view.q[place(*position) * q_row..][..q_row])
                .copied()
                .collect();
            let seen = LayerView { layout: &self.prompt, k: &rows.k, v: &rows.v, observed, q: &q, ..*view };
            for (selection, [first, all]) in policy.after_prefill(&seen).iter().zip(&attention) {
                let (whole, n) = (all.iter().sum::<f64>(), n_audio as f64);
                let kept = |of: &[f64], rows: &[u32]| rows.iter().map(|r| of[*r as usize]).sum::<f64>();
                let (rows, prefill, decode, reachable) = match selection {
                    HeadSelection::All => (n, first.iter().sum(), whole, whole),
                    HeadSelection::Only(kept_rows) => {
                        let decode = kept(all, kept_rows);
                        (kept_rows.len() as f64, kept(first, kept_rows), decode, decode)
                    }
                    HeadSelection::Tiered(kept_rows) => {
                        (kept_rows.len() as f64, kept(first, kept_rows), kept(all, kept_rows), whole)
                    }
                };
                sums.rows += rows;
                sums.prefill += prefill;
                sums.decode += decode;
                sums.reachable += reachable;
            }
        }
        self.heads += n_kv_heads;
        vec![HeadSelection::Only(Vec::new()); n_kv_heads]
    }
}

/// The prompt's part of a layer's keys and values, `(n_kv_heads, len, head_dim)`.
struct Rows {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Rows {
    fn of_prompt(view: &LayerView<'_>, len: usize) -> Self {
        let (whole, part) = (view.layout.len() * view.shape.head_dim, len * view.shape.head_dim);
        let cut = |rows: &[f32]| rows.chunks_exact(whole).flat_map(|head| &head[..part]).copied().collect();
        Self { k: cut(view.k), v: cut(view.v) }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use wnw_kv::KvShape;

    /// Keeps given rows in its two heads.
    struct Fixed([HeadSelection; 2]);

    impl Policy for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }
        fn observes(&self, layout: &PromptLayout) -> Vec<usize> {
            vec![layout.len() - 1]
        }
        fn after_prefill(&mut self, view: &LayerView<'_>) -> Vec<HeadSelection> {
            // It sees the prompt alone: five positions of one element in two heads, and one query.
            assert_eq!((view.layout.len(), view.k.len(), view.observed), (5, 10, &[4][..]));
            assert_eq!((view.k[5], view.q), (0.5, &[1.0, 1.0][..]));
            self.0.to_vec()
        }
    }

    #[test]
    fn a_layer_by_hand() {
        let shape = KvShape { n_layers: 1, n_q_heads: 2, n_kv_heads: 2, head_dim: 1 };
        let prompt = PromptLayout::new(5, vec![1..4]).unwrap();
        let sequence = PromptLayout::new(7, vec![1..4]).unwrap();
        let ln = |x: f32| x.ln();
        // Head 0 has scores q·k with weights 1, 2, 3 on audio and 0 elsewhere (in proportion); head 1 the same everywhere.
        let far = -60.0;
        let k = [far, ln(1.0), ln(2.0), ln(3.0), far, far, far, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5];
        let v = [0.0; 14];
        let policies: Vec<Box<dyn Policy>> = vec![
            Box::new(Fixed([HeadSelection::All, HeadSelection::All])),
            Box::new(Fixed([HeadSelection::Only(vec![2]), HeadSelection::Only(vec![])])),
            Box::new(Fixed([HeadSelection::Tiered(vec![0]), HeadSelection::Only(vec![0])])),
        ];
        let mut probe = Probe::new(4..6, prompt, policies);
        let observed = probe.observes(&sequence);
        assert_eq!(observed, [4, 5]);
        let q = [1.0; 4];
        let view = LayerView {
            layer: 0,
            shape,
            layout: &sequence,
            k: &k,
            v: &v,
            observed: &observed,
            q: &q,
            scale: 1.0,
        };
        probe.after_prefill(&view);
        let mass = probe.finish();
        // Query 4 sees 5 positions and query 5 sees 6: head 1 puts 3/5 and 3/6 on audio.
        let (first, all) = (1.0 + 0.6, 2.0 + 1.1);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
        near(mass[0].rows, 1.0);
        near(mass[0].decode, 1.0);
        near(mass[1].rows, 1.0 / 6.0);
        near(mass[1].prefill, 0.5 / first);
        near(mass[1].decode, 1.0 / all);
        near(mass[1].reachable, 1.0 / all);
        near(mass[2].decode, (2.0 / 6.0 + 1.1 / 3.0) / all);
        near(mass[2].reachable, (2.0 + 1.1 / 3.0) / all);
        near(KeptMass::mean(&mass).rows, (1.0 + 1.0 / 6.0 + 2.0 / 6.0) / 3.0);
    }
}
