//! Both tiers for one KV type: admission, attention, swaps.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use wnw_kernels::KvRow;
use wnw_kernels::vector::encode_row;

use crate::arena::ArenaError;
use crate::attention::{StepScratch, attend_pieces};
use crate::head::{BlockState, HeadRows, Tidal, TidalSegment};
use crate::host::HostTier;
use crate::mover::{Move, Mover, SwapMode};
use crate::page::{PAGE_ROWS, Page, PagePool};
use crate::policy::{HeadSelection, LayerView, Release, SwapPlan};
use crate::report::SwapCounters;
use crate::store::{StoreError, StoreOptions};
use crate::{KvShape, PromptLayout, Segments};

/// Elements of a layer's resident keys from which `attend` uses several threads.
const PARALLEL_FROM: usize = 1 << 17;

/// The rows of all heads, the pages they lie in, and the copy thread.
#[derive(Debug)]
pub struct Tiers<T: KvRow> {
    shape: KvShape,
    pub heads: Vec<HeadRows<T>>, // n_layers * n_kv_heads
    pages: PagePool<T>,
    blocks: PagePool<T>,
    pub host: HostTier,
    swap: SwapMode,
    mover: Option<Mover<T>>,
    pending: Vec<usize>, // per layer: moves on their way
    pub counters: SwapCounters,
    pub waited: Duration,
    scratch: Vec<StepScratch>, // per KV head of a layer
    rows: Vec<usize>,          // resident rows per KV head of the layer that attends
    arrived: Vec<bool>,        // per KV head of a layer: whether recalled rows came
    moves: Vec<Move<T>>,       // empty between calls
    plan: Option<HostPlan>,    // the same for every tidal head
}

/// What of the layout the host runs and the order of reading follow from.
#[derive(Debug)]
struct HostPlan {
    positions: Vec<usize>, // (n_audio)
    numbered: Vec<(Range<usize>, usize)>,
    text_before: Vec<usize>,
}

impl<T: KvRow> Tiers<T> {
    pub fn new(shape: KvShape, options: &StoreOptions, segments: &Segments) -> Self {
        // A block never holds more rows than the longest segment has.
        let block_rows = segments.ranges().iter().map(Range::len).max().unwrap_or(1);
        Self {
            shape,
            heads: (0..shape.n_layers * shape.n_kv_heads).map(|_| HeadRows::default()).collect(),
            pages: PagePool::new(PAGE_ROWS, T::row_len(shape.head_dim), Arc::clone(&options.device)),
            blocks: PagePool::new(block_rows, T::row_len(shape.head_dim), Arc::clone(&options.device)),
            host: HostTier::new(options.host_place.clone(), Arc::clone(&options.host)),
            swap: options.swap,
            mover: None,
            pending: vec![0; shape.n_layers],
            counters: SwapCounters::default(),
            waited: Duration::ZERO,
            scratch: (0..shape.n_kv_heads).map(|_| StepScratch::default()).collect(),
            rows: Vec::with_capacity(shape.n_kv_heads),
            arrived: Vec::with_capacity(shape.n_kv_heads),
            moves: Vec::new(),
            plan: None,
        }
    }

    /// Bytes allocated on the device.
    pub fn device_bytes(&self) -> u64 {
        self.pages.bytes() + self.blocks.bytes()
    }

    /// Takes over one head of a layer.
    pub fn admit(
        &mut self,
        view: &LayerView<'_>,
        kv_head: usize,
        selection: &HeadSelection,
        segments: &Segments,
    ) -> Result<(), StoreError> {
        let (n, hd) = (view.layout.len(), self.shape.head_dim);
        let row = |position: usize| {
            let at = (kv_head * n + position) * hd;
            (&view.k[at..at + hd], &view.v[at..at + hd])
        };
        let head = view.layer * self.shape.n_kv_heads + kv_head;
        let kept = match selection {
            HeadSelection::All => None,
            HeadSelection::Only(kept) | HeadSelection::Tiered(kept) => Some(kept),
        };
        let mut first_ordinal = 0;
        for (stretch, is_audio) in view.layout.stretches() {
            match kept {
                Some(kept) if is_audio => {
                    let last_ordinal = first_ordinal + stretch.len();
                    let from = kept.partition_point(|o| (*o as usize) < first_ordinal);
                    let to = kept.partition_point(|o| (*o as usize) < last_ordinal);
                    for ordinal in &kept[from..to] {
                        let (k, v) = row(stretch.start + *ordinal as usize - first_ordinal);
                        self.push(head, k, v)?;
                    }
                }
                _ => {
                    for position in stretch.clone() {
                        let (k, v) = row(position);
                        self.push(head, k, v)?;
                    }
                }
            }
            first_ordinal += if is_audio { stretch.len() } else { 0 };
        }
        self.heads[head].kept = kept.cloned();
        if let HeadSelection::Tiered(kept) = selection {
            let plan = self.plan.get_or_insert_with(|| HostPlan::new(view.layout, segments));
            let run = host_run(&plan.positions, kept, segments, hd, row)?;
            let host = self.host.put(run)?;
            self.heads[head].make_tidal(&plan.numbered, &plan.text_before, host);
        }
        Ok(())
    }

