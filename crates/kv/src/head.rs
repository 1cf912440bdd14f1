//! The rows of one KV head: what is resident, in which order attention reads it, and what can come back.

use std::ops::Range;

use wnw_kernels::KvRow;

use crate::host::HostRun;
use crate::page::{PAGE_ROWS, Page, page_rows, write_row};

/// One KV head's rows.
///
/// Text rows and the audio rows that the head kept at prefill lie in order of position in *compact* pages, to which
/// each step appends. Of a tidal head, the rest of a segment can lie in a block beside them; attention then reads both
/// interleaved, in order of position, so that a head with everything recalled sums in the order of a full cache.
#[derive(Debug)]
pub struct HeadRows<T> {
    pub pages: Vec<Page<T>>,
    /// Rows in the compact pages.
    pub len: usize,
    /// Ordinals of the audio rows among them; `None` when they are all.
    pub kept: Option<Vec<u32>>,
    pub tidal: Option<Tidal<T>>,
}

/// A head whose other rows are on the host.
#[derive(Debug)]
pub struct Tidal<T> {
    pub segments: Vec<TidalSegment<T>>,
    pub host: HostRun<T>,
    /// Compact rows up to the end of the last recording.
    audio_end: usize,
    /// Segments that are recalled, or whose kept rows are hidden, ascending.
    unusual: Vec<u32>,
    /// What attention reads up to `audio_end`, in order, and its rows.
    pieces: Vec<Piece>,
    arranged_rows: usize,
    /// Audio rows that attention reads; those on their way count.
    resident: usize,
    /// Audio rows on the device that it does not read.
    hidden: usize,
}

/// One segment of a tidal head.
#[derive(Debug)]
pub struct TidalSegment<T> {
    /// Ordinals of the segment.
    pub ordinals: Range<usize>,
    /// Indices into `kept` of the rows kept at prefill.
    pub kept: Range<usize>,
    /// First compact row of those.
    pub first_row: usize,
    /// Rows of the segments before this one in the host run.
    pub host_row: usize,
    pub state: BlockState<T>,
    /// The kept rows were released too and are not read.
    pub hidden: bool,
}

/// Where the other rows of a segment are, beside their host copy.
#[derive(Debug)]
pub enum BlockState<T> {
    /// Nowhere else.
    Out,
    /// On their way.
    Pending,
    /// On the device.
    In(Page<T>),
}

/// Consecutive rows at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    place: Place,
    start: usize,
    rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A compact page.
    Compact(usize),
    /// The block of a segment.
    Block(usize),
}

impl<T> Default for HeadRows<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), len: 0, kept: None, tidal: None }
    }
}

impl<T> TidalSegment<T> {
    /// Rows that lie on the host.
    pub fn host_rows(&self) -> usize {
        self.ordinals.len() - self.kept.len()
    }

    /// Audio rows of the segment that attention reads; those on their way count.
    fn resident(&self) -> usize {
        let recalled =
            if matches!(self.state, BlockState::In(_) | BlockState::Pending) { self.host_rows() } else { 0 };
        recalled + if self.hidden { 0 } else { self.kept.len() }
    }

    /// Audio rows of the segment that are on the device and not read.
    fn hidden_rows(&self) -> usize {
        if self.hidden { self.kept.len() } else { 0 }
    }
}

impl<T: KvRow> HeadRows<T> {
    /// Whether the next row needs a new page.
    pub fn is_full(&self) -> bool {
        self.len == self.pages.len() * PAGE_ROWS
    }

    /// Appends a row; the page for it must be there.
    pub fn push(&mut self, k: &[f32], v: &[f32]) {
        write_row(&mut self.pages[self.len / PAGE_ROWS], self.len % PAGE_ROWS, k, v);
        self.len += 1;
    }

    /// Audio rows that attention reads, of `n_audio`; those on their way count.
    pub fn audio_rows(&self, n_audio: usize) -> usize {
        match (&self.tidal, &self.kept) {
            (Some(tidal), _) => tidal.resident,
            (None, Some(kept)) => kept.len(),
            (None, None) => n_audio,
        }
    }

    /// Audio rows on the device or on their way, of `n_audio`, whether attention reads them or not.
    pub fn held_rows(&self, n_audio: usize) -> usize {
        self.audio_rows(n_audio) + self.tidal.as_ref().map_or(0, |tidal| tidal.hidden)
    }

    /// Of each of these segments (ordinals, ascending): audio rows that attention reads; those on their way count.
    pub fn segment_rows(&self, segments: &[Range<usize>]) -> Vec<u32> {
        let before = |kept: &[u32], end: usize| kept.partition_point(|o| (*o as usize) < end);
        match (&self.tidal, &self.kept) {
            (Some(tidal), _) => tidal.segments.iter().map(|s| s.resident() as u32).collect(),
            (None, Some(kept)) => {
                segments.iter().map(|s| (before(kept, s.end) - before(kept, s.start)) as u32).collect()
            }
            (None, None) => segments.iter().map(|s| s.len() as u32).collect(),
        }
    }

    /// Rows that attention reads, text and audio.
    pub fn rows(&self) -> usize {
        let Some(tidal) = &self.tidal else { return self.len };
        tidal.arranged_rows + self.len - tidal.audio_end
    }

