//! The store: resident rows of every KV head, attention over them, and what they cost.

use half::{bf16, f16};
use rayon::prelude::*;
use serde::Serialize;
use thiserror::Error;
use wnw_kernels::KvElement;

use crate::attention::attend_pieces;
use crate::page::{PAGE_ROWS, PagePool};
use crate::policy::{HeadSelection, LayerView, SelectionError, check_selection};
use crate::{KvDtype, KvShape, PromptLayout};

/// Why the store refused a call.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// A policy's answer broke an invariant.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The allocator gave no page.
    #[error("no memory for another KV page of {page_bytes} bytes ({allocated} bytes allocated)")]
    OutOfMemory {
        /// Bytes of one page.
        page_bytes: usize,
        /// Bytes allocated so far.
        allocated: u64,
    },
    /// Layers must be admitted once each, in ascending order, before the first step.
    #[error("layer {got} was given where layer {want} was due")]
    LayerOrder {
        /// The layer given.
        got: usize,
        /// The layer due.
        want: usize,
    },
    /// The store contradicts itself: a defect of this program.
    #[error("KV store integrity: {0}")]
    Integrity(String),
}

/// Bytes and rows of a store at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StoreReport {
    /// Audio rows resident, over all layers and KV heads.
    pub audio_rows: u64,
    /// Text rows resident (prompt and answer), over all layers and KV heads.
    pub text_rows: u64,
    /// Share of the prompt's audio rows that is resident, r_GPU (1 without audio).
    pub retention: f64,
    /// Bytes of pages allocated. Nothing is freed while a store lives, so this is also the most there ever was.
    pub bytes_allocated: u64,
}

/// One KV head's resident rows, in order of position.
#[derive(Debug, Default)]
struct HeadRows {
    pages: Vec<u32>,
    len: usize,
    audio_rows: usize,
}

#[derive(Debug)]
enum Pool {
    F32(PagePool<f32>),
    Bf16(PagePool<bf16>),
    F16(PagePool<f16>),
}

/// Runs `$body` with the typed pool of `$pool`.
macro_rules! with_pool {
    ($pool:expr, $p:ident => $body:expr) => {
        match $pool {
            Pool::F32($p) => $body,
            Pool::Bf16($p) => $body,
            Pool::F16($p) => $body,
        }
    };
}

/// The keys and values of one prompt and its answer.
///
/// Life: [`KvStore::new`], then [`KvStore::admit`] for every layer in ascending order, then per generated token one
/// [`KvStore::append`] and one [`KvStore::attend`] for every layer in ascending order.
#[derive(Debug)]
pub struct KvStore {
    shape: KvShape,
    layout: PromptLayout,
    pool: Pool,
    heads: Vec<HeadRows>, // (n_layers, n_kv_heads)
    admitted: usize,
    weights: Vec<Vec<f32>>, // per KV head: scratch of `attend`
}

impl KvStore {
    /// An empty store for a prompt with this layout.
    pub fn new(shape: KvShape, dtype: KvDtype, layout: PromptLayout) -> Self {
        let pool = match dtype {
            KvDtype::F32 => Pool::F32(PagePool::new(shape.head_dim)),
            KvDtype::Bf16 => Pool::Bf16(PagePool::new(shape.head_dim)),
            KvDtype::F16 => Pool::F16(PagePool::new(shape.head_dim)),
        };
        let heads = (0..shape.n_layers * shape.n_kv_heads).map(|_| HeadRows::default()).collect();
        Self { shape, layout, pool, heads, admitted: 0, weights: vec![Vec::new(); shape.n_kv_heads] }
    }

    /// Head counts and sizes.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// The prompt's layout.
    pub fn layout(&self) -> &PromptLayout {
        &self.layout
    }

