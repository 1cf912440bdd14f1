//! The text decoder: prefill layer by layer, then one token at a time.
//!
//! Prefill is layer-major. For each layer the keys and values of the whole prompt are computed first, in blocks of
//! rows; then queries, attention and the feed-forward layer run block by block, each over the keys of all positions
//! before it. When a layer is done the policy says what its heads keep and the layer's full keys and values are
//! overwritten by the next one's: the full cache of more than one layer never exists.

use std::ops::ControlFlow;

use rayon::prelude::*;
use wnw_kernels::elementwise::{Rope, add, rms_norm, rms_norm_in_place, silu_mul};
use wnw_kv::attention::{Mask, PrefillShape, prefill_attention};
use wnw_kv::{KvShape, KvStore, LayerView, Policy, PromptRows};

use crate::checkpoint::Checkpoint;
use crate::config::DecoderConfig;
use crate::linear::{Linear, RowTable, WeightDtype};
use crate::model::ModelError;
use crate::prompt::Prompt;
use crate::random::{self, Layout};
use crate::values::to_f32;

mod step;

pub use step::{StepBuffers, StepSession};

/// Rows of the prompt that go through a layer together.
const BLOCK: usize = 256;

/// The decoder with its weights.
pub struct Decoder {
    config: DecoderConfig,
    embeddings: RowTable,
    layers: Vec<DecoderLayer>,
    norm: Vec<f32>,
    lm_head: Linear,
    rope: Rope,
}

