//! The store: where the keys and values of one prompt live, attention over them, and what they cost.

use std::sync::Arc;
use std::time::Duration;

use half::{bf16, f16};
use thiserror::Error;
use wnw_kernels::{Int4, Int8};

use crate::arena::{Arena, ArenaError};
use crate::head::HeadRows;
use crate::host::{HostError, HostPlace};
use crate::mover::SwapMode;
use crate::policy::{
    HeadId, HeadSelection, LayerView, Pager, SelectionError, SwapPlan, check_plan, check_selection,
};
use crate::report::{Role, RoleReport, StoreReport, SwapCounters};
use crate::tiers::Tiers;
use crate::{KvDtype, KvShape, PromptLayout, Segments};

/// Why the store refused a call.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A policy's answer broke an invariant.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The device tier is full.
    #[error("device tier: {0}")]
    Device(#[from] ArenaError),
    /// The host tier refused.
    #[error(transparent)]
    Host(#[from] HostError),
    /// No memory to gather rows for the host.
    #[error("host tier: no memory for {needed} bytes")]
    HostMemory {
        /// Bytes asked for.
        needed: u64,
    },
    /// The thread that copies recalled rows.
    #[error("the copy thread cannot be used: {0}")]
    CopyThread(String),
    /// Layers must be admitted once each, in ascending order, before the first step.
    #[error("layer {got} was given where layer {want} was due")]
    LayerOrder {
        /// The layer given.
        got: usize,
        /// The layer due.
        want: usize,
    },
    /// Only heads that exist can be watched.
    #[error("KV head {kv_head} of layer {layer} cannot be watched: there is no such head")]
    Watch {
        /// Layer index.
        layer: usize,
        /// KV head index.
        kv_head: usize,
    },
    /// The store contradicts itself: a defect of this program.
    #[error("KV store integrity: {0}")]
    Integrity(String),
}

/// How a store is made.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Type in which keys and values are stored, audio and text, on both tiers.
    pub dtype: KvDtype,
    /// Audio rows of a segment: [`crate::Policy::segment_rows`].
    pub segment_rows: usize,
    /// The device tier's budget, shared by the stores of a session set.
    pub device: Arc<Arena>,
    /// The host tier's budget.
    pub host: Arc<Arena>,
    /// Where the host tier lies.
    pub host_place: HostPlace,
    /// When recalled rows are copied.
    pub swap: SwapMode,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            dtype: KvDtype::default(),
            segment_rows: crate::page::PAGE_ROWS,
            device: Arena::new(None),
            host: Arena::new(None),
            host_place: HostPlace::default(),
            swap: SwapMode::default(),
        }
    }
}

/// The two tiers of one prompt.
///
/// The prefill admits layer after layer; then each step appends a text row per layer and attends over what is
/// resident, and a swap plan moves segments between two steps.
#[derive(Debug)]
pub struct KvStore {
    shape: KvShape,
    layout: PromptLayout,
    segments: Segments,
    device: Arc<Arena>,
    tiers: Typed,
    admitted: usize,
    watched: Vec<HeadId>,
    attention: Vec<f32>,                            // (n_audio), of the current step
    stretches: Vec<(std::ops::Range<usize>, bool)>, // of the layout
    recalls: bool,
    pager: Option<Box<dyn Pager>>,
    pager_bytes: Charged,
}

/// Bytes charged to an arena until dropped.
#[derive(Debug)]
struct Charged {
    arena: Arc<Arena>,
    bytes: u64,
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.arena.credit(self.bytes);
    }
}

#[derive(Debug)]
enum Typed {
    F32(Tiers<f32>),
    Bf16(Tiers<bf16>),
    F16(Tiers<f16>),
    Int8(Tiers<Int8>),
    Int4(Tiers<Int4>),
}

/// Runs `$body` with the typed tiers of `$tiers`.
macro_rules! with_tiers {
    ($tiers:expr, $t:ident => $body:expr) => {
        match $tiers {
            Typed::F32($t) => $body,
            Typed::Bf16($t) => $body,
            Typed::F16($t) => $body,
            Typed::Int8($t) => $body,
            Typed::Int4($t) => $body,
        }
    };
}

impl Default for KvStore {
    /// A store of no heads, to leave behind where a store is taken away for a while.
    fn default() -> Self {
        let none = KvShape { n_layers: 0, n_q_heads: 0, n_kv_heads: 0, head_dim: 0 };
        Self::new(none, PromptLayout::default(), &StoreOptions::default())
    }
}