    /// Takes over from a layer's prefill what `selection` keeps of `view`, and all of its text.
    pub fn admit(&mut self, view: &LayerView<'_>, selection: &[HeadSelection]) -> Result<(), StoreError> {
        if view.layer != self.admitted {
            return Err(StoreError::LayerOrder { got: view.layer, want: self.admitted });
        }
        check_selection(view, selection)?;
        let (n, hd) = (self.layout.len(), self.shape.head_dim);
        let stretches = self.layout.stretches();
        for (kv_head, selection) in selection.iter().enumerate() {
            let head = &mut self.heads[view.layer * self.shape.n_kv_heads + kv_head];
            let mut first_ordinal = 0;
            for (stretch, is_audio) in &stretches {
                let mut keep = |position: usize| {
                    let at = (kv_head * n + position) * hd;
                    with_pool!(&mut self.pool, pool => push(pool, head, &view.k[at..at + hd], &view.v[at..at + hd]))
                };
                match selection {
                    HeadSelection::Only(kept) if *is_audio => {
                        let last_ordinal = first_ordinal + stretch.len();
                        let from = kept.partition_point(|o| (*o as usize) < first_ordinal);
                        let to = kept.partition_point(|o| (*o as usize) < last_ordinal);
                        for ordinal in &kept[from..to] {
                            keep(stretch.start + *ordinal as usize - first_ordinal)?;
                        }
                        head.audio_rows += to - from;
                    }
                    _ => {
                        for position in stretch.clone() {
                            keep(position)?;
                        }
                        head.audio_rows += if *is_audio { stretch.len() } else { 0 };
                    }
                }
                if *is_audio {
                    first_ordinal += stretch.len();
                }
            }
        }
        self.admitted += 1;
        Ok(())
    }

    /// Appends one text position's keys (after rotary embedding) and values, each `(n_kv_heads, head_dim)`.
    pub fn append(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), StoreError> {
        self.require_prefilled(layer)?;
        let hd = self.shape.head_dim;
        for kv_head in 0..self.shape.n_kv_heads {
            let head = &mut self.heads[layer * self.shape.n_kv_heads + kv_head];
            let row = kv_head * hd..(kv_head + 1) * hd;
            with_pool!(&mut self.pool, pool => push(pool, head, &k[row.clone()], &v[row]))?;
        }
        Ok(())
    }

    /// Attention of one step of `layer` over everything resident: `q` and `out` are `(n_q_heads, head_dim)`, scores are
    /// multiplied by `scale`, softmax and sums are f32.
    pub fn attend(&mut self, layer: usize, q: &[f32], scale: f32, out: &mut [f32]) -> Result<(), StoreError> {
        self.require_prefilled(layer)?;
        let KvShape { n_kv_heads, head_dim, .. } = self.shape;
        let group = self.shape.group() * head_dim;
        let heads = &self.heads[layer * n_kv_heads..(layer + 1) * n_kv_heads];
        with_pool!(&self.pool, pool => {
            let weights = &mut self.weights;
            let one = |head: &HeadRows, weights: &mut Vec<f32>, q: &[f32], out: &mut [f32]| {
                attend_pieces(q, pieces(pool, head), head.len, head_dim, scale, weights, out);
            };
            // Splitting across threads costs microseconds: worth it only when the rows take longer to read.
            let rows: usize = heads.iter().map(|h| h.len).sum();
            if rows * head_dim < PARALLEL_FROM {
                let work = heads.iter().zip(weights).zip(q.chunks_exact(group)).zip(out.chunks_exact_mut(group));
                work.for_each(|(((head, weights), q), out)| one(head, weights, q, out));
            } else {
                let (q, out) = (q.par_chunks_exact(group), out.par_chunks_exact_mut(group));
                let work = heads.par_iter().zip(weights).zip(q).zip(out);
                work.for_each(|(((head, weights), q), out)| one(head, weights, q, out));
            }
        });
        Ok(())
    }

