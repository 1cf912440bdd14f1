//! Head sensitivity: how much the answer's loss moves with a head's audio keys.
//!
//! S(l, k, τ) = ‖∂Loss/∂K(l, k, τ)‖₂, where Loss is the mean cross-entropy of the answer's tokens (teacher forced, end
//! of sequence included) and K the key after rotary embedding; a rotation, so the norm is the same before it. HS(l, k) is
//! its mean over audio positions τ, and then over samples (paper, Appendix E, equations 4 and 5). A reading: one backward
//! pass of the mean loss per sample.
//!
//! Memory stays at one layer. A forward pass keeps each layer's input alone, `(len, hidden_size)`. Then, from the top
//! layer down, a layer is run again with autograd and given up. Within it attention goes by blocks of query rows, each
//! with a graph of its own whose gradients of K and V are added up; when all rows are done these sums are complete, are
//! read, and are carried on to the layer's input. No `(len, len)` matrix exists.

mod layer;
#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests;

use std::ops::{ControlFlow, Range};

use candle_core::{Device, Tensor, Var};
use wnw_model::checkpoint::Checkpoint;
use wnw_model::config::DecoderConfig;

use crate::CalibrateError;
use crate::forced::ForcedAnswer;
use layer::{Frozen, GradLayer, KeysValues, RotaryTable, rms_norm};

/// Elements of one block's attention scores, 8 MiB: what the allocator gives again without asking the system.
const BLOCK_SCORES: usize = 1 << 21;
/// Rows of a block at least, unless the sequence is shorter, and at most.
const BLOCK_ROWS: (usize, usize) = (32, 256);
/// Elements of one block's logits, 64 MiB.
const BLOCK_LOGITS: usize = 1 << 24;

/// The gradient norms of one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivity {
    /// Mean cross-entropy of the targets in nats.
    pub loss: f64,
    /// S(l, k, τ), `(n_layers, n_kv_heads, n_audio)`.
    pub norms: Vec<f32>,
    /// Audio positions.
    pub n_audio: usize,
}

impl Sensitivity {
    /// Mean over audio positions of every head, `(n_layers, n_kv_heads)`: HS of this sample. Empty without audio.
    pub fn per_head(&self) -> Vec<f64> {
        let mean = |s: &[f32]| s.iter().map(|x| f64::from(*x)).sum::<f64>() / s.len() as f64;
        if self.n_audio == 0 { Vec::new() } else { self.norms.chunks_exact(self.n_audio).map(mean).collect() }
    }
}