impl KvStore {
    /// An empty store for a prompt with this layout.
    pub fn new(shape: KvShape, layout: PromptLayout, options: &StoreOptions) -> Self {
        let segments = Segments::new(&layout, options.segment_rows);
        let tiers = match options.dtype {
            KvDtype::F32 => Typed::F32(Tiers::new(shape, options, &segments)),
            KvDtype::Bf16 => Typed::Bf16(Tiers::new(shape, options, &segments)),
            KvDtype::F16 => Typed::F16(Tiers::new(shape, options, &segments)),
            KvDtype::Int8 => Typed::Int8(Tiers::new(shape, options, &segments)),
            KvDtype::Int4 => Typed::Int4(Tiers::new(shape, options, &segments)),
        };
        Self {
            shape,
            attention: vec![0.0; layout.n_audio()],
            stretches: layout.stretches(),
            layout,
            segments,
            device: Arc::clone(&options.device),
            tiers,
            admitted: 0,
            watched: Vec::new(),
            recalls: false,
            pager: None,
            pager_bytes: Charged { arena: Arc::clone(&options.device), bytes: 0 },
        }
    }

    /// Head counts and sizes.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// The prompt's layout.
    pub fn layout(&self) -> &PromptLayout {
        &self.layout
    }

    /// The prompt's segments.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The device tier's budget.
    pub fn device(&self) -> &Arc<Arena> {
        &self.device
    }

    /// Takes over from a layer's prefill what `selection` keeps of `view`, and all of its text.
    pub fn admit(&mut self, view: &LayerView<'_>, selection: &[HeadSelection]) -> Result<(), StoreError> {
        if view.layer != self.admitted {
            return Err(StoreError::LayerOrder { got: view.layer, want: self.admitted });
        }
        check_selection(view, selection)?;
        for (kv_head, selection) in selection.iter().enumerate() {
            self.recalls |= matches!(selection, HeadSelection::Tiered(_));
            with_tiers!(&mut self.tiers, t => t.admit(view, kv_head, selection, &self.segments))?;
        }
        self.admitted += 1;
        if self.admitted == self.shape.n_layers {
            with_tiers!(&mut self.tiers, t => t.host.seal())?;
        }
        Ok(())
    }

    /// Names the heads whose attention to audio [`KvStore::attention`] sums up; call after the last layer is admitted.
    pub fn watch(&mut self, heads: Vec<HeadId>) -> Result<(), StoreError> {
        for HeadId { layer, kv_head } in heads.iter().copied() {
            self.require_prefilled(layer)?;
            if kv_head >= self.shape.n_kv_heads {
                return Err(StoreError::Watch { layer, kv_head });
            }
        }
        self.watched = heads;
        Ok(())
    }

    /// Lets `pager` choose in every step what each layer's heads see, and brings what it wants to begin with; call once,
    /// after the last layer is admitted.
    pub fn set_pager(&mut self, pager: Option<Box<dyn Pager>>) -> Result<(), StoreError> {
        let Some(mut pager) = pager else { return Ok(()) };
        self.require_prefilled(0)?;
        self.device.charge(pager.bytes())?;
        self.pager_bytes.bytes += pager.bytes();
        let before = with_tiers!(&self.tiers, t => t.counters);
        for layer in 0..self.shape.n_layers {
            self.page(layer, &pager.at_first(layer))?;
        }
        let first = |counters: &mut SwapCounters| {
            counters.recalled_segments = before.recalled_segments;
            counters.recalled_bytes = before.recalled_bytes;
        };
        with_tiers!(&mut self.tiers, t => first(&mut t.counters));
        self.pager = Some(pager);
        Ok(())
    }

    /// Carries out a pager's plans for a layer.
    fn page(&mut self, layer: usize, plans: &[SwapPlan]) -> Result<(), StoreError> {
        let (got, want) = (plans.len(), self.shape.n_kv_heads);
        if plans.is_empty() {
            return Ok(());
        }
        if got != want {
            return Err(SelectionError::HeadCount { layer, got, want }.into());
        }
        plans.iter().try_for_each(|plan| check_plan(plan, self.segments.len()))?;
        with_tiers!(&mut self.tiers, t => t.swap_layer(layer, plans))
    }

    /// Begins a step: what the watched heads attended to is forgotten.
    pub fn begin_step(&mut self) {
        self.attention.fill(0.0);
    }