    fn require_prefilled(&self, layer: usize) -> Result<(), StoreError> {
        if self.admitted < self.shape.n_layers || layer >= self.shape.n_layers {
            return Err(StoreError::LayerOrder { got: layer, want: self.admitted });
        }
        Ok(())
    }

    /// Resident rows of one head, text and audio.
    pub fn resident_rows(&self, layer: usize, kv_head: usize) -> usize {
        self.heads[layer * self.shape.n_kv_heads + kv_head].len
    }

    /// Share of the prompt's audio rows that is resident, r_GPU; 1 without audio.
    pub fn retention(&self) -> f64 {
        let all = self.heads.len() * self.layout.n_audio();
        let resident: usize = self.heads.iter().map(|h| h.audio_rows).sum();
        if all == 0 { 1.0 } else { resident as f64 / all as f64 }
    }

    /// What is resident and what it costs, now.
    pub fn report(&self) -> StoreReport {
        let audio_rows: u64 = self.heads.iter().map(|h| h.audio_rows as u64).sum();
        let rows: u64 = self.heads.iter().map(|h| h.len as u64).sum();
        StoreReport {
            audio_rows,
            text_rows: rows - audio_rows,
            retention: self.retention(),
            bytes_allocated: with_pool!(&self.pool, p => (p.page_bytes() * p.allocated()) as u64),
        }
    }

    /// Checks that every page belongs to exactly one head, that each head has exactly the pages its rows
    /// need, and that no admitted layer lacks text rows. Callable at any moment.
    pub fn check_integrity(&self) -> Result<(), StoreError> {
        let allocated = with_pool!(&self.pool, p => p.allocated());
        let mut owner = vec![0u32; allocated];
        for page in self.heads.iter().flat_map(|h| &h.pages) {
            match owner.get_mut(*page as usize) {
                Some(count) => *count += 1,
                None => return Err(StoreError::Integrity(format!("page {page} was never allocated"))),
            }
        }
        if let Some(page) = owner.iter().position(|count| *count != 1) {
            return Err(StoreError::Integrity(format!("page {page} has {} owners", owner[page])));
        }
        let n_text = self.layout.len() - self.layout.n_audio();
        for (i, head) in self.heads.iter().enumerate() {
            if head.pages.len() != head.len.div_ceil(PAGE_ROWS) {
                let (rows, pages) = (head.len, head.pages.len());
                return Err(StoreError::Integrity(format!("head {i}: {rows} rows on {pages} pages")));
            }
            let admitted = i < self.admitted * self.shape.n_kv_heads;
            if admitted && head.len - head.audio_rows < n_text || head.audio_rows > self.layout.n_audio() {
                return Err(StoreError::Integrity(format!(
                    "head {i}: {} rows of which {} audio",
                    head.len, head.audio_rows
                )));
            }
        }
        Ok(())
    }
}

/// Elements of a layer's resident keys from which `attend` uses several threads.
const PARALLEL_FROM: usize = 1 << 17;

fn push<T: KvElement>(
    pool: &mut PagePool<T>,
    head: &mut HeadRows,
    k: &[f32],
    v: &[f32],
) -> Result<(), StoreError> {
    let slot = head.len % PAGE_ROWS;
    if slot == 0 {
        let page = pool.take().ok_or_else(|| StoreError::OutOfMemory {
            page_bytes: pool.page_bytes(),
            allocated: (pool.allocated() * pool.page_bytes()) as u64,
        })?;
        head.pages.push(page);
    }
    pool.write(head.pages[head.len / PAGE_ROWS], slot, k, v);
    head.len += 1;
    Ok(())
}

/// The key and value rows of a head, page by page.
fn pieces<'a, T: KvElement>(
    pool: &'a PagePool<T>,
    head: &'a HeadRows,
) -> impl Iterator<Item = (&'a [T], &'a [T])> + Clone {
    head.pages.iter().enumerate().map(|(i, page)| pool.rows(*page, PAGE_ROWS.min(head.len - i * PAGE_ROWS)))
}