struct DecoderLayer {
    attention_norm: Vec<f32>,
    q: Linear,
    k: Linear,
    v: Linear,
    /// Norms of every query and key head, `(head_dim)`, where the model has them.
    head_norms: Option<HeadNorms>,
    o: Linear,
    mlp_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

struct HeadNorms {
    q: Vec<f32>,
    k: Vec<f32>,
}

/// Canonical names and shapes of the decoder's tensors.
pub(crate) fn expected_tensors(d: &DecoderConfig) -> Vec<(String, Vec<usize>)> {
    let (h, i) = (d.hidden_size, d.intermediate_size);
    let (q, kv) = (d.n_q_heads * d.head_dim, d.n_kv_heads * d.head_dim);
    let mut out = vec![
        ("language_model.model.embed_tokens.weight".to_owned(), vec![d.vocab_size, h]),
        ("language_model.model.norm.weight".to_owned(), vec![h]),
    ];
    if !d.tied {
        out.push((LM_HEAD.to_owned(), vec![d.vocab_size, h]));
    }
    for l in 0..d.n_layers {
        for (part, shape) in [
            ("input_layernorm", &[h][..]),
            ("self_attn.q_proj", &[q, h]),
            ("self_attn.k_proj", &[kv, h]),
            ("self_attn.v_proj", &[kv, h]),
            ("self_attn.o_proj", &[h, q]),
            ("post_attention_layernorm", &[h]),
            ("mlp.gate_proj", &[i, h]),
            ("mlp.up_proj", &[i, h]),
            ("mlp.down_proj", &[h, i]),
        ] {
            out.push((format!("language_model.model.layers.{l}.{part}.weight"), shape.to_vec()));
        }
        let biases = [("q_proj.bias", q), ("k_proj.bias", kv), ("v_proj.bias", kv)];
        let norms = [("q_norm.weight", d.head_dim), ("k_norm.weight", d.head_dim)];
        let biases = biases.into_iter().filter(|_| d.qkv_bias);
        for (part, n) in biases.chain(norms.into_iter().filter(|_| d.qk_norm)) {
            out.push((format!("language_model.model.layers.{l}.self_attn.{part}"), vec![n]));
        }
    }
    out
}

pub(crate) const LM_HEAD: &str = "language_model.lm_head.weight";

/// How far a prefill has come.
#[derive(Clone, Copy, Debug)]
pub struct PrefillProgress {
    /// Layer blocks done.
    pub done: usize,
    /// Layer blocks in all.
    pub total: usize,
}

impl Decoder {
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        config: &DecoderConfig,
        dtype: WeightDtype,
        mut loaded: impl FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        // Mistral's file pairs dimensions 2i and 2i + 1 where Hugging Face's pairs i and i + head_dim / 2.
        let interleaved = checkpoint.naming() == crate::checkpoint::Naming::Mistral;
        let layers = (0..config.n_layers)
            .map(|l| {
                let at = |part: &str| format!("language_model.model.layers.{l}.{part}");
                let tensor = |part: &str| checkpoint.get(&at(&format!("{part}.weight")));
                let bias = |part: &str| match config.qkv_bias {
                    true => checkpoint.get(&at(&format!("{part}.bias"))).map(Some),
                    false => Ok(None),
                };
                let linear = |part: &str| -> Result<Linear, ModelError> {
                    Ok(Linear::new(tensor(part)?, None, dtype)?)
                };
                let rotary = |part: &str| -> Result<Linear, ModelError> {
                    let view = tensor(part)?;
                    if interleaved {
                        return Ok(Linear::new(&view.pairs_to_halves(config.head_dim), None, dtype)?);
                    }
                    Ok(Linear::new(view, bias(part)?, dtype)?)
                };
                let head_norms = || -> Result<HeadNorms, ModelError> {
                    Ok(HeadNorms {
                        q: to_f32(tensor("self_attn.q_norm")?)?,
                        k: to_f32(tensor("self_attn.k_norm")?)?,
                    })
                };
                let layer = DecoderLayer {
                    attention_norm: to_f32(tensor("input_layernorm")?)?,
                    q: rotary("self_attn.q_proj")?,
                    k: rotary("self_attn.k_proj")?,
                    v: Linear::new(tensor("self_attn.v_proj")?, bias("self_attn.v_proj")?, dtype)?,
                    head_norms: config.qk_norm.then(head_norms).transpose()?,
                    o: linear("self_attn.o_proj")?,
                    mlp_norm: to_f32(tensor("post_attention_layernorm")?)?,
                    gate: linear("mlp.gate_proj")?,
                    up: linear("mlp.up_proj")?,
                    down: linear("mlp.down_proj")?,
                };
                loaded(l + 1, config.n_layers);
                Ok(layer)
            })
            .collect::<Result<_, ModelError>>()?;
        let table = checkpoint.get("language_model.model.embed_tokens.weight")?;
        let head = if config.tied { table } else { checkpoint.get(LM_HEAD)? };
        Ok(Self {
            embeddings: RowTable::new(table)?,
            layers,
            norm: to_f32(checkpoint.get("language_model.model.norm.weight")?)?,
            lm_head: Linear::new(head, None, dtype)?,
            rope: Rope::new(config.head_dim, config.rope_theta),
            config: config.clone(),
        })
    }

    /// Sizes and options.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// A decoder of this shape with random weights, the same for the same seed. Takes no more memory than the result, of
    /// which the token embeddings are a part.
    pub fn random(
        config: &DecoderConfig,
        dtype: WeightDtype,
        seed: u64,
        loaded: impl FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        // bf16 is the checkpoint's own type and stays where it lies.
        let layout = if dtype == WeightDtype::Bf16 { Layout::Distinct } else { Layout::Shared };
        let checkpoint = random::checkpoint(&expected_tensors(config), seed, layout);
        Self::load(&checkpoint, config, dtype, loaded)
    }

    /// Bytes of weights that a step reads: those of all linear layers.
    pub fn weight_bytes(&self) -> u64 {
        let layer = |l: &DecoderLayer| {
            [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down].iter().map(|w| w.bytes()).sum::<u64>()
        };
        self.layers.iter().map(layer).sum::<u64>() + self.lm_head.bytes()
    }

    /// Head counts and sizes of the cache that this decoder fills.
    pub fn kv_shape(&self) -> KvShape {
        self.config.kv_shape()
    }

    /// Width of the residual stream.
    pub fn hidden_size(&self) -> usize {
        self.config.hidden_size
    }