    /// Appends a row to a head.
    pub fn push(&mut self, head: usize, k: &[f32], v: &[f32]) -> Result<(), StoreError> {
        if self.heads[head].is_full() {
            let page = match self.pages.take() {
                Ok(page) => page,
                Err(full) => self.page_from_blocks(full)?,
            };
            self.heads[head].pages.push(page);
        }
        self.heads[head].push(k, v);
        Ok(())
    }

    /// A page from the room of blocks: text cannot be had again, recalled rows can. Blocks that wait to be used go first,
    /// then those of the earliest segments, since a transcript moves on.
    fn page_from_blocks(&mut self, full: ArenaError) -> Result<Page<T>, StoreError> {
        loop {
            let trimmed = self.blocks.trim();
            if trimmed && let Ok(page) = self.pages.take() {
                return Ok(page);
            }
            let recalled = |head: &HeadRows<T>| head.tidal.as_ref().and_then(Tidal::first_recalled);
            let earliest = self.heads.iter().filter_map(recalled).min();
            let Some(segment) = earliest else {
                if self.pending.iter().all(|n| *n == 0) {
                    return Err(full.into());
                }
                for layer in 0..self.shape.n_layers {
                    self.settle(layer)?;
                }
                continue;
            };
            for head in &mut self.heads {
                let Some(tidal) = head.tidal.as_mut().filter(|t| t.first_recalled() == Some(segment)) else {
                    continue;
                };
                let out = |s: &mut TidalSegment<T>| std::mem::replace(&mut s.state, BlockState::Out);
                if let BlockState::In(block) = tidal.change(segment, out) {
                    self.blocks.give(block);
                    self.counters.evicted += 1;
                }
                head.arrange();
            }
        }
    }

    /// Attention of one step of `layer`; `q` and `out` are `(n_q_heads, head_dim)`.
    pub fn attend(&mut self, layer: usize, q: &[f32], scale: f32, out: &mut [f32]) -> Result<(), StoreError> {
        self.settle(layer)?;
        let KvShape { n_kv_heads, head_dim, .. } = self.shape;
        let group = self.shape.group() * head_dim;
        let heads = &self.heads[layer * n_kv_heads..(layer + 1) * n_kv_heads];
        self.rows.clear();
        self.rows.extend(heads.iter().map(HeadRows::rows));
        let rows = &self.rows;
        let one = |head: &HeadRows<T>, rows: usize, scratch: &mut StepScratch, q: &[f32], out: &mut [f32]| {
            attend_pieces(q, head.pieces(T::row_len(head_dim)), rows, head_dim, scale, scratch, out);
        };
        // Splitting across threads costs microseconds: worth it only when the rows take longer to read.
        if rows.iter().sum::<usize>() * head_dim < PARALLEL_FROM {
            let (q, out) = (q.chunks_exact(group), out.chunks_exact_mut(group));
            let work = heads.iter().zip(rows).zip(&mut self.scratch).zip(q).zip(out);
            work.for_each(|((((head, rows), scratch), q), out)| one(head, *rows, scratch, q, out));
        } else {
            let (q, out) = (q.par_chunks_exact(group), out.par_chunks_exact_mut(group));
            let work = heads.par_iter().zip(rows).zip(&mut self.scratch).zip(q).zip(out);
            work.for_each(|((((head, rows), scratch), q), out)| one(head, *rows, scratch, q, out));
        }
        Ok(())
    }

