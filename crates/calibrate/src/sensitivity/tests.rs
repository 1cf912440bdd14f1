//! Gradients against finite differences of a plain f64 decoder, written independently of the layer's code.

use std::ops::ControlFlow;
use std::path::Path;

use safetensors::Dtype;
use wnw_kv::PromptLayout;
use wnw_model::prompt::Prompt;

use super::*;

/// A decoder's weights in f64, by the part's name; each `(outputs, inputs)`.
struct Plain {
    config: DecoderConfig,
    layers: Vec<std::collections::BTreeMap<&'static str, Vec<f64>>>,
    norm: Vec<f64>,
    head: Vec<f64>,
}

const PARTS: [&str; 9] = [
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Uniform in −1 to 1, exact in f32.
    fn value(&mut self) -> f32 {
        for (left, n) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << n } else { self.0 >> n };
        }
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn values(&mut self, n: usize, scale: f32, shift: f32) -> Vec<f32> {
        (0..n).map(|_| self.value() * scale + shift).collect()
    }
}

/// Random weights, written to `dir` as a checkpoint and kept in f64.
fn make(config: &DecoderConfig, dir: &Path, random: &mut Random) -> Plain {
    let (h, i) = (config.hidden_size, config.intermediate_size);
    let (q, kv) = (config.n_q_heads * config.head_dim, config.n_kv_heads * config.head_dim);
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let mut add = |name: String, shape: Vec<usize>, random: &mut Random| {
        let n: usize = shape.iter().product();
        let values = match shape[..] {
            [_] => random.values(n, 0.3, 1.0),
            // Twice the usual spread, so that attention is not uniform.
            _ => random.values(n, 3.0 / (shape[1] as f32).sqrt(), 0.0),
        };
        tensors.push((name, shape, values.clone()));
        values.into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let shapes = [
        vec![h],
        vec![q, h],
        vec![kv, h],
        vec![kv, h],
        vec![h, q],
        vec![h],
        vec![i, h],
        vec![i, h],
        vec![h, i],
    ];
    let biases = [("q_proj.bias", q), ("k_proj.bias", kv), ("v_proj.bias", kv)];
    let norms = [("q_norm.weight", config.head_dim), ("k_norm.weight", config.head_dim)];
    let layers = (0..config.n_layers)
        .map(|l| {
            let name = |part| format!("language_model.model.layers.{l}.{part}.weight");
            let mut layer: std::collections::BTreeMap<_, _> =
                PARTS.iter().zip(&shapes).map(|(p, s)| (*p, add(name(p), s.clone(), random))).collect();
            let biases = biases.iter().filter(|_| config.qkv_bias);
            for (part, n) in biases.chain(norms.iter().filter(|_| config.qk_norm)) {
                let name = format!("language_model.model.layers.{l}.self_attn.{part}");
                layer.insert(part, add(name, vec![*n], random));
            }
            layer
        })
        .collect();
    let norm = add("language_model.model.norm.weight".into(), vec![h], random);
    let head = if config.tied {
        "language_model.model.embed_tokens.weight"
    } else {
        "language_model.lm_head.weight"
    };
    let head = add(head.into(), vec![config.vocab_size, h], random);
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(n, s, v)| (n, s, v.into_iter().flat_map(f32::to_le_bytes).collect()))
        .collect();
    let views = bytes.iter().map(|(n, s, b)| {
        (n.as_str(), safetensors::tensor::TensorView::new(Dtype::F32, s.clone(), b).unwrap())
    });
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    Plain { config: config.clone(), layers, norm, head }
}