    /// Makes the head tidal. `text_before` is the number of text rows before each recording, `segments` the ordinals of
    /// each segment with the number of its recording, `host` the rows that were not kept, segment by segment.
    pub fn make_tidal(
        &mut self,
        segments: &[(Range<usize>, usize)],
        text_before: &[usize],
        host: HostRun<T>,
    ) {
        let kept = self.kept.as_deref().unwrap_or_default();
        let (mut from, mut host_row) = (0, 0);
        let mut audio_end = 0;
        let segments = segments
            .iter()
            .map(|(ordinals, recording)| {
                let to = from + kept[from..].partition_point(|o| (*o as usize) < ordinals.end);
                let first_row = text_before[*recording] + from;
                audio_end = first_row + to - from;
                let segment = TidalSegment {
                    ordinals: ordinals.clone(),
                    kept: from..to,
                    first_row,
                    host_row,
                    state: BlockState::Out,
                    hidden: false,
                };
                from = to;
                host_row += segment.host_rows();
                segment
            })
            .collect();
        self.tidal = Some(Tidal {
            segments,
            host,
            audio_end,
            unusual: Vec::new(),
            pieces: Vec::new(),
            arranged_rows: 0,
            resident: kept.len(),
            hidden: 0,
        });
        self.arrange();
    }

    /// Works out anew in which order the rows are read; call after a segment came or went.
    pub fn arrange(&mut self) {
        let Some(tidal) = &mut self.tidal else { return };
        let kept = self.kept.as_deref().unwrap_or_default();
        let mut pieces = std::mem::take(&mut tidal.pieces);
        pieces.clear();
        let mut row = 0;
        for &number in &tidal.unusual {
            let segment = &tidal.segments[number as usize];
            compact(&mut pieces, row..segment.first_row);
            row = segment.first_row + segment.kept.len();
            let in_block = matches!(segment.state, BlockState::In(_));
            let (mut block_row, mut next) = (0, segment.ordinals.start);
            // Before each kept row, and after the last, come the rows of the block that lie between.
            let kept_ordinals = kept[segment.kept.clone()].iter().map(|o| *o as usize);
            for (i, ordinal) in kept_ordinals.chain([segment.ordinals.end]).enumerate() {
                let rows = ordinal - next;
                if in_block && rows > 0 {
                    pieces.push(Piece { place: Place::Block(number as usize), start: block_row, rows });
                    block_row += rows;
                }
                next = ordinal + 1;
                if i < segment.kept.len() && !segment.hidden {
                    compact(&mut pieces, segment.first_row + i..segment.first_row + i + 1);
                }
            }
        }
        compact(&mut pieces, row..tidal.audio_end);
        tidal.arranged_rows = pieces.iter().map(|p| p.rows).sum();
        tidal.pieces = pieces;
    }

    /// The key and value rows that attention reads, of `row_len` storage units, in order of position.
    pub fn pieces<'a>(&'a self, row_len: usize) -> impl Iterator<Item = (&'a [T], &'a [T])> + Clone + 'a {
        let (arranged, start) = match &self.tidal {
            Some(tidal) => (&tidal.pieces[..], tidal.audio_end),
            None => (&[][..], 0),
        };
        let arranged = arranged.iter().filter_map(move |piece| {
            let page = match piece.place {
                Place::Compact(page) => self.pages.get(page),
                Place::Block(number) => match self.tidal.as_ref()?.segments[number].state {
                    BlockState::In(ref block) => Some(block),
                    _ => None,
                },
            };
            Some(page_rows(page?, piece.start, piece.rows, row_len))
        });
        let first = start / PAGE_ROWS;
        let tail = (first..self.pages.len()).filter_map(move |page| {
            let from = if page == first { start % PAGE_ROWS } else { 0 };
            let to = PAGE_ROWS.min(self.len - page * PAGE_ROWS);
            (to > from).then(|| page_rows(&self.pages[page], from, to - from, row_len))
        });
        arranged.chain(tail)
    }
}

impl<T> Tidal<T> {
    /// Changes a segment, and what is counted and listed with it.
    pub fn change<R>(&mut self, number: u32, change: impl FnOnce(&mut TidalSegment<T>) -> R) -> R {
        let segment = &mut self.segments[number as usize];
        self.resident -= segment.resident();
        self.hidden -= segment.hidden_rows();
        let answer = change(segment);
        self.resident += segment.resident();
        self.hidden += segment.hidden_rows();
        let unusual = segment.hidden || matches!(segment.state, BlockState::In(_));
        match (self.unusual.binary_search(&number), unusual) {
            (Err(at), true) => self.unusual.insert(at, number),
            (Ok(at), false) => {
                self.unusual.remove(at);
            }
            _ => {}
        }
        answer
    }

    /// The lowest segment whose other rows are on the device.
    pub fn first_recalled(&self) -> Option<u32> {
        self.unusual.iter().copied().find(|n| matches!(self.segments[*n as usize].state, BlockState::In(_)))
    }

    /// Segments that are recalled or hidden, ascending.
    pub fn unusual(&self) -> &[u32] {
        &self.unusual
    }
}

/// Adds compact rows, split at page ends and joined to what precedes them.
fn compact(pieces: &mut Vec<Piece>, rows: Range<usize>) {
    let mut row = rows.start;
    while row < rows.end {
        let (page, start) = (row / PAGE_ROWS, row % PAGE_ROWS);
        let n = (PAGE_ROWS - start).min(rows.end - row);
        match pieces.last_mut() {
            Some(last) if last.place == Place::Compact(page) && last.start + last.rows == start => {
                last.rows += n
            }
            _ => pieces.push(Piece { place: Place::Compact(page), start, rows: n }),
        }
        row += n;
    }
}
