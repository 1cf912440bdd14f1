//! A decoding session without a recording: keys and values at random, the policy real.

use std::sync::Arc;

use wnw_kv::policies::{Full, Wnw};
use wnw_kv::profile::voice_heads;
use wnw_kv::{
    Arena, HostPlace, KvDtype, KvShape, KvStore, LayerView, Policy, PromptLayout, Segments, StoreOptions,
    SwapMode,
};

use crate::error::BenchError;
use crate::random::Random;
use crate::roles;
use crate::sweep::{Sweep, SweepKind};

/// Text positions before the audio, and after it; those after it are what WnW ranks rows by.
const PROMPT_TEXT: usize = 4;

/// A KV method and how much it keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvArm {
    /// Everything.
    Full,
    /// Waxing and waning at this r_GPU.
    Wnw(f64),
}

impl KvArm {
    /// The method's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Wnw(_) => "wnw",
        }
    }

    /// The r_GPU aimed at.
    pub fn target(self) -> f64 {
        match self {
            Self::Full => 1.0,
            Self::Wnw(r_gpu) => r_gpu,
        }
    }
}

/// What a session is made of.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Head counts and sizes.
    pub shape: KvShape,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Audio tokens of one second.
    pub tokens_per_second: f64,
    /// Seconds of audio.
    pub seconds: f64,
    /// KV method.
    pub arm: KvArm,
    /// Type of keys and values.
    pub kv_dtype: KvDtype,
    /// Where the host tier lies.
    pub host_place: HostPlace,
    /// When recalled rows are copied.
    pub swap: SwapMode,
    /// How attention moves.
    pub sweep: SweepKind,
    /// Where it begins, in seconds.
    pub start: f64,
    /// Same seed, same keys, values and script.
    pub seed: u64,
}

impl SessionOptions {
    /// Audio positions.
    pub fn audio_rows(&self) -> usize {
        (self.seconds * self.tokens_per_second).round() as usize
    }

    /// Prompt positions.
    pub fn prompt_rows(&self) -> usize {
        self.audio_rows() + 2 * PROMPT_TEXT
    }

    /// Bytes of KV when everything is kept.
    pub fn full_bytes(&self) -> u64 {
        self.prompt_rows() as u64 * self.shape.bytes_per_position(self.kv_dtype)
    }

    /// Bytes of KV that the session holds on both tiers, about.
    pub fn kept_bytes(&self) -> u64 {
        let full = self.full_bytes();
        match self.arm {
            KvArm::Full => full,
            // The device's share, with room for recalled rows, and what the tidal heads lack, on the host.
            KvArm::Wnw(r_gpu) => {
                let heads = self.shape.n_layers * self.shape.n_kv_heads;
                let tidal = voice_heads(r_gpu, heads) as f64 / heads as f64;
                ((full as f64 * (1.1 * r_gpu + tidal)) as u64).min(full + full / 10)
            }
        }
    }

    /// Bytes that making a session holds beside what it keeps: a layer's keys and values, and the prompt's states, in f32.
    pub fn working_bytes(&self) -> u64 {
        let layer = 2 * self.shape.n_kv_heads * self.shape.head_dim;
        (self.prompt_rows() * (layer + self.hidden_size) * size_of::<f32>()) as u64
    }
}

/// A session after its prefill.
pub struct BenchSession {
    /// Keys and values.
    pub store: KvStore,
    /// The KV method.
    pub policy: Box<dyn Policy>,
    /// What the anchors will attend to.
    pub sweep: Sweep,
    /// Position of the next token.
    pub position: usize,
    /// The next token.
    pub token: u32,
}