/// Computes the gradient norms of one sample in f32.
///
/// `x` is the embedded sequence of `answer`, `(len, hidden_size)`, audio in place. `checkpoint` has passed its check
/// against `config`. `progress` is told blocks of rows done and in all; when it breaks, [`CalibrateError::Cancelled`].
pub fn measure(
    config: &DecoderConfig,
    checkpoint: &Checkpoint,
    answer: &ForcedAnswer,
    x: Vec<f32>,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Sensitivity, CalibrateError> {
    let len = answer.sequence.ids.len();
    let rows = (BLOCK_SCORES / (config.n_q_heads * len.max(1))).clamp(BLOCK_ROWS.0, BLOCK_ROWS.1);
    measure_in_blocks(config, checkpoint, answer, x, rows, progress)
}

fn measure_in_blocks(
    config: &DecoderConfig,
    checkpoint: &Checkpoint,
    answer: &ForcedAnswer,
    x: Vec<f32>,
    rows: usize,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Sensitivity, CalibrateError> {
    let len = answer.sequence.ids.len();
    if x.len() != len * config.hidden_size || len > config.max_positions {
        return Err(CalibrateError::Input(format!("{} values for {len} positions", x.len())));
    }
    if let Some(token) = answer.targets.iter().find(|t| **t as usize >= config.vocab_size) {
        return Err(CalibrateError::Input(format!("token {token} of {}", config.vocab_size)));
    }
    let per_layer = len.div_ceil(rows);
    let mut state = (0, 3 * per_layer * config.n_layers);
    let mut tick = || {
        state.0 = (state.0 + 1).min(state.1);
        match progress(state.0, state.1) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CalibrateError::Cancelled),
        }
    };
    let angles = RotaryTable::new(config, len)?;
    let queries = answer.queries();

    // Forward: the input of every layer, then the states that the targets are read from.
    let mut inputs = Vec::with_capacity(config.n_layers);
    let mut x = Tensor::from_vec(x, (len, config.hidden_size), &Device::Cpu)?;
    for l in 0..config.n_layers {
        let layer = GradLayer::load(config, checkpoint, l)?;
        let kv = layer.all_keys_values(&x, &angles, rows)?;
        // Above the last layer only the answer's positions are read.
        let needed = if l + 1 == config.n_layers { queries.clone() } else { 0..len };
        let mut outputs = Vec::new();
        for block in blocks(needed, rows) {
            let visible = kv.up_to(block.end)?;
            outputs.push(layer.forward(&take_rows(&x, &block)?, &visible, &block, &angles)?);
            tick()?;
        }
        let output = Tensor::cat(&outputs, 0)?;
        inputs.push(std::mem::replace(&mut x, output));
    }

    let (loss, last) = loss_gradient(config, checkpoint, &x, &answer.targets)?;
    if !loss.is_finite() {
        return Err(CalibrateError::NotFinite("the loss"));
    }
    // Gradient of the loss by the layer's output, for the rows `above`.
    let (mut gradient, mut above) = (last, queries);

    let layout = &answer.sequence.layout;
    let per_layer_norms = config.n_kv_heads * layout.n_audio();
    let mut norms = vec![0.0; config.n_layers * per_layer_norms];
    for (l, x) in inputs.into_iter().enumerate().rev() {
        let layer = GradLayer::load(config, checkpoint, l)?;
        let kv = layer.all_keys_values(&x, &angles, rows)?;
        let mut sums = KvGradient::new(config, len);
        let mut below = vec![0.0; len * config.hidden_size];
        for block in blocks(above.clone(), rows) {
            let xs = Var::from_tensor(&take_rows(&x, &block)?)?;
            let visible = kv.up_to(block.end)?;
            let (k, v) = (Var::from_tensor(&visible.k)?, Var::from_tensor(&visible.v)?);
            let visible = KeysValues { k: k.as_tensor().clone(), v: v.as_tensor().clone() };
            let y = layer.forward(&xs, &visible, &block, &angles)?;
            let g = gradient.narrow(0, block.start - above.start, block.len())?;
            let grads = (y * g)?.sum_all()?.backward()?;
            let missing = || CalibrateError::Input("a gradient is missing".into());
            add_rows(&mut below, &block, config.hidden_size, grads.get(&xs).ok_or_else(missing)?)?;
            sums.k.add(grads.get(&k).ok_or_else(missing)?, block.end)?;
            sums.v.add(grads.get(&v).ok_or_else(missing)?, block.end)?;
            tick()?;
        }
        let mut at = l * per_layer_norms;
        for head in sums.k.values.chunks_exact(len * config.head_dim) {
            for position in layout.audio().iter().cloned().flatten() {
                let row = &head[position * config.head_dim..][..config.head_dim];
                norms[at] = row.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt() as f32;
                at += 1;
            }
        }
        if l == 0 {
            break; // The embeddings' gradient is not asked for.
        }
        for block in blocks(0..len, rows) {
            let xs = Var::from_tensor(&take_rows(&x, &block)?)?;
            let own = layer.keys_values(&xs, &block, &angles)?;
            let (gk, gv) = (sums.k.rows(&block)?, sums.v.rows(&block)?);
            let surrogate = ((own.k * gk)?.sum_all()? + (own.v * gv)?.sum_all()?)?;
            if let Some(g) = surrogate.backward()?.get(&xs) {
                add_rows(&mut below, &block, config.hidden_size, g)?;
            }
            tick()?;
        }
        gradient = Tensor::from_vec(below, (len, config.hidden_size), &Device::Cpu)?;
        above = 0..len;
    }
    if norms.iter().any(|n| !n.is_finite()) {
        return Err(CalibrateError::NotFinite("a gradient"));
    }
    Ok(Sensitivity { loss, norms, n_audio: layout.n_audio() })
}

