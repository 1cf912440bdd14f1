//! One token of each of several sessions: the weights are read once for all of them.
//!
//! Sessions share nothing but the weights. Each has its own store, position and outcome; which others are in a step does
//! not show in its numbers, because the products of a step treat every row as if it were alone
//! ([`Linear::step`]) and attention runs session by session.

use std::time::{Duration, Instant};

use rayon::prelude::*;
use wnw_kernels::elementwise::{add, rms_norm};
use wnw_kv::KvStore;

use super::Decoder;
use crate::linear::{Linear, StepScratch};
use crate::model::ModelError;

/// What one session brings to a step.
pub struct StepSession<'a> {
    /// The token to feed.
    pub token: u32,
    /// Its position in the prompt and answer.
    pub position: usize,
    /// The session's keys and values, to which the step appends.
    pub store: &'a mut KvStore,
    /// Set by the step when this session could not take part in it to the end; its store then lacks some layers' rows, and
    /// its logits mean nothing. The others are not affected.
    pub failed: Option<ModelError>,
}

impl<'a> StepSession<'a> {
    /// A session that feeds `token` at `position`.
    pub fn new(token: u32, position: usize, store: &'a mut KvStore) -> Self {
        Self { token, position, store, failed: None }
    }

    /// Appends this layer's keys and values `(n_kv_heads, head_dim)` and attends with `q` to `out`, each
    /// `(n_q_heads, head_dim)`; zeros once the session has failed.
    fn attend(&mut self, layer: usize, (q, k, v): (&[f32], &[f32], &[f32]), scale: f32, out: &mut [f32]) {
        if self.failed.is_none() {
            let done = self.store.append(layer, k, v).and_then(|()| self.store.attend(layer, q, scale, out));
            self.failed = done.err().map(ModelError::from);
        }
        if self.failed.is_some() {
            out.fill(0.0);
        }
    }
}

/// Buffers that decoding reuses for every step, for as many sessions as ever stepped together.
pub struct StepBuffers {
    x: Vec<f32>, // (sessions, hidden_size), as norm and branch
    norm: Vec<f32>,
    q: Vec<f32>, // (sessions, n_q_heads, head_dim), as attended
    k: Vec<f32>, // (sessions, n_kv_heads, head_dim), as v
    v: Vec<f32>,
    attended: Vec<f32>,
    branch: Vec<f32>,
    gate: Vec<f32>, // (sessions, intermediate_size), as up
    up: Vec<f32>,
    cos: Vec<f32>, // (sessions, head_dim / 2), as sin
    sin: Vec<f32>,
    logits: Vec<f32>, // (sessions, vocab_size)
    scratch: StepScratch,
    attention: Duration,
}

impl StepBuffers {
    /// Time that the last step spent on keys and values: storing the new ones, attention, and waiting for recalled rows.
    pub fn attention_time(&self) -> Duration {
        self.attention
    }
}