    /// Copies the embedding of `token` into `out` `(hidden_size)`.
    pub fn embed(&self, token: u32, out: &mut [f32]) -> Result<(), ModelError> {
        if self.embeddings.copy_row(token as usize, out) {
            return Ok(());
        }
        Err(ModelError::Input(format!("token {token} is past the {} embeddings", self.embeddings.rows())))
    }

    /// The embedded prompt, `(len, hidden_size)`: token embeddings, replaced by `audio` rows at audio positions.
    pub fn embed_prompt(&self, prompt: &Prompt, audio: &[f32]) -> Result<Vec<f32>, ModelError> {
        let h = self.config.hidden_size;
        if audio.len() != prompt.layout.n_audio() * h {
            let (rows, places) = (audio.len() / h, prompt.layout.n_audio());
            return Err(ModelError::Input(format!("{rows} audio embeddings for {places} placeholders")));
        }
        if audio.iter().any(|x| !x.is_finite()) {
            return Err(ModelError::NotFinite("the encoder's output"));
        }
        let mut out = vec![0.0; prompt.ids.len() * h];
        let mut audio = audio.chunks_exact(h);
        for (stretch, is_audio) in prompt.layout.stretches() {
            for position in stretch {
                let row = &mut out[position * h..(position + 1) * h];
                match if is_audio { audio.next() } else { None } {
                    Some(embedding) => row.copy_from_slice(embedding),
                    None => self.embed(prompt.ids[position], row)?,
                }
            }
        }
        Ok(out)
    }