impl BenchSession {
    /// Fills a store layer by layer as a prefill does, with the memory that a prefill takes.
    pub fn new(options: &SessionOptions) -> Result<Self, BenchError> {
        let (shape, n_audio) = (options.shape, options.audio_rows());
        let layout = PromptLayout::around(PROMPT_TEXT, n_audio);
        let mut policy: Box<dyn Policy> = match options.arm {
            KvArm::Full => Box::new(Full),
            KvArm::Wnw(r_gpu) => {
                let segments = |rows: usize| Segments::new(&layout, rows);
                let params = roles::params(shape, options.tokens_per_second, segments, r_gpu)?;
                Box::new(Wnw::new(Arc::new(params)))
            }
        };
        let store_options = StoreOptions {
            dtype: options.kv_dtype,
            segment_rows: policy.segment_rows(),
            device: Arena::new(None),
            host: Arena::new(None),
            host_place: options.host_place.clone(),
            swap: options.swap,
        };
        let mut store = KvStore::new(shape, layout.clone(), &store_options);
        let mut random = Random::new(options.seed);
        let observed = policy.observes(&layout);
        let rows = shape.n_kv_heads * layout.len() * shape.head_dim;
        // A prefill has these for every layer anew; that they are the same here shows in no step's time.
        let (k, v) = (random.noise(rows), random.noise(rows));
        let q = random.noise(observed.len() * shape.n_q_heads * shape.head_dim);
        let states = vec![1f32; layout.len() * options.hidden_size];
        let working = store.device().working(((k.len() + v.len()) * size_of::<f32>()) as u64);
        for layer in 0..shape.n_layers {
            let scale = (shape.head_dim as f32).powf(-0.5);
            let view =
                LayerView { layer, shape, layout: &layout, k: &k, v: &v, observed: &observed, q: &q, scale };
            let selection = policy.after_prefill(&view);
            store.admit(&view, &selection)?;
            working.note();
        }
        std::hint::black_box(&states);
        store.watch(policy.watches())?;
        store.swap(&policy.before_decode())?;
        let sweep = Sweep::new(
            options.sweep,
            n_audio,
            options.tokens_per_second,
            options.start,
            options.seed ^ 0x5eed,
        );
        Ok(Self { store, policy, sweep, position: layout.len(), token: 0 })
    }

    /// Writes `n` text positions without running the model.
    pub fn write(&mut self, n: usize) -> Result<(), BenchError> {
        let shape = self.store.shape();
        let mut random = Random::new(self.position as u64);
        let row = random.noise(shape.n_kv_heads * shape.head_dim);
        for _ in 0..n {
            for layer in 0..shape.n_layers {
                self.store.append(layer, &row, &row)?;
            }
            self.position += 1;
        }
        Ok(())
    }

    /// Lets the method see the script's present step and carries out its plan.
    pub fn plan(&mut self) -> Result<(), BenchError> {
        let plan = self.policy.after_step(self.sweep.attention());
        Ok(self.store.swap(&plan)?)
    }

    /// Bytes of keys and values that the next step's attention reads, as far as is known before it.
    pub fn bytes_read(&self, kv_dtype: KvDtype) -> u64 {
        let report = self.store.report();
        (report.read_rows + report.text_rows) * 2 * kv_dtype.row_bytes(self.store.shape().head_dim) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arm: KvArm) -> SessionOptions {
        SessionOptions {
            shape: KvShape { n_layers: 4, n_q_heads: 8, n_kv_heads: 4, head_dim: 16 },
            hidden_size: 32,
            tokens_per_second: 12.5,
            seconds: 120.0,
            arm,
            kv_dtype: KvDtype::Bf16,
            host_place: HostPlace::Ram,
            swap: SwapMode::Sync,
            sweep: SweepKind::Speech,
            start: 5.0,
            seed: 3,
        }
    }

    #[test]
    fn a_full_session_reads_every_byte() {
        let full = options(KvArm::Full);
        let mut session = BenchSession::new(&full).unwrap();
        assert_eq!((full.audio_rows(), full.prompt_rows()), (1500, 1508));
        assert_eq!(session.bytes_read(KvDtype::Bf16), full.full_bytes());
        assert_eq!(full.full_bytes(), 1508 * 4 * 4 * 2 * 16 * 2);
        session.write(10).unwrap();
        assert_eq!(session.position, 1518);
        assert_eq!(session.bytes_read(KvDtype::Bf16), 1518 * 4 * 4 * 2 * 16 * 2);
        session.store.check_integrity().unwrap();
    }

    #[test]
    fn wnw_keeps_its_share_and_recalls_along_the_script() {
        let mut session = BenchSession::new(&options(KvArm::Wnw(0.3))).unwrap();
        let (mut share, mut steps) = (0.0, 0.0);
        for _ in 0..200 {
            session.sweep.advance();
            session.plan().unwrap();
            share += session.store.report().r_gpu;
            steps += 1.0;
        }
        assert!((share / steps - 0.3f64).abs() < 0.05, "{}", share / steps);
        let swaps = session.store.report().swaps;
        assert!(swaps.recalled_segments > 0 && swaps.hits > swaps.recalled_segments, "{swaps:?}");
        session.store.check_integrity().unwrap();
        // Nothing new is wanted when nothing moves.
        session.sweep.set_kind(SweepKind::Still);
        session.plan().unwrap();
        let before = session.store.report().swaps.recalled_bytes;
        session.plan().unwrap();
        assert_eq!(session.store.report().swaps.recalled_bytes, before);
        session.sweep.set_kind(SweepKind::Worst);
        for _ in 0..10 {
            session.sweep.advance();
            session.plan().unwrap();
        }
        let worst = session.store.report().swaps.recalled_bytes - before;
        assert!(worst > 0);
    }
}