/// Mean cross-entropy of `targets` and its gradient by `x`, both `(n_targets, hidden_size)`: the last layer's output
/// at the positions that predict them.
fn loss_gradient(
    config: &DecoderConfig,
    checkpoint: &Checkpoint,
    x: &Tensor,
    targets: &[u32],
) -> Result<(f64, Tensor), CalibrateError> {
    let norm = layer::vector(checkpoint, "language_model.model.norm.weight")?;
    let head = if config.tied {
        "language_model.model.embed_tokens.weight"
    } else {
        "language_model.lm_head.weight"
    };
    let head = Frozen::new(checkpoint.get(head)?)?;
    let rows = (BLOCK_LOGITS / config.vocab_size).clamp(1, BLOCK_ROWS.1);
    let mut loss = 0.0;
    let mut gradients = Vec::new();
    for block in blocks(0..targets.len(), rows) {
        let xs = Var::from_tensor(&take_rows(x, &block)?)?;
        let logits = head.apply(&rms_norm(&xs, &norm, config.rms_norm_eps)?)?;
        let target = Tensor::new(&targets[block.clone()], &Device::Cpu)?.unsqueeze(1)?;
        let picked = logits.gather(&target, 1)?;
        let largest = logits.detach().max_keepdim(1)?;
        let sums = logits.broadcast_sub(&largest)?.exp()?.sum_keepdim(1)?;
        let losses = ((sums.log()? + largest)? - picked)?.sum_all()?;
        let scaled = (&losses * (1.0 / targets.len() as f64))?;
        loss += f64::from(losses.to_scalar::<f32>()?) / targets.len() as f64;
        let grads = scaled.backward()?;
        let gradient = grads.get(&xs).ok_or_else(|| CalibrateError::Input("a gradient is missing".into()))?;
        gradients.push(gradient.clone());
    }
    Ok((loss, Tensor::cat(&gradients, 0)?))
}

/// `range` in blocks of at most `rows`.
fn blocks(range: Range<usize>, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(rows).map(move |first| first..(first + rows).min(end))
}

fn take_rows(x: &Tensor, block: &Range<usize>) -> candle_core::Result<Tensor> {
    x.narrow(0, block.start, block.len())?.contiguous()
}

/// Adds a block's rows `(rows, width)` to `sum` `(len, width)`.
fn add_rows(
    sum: &mut [f32],
    block: &Range<usize>,
    width: usize,
    rows: &Tensor,
) -> Result<(), CalibrateError> {
    let rows = rows.flatten_all()?.to_vec1::<f32>()?;
    sum[block.start * width..block.end * width].iter_mut().zip(rows).for_each(|(s, x)| *s += x);
    Ok(())
}

/// Gradients of a layer's keys and values, added up over blocks of queries.
struct KvGradient {
    k: HeadRows,
    v: HeadRows,
}

impl KvGradient {
    fn new(config: &DecoderConfig, len: usize) -> Self {
        let zeros = || HeadRows {
            values: vec![0.0; config.n_kv_heads * len * config.head_dim],
            heads: config.n_kv_heads,
            len,
            head_dim: config.head_dim,
        };
        Self { k: zeros(), v: zeros() }
    }
}

struct HeadRows {
    values: Vec<f32>, // (heads, len, head_dim)
    heads: usize,
    len: usize,
    head_dim: usize,
}

impl HeadRows {
    /// Adds gradients of the first `end` positions, `(heads, end, head_dim)`.
    fn add(&mut self, gradient: &Tensor, end: usize) -> Result<(), CalibrateError> {
        let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
        let from = gradient.chunks_exact(end * self.head_dim);
        for (sum, gradient) in self.values.chunks_exact_mut(self.len * self.head_dim).zip(from) {
            sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g);
        }
        Ok(())
    }

    /// The rows of `block`, `(heads, rows, head_dim)`.
    fn rows(&self, block: &Range<usize>) -> Result<Tensor, CalibrateError> {
        let mut out = Vec::with_capacity(self.heads * block.len() * self.head_dim);
        for head in self.values.chunks_exact(self.len * self.head_dim) {
            out.extend_from_slice(&head[block.start * self.head_dim..block.end * self.head_dim]);
        }
        Ok(Tensor::from_vec(out, (self.heads, block.len(), self.head_dim), &Device::Cpu)?)
    }
}