    /// Runs the prompt through all layers and fills `store` as `policy` decides.
    ///
    /// `x` is the embedded prompt, `(len, hidden_size)`, consumed. Returns the normalised states of the last `wanted`
    /// rows, `(wanted, hidden_size)`: the last positions, unless the policy merges them. `progress` is called after every
    /// block of rows; when it breaks, the prefill ends with [`ModelError::Cancelled`].
    pub fn prefill(
        &self,
        mut x: Vec<f32>,
        wanted: usize,
        store: &mut KvStore,
        policy: &mut dyn Policy,
        progress: &mut dyn FnMut(PrefillProgress) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ModelError> {
        let (h, hd) = (self.config.hidden_size, self.config.head_dim);
        let n = x.len() / h;
        if n == 0 || n != store.layout().len() || wanted == 0 || wanted > n {
            return Err(ModelError::Input(format!("a prompt of {n} positions for {}", store.layout().len())));
        }
        if n > self.config.max_positions {
            return Err(ModelError::TooLong { positions: n, max: self.config.max_positions });
        }
        let shape = self.kv_shape();
        let (q_row, kv_row) = (shape.n_q_heads * hd, shape.n_kv_heads * hd);
        let (mut cos, mut sin) = (Vec::with_capacity(n * hd / 2), Vec::with_capacity(n * hd / 2)); // (n, hd / 2)
        for position in 0..n {
            self.rope.angles(position, &mut cos, &mut sin);
        }
        let angles = |position: usize| {
            let at = position * hd / 2..(position + 1) * hd / 2;
            (&cos[at.clone()], &sin[at])
        };
        let layout = store.layout().clone();
        let observed = policy.observes(&layout);
        if observed.last().is_some_and(|last| *last >= n) {
            return Err(ModelError::Input(format!("a policy observes position {observed:?} of {n}")));
        }
        let (mut k, mut v) = (vec![0.0; n * kv_row], vec![0.0; n * kv_row]); // (n_kv_heads, n, hd)
        let working = store.device().working(2 * (n * kv_row * size_of::<f32>()) as u64);
        let block = BLOCK.min(n);
        let mut norm = vec![0.0; block * h];
        let mut branch = vec![0.0; block * h];
        let mut kv = vec![0.0; block * kv_row];
        let mut q = vec![0.0; block * q_row];
        let mut attended = vec![0.0; block * q_row];
        let mut gate = vec![0.0; block * self.config.intermediate_size];
        let mut up = vec![0.0; block * self.config.intermediate_size];
        let blocks = n.div_ceil(BLOCK);
        let mut state = PrefillProgress { done: 0, total: 2 * self.layers.len() * blocks };

        // Rows of the current layer, `m <= n` once neighbours have been merged.
        let mut rows = PromptRows::new(n);
        for (l, layer) in self.layers.iter().enumerate() {
            if let Some(merge) = policy.before_layer(l, &rows, &x) {
                rows.merge(&merge, &layout, &mut x).map_err(|e| ModelError::Input(e.to_string()))?;
                if rows.is_merged() && (!observed.is_empty() || wanted > rows.len()) {
                    return Err(ModelError::Input(
                        "positions that were merged cannot be observed or read".into(),
                    ));
                }
                state.total = state.done + 2 * (self.layers.len() - l) * rows.len().div_ceil(BLOCK);
            }
            let n = rows.len();
            let positions = rows.positions();
            let (k, v) = (&mut k[..n * kv_row], &mut v[..n * kv_row]);
            for first in (0..n).step_by(BLOCK) {
                let m = BLOCK.min(n - first);
                let x = &x[first * h..(first + m) * h];
                norm_rows(x, &layer.attention_norm, self.config.rms_norm_eps, &mut norm[..m * h]);
                for (linear, target, is_key) in [(&layer.k, &mut *k, true), (&layer.v, &mut *v, false)] {
                    linear.forward(&norm[..m * h], &mut kv[..m * kv_row]);
                    for (i, row) in kv[..m * kv_row].chunks_exact_mut(kv_row).enumerate() {
                        if is_key {
                            self.place(row, layer.key_norm(), angles(positions[first + i]));
                        }
                        for (head, row) in row.chunks_exact(hd).enumerate() {
                            target[(head * n + first + i) * hd..][..hd].copy_from_slice(row);
                        }
                    }
                }
                state.done += 1;
                if progress(state).is_break() {
                    return Err(ModelError::Cancelled);
                }
            }
            let observed_q = self.queries(layer, &x, &observed, &angles);
            // Above the last layer only the wanted positions are read.
            let needed = if l + 1 == self.layers.len() { n - wanted } else { 0 };
            for first in (0..n).step_by(BLOCK) {
                let m = BLOCK.min(n - first);
                if first + m > needed {
                    let x = &mut x[first * h..(first + m) * h];
                    norm_rows(x, &layer.attention_norm, self.config.rms_norm_eps, &mut norm[..m * h]);
                    layer.q.forward(&norm[..m * h], &mut q[..m * q_row]);
                    for (i, row) in q[..m * q_row].chunks_exact_mut(q_row).enumerate() {
                        self.place(row, layer.query_norm(), angles(positions[first + i]));
                    }
                    let block = PrefillShape {
                        n_q: m,
                        n_k: n,
                        n_q_heads: shape.n_q_heads,
                        n_kv_heads: shape.n_kv_heads,
                        head_dim: hd,
                    };
                    let (q, attended) = (&q[..m * q_row], &mut attended[..m * q_row]);
                    prefill_attention(
                        q,
                        k,
                        v,
                        block,
                        Mask::Causal { first },
                        self.attention_scale(),
                        attended,
                    );
                    layer.o.forward(attended, &mut branch[..m * h]);
                    add(x, &branch[..m * h]);
                    norm_rows(x, &layer.mlp_norm, self.config.rms_norm_eps, &mut norm[..m * h]);
                    let inner = m * self.config.intermediate_size;
                    layer.feed_forward(
                        &norm[..m * h],
                        &mut gate[..inner],
                        &mut up[..inner],
                        &mut branch[..m * h],
                    );
                    add(x, &branch[..m * h]);
                }
                state.done += 1;
                if progress(state).is_break() {
                    return Err(ModelError::Cancelled);
                }
            }
            let spread = rows.is_merged().then(|| {
                let (mut all_k, mut all_v) =
                    (vec![0.0; layout.len() * kv_row], vec![0.0; layout.len() * kv_row]);
                rows.spread(k, hd, &mut all_k);
                rows.spread(v, hd, &mut all_v);
                let bytes = ((all_k.len() + all_v.len()) * size_of::<f32>()) as u64;
                (all_k, all_v, store.device().working(2 * bytes)) // beside those that are not spread
            });
            let (all_k, all_v) = spread.as_ref().map_or((&*k, &*v), |(k, v, _)| (k.as_slice(), v.as_slice()));
            let view = LayerView {
                layer: l,
                shape,
                layout: &layout,
                k: all_k,
                v: all_v,
                observed: &observed,
                q: &observed_q,
                scale: self.attention_scale(),
            };
            let selection = policy.after_prefill(&view);
            let selection =
                rows.restrict(selection, &layout).map_err(|e| ModelError::Input(e.to_string()))?;
            store.admit(&view, &selection)?;
            working.note();
            spread.iter().for_each(|(_, _, working)| working.note());
        }
        let mut out = vec![0.0; wanted * h];
        norm_rows(&x[(rows.len() - wanted) * h..], &self.norm, self.config.rms_norm_eps, &mut out);
        Ok(out)
    }

    /// Queries of a layer at some positions, after rotary embedding: `(positions, n_q_heads, head_dim)`. `x` is the
    /// layer's input.
    fn queries<'a>(
        &self,
        layer: &DecoderLayer,
        x: &[f32],
        positions: &[usize],
        angles: &dyn Fn(usize) -> (&'a [f32], &'a [f32]),
    ) -> Vec<f32> {
        let (h, hd) = (self.config.hidden_size, self.config.head_dim);
        let q_row = self.config.n_q_heads * hd;
        let mut norm = vec![0.0; positions.len() * h];
        for (norm, position) in norm.chunks_exact_mut(h).zip(positions) {
            rms_norm(
                &x[position * h..(position + 1) * h],
                &layer.attention_norm,
                self.config.rms_norm_eps,
                norm,
            );
        }
        let mut q = vec![0.0; positions.len() * q_row];
        if !positions.is_empty() {
            layer.q.forward(&norm, &mut q);
        }
        for (row, position) in q.chunks_exact_mut(q_row).zip(positions) {
            self.place(row, layer.query_norm(), angles(*position));
        }
        q
    }