    /// Softmax weight on each audio row, summed over the query heads of the watched heads, since
    /// [`KvStore::begin_step`]: `(n_audio)`.
    pub fn attention(&self) -> &[f32] {
        &self.attention
    }

    /// Appends one text position's keys (after rotary embedding) and values, each `(n_kv_heads, head_dim)`.
    pub fn append(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), StoreError> {
        self.require_prefilled(layer)?;
        let hd = self.shape.head_dim;
        for kv_head in 0..self.shape.n_kv_heads {
            let head = self.head_index(layer, kv_head);
            let row = kv_head * hd..(kv_head + 1) * hd;
            with_tiers!(&mut self.tiers, t => t.push(head, &k[row.clone()], &v[row]))?;
        }
        Ok(())
    }

    /// Attention of one step of `layer` over everything resident: `q` and `out` are `(n_q_heads, head_dim)`, scores are
    /// multiplied by `scale`, softmax and sums are f32. Carries out what the pager chooses, and waits for what is recalled
    /// before the layer's attention.
    pub fn attend(&mut self, layer: usize, q: &[f32], scale: f32, out: &mut [f32]) -> Result<(), StoreError> {
        self.require_prefilled(layer)?;
        let plans = self.pager.as_mut().map_or(Vec::new(), |pager| pager.before_attention(layer, q));
        self.page(layer, &plans)?;
        with_tiers!(&mut self.tiers, t => t.attend(layer, q, scale, out))?;
        for head in self.watched.iter().filter(|head| head.layer == layer) {
            let (stretches, sum) = (&self.stretches, &mut self.attention);
            with_tiers!(&self.tiers, t => t.observe(layer, head.kv_head, stretches, sum));
        }
        let plans = self.pager.as_mut().map_or(Vec::new(), |pager| pager.after_attention(layer, q));
        self.page(layer, &plans)
    }

    /// Carries out a swap plan: releases at once; recalls are there at the latest when the next step's attention reads
    /// them. A recall for which the budget has no room is left out and counted.
    pub fn swap(&mut self, plan: &SwapPlan) -> Result<(), StoreError> {
        self.require_prefilled(0)?;
        check_plan(plan, self.segments.len())?;
        if self.recalls {
            with_tiers!(&mut self.tiers, t => t.swap(plan))?;
        }
        Ok(())
    }

    fn head_index(&self, layer: usize, kv_head: usize) -> usize {
        layer * self.shape.n_kv_heads + kv_head
    }

    fn require_prefilled(&self, layer: usize) -> Result<(), StoreError> {
        if self.admitted < self.shape.n_layers || layer >= self.shape.n_layers {
            return Err(StoreError::LayerOrder { got: layer, want: self.admitted });
        }
        Ok(())
    }

    /// Resident rows of one head, text and audio.
    pub fn resident_rows(&self, layer: usize, kv_head: usize) -> usize {
        let head = self.head_index(layer, kv_head);
        with_tiers!(&self.tiers, t => t.heads[head].rows())
    }

    /// Role of each KV head, `(n_layers, n_kv_heads)`, from what it keeps and whether it is watched.
    pub fn roles(&self) -> Vec<Role> {
        let watched = |i: usize| {
            let id = HeadId { layer: i / self.shape.n_kv_heads, kv_head: i % self.shape.n_kv_heads };
            self.watched.contains(&id)
        };
        with_tiers!(&self.tiers, t => t.heads.iter().enumerate().map(|(i, head)| match (&head.tidal, &head.kept) {
            (Some(tidal), _) if self.layout.n_audio() == 0 || tidal.host.len() > 0 => Role::Tidal,
            (None, Some(_)) => Role::Fixed,
            _ if watched(i) => Role::Anchor,
            _ => Role::Whole,
        }).collect())
    }

    /// Audio rows that each KV head's attention reads, `(n_layers, n_kv_heads)`; those on their way count.
    pub fn head_rows(&self) -> Vec<u64> {
        let mut rows = Vec::new();
        self.head_rows_into(&mut rows);
        rows
    }

    /// The same, into a buffer that is used again.
    pub fn head_rows_into(&self, rows: &mut Vec<u64>) {
        let n_audio = self.layout.n_audio();
        rows.clear();
        with_tiers!(&self.tiers, t => rows.extend(t.heads.iter().map(|h| h.audio_rows(n_audio) as u64)));
    }