impl Decoder {
    /// Buffers for [`Decoder::step`] and [`Decoder::step_batch`].
    pub fn step_buffers(&self) -> StepBuffers {
        let mut buffers = StepBuffers {
            x: Vec::new(),
            norm: Vec::new(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            attended: Vec::new(),
            branch: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            cos: Vec::new(),
            sin: Vec::new(),
            logits: Vec::new(),
            scratch: StepScratch::default(),
            attention: Duration::ZERO,
        };
        self.size(&mut buffers, 1);
        buffers
    }

    /// Gives the buffers the sizes for `n` sessions; shrinking allocates nothing.
    fn size(&self, b: &mut StepBuffers, n: usize) {
        let d = &self.config;
        let (q, kv) = (d.n_q_heads * d.head_dim, d.n_kv_heads * d.head_dim);
        for (buffer, width) in [
            (&mut b.x, d.hidden_size),
            (&mut b.norm, d.hidden_size),
            (&mut b.branch, d.hidden_size),
            (&mut b.q, q),
            (&mut b.attended, q),
            (&mut b.k, kv),
            (&mut b.v, kv),
            (&mut b.gate, d.intermediate_size),
            (&mut b.up, d.intermediate_size),
            (&mut b.logits, d.vocab_size),
        ] {
            buffer.resize(n * width, 0.0);
        }
        for angles in [&mut b.cos, &mut b.sin] {
            angles.clear();
            angles.reserve(n * d.head_dim / 2);
        }
    }

    /// Feeds `token` at `position`, appends its keys and values to `store`, and returns the logits `(vocab_size)` of
    /// the next token.
    pub fn step<'a>(
        &self,
        token: u32,
        position: usize,
        store: &mut KvStore,
        buffers: &'a mut StepBuffers,
    ) -> Result<&'a [f32], ModelError> {
        let mut session = [StepSession::new(token, position, store)];
        let logits = self.step_batch(&mut session, buffers);
        let [session] = session;
        match session.failed {
            Some(error) => Err(error),
            None => Ok(logits),
        }
    }

    /// One step of each session. Returns their logits `(sessions, vocab_size)`, which mean something for those that have
    /// not failed ([`StepSession::failed`]). A session's logits have the same bits whichever others are in the step.
    pub fn step_batch<'a>(
        &self,
        sessions: &mut [StepSession<'_>],
        buffers: &'a mut StepBuffers,
    ) -> &'a [f32] {
        let d = &self.config;
        let (hd, eps, h) = (d.head_dim, d.rms_norm_eps, d.hidden_size);
        let (q_row, kv_row) = (d.n_q_heads * hd, d.n_kv_heads * hd);
        self.size(buffers, sessions.len());
        let b = buffers;
        b.attention = Duration::ZERO;
        for (session, x) in sessions.iter_mut().zip(b.x.chunks_exact_mut(h)) {
            session.store.begin_step();
            let max = d.max_positions;
            session.failed = match session.position < max {
                true => self.embed(session.token, x).err(),
                false => Some(ModelError::TooLong { positions: session.position + 1, max }),
            };
            if session.failed.is_some() {
                x.fill(0.0);
            }
            self.rope.angles(session.position, &mut b.cos, &mut b.sin);
        }
        for (l, layer) in self.layers.iter().enumerate() {
            each_row(&b.x, h, &mut b.norm, |x, out| rms_norm(x, &layer.attention_norm, eps, out));
            let qkv = [(&layer.q, &mut b.q[..]), (&layer.k, &mut b.k[..]), (&layer.v, &mut b.v[..])];
            Linear::step(&b.norm, qkv, &mut b.scratch);
            let angles = b.cos.chunks_exact(hd / 2).zip(b.sin.chunks_exact(hd / 2));
            let heads = b.q.chunks_exact_mut(q_row).zip(b.k.chunks_exact_mut(kv_row));
            for ((q, k), angles) in heads.zip(angles) {
                self.place(q, layer.query_norm(), angles);
                self.place(k, layer.key_norm(), angles);
            }
            let clock = Instant::now();
            let scale = self.attention_scale();
            match &mut *sessions {
                // One session's heads are shared out among the threads by the store.
                [session] => session.attend(l, (&b.q, &b.k, &b.v), scale, &mut b.attended),
                sessions => sessions
                    .par_iter_mut()
                    .zip(b.q.par_chunks_exact(q_row))
                    .zip(b.k.par_chunks_exact(kv_row))
                    .zip(b.v.par_chunks_exact(kv_row))
                    .zip(b.attended.par_chunks_exact_mut(q_row))
                    .for_each(|((((session, q), k), v), out)| session.attend(l, (q, k, v), scale, out)),
            }
            b.attention += clock.elapsed();
            Linear::step(&b.attended, [(&layer.o, &mut b.branch)], &mut b.scratch);
            add(&mut b.x, &b.branch);
            each_row(&b.x, h, &mut b.norm, |x, out| rms_norm(x, &layer.mlp_norm, eps, out));
            Linear::step_gated(&b.norm, &layer.gate, &layer.up, &mut b.gate, &mut b.up, &mut b.scratch);
            Linear::step(&b.gate, [(&layer.down, &mut b.branch)], &mut b.scratch);
            add(&mut b.x, &b.branch);
        }
        each_row(&b.x, h, &mut b.norm, |x, out| rms_norm(x, &self.norm, eps, out));
        Linear::step(&b.norm, [(&self.lm_head, &mut b.logits)], &mut b.scratch);
        &b.logits
    }
}

fn each_row(x: &[f32], width: usize, out: &mut [f32], f: impl Fn(&[f32], &mut [f32])) {
    x.chunks_exact(width).zip(out.chunks_exact_mut(width)).for_each(|(x, out)| f(x, out));
}