    /// Adds the softmax weights of the last `attend` on a head's audio rows to `sum`, `(n_audio)`.
    /// `stretches` are those of the layout.
    pub fn observe(&self, layer: usize, kv_head: usize, stretches: &[(Range<usize>, bool)], sum: &mut [f32]) {
        let head = &self.heads[layer * self.shape.n_kv_heads + kv_head];
        let rows = head.rows();
        let segments = head.tidal.as_ref().map_or(&[][..], |tidal| &tidal.segments);
        for weights in self.scratch[kv_head].weights.chunks_exact(rows.max(1)) {
            let (mut row, mut first_ordinal) = (0, 0);
            for (stretch, is_audio) in stretches {
                let ordinals = first_ordinal..first_ordinal + stretch.len();
                match (&head.kept, *is_audio) {
                    (_, false) => row += stretch.len(),
                    (None, true) => {
                        let weights = &weights[row..row + stretch.len()];
                        sum[ordinals].iter_mut().zip(weights).for_each(|(sum, w)| *sum += w);
                        row += stretch.len();
                    }
                    // Of a tidal head, what each segment has on the device now.
                    (Some(kept), true) if !segments.is_empty() => {
                        for segment in segments.iter().filter(|s| ordinals.contains(&s.ordinals.start)) {
                            let here = matches!(segment.state, BlockState::In(_));
                            let mut kept = kept[segment.kept.clone()].iter().peekable();
                            for ordinal in segment.ordinals.clone() {
                                let was_kept = kept.next_if(|o| **o as usize == ordinal).is_some();
                                if if was_kept { !segment.hidden } else { here } {
                                    sum[ordinal] += weights[row];
                                    row += 1;
                                }
                            }
                        }
                    }
                    (Some(kept), true) => {
                        let from = kept.partition_point(|o| (*o as usize) < ordinals.start);
                        let to = kept.partition_point(|o| (*o as usize) < ordinals.end);
                        let weights = &weights[row..row + to - from];
                        kept[from..to].iter().zip(weights).for_each(|(o, w)| sum[*o as usize] += w);
                        row += to - from;
                    }
                }
                first_ordinal += if *is_audio { stretch.len() } else { 0 };
            }
        }
    }

    /// Carries out a plan that was checked, in every head: releases at once, recalls at once or on the copy thread.
    pub fn swap(&mut self, plan: &SwapPlan) -> Result<(), StoreError> {
        if plan.wanted.is_empty() && plan.release.is_empty() {
            return Ok(());
        }
        // A segment may only leave when it has arrived.
        for layer in 0..self.shape.n_layers {
            self.settle(layer)?;
        }
        // All releases come first: recalls use the room that they leave.
        for head in 0..self.heads.len() {
            self.release(head, &plan.release);
        }
        // Room is given segment by segment over all heads, so that a budget that cannot take them all starves no layer;
        // copies are made head by head, so that the first layers have theirs first.
        let mut moves = std::mem::take(&mut self.moves);
        for segment in &plan.wanted {
            for head in 0..self.heads.len() {
                moves.extend(self.recall(head, *segment)?);
            }
        }
        moves.sort_by_key(|job| job.head);
        for job in moves.drain(..) {
            self.dispatch(job)?;
        }
        self.moves = moves;
        Ok(())
    }

    /// Carries out one checked plan per KV head of a layer: releases at once, recalls at once or on the copy thread.
    pub fn swap_layer(&mut self, layer: usize, plans: &[SwapPlan]) -> Result<(), StoreError> {
        self.settle(layer)?;
        let first = layer * self.shape.n_kv_heads;
        for (kv_head, plan) in plans.iter().enumerate() {
            self.release(first + kv_head, &plan.release);
        }
        for (kv_head, plan) in plans.iter().enumerate() {
            for segment in &plan.wanted {
                if let Some(job) = self.recall(first + kv_head, *segment)? {
                    self.dispatch(job)?;
                }
            }
        }
        Ok(())
    }

    /// Releases segments of one head, which have arrived.
    fn release(&mut self, head: usize, releases: &[Release]) {
        let Some(tidal) = &mut self.heads[head].tidal else { return };
        let mut changed = false;
        for release in releases {
            let state = tidal.change(release.segment, |segment| {
                changed |= release.whole && !segment.hidden;
                segment.hidden |= release.whole && !segment.kept.is_empty();
                std::mem::replace(&mut segment.state, BlockState::Out)
            });
            if let BlockState::In(block) = state {
                self.blocks.give(block);
                self.counters.released_segments += 1;
                changed = true;
            }
        }
        if changed {
            self.heads[head].arrange();
        }
    }