    /// Audio rows of each KV head that are on the device or on their way to it, `(n_layers, n_kv_heads)`, whether its
    /// attention reads them or not.
    pub fn held_rows_into(&self, rows: &mut Vec<u64>) {
        let n_audio = self.layout.n_audio();
        rows.clear();
        with_tiers!(&self.tiers, t => rows.extend(t.heads.iter().map(|h| h.held_rows(n_audio) as u64)));
    }

    /// Audio rows of each segment that one head has on the device or on their way to it, `(n_segments)`; `None` if there
    /// is no such head.
    pub fn segment_rows(&self, head: HeadId) -> Option<Vec<u32>> {
        let HeadId { layer, kv_head } = head;
        if layer >= self.shape.n_layers || kv_head >= self.shape.n_kv_heads {
            return None;
        }
        let head = self.head_index(layer, kv_head);
        Some(with_tiers!(&self.tiers, t => t.heads[head].segment_rows(self.segments.ranges())))
    }

    /// Segments whose recalled rows are on the device in some head, or on their way.
    pub fn recalled_segments(&self) -> Vec<u32> {
        fn of<T>(heads: &[HeadRows<T>]) -> Vec<u32> {
            let mut all: Vec<u32> = heads
                .iter()
                .filter_map(|h| h.tidal.as_ref())
                .flat_map(|t| t.segments.iter().enumerate())
                .filter(|(_, s)| !matches!(s.state, crate::head::BlockState::Out))
                .map(|(i, _)| i as u32)
                .collect();
            all.sort_unstable();
            all.dedup();
            all
        }
        with_tiers!(&self.tiers, t => of(&t.heads))
    }

    /// Bytes allocated on the device for this store, now.
    pub fn device_bytes(&self) -> u64 {
        with_tiers!(&self.tiers, t => t.device_bytes()) + self.pager_bytes.bytes
    }

    /// Time that attention waited for recalled rows (overlapped), or that copying took (synchronous).
    pub fn waited(&self) -> Duration {
        with_tiers!(&self.tiers, t => t.waited)
    }

    /// What is held and what it costs, now.
    pub fn report(&self) -> StoreReport {
        let n_audio = self.layout.n_audio() as u64;
        let mut roles: Vec<RoleReport> = Vec::new();
        let mut held = Vec::new();
        self.held_rows_into(&mut held);
        for (role, device_rows) in self.roles().into_iter().zip(held) {
            let reachable_rows = if role == Role::Tidal { n_audio } else { device_rows };
            match roles.iter_mut().find(|r| r.role == role) {
                Some(report) => {
                    report.heads += 1;
                    report.device_rows += device_rows;
                    report.reachable_rows += reachable_rows;
                }
                None => roles.push(RoleReport { role, heads: 1, device_rows, reachable_rows }),
            }
        }
        roles.sort_unstable_by_key(|r| r.role);
        let text =
            |len: usize, kept: Option<&Vec<u32>>| len as u64 - kept.map_or(n_audio, |k| k.len() as u64);
        let text_rows = with_tiers!(&self.tiers, t => t.heads.iter().take(self.admitted * self.shape.n_kv_heads)
            .map(|h| text(h.len, h.kept.as_ref())).sum());
        let all = (self.shape.n_layers * self.shape.n_kv_heads) as u64 * n_audio;
        let share = |rows: u64| if all == 0 { 1.0 } else { rows as f64 / all as f64 };
        let audio_rows = roles.iter().map(|r| r.device_rows).sum();
        let read_rows = self.head_rows().iter().sum();
        StoreReport {
            audio_rows,
            read_rows,
            r_read: share(read_rows),
            text_rows,
            r_gpu: share(audio_rows),
            r_gpu_cpu: share(roles.iter().map(|r| r.reachable_rows).sum()),
            device_bytes: self.device_bytes(),
            host_bytes: with_tiers!(&self.tiers, t => t.host.bytes()),
            roles,
            swaps: with_tiers!(&self.tiers, t => t.counters),
        }
    }

    /// Checks that every page and block has one owner, that rows and pages agree, that device and host together are the
    /// whole audio of each tidal head, and that attention reads what is counted. Callable at any moment.
    pub fn check_integrity(&self) -> Result<(), StoreError> {
        let n_admitted = self.admitted * self.shape.n_kv_heads;
        with_tiers!(&self.tiers, t => t.check_integrity(n_admitted, &self.layout))
            .map_err(StoreError::Integrity)
    }
}