    /// Logits of normalised states: `states` is `(m, hidden_size)`, the result `(m, vocab_size)`.
    pub fn logits(&self, states: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; states.len() / self.config.hidden_size * self.lm_head.outputs()];
        self.lm_head.forward(states, &mut out);
        out
    }

    /// Makes the query or key heads of one position, `(heads, head_dim)`, ready for attention: each is normalised where
    /// the model does that, then rotated by `(cos, sin)`, `(head_dim / 2)` each.
    fn place(&self, heads: &mut [f32], norm: Option<&[f32]>, (cos, sin): (&[f32], &[f32])) {
        for head in heads.chunks_exact_mut(self.config.head_dim) {
            if let Some(weight) = norm {
                rms_norm_in_place(head, weight, self.config.rms_norm_eps);
            }
            Rope::rotate(head, cos, sin);
        }
    }

    fn attention_scale(&self) -> f32 {
        (self.config.head_dim as f32).powf(-0.5)
    }
}

impl DecoderLayer {
    fn query_norm(&self) -> Option<&[f32]> {
        self.head_norms.as_ref().map(|norms| norms.q.as_slice())
    }

    fn key_norm(&self) -> Option<&[f32]> {
        self.head_norms.as_ref().map(|norms| norms.k.as_slice())
    }

    /// SwiGLU: `down(silu(gate(x)) · up(x))`.
    fn feed_forward(&self, x: &[f32], gate: &mut [f32], up: &mut [f32], out: &mut [f32]) {
        self.gate.forward(x, gate);
        self.up.forward(x, up);
        gate.par_chunks_mut(1 << 14).zip(up.par_chunks(1 << 14)).for_each(|(gate, up)| silu_mul(gate, up));
        self.down.forward(gate, out);
    }
}

fn norm_rows(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let h = weight.len();
    out.par_chunks_mut(h).zip(x.par_chunks(h)).for_each(|(out, x)| rms_norm(x, weight, eps, out));
}