    /// Makes room for a segment that is not on the device; the move that brings it.
    fn recall(&mut self, head: usize, number: u32) -> Result<Option<Move<T>>, StoreError> {
        let len = T::row_len(self.shape.head_dim);
        let Some(tidal) = &mut self.heads[head].tidal else { return Ok(None) };
        let shown = tidal.segments[number as usize].hidden;
        if shown {
            tidal.change(number, |segment| segment.hidden = false);
        }
        let segment = &tidal.segments[number as usize];
        let rows = segment.host_rows();
        let mut job = None;
        if rows > 0 && !matches!(segment.state, BlockState::Out) {
            self.counters.hits += 1;
        } else if rows > 0 {
            match self.blocks.take() {
                Ok(page) => {
                    let range = 2 * segment.host_row * len..2 * (segment.host_row + rows) * len;
                    self.counters.recalled_segments += 1;
                    self.counters.recalled_bytes += (range.len() * size_of::<T>()) as u64;
                    tidal.change(number, |segment| segment.state = BlockState::Pending);
                    job = Some(Move { head, segment: number, host: tidal.host.clone(), range, page });
                }
                Err(ArenaError::Full { .. }) => self.counters.denied += 1,
                Err(error) => return Err(error.into()),
            }
        }
        if shown {
            self.heads[head].arrange();
        }
        Ok(job)
    }

    fn dispatch(&mut self, mut job: Move<T>) -> Result<(), StoreError> {
        if self.swap == SwapMode::Overlap {
            let mover = match &self.mover {
                Some(mover) => mover,
                None => self.mover.insert(Mover::start().map_err(|e| StoreError::CopyThread(e.to_string()))?),
            };
            let layer = job.head / self.shape.n_kv_heads;
            match mover.send(job) {
                Ok(()) => self.pending[layer] += 1,
                Err(_) => return Err(StoreError::CopyThread("it has ended".into())),
            }
            return Ok(());
        }
        let clock = Instant::now();
        job.carry_out();
        let head = self.install(job);
        self.heads[head].arrange();
        self.waited += clock.elapsed();
        Ok(())
    }

    /// Waits until everything recalled for `layer` is there.
    fn settle(&mut self, layer: usize) -> Result<(), StoreError> {
        if self.pending[layer] == 0 {
            return Ok(());
        }
        let clock = Instant::now();
        let mut waited = false;
        let heads = layer * self.shape.n_kv_heads..(layer + 1) * self.shape.n_kv_heads;
        self.arrived.clear();
        self.arrived.resize(heads.len(), false);
        while self.pending[layer] > 0 {
            let Some(mover) = &self.mover else { return Err(StoreError::CopyThread("it is gone".into())) };
            let job = match mover.ready() {
                Some(job) => job,
                None => {
                    waited = true;
                    mover.wait().ok_or_else(|| StoreError::CopyThread("it has ended".into()))?
                }
            };
            self.pending[job.head / self.shape.n_kv_heads] -= 1;
            let head = self.install(job);
            if heads.contains(&head) {
                self.arrived[head - heads.start] = true
            } else {
                self.heads[head].arrange()
            }
        }
        for (head, _) in heads.zip(&self.arrived).filter(|(_, arrived)| **arrived) {
            self.heads[head].arrange();
        }
        if waited {
            self.waited += clock.elapsed();
        }
        Ok(())
    }

    /// Puts a block in its place; the head is to be arranged before it is read. Returns the head.
    fn install(&mut self, job: Move<T>) -> usize {
        if let Some(tidal) = &mut self.heads[job.head].tidal {
            tidal.change(job.segment, |segment| segment.state = BlockState::In(job.page));
        }
        job.head
    }