fn product(x: &[f64], w: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

fn normed(x: &[f64], w: &[f64], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + f64::from(eps);
    x.iter().zip(w).map(|(x, w)| x / mean.sqrt() * w).collect()
}

impl Plain {
    /// A projection of a layer with what the model adds to it: a bias, and a norm of each head.
    fn heads(&self, layer: usize, x: &[f64], part: &str) -> Vec<f64> {
        let w = &self.layers[layer];
        let mut row = product(x, &w[format!("self_attn.{part}_proj").as_str()]);
        if let Some(bias) = w.get(format!("{part}_proj.bias").as_str()) {
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        match w.get(format!("{part}_norm.weight").as_str()) {
            Some(norm) => {
                let heads = row.chunks_exact(self.config.head_dim);
                heads.flat_map(|head| normed(head, norm, self.config.rms_norm_eps)).collect()
            }
            None => row,
        }
    }

    fn rotate(&self, row: &mut [f64], position: usize) {
        let d = self.config.head_dim;
        for head in row.chunks_exact_mut(d) {
            for i in 0..d / 2 {
                let angle = position as f64 / self.config.rope_theta.powf(2.0 * i as f64 / d as f64);
                let (a, b) = (head[i], head[i + d / 2]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + d / 2] = b * angle.cos() + a * angle.sin();
            }
        }
    }

    /// The loss, with `change.4` added to element `change.3` of the rotated key of layer, KV head, position.
    fn loss(&self, x: &[f32], targets: &[u32], change: (usize, usize, usize, usize, f64)) -> f64 {
        let c = &self.config;
        let d = c.head_dim;
        let mut x: Vec<Vec<f64>> =
            x.chunks_exact(c.hidden_size).map(|r| r.iter().map(|x| f64::from(*x)).collect()).collect();
        for (l, w) in self.layers.iter().enumerate() {
            let (mut k, mut v, mut q) = (Vec::new(), Vec::new(), Vec::new());
            for (position, x) in x.iter().enumerate() {
                let x = normed(x, &w["input_layernorm"], c.rms_norm_eps);
                let mut row = self.heads(l, &x, "k");
                self.rotate(&mut row, position);
                if (l, position) == (change.0, change.2) {
                    row[change.1 * d + change.3] += change.4;
                }
                k.push(row);
                v.push(self.heads(l, &x, "v"));
                let mut row = self.heads(l, &x, "q");
                self.rotate(&mut row, position);
                q.push(row);
            }
            for (position, x) in x.iter_mut().enumerate() {
                let mut attended = Vec::new();
                for h in 0..c.n_q_heads {
                    let of = |row: &[f64]| row[h / (c.n_q_heads / c.n_kv_heads) * d..][..d].to_vec();
                    let q = &q[position][h * d..][..d];
                    let scores: Vec<f64> = (0..=position)
                        .map(|j| (product(&of(&k[j]), q)[0] / (d as f64).sqrt()).exp())
                        .collect();
                    let sum: f64 = scores.iter().sum();
                    attended.extend((0..d).map(|e| {
                        scores.iter().enumerate().map(|(j, s)| s / sum * of(&v[j])[e]).sum::<f64>()
                    }));
                }
                let branch = product(&attended, &w["self_attn.o_proj"]);
                x.iter_mut().zip(branch).for_each(|(x, b)| *x += b);
                let m = normed(x, &w["post_attention_layernorm"], c.rms_norm_eps);
                let gate = product(&m, &w["mlp.gate_proj"]);
                let up = product(&m, &w["mlp.up_proj"]);
                let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let branch = product(&inner, &w["mlp.down_proj"]);
                x.iter_mut().zip(branch).for_each(|(x, b)| *x += b);
            }
        }
        let rows = &x[x.len() - targets.len()..];
        let losses = rows.iter().zip(targets).map(|(x, t)| {
            let logits = product(&normed(x, &self.norm, c.rms_norm_eps), &self.head);
            logits.iter().map(|l| l.exp()).sum::<f64>().ln() - logits[*t as usize]
        });
        losses.sum::<f64>() / targets.len() as f64
    }
}

fn config(
    heads: (usize, usize),
    head_dim: usize,
    hidden: usize,
    n_layers: usize,
    tied: bool,
) -> DecoderConfig {
    DecoderConfig {
        hidden_size: hidden,
        intermediate_size: 22,
        n_layers,
        n_q_heads: heads.0,
        n_kv_heads: heads.1,
        head_dim,
        vocab_size: 19,
        rms_norm_eps: 1e-5,
        rope_theta: 1e4,
        tied,
        qkv_bias: false,
        qk_norm: false,
        max_positions: 64,
    }
}

fn sample(len: usize, audio: Vec<Range<usize>>, n_targets: usize, random: &mut Random) -> ForcedAnswer {
    let mut ids = random.values(len + n_targets, 9.0, 9.0).into_iter().map(|x| x as u32);
    let layout = PromptLayout::new(len, audio).unwrap();
    ForcedAnswer {
        sequence: Prompt { ids: ids.by_ref().take(len).collect(), layout },
        targets: ids.collect(),
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let cases = [
        // g = 1; head_dim · heads is not the hidden size.
        (config((3, 3), 6, 14, 2, false), 11, vec![2..7], 3, 4),
        // g = 4, two recordings, tied; blocks that do not divide the length.
        (config((8, 2), 4, 12, 3, true), 13, vec![1..4, 6..9], 4, 5),
        // g = 8, one layer: only the answer's rows have a gradient.
        (config((8, 1), 8, 10, 1, false), 9, vec![2..5], 2, 3),
        // g = 2, everything in one block; audio to the end of the prompt, one target.
        (config((4, 2), 4, 16, 3, false), 8, vec![0..7], 1, 64),
        // As Qwen2: biases.
        (DecoderConfig { qkv_bias: true, ..config((4, 1), 4, 12, 2, false) }, 9, vec![2..7], 3, 5),
        // As Qwen3: head norms, tied.
        (DecoderConfig { qk_norm: true, ..config((4, 2), 6, 12, 2, true) }, 9, vec![2..7], 3, 5),
    ];
    for (i, (config, len, audio, n_targets, rows)) in cases.into_iter().enumerate() {
        let mut random = Random::new(i as u64);
        let dir = tempfile::tempdir().unwrap();
        let plain = make(&config, dir.path(), &mut random);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let answer = sample(len, audio, n_targets, &mut random);
        let x = random.values(len * config.hidden_size, 1.0, 0.0);
        let mut ticks = Vec::new();
        let found = measure_in_blocks(&config, &checkpoint, &answer, x.clone(), rows, &mut |done, all| {
            ticks.push((done, all));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(ticks.iter().all(|(done, all)| done <= all) && ticks.is_sorted());

        let loss = plain.loss(&x, &answer.targets, (0, 0, 0, 0, 0.0));
        assert!((found.loss / loss - 1.0).abs() < 1e-5, "case {i}: loss {} for {loss}", found.loss);
        let mut wanted = Vec::new();
        for l in 0..config.n_layers {
            for head in 0..config.n_kv_heads {
                for position in answer.sequence.layout.audio().iter().cloned().flatten() {
                    let square: f64 = (0..config.head_dim)
                        .map(|e| {
                            let at = |step| plain.loss(&x, &answer.targets, (l, head, position, e, step));
                            ((at(1e-4) - at(-1e-4)) / 2e-4).powi(2)
                        })
                        .sum();
                    wanted.push(square.sqrt());
                }
            }
        }
        assert_eq!(found.norms.len(), wanted.len());
        let largest = wanted.iter().fold(0.0, |m: f64, x| m.max(*x));
        for (found, wanted) in found.norms.iter().zip(&wanted) {
            let error = (f64::from(*found) - wanted).abs();
            assert!(error <= 1e-4 * wanted + 1e-6 * largest, "case {i}: {found} for {wanted}");
        }
        assert!(largest > 1e-3 && found.per_head().iter().all(|h| *h > 0.0));
    }
}

#[test]
fn the_size_of_blocks_does_not_matter() {
    let config = config((4, 2), 8, 24, 3, false);
    let mut random = Random::new(77);
    let dir = tempfile::tempdir().unwrap();
    make(&config, dir.path(), &mut random);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let answer = sample(41, vec![3..30], 7, &mut random);
    let x = random.values(41 * 24, 1.0, 0.0);
    let run = |rows| {
        let go = &mut |_, _| ControlFlow::Continue(());
        measure_in_blocks(&config, &checkpoint, &answer, x.clone(), rows, go).unwrap()
    };
    let whole = run(64);
    for rows in [1, 7, 16, 40] {
        let parts = run(rows);
        for (a, b) in whole.norms.iter().zip(&parts.norms) {
            assert!((a - b).abs() <= 1e-4 * a.abs() + 1e-7, "{rows} rows: {a} and {b}");
        }
    }
}

#[test]
fn bad_input_and_cancellation_are_errors() {
    let config = config((2, 1), 4, 8, 1, false);
    let mut random = Random::new(5);
    let dir = tempfile::tempdir().unwrap();
    make(&config, dir.path(), &mut random);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut answer = sample(6, vec![1..4], 2, &mut random);
    let x = random.values(6 * 8, 1.0, 0.0);
    let run = |answer: &ForcedAnswer, x: &[f32], flow| {
        measure(&config, &checkpoint, answer, x.to_vec(), &mut |_, _| flow)
    };
    let go = ControlFlow::Continue(());
    assert!(run(&answer, &x, go).is_ok());
    assert!(matches!(run(&answer, &x, ControlFlow::Break(())), Err(CalibrateError::Cancelled)));
    assert!(matches!(run(&answer, &x[1..], go), Err(CalibrateError::Input(_))));
    assert!(matches!(run(&answer, &[f32::NAN; 48], go), Err(CalibrateError::NotFinite(_))));
    answer.targets[1] = 19;
    assert!(matches!(run(&answer, &x, go), Err(CalibrateError::Input(_))));
    answer.targets[1] = 0;
    answer.sequence.layout = PromptLayout::new(6, vec![]).unwrap();
    assert_eq!(run(&answer, &x, go).unwrap().per_head(), Vec::<f64>::new());
}