    /// Checks what must hold between calls: see [`crate::KvStore::check_integrity`].
    pub fn check_integrity(&self, n_admitted: usize, layout: &PromptLayout) -> Result<(), String> {
        let n_text = layout.len() - layout.n_audio();
        let (mut pages, mut blocks) = (0, 0);
        for (i, head) in self.heads.iter().enumerate() {
            pages += head.pages.len() as u64;
            if head.pages.len() != head.len.div_ceil(PAGE_ROWS) {
                return Err(format!("head {i}: {} rows on {} pages", head.len, head.pages.len()));
            }
            if i >= n_admitted {
                continue;
            }
            let kept = head.kept.as_ref().map_or(layout.n_audio(), Vec::len);
            if head.len < kept + n_text {
                return Err(format!(
                    "head {i}: {} rows, of which {kept} audio and {n_text} prompt text",
                    head.len
                ));
            }
            let Some(tidal) = &head.tidal else { continue };
            let mut ordinal = 0;
            let (mut host_rows, mut read) = (0, head.len - kept);
            for (number, segment) in tidal.segments.iter().enumerate() {
                if segment.ordinals.start != ordinal || segment.host_row != host_rows {
                    return Err(format!("head {i}: segment {number} does not follow the one before"));
                }
                ordinal = segment.ordinals.end;
                host_rows += segment.host_rows();
                let here = matches!(segment.state, BlockState::In(_));
                blocks += u64::from(!matches!(segment.state, BlockState::Out));
                read += if segment.hidden { 0 } else { segment.kept.len() }
                    + if here { segment.host_rows() } else { 0 };
                let listed = tidal.unusual().binary_search(&(number as u32)).is_ok();
                if listed != (here || segment.hidden) {
                    return Err(format!("head {i}: segment {number} is in the wrong list"));
                }
            }
            if ordinal != layout.n_audio()
                || 2 * host_rows * T::row_len(self.shape.head_dim) != tidal.host.len()
            {
                return Err(format!("head {i}: device and host together are not the whole audio"));
            }
            let resident = read + kept - head.len;
            if self.pending.iter().all(|p| *p == 0) && head.audio_rows(layout.n_audio()) != resident {
                let counted = head.audio_rows(layout.n_audio());
                return Err(format!(
                    "head {i}: {counted} audio rows are counted where {resident} are resident"
                ));
            }
            let hidden: usize =
                tidal.segments.iter().filter(|s| s.hidden).map(|segment| segment.kept.len()).sum();
            if head.held_rows(layout.n_audio()) != head.audio_rows(layout.n_audio()) + hidden {
                return Err(format!(
                    "head {i}: {hidden} rows are out of sight, which is not what is counted"
                ));
            }
            if head.rows() != read {
                return Err(format!(
                    "head {i}: attention reads {} rows where {read} are resident",
                    head.rows()
                ));
            }
        }
        let waiting = |pool: &PagePool<T>| pool.waiting() as u64;
        if pages + waiting(&self.pages) != self.pages.allocated() {
            return Err(format!("{pages} pages in use of {} allocated", self.pages.allocated()));
        }
        if blocks + waiting(&self.blocks) != self.blocks.allocated() {
            return Err(format!("{blocks} blocks in use of {} allocated", self.blocks.allocated()));
        }
        Ok(())
    }
}

/// The rows that a head did not keep, in storage type: for each segment its keys, then its values.
fn host_run<'a, T: KvRow>(
    positions: &[usize],
    kept: &[u32],
    segments: &Segments,
    hd: usize,
    row: impl Fn(usize) -> (&'a [f32], &'a [f32]),
) -> Result<Vec<T>, StoreError> {
    let row_len = T::row_len(hd);
    let len = 2 * (positions.len() - kept.len()) * row_len;
    let mut run: Vec<T> = Vec::new();
    if run.try_reserve_exact(len).is_err() {
        return Err(StoreError::HostMemory { needed: (len * size_of::<T>()) as u64 });
    }
    let mut kept = kept.iter().map(|o| *o as usize).peekable();
    for segment in segments.ranges() {
        let mut rest = Vec::with_capacity(segment.len());
        for ordinal in segment.clone() {
            if kept.next_if_eq(&ordinal).is_none() {
                rest.push(positions[ordinal]);
            }
        }
        for values in [false, true] {
            for position in &rest {
                let (k, v) = row(*position);
                let at = run.len();
                run.resize(at + row_len, T::STALE);
                encode_row(if values { v } else { k }, &mut run[at..]);
            }
        }
    }
    Ok(run)
}

impl HostPlan {
    /// The position of each audio row, each segment with the number of its recording, and the text rows before each
    /// recording.
    fn new(layout: &PromptLayout, segments: &Segments) -> Self {
        let (mut text_before, mut ends) = (Vec::new(), Vec::new());
        let mut audio = 0;
        for stretch in layout.audio() {
            text_before.push(stretch.start - audio);
            audio += stretch.len();
            ends.push(audio);
        }
        let recording = |range: &Range<usize>| ends.partition_point(|end| *end <= range.start);
        Self {
            positions: layout.audio().iter().flat_map(Clone::clone).collect(),
            numbered: segments.ranges().iter().map(|r| (r.clone(), recording(r))).collect(),
            text_before,
        }
    }
}
